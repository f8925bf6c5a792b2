"""The operator's file: parameters, agents and workflows of a server, in YAML or TOML.

Nothing in it is needed: without a file the defaults hold, and agents and tasks are learnt from requests.
The commands of the simulator read the same file for the same parameters (``--config``).
"""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from topas.errors import InputError
from topas.files import read_file
from topas.params import SearchParams
from topas.profile import profile_names
from topas.schema import Strict, validate
from topas.wire import MAX_NAME, MAX_ROUNDS, MAX_TOKENS
from topas.workflow import StageProfile, Workflow, dag_of

MAX_CONFIG_BYTES = 1024 * 1024
"""Longest file that is read."""


def _printable(value: str) -> str:
    if not value.isprintable():
        raise PydanticCustomError("not_printable", "Expected printable characters")
    return value


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_printable)]
Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


class AgentConfig(Strict):
    """An agent that is known before it asks; ``prefix_tokens`` is the length of its static prefix."""

    prefix_tokens: Tokens | None = None


class StageConfig(Strict):
    """A stage of a workflow. Its profile is known if the tokens of a request are given."""

    agent: Name
    after: list[Name] = Field(default_factory=list)
    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | None = None
    input_tokens: Tokens | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None

    @model_validator(mode="after")
    def _whole_profile(self) -> StageConfig:
        counts = (self.rounds, self.input_tokens, self.max_new_tokens)
        if any(count is not None for count in counts) and None in counts[1:]:
            raise PydanticCustomError(
                "half_profile", "Expected input_tokens and max_new_tokens together, rounds only with both"
            )
        return self

    @property
    def profile(self) -> StageProfile | None:
        """Return what is known of the stage before it ever ran."""
        if self.input_tokens is None or self.max_new_tokens is None:
            return None
        return StageProfile(self.rounds or 1, self.input_tokens, self.max_new_tokens)


class WorkflowConfig(Strict):
    """A workflow: its stages by name."""

    stages: Annotated[dict[Name, StageConfig], Field(min_length=1)]


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
            if the stages of any workflow are no DAG; :func:`load_config` has found that out before.
        """
        return None if name is None else self._workflows.get(name)

    @cached_property
    def _workflows(self) -> dict[str, Workflow]:
        return {name: _workflow(name, workflow) for name, workflow in self.workflows.items()}


def _workflow(name: str, workflow: WorkflowConfig) -> Workflow:
    stages = workflow.stages
    dag = dag_of({v: stage.after for v, stage in stages.items()}, f"workflows.{name}.stages")
    agents = tuple(stages[v].agent for v in dag.names)
    return Workflow(name, dag, agents, tuple(stages[v].profile for v in dag.names))


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
    value = _read(path)
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


def _read(path: str) -> dict[Any, Any]:
    read = _READERS.get(Path(path).suffix.lower())
    if read is None:
        raise InputError("expected a file that ends in .yaml, .yml or .toml", source=path)
    data = read_file(path)
    if len(data) > MAX_CONFIG_BYTES:
        raise InputError(f"expected at most {MAX_CONFIG_BYTES} bytes, found {len(data)}", source=path)
    try:
        value = read(data.decode())
    except UnicodeDecodeError:
        raise InputError("expected UTF-8 text", source=path) from None
    except RecursionError:
        raise InputError("expected values nested less deeply", source=path) from None
    except InputError as error:
        raise error.at(source=path) from None
    if not isinstance(value, dict):
        raise InputError("expected sections by name", source=path)
    return value


def _read_toml(text: str) -> Any:  # noqa: ANN401  any value
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
        message, line = found.groups() if found else (str(error), None)
        raise InputError(f"expected TOML: {message}", line=int(line) if line else None) from None


def _read_yaml(text: str) -> Any:  # noqa: ANN401  any value
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise InputError("reading YAML needs the package PyYAML; a TOML file needs none") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # safe_load, but for keys that stand twice
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002
            seen = set()
            for key, _ in node.value:
                if not isinstance(key.value, str):  # no plain key: refused below
                    continue
                if key.value in seen:
                    problem = f"the key {key.value!r} stands twice"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(f"expected YAML: {error.problem}", line=mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError) as error:  # an odd character; a date that is none
        raise InputError(f"expected YAML: {str(error).splitlines()[0]}") from None


_READERS: dict[str, Callable[[str], Any]] = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}
