"""What a replay tells the server's scheduler of a request, as any client of TOPAS would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from topas.client import Stage, extra_body
from topas.errors import InputError
from topas.trace import TaskSpec
from topas.workflow import Workflow

Level = Literal["full", "names", "none"]
"""All facts, those without DAG and prefix length, or nothing."""


@dataclass(frozen=True, slots=True)
class ToldFacts:
    """What is told: how much, of agents with these static prefixes (tokens).

    ``run`` is the first part of a task's name on the server, where no two replays may share one.
    """

    level: Level
    agents: Mapping[str, int]
    run: str

    def params(self, task: TaskSpec, stage: int, *, final: bool) -> dict[str, Any]:
        """Return the ``custom_params`` of a request of stage ``stage``; ``final``: it is the stage's last.

        Raises
        ------
        InputError
            if the server would refuse a fact: a long name, more stages than it takes.
        """
        if self.level == "none":
            return {}
        workflow = task.workflow
        more: dict[str, Any] = {}
        agent = workflow.agents[stage]
        if self.level == "full":
            more = {"prefix_tokens": self.agents[agent], "dag": _dag(workflow)}
        body = extra_body(
            task=f"{self.run}:{task.id}",
            workflow=workflow.name,
            stage=workflow.dag.names[stage],
            agent=agent,
            final=final,
            **more,
        )
        params: dict[str, Any] = body["custom_params"]
        return params

    def check(self, task: TaskSpec) -> None:
        """Raise InputError if the server would refuse a fact of one of the task's requests."""
        for stage in range(len(task.workflow.dag)):
            try:
                self.params(task, stage, final=True)
            except InputError as error:
                raise error.at(source=f"facts of task {task.id!r}") from None


@lru_cache(maxsize=4096)
def _dag(workflow: Workflow) -> dict[str, Stage]:
    return {
        spec.name: {
            "agent": spec.agent,
            "after": spec.after,
            **(spec.profile._asdict() if spec.profile else {}),
        }
        for spec in workflow.stages
    }
