"""What a trace asks of an engine at the least: the common ground of all lower bounds.

A request of an agent with prefix l, input x, reused tokens u and o output tokens needs, whatever the
schedule does,

- one prefill of at least ``max(x - u, 1)`` tokens, which gives the first of its o tokens;
- ``o - 1`` decode steps. A step with n requests over k KV tokens takes ``base + n per_seq + k per_kv``
  (docs/model.md, E4), and its own prefix and KV are in use, so alone it takes the least;
- while it is admitted, its prefix and ``need_tokens`` of KV: its reservation with ``full`` admission, else
  its input and first token.

With ``redo`` = ``decode`` a preempted request starts anew. What counts here is its last, whole run: the
earlier ones only take time and memory, and leaving them out of the account makes no bound too high. With
the other two modes a request may be run in pieces, and each further prefill yields a token as well: where
that is sooner than the decode step for the same token, it counts instead, token by token, for the steps grow
longer with the KV. A further prefill computes its tokens after ``prefill_base_s``, which others of its batch
share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topas.profile import Profile
from topas.residual import FloatArray
from topas.trace import Round, Trace


@dataclass(frozen=True, slots=True)
class Unit:
    """One request of a job; ``after`` are (unit of the job, wait in seconds behind its completion).

    ``least_s`` is the shortest time from admission to completion, of which ``decode_s`` behind the prefill;
    ``context_tokens`` are in use from the first decode step on, besides the prefix. ``again_s`` is the time
    of a further prefill, which yields a token too, without ``prefill_base_s``; infinite where it starts anew.
    """

    agent: int
    after: tuple[tuple[int, float], ...]
    prefill_s: float
    steps: int
    decode_s: float
    need_tokens: int
    context_tokens: int
    again_s: float

    @property
    def least_s(self) -> float:
        """Return the shortest time in the engine."""
        return self.prefill_s + self.decode_s


def smallest(units: Sequence[Unit]) -> Unit:
    """Return a unit that asks no more of anything than any of these, which wait for the same units."""
    return Unit(
        units[0].agent,
        units[0].after,
        min(unit.prefill_s for unit in units),
        min(unit.steps for unit in units),
        min(unit.decode_s for unit in units),
        min(unit.need_tokens for unit in units),
        min(unit.context_tokens for unit in units),
        min(unit.again_s for unit in units),
    )


@dataclass(frozen=True, slots=True)
class TaskWork:
    """A task: its units in topological order; complete when the ``ends`` (unit, wait) are."""

    arrival_s: float
    units: tuple[Unit, ...]
    ends: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TraceWork:
    """A trace on a profile; ``prefix`` are tokens by agent. ``whole`` runs: see the module."""

    profile: Profile
    prefix: FloatArray
    jobs: tuple[TaskWork, ...]
    whole: bool

    @property
    def units(self) -> list[Unit]:
        """Return the units of all jobs."""
        return [unit for job in self.jobs for unit in job.units]


def work_of(trace: Trace, profile: Profile) -> TraceWork:
    """Return what a trace asks of the engine; jobs in order of arrival."""
    used = sorted({a for task in trace.tasks for a in task.workflow.agents})
    number = {name: k for k, name in enumerate(used)}
    jobs = []
    for task in trace.tasks:
        units: list[Unit] = []
        last: dict[int, tuple[int, float]] = {}
        dag = task.workflow.dag
        for stage, rounds in enumerate(task.rounds):
            agent = task.workflow.agents[stage]
            after = tuple(last[p] for p in dag.before[stage])
            for spec in rounds:
                units.append(_unit(number[agent], trace.agents[agent], spec, after, profile))
                after = ((len(units) - 1, spec.tool_s),)
            last[stage] = after[0]
        ends = tuple(last[stage] for stage in range(len(dag)) if not dag.after[stage])
        jobs.append(TaskWork(task.arrival_s, tuple(units), ends))
    prefix = np.array([trace.agents[name] for name in used], dtype=np.float64)
    return TraceWork(profile, prefix, tuple(jobs), profile.redo == "decode")


def _unit(
    agent: int, prefix: int, spec: Round, after: tuple[tuple[int, float], ...], profile: Profile
) -> Unit:
    steps = spec.output_tokens - 1
    context = spec.input_tokens + 1
    per_kv = profile.decode_s_per_kv_token
    step_s = profile.decode_base_s + profile.decode_s_per_seq + per_kv * (prefix + context)
    again_s = _again_s(spec, profile)
    new = max(spec.input_tokens - spec.reused_tokens, 1)
    return Unit(
        agent=agent,
        after=after,
        prefill_s=profile.prefill_base_s + new * profile.prefill_s_per_token,
        steps=steps,
        decode_s=_sooner_s(steps, step_s, per_kv, profile.prefill_base_s + again_s),
        need_tokens=spec.reserve_tokens if profile.admission == "full" else context,
        context_tokens=context,
        again_s=again_s,
    )


def _again_s(spec: Round, profile: Profile) -> float:
    """Return the least time of a further prefill of this request, without its base: see :class:`Unit`."""
    if profile.redo == "decode":
        return math.inf
    kept = spec.input_tokens if profile.redo == "keep" else spec.reused_tokens
    return (max(spec.input_tokens - kept, 0) + 1) * profile.prefill_s_per_token


def _sooner_s(steps: int, step_s: float, growth_s: float, prefill_s: float) -> float:
    """Return the sum over j < steps of ``min(step_s + j growth_s, prefill_s)``."""
    decoded = steps
    if step_s + (steps - 1) * growth_s > prefill_s:
        decoded = 0 if step_s > prefill_s else min(int((prefill_s - step_s) // growth_s) + 1, steps)
    prefilled_s = (steps - decoded) * prefill_s if decoded < steps else 0.0
    return decoded * step_s + growth_s * decoded * (decoded - 1) / 2 + prefilled_s


def longest_step_s(profile: Profile, most: int) -> float:
    """Return the longest that a decode step with at most ``most`` requests can take: with all KV in use."""
    kv_s = profile.decode_s_per_kv_token * profile.kv_budget_tokens
    return profile.decode_base_s + profile.decode_s_per_seq * most + kv_s


def most_running(work: TraceWork) -> int:
    """Return how many requests at most run at once: all of the least need, on the shortest prefix."""
    budget, units = work.profile.kv_budget_tokens, work.units
    room = budget - min(float(work.prefix[unit.agent]) for unit in units)
    least = min(unit.need_tokens for unit in units)
    by_memory = int(room // least) if least else len(units)
    return max(min(work.profile.max_running, by_memory, len(units)), 1)
