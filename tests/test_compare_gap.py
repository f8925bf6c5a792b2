"""Gaps: statistics on hand-made verdicts, judging, what is kept and resumed, the report's files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from compare import judge, optimality
from compare.bound import BoundCase, Bounded, Bounds, BoundValue, ImproveCase, KnownSchedule
from compare.gap import EXACT, Gaps, Group, Settings, enough_events, measure, sample
from compare.gap_report import markdown, write_gap_report
from compare.gap_tables import (
    GROUPINGS,
    Distribution,
    differences,
    events_frame,
    tallies,
    tally,
    tied,
    waiting_range,
    whole_trace,
    worst,
)  # fmt: skip
from compare.judge import EventCase, Verdict, verdict_on
from compare.optimality import overview
from compare.pool import Interrupted
from compare.source import Source
from compare.study import METRICS, Metrics, Played, Run
from oracle.event import gap, solve_event
from oracle.result import EventResult, Status
from oracle.verify import OracleError
from topas.decision import Decision, Terms
from topas.errors import InputError
from topas.event import Event, Params
from topas.feasible import violations
from topas.formats import decision_of_json, log_line, read_event
from topas.online.search import select
from topas.profile import load_profile
from topas.score import decision_on
from topas.sim import simulate
from traces.load import rate_for_load

STUDY = load_profile("study")
SOURCE = Source("dag-4", 8, 1, rate_for_load("dag-4", 0.5, STUDY, 8, 1))
"""Its events include two on which Algorithm 1 misses the optimum."""

SETTINGS = Settings(STUDY, Params(), "topas-paper", ("topas-paper", "lpm"))


def recorded(source: Source, policy: str = "topas-paper") -> list[tuple[Event, Decision]]:
    events: list[tuple[Event, Decision]] = []
    simulate(source.trace(), policy, STUDY, record=lambda event, made: events.append((event, made)))
    return events


EVENTS = recorded(SOURCE)


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "events.jsonl"
    path.write_text("".join(log_line(event, made) + "\n" for event, made in EVENTS))
    return str(path)


def decision(admit_ns: int, *, redo_ns: int = 0, admit: tuple[str, ...] = (), agent: str = "A") -> Decision:
    return Decision((agent,), admit, (), Terms(admit_ns=admit_ns, redo_ns=redo_ns))


def verdict(
    made_ns: int, best_ns: int | None, status: Status = Status.OPTIMAL, bound_ns: int | None = None
) -> Verdict:
    best = None if best_ns is None else decision(best_ns)
    bound_ns = best_ns if status == Status.OPTIMAL else bound_ns
    return Verdict(
        time_s=1.0,
        waiting=3,
        running=2,
        agents=4,
        enumerated=True,
        status=status,
        made=decision(made_ns),
        best=best,
        bound_ns=bound_ns,
        beside_kept=False,
        solve_s=0.5,
    )


def judged(*verdicts: Verdict) -> pd.DataFrame:
    return events_frame(
        ({"group": "g", "file": "f.jsonl", "index": k}, one) for k, one in enumerate(verdicts, start=1)
    )


MIXED = judged(
    verdict(100, 100),
    verdict(995, 1000),
    verdict(990, 1000),
    verdict(50, 100),
    verdict(80, 90, Status.FEASIBLE, 160),
    verdict(7, 7, Status.FEASIBLE, 7),
    verdict(1, None, Status.UNKNOWN, 10**12),
    verdict(1, None, Status.INFEASIBLE),
)


# ------------------------------------------------------------------------------------------- statistics


def distribution(count: int, exact: int, near: int, worse: int, **numbers: float | None) -> dict[str, object]:
    return {"count": count, "exact": exact, "near": near, "worse": worse, **numbers}


def test_proved_bounded_unknown_and_infeasible_events_never_mix() -> None:
    found = tally("all", MIXED)
    assert (found["events"], found["unknown"], found["infeasible"]) == (8, 1, 1)
    mean = (0 + 0.005 + 0.01 + 0.5) / 4
    proved = {
        name: found["proved"][name] for name in ("count", "exact", "near", "worse", "mean", "median", "max")
    }
    assert proved == pytest.approx(distribution(4, 1, 2, 1, mean=mean, median=0.0075, max=0.5))
    bounded = {name: found["bounded"][name] for name in ("count", "exact", "near", "worse", "mean", "max")}
    assert bounded == distribution(2, 1, 0, 1, mean=0.25, max=0.5)


def test_no_events_have_no_numbers() -> None:
    assert Distribution.of([]) == Distribution(0, 0, 0, 0, None, None, None, None, None)
    assert tally("all", judged(verdict(1, None, Status.UNKNOWN)))["proved"]["mean"] is None


def test_one_nanosecond_is_a_gap_and_a_negative_optimum_counts_by_its_size() -> None:
    assert tally("all", judged(verdict(10**15 - 1, 10**15)))["proved"]["near"] == 1
    assert verdict(-30, -20).gap == 0.5
    assert verdict(-5, 0).gap == 5
    assert verdict(-5, 0).gap == gap(0, -5)


def test_percentiles_interpolate() -> None:
    found = Distribution.of([k / 100 for k in range(101)])
    assert (found.p95, found.p99) == (pytest.approx(0.95), pytest.approx(0.99))


def test_differences_add_up_to_the_summed_gap_and_leave_out_what_is_exact_or_unproved() -> None:
    pairs = [
        (decision(100, redo_ns=40, admit=("a",)), decision(110, redo_ns=10, admit=("a",))),
        (decision(100, admit=("a",)), decision(150, redo_ns=20, admit=("b",), agent="B")),
        (decision(100, admit=("c",)), decision(100, admit=("d",))),
    ]
    unproved = verdict(80, 90, Status.FEASIBLE, 160)
    some = judged(*(replace(verdict(0, 1), made=made, best=best) for made, best in pairs), unproved)
    found = {one["name"]: one for one in differences(some)}
    assert {name: one["events"] for name, one in found.items() if one["events"]} == {
        "term admit": 2,
        "term redo": 2,
        "resident prefixes": 1,
        "admissions": 1,
    }
    net_s = {name: one["net_s"] for name, one in found.items() if one["net_s"] is not None}
    assert net_s["term redo"] == pytest.approx(10e-9)
    assert sum(net_s.values()) == pytest.approx(
        sum(best.terms.score_s - made.terms.score_s for made, best in pairs)
    )
    assert found["preemptions"]["net_s"] is None
    assert tied(some) == 1


def test_the_worst_events_are_proved_ones_the_largest_gap_first() -> None:
    assert list(worst(MIXED, 9)["index"]) == [4, 3, 2]
    assert list(worst(MIXED, 1)["index"]) == [4]
    assert list(worst(judged(verdict(1, 2), verdict(2, 4)), 2)["index"]) == [1, 2]


@pytest.mark.parametrize(
    ("waiting", "name"), [(0, "0-1"), (1, "0-1"), (2, "2-4"), (64, "33-64"), (65, "65 or more")]
)
def test_ranges_of_waiting_requests(waiting: int, name: str) -> None:
    assert waiting_range(waiting) == name


def test_groups_come_in_a_readable_order() -> None:
    events = judged(*(replace(verdict(1, 1), waiting=n, enumerated=n < 3) for n in (70, 1, 3, 70)))
    found = {key: tallies(events, names(events)) for key, names in GROUPINGS.items()}
    assert [(one["name"], one["events"]) for one in found["waiting"]] == [
        ("0-1", 1),
        ("2-4", 1),
        ("65 or more", 2),
    ]
    assert [(one["name"], one["events"]) for one in found["search"]] == [("enumerated", 1), ("grown", 3)]


def test_a_sample_is_evenly_spaced_seeded_and_whole_where_there_is_room() -> None:
    assert sample(5, 0, 1) == sample(5, 5, 1) == sample(5, 9, 1) == [0, 1, 2, 3, 4]
    for seed in range(20):
        found = sample(1000, 7, seed)
        assert len(set(found)) == 7
        assert found[0] >= 0
        assert found[-1] < 1000
        assert {b - a for a, b in pairwise(found)} <= {142, 143}
    assert sample(1000, 7, 1) == sample(1000, 7, 1) != sample(1000, 7, 2)


# ---------------------------------------------------------------------------------------------- judging


def busy() -> tuple[Event, Decision]:
    """Return the event with the most running and waiting requests."""
    return max(EVENTS, key=lambda pair: min(len(pair[0].waiting), len(pair[0].running)))


def test_a_verdict_is_the_shared_score_beside_the_solvers_optimum() -> None:
    for event, made in EVENTS[:6]:
        found = EventCase.of(event, made, "topas-paper", 10.0).answer()
        optimum = solve_event(event)
        assert found.status == Status.OPTIMAL
        assert found.made.terms == made.terms == select(event).terms
        assert found.best is not None
        assert optimum.decision is not None
        assert found.best.terms.score_ns == optimum.decision.terms.score_ns
        assert found.gap == gap(optimum.decision.terms.score_ns, made.terms.score_ns) >= 0
        assert found.agents == len({request.agent for request in (*event.waiting, *event.running)})
        assert found.enumerated is (found.agents <= event.params.M)


def test_without_a_record_the_policy_decides_and_is_scored_by_the_events_own_parameters() -> None:
    event, _ = EVENTS[3]
    found = EventCase.of(event, None, "topas-base", 10.0).answer()
    assert found.made.terms == decision_on(event, found.made.admit, found.made.preempt).terms


def test_a_proof_that_a_decision_disproves_is_an_error_of_ours() -> None:
    event, made = busy()
    low = decision_on(event, ())
    with pytest.raises(OracleError, match="above the proved bound"):
        verdict_on(event, made, EventResult(Status.FEASIBLE, low, made.terms.score_ns - 1, "stub", 0.0))
    with pytest.raises(OracleError, match="no decision exists"):
        verdict_on(event, made, EventResult(Status.INFEASIBLE, None, None, "stub", 0.0))


def test_a_decision_against_the_rules_is_refused_but_for_events_without_any_valid_one() -> None:
    event, made = busy()
    small = replace(event, budget_tokens=1)
    assert violations(small, made)
    with pytest.raises(InputError, match="not feasible: budget"):
        verdict_on(small, made, EventResult(Status.UNKNOWN, None, None, "stub", 0.0))
    found = verdict_on(small, made, EventResult(Status.INFEASIBLE, None, None, "stub", 0.0))
    assert (found.gap, found.gap_at_most) == (None, None)


def test_a_decision_that_leaves_the_engine_idle_is_no_rival_of_the_optimum() -> None:
    event, _ = EVENTS[0]
    assert not event.running
    with pytest.raises(InputError, match="leaves nothing running"):
        verdict_on(event, decision_on(event, ()), solve_event(event))


def test_preempting_beside_kept_requests_is_told_from_giving_up_a_prefix() -> None:
    event, made = busy()
    first, *rest = event.running
    assert any(other.agent == first.agent for other in rest)
    for preempt, beside in (
        ([first.id], True),
        ([r.id for r in event.running if r.agent == first.agent], False),
    ):
        best = decision_on(event, (), preempt)
        if not best.resident:
            continue
        found = verdict_on(event, made, EventResult(Status.FEASIBLE, best, 10**15, "stub", 0.0))
        assert found.beside_kept is beside


def test_a_bound_limits_the_gap_of_an_unproved_event() -> None:
    event, made = busy()
    found = verdict_on(
        event, made, EventResult(Status.FEASIBLE, made, 2 * abs(made.terms.score_ns), "stub", 0.0)
    )
    assert found.gap is None
    assert found.gap_at_most == gap(2 * abs(made.terms.score_ns), made.terms.score_ns)


# ------------------------------------------------------------------------------------- runs and resuming


class Solver:
    """The real solver, counted; ``trouble`` is called with the number of the event first."""

    def __init__(self, trouble: Callable[[int], None] = lambda _: None) -> None:
        self.calls = 0
        self.trouble = trouble

    def __call__(self, event: Event, *, time_limit_s: float) -> EventResult:
        """Solve."""
        self.calls += 1
        self.trouble(self.calls)
        return solve_event(event, time_limit_s=time_limit_s)


def with_solver(monkeypatch: pytest.MonkeyPatch, solver: Solver) -> Solver:
    monkeypatch.setattr(judge, "solve_event", solver)
    return solver


def events_of(folder: Path, log: str, settings: Settings = SETTINGS) -> Gaps:
    return measure([Group(log, files=(log,))], [], settings, folder)


def test_a_second_run_solves_nothing_and_writes_the_same_bytes(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = with_solver(monkeypatch, Solver())
    first = events_of(tmp_path / "out", log)
    assert len(first.events) == len(EVENTS)
    assert solver.calls == len(list((tmp_path / "out/events").iterdir())) <= len(EVENTS)
    files = write_gap_report(first, "topas gap", tmp_path / "out", 3)
    before = [path.read_bytes() for path in files]
    solved = solver.calls
    second = events_of(tmp_path / "out", log)
    assert solver.calls == solved == second.resumed
    assert second.events.equals(first.events)
    assert [
        path.read_bytes() for path in write_gap_report(second, "topas gap", tmp_path / "out", 3)
    ] == before


def test_another_folder_gives_the_same_bytes_but_for_the_times(tmp_path: Path, log: str) -> None:
    folders = (tmp_path / "1", tmp_path / "2")
    for folder in folders:
        write_gap_report(events_of(folder, log), "topas gap", folder, 3)
    for name in ("report.md", "report.json", "worst/01-gap.json", "worst/01-optimum.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    one, two = (pd.read_csv(folder / "events.csv").drop(columns="solve_s") for folder in folders)
    assert one.equals(two)


def test_an_interrupted_run_keeps_what_is_solved_and_goes_on(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    with_solver(monkeypatch, Solver(stop))
    with pytest.raises(Interrupted) as stopped:
        events_of(tmp_path, log)
    assert stopped.value.done == 3
    solver = with_solver(monkeypatch, Solver())
    study = events_of(tmp_path, log)
    assert study.resumed == 3
    assert solver.calls == stopped.value.total - 3
    assert study.events.equals(events_of(tmp_path, log).events)


def test_a_failing_event_is_named_and_costs_no_other(
    tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise OracleError("two\nlines")

    with_solver(monkeypatch, Solver(fail))
    study = events_of(tmp_path, log)
    assert study.failures == {f"{log}:2": "OracleError: two lines"}
    assert len(study.events) == len(EVENTS) - 1
    assert f"- {log}:2: OracleError: two lines" in markdown(study, "topas gap", 3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("topas-answer/1", "topas-answer/2"),
        lambda text: text.replace('"OPTIMAL"', '"SUPER"'),
        lambda text: text.replace('"waiting":', '"queue":'),
        lambda text: text.replace('"time_limit_s":10.0', '"time_limit_s":11.0'),
    ],
)
def test_a_kept_file_that_is_not_that_events_verdict_is_solved_again(
    tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    event, made = EVENTS[0]
    path = tmp_path / "one.jsonl"
    path.write_text(log_line(event, made) + "\n")
    first = events_of(tmp_path, str(path))
    (kept,) = (tmp_path / "events").iterdir()
    whole = kept.read_text()
    assert spoil(whole) != whole
    kept.write_text(spoil(whole))
    again = events_of(tmp_path, str(path))
    assert (again.resumed, again.rejected) == (0, 1)
    assert [one.best for one in again.verdicts.values()] == [one.best for one in first.verdicts.values()]


def test_equal_events_are_solved_once(tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_text(Path(log).read_text())
    solver = with_solver(monkeypatch, Solver())
    study = measure([Group(name, files=(name,)) for name in (log, str(copy))], [], SETTINGS, tmp_path)
    assert len(study.events) == 2 * len(EVENTS)
    assert solver.calls <= len(EVENTS)


def test_a_sampled_file_says_so(tmp_path: Path, log: str) -> None:
    study = events_of(tmp_path, log, replace(SETTINGS, max_events=3))
    assert study.sampled == {log: (3, len(EVENTS))}
    assert len(study.events) == 3
    assert f"3 of {len(EVENTS)} events were judged, evenly spaced (seed 0)" in markdown(study, "", 1)


def test_a_policy_given_decides_instead_of_the_record(tmp_path: Path, log: str) -> None:
    study = events_of(tmp_path, log, replace(SETTINGS, decide="fcfs", max_events=4))
    for (_, index), one in study.verdicts.items():
        event, _ = EVENTS[index - 1]
        assert not one.made.preempt
        assert one.made.terms == decision_on(event, one.made.admit).terms


# ------------------------------------------------------------------------------------------- the report


def test_the_worst_events_are_event_files_with_both_decisions_beside_them(tmp_path: Path, log: str) -> None:
    study = events_of(tmp_path / "out", log)
    behind = worst(study.events, 2)
    assert len(behind), "the trace is to have an event with a gap"
    (tmp_path / "out/worst").mkdir()
    (tmp_path / "out/worst/09-gap.json").write_text("of an earlier run")
    write_gap_report(study, "topas gap", tmp_path / "out", 2)
    for rank, (_, one) in enumerate(behind.iterrows(), start=1):
        verdict = study.verdicts[one["file"], one["index"]]
        stem = tmp_path / f"out/worst/{rank:02d}"
        event = read_event(f"{stem}-gap.json")
        made, best = (
            decision_of_json(json.loads(Path(f"{stem}-{name}.json").read_text()))
            for name in ("made", "optimum")
        )
        assert decision_on(event, made.admit, made.preempt).terms == made.terms == verdict.made.terms
        assert gap(best.terms.score_ns, made.terms.score_ns) == verdict.gap == one["gap"]
        assert not violations(event, best)
    assert not (tmp_path / "out/worst/09-gap.json").exists()


def test_the_tables_hold_both_decisions_of_every_event(tmp_path: Path, log: str) -> None:
    study = events_of(tmp_path, log)
    write_gap_report(study, "topas gap", tmp_path, 0)
    table = pd.read_parquet(tmp_path / "events.parquet")
    text = pd.read_csv(tmp_path / "events.csv", dtype=str, keep_default_na=False)
    assert list(text.columns) == list(table.columns)
    for name in table.columns:
        assert list(text[name]) == ["" if pd.isna(value) else str(value) for value in table[name]]
    for row, (event, made) in zip(table.to_dict("records"), EVENTS, strict=True):
        assert (row["waiting"], row["running"]) == (len(event.waiting), len(event.running))
        assert row["made_s"] == made.terms.score_s
        parts = [row[f"best_{name}_s"] for name in ("admit", "move", "redo", "revoke", "reuse")]
        assert row["best_s"] == pytest.approx(parts[0] - parts[1] - parts[2] - parts[3] + parts[4])
        assert (row["gap"] == 0) >= (row["same_admit"] and row["same_preempt"])


# ----------------------------------------------------------------------------------------- whole traces


def whole(
    means: Mapping[str, float], bounds: Bounds | None, improved: KnownSchedule | None
) -> dict[str, Any]:
    """Return what a trace comes to of policies with these mean JCTs."""
    runs = tuple(Run(SOURCE, policy, STUDY) for policy in means)
    trace = Bounded(runs, BoundCase(SOURCE, STUDY, 1.0), ImproveCase(SOURCE, STUDY, Params(), 1.0, 0))
    found = {**dict.fromkeys(METRICS, 1)}
    answers: dict[object, object] = {
        run: Played(
            Metrics(**{**found, "mean_jct_s": mean, "p99_jct_s": 2 * mean, "max_jct_s": 3 * mean}), ()
        )
        for run, mean in zip(runs, means.values(), strict=True)
    }
    answers |= {trace.bound: bounds} if bounds else {}
    answers |= {trace.improve: improved} if improved else {}
    return whole_trace(trace, answers, "topas-paper", EXACT)


BOUND = BoundValue("work", 40.0, "OPTIMAL", 1.0)
BOUNDS = Bounds((BoundValue("path", 20.0, "OPTIMAL", 0.1), BOUND), BOUND, (("batch", "needs equal prompts"),))
SEARCHED = KnownSchedule("search", 50.0, 90.0, 95.0)


def test_the_split_of_a_distance_adds_up_and_hides_no_sign() -> None:
    found = whole({"topas-exact": 60.0, "topas-paper": 58.0, "lpm": 80.0}, BOUNDS, SEARCHED)
    assert found["best"] == {**asdict(SEARCHED), "over_bound": 0.25}
    split = found["split"]
    assert (split["search_s"], split["score_s"], split["unexplained_s"]) == (-2.0, 10.0, 10.0)
    assert split["total_s"] == 18.0
    assert [row["over_bound"] for row in found["rows"]] == [pytest.approx(x) for x in (0.5, 0.45, 1.0)]
    assert [row["over_best"] for row in found["rows"]] == [pytest.approx(x) for x in (0.2, 0.16, 0.6)]
    page = markdown(Gaps(SETTINGS, judged(), {}, {}, {}, (found,), {}), "topas gap", 0)
    assert "-11.1 %" in page
    assert "needs equal prompts" in page
    assert "| `lpm`" in page
    assert "80 | 160 | 240" in " ".join(page.split())
    assert "58.00" in overview([found]) or "| 58 " in overview([found])


def test_the_best_known_schedule_may_be_a_policys() -> None:
    found = whole({"lpm": 45.0}, None, SEARCHED)
    assert found["best"] == {**asdict(KnownSchedule("lpm", 45.0, 90.0, 135.0)), "over_bound": None}
    assert found["split"] is None
    assert found["rows"][0]["over_bound"] is None
    assert whole({}, None, None)["best"] is None


def stub_oracle(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace bounds and improvement by stubs; return the list in which they note their calls."""
    asked = []

    def lower_bounds(*_: object, time_limit_s: float) -> object:
        asked.append(f"bounds {time_limit_s:g}")
        one = SimpleNamespace(name="path", mean_jct_s=10.0, status="OPTIMAL", solve_s=0.1)
        return SimpleNamespace(bounds=(one,), best=one, refused=())

    def improve(*_: object, seconds: float, **__: object) -> object:
        asked.append(f"improve {seconds:g}")
        return SimpleNamespace(
            mean_jct_s=11.0,
            found_by="stub",
            result=SimpleNamespace(metrics={"p99_jct_s": 12.0, "max_jct_s": 13.0}),
        )

    monkeypatch.setitem(sys.modules, "oracle.trace", SimpleNamespace(lower_bounds=lower_bounds))
    monkeypatch.setitem(sys.modules, "oracle.improve", SimpleNamespace(improve=improve))
    return asked


