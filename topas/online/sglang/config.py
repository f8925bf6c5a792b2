"""The operator's file: parameters, agents and workflows of a server, in YAML or TOML.

Nothing in it is needed: without a file the defaults hold, and agents and tasks are learnt from requests.
The commands of the simulator read the same file for the same parameters (``--config``).
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from topas.errors import InputError
from topas.params import SearchParams
from topas.profile import profile_names
from topas.schema import Strict, validate
from topas.sections import read_sections
from topas.wire import MAX_NAME, MAX_TOKENS, check_stages
from topas.workflow import Workflow, workflow_of


def _printable(value: str) -> str:
    if not value.isprintable():
        raise PydanticCustomError("not_printable", "Expected printable characters")
    return value


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_printable)]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


class AgentConfig(Strict):
    """An agent that is known before it asks; ``prefix_tokens`` is the length of its static prefix."""

    prefix_tokens: Tokens | None = None


class WorkflowConfig(Strict):
    """A workflow: its stages by name, described as a client describes them (:mod:`topas.wire`)."""

    stages: Annotated[dict[Name, Any], Field(min_length=1)]


class DecisionLog(Strict):
    """A log of all decisions: ``files`` files of ``max_mb`` megabytes each, of which the oldest goes.

    One file alone could only be emptied, or grow for ever. A relative path counts from the server's working
    directory.
    """

    path: Annotated[str, Field(min_length=1)]
    max_mb: Annotated[float, Field(gt=0, le=100_000)] = 64
    files: Annotated[int, Field(ge=2, le=1000)] = 2


class ServingConfig(Strict):
    """What an operator tells a server.

    ``profile`` is the name or path of an engine profile; ``task_ttl_s`` the time after which a task without
    requests is forgotten; ``max_tasks`` and ``max_agents`` bound what is remembered. ``check`` has every
    decision verified, and the residency of prefixes observed; it is meant for tests.
    """

    format: Literal["topas-serving/1"] = "topas-serving/1"
    profile: Annotated[str, Field(min_length=1)] | None = None
    params: SearchParams = Field(default_factory=SearchParams)
    agents: dict[Name, AgentConfig] = Field(default_factory=dict)
    workflows: dict[Name, WorkflowConfig] = Field(default_factory=dict)
    task_ttl_s: Annotated[float, Field(gt=0, le=1e9)] = 600.0
    max_tasks: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_agents: Annotated[int, Field(ge=1, le=100_000)] = 256
    max_overtaken: Annotated[int, Field(ge=1, le=1_000_000_000)] = 100
    decision_log: DecisionLog | None = None
    check: bool = False

    def workflow(self, name: str | None) -> Workflow | None:
        """Return the workflow of a name, None if there is none; each is built once.

        Raises
        ------
        InputError
            if a stage is wrong, or they are no DAG; :func:`load_config` has found that out before.
        """
        return None if name is None else self._workflows.get(name)

    @cached_property
    def _workflows(self) -> dict[str, Workflow]:
        return {name: _workflow(name, workflow) for name, workflow in self.workflows.items()}


def _workflow(name: str, workflow: WorkflowConfig) -> Workflow:
    field = f"workflows.{name}.stages"
    return workflow_of(name, check_stages(workflow.stages, field), field)


def load_config(path: str | None) -> ServingConfig:
    """Return the configuration of a file, or the defaults where there is none.

    The ending of the file's name says what it is: ``.yaml``, ``.yml`` or ``.toml``. A path of an engine
    profile counts from the file's folder.

    Raises
    ------
    InputError
        in one line with the file and the field, or the line where the parser stopped.
    """
    if path is None:
        return ServingConfig()
    value = read_sections(path)
    if "format" not in value:
        raise InputError("expected topas-serving/1", source=path, field="format")
    config = validate(ServingConfig, value, source=path)
    try:
        _ = config._workflows  # noqa: SLF001  built here, so that a cycle is found before a request is
    except InputError as error:
        raise InputError(error.expected, source=path, field=error.field) from None
    if config.profile is None or config.profile in profile_names():
        return config
    return config.model_copy(update={"profile": str(Path(path).parent / config.profile)})
