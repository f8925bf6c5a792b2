"""From a plan of stages with mean lengths to a trace with sampled ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from topas.errors import InputError
from topas.trace import Round, TaskSpec, Trace
from topas.workflow import StageProfile, StageSpec, workflow_of
from traces.workloads.lengths import length_tokens
from traces.workloads.options import Lengths

_STREAM = 2
"""Keeps the lengths of a seed apart from its arrivals."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage: mean lengths in tokens of its requests, and how many ReAct rounds it takes.

    The number of rounds is uniform from ``least_rounds`` to ``most_rounds``. Each round after the first
    waits ``tool_s`` for a tool whose result has ``tool_tokens``, and its input is the conversation so
    far (which it may reuse) and that result.
    """

    agent: str
    after: tuple[str, ...]
    input_tokens: int
    output_tokens: int
    max_new_tokens: int
    least_rounds: int = 1
    most_rounds: int = 1
    tool_tokens: int = 0
    tool_s: float = 0.0

    @property
    def profile(self) -> StageProfile:
        """Return the expected execution: mean rounds (a half rounded up), their mean input, the allowance."""
        rounds = (self.least_rounds + self.most_rounds + 1) // 2
        growth = (rounds - 1) * (self.output_tokens + self.tool_tokens)
        return StageProfile(rounds, self.input_tokens + (growth + 1) // 2, self.max_new_tokens)


def plain_stage(agent: str, after: Sequence[str], lengths: Lengths) -> StagePlan:
    """Return a stage of one request."""
    return StagePlan(agent, tuple(after), lengths.input_tokens, lengths.output_tokens, lengths.max_new_tokens)


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """Agents with their prefixes in tokens, workflows as stages by name, and the spread of lengths.

    Task k runs workflow ``sequence[k]``, and arrives at ``arrivals_s[k]`` if the workload says when.
    """

    name: str
    agents: Mapping[str, int]
    workflows: Mapping[str, Mapping[str, StagePlan]]
    sequence: Sequence[str]
    input_sigma: float = 0.0
    output_sigma: float = 0.0
    arrivals_s: Sequence[float] | None = None


def realize(plan: WorkloadPlan, arrivals_s: Sequence[float], seed: int) -> Trace:
    """Return the trace of a plan whose task k arrives at ``arrivals_s[k]``.

    Each task draws from its own stream, and draws the same whatever the means, spreads and caps are:
    traces of one seed differ only in what was changed on purpose.

    Raises
    ------
    InputError
        if a stage is allowed fewer tokens than it generates.
    """
    for stages in plan.workflows.values():
        for stage in stages.values():
            _check_allowance(stage, plan.output_sigma)
    workflows = {
        name: workflow_of(name, [StageSpec(v, s.agent, s.after, s.profile) for v, s in stages.items()])
        for name, stages in plan.workflows.items()
    }
    width = len(str(len(plan.sequence) - 1))
    tasks = []
    for k, (name, arrival_s) in enumerate(zip(plan.sequence, arrivals_s, strict=True)):
        rng = np.random.default_rng([_STREAM, seed, k])
        drawn = {stage: _rounds(spec, plan, rng) for stage, spec in plan.workflows[name].items()}
        rounds = tuple(drawn[stage] for stage in workflows[name].dag.names)
        tasks.append(TaskSpec(f"t{k:0{width}d}", workflows[name], arrival_s, rounds))
    return Trace(plan.name, dict(plan.agents), workflows, tuple(tasks))


def _check_allowance(stage: StagePlan, output_sigma: float) -> None:
    mean, allowed = stage.output_tokens, stage.max_new_tokens
    if allowed < mean:
        expected = f"expected at least the output length ({mean}), found {allowed}"
        raise InputError(expected, field="max_new_tokens")
    if output_sigma > 0 and allowed == mean:
        expected = f"expected more than the mean output length ({mean}) while output_sigma is above 0"
        raise InputError(expected, field="max_new_tokens")


def _rounds(stage: StagePlan, plan: WorkloadPlan, rng: np.random.Generator) -> tuple[Round, ...]:
    share = rng.random()
    count = stage.least_rounds + int(share * (stage.most_rounds - stage.least_rounds + 1))
    rounds = []
    context = 0
    for k in range(count):
        z_input, z_output = (float(z) for z in rng.standard_normal(2))
        mean = stage.tool_tokens if k else stage.input_tokens
        new = length_tokens(z_input, mean, plan.input_sigma)
        output = length_tokens(z_output, stage.output_tokens, plan.output_sigma, stage.max_new_tokens)
        tool_s = stage.tool_s if k < count - 1 else 0.0
        rounds.append(Round(context + new, output, stage.max_new_tokens, tool_s, reused_tokens=context))
        context += new + output
    return tuple(rounds)
