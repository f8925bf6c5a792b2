"""The paper's MetaGPT workloads (section V-A): a software company as a pipeline and as a star.

From the paper: MetaGPT-SOP is the static five-role pipeline of earlier versions; MetaGPT-TL unrolls a
nine-stage path through the newer star, a TeamLeader alternating with four specialists. Both are
multi-turn traces with variable call lengths, from real prompts of the SoftwareDev data set.

The paper does not state the prefixes; those here stand for MetaGPT's role prompts, in rounded tokens.

The paper runs SOP up to 0.15 task/s and TL at 0.0175 task/s on one GPU. With calls of one length the
first would need five times the throughput of the second (5 and 9 stages, without further rounds), so the
calls of SOP are taken to be a fifth as long: then both rates lie near the capacity of one A100.

Assumed as well: all other numbers. Outputs are lognormal (sigma 0.5) around a mean of the role and
clipped to the allowance of twice that mean. Inputs are lognormal (sigma 0.3) around a mean that grows by
a fixed step along the path, as documents pile up. The Engineer takes two or three ReAct rounds and the
QaEngineer one or two; each round after the first repeats the conversation so far (which it may reuse) and
adds a tool result of 300 tokens on average after a wait of 2 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traces.workloads.options import WorkloadOptions
from traces.workloads.plan import StagePlan, WorkloadPlan

INPUT_SIGMA = 0.3
OUTPUT_SIGMA = 0.5
FIRST_INPUT_TOKENS = 300
INPUT_STEP_TOKENS = 250
TOOL_RESULT_TOKENS = 300
TOOL_S = 2.0


@dataclass(frozen=True, slots=True)
class Role:
    """An agent: its prefix, its mean output, and the range of its ReAct rounds."""

    prefix_tokens: int
    output_tokens: int
    least_rounds: int = 1
    most_rounds: int = 1


ROLES = {
    "TeamLeader": Role(3750, 600),
    "ProductManager": Role(4650, 900),
    "Architect": Role(2000, 1000),
    "ProjectManager": Role(1150, 700),
    "Engineer": Role(8000, 1200, 2, 3),
    "QaEngineer": Role(1500, 800, 1, 2),
}

SOP_OUTPUT_SHARE = 0.2
"""Outputs of the pipeline as a share of the roles' means: see above."""

SOP = ("ProductManager", "Architect", "ProjectManager", "Engineer", "QaEngineer")
TL = (
    "TeamLeader",
    "ProductManager",
    "TeamLeader",
    "Architect",
    "TeamLeader",
    "ProjectManager",
    "TeamLeader",
    "Engineer",
    "TeamLeader",
)


def metagpt(
    name: str, path: Sequence[str], share: float, tasks: int, options: WorkloadOptions
) -> WorkloadPlan:
    """Return tasks that walk ``path``, a sequence of roles; the stages are ``s1-ROLE``, ``s2-ROLE``, ...

    Outputs are ``share`` of the roles' means.
    """
    roles = sorted(set(path))
    prefixes = _scaled([ROLES[role].prefix_tokens for role in roles], options.prefix_tokens)
    outputs = _scaled([round(share * ROLES[role].output_tokens) for role in path], options.output_tokens)
    inputs = _scaled(
        [FIRST_INPUT_TOKENS + k * INPUT_STEP_TOKENS for k in range(len(path))], options.input_tokens
    )
    names = [f"s{k}-{role}" for k, role in enumerate(path, start=1)]
    stages = {
        names[k]: StagePlan(
            agent=role,
            after=tuple(names[max(k - 1, 0) : k]),
            input_tokens=inputs[k],
            output_tokens=max(1, outputs[k]),
            max_new_tokens=options.max_new_tokens or 2 * max(1, outputs[k]),
            least_rounds=ROLES[role].least_rounds,
            most_rounds=ROLES[role].most_rounds,
            tool_tokens=TOOL_RESULT_TOKENS,
            tool_s=TOOL_S,
        )
        for k, role in enumerate(path)
    }
    return WorkloadPlan(
        name,
        dict(zip(roles, prefixes, strict=True)),
        {name: stages},
        [name] * tasks,
        INPUT_SIGMA if options.input_sigma is None else options.input_sigma,
        OUTPUT_SIGMA if options.output_sigma is None else options.output_sigma,
    )


def _scaled(tokens: Sequence[int], largest: int | None) -> list[int]:
    """Return the numbers scaled so that the largest is ``largest``."""
    if largest is None:
        return list(tokens)
    return [round(count * largest / max(tokens)) for count in tokens]
