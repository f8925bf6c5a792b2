"""``topas workload``, ``topas check`` and ``topas import`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from topas.cli import main
from topas.profile import load_profile
from topas.trace.format import read_trace
from traces.load import one_prefix_rate_per_s
from traces.workloads import WORKLOADS
from traces.workloads.two_agent import RATE_PER_S

EVENT: dict[str, Any] = {
    "format": "topas-event/1",
    "time_s": 12.5,
    "budget_tokens": 36000,
    "params": {
        "beta": 1.0,
        "rho": 0.5,
        "age_scale_s": 30.0,
        "M": 6,
        "K": 0,
        "swap_s_per_token": 1.3e-5,
        "decode_s_per_token": 0.04,
    },
    "agents": {"A": {"prefix_tokens": 9000}},
    "resident": ["A"],
    "reuse_counts": {"A": 0},
    "tasks": {"i": {"arrival_s": 0.0, "stages": {"v": {"after": [], "residual_s": [21.3]}}}},
    "waiting": [
        {"id": "r1", "task": "i", "stage": "v", "agent": "A", "reserve_tokens": 912, "service_s": 21.3}
    ],
    "running": [],
}
SESSION: dict[str, Any] = {
    "id": "s",
    "block_size": 64,
    "system_tokens": 10,
    "tool_tokens": 20,
    "requests": [
        {
            "t": 0.0,
            "type": "s",
            "model": "m",
            "in": 130,
            "out": 7,
            "hash_ids": [1, 2],
            "api_time": 1.0,
            "think_time": 0.0,
        }
    ],
}


def done(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """Run a command with ``--json``; it must print one object and nothing else."""
    assert main([*map(str, arguments), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("\n") == 1
    value: dict[str, Any] = json.loads(captured.out)
    return value


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that must fail with one line on stderr; return the line."""
    assert main([*map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("topas: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("topas: ").strip()


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_writes_a_trace_that_check_accepts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "t.jsonl"
    options = () if name == "figure-2" else ("--rate", "0.1", "--tasks", "3", "--seed", "4")
    made = done(capsys, "workload", name, *options, "-o", path)
    found = done(capsys, "check", path)
    assert found["format"] == "topas-trace/1"
    assert {key: made[key] for key in made if key != "rate_per_s"} == {
        key: found[key] for key in found if key != "format"
    }
    assert found["tasks"] == {"two-agent": 6, "figure-2": 2}.get(name, 3)
    assert [item.name for item in tmp_path.iterdir()] == ["t.jsonl"]


def test_the_summary_counts_what_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = done(capsys, "workload", "dag-4", "--rate", "1", "--tasks", "5", "-o", tmp_path / "t.jsonl")
    trace = read_trace(tmp_path / "t.jsonl")
    assert made == {
        "file": str(tmp_path / "t.jsonl"),
        "rate_per_s": 1.0,
        "name": "dag-4",
        "tasks": 5,
        "stages": 20,
        "requests": 20,
        "agents": 4,
        "workflows": 1,
        "first_arrival_s": trace.tasks[0].arrival_s,
        "last_arrival_s": trace.tasks[4].arrival_s,
        "input_tokens": 20 * 400,
        "output_tokens": 20 * 500,
        "largest_request_tokens": 9900,
    }


def test_the_text_output_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    assert main(["workload", "chain-3", "--rate", "1", "--tasks", "5", "-o", str(path)]) == 0
    assert main(["check", str(path)]) == 0
    wrote, checked = capsys.readouterr().out.splitlines()
    assert wrote.startswith(f"{path}: chain-3: 5 tasks, 15 stages, 15 requests, 3 agents; arrivals ")
    assert checked.startswith(f"{path}: valid topas-trace/1: chain-3: 5 tasks")


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    written = []
    for name in ("a", "b"):
        path = tmp_path / name
        assert main(["workload", "metagpt-tl", "--rate", "0.02", "--seed", "3", "-o", str(path)]) == 0
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert written[0].count(b"\n") == 101


def test_a_load_is_turned_into_a_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    made = done(
        capsys, "workload", "chain-3", "--load", "0.5", "--profile", "study", "--tasks", "9", "-o", path
    )
    full = one_prefix_rate_per_s(read_trace(path), load_profile("study"))
    assert made["rate_per_s"] == pytest.approx(full / 2)


def test_two_agent_has_a_rate_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = done(capsys, "workload", "two-agent", "--order", "grouped", "-o", tmp_path / "t.jsonl")
    assert made["rate_per_s"] == pytest.approx(RATE_PER_S)
    assert made["tasks"] == 200


def test_length_options_reach_the_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lengths = (
        "--prefix-tokens",
        "100",
        "--input-tokens",
        "20",
        "--output-tokens",
        "30",
        "--max-new-tokens",
        "40",
    )
    made = done(capsys, "workload", "chain-3", "--rate", "1", *lengths, "-o", tmp_path / "t.jsonl")
    assert made["largest_request_tokens"] == 160
    assert (made["input_tokens"], made["output_tokens"]) == (6000, 9000)
    spread = ("--output-sigma", "0.5", "--input-sigma", "0.5")
    made = done(capsys, "workload", "chain-3", "--rate", "1", *lengths, *spread, "-o", tmp_path / "t.jsonl")
    assert (made["input_tokens"], made["output_tokens"]) != (6000, 9000)


BAD_WORKLOADS = {
    "unknown name": (("chain-9", "--rate", "1"), "workload: unknown workload 'chain-9'"),
    "no rate": (("chain-3",), "--rate: "),
    "rate 0": (("chain-3", "--rate", "0"), "rate: "),
    "negative rate": (("chain-3", "--rate=-1"), "rate: "),
    "rate not a number": (("chain-3", "--rate", "nan"), "rate: "),
    "no task": (("chain-3", "--rate", "1", "--tasks", "0"), "tasks: "),
    "negative seed": (("chain-3", "--rate", "1", "--seed=-1"), "seed: "),
    "negative prefix": (("chain-3", "--rate", "1", "--prefix-tokens=-1"), "prefix_tokens: "),
    "negative input": (("chain-3", "--rate", "1", "--input-tokens=-1"), "input_tokens: "),
    "negative output": (("chain-3", "--rate", "1", "--output-tokens=-1"), "output_tokens: "),
    "negative sigma": (("chain-3", "--rate", "1", "--output-sigma=-0.5"), "output_sigma: "),
    "small allowance": (("chain-3", "--rate", "1", "--max-new-tokens", "9"), "max_new_tokens: "),
    "order of a chain": (("chain-3", "--rate", "1", "--order", "grouped"), "order: "),
    "load without profile": (("chain-3", "--load", "0.5"), "--load: needs an engine profile"),
    "profile without load": (("chain-3", "--rate", "1", "--profile", "study"), "--profile: "),
    "load 0": (("chain-3", "--load", "0", "--profile", "study"), "load: "),
    "unknown profile": (("chain-3", "--load", "1", "--profile", "none"), "none: no such profile"),
    "rate of figure-2": (("figure-2", "--rate", "1"), "--rate: figure-2 is one fixed trace"),
    "load of figure-2": (("figure-2", "--load", "1", "--profile", "unit"), "--load: figure-2"),
    "tasks of figure-2": (("figure-2", "--tasks", "3"), "--tasks: figure-2"),
    "lengths of figure-2": (("figure-2", "--input-tokens", "3"), "input_tokens: figure-2"),
}


@pytest.mark.parametrize(("arguments", "reason"), BAD_WORKLOADS.values(), ids=BAD_WORKLOADS)
def test_a_workload_that_makes_no_sense_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    line = refused(capsys, "workload", *arguments, "-o", tmp_path / "t.jsonl")
    assert line.startswith(reason)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "none" / "t.jsonl"
    assert refused(capsys, "workload", "chain-3", "--rate", "1", "-o", path).startswith(
        f"{path}: cannot write"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["workload", "chain-3", "--rate", "1"],
        ["workload", "chain-3", "--rate", "x", "-o", "t"],
        ["workload", "chain-3", "--rate", "1", "--load", "1", "-o", "t"],
        ["workload", "two-agent", "--order", "random", "-o", "t"],
        ["import", "unknown", "f", "-o", "t"],
        ["import", "kv-cache-tester", "-o", "t"],
        ["check"],
    ],
)
def test_a_command_line_that_cannot_be_read_exits_with_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("indent", [None, 2])
def test_check_accepts_an_event(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, indent: int | None
) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(EVENT, indent=indent))
    assert done(capsys, "check", path) == {
        "file": str(path),
        "format": "topas-event/1",
        "time_s": 12.5,
        "budget_tokens": 36000,
        "tasks": 1,
        "agents": 1,
        "resident": 1,
        "waiting": 1,
        "running": 0,
    }
    assert main(["check", str(path)]) == 0
    assert (
        capsys.readouterr().out == f"{path}: valid topas-event/1: 1 tasks, 1 agents, 1 waiting, 0 running\n"
    )


def test_check_refuses_a_wrong_event(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps({**EVENT, "budget_tokens": -1}))
    assert "budget_tokens" in refused(capsys, "check", path, "--json")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "expected JSON"),
        (b"[]", "expected a JSON object with a format"),
        (b"{}", "format: expected the name of a format"),
        (b'{"format": 7}', "format: expected the name of a format"),
        (b'{"format": "topas-profile/1"}', "format: expected 'topas-trace/1' or 'topas-event/1'"),
        (b"{\n  7: 8\n}", "expected JSON"),
        (b"\xff\xfe{", "expected"),
    ],
)
def test_check_refuses_what_is_neither(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, reason: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert refused(capsys, "check", path).startswith(f"{path}: {reason}")


def test_check_refuses_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        refused(capsys, "check", tmp_path / "none")
        == f"{tmp_path / 'none'}: cannot read: No such file or directory"
    )


