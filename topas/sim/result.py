"""What a simulation measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from topas.engine.state import World
from topas.trace import Trace


@dataclass(frozen=True, slots=True)
class TaskResult:
    """When a task arrived and when its last stage was complete."""

    id: str
    arrival_s: float
    completion_s: float

    @property
    def jct_s(self) -> float:
        """Return the job completion time (Eq. 1)."""
        return self.completion_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals that the engine counts as it runs; ``step_requests`` sums the batch size over decode steps."""

    requests: int
    steps: int
    step_requests: int
    peak_batch: int
    prefix_loads: int
    preemptions: int
    recomputed_tokens: int
    events: int
    decision_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class SimResult:
    """Tasks in order of arrival and the metrics of one run.

    All but ``decision_ms_mean`` and ``decision_ms_p99`` (wall-clock) are reproducible to the byte.
    ``events`` counts the simulator's own steps: arrivals, completions, loads, prefills, decode runs.
    """

    trace: str
    policy: str
    profile: str
    tasks: tuple[TaskResult, ...]
    metrics: Mapping[str, float | int]
    events: int


@dataclass(frozen=True, slots=True)
class Tail:
    """JCT of the tasks of one workflow, or of those that one agent takes part in, in seconds."""

    by: str
    name: str
    tasks: int
    mean_jct_s: float
    p99_jct_s: float
    max_jct_s: float


def tails(trace: Trace, results: Sequence[TaskResult]) -> tuple[Tail, ...]:
    """Return the tail of each workflow, then of each agent, in the order of the trace.

    A percentile over all tasks hides a kind of task that waits; this does not.
    """
    jct_s = {result.id: result.jct_s for result in results}
    found: dict[tuple[str, str], list[float]] = {("workflow", name): [] for name in trace.workflows}
    found |= {("agent", name): [] for name in trace.agents}
    for task in trace.tasks:
        for key in (("workflow", task.workflow.name), *(("agent", a) for a in set(task.workflow.agents))):
            found[key].append(jct_s[task.id])
    return tuple(
        Tail(by, name, len(jcts), float(np.mean(jcts)), percentile(jcts, 99), max(jcts))
        for (by, name), jcts in found.items()
        if jcts
    )


def percentile(values: Sequence[float], q: float) -> float:
    """Return the q-th percentile with linear interpolation (0 for no values)."""
    return float(np.percentile(np.asarray(values), q)) if len(values) else 0.0


def summarize(tasks: Sequence[TaskResult], counters: Counters) -> dict[str, float | int]:
    """Return the metrics by their public names; times in seconds, percentiles interpolated linearly.

    ``mean_batch`` averages the running batch over decode steps; ``requests_per_s`` and ``makespan_s``
    count from the first arrival to the last completion.
    """
    jcts = [task.jct_s for task in tasks]
    start = min(task.arrival_s for task in tasks)
    makespan = max(task.completion_s for task in tasks) - start
    decision_ms = [1e3 * value for value in counters.decision_s]
    return {
        "mean_jct_s": float(np.mean(jcts)),
        "p50_jct_s": percentile(jcts, 50),
        "p99_jct_s": percentile(jcts, 99),
        "max_jct_s": max(jcts),
        "makespan_s": makespan,
        "first_task_s": min(task.completion_s for task in tasks) - start,
        "requests_per_s": counters.requests / makespan if makespan > 0 else 0.0,
        "mean_batch": counters.step_requests / counters.steps if counters.steps else 0.0,
        "peak_batch": counters.peak_batch,
        "prefix_loads": counters.prefix_loads,
        "preemptions": counters.preemptions,
        "recomputed_tokens": counters.recomputed_tokens,
        "decisions": len(decision_ms),
        "decision_ms_mean": float(np.mean(decision_ms)) if decision_ms else 0.0,
        "decision_ms_p99": percentile(decision_ms, 99),
    }


def result_of(
    trace: Trace, policy: str, profile: str, world: World, decision_s: Sequence[float]
) -> SimResult:
    """Return what a finished world measured.

    Rules decide inside the engine, which has no clock: they count as ``decisions`` that took no time.
    """
    now = world.now[0]
    times = world.tasks["done_s"].tolist()
    tasks = tuple(TaskResult(t.id, t.arrival_s, done_s) for t, done_s in zip(trace.tasks, times, strict=True))
    counters = Counters(
        requests=int(now["requests"]),
        steps=int(now["steps"]),
        step_requests=int(now["step_requests"]),
        peak_batch=int(now["peak"]),
        prefix_loads=int(now["loads"]),
        preemptions=int(now["preemptions"]),
        recomputed_tokens=int(now["recomputed"]),
        events=int(now["events"]),
        decision_s=decision_s or [0.0] * int(now["decisions"]),
    )
    return SimResult(trace.name, policy, profile, tasks, summarize(tasks, counters), counters.events)
