"""The effect of M and K: each is changed alone, all other parameters staying as they are.

JCT and decision time come from the held-out traces. Gaps are those of policies that maximise the score,
among them the paper's: their decisions on a sample of recorded events, the same ones for every setting,
against the optimum under the same K, and against the optimum without a cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from compare.change import JCT
from compare.gap import PAPER, record_all, sample
from compare.gap_tables import Distribution
from compare.judge import EventCase, Verdict
from compare.page import records
from compare.source import Source
from compare.store import find_out
from compare.study import TIMINGS, Run, outcome_of
from compare.tuning.held_out import overall
from compare.tuning.plan import TuningPlan
from topas.event import Event, Params
from topas.formats import read_events

SCORED = frozenset({PAPER, "topas-score"})
"""Policies that maximise the score of the events' own parameters."""

VALUES: Mapping[str, tuple[int, ...]] = {"M": (0, 4, 8), "K": (0, 4, 8, 16)}
"""What M and K are set to where nothing else is asked for."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """Values of M and K."""

    M: int
    K: int

    def __str__(self) -> str:
        """``M 6, K 0``."""
        return f"M {self.M}, K {self.K}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the sweep came to; ``base`` is the setting that the others depart from.

    ``played`` has a row a policy and setting: means over the held-out traces, and the changes of each metric
    against the base. ``gaps`` has those of the events whose optimum is proved: ``capped`` against the
    optimum under the setting's own K, ``free`` against that without a cap.
    """

    base: Setting
    played: tuple[dict[str, Any], ...]
    gaps: tuple[dict[str, Any], ...]
    events: int
    failures: tuple[str, ...]


def settings_of(base: Setting, values: Mapping[str, Sequence[int]]) -> tuple[Setting, ...]:
    """Return the base, then each value of M with the base's K, then each of K with the base's M."""
    found = [base, *(Setting(M, base.K) for M in values["M"]), *(Setting(base.M, K) for K in values["K"])]
    return tuple(dict.fromkeys(found))


def sweep(  # noqa: PLR0913  what, where and how
    plan: TuningPlan,
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
    solve = partial(find_out, folder=folder, jobs=jobs, progress=progress)
    played: list[dict[str, Any]] = []
    gaps: list[dict[str, Any]] = []
    failures: list[str] = []
    policies = list(dict.fromkeys((plan.policy, PAPER)))
    runs = {policy: _runs(plan, policy, sources, settings) for policy in policies}
    done = solve([run for own in runs.values() for run in own], unit="cell")
    failures += [f"{run}: {reason}" for run, reason in done.failures.items()]
    for policy, own in runs.items():
        played += _played(policy, outcome_of(own, done.results, {}).runs, settings, len(sources))
    sampled: list[Event] = []
    if events:
        firsts = {(one.workload, one.load or one.rate_per_s): one for one in reversed(sources)}
        params = plan.base.on(Params())
        logged = [Run(one, PAPER, plan.profile, params) for one in reversed(firsts.values())]
        logs, failed = record_all(logged, folder, jobs=jobs, progress=progress)
        failures += [f"{name}: {reason}" for name, reason in failed.items()]
        every = [one.event for path in logs.values() for one in read_events(path)]
        sampled = [every[k] for k in sample(len(every), events, plan.seed)]
        for policy in policies:
            if policy in SCORED:
                rows, failed_events = _judge(policy, sampled, settings, time_limit_s, solve)
                gaps += rows
                failures += failed_events
    return Sweep(base, tuple(played), tuple(gaps), len(sampled), tuple(failures))


def _runs(plan: TuningPlan, policy: str, sources: Sequence[Source], settings: Sequence[Setting]) -> list[Run]:
    params = plan.base.on(Params())
    return [
        Run(source, policy, plan.profile, replace(params, M=setting.M, K=setting.K), str(setting))
        for setting in settings
        for source in sources
    ]


def _played(policy: str, runs: Any, settings: Sequence[Setting], traces: int) -> list[dict[str, Any]]:  # noqa: ANN401  a frame
    """Return a row a setting that was played on all traces."""
    rows = []
    whole = runs[runs.groupby("policy")["policy"].transform("size") == traces]
    for setting in settings:
        own = whole[whole["policy"] == str(setting)]
        if own.empty:
            continue
        found = overall(whole, str(settings[0]), str(setting))
        means = {name: float(own[name].mean()) for name in (*JCT, *TIMINGS)}
        changed = {row.pop("metric"): row for row in records(found[["metric", "change", "low", "high"]])}
        rows.append({"policy": policy, "setting": asdict(setting), **means, "changes": changed})
    return rows


def _judge(
    policy: str,
    events: Sequence[Event],
    settings: Sequence[Setting],
    time_limit_s: float,
    solve: Any,  # noqa: ANN401
) -> tuple[list[dict[str, Any]], list[str]]:
    failures: list[str] = []

    def solved(cases: Sequence[EventCase]) -> Mapping[EventCase, Verdict]:
        done = solve(cases, unit="event")
        failed = {case.event.time_s: reason for case, reason in done.failures.items()}
        failures.extend(f"event at {at:g} s: {reason}" for at, reason in failed.items())
        found: Mapping[EventCase, Verdict] = done.results
        return found

    def under(event: Event, setting: Setting) -> Event:
        return replace(event, params=replace(event.params, M=setting.M, K=setting.K))

    def distribution(verdicts: Sequence[Verdict]) -> dict[str, Any]:
        return asdict(Distribution.of([gap for one in verdicts if (gap := one.gap) is not None]))

    first = {
        (setting, k): EventCase.of(under(event, setting), None, policy, time_limit_s)
        for setting in settings
        for k, event in enumerate(events)
    }
    capped = solved(list(first.values()))
    # The same decisions, judged where more could have been admitted.
    second = {
        (setting, k): EventCase.of(
            under(events[k], replace(setting, K=0)), capped[case].made, policy, time_limit_s
        )
        for (setting, k), case in first.items()
        if case in capped and setting.K
    }
    free = solved(list(second.values()))
    rows = []
    for setting in settings:
        own = [capped[case] for (at, _), case in first.items() if at == setting and case in capped]
        other = [free[case] for (at, _), case in second.items() if at == setting and case in free]
        row = {"policy": policy, "setting": asdict(setting), "capped": distribution(own)}
        rows.append({**row, "free": distribution(other) if setting.K else row["capped"]})
    return rows, failures
