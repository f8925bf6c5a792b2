"""The two kinds of line of a ``topas-trace/1`` file, as data models: what one line alone can get wrong."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

MAX_TOKENS = 1_000_000_000
"""Largest token count in a trace: beyond it a number is a slip, and sums would leave 64 bits."""

MAX_SECONDS = 1e9
"""Largest time in a trace, about 30 years: integer nanoseconds stay within 64 bits."""

Name = Annotated[str, Field(min_length=1, max_length=200)]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
SomeTokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]


class Row(BaseModel):
    """A strict JSON object: no conversions, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class AgentRow(Row):
    """An agent: its static prefix."""

    prefix_tokens: Tokens


class ProfileRow(Row):
    """What is known of a stage before it ever ran."""

    rounds: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    input_tokens: Tokens
    max_new_tokens: SomeTokens


class StageRow(Row):
    """A stage of a workflow."""

    agent: Name
    after: list[Name]
    profile: ProfileRow | None = None


class WorkflowRow(Row):
    """A workflow: its stages by name."""

    stages: dict[Name, StageRow]


class HeaderRow(Row):
    """The first line."""

    format: Literal["topas-trace/1"]
    name: Name
    agents: dict[Name, AgentRow]
    workflows: dict[Name, WorkflowRow]


class RoundRow(Row):
    """One request of a stage."""

    input_tokens: Tokens
    output_tokens: SomeTokens
    max_new_tokens: SomeTokens
    tool_s: Seconds = 0.0
    reused_tokens: Tokens = 0

    @field_validator("max_new_tokens")
    @classmethod
    def _allows_the_output(cls, value: int, info: ValidationInfo) -> int:
        output = info.data.get("output_tokens", 0)
        if value < output:
            raise PydanticCustomError(
                "below_output", "Expected at least output_tokens ({output})", {"output": output}
            )
        return value

    @field_validator("reused_tokens")
    @classmethod
    def _is_part_of_the_input(cls, value: int, info: ValidationInfo) -> int:
        limit = info.data.get("input_tokens", value)
        if value > limit:
            raise PydanticCustomError(
                "above_input", "Expected at most input_tokens ({limit})", {"limit": limit}
            )
        return value


class RoundsRow(Row):
    """What one stage of one task really does."""

    rounds: Annotated[list[RoundRow], Field(min_length=1)]


class TaskRow(Row):
    """Every line after the first."""

    task: Name
    workflow: Name
    arrival_s: Seconds
    stages: dict[Name, RoundsRow]
