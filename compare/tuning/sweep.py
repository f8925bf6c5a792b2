"""The effect of M and K: each is changed alone, all other parameters staying as they are.

JCT and decision time come from the held-out traces. Gaps are those of policies that maximise the score,
among them the paper's: their decisions on a sample of recorded events, the same ones for every setting,
against the optimum under the same K, and against the optimum without a cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from compare.cell import Cell, Result, Source
from compare.gap import record_all, sample
from compare.gap_tables import Distribution
from compare.judge import EventCase, Verdict
from compare.kept import answer_and_keep, question_path, read_answer
from compare.pool import Work, folder_for, run_all
from compare.run import run_cells
from compare.stats import Interval
from compare.tuning.held_out import JCT, Row, change, metric_of
from compare.tuning.plan import Plan
from topas.event import Event, Params
from topas.formats import read_events

PAPER = "topas-paper"
"""The policy whose decisions are always judged."""

SCORED = frozenset({PAPER, "topas-score"})
"""Policies that maximise the score of the events' own parameters."""

VALUES: Mapping[str, tuple[int, ...]] = {"M": (0, 4, 8), "K": (0, 4, 8, 16)}
"""What M and K are set to where nothing else is asked for."""

DECISION = ("decision_ms_mean", "decision_ms_p99")
"""What a wall clock measured of the decisions."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """Values of M and K."""

    M: int
    K: int

    def __str__(self) -> str:
        """``M 6, K 0``."""
        return f"M {self.M}, K {self.K}"


@dataclass(frozen=True, slots=True)
class Played:
    """A policy under a setting on the held-out traces: means over them, and changes against the base."""

    policy: str
    setting: Setting
    mean_jct_s: float
    p99_jct_s: float
    changes: Mapping[str, Interval]
    decision_ms_mean: float
    decision_ms_p99: float


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps of a policy under a setting, of the events whose optimum is proved.

    ``capped`` are against the optimum under the setting's own K, ``free`` against that without a cap.
    """

    policy: str
    setting: Setting
    capped: Distribution
    free: Distribution


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the sweep came to; ``base`` is the setting that the others depart from."""

    base: Setting
    played: tuple[Played, ...]
    gaps: tuple[Gaps, ...]
    events: int
    failures: tuple[str, ...]


def settings_of(base: Setting, values: Mapping[str, Sequence[int]]) -> tuple[Setting, ...]:
    """Return the base, then each value of M with the base's K, then each of K with the base's M."""
    found = [base, *(Setting(M, base.K) for M in values["M"]), *(Setting(base.M, K) for K in values["K"])]
    return tuple(dict.fromkeys(found))


def sweep(  # noqa: PLR0913  what, where and how
    plan: Plan,
    sources: Sequence[Source],
    values: Mapping[str, Sequence[int]],
    events: int,
    folder: Path,
    *,
    jobs: int,
    progress: bool | None,
    time_limit_s: float = 10.0,
) -> Sweep:
    """Play and judge every setting; what ``folder`` holds already is not done again.

    Parameters
    ----------
    sources : the held-out traces.
    values : of M and of K.
    events : how many events are judged under each setting.
    time_limit_s : of the solver, an event.

    Raises
    ------
    InputError
        if a folder cannot be made.
    Interrupted
        on Ctrl-C; finished items stay.
    """
    base = Setting(plan.base.M, plan.base.K)
    settings = settings_of(base, values)
    played, failures = _play(plan, sources, settings, folder, jobs=jobs, progress=progress)
    gaps: tuple[Gaps, ...] = ()
    judged = 0
    if events:
        found, failed = _events(plan, sources, events, folder, jobs=jobs, progress=progress)
        judged = len(found)
        failures += failed
        for policy in dict.fromkeys((plan.policy, PAPER)):
            if policy in SCORED:
                own, more = _judge(
                    policy, found, settings, time_limit_s, folder, jobs=jobs, progress=progress
                )
                gaps += own
                failures += more
    return Sweep(base, played, gaps, judged, failures)


def _params(plan: Plan, setting: Setting) -> Params:
    return replace(plan.base.on(Params()), M=setting.M, K=setting.K)


def _play(  # noqa: PLR0913  as above
    plan: Plan,
    sources: Sequence[Source],
    settings: Sequence[Setting],
    folder: Path,
    *,
    jobs: int,
    progress: bool | None,
) -> tuple[tuple[Played, ...], tuple[str, ...]]:
    cells = {
        (policy, setting, source): Cell(source, policy, plan.profile, _params(plan, setting))
        for policy in dict.fromkeys((plan.policy, PAPER))
        for setting in settings
        for source in sources
    }
    outcome = run_cells(tuple(cells.values()), folder, jobs=jobs, progress=progress)
    failures = tuple(f"{one.cell}: {one.reason}" for one in outcome.failures)
    results = {result.cell: result for result in outcome.results}
    found: list[Played] = []
    for policy in dict.fromkeys(policy for policy, _, _ in cells):
        own = {
            setting: [results[cells[policy, setting, source]] for source in sources]
            for setting in settings
            if all(cells[policy, setting, source] in results for source in sources)
        }
        rows = [Row(str(setting), result, 0.0) for setting, every in own.items() for result in every]
        rival = str(settings[0])
        found += [
            Played(
                policy=policy,
                setting=setting,
                mean_jct_s=_mean(every, "mean_jct_s"),
                p99_jct_s=_mean(every, "p99_jct_s"),
                changes={name: change(rows, str(setting), rival, metric_of(name)) for name in JCT}
                if settings[0] in own
                else {},
                decision_ms_mean=_mean(every, "decision_ms_mean"),
                decision_ms_p99=_mean(every, "decision_ms_p99"),
            )
            for setting, every in own.items()
        ]
    return tuple(found), failures


def _mean(results: Sequence[Result], metric: str) -> float:
    return fmean(one.metrics[metric] for one in results)


def _events(  # noqa: PLR0913  as above
    plan: Plan,
    sources: Sequence[Source],
    count: int,
    folder: Path,
    *,
    jobs: int,
    progress: bool | None,
) -> tuple[list[Event], tuple[str, ...]]:
    """Record the paper's policy once on each workload and load, and return a sample of the events."""
    firsts = {(one.workload, one.load or one.rate_per_s): one for one in reversed(sources)}
    cells = [Cell(one, PAPER, plan.profile, plan.base.on(Params())) for one in reversed(firsts.values())]
    logs, failed = record_all(cells, folder, jobs=jobs, progress=progress)
    paths = list(logs.values())
    total = sum(1 for path in paths for _ in read_events(path))
    wanted = frozenset(sample(total, count, plan.seed))
    every = (one.event for path in paths for one in read_events(path))
    found = [event for number, event in enumerate(every) if number in wanted]
    return found, tuple(f"{name}: {reason}" for name, reason in failed.items())


