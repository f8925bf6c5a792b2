"""What each part of the evaluation runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from compare.bound import BoundCase, Bounded, ImproveCase
from compare.cases import AS_IT_IS, CASES
from compare.evaluation.plan import EvaluationPlan
from compare.source import Source, trace_file
from compare.study import Run
from topas.errors import InputError
from topas.event import Params
from topas.profile import Profile, load_profile
from traces.workloads import WorkloadOptions

OWN_OUTPUTS = ("metagpt-sop", "metagpt-tl")
"""Workloads that draw outputs of their own, whatever the sigma of a part is."""

Drawn = tuple[Source, Profile]
"""A trace at a load, and the engine that it is played on."""


def engine(plan: EvaluationPlan) -> Profile:
    """Return the engine of all parts but that of recorded sessions."""
    return load_profile(plan.profile).model_copy(update={"host_cache": plan.host_cache})


def drawn(  # noqa: PLR0913  what a draw is made of
    workload: str,
    prefix_tokens: int,
    sigma: float | None,
    loads: Iterable[float],
    seeds: Iterable[int],
    tasks: int,
    profile: Profile,
    case: str = AS_IT_IS,
) -> list[Drawn]:
    """Return the draws of a setting at some loads; no sigma: outputs of its own."""
    options = WorkloadOptions(prefix_tokens=prefix_tokens, output_sigma=sigma)
    seeds = list(seeds)
    return [
        Source(workload, tasks, seed, options=options, case=case).at_load(load, profile)
        for load in loads
        for seed in seeds
    ]


def main_runs(plan: EvaluationPlan) -> tuple[Run, ...]:
    """Return the grid: all policies at every workload, prefix, spread of outputs and load."""
    profile, seeds = engine(plan), plan.seeds.held_out
    draws = [
        draw
        for row in plan.main.workloads
        for prefix in plan.main.prefix_tokens
        for sigma in row.sigmas
        for draw in drawn(row.name, prefix, sigma, plan.loads, seeds, plan.tasks, profile)
    ]
    return _compared(draws, plan)


def session_runs(plan: EvaluationPlan, paths: Iterable[str]) -> tuple[Run, ...]:
    """Return all policies on recorded sessions, at the loads and held-out seeds of the grid.

    A trace file keeps its tasks and their order: the seed draws arrivals alone.

    Raises
    ------
    InputError
        if a file is no valid trace, or two of them have one name.
    """
    profile = load_profile(plan.sessions.profile).model_copy(update={"host_cache": plan.host_cache})
    draws: list[Drawn] = []
    for path in paths:
        file = trace_file(path)
        if any(Path(other.workload).stem == Path(path).stem for other, _ in draws):
            raise InputError("another file has this name already", source=path, field="--sessions")
        for load in plan.loads:
            for seed in plan.seeds.held_out:
                own = Source(path, file.tasks, seed, sha256=file.sha256)
                draws.append(own.at_load(load, profile))
    return _compared(draws, plan)


def ablation_runs(plan: EvaluationPlan) -> tuple[Run, ...]:
    """Return baselines and variants; workloads with outputs of their own run once, not for each sigma."""
    profile, part, seeds = engine(plan), plan.ablation, plan.seeds.held_out
    settings = dict.fromkeys(
        (name, _sigma(name, sigma)) for name in part.workloads for sigma in part.output_sigma
    )
    runs: list[Run] = []
    for name, sigma in settings:
        draws = drawn(name, part.prefix_tokens, sigma, part.loads, seeds, plan.tasks, profile)
        for source, own in draws:
            runs += [Run(source, baseline, own) for baseline in plan.baselines]
            runs += [
                Run(source, one.policy, own, Params(lookahead=one.lookahead), one.name)
                for one in part.variants
            ]
    return tuple(runs)


def robustness_runs(plan: EvaluationPlan) -> tuple[Run, ...]:
    """Return all policies in every case; baselines that cannot take part are left out."""
    profile, part = engine(plan), plan.robustness
    draws: list[Drawn] = []
    for name in part.cases:
        case = CASES[name]
        for workload in case.workloads or part.workloads:
            sigma, loads = _sigma(workload, part.output_sigma), case.loads or part.loads
            tasks = case.tasks or plan.tasks
            draws += drawn(workload, part.prefix_tokens, sigma, loads, part.seeds, tasks, profile, name)
    return _compared(draws, plan)


def bounded_traces(plan: EvaluationPlan, bound_s: float, improve_s: float) -> tuple[Bounded, ...]:
    """Return traces to prove bounds of and to look for good schedules of, for so many seconds each."""
    profile, part = engine(plan), plan.bound
    return tuple(
        Bounded(
            _compared([(source, own)], plan),
            BoundCase(source, own, bound_s),
            ImproveCase(source, own, Params(), improve_s, 0),
        )
        for row in part.workloads
        for sigma in row.sigmas
        for source, own in drawn(
            row.name, part.prefix_tokens, sigma, part.loads, [part.seed], part.tasks, profile
        )
    )


def _compared(draws: Iterable[Drawn], plan: EvaluationPlan) -> tuple[Run, ...]:
    return tuple(
        Run(source, name, profile)
        for source, profile in draws
        for name in (*plan.baselines, *plan.policies)
        if name not in CASES[source.case].without
    )


def _sigma(workload: str, sigma: float) -> float | None:
    return None if workload in OWN_OUTPUTS else sigma
