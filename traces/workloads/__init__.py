"""The workload generators by name: what the paper runs, as traces.

Each module says what it takes from the paper and what it assumes. Arrivals are Poisson; arrivals and
lengths are drawn from separate streams of the seed, so a change of rate, prefix or lengths leaves the
rest of a trace as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from topas.errors import InputError
from topas.trace import Trace
from traces.arrivals import poisson_arrivals
from traces.workloads.figure_2 import figure_2
from traces.workloads.metagpt import SOP, SOP_OUTPUT_SHARE, TL, metagpt
from traces.workloads.options import DEFAULT_OPTIONS, WorkloadOptions
from traces.workloads.plan import WorkloadPlan, realize
from traces.workloads.synthetic import CHAIN_3, DAG_4, DAG_10_WIDE, synthetic
from traces.workloads.two_agent import RATE_PER_S, two_agent

__all__ = ["DEFAULT_OPTIONS", "DEFAULT_RATE_PER_S", "FIXED", "WORKLOADS", "WorkloadOptions", "generate"]

Planner = Callable[[int, WorkloadOptions], WorkloadPlan]
"""Number of tasks and options to the plan of a workload."""

WORKLOADS: Mapping[str, Planner] = {
    "chain-3": partial(synthetic, "chain-3", CHAIN_3),
    "dag-4": partial(synthetic, "dag-4", DAG_4),
    "dag-10-wide": partial(synthetic, "dag-10-wide", DAG_10_WIDE),
    "metagpt-sop": partial(metagpt, "metagpt-sop", SOP, SOP_OUTPUT_SHARE),
    "metagpt-tl": partial(metagpt, "metagpt-tl", TL, 1.0),
    "two-agent": two_agent,
    "figure-2": figure_2,
}

DEFAULT_RATE_PER_S: Mapping[str, float] = {"two-agent": RATE_PER_S}
"""Arrival rates of the workloads that have one of their own."""

FIXED = frozenset({"figure-2"})
"""Workloads that are one trace: rate, tasks and seed do not change them."""


def generate(
    name: str, *, rate_per_s: float, tasks: int, seed: int, options: WorkloadOptions = DEFAULT_OPTIONS
) -> Trace:
    """Return a trace of a named workload.

    Parameters
    ----------
    name : a key of :data:`WORKLOADS`.
    rate_per_s : mean arrivals a second (of all tasks together).
    tasks : number of tasks; for ``two-agent`` of each agent.
    seed : of arrivals and lengths.
    options : lengths and their spread.

    Raises
    ------
    InputError
        if the name is unknown, a number is out of range, or an option has no meaning for the workload.
    """
    if name not in WORKLOADS:
        raise InputError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}", field="workload")
    if options.order is not None and name != "two-agent":
        raise InputError(f"only two-agent has an order, not {name}", field="order")
    if name in FIXED and options.given():
        raise InputError(f"{name} is one fixed trace without options", field=options.given()[0])
    if tasks < 1:
        raise InputError(f"expected at least one task, found {tasks}", field="tasks")
    plan = WORKLOADS[name](tasks, options)
    drawn_s = poisson_arrivals(len(plan.sequence), rate_per_s, seed)
    return realize(plan, plan.arrivals_s or drawn_s, seed)
