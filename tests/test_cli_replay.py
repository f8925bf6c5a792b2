"""``topas replay``: its output, its files, its exit status, and what it refuses."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support_cli import refused
from support_replay import FakeServer
from support_sim import Stage, ask, make_trace

from topas.cli import main
from topas.trace.format import write_trace

STAGES = {
    "a": Stage("A", (ask(3, 2, 4), ask(7, 3, 4, reused_tokens=5))),
    "b": Stage("B", (ask(3, 2, 2),), ("a",)),
}
METRICS = [
    "mean_jct_s",
    "p50_jct_s",
    "p99_jct_s",
    "max_jct_s",
    "makespan_s",
    "first_task_s",
    "requests_per_s",
    "mean_ttft_s",
    "p99_ttft_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "requests",
    "failed_tasks",
]


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """Return the file of a trace of three tasks."""
    path = tmp_path / "trace.jsonl"
    write_trace(make_trace({"A": 4, "B": 6}, *[(k / 100, STAGES) for k in range(3)]), path)
    return path


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_json_has_every_metric_and_what_the_server_is(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer().serve() as server:
        assert main(["replay", str(trace_file), "--url", server.url + "/v1/", "--json"]) == 0
    out, err = capsys.readouterr()
    value = json.loads(out)
    assert list(value) == [*METRICS, "policy", "api", "failures"]
    assert (value["policy"], value["api"], value["failures"]) == ("lpm", "/generate", [])
    assert (value["requests"], value["output_tokens"], value["failed_tasks"]) == (9, 21, 0)
    assert 0 < value["first_task_s"] <= value["makespan_s"]
    assert err == ""


def test_people_read_the_same_without_json(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(sglang=False, cache_report=False).serve() as server:
        assert main(["replay", str(trace_file), "--url", server.url]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == f"tiny: 3 tasks at {server.url}, policy unknown"
    assert [line.split()[0] for line in lines[1:]] == METRICS
    assert lines[1 + METRICS.index("cached_tokens")].split()[1] == "-"
    assert [line for line in err.splitlines() if "true output lengths" in line]


def test_files_have_a_row_a_task_and_a_row_a_request(trace_file: Path, tmp_path: Path) -> None:
    tasks, requests = tmp_path / "tasks.csv", tmp_path / "requests.csv"
    with FakeServer().serve() as server:
        words = ["replay", str(trace_file), "--url", server.url, "--limit", "2", "--json"]
        assert main([*words, "-o", str(tasks), "--requests", str(requests)]) == 0
    rows = _rows(tasks)
    assert [row["task"] for row in rows] == ["t00", "t01"]
    for row in rows:
        assert float(row["jct_s"]) == float(row["completion_s"]) - float(row["arrival_s"])
        assert row["error"] == ""
    rows = _rows(requests)
    assert sorted((r["task"], r["stage"], r["round"], r["agent"]) for r in rows) == [
        (task, *rest)
        for task in ("t00", "t01")
        for rest in (("a", "0", "A"), ("a", "1", "A"), ("b", "0", "B"))
    ]
    assert {int(r["prompt_tokens"]) for r in rows} == {7, 9, 11}
    assert all(float(r["start_s"]) + float(r["ttft_s"]) <= float(r["end_s"]) for r in rows)


def test_a_failed_task_is_told_and_gives_status_1(
    trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(body: dict[str, dict[str, dict[str, str]]]) -> str | None:
        return "abort" if "r7:t01" in body["sampling_params"]["custom_params"]["topas"] else None

    tasks = tmp_path / "tasks.csv"
    with FakeServer(fault=fault).serve() as server:
        words = ["replay", str(trace_file), "--url", server.url, "--seed", "7", "-o", str(tasks)]
        assert main([*words, "--json"]) == 1
        value = json.loads(capsys.readouterr().out)
        assert main(words) == 1
    reason = "aborted: queue is full"
    assert value["failures"] == [{"task": "t01", "stage": "a", "round": 0, "reason": reason}]
    assert value["failed_tasks"] == 1
    assert f"topas: t01/a/0 failed: {reason}" in capsys.readouterr().err.splitlines()
    assert [(row["task"], row["error"]) for row in _rows(tasks)] == [
        ("t00", ""),
        ("t01", reason),
        ("t02", ""),
    ]


def test_options_reach_the_server(trace_file: Path) -> None:
    with FakeServer().serve() as server:
        words = [
            "replay",
            str(trace_file),
            "--url",
            server.url,
            "--json",
            "--vocab",
            "5:9",
            "--facts",
            "names",
        ]
        assert main([*words, "--run", "mine", "--speed", "2", "--api", "openai"]) == 0
    bodies = [json.loads(body) for body in server.bodies]
    firsts = [body for body in bodies if len(body["prompt"]) == 7]
    assert {token for body in firsts for token in body["prompt"]} <= set(range(5, 10))
    assert {body["custom_params"]["topas"]["task"] for body in bodies} == {"mine:t00", "mine:t01", "mine:t02"}
    assert {body["stop_token_ids"][0] for body in bodies if "stop_token_ids" in body} == {5}


def test_ctrl_c_breaks_off_what_runs_and_leaves_no_file(trace_file: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.csv"
    with FakeServer(fault=lambda _: "hang").serve() as server:
        words = ["replay", str(trace_file), "--url", server.url, "-o", str(tasks)]
        process = subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "topas.cli", *words],
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert server.waiting.wait(60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "topas: interrupted"
    assert "Traceback" not in err
    assert server.broken_off == len(server.bodies) >= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.jsonl"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--speed", "0"], "topas: speed: expected a speed above 0, found 0"),
        (["--limit", "0"], "topas: --limit: expected at least 1 task, found 0"),
        (["--timeout", "0"], "topas: timeout: expected a timeout above 0 s, found 0"),
        (["--vocab", "9"], "topas replay: error: argument --vocab: expected LO:HI, found '9'"),
        (
            ["--vocab", "9:9"],
            "topas replay: error: argument --vocab: expected ids from 0 on, LO below HI, found 9:9",
        ),
        (["--url", "host:1"], "topas: url: expected http://HOST:PORT, found 'host:1'"),
    ],
)
def test_bad_options_are_refused(
    trace_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert refused(capsys, "replay", str(trace_file), "--url", "http://127.0.0.1:1", *words) == line


def test_no_file_is_written_over_the_trace_or_twice(
    trace_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    head = ["replay", str(trace_file), "--url", "http://127.0.0.1:1"]
    assert "is an input of this command" in refused(capsys, *head, "-o", str(trace_file))
    same = str(tmp_path / "x.csv")
    assert "is the file of the tasks" in refused(capsys, *head, "-o", same, "--requests", same)


def test_without_the_extra_the_command_says_what_to_install(
    trace_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("compare.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    line = refused(capsys, "replay", str(trace_file), "--url", "http://127.0.0.1:1")
    assert line == "topas: aiohttp is not installed: pip install 'topas[serving]'"