def test_a_traces_events_runs_bounds_and_schedule_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = stub_oracle(monkeypatch)
    settings = replace(SETTINGS, improve_s=5.0, bound_s=7.0)
    groups = [Group("dag", sources=(SOURCE,))]
    first = measure(groups, [SOURCE], settings, tmp_path)
    assert not first.failures
    assert [one.made.terms for one in first.verdicts.values()] == [made.terms for _, made in EVENTS]
    (trace,) = first.traces
    assert [row["policy"] for row in trace["rows"]] == ["topas-paper", "lpm"]
    assert trace["best"] == {
        **asdict(KnownSchedule("stub", 11.0, 12.0, 13.0)),
        "over_bound": pytest.approx(0.1),
    }
    assert sorted(asked) == ["bounds 7", "improve 5"]
    again = measure(groups, [SOURCE], settings, tmp_path)
    assert len(asked) == 2
    assert again.traces == first.traces
    assert again.resumed == len(list(tmp_path.glob("events/*"))) + 4


def test_seeds_are_recorded_until_there_are_enough_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimality, "TASKS", 3)
    settings = replace(SETTINGS, max_events=20)
    drawn = {"chain-3, load 0.5": partial(optimality.at_load, "chain-3", 0.5, settings)}
    (group,) = enough_events(drawn, settings, tmp_path, 1)
    lines = sum(len(path.read_text().splitlines()) for path in tmp_path.glob("logs/*"))
    assert group.name == "chain-3, load 0.5"
    assert [source.seed for source in group.sources] == list(range(1, len(group.sources) + 1))
    assert len(group.sources) > 1
    assert lines >= 20


def test_the_driver_prints_every_table_and_keeps_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub_oracle(monkeypatch)
    monkeypatch.setattr(optimality, "TASKS", 3)
    monkeypatch.setattr(optimality, "LOADS", (0.5,))
    monkeypatch.setattr(optimality, "RATES", {"chain-3": (0.1,)})
    monkeypatch.setattr(optimality, "PAPER_BASELINES", ("lpm",))
    assert optimality.main(["chain-3", "-o", str(tmp_path), "--jobs", "1", "--events", "5"]) == 0
    out = capsys.readouterr().out
    assert "Of `chain-3, load 0.5`, 5 of " in out
    assert "| mean JCT lost to" in out
    assert "| chain-3, 0.1 tasks/s, seed 1 |" in out.partition("## Overview")[2]
    played = [
        row["policy"] for row in json.loads((tmp_path / "report.json").read_text())["traces"][0]["rows"]
    ]
    assert played == ["topas-exact", "topas-paper", "lpm", "downstream-gate"]
    assert {"report.md", "report.json", "events.csv"} <= {path.name for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit):
        optimality.main(["none"])
