"""A trace: agents, workflows and the tasks that arrive, with what each request will really cost.

This is what the simulator plays and what no policy sees ahead of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from topas.schema import STRICT, Count, Real, SomeTokens
from topas.workflow import Workflow

MAX_SECONDS = 1e9
"""Largest time in a trace, about 30 years: integer nanoseconds stay within 64 bits."""

Moment = Annotated[Real, Field(ge=0, le=MAX_SECONDS)]


@dataclass(frozen=True, slots=True)
class Round:
    """One LLM request of a stage (one ReAct round).

    ``input_tokens`` is the dynamic suffix behind the agent's static prefix; ``reused_tokens`` of it,
    from its start, repeat the stage's previous context. ``output_tokens`` are really generated,
    ``max_new_tokens`` are what the client allowed. ``tool_s`` is the wait behind this round: before
    the next round, or behind the last round before the stage is complete.
    """

    __pydantic_config__ = STRICT

    input_tokens: Count
    output_tokens: SomeTokens
    max_new_tokens: SomeTokens
    tool_s: Moment = 0.0
    reused_tokens: Count = 0

    @property
    def reserve_tokens(self) -> int:
        """Return d_r of Eq. 2: dynamic suffix and decode reservation."""
        return self.input_tokens + self.max_new_tokens


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task: its workflow, arrival, and the rounds of every stage in the DAG's order.

    A stage without rounds is passed over once it is ready; a file has none. The first stages have some.
    """

    id: str
    workflow: Workflow
    arrival_s: float
    rounds: tuple[tuple[Round, ...], ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Tasks in order of arrival over a set of agents; ``agents`` gives each static prefix in tokens."""

    name: str
    agents: Mapping[str, int]
    workflows: Mapping[str, Workflow]
    tasks: tuple[TaskSpec, ...]