def test_import_writes_a_trace_of_as_many_tasks_as_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = []
    for k in range(3):
        files.append(tmp_path / f"s{k}.json")
        files[-1].write_text(json.dumps({**SESSION, "id": f"s{k}"}))
    path = tmp_path / "t.jsonl"
    made = done(capsys, "import", "kv-cache-tester", *files, "-o", path)
    assert (made["tasks"], made["workflows"], made["rate_per_s"], made["notes"]) == (3, 3, 0.01, [])
    assert done(capsys, "check", path)["largest_request_tokens"] == 30 + 100 + 512
    made = done(
        capsys, "import", "kv-cache-tester", *files, "--tasks", "7", "--max-new-tokens", "5", "-o", path
    )
    assert (made["tasks"], made["largest_request_tokens"]) == (7, 137)
    assert made["notes"] == ["3 of 3 requests: output above the allowance, which is raised to it"]
    made = done(capsys, "import", "kv-cache-tester", *files, "--load", "2", "--profile", "study", "-o", path)
    assert made["rate_per_s"] == pytest.approx(
        2 * one_prefix_rate_per_s(read_trace(path), load_profile("study"))
    )


def test_import_prints_its_notes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "s.json"
    source.write_text(json.dumps({**SESSION, "tool_tokens": 200}))
    assert main(["import", "kv-cache-tester", str(source), "-o", str(tmp_path / "t.jsonl")]) == 0
    assert "1 of 1 requests: input below the agent's prefix" in capsys.readouterr().out


