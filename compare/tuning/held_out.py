r"""Tuned parameters against the default and the baselines, on traces that the search never saw.

The search takes the best of many trials, so its loss on the training traces flatters the winner; what it
is worth shows only here. Over all traces the change of a metric x is taken on the logarithm,

    exp(mean over cells of ln(x tuned / x default)) - 1,

with Student's t over the means of the draws: a draw is a seed, or a trace that has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from compare.cell import Cell, Result, Source
from compare.run import Failure, run_cells
from compare.stats import Interval, Summary, interval, summarise
from compare.tuning.loss import Reference, loss_of, references_of
from compare.tuning.plan import Plan
from topas.event import Params
from topas.params import SearchParams

DEFAULT, TUNED = "default", "tuned"
"""How the two settings of the policy are called beside the baselines."""

JCT = ("mean_jct_s", "p99_jct_s")


@dataclass(frozen=True, slots=True)
class Row:
    """A run on a held-out trace; ``arm`` is a baseline, :data:`DEFAULT` or :data:`TUNED`."""

    arm: str
    result: Result
    loss: float


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What the comparison came to.

    ``overall`` has the change of each metric over all traces, tuned against default. ``against_best`` and
    ``against_default`` are as :func:`compare.stats.summarise` counts them, by workload. ``loss`` is the
    mean loss of the two settings.
    """

    rows: tuple[Row, ...]
    against_best: tuple[Summary, ...]
    against_default: tuple[Summary, ...]
    overall: Mapping[str, Interval]
    loss: Mapping[str, float]


def baseline_cells(plan: Plan, sources: Sequence[Source]) -> tuple[Cell, ...]:
    """Return the runs of the baselines; no parameter changes what they do."""
    return tuple(Cell(source, name, plan.profile, Params()) for source in sources for name in plan.baselines)


def references_on(
    plan: Plan, sources: Sequence[Source], folder: Path, *, jobs: int, progress: bool | None
) -> tuple[dict[Source, Reference], tuple[Failure, ...]]:
    """Run the baselines and return the best of each trace, with the runs that failed.

    Raises
    ------
    InputError, Interrupted
        as :func:`compare.run.run_cells` and :func:`compare.tuning.loss.references_of` do.
    """
    outcome = run_cells(baseline_cells(plan, sources), folder, jobs=jobs, progress=progress)
    return ({} if outcome.failures else references_of(outcome.results)), outcome.failures


def hold_out(  # noqa: PLR0913  what, where and how
    plan: Plan,
    tuned: SearchParams,
    sources: Sequence[Source],
    folder: Path,
    *,
    jobs: int,
    progress: bool | None,
) -> tuple[HeldOut | None, tuple[Failure, ...]]:
    """Run baselines, default and tuned on the held-out traces; None if a run failed.

    Raises
    ------
    InputError, Interrupted
        as :func:`references_on` does.
    """
    arms: dict[tuple[Source, str], Cell] = {}
    for source in sources:
        for cell in baseline_cells(plan, [source]):
            arms[source, cell.policy] = cell
        for arm, params in ((DEFAULT, plan.base), (TUNED, tuned)):
            arms[source, arm] = Cell(source, plan.policy, plan.profile, params.on(Params()))
    outcome = run_cells(tuple(dict.fromkeys(arms.values())), folder, jobs=jobs, progress=progress)
    if outcome.failures:
        return None, outcome.failures
    results = {result.cell: result for result in outcome.results}
    references = references_of(results[arms[source, name]] for source in sources for name in plan.baselines)
    rows = tuple(
        Row(arm, results[cell], loss_of(results[cell].metrics, references[source], plan.weights))
        for (source, arm), cell in arms.items()
    )
    return _summed_up(rows, plan), ()


def _summed_up(rows: tuple[Row, ...], plan: Plan) -> HeldOut:
    # The statistics know policies only: here each setting is one.
    named = [Result(replace(row.result.cell, policy=row.arm), row.result.metrics) for row in rows]
    own = [result for result in named if result.cell.policy in (DEFAULT, TUNED)]
    return HeldOut(
        rows=rows,
        against_best=_of_jct(summarise(named, plan.baselines)),
        against_default=_of_jct(summarise(own, (DEFAULT,))),
        overall={metric: change(rows, TUNED, DEFAULT, metric_of(metric)) for metric in JCT},
        loss={arm: fmean(row.loss for row in rows if row.arm == arm) for arm in (DEFAULT, TUNED)},
    )


def _of_jct(summaries: Sequence[Summary]) -> tuple[Summary, ...]:
    return tuple(one for one in summaries if one.metric in JCT)


def metric_of(name: str) -> Callable[[Row], float]:
    """Return what reads a metric of a row."""
    return lambda row: row.result.metrics[name]


def change(rows: Sequence[Row], arm: str, rival: str, value: Callable[[Row], float]) -> Interval:
    """Return the change of a positive value over all traces, one arm against another."""
    logs: dict[Source, dict[str, float]] = {}
    for row in rows:
        if row.arm in (arm, rival):
            logs.setdefault(row.result.cell.source, {})[row.arm] = math.log(value(row))
    draws: dict[int | str, list[float]] = {}
    for source, own in logs.items():
        draw = source.workload if source.seed is None else source.seed
        draws.setdefault(draw, []).append(own[arm] - own[rival])
    mean = math.expm1(fmean(one for own in draws.values() for one in own))
    found = interval([fmean(own) for own in draws.values()])
    if found.low is None or found.high is None:
        return Interval(mean, None, None)
    return Interval(mean, math.expm1(found.low), math.expm1(found.high))
