"""``topas gap`` from the command line to the files."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import support_cli

from compare import judge
from compare.gap import usual_policies
from topas.cli import main
from topas.formats import event_json, read_event
from topas.online.search import select
from topas.profile import load_profile
from topas.score import decision_on
from topas.trace.format import write_trace
from traces.load import rate_for_load
from traces.workloads import generate


def gap(folder: Path, *words: str) -> int:
    return main(["gap", *words, "--jobs", "1", "-o", str(folder)])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    return support_cli.refused(capsys, "gap", *words)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    rate = rate_for_load("dag-4", 0.5, load_profile("study"), 8, 1)
    write_trace(generate("dag-4", rate_per_s=rate, tasks=8, seed=1), path)
    return str(path)


@pytest.fixture
def log(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(tmp_path / "log.jsonl")
    assert main(["simulate", trace, "--policy", "topas-paper", "--events", path]) == 0
    capsys.readouterr()
    return path


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the slow parts: bounds, and the search for a schedule."""
    one = SimpleNamespace(name="path", mean_jct_s=50.0, status="OPTIMAL", solve_s=0.1)
    found = SimpleNamespace(bounds=(one,), best=one, refused=())
    better = SimpleNamespace(
        mean_jct_s=60.0,
        found_by="search",
        result=SimpleNamespace(metrics={"p99_jct_s": 90.0, "max_jct_s": 95.0}),
    )
    monkeypatch.setitem(sys.modules, "oracle.trace", SimpleNamespace(lower_bounds=lambda *_, **__: found))
    monkeypatch.setitem(sys.modules, "oracle.improve", SimpleNamespace(improve=lambda *_, **__: better))


