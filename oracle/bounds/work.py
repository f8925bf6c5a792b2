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
the other two modes a request may be run in pieces, and each further prefill yields a token as well; where
that could be faster than a decode step (:func:`quick_tokens`), the time per token is lowered to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topas.profile import Profile
from topas.residual import FloatArray
from topas.trace import Round, Trace


@dataclass(frozen=True, slots=True)
class Unit:
    """One request of a job; ``after`` are (unit of the job, wait in seconds behind its completion).

    ``least_s`` is the shortest time from admission to completion, of which ``decode_s`` in decode steps;
    ``context_tokens`` are in use from the first decode step on, besides the prefix.
    """

    agent: int
    after: tuple[tuple[int, float], ...]
    prefill_s: float
    steps: int
    decode_s: float
    need_tokens: int
    context_tokens: int

    @property
    def least_s(self) -> float:
        """Return the shortest time in the engine."""
        return self.prefill_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Job:
    """A task: its units in topological order; complete when the ``ends`` (unit, wait) are."""

    arrival_s: float
    units: tuple[Unit, ...]
    ends: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Work:
    """A trace on a profile; ``prefix`` are tokens by agent. ``whole`` runs: see the module."""

    profile: Profile
    prefix: FloatArray
    jobs: tuple[Job, ...]
    whole: bool

    @property
    def units(self) -> list[Unit]:
        """Return the units of all jobs."""
        return [unit for job in self.jobs for unit in job.units]


def work_of(trace: Trace, profile: Profile) -> Work:
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
        jobs.append(Job(task.arrival_s, tuple(units), ends))
    prefix = np.array([trace.agents[name] for name in used], dtype=np.float64)
    return Work(profile, prefix, tuple(jobs), profile.redo == "decode")


def _unit(
    agent: int, prefix: int, spec: Round, after: tuple[tuple[int, float], ...], profile: Profile
) -> Unit:
    steps = spec.output_tokens - 1
    context = spec.input_tokens + 1
    per_kv = profile.decode_s_per_kv_token
    step_s = profile.decode_base_s + profile.decode_s_per_seq + per_kv * (prefix + context)
    decode_s = steps * step_s + per_kv * steps * (steps - 1) / 2
    quick_s = quick_tokens(spec, profile)
    if quick_s is not None:
        decode_s = min(decode_s, steps * quick_s)
    new = max(spec.input_tokens - spec.reused_tokens, 1)
    return Unit(
        agent=agent,
        after=after,
        prefill_s=profile.prefill_base_s + new * profile.prefill_s_per_token,
        steps=steps,
        decode_s=decode_s,
        need_tokens=spec.reserve_tokens if profile.admission == "full" else context,
        context_tokens=context,
    )


def quick_tokens(spec: Round, profile: Profile) -> float | None:
    """Return the least time of a further prefill of this request, which yields a token; None if it has none.

    With ``redo`` = ``decode`` a further prefill starts the request anew.
    """
    if profile.redo == "decode":
        return None
    kept = spec.input_tokens if profile.redo == "keep" else spec.reused_tokens
    new = max(spec.input_tokens - kept, 0) + 1
    return profile.prefill_base_s + new * profile.prefill_s_per_token


def longest_step_s(profile: Profile, most: int) -> float:
    """Return the longest that a decode step with at most ``most`` requests can take: with all KV in use."""
    kv_s = profile.decode_s_per_kv_token * profile.kv_budget_tokens
    return profile.decode_base_s + profile.decode_s_per_seq * most + kv_s


def most_running(work: Work) -> int:
    """Return how many requests at most run at once: all of the least need, on the shortest prefix."""
    budget, units = work.profile.kv_budget_tokens, work.units
    room = budget - min(float(work.prefix[unit.agent]) for unit in units)
    least = min(unit.need_tokens for unit in units)
    by_memory = int(room // least) if least else len(units)
    return max(min(work.profile.max_running, by_memory, len(units)), 1)
