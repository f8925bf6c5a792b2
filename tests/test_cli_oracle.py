"""``topas oracle event``: event files and logs in, JSON or a table out, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support_oracle import paying_event, squeezed

from compare import bench
from oracle.event import SOLVERS, solve_event
from oracle.models import event_cpsat
from topas.cli import main
from topas.formats import decision_json, event_json, log_line, read_events
from topas.policies import get_policy
from topas.trace.format import write_trace
from traces.workloads import generate

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> tuple[int, str, str]:
        status = main(["oracle", "event", *map(str, words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return an event log of a simulation under the heuristic."""
    trace, path = tmp_path / "trace.jsonl", tmp_path / "events.jsonl"
    write_trace(generate("dag-4", rate_per_s=0.2, tasks=3, seed=1), trace)
    assert main(["simulate", str(trace), "--policy", "topas-paper", "--events", str(path)]) == 0
    capsys.readouterr()
    return path


def test_json_is_a_list_with_one_object_an_event(run: Run, tmp_path: Path) -> None:
    event, path = paying_event(), tmp_path / "event.json"
    path.write_text(json.dumps(event_json(event), indent=1))
    for solver in SOLVERS:
        status, out, err = run(path, path, "--solver", solver, "--json")
        assert (status, err) == (0, "")
        found = json.loads(out)
        assert len(found) == 2
        keys = ["event", "status", "decision", "bound_s", "heuristic_score_s", "gap", "solve_s"]
        assert list(found[0]) == keys
        assert (found[0]["event"], found[0]["status"]) == (str(path), "OPTIMAL")
        exact = solve_event(event).decision
        assert exact is not None
        assert found[0]["decision"] == decision_json(exact)
        assert found[0]["bound_s"] == found[0]["heuristic_score_s"] == 13.6
        assert found[0]["gap"] == 0.0
        assert found[0]["solve_s"] > 0


def test_a_log_is_read_line_by_line_with_its_own_decisions(run: Run, log: Path) -> None:
    entries = list(read_events(log))
    status, out, err = run(log, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert [row["event"] for row in found] == [f"{log}:{k}" for k in range(1, len(entries) + 1)]
    for row, entry in zip(found, entries, strict=True):
        assert entry.decision is not None
        assert row["status"] == "OPTIMAL"
        assert row["heuristic_score_s"] == entry.decision.terms.score_s
        assert row["decision"]["score_s"] >= row["heuristic_score_s"]
        assert row["gap"] >= 0


def test_the_recorded_decision_is_the_heuristic_of_a_log(run: Run, tmp_path: Path) -> None:
    event, path = paying_event(), tmp_path / "log.jsonl"
    poor = get_policy("fcfs").decide(replace(event, waiting=event.waiting[:1]))
    path.write_text(log_line(event, poor) + "\n")
    _, out, _ = run(path, "--json")
    assert json.loads(out)[0]["heuristic_score_s"] == 5.0
    assert json.loads(out)[0]["gap"] == pytest.approx((13.6 - 5.0) / 13.6)


def test_in_words_there_is_a_line_an_event(run: Run, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event_json(squeezed(149, cap=1))))
    status, out, _ = run(path, log)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["event", "status", "score", "s"]
    assert lines[1].split()[1:-1] == ["INFEASIBLE", "-", "-", "-", "-"]
    assert len(lines) == 2 + len(log.read_text().splitlines())


def test_an_unproved_optimum_has_no_gap(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event_json(bench.mixed_event(60, 4, seed=1))))
    _, out, _ = run(path, "--time-limit", 0, "--json")
    row = json.loads(out)[0]
    assert (row["status"], row["gap"]) == ("FEASIBLE", None)
    assert row["bound_s"] > row["decision"]["score_s"] == row["heuristic_score_s"]


def spoiled(log: Path, line: int, change: Callable[[Any], None]) -> None:
    lines = log.read_text().splitlines()
    value = json.loads(lines[line - 1])
    change(value)
    lines[line - 1] = json.dumps(value)
    log.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda value: value["event"].pop("time_s"), "event.time_s: field required"),
        (lambda value: value["decision"].pop("terms"), "decision.terms: field required"),
        (lambda value: value.pop("decision"), "decision: field required"),
        (lambda value: value.update(more=1), "more: extra inputs"),
        (
            lambda value: value["event"]["resident"].append("nobody"),
            "event.resident.0: unknown agent 'nobody'",
        ),
    ],
)
def test_a_wrong_line_is_named(run: Run, log: Path, change: Callable[[Any], None], reason: str) -> None:
    spoiled(log, 1, change) if "resident" in reason else spoiled(log, 2, change)
    line = 1 if "resident" in reason else 2
    status, out, err = run(log, "--json")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"topas: {log}:{line}: {reason}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected JSON"),
        ("{", "expected JSON"),
        ("[]", "input should be a valid dictionary"),
        ('{"format":"topas-event/2"}', "format: input should be 'topas-event/1'"),
    ],
)
def test_a_file_that_is_neither_is_refused(run: Run, tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "event.json"
    path.write_text(text)
    status, out, err = run(path, "--json")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"topas: {path}: {reason}")


def test_an_empty_line_and_broken_json_in_a_log_are_refused(run: Run, log: Path) -> None:
    whole = log.read_text()
    log.write_text(whole + "\n")
    number = len(whole.splitlines()) + 1
    status, _, err = run(log, "--json")
    assert (status, err) == (
        2,
        f"topas: {log}:{number}: expected an event and its decision, found an empty line\n",
    )
    log.write_text(whole + '{"event":')
    status, _, err = run(log, "--json")
    assert status == 2
    assert err.startswith(f"topas: {log}:{number}: expected JSON")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["missing.json"], "missing.json: cannot read"),
        (["event.json", "--time-limit", "-1"], "--time-limit: expected no negative number"),
        (["event.json", "--time-limit", "nan"], "--time-limit: expected no negative number"),
        (["large.json", "--solver", "brute-force"], "large.json: expected at most 65536 joint states"),
    ],
)
def test_other_bad_input_is_refused_in_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("event.json").write_text(json.dumps(event_json(paying_event())))
    Path("large.json").write_text(json.dumps(event_json(bench.mixed_event(60, 4, seed=1))))
    status, out, err = run(*words, "--json")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"topas: {reason}")


def test_the_oracle_tells_of_its_own_faults_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(event_cpsat, "_add_move", lambda *_: None)
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event_json(paying_event())))
    assert main(["oracle", "event", str(path), "--json"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)


WITHOUT_EXTRAS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ortools", "pulp", "highspy", "scipy", "joblib", "pandas", "tabulate"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from topas.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "command",
    [
        "oracle event event.json --json",
        "oracle event event.json --solver milp --json",
        "oracle trace trace.jsonl --json",
        "gap event.json --json",
        "decide event.json --policy topas-exact --json",
        "simulate trace.jsonl --policy topas-exact --json",
    ],
)
def test_without_the_extras_commands_say_so(command: str, tmp_path: Path) -> None:
    (tmp_path / "event.json").write_text(json.dumps(event_json(paying_event())))
    write_trace(generate("chain-3", rate_per_s=0.1, tasks=2, seed=1), tmp_path / "trace.jsonl")
    words = [sys.executable, "-c", WITHOUT_EXTRAS, *command.split()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "is not installed: pip install 'topas[" in done.stderr
