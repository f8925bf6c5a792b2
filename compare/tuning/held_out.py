"""Tuned parameters against the default and the baselines, on traces that the search never saw.

The search takes the best of many trials, so its loss on the training traces flatters the winner; what it is
worth shows only here. Changes are those of :mod:`compare.change`; a draw is a seed, or a trace without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from compare.change import JCT, averages, changes, differences
from compare.pool import Done
from compare.source import Source
from compare.store import find_out
from compare.study import Played, Run, outcome_of, runs_of
from compare.tuning.loss import Reference, loss_of, references_of
from compare.tuning.plan import TuningPlan
from topas.event import Params
from topas.params import SearchParams

DEFAULT, TUNED = "default", "tuned"
"""How the two settings of the policy are called beside the baselines."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What the comparison came to.

    ``runs`` has a row a trace and policy, with its loss; ``tails`` as those of a study. ``overall`` has the
    change of each metric over all traces, tuned against default; ``against_best`` and ``against_default``
    those by workload. ``loss`` is the mean loss of the two settings.
    """

    runs: pd.DataFrame
    tails: pd.DataFrame
    against_best: pd.DataFrame
    against_default: pd.DataFrame
    overall: pd.DataFrame
    loss: Mapping[str, float]


def baseline_runs(plan: TuningPlan, sources: Sequence[Source]) -> tuple[Run, ...]:
    """Return the runs of the baselines; no parameter changes what they do."""
    return runs_of(sources, plan.baselines, plan.profile, Params())


def references_on(
    plan: TuningPlan, sources: Sequence[Source], folder: Path, *, jobs: int, progress: bool | None
) -> tuple[dict[Source, Reference], Mapping[Run, str]]:
    """Run the baselines and return the best of each trace, with the runs that failed.

    Raises
    ------
    InputError, Interrupted
        as :func:`compare.store.find_out` and :func:`compare.tuning.loss.references_of` do.
    """
    done = find_out(baseline_runs(plan, sources), folder, jobs=jobs, progress=progress, unit="cell")
    return ({} if done.failures else references_of(done.results)), done.failures


def hold_out(  # noqa: PLR0913  what, where and how
    plan: TuningPlan,
    tuned: SearchParams,
    sources: Sequence[Source],
    folder: Path,
    *,
    jobs: int,
    progress: bool | None,
) -> tuple[HeldOut | None, Mapping[Run, str]]:
    """Run baselines, default and tuned on the held-out traces; None if a run failed.

    Raises
    ------
    InputError, Interrupted
        as :func:`references_on` does.
    """
    runs: list[Run] = []
    for source in sources:
        runs += baseline_runs(plan, [source])
        for arm, params in ((DEFAULT, plan.base), (TUNED, tuned)):
            runs.append(Run(source, plan.policy, plan.profile, params.on(Params()), arm))
    done: Done[Run, Played] = find_out(runs, folder, jobs=jobs, progress=progress, unit="cell")
    if done.failures:
        return None, done.failures
    played = done.results
    references = references_of({run: played[run] for run in baseline_runs(plan, sources)})
    losses = [loss_of(played[run].metrics, references[run.source], plan.weights) for run in runs]
    outcome = outcome_of(runs, played, {})
    return summed_up(outcome.runs.assign(loss=losses), outcome.tails, plan.baselines), {}


def summed_up(runs: pd.DataFrame, tails: pd.DataFrame, baselines: Sequence[str]) -> HeldOut:
    """Return the statistics of some runs."""
    metrics = list(JCT)
    own = runs[runs["policy"].isin([DEFAULT, TUNED])]
    against_default = changes(differences(own, ["workload"], [DEFAULT], metrics), ["workload"])
    return HeldOut(
        runs=runs,
        tails=tails,
        against_best=changes(differences(runs, ["workload"], baselines, metrics), ["workload"]),
        against_default=against_default[against_default["policy"] == TUNED],
        overall=overall(own, DEFAULT, TUNED),
        loss={arm: float(own[own["policy"] == arm]["loss"].mean()) for arm in (DEFAULT, TUNED)},
    )


def overall(runs: pd.DataFrame, rival: str, arm: str) -> pd.DataFrame:
    """Return the change of each metric over all traces, one arm against another: a row a metric."""
    own = runs.assign(
        point=runs["load"].where(runs["load"].notna(), runs["rate_per_s"]),
        seed=runs["seed"].astype(object).where(runs["seed"].notna(), runs["workload"]),
    )
    found = averages(differences(own, ["workload", "point"], [rival], list(JCT)), [])
    return found[found["policy"] == arm].reset_index(drop=True)
