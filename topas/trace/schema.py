"""The two kinds of line of a ``topas-trace/1`` file, as data models: what one line alone can get wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from topas.schema import AgentRow, Count, Name, SomeTokens, Strict
from topas.trace import Moment, Round


class ProfileRow(Strict):
    """What is known of a stage before it ever ran."""

    rounds: SomeTokens
    input_tokens: Count
    max_new_tokens: SomeTokens


class StageRow(Strict):
    """A stage of a workflow."""

    agent: Name
    after: list[Name]
    profile: ProfileRow | None = None


class WorkflowRow(Strict):
    """A workflow: its stages by name."""

    stages: dict[Name, StageRow]


class HeaderRow(Strict):
    """The first line."""

    format: Literal["topas-trace/1"]
    name: Name
    agents: dict[Name, AgentRow]
    workflows: dict[Name, WorkflowRow]


class RoundsRow(Strict):
    """What one stage of one task really does."""

    rounds: Annotated[list[Round], Field(min_length=1)]


class TaskRow(Strict):
    """Every line after the first."""

    task: Name
    workflow: Name
    arrival_s: Moment
    stages: dict[Name, RoundsRow]
