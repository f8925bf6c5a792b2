"""Lower bound 1: every task alone on the engine, forks in waves.

A task is complete no earlier than its longest path of shortest service times, tool waits included. Let a
unit wait for w others. At most c of these fit into memory together, where c is the most for which the c
smallest of ``need + prefix / (how many of the w share the agent)`` add up to at most the budget: any set
of them that is in the engine at one time holds at least that much, for an agent with m of the w charges
at most m shares of its prefix. None starts before the earliest possible start of any, each stays at least
the shortest service of any, so the last ends no earlier than ``ceil(w / c)`` such times after that start;
where requests may be run in pieces, ``w / c`` (and at least one).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from oracle.bounds.work import TaskWork, TraceWork


@dataclass(frozen=True, slots=True)
class Earliest:
    """Earliest start and completion of each unit of a job, and of the job, in seconds from its arrival."""

    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    job_s: float


def at_once(work: TraceWork, job: TaskWork, units: tuple[int, ...]) -> int:
    """Return how many of these units of a job fit into memory together at most (at least 1)."""
    sharing = Counter(job.units[k].agent for k in units)
    needs = sorted(
        job.units[k].need_tokens + work.prefix[job.units[k].agent] / sharing[job.units[k].agent]
        for k in units
    )
    fit = int(np.searchsorted(np.cumsum(needs), work.profile.kv_budget_tokens + 1e-6, side="right"))
    return max(min(fit, work.profile.max_running), 1)


def earliest(work: TraceWork, job: TaskWork) -> Earliest:
    """Return the earliest times of a job that has the engine to itself."""
    start: list[float] = []
    end: list[float] = []

    def ready_s(after: tuple[tuple[int, float], ...]) -> float:
        ready = max((end[k] + wait for k, wait in after), default=0.0)
        if len(after) > 1:
            waited = tuple(k for k, _ in after)
            waves = len(waited) / at_once(work, job, waited)
            waves = math.ceil(waves) if work.whole else max(waves, 1.0)
            least = min(job.units[k].least_s for k in waited)
            ready = max(ready, min(start[k] for k in waited) + waves * least)
        return ready

    for unit in job.units:
        start.append(ready_s(unit.after))
        end.append(start[-1] + unit.least_s)
    return Earliest(tuple(start), tuple(end), ready_s(job.ends))


def critical_path_s(work: TraceWork) -> float:
    """Return the mean over tasks of the earliest completion: a lower bound on the mean JCT in seconds."""
    return float(np.mean([earliest(work, job).job_s for job in work.jobs]))
