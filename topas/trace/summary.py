"""A trace in a few numbers."""

from __future__ import annotations

from typing import Any

from topas.trace import Trace


def summary(trace: Trace) -> dict[str, Any]:
    """Return counts, totals and the span of arrivals.

    ``largest_request_tokens`` is the largest prefix and reservation of one request: an engine with a
    smaller KV budget cannot serve the trace.
    """
    requests = [
        (agent, spec)
        for task in trace.tasks
        for agent, rounds in zip(task.workflow.agents, task.rounds, strict=True)
        for spec in rounds
    ]
    return {
        "name": trace.name,
        "tasks": len(trace.tasks),
        "stages": sum(len(task.rounds) for task in trace.tasks),
        "requests": len(requests),
        "agents": len(trace.agents),
        "workflows": len(trace.workflows),
        "first_arrival_s": trace.tasks[0].arrival_s,
        "last_arrival_s": trace.tasks[-1].arrival_s,
        "input_tokens": sum(spec.input_tokens for _, spec in requests),
        "output_tokens": sum(spec.output_tokens for _, spec in requests),
        "largest_request_tokens": max(trace.agents[agent] + spec.reserve_tokens for agent, spec in requests),
    }


def in_words(counts: dict[str, Any]) -> str:
    """Return a summary as one line of text."""
    sizes = ", ".join(f"{counts[name]} {name}" for name in ("tasks", "stages", "requests", "agents"))
    span = f"arrivals {counts['first_arrival_s']:.3f} to {counts['last_arrival_s']:.3f} s"
    return (
        f"{counts['name']}: {sizes}; {span}; needs a KV budget of {counts['largest_request_tokens']} tokens"
    )
