"""Steps to execution: how soon a workflow will ask for each agent (KVFlow, arXiv 2507.07400)."""

from __future__ import annotations

from collections.abc import Iterable

from topas.online.tracker import LiveTask

LATE = 1 << 20
"""Steps to execution of an agent that no task will ask for."""


def steps_to_execution(tasks: Iterable[LiveTask]) -> dict[str, int]:
    """Return for each agent the least number of stages before one of its own may run; others are absent.

    A ready stage has 0; any other one more than the largest of its unfinished predecessors.
    """
    found: dict[str, int] = {}
    for task in tasks:
        steps = [0] * len(task.dag)
        for stage, before in enumerate(task.dag.before):
            if task.finished[stage]:
                continue
            steps[stage] = max((steps[b] + 1 for b in before if not task.finished[b]), default=0)
            agent = task.workflow.agents[stage]
            found[agent] = min(found.get(agent, steps[stage]), steps[stage])
    return found
