"""What a replay measured, on the client's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from topas.sim.result import Counters, TaskResult, percentile, summarize
from topas.trace import Trace

SHARED = ("mean_jct_s", "p50_jct_s", "p99_jct_s", "max_jct_s", "makespan_s", "first_task_s", "requests_per_s")
"""Metrics of the simulator that a client can measure; same names, same definitions."""

TASK_COLUMNS = ("task", "arrival_s", "completion_s", "jct_s", "error")


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One finished request; times from the start of the replay, ``ttft_s`` from ``start_s``."""

    task: str
    stage: str
    round: int
    agent: str
    start_s: float
    ttft_s: float
    end_s: float
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that failed, and its task with it."""

    task: str
    stage: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A replay: finished tasks in order of arrival, finished requests in order of their end, failures.

    ``policy`` is what the server calls its scheduling policy, None if it does not tell. ``notes`` are
    caveats in words. Metrics are None where there is nothing to measure.
    """

    trace: str
    url: str
    api: str
    policy: str | None
    tasks: tuple[TaskResult, ...]
    requests: tuple[RequestResult, ...]
    failures: tuple[Failure, ...]
    metrics: Mapping[str, float | int | None]
    notes: tuple[str, ...] = ()


def metrics_of(
    tasks: Sequence[TaskResult], requests: Sequence[RequestResult], failures: Sequence[Failure]
) -> dict[str, float | int | None]:
    """Return the metrics by their public names; those of tasks are over finished tasks only."""
    found: dict[str, float | int | None] = dict.fromkeys(SHARED)
    if tasks:
        counters = Counters(len(requests), 0, 0, 0, 0, 0, 0, 0, ())
        known = summarize(tasks, counters)
        found = {name: known[name] for name in SHARED}
    ttfts = [request.ttft_s for request in requests]
    return found | {
        "mean_ttft_s": float(np.mean(ttfts)) if ttfts else None,
        "p99_ttft_s": percentile(ttfts, 99) if ttfts else None,
        "prompt_tokens": sum(request.prompt_tokens for request in requests),
        "cached_tokens": _sum(request.cached_tokens for request in requests),
        "output_tokens": sum(request.output_tokens for request in requests),
        "requests": len(requests),
        "failed_tasks": len({failure.task for failure in failures}),
    }


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum, or None if one is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def task_rows(trace: Trace, result: ReplayResult) -> list[dict[str, object]]:
    """Return a row of :data:`TASK_COLUMNS` for every task, in the trace's order."""
    done = {task.id: task for task in result.tasks}
    reasons = {failure.task: failure.reason for failure in reversed(result.failures)}
    rows: list[dict[str, object]] = []
    for spec in trace.tasks:
        row: dict[str, object] = {**dict.fromkeys(TASK_COLUMNS, ""), "task": spec.id}
        if task := done.get(spec.id):
            row |= {"arrival_s": task.arrival_s, "completion_s": task.completion_s, "jct_s": task.jct_s}
        elif spec.id in reasons:
            row["error"] = reasons[spec.id]
        rows.append(row)
    return rows
