"""Cases in which a policy is told less, or something wrong, or has an unusual load to serve.

A case changes the trace, the arrivals, the engine, or what a policy sees of an event. Queue policies
never see an event: what they know of a task, its arrival and attained service, stays right. Those that
order by the DAG are left out where the DAG is to be unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from topas.event import Event, Request, TaskState
from topas.profile import Profile
from topas.trace import Trace
from topas.workflow import dag_of
from traces.arrivals import poisson_arrivals
from traces.transforms import (
    dying,
    in_bursts,
    merged,
    noisy_profiles,
    retimed,
    scaled_profiles,
    without_profiles,
)
from traces.workloads import WorkloadOptions, generate
from traces.workloads.plan import StagePlan, WorkloadPlan, realize

ORDER_BY_DAG = ("spf", "kvflow")
"""Baselines that need the DAG of a task."""

AS_IT_IS = "as-it-is"
"""The case in which nothing is changed."""

PARTS_OF_MIXED: Mapping[str, float] = {"chain-3": 1.0, "dag-4": 1.0, "metagpt-tl": 2 / 3}
"""Workloads that ``mixed`` takes in turn, and how long their prefixes are as a share of the given length."""

TINY_REQUESTS = 2
"""Requests beside one prefix that the tiny memory holds."""

View = Callable[[Event], Event]
Arrivals = Callable[[Trace, float, int], Trace]
"""Trace, tasks a second and seed to the trace with arrivals."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    ``change`` takes a trace and a seed, ``engine`` the profile and the changed trace. ``view`` is what a
    policy sees in place of an event. ``without`` are baselines that cannot take part. ``workloads``,
    ``loads`` and ``tasks`` are those of the plan unless the case has its own.
    """

    about: str
    change: Callable[[Trace, int], Trace] = lambda trace, _seed: trace
    arrive: Arrivals = retimed
    engine: Callable[[Profile, Trace], Profile] = lambda profile, _trace: profile
    view: View | None = None
    without: tuple[str, ...] = ()
    workloads: tuple[str, ...] | None = None
    loads: tuple[float, ...] | None = None
    tasks: int | None = None


def scaled_costs(event: Event, factor: float) -> Event:
    """Return the event with every time of the engine that a policy is told ``factor`` times as long."""
    return replace(event, params=replace(event.params, cost=event.params.cost.scaled(factor)))


def without_dags(event: Event) -> Event:
    """Return the event with each stage that has a request as a task of its own: all else is not known.

    It arrived when its task did. A server sees requests so whose client declares no workflow.
    """
    tasks: dict[str, TaskState] = {}

    def alone(request: Request) -> Request:
        name = f"{request.task}/{request.stage}"
        if name not in tasks:
            state = event.tasks[request.task]
            k = state.dag.index[request.stage]
            tasks[name] = replace(
                state,
                dag=dag_of({request.stage: ()}),
                residuals=state.residuals[k : k + 1],
                outlooks=state.outlooks[k : k + 1],
                requests=state.requests[k : k + 1],
            )
        return replace(request, task=name)

    waiting, running = [alone(r) for r in event.waiting], [alone(r) for r in event.running]
    return replace(event, tasks=tasks, waiting=waiting, running=running, reuse_counts={})


def tiny(profile: Profile, trace: Trace) -> Profile:
    """Return the engine with room for a prefix and :data:`TINY_REQUESTS` requests of the hungriest stage."""
    least = max(
        trace.agents[agent] + TINY_REQUESTS * spec.reserve_tokens
        for task in trace.tasks
        for agent, rounds in zip(task.workflow.agents, task.rounds, strict=True)
        for spec in rounds
    )
    return profile.model_copy(update={"kv_budget_tokens": least})


def at_once(trace: Trace, _rate_per_s: float, _seed: int) -> Trace:
    """Return the same tasks, all of them there at 0 s."""
    return replace(trace, tasks=tuple(replace(task, arrival_s=0.0) for task in trace.tasks))


def tasks_of(workload: str, rate_per_s: float, tasks: int, seed: int, options: WorkloadOptions) -> Trace:
    """Return the tasks of a workload, or of ``one-agent`` or ``mixed``, which only cases play."""
    if workload == "one-agent":
        lengths = options.prefix_tokens or 0, options.output_sigma or 0.0
        return one_agent(tasks, rate_per_s, seed, *lengths)
    if workload == "mixed":
        return _mixed(rate_per_s, tasks, seed, options)
    return generate(workload, rate_per_s=rate_per_s, tasks=tasks, seed=seed, options=options)


def _mixed(rate_per_s: float, tasks: int, seed: int, options: WorkloadOptions) -> Trace:
    def part(name: str, share: float) -> Trace:
        sigma = None if name.startswith("metagpt") else options.output_sigma
        own = replace(options, prefix_tokens=round((options.prefix_tokens or 0) * share), output_sigma=sigma)
        return generate(name, rate_per_s=rate_per_s, tasks=tasks, seed=seed, options=own)

    trace = merged("mixed", {name: part(name, share) for name, share in PARTS_OF_MIXED.items()})
    return replace(trace, tasks=trace.tasks[:tasks])


def one_agent(tasks: int, rate_per_s: float, seed: int, prefix_tokens: int, sigma: float) -> Trace:
    """Return tasks of ten stages in a diamond, eight of them of one agent: a root, eight branches, a join.

    Root and join have an agent each. Lengths are those of the synthetic workloads.
    """
    branches = tuple("BCDEFGHI")
    after = {"A": (), **dict.fromkeys(branches, ("A",)), "J": branches}
    agents = {"A": "first", **dict.fromkeys(branches, "busy"), "J": "last"}
    most = 1000 if sigma else 500
    stages = {stage: StagePlan(agents[stage], before, 400, 500, most) for stage, before in after.items()}
    plan = WorkloadPlan(
        "one-agent",
        dict.fromkeys(("first", "busy", "last"), prefix_tokens),
        {"one-agent": stages},
        ["one-agent"] * tasks,
        0.0,
        sigma,
    )
    return realize(plan, poisson_arrivals(tasks, rate_per_s, seed), seed)


def _wrong(factor: float) -> Case:
    return Case(
        f"lengths and engine times believed x{factor:g}",
        change=lambda trace, _seed: scaled_profiles(trace, factor),
        view=lambda event: scaled_costs(event, factor),
    )


CASES = {
    AS_IT_IS: Case("nothing is changed"),
    **{f"predictions-x{factor:g}": _wrong(factor) for factor in (0.25, 0.5, 2.0, 4.0)},
    "noisy-predictions": Case(
        "lengths of each stage believed wrong by a lognormal factor, sigma 1",
        change=lambda trace, seed: noisy_profiles(trace, 1.0, seed),
    ),
    "no-predictions": Case("no stage has a profile", change=lambda trace, _seed: without_profiles(trace)),
    "unknown-dag": Case("each stage is seen as a task of its own", view=without_dags, without=ORDER_BY_DAG),
    "mixed": Case(
        "chain-3 and dag-4 with long prefixes and metagpt-tl with shorter ones, in turn",
        workloads=("mixed",),
    ),
    "bursts-of-10": Case("tasks arrive ten at a time", arrive=partial(in_bursts, size=10)),
    "tiny-memory": Case("room for one prefix and two requests", engine=tiny),
    "no-host-tier": Case(
        "evicted prefixes are lost, and computed again",
        engine=lambda profile, _trace: profile.model_copy(update={"host_cache": False}),
        workloads=("chain-3", "dag-10-wide", "metagpt-sop", "metagpt-tl"),
        loads=(0.25, 0.5, 0.75, 1.0),
    ),
    "one-agent": Case("eight of ten stages are of one agent", workloads=("one-agent",)),
    "deaths": Case(
        "half of the tasks end after a stage drawn for each, unannounced",
        change=lambda trace, seed: dying(trace, 0.5, seed),
    ),
    "crowd": Case(
        "1,000 tasks at once",
        arrive=at_once,
        workloads=("chain-3",),
        loads=(1.0,),
        tasks=1000,
    ),
}
"""What the plan can name."""