@pytest.mark.usefixtures("stubs")
def test_a_trace_is_played_judged_and_set_between_bound_and_best_schedule(
    tmp_path: Path, trace: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--policies", "topas-paper,lpm", "--improve", "5"]
    assert gap(tmp_path / "out", trace, *words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in ("best bound: `path`", "best known: `search`", "## Single events", "### Largest gaps"):
        assert text in out
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["events"]["all"]["events"] == len(Path(log).read_text().splitlines())
    (whole,) = report["traces"]
    assert [row["policy"] for row in whole["rows"]] == ["topas-paper", "lpm"]
    assert whole["rows"][0]["over_bound"] == whole["rows"][0]["mean_jct_s"] / 50 - 1
    page = (tmp_path / "out/report.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("topas gap "))
    assert main(shlex.split(command)[1:]) == 0
    assert "items were done before" in capsys.readouterr().err
    assert (tmp_path / "out/report.md").read_text() == page


@pytest.mark.usefixtures("stubs")
def test_the_usual_policies_end_with_the_split_of_the_distance(
    tmp_path: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gap(tmp_path / "out", trace, "--no-events", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["events"] is None
    (whole,) = report["traces"]
    assert [row["policy"] for row in whole["rows"]] == list(usual_policies())
    split = whole["split"]
    assert split["search_s"] + split["score_s"] + split["unexplained_s"] == pytest.approx(split["total_s"])
    means = {row["policy"]: row["mean_jct_s"] for row in whole["rows"]}
    assert split["search_s"] == means["topas-paper"] - means["topas-exact"]


def test_a_log_an_event_file_and_only_the_events_of_a_trace(
    tmp_path: Path, trace: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = json.loads(Path(log).read_text().splitlines()[4])["event"]
    event = tmp_path / "event.json"
    event.write_text(json.dumps(first, indent=1))
    assert gap(tmp_path / "out", log, str(event), trace, "--no-trace", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    lines = len(Path(log).read_text().splitlines())
    assert {one["name"]: one["events"] for one in report["events"]["by"]["group"]} == {
        log: lines,
        str(event): 1,
        trace: lines,
    }
    assert report["traces"] == []
    assert report["failed"] == []
    table = pd.read_csv(tmp_path / "out/events.csv")
    assert list(table[table["file"] == str(event)]["index"]) == [1]


def test_the_worst_events_are_read_by_decide(
    tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gap(tmp_path / "out", log, "--worst", "1") == 0
    capsys.readouterr()
    kept = tmp_path / "out/worst"
    assert sorted(path.name for path in kept.iterdir()) == ["01-gap.json", "01-made.json", "01-optimum.json"]
    assert main(["decide", str(kept / "01-gap.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((kept / "01-made.json").read_text())
    assert event_json(read_event(kept / "01-gap.json")) == json.loads((kept / "01-gap.json").read_text())


def test_a_policy_given_is_judged_on_recorded_events(
    tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gap(tmp_path / "out", log, "--policy", "fcfs", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["settings"]["decide"] == "fcfs"
    table = pd.read_csv(tmp_path / "out/events.csv")
    assert set(table["made_redo_s"]) == {0.0}


def test_json_is_one_object_and_nothing_else(
    tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gap(tmp_path / "out", log, "--max-events", "4", "--json") == 0
    out, err = capsys.readouterr()
    assert (len(out.splitlines()), err) == (1, "")
    report = json.loads(out)
    assert report["events"]["sampled"][log][0] == 4
    assert all(Path(path).is_file() for path in report["files"])


def test_a_failing_event_is_told_and_ends_with_1(
    tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = judge.solve_event
    calls = []

    def sometimes(*args: object, **more: object) -> object:
        calls.append(1)
        if len(calls) % 2:
            raise RuntimeError("no luck")
        return real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(judge, "solve_event", sometimes)
    assert gap(tmp_path / "out", log) == 1
    out, err = capsys.readouterr()
    assert f"topas: failed: {log}:1: RuntimeError: no luck" in err
    assert "## Single events" in out
    monkeypatch.undo()
    assert gap(tmp_path / "out", log, "--quiet") == 0


# -------------------------------------------------------------------------------------------- refusals


def test_wrong_files_are_refused_before_anything_runs(
    tmp_path: Path, trace: str, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["-o", str(tmp_path / "out")]
    assert "none.jsonl: cannot read" in refused(capsys, str(tmp_path / "none.jsonl"), *out)
    lines = Path(log).read_text().splitlines()
    spoiled = json.loads(lines[2])
    spoiled["event"]["budget_tokens"] = -1
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("\n".join([*lines[:2], json.dumps(spoiled), *lines[3:]]) + "\n")
    said = refused(capsys, log, str(wrong), *out)
    assert f"{wrong}:3: " in said
    assert "budget_tokens" in said
    wrong.write_text(Path(trace).read_text().replace('"input_tokens"', '"inputs"', 1))
    assert f"{wrong}:" in refused(capsys, str(wrong), *out)
    wrong.write_text("")
    assert str(wrong) in refused(capsys, str(wrong), *out)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--policy", "none"], "--policy: unknown policy 'none'"),
        (["--policies", "topas-paper,none"], "--policies: unknown policy 'none'"),
        (["--jobs", "0"], "--jobs: expected at least 1"),
        (["--time-limit", "0"], "expected a positive number of seconds"),
        (["--improve", "nan"], "expected a positive number of seconds"),
        (["--max-events", "-1"], "expected no negative number"),
        (["--no-events", "--no-trace"], "not allowed with"),
        (["--profile", "none"], "none"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert told in refused(capsys, log, *words, "-o", str(tmp_path / "out"))


def test_a_file_named_twice_is_refused(tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "named twice" in refused(capsys, log, log, "-o", str(tmp_path / "out"))


def test_a_trace_that_does_not_fit_the_engine_is_refused(
    tmp_path: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, trace, "--profile", "unit", "-o", str(tmp_path / "out"))
    assert "KV tokens" in said


def test_without_the_solvers_one_line_names_the_extra(
    tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    said = refused(capsys, log, "-o", str(tmp_path / "out"))
    assert said == "topas: needs ortools, which is not installed: pip install 'topas[oracle]'"


# ------------------------------------------------------------------------------------------ interrupted

STOPPED = """
import sys, time
from pathlib import Path
from compare import judge
from topas.cli import main

real, calls, sign = judge.solve_event, [], Path(sys.argv.pop(1))
def solve(*args, **more):
    calls.append(1)
    if len(calls) == 3:
        sign.touch()
        time.sleep(600)
    return real(*args, **more)
judge.solve_event = solve
sys.exit(main(sys.argv[1:]))
"""
"""The command with a third event that is never solved."""


def test_a_stopped_run_keeps_what_is_solved_and_says_how_to_go_on(
    tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, sign = tmp_path / "out", tmp_path / "begun"
    with subprocess.Popen(  # noqa: S603  our own interpreter and script
        [sys.executable, "-c", STOPPED, str(sign), "gap", log, "--jobs", "1", "-o", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not sign.exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        printed, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed == ""
    (line,) = err.splitlines()
    assert line.startswith("topas: interrupted: 2 of ")
    assert line.endswith(f"items are kept in {out}; the same command goes on from there")
    assert not (out / "report.md").exists()
    assert gap(out, log) == 0
    assert "2 items were done before" in capsys.readouterr().err


def test_a_recorded_decision_is_what_is_judged(
    tmp_path: Path, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = json.loads(Path(log).read_text().splitlines()[6])
    path = tmp_path / "event.json"
    path.write_text(json.dumps(entry["event"]))
    event = read_event(path)
    nothing = decision_on(event, ())
    assert select(event).admit, "doing nothing is not what Algorithm 1 does here"
    entry["decision"] |= {"admit": [], "preempt": [], "resident": list(nothing.resident)}
    changed = tmp_path / "changed.jsonl"
    changed.write_text(json.dumps(entry) + "\n")
    assert gap(tmp_path / "out", str(changed), "--json") == 0
    capsys.readouterr()
    assert pd.read_csv(tmp_path / "out/events.csv")["made_s"].tolist() == [nothing.terms.score_s]
