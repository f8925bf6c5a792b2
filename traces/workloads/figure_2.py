"""The paper's Figure 2: two tasks of a chain, in abstract time units.

From the paper: A -> B -> C, memory for one prefix at a time, a request takes four units and a prefix
setup one. Read off the chart: the tasks arrive at 0 and 2. On the ``unit`` profile one prefix token
is one unit of setup and four input tokens are the four units of a request.
"""

from __future__ import annotations

from topas.trace import Trace
from traces.workloads.options import WorkloadOptions
from traces.workloads.plan import Plan, plain_stage, realize
from traces.workloads.synthetic import CHAIN_3

ARRIVALS_S = (0.0, 2.0)


def figure_2() -> Trace:
    """Return the two tasks of the figure."""
    lengths = WorkloadOptions().lengths(1, 4, 1)
    stages = {stage: plain_stage(stage, after, lengths) for stage, after in CHAIN_3.items()}
    plan = Plan("figure-2", dict.fromkeys(CHAIN_3, lengths.prefix_tokens), {"figure-2": stages})
    return realize(plan, ["figure-2"] * len(ARRIVALS_S), ARRIVALS_S, seed=0)
