"""``topas simulate``: its output, its event log, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support_sim import Stage, ask, make_trace

from topas.cli import main
from topas.cli import simulate as command
from topas.decision import Decision
from topas.event import Event
from topas.feasible import violations
from topas.formats import decision_json, event_json, event_of
from topas.policies import get_policy, policy_names
from topas.profile import load_profile
from topas.sim import SimResult, simulate
from topas.trace import Trace
from topas.trace.format import read_trace, write_trace

DOCUMENTED = [
    "mean_jct_s",
    "p50_jct_s",
    "p99_jct_s",
    "max_jct_s",
    "makespan_s",
    "first_task_s",
    "requests_per_s",
    "mean_batch",
    "peak_batch",
    "prefix_loads",
    "preemptions",
    "recomputed_tokens",
    "decisions",
    "decision_ms_mean",
    "decision_ms_p99",
]
JOINT = [name for name in policy_names() if name.startswith("topas")]


def _trace() -> Trace:
    """Return tasks that contend for memory on the study engine: forks, rounds, four large prefixes."""
    talk = (ask(300, 40, 80, tool_s=1.0), ask(700, 30, 80, reused_tokens=340))
    stages = {
        "a": Stage("A", talk),
        "b": Stage("B", (ask(400, 90, 120),), ("a",)),
        "c": Stage("C", (ask(500, 60, 120),), ("a",)),
        "d": Stage("D", (ask(200, 50, 80),), ("b", "c")),
    }
    return make_trace(dict.fromkeys("ABCD", 11_000), *[(1.5 * k, stages) for k in range(6)])


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """Return the file of a small trace."""
    path = tmp_path / "trace.jsonl"
    write_trace(_trace(), path)
    return path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a call of ``topas simulate`` that gives status, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main(["simulate", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


# --- output ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "topas-paper", "topas"])
def test_json_has_exactly_the_documented_keys_and_nothing_else(
    run: Run, trace_file: Path, policy: str
) -> None:
    status, out, err = run(trace_file, "--policy", policy, "--profile", "study", "--json")
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    values = json.loads(out)
    assert list(values) == DOCUMENTED
    whole = ("peak_batch", "prefix_loads", "preemptions", "recomputed_tokens", "decisions")
    assert all(isinstance(values[name], int if name in whole else float) for name in DOCUMENTED)


def test_json_is_what_the_library_measures(run: Run, trace_file: Path) -> None:
    _, out, _ = run(trace_file, "--policy", "spf", "--json")
    expected = simulate(read_trace(trace_file), "spf", load_profile("study")).metrics
    values = json.loads(out)
    assert {k: v for k, v in values.items() if not k.startswith("decision_ms")} == {
        k: v for k, v in expected.items() if not k.startswith("decision_ms")
    }


def test_without_json_a_person_reads_the_same_numbers(run: Run, trace_file: Path) -> None:
    status, out, err = run(trace_file, "--policy", "lpm")
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "tiny: 6 tasks under lpm on study"
    assert [line.split()[0] for line in out.splitlines()[1:]] == DOCUMENTED


def test_checking_changes_no_number(run: Run, trace_file: Path) -> None:
    plain, checked = (
        json.loads(run(trace_file, "--policy", "topas", "--json", *extra)[1]) for extra in ((), ("--check",))
    )
    assert [plain[name] for name in DOCUMENTED[:-2]] == [checked[name] for name in DOCUMENTED[:-2]]


@pytest.mark.parametrize(
    "options",
    [("--admission", "sglang"), ("--host-cache", "off"), ("--K", "1"), ("--rho", "0", "--beta", "0")],
)
def test_options_override_profile_and_parameters(
    run: Run, trace_file: Path, options: tuple[str, ...], tmp_path: Path
) -> None:
    logs = [tmp_path / "plain.jsonl", tmp_path / "changed.jsonl"]
    for log, extra in zip(logs, ((), options), strict=True):
        assert run(trace_file, "--policy", "topas-paper", "--events", log, "--json", *extra)[0] == 0
    assert logs[0].read_bytes() != logs[1].read_bytes()


# --- event log ------------------------------------------------------------------------------------------


def _logged(run: Run, trace_file: Path, policy: str, *options: object) -> tuple[int, list[dict[str, Any]]]:
    log = trace_file.with_name("events.jsonl")
    status, out, err = run(trace_file, "--policy", policy, "--events", log, "--json", *options)
    assert (status, err) == (0, "")
    return json.loads(out)["decisions"], [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("options", [(), ("--K", "1")], ids=["no cap", "K = 1"])
@pytest.mark.parametrize("policy", policy_names())
def test_every_logged_event_is_readable_and_decided_alike(
    run: Run, trace_file: Path, policy: str, options: tuple[str, ...]
) -> None:
    decisions, lines = _logged(run, trace_file, policy, *options)
    assert len(lines) == decisions > 0
    for line in lines:
        assert list(line) == ["event", "decision"]
        event = event_of(line["event"])
        assert event_json(event) == line["event"]
        decision = get_policy(policy).decide(event)
        assert decision_json(decision) == line["decision"]
        assert violations(event, decision) == []


@pytest.mark.parametrize("policy", JOINT)
def test_a_joint_policy_decides_alike_under_sglangs_admission(
    run: Run, trace_file: Path, policy: str
) -> None:
    decisions, lines = _logged(run, trace_file, policy, "--admission", "sglang")
    assert len(lines) == decisions > 0
    for line in lines:
        assert decision_json(get_policy(policy).decide(event_of(line["event"]))) == line["decision"]


def test_a_logged_event_is_a_file_for_topas_decide(
    run: Run, trace_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, lines = _logged(run, trace_file, "topas")
    event = tmp_path / "event.json"
    event.write_text(json.dumps(lines[-1]["event"]))
    assert main(["decide", str(event), "--policy", "topas", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == lines[-1]["decision"]


def test_the_same_run_writes_the_same_bytes(run: Run, trace_file: Path, tmp_path: Path) -> None:
    logs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for log in logs:
        assert run(trace_file, "--policy", "topas", "--events", log, "--json")[0] == 0
    assert logs[0].read_bytes() == logs[1].read_bytes()


# --- refusals -------------------------------------------------------------------------------------------


def _refused(run: Run, arguments: Sequence[object]) -> str:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("topas: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--profile", "nosuch"), "nosuch: no such profile or file; built-in profiles: "),
        (("--policy", "nosuch"), "unknown policy 'nosuch'; known: fcfs, "),
        (("--K", "-1"), "--K: input should be greater than or equal to 0, found -1"),
        (("--M", "17"), "--M: input should be less than or equal to 16, found 17"),
        (("--beta", "-0.5"), "--beta: input should be greater than or equal to 0, found -0.5"),
        (("--rho", "nan"), "--rho: input should be a finite number, found nan"),
        (("--events", "no/such/folder/log.jsonl"), "cannot write here"),
    ],
)
def test_wrong_options_are_refused_with_one_line(
    run: Run, trace_file: Path, options: tuple[str, ...], words: str
) -> None:
    assert words in _refused(run, [trace_file, *options, "--json"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON"),
        ("[]", "profile.json"),
        ('{"kv_budget_tokens": 100}', "kv_bytes_per_token: field required"),
        ('{"budget": 100}', "budget"),
    ],
)
def test_a_wrong_profile_file_is_refused_with_one_line(
    run: Run, trace_file: Path, tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    err = _refused(run, [trace_file, "--profile", path, "--json"])
    assert str(path) in err
    assert words in err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_budget_tokens", 0),
        ("swap_bytes_per_s", -1.0),
        ("admission", "greedy"),
        ("decode_base_s", "fast"),
        ("colour", "red"),
        ("format", "topas-profile/2"),
    ],
)
def test_a_wrong_field_of_a_profile_is_named(
    run: Run, trace_file: Path, tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(load_profile("study").model_dump() | {field: value}))
    assert f"{field}: " in _refused(run, [trace_file, "--profile", path, "--json"])


def test_a_profile_file_is_used(run: Run, trace_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(load_profile("study").model_copy(update={"decode_base_s": 1.0}).model_dump_json())
    slow, fast = (
        json.loads(run(trace_file, "--policy", "fcfs", "--profile", name, "--json")[1])["mean_jct_s"]
        for name in (path, "study")
    )
    assert slow > 5 * fast


@pytest.mark.parametrize("text", [None, "", "{}\n", '{"format":"topas-trace/1"}\n'])
def test_a_wrong_trace_is_refused_with_one_line(run: Run, tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "trace.jsonl"
    if text is not None:
        path.write_text(text)
    assert str(path) in _refused(run, [path, "--json"])


def test_an_unknown_choice_is_refused_with_status_2(
    trace_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", str(trace_file), "--admission", "greedy"])
    assert exit_.value.code == 2
    assert capsys.readouterr().out == ""


# --- interrupted writes ---------------------------------------------------------------------------------


def _breaking(error: BaseException) -> Callable[..., SimResult]:
    """Return a simulation that breaks off after a few decisions."""

    def broken(trace: Trace, policy: Any, profile: Any, **options: Any) -> SimResult:  # noqa: ANN401
        record, seen = options.pop("record"), []

        def note(event: Event, decision: Decision) -> None:
            record(event, decision)
            seen.append(event)
            if len(seen) == 3:
                raise error

        return simulate(trace, policy, profile, record=note, **options)

    return broken


@pytest.mark.parametrize("before", [None, "an older log\n"], ids=["no file before", "a file before"])
def test_an_interrupted_run_leaves_no_new_file(
    run: Run, trace_file: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    log = trace_file.with_name("events.jsonl")
    if before is not None:
        log.write_text(before)
    there = sorted(trace_file.parent.iterdir())
    monkeypatch.setattr(command, "simulate", _breaking(KeyboardInterrupt()))
    status, out, err = run(trace_file, "--policy", "fcfs", "--events", log, "--json")
    assert (status, out, err) == (130, "", "topas: interrupted\n")
    assert sorted(trace_file.parent.iterdir()) == there
    if before is not None:
        assert log.read_text() == before


def test_a_failed_write_leaves_no_file(run: Run, trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = trace_file.with_name("events.jsonl")
    monkeypatch.setattr(command, "simulate", _breaking(OSError(28, "No space left on device")))
    status, out, err = run(trace_file, "--policy", "fcfs", "--events", log, "--json")
    assert (status, out, err) == (2, "", f"topas: {log}: cannot write: No space left on device\n")
    assert list(trace_file.parent.iterdir()) == [trace_file]


def test_a_refused_trace_leaves_no_log(run: Run, tmp_path: Path) -> None:
    path, log = tmp_path / "wide.jsonl", tmp_path / "events.jsonl"
    write_trace(make_trace({"A": 40_000}, (0.0, {"a": Stage("A", (ask(1, 1),))})), path)
    assert "needs 40002 KV tokens" in _refused(run, [path, "--events", log, "--json"])
    assert list(tmp_path.iterdir()) == [path]
