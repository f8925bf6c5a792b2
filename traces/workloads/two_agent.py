"""The paper's two-agent microbenchmark (section II, Table I): independent requests of two agents.

From the paper: n requests for each of agents A and B, distinct long prefixes, one dynamic suffix and one
decode length for all, and the same requests either alternating (A, B, A, B, ...) or grouped (all of A
arrive first).

Assumed: the lengths and the mean gap between arrivals. Prefix, output and gap come from fitting Table I
together with two of the engine's constants (compare.table1); that fit is not unique.
"""

from __future__ import annotations

from traces.workloads.options import WorkloadOptions
from traces.workloads.plan import WorkloadPlan, plain_stage

PREFIX_TOKENS = 6832
INPUT_TOKENS = 430
OUTPUT_TOKENS = 1146
RATE_PER_S = 1 / 2.692
"""Default arrival rate, over the requests of both agents."""


def two_agent(tasks: int, options: WorkloadOptions) -> WorkloadPlan:
    """Return ``2 * tasks`` one-stage tasks, ``tasks`` for each agent, alternating unless told otherwise."""
    lengths = options.lengths(PREFIX_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS)
    workflows = {agent: {agent: plain_stage(agent, (), lengths)} for agent in "AB"}
    agents = dict.fromkeys("AB", lengths.prefix_tokens)
    sequence = ["A"] * tasks + ["B"] * tasks if options.order == "grouped" else ["A", "B"] * tasks
    return WorkloadPlan("two-agent", agents, workflows, sequence, lengths.input_sigma, lengths.output_sigma)