BAD_IMPORTS = {
    "rate 0": (("--rate", "0"), "rate: "),
    "load 0": (("--load", "0", "--profile", "study"), "load: "),
    "load without profile": (("--load", "1"), "--load: "),
    "no task": (("--tasks", "0"), "tasks: "),
    "no task at a load": (("--tasks", "0", "--load", "1", "--profile", "study"), "tasks: "),
    "negative seed": (("--seed=-1",), "seed: "),
    "no allowance": (("--max-new-tokens", "0"), "max_new_tokens: "),
}


@pytest.mark.parametrize(("arguments", "reason"), BAD_IMPORTS.values(), ids=BAD_IMPORTS)
def test_an_import_that_makes_no_sense_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    source = tmp_path / "s.json"
    source.write_text(json.dumps(SESSION))
    line = refused(capsys, "import", "kv-cache-tester", source, *arguments, "-o", tmp_path / "t.jsonl")
    assert line.startswith(reason)
    assert [item.name for item in tmp_path.iterdir()] == ["s.json"]


def test_an_import_of_a_wrong_file_names_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = tmp_path / "s.json"
    source.write_text(json.dumps({**SESSION, "block_size": "64"}))
    line = refused(capsys, "import", "kv-cache-tester", source, "-o", tmp_path / "t.jsonl")
    assert line == f"{source}: block_size: input should be a valid integer, found '64'"
    assert [item.name for item in tmp_path.iterdir()] == ["s.json"]


@pytest.mark.parametrize("command", ["workload", "check", "import"])
def test_help_shows_examples(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"topas {command} " in capsys.readouterr().out.partition("example")[2]