def _judge(  # noqa: PLR0913  as above
    policy: str,
    events: Sequence[Event],
    settings: Sequence[Setting],
    time_limit_s: float,
    folder: Path,
    *,
    jobs: int,
    progress: bool | None,
) -> tuple[tuple[Gaps, ...], tuple[str, ...]]:
    kept = folder_for(folder / "events")

    def solved(cases: Sequence[EventCase]) -> tuple[Mapping[EventCase, Verdict], tuple[str, ...]]:
        paths = {case: question_path(case, kept) for case in cases}
        done = run_all(paths, _WORK, jobs=jobs, progress=progress, unit="event")
        failed = {case.event.time_s: reason for case, reason in done.failures.items()}
        return done.results, tuple(f"event at {at:g} s: {reason}" for at, reason in failed.items())

    first = {
        (setting, k): EventCase.of(_under(event, setting), None, policy, time_limit_s)
        for setting in settings
        for k, event in enumerate(events)
    }
    capped, failures = solved(list(first.values()))
    # The same decisions, judged where more could have been admitted.
    second = {
        place: EventCase.of(
            _under(events[place[1]], replace(place[0], K=0)), capped[case].made, policy, time_limit_s
        )
        for place, case in first.items()
        if case in capped and place[0].K
    }
    free, more = solved(list(second.values()))
    found = []
    for setting in settings:
        own = [capped[first[setting, k]] for k in range(len(events)) if first[setting, k] in capped]
        other = own
        if setting.K:
            cases = [second[setting, k] for k in range(len(events)) if (setting, k) in second]
            other = [free[case] for case in cases if case in free]
        found.append(Gaps(policy, setting, _distribution(own), _distribution(other)))
    return tuple(found), failures + more


_WORK: Work[EventCase, Verdict] = Work(answer_and_keep, read_answer)


def _under(event: Event, setting: Setting) -> Event:
    return replace(event, params=replace(event.params, M=setting.M, K=setting.K))


def _distribution(verdicts: Sequence[Verdict]) -> Distribution:
    return Distribution.of([gap for one in verdicts if (gap := one.gap) is not None])
