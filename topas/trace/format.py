"""Reading and writing traces: JSON Lines, format ``topas-trace/1``.

The first line holds the agents and the workflows, every other line one task, in order of arrival.
A stage of a workflow may carry a ``profile``: what is known of it before any execution. Times are
seconds, lengths tokens. Lines end in a line feed and nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from topas.errors import InputError
from topas.files import whole_file
from topas.schema import MAX_BYTES, parse_json, validate
from topas.trace import Round, TaskSpec, Trace
from topas.trace.schema import HeaderRow, ProfileRow, TaskRow, WorkflowRow
from topas.workflow import StageProfile, StageSpec, Workflow, workflow_of

FORMAT = "topas-trace/1"
ROUND = tuple(field.name for field in fields(Round))
OPTIONAL = ("tool_s", "reused_tokens")
"""Fields of a round that are left out where they are 0."""


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace, one line in memory at a time.

    Raises
    ------
    InputError
        naming file, line and field of the first fault.
    """
    try:
        with Path(path).open("rb") as stream:
            # a line that is too long is cut just behind the limit, and refused for its length
            return parse_trace(iter(partial(stream.readline, MAX_BYTES + 2), b""), str(path))
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror}", source=str(path)) from None


def parse_trace(lines: Iterable[bytes], source: str) -> Trace:
    """Build a trace from its lines; ``source`` names their origin in errors.

    Raises
    ------
    InputError
        if a line is not UTF-8 or not JSON, is empty (but for the last) or longer than 8 MiB; a field is
        missing, unknown, of the wrong type or out of range; the version, an agent, a workflow or a stage
        is unknown; stages form a cycle or are missing from a task; a task id stands twice; arrivals are
        out of order; or there is no header or no task.
    """
    rows = _rows(lines, source)
    number, value = next(rows, (0, None))
    if not number:
        raise InputError("expected a trace header, found an empty file", source=source, line=1)
    with _placed(source, number):
        header = validate(HeaderRow, value)
        workflows = {name: _workflow(name, row, header) for name, row in header.workflows.items()}
    tasks: dict[str, TaskSpec] = {}
    arrival_s = 0.0
    for number, value in rows:
        with _placed(source, number):
            task = _task(validate(TaskRow, value), workflows)
            if task.id in tasks:
                raise InputError(f"the task {task.id!r} stands twice", field="task")
            if task.arrival_s < arrival_s:
                expected = f"arrival out of order: {task.arrival_s} comes after {arrival_s}"
                raise InputError(expected, field="arrival_s")
        tasks[task.id] = task
        arrival_s = task.arrival_s
    if not tasks:
        raise InputError("expected at least one task after the header", source=source, line=number + 1)
    agents = {name: row.prefix_tokens for name, row in header.agents.items()}
    return Trace(header.name, agents, workflows, tuple(tasks.values()))


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace whole or not at all; equal traces give equal bytes.

    Raises
    ------
    InputError
        if the folder cannot be written.
    """
    with whole_file(path, "wb") as stream:
        for line in trace_lines(trace):
            stream.write(line)


def trace_lines(trace: Trace) -> Iterator[bytes]:
    """Yield the lines of a trace: compact ASCII JSON, agents and workflows by name, stages in DAG order."""
    yield _line(
        {
            "format": FORMAT,
            "name": trace.name,
            "agents": {name: {"prefix_tokens": trace.agents[name]} for name in sorted(trace.agents)},
            "workflows": {
                name: {"stages": _stages(trace.workflows[name])} for name in sorted(trace.workflows)
            },
        }
    )
    for task in trace.tasks:
        stages = zip(task.workflow.dag.names, task.rounds, strict=True)
        yield _line(
            {
                "task": task.id,
                "workflow": task.workflow.name,
                "arrival_s": task.arrival_s,
                "stages": {name: {"rounds": [_round(r) for r in rounds]} for name, rounds in stages},
            }
        )


@contextmanager
def _placed(source: str, line: int) -> Iterator[None]:
    """Give the errors of the block their place."""
    try:
        yield
    except InputError as error:
        raise error.at(source=source, line=line) from None


def _rows(lines: Iterable[bytes], source: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and the JSON value of every line."""
    empty = 0
    for number, raw in enumerate(lines, start=1):
        line = raw.removesuffix(b"\n")
        if empty:
            raise InputError("expected a JSON object, found an empty line", source=source, line=empty)
        if not line.strip():
            empty = number  # fine if it turns out to be the last
            continue
        if len(line) > MAX_BYTES:
            raise InputError(f"expected a line of at most {MAX_BYTES} bytes", source=source, line=number)
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise InputError("expected UTF-8 text", source=source, line=number) from None
        yield number, parse_json(text, source=source, line=number)


def _workflow(name: str, row: WorkflowRow, header: HeaderRow) -> Workflow:
    field = f"workflows.{name}.stages"
    stages = [
        StageSpec(stage, spec.agent, tuple(spec.after), _profile_of(spec.profile))
        for stage, spec in row.stages.items()
    ]
    workflow = workflow_of(name, stages, field)
    for spec in stages:
        if spec.agent not in header.agents:
            raise InputError(f"unknown agent {spec.agent!r}", field=f"{field}.{spec.name}.agent")
    return workflow


def _profile_of(row: ProfileRow | None) -> StageProfile | None:
    return None if row is None else StageProfile(row.rounds, row.input_tokens, row.max_new_tokens)


def _task(row: TaskRow, workflows: Mapping[str, Workflow]) -> TaskSpec:
    workflow = workflows.get(row.workflow)
    if workflow is None:
        raise InputError(f"unknown workflow {row.workflow!r}", field="workflow")
    for stage in row.stages:
        if stage not in workflow.dag.index:
            raise InputError(f"unknown stage of workflow {workflow.name!r}", field=f"stages.{stage}")
    for stage in workflow.dag.names:
        if stage not in row.stages:
            raise InputError("this stage of the workflow is missing", field=f"stages.{stage}")
    for stage, spec in row.stages.items():
        for k, one in enumerate(spec.rounds):
            _check_round(one, f"stages.{stage}.rounds.{k}")
    rounds = tuple(tuple(row.stages[stage].rounds) for stage in workflow.dag.names)
    return TaskSpec(row.task, workflow, row.arrival_s, rounds)


def _check_round(one: Round, field: str) -> None:
    if one.max_new_tokens < one.output_tokens:
        expected = f"expected at least output_tokens ({one.output_tokens}), found {one.max_new_tokens}"
        raise InputError(expected, field=f"{field}.max_new_tokens")
    if one.reused_tokens > one.input_tokens:
        expected = f"expected at most input_tokens ({one.input_tokens}), found {one.reused_tokens}"
        raise InputError(expected, field=f"{field}.reused_tokens")


def _stages(workflow: Workflow) -> dict[str, Any]:
    return {
        spec.name: {"agent": spec.agent, "after": list(spec.after)}
        | ({"profile": spec.profile._asdict()} if spec.profile else {})
        for spec in workflow.stages
    }


def _round(spec: Round) -> dict[str, Any]:
    row = {name: getattr(spec, name) for name in ROUND}
    return {name: value for name, value in row.items() if value or name not in OPTIONAL}


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"
