"""The paper's Figure 2: two tasks of a chain, in abstract time units.

From the paper: A -> B -> C, memory for one prefix at a time, a request takes four units and a prefix
setup one. Read off the chart: the tasks arrive at 0 and 2. On the ``unit`` profile one prefix token
is one unit of setup and four input tokens are the four units of a request.
"""

from __future__ import annotations

from traces.workloads.options import DEFAULT_OPTIONS, WorkloadOptions
from traces.workloads.plan import WorkloadPlan, plain_stage
from traces.workloads.synthetic import CHAIN_3

ARRIVALS_S = (0.0, 2.0)


def figure_2(_tasks: int, _options: WorkloadOptions) -> WorkloadPlan:
    """Return the two tasks of the figure, whatever is asked for."""
    lengths = DEFAULT_OPTIONS.lengths(1, 4, 1)
    stages = {stage: plain_stage(stage, after, lengths) for stage, after in CHAIN_3.items()}
    agents = dict.fromkeys(CHAIN_3, lengths.prefix_tokens)
    sequence = ["figure-2"] * len(ARRIVALS_S)
    return WorkloadPlan("figure-2", agents, {"figure-2": stages}, sequence, arrivals_s=ARRIVALS_S)
