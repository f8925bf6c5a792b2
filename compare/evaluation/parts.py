"""What each part of the evaluation runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from compare.cases import CASES
from compare.cell import Points, Source, sources_of
from compare.evaluation.draw import Draw, Setting, session_draws
from compare.evaluation.plan import Ablation, Plan
from compare.evaluation.run import Run
from compare.whole import BoundCase, ImproveCase
from topas.errors import InputError
from topas.event import Params
from topas.profile import Profile, load_profile
from traces.workloads import WorkloadOptions

OWN_OUTPUTS = ("metagpt-sop", "metagpt-tl")
"""Workloads that draw outputs of their own, whatever the sigma of a part is."""


@dataclass(frozen=True, slots=True)
class BoundedTrace:
    """A trace with its bounds and the best schedule to look for, beside the policies on it."""

    setting: Setting
    bound: BoundCase
    improve: ImproveCase
    runs: tuple[Run, ...]


def engine(plan: Plan) -> Profile:
    """Return the engine of all parts but that of recorded sessions."""
    return load_profile(plan.profile).model_copy(update={"host_cache": plan.host_cache})


def main_runs(plan: Plan) -> tuple[Run, ...]:
    """Return the grid: all policies at every workload, prefix, spread of outputs and load."""
    profile = engine(plan)
    draws = [
        Draw(Setting(row.name, prefix, sigma, load), seed, plan.tasks, profile)
        for row in plan.main.workloads
        for prefix in plan.main.prefix_tokens
        for sigma in row.sigmas
        for load in plan.loads
        for seed in plan.seeds.held_out
    ]
    return _compared(draws, plan)


def session_runs(plan: Plan, paths: Iterable[str]) -> tuple[Run, ...]:
    """Return all policies on recorded sessions, at the loads and held-out seeds of the grid.

    Raises
    ------
    InputError
        if a file is no valid trace, or two of them have one name.
    """
    profile = load_profile(plan.sessions.profile).model_copy(update={"host_cache": plan.host_cache})
    draws: list[Draw] = []
    for path in paths:
        own = session_draws(path, profile, plan.loads, plan.seeds.held_out)
        if any(draw.setting == own[0].setting for draw in draws):
            raise InputError("another file has this name already", source=path, field="--sessions")
        draws += own
    return _compared(draws, plan)


def ablation_runs(plan: Plan) -> tuple[Run, ...]:
    """Return baselines and variants; workloads with outputs of their own run once, not for each sigma."""
    profile, part = engine(plan), plan.ablation
    settings = dict.fromkeys(
        Setting(name, part.prefix_tokens, _sigma(name, sigma), load)
        for name in part.workloads
        for sigma in part.output_sigma
        for load in part.loads
    )
    runs: list[Run] = []
    for setting in settings:
        for seed in plan.seeds.held_out:
            draw = Draw(setting, seed, plan.tasks, profile)
            runs += [Run(draw, name, name) for name in plan.baselines]
            runs += [*_variants(draw, part)]
    return tuple(runs)


def _variants(draw: Draw, part: Ablation) -> Iterable[Run]:
    for variant in part.variants:
        yield Run(draw, variant.policy, variant.name, Params(lookahead=variant.lookahead))


def robustness_runs(plan: Plan) -> tuple[Run, ...]:
    """Return all policies in every case; baselines that cannot take part are left out."""
    profile, part = engine(plan), plan.robustness
    draws = [
        Draw(
            Setting(workload, part.prefix_tokens, _sigma(workload, part.output_sigma), load, name),
            seed,
            CASES[name].tasks or plan.tasks,
            profile,
        )
        for name in part.cases
        for workload in CASES[name].workloads or part.workloads
        for load in CASES[name].loads or part.loads
        for seed in part.seeds
    ]
    return _compared(draws, plan)


def bounded_traces(plan: Plan, bound_s: float, improve_s: float) -> tuple[BoundedTrace, ...]:
    """Return traces to prove bounds of and to look for good schedules of, for so many seconds each."""
    profile, part = engine(plan), plan.bound
    found = []
    for row in part.workloads:
        for sigma in row.sigmas:
            options = WorkloadOptions(prefix_tokens=part.prefix_tokens, output_sigma=sigma or None)
            points = Points(
                tuple(part.loads), loads=True, seeds=(part.seed,), tasks=part.tasks, options=options
            )
            for load, source in zip(part.loads, sources_of(row.name, points, profile), strict=True):
                setting = Setting(row.name, part.prefix_tokens, sigma, load)
                draw = Draw(setting, part.seed, part.tasks, profile)
                found.append(_bounded(draw, source, plan, bound_s, improve_s))
    return tuple(found)


def _bounded(draw: Draw, source: Source, plan: Plan, bound_s: float, improve_s: float) -> BoundedTrace:
    return BoundedTrace(
        draw.setting,
        BoundCase(source, draw.profile, bound_s),
        ImproveCase(source, draw.profile, Params(), improve_s, 0),
        _compared([draw], plan),
    )


def _compared(draws: Iterable[Draw], plan: Plan) -> tuple[Run, ...]:
    names = (*plan.baselines, *plan.policies)
    return tuple(Run(draw, name, name) for draw in draws for name in names if name not in draw.case.without)


def _sigma(workload: str, sigma: float) -> float | None:
    return None if workload in OWN_OUTPUTS else sigma
