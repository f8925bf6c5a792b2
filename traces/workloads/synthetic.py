"""The paper's synthetic workloads Chain-3, DAG-4 and DAG-10-Wide (section V-A).

From the paper: the three shapes by name (a chain, a fork/join, a wide graph), "increasing numbers of
prefix namespaces", fixed input lengths and fixed generations, Poisson arrivals.

Assumed, because the paper does not say: that every stage has its own agent, that DAG-10-Wide is a root,
eight branches and a join, and all lengths. The defaults (prefix 9,000, input 400, output 500, allowance
equal to the output) are those of the `study` profile, whose 36,000-token budget four such prefixes fill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traces.workloads.options import WorkloadOptions
from traces.workloads.plan import WorkloadPlan, plain_stage

PREFIX_TOKENS = 9000
INPUT_TOKENS = 400
OUTPUT_TOKENS = 500

Shape = Mapping[str, Sequence[str]]

_BRANCHES = tuple("BCDEFGHI")
CHAIN_3: Shape = {"A": (), "B": ("A",), "C": ("B",)}
DAG_4: Shape = {"A": (), "B": ("A",), "C": ("A",), "D": ("B", "C")}
DAG_10_WIDE: Shape = {"A": (), **dict.fromkeys(_BRANCHES, ("A",)), "J": _BRANCHES}


def synthetic(name: str, shape: Shape, tasks: int, options: WorkloadOptions) -> WorkloadPlan:
    """Return tasks of one shape (stage -> its predecessors), one agent a stage, equal mean lengths."""
    lengths = options.lengths(PREFIX_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS)
    stages = {stage: plain_stage(stage, after, lengths) for stage, after in shape.items()}
    agents = dict.fromkeys(shape, lengths.prefix_tokens)
    return WorkloadPlan(
        name, agents, {name: stages}, [name] * tasks, lengths.input_sigma, lengths.output_sigma
    )
