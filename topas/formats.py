"""The event and decision formats: ``topas-event/1`` and ``topas-decision/1`` (docs/formats.md).

Reading is strict: a missing, unknown or ill-typed field, a wrong unit, a cycle or an unknown name is
refused with the field named. Samples that many stages share may stand once, in the optional table
``samples``, and be named in ``residual_s``.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from topas.cost import Cost
from topas.decision import Decision, Terms
from topas.errors import InputError
from topas.event import Event, Outlook, Request, TaskState
from topas.files import read_file
from topas.params import Params, RunParams
from topas.problem import age_weight
from topas.residual import Residual, residual_of_seconds
from topas.schema import (
    MAX_BYTES,
    MAX_S,
    STRICT,
    AgentRow,
    Count,
    Name,
    Real,
    Seconds,
    Strict,
    parse_json,
    validate,
)
from topas.units import to_ns, to_s
from topas.workflow import dag_of

EVENT_FORMAT = "topas-event/1"
DECISION_FORMAT = "topas-decision/1"
MAX_AGED_S = 1e8
"""Largest sum of a task's residuals times its age weight, for the same reason."""
MAX_TOTAL_S = 4e9
"""Largest total of these over all tasks."""
MAX_LENGTH = 10_000_000
"""Longest output of a request that is looked ahead to."""
MAX_REQUESTS = 100_000
"""Most requests of one execution of a stage."""

REQUIRED = ("beta", "rho", "age_scale_s", "M", "K", "swap_s_per_token", "decode_s_per_token")
"""Parameters that an event must have."""

RequestId = Annotated[str, Field(min_length=1, max_length=500)]
Samples = Annotated[list[Seconds], Field(min_length=1)]


class _Stage(Strict):
    after: list[Name]
    residual_s: Samples | Name
    outlook: Name | None = None
    requests: Count = 0


class _Task(Strict):
    arrival_s: Annotated[float, Field(ge=0)]
    attained_s: Annotated[float, Field(ge=0)] = 0.0
    stages: dict[Name, _Stage]


class _Waiting(Strict):
    id: RequestId
    task: Name
    stage: Name
    agent: Name
    reserve_tokens: Count
    service_s: Seconds
    arrival_s: Annotated[float, Field(ge=0)] | None = None
    cached_tokens: Count | None = None
    input_tokens: Count = 0
    max_new_tokens: Count = 0
    passed_tokens: Count = 0
    preemptions: Count = 0


class _Outlook(Strict):
    agent: Name
    input_tokens: Count
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_LENGTH)]
    outputs: Annotated[list[Annotated[int, Field(ge=1, le=MAX_LENGTH)]], Field(min_length=1)]
    counts: Annotated[list[Annotated[int, Field(ge=1, le=MAX_REQUESTS)]], Field(min_length=1)]
    reused_tokens: Count = 0


class _Running(_Waiting):
    generated_tokens: Count
    credit_s: Seconds


class _Costs(Strict):
    """What steps take, by the names of a profile, and three rules of the engine."""

    prefill_base_s: Seconds = 0.0
    prefill_s_per_token: Seconds = 0.0
    prefill_s_per_seq: Seconds = 0.0
    prefill_s_per_cached_token: Seconds = 0.0
    prefill_s_per_pair: Seconds = 0.0
    prefill_s_per_cached_pair: Seconds = 0.0
    decode_base_s: Seconds = 0.0
    decode_s_per_seq: Seconds = 0.0
    decode_s_per_kv_token: Seconds = 0.0
    request_s: Seconds = 0.0
    keeps: bool = False
    host: bool = True
    shared: bool = True


@dataclass(frozen=True, slots=True)
class _Params(RunParams):
    """The times that the score knows stand by themselves, all other ones in ``costs``."""

    __pydantic_config__ = STRICT

    swap_s_per_token: Annotated[Real, Field(ge=0)] = 0.0
    decode_s_per_token: Annotated[Real, Field(ge=0)] = 0.0
    costs: _Costs | None = None


class _Event(Strict):
    format: Literal["topas-event/1"]
    time_s: Annotated[float, Field(ge=0)]
    budget_tokens: Count
    params: _Params
    agents: dict[Name, AgentRow]
    resident: list[Name]
    reuse_counts: dict[Name, Count]
    samples: dict[Name, Samples] = Field(default_factory=dict)
    outlooks: dict[Name, _Outlook] = Field(default_factory=dict)
    tasks: dict[Name, _Task]
    waiting: list[_Waiting]
    running: list[_Running]


def read_event(path: str | Path) -> Event:
    """Read an event file.

    Raises
    ------
    InputError
        naming the file, and the field that is wrong.
    """
    return event_of(parse_json(read_file(path), source=str(path)), source=str(path))


def event_of(value: object, *, source: str | None = None, line: int | None = None) -> Event:
    """Return the event that a JSON value describes; raises InputError as :func:`read_event` does."""
    raw = validate(_Event, value, source=source, line=line)
    given = cast("dict[str, dict[str, object]]", value)["params"]
    for name in REQUIRED:
        if name not in given:
            raise InputError("field required", source=source, line=line, field=f"params.{name}")
    try:
        return _event(raw)
    except InputError as error:
        raise error.at(source=source, line=line) from None


def _event(raw: _Event) -> Event:
    agents = {name: agent.prefix_tokens for name, agent in raw.agents.items()}
    for k, name in enumerate(raw.resident):
        _known(name, agents, "agent", f"resident.{k}")
    if len(set(raw.resident)) != len(raw.resident):
        raise InputError("an agent is named twice", field="resident")
    for name in raw.reuse_counts:
        _known(name, agents, "agent", f"reuse_counts.{name}")
    resident = frozenset(raw.resident)
    outlooks = {name: _outlook(outlook) for name, outlook in raw.outlooks.items()}
    tasks = {name: _task(name, task, raw.samples, outlooks) for name, task in raw.tasks.items()}
    seen: set[str] = set()
    requests: dict[str, list[Request]] = {}
    sides: list[tuple[str, list[_Waiting]]] = [("waiting", raw.waiting), ("running", [*raw.running])]
    for side, listed in sides:
        requests[side] = [
            _request(f"{side}.{k}", item, agents, tasks, resident, seen) for k, item in enumerate(listed)
        ]
    for k, request in enumerate(requests["running"]):
        if request.agent not in resident:
            raise InputError(f"the prefix of {request.agent!r} is not resident", field=f"running.{k}.agent")
    _check_costs(raw, agents, tasks, requests["running"])
    return Event(
        time_s=raw.time_s,
        budget_tokens=raw.budget_tokens,
        agents=agents,
        tasks=tasks,
        waiting=tuple(requests["waiting"]),
        running=tuple(requests["running"]),
        resident=resident,
        reuse_counts=dict(raw.reuse_counts),
        params=_params(raw.params),
    )


def _check_costs(
    raw: _Event, agents: Mapping[str, int], tasks: Mapping[str, TaskState], running: list[Request]
) -> None:
    """Refuse numbers whose products leave the range of integer nanoseconds."""
    params = raw.params
    total_s = 0.0
    for name, task in tasks.items():
        work_s = sum(to_s(int(residual.values_ns[-1])) for residual in task.residuals)
        weight = age_weight(raw.time_s - task.arrival_s, params.rho, params.age_scale_s)
        if not (weight <= MAX_AGED_S and work_s * weight <= MAX_AGED_S):
            raise InputError(
                f"expected residuals worth at most {MAX_AGED_S:g} s with age", field=f"tasks.{name}"
            )
        total_s += work_s * weight
        if total_s > MAX_TOTAL_S:
            raise InputError(
                f"expected all tasks together to be worth at most {MAX_TOTAL_S:g} s", field=f"tasks.{name}"
            )
    for name, tokens in agents.items():
        load_s = tokens * params.swap_s_per_token
        if load_s > MAX_S or params.beta * raw.reuse_counts.get(name, 0) * load_s > MAX_S:
            raise InputError(
                f"expected a prefix whose move and reuse are worth at most {MAX_S:g} s",
                field=f"agents.{name}.prefix_tokens",
            )
    for k, request in enumerate(running):
        if request.generated_tokens * params.decode_s_per_token > MAX_S:
            raise InputError(
                f"expected tokens whose decode takes at most {MAX_S:g} s",
                field=f"running.{k}.generated_tokens",
            )


def _known(name: str, known: Mapping[str, object], kind: str, field: str) -> None:
    if name not in known:
        raise InputError(f"unknown {kind} {name!r}", field=field)


def _params(raw: _Params) -> Params:
    costs = _Costs() if raw.costs is None else raw.costs
    return Params(
        **{field.name: getattr(raw, field.name) for field in fields(RunParams)},
        cost=_cost(raw),
        keeps_output=costs.keeps,
        host_cache=costs.host,
        reads_shared_once=costs.shared,
    )


def _cost(raw: _Params) -> Cost:
    """Return what work takes: the score's times as they stand, ``costs`` in proportion to its decode step."""
    swap_s, step_s = raw.swap_s_per_token, raw.decode_s_per_token
    if raw.costs is None:
        return Cost(decode_base_s=step_s, swap_s_per_token=swap_s)
    terms = raw.costs.model_dump(include=set(Cost._fields))
    cost = Cost(**terms, swap_s_per_token=swap_s)
    if math.isclose(cost.decode_s_per_token, step_s, rel_tol=1e-9):
        return cost
    if not cost.decode_s_per_token or not step_s:
        raise InputError(
            f"expected {cost.decode_s_per_token:g}, the time of a decode step of costs",
            field="params.decode_s_per_token",
        )
    return cost.scaled(step_s / cost.decode_s_per_token)._replace(swap_s_per_token=swap_s)


def _outlook(raw: _Outlook) -> Outlook:
    return Outlook(
        raw.agent,
        raw.input_tokens,
        raw.max_new_tokens,
        tuple(sorted(raw.outputs)),
        tuple(sorted(raw.counts)),
        raw.reused_tokens,
    )


def _task(
    name: str, raw: _Task, samples: Mapping[str, list[float]], outlooks: Mapping[str, Outlook]
) -> TaskState:
    field = f"tasks.{name}.stages"
    dag = dag_of({stage: entry.after for stage, entry in raw.stages.items()}, field)
    residuals = []
    for stage in dag.names:
        given = raw.stages[stage].residual_s
        if isinstance(given, str):
            _known(given, samples, "entry of samples", f"{field}.{stage}.residual_s")
            given = samples[given]
        residuals.append(residual_of_seconds(tuple(given)))
    stages = [raw.stages[stage] for stage in dag.names]
    named = [(stage.outlook, dag.names[k]) for k, stage in enumerate(stages)]
    for outlook, stage in named:
        if outlook is not None:
            _known(outlook, outlooks, "entry of outlooks", f"{field}.{stage}.outlook")
    seen = tuple(outlooks[outlook] for outlook, _ in named if outlook is not None)
    if seen and len(seen) != len(dag):
        raise InputError("expected an outlook for every stage, or for none", field=field)
    requests = tuple(stage.requests for stage in stages) if seen else ()
    return TaskState(raw.arrival_s, dag, tuple(residuals), raw.attained_s, seen, requests)


def _request(  # noqa: PLR0913  what a request refers to
    field: str,
    raw: _Waiting,
    agents: Mapping[str, int],
    tasks: Mapping[str, TaskState],
    resident: frozenset[str],
    seen: set[str],
) -> Request:
    if raw.id in seen:
        raise InputError(f"request id {raw.id!r} is used twice", field=f"{field}.id")
    seen.add(raw.id)
    _known(raw.agent, agents, "agent", f"{field}.agent")
    _known(raw.task, tasks, "task", f"{field}.task")
    task = tasks[raw.task]
    _known(raw.stage, task.dag.index, "stage", f"{field}.stage")
    cached = raw.cached_tokens
    if cached is None:
        cached = agents[raw.agent] if raw.agent in resident else 0
    return Request(
        id=raw.id,
        task=raw.task,
        stage=raw.stage,
        agent=raw.agent,
        reserve_tokens=raw.reserve_tokens,
        service_s=raw.service_s,
        arrival_s=task.arrival_s if raw.arrival_s is None else raw.arrival_s,
        cached_tokens=cached,
        input_tokens=raw.input_tokens,
        max_new_tokens=raw.max_new_tokens,
        passed_tokens=raw.passed_tokens,
        preemptions=raw.preemptions,
        generated_tokens=raw.generated_tokens if isinstance(raw, _Running) else 0,
        credit_s=raw.credit_s if isinstance(raw, _Running) else 0.0,
    )


def event_json(event: Event) -> dict[str, Any]:
    """Return the JSON value of an event; :func:`event_of` gives back an equal event."""
    names: dict[bytes, str] = {}
    samples: dict[str, list[float]] = {}

    def residual(value: Residual) -> str | list[float]:
        """Name samples by their content, so that equal events give equal bytes."""
        if len(value.samples_ns) == 1:
            return [to_s(int(value.samples_ns[0]))]
        content = value.samples_ns.tobytes()
        if content not in names:
            names[content] = f"s{len(names)}"
            samples[names[content]] = [to_s(int(x)) for x in value.samples_ns]
        return names[content]

    outlooks: dict[Outlook, str] = {}

    def stage_json(task: TaskState, k: int) -> dict[str, Any]:
        value: dict[str, Any] = {
            "after": [task.dag.names[p] for p in task.dag.before[k]],
            "residual_s": residual(task.residuals[k]),
        }
        if task.outlooks:
            value["outlook"] = outlooks.setdefault(task.outlooks[k], f"o{len(outlooks)}")
            value["requests"] = task.requests[k]
        return value

    tasks = {
        name: {
            "arrival_s": task.arrival_s,
            "attained_s": task.attained_s,
            "stages": {stage: stage_json(task, k) for k, stage in enumerate(task.dag.names)},
        }
        for name, task in sorted(event.tasks.items())
    }
    return {
        "format": EVENT_FORMAT,
        "time_s": event.time_s,
        "budget_tokens": event.budget_tokens,
        "params": _params_json(event.params),
        "agents": {name: {"prefix_tokens": tokens} for name, tokens in sorted(event.agents.items())},
        "resident": sorted(event.resident),
        "reuse_counts": dict(sorted(event.reuse_counts.items())),
        "samples": samples,
        **(
            {"outlooks": {name: _outlook_json(outlook) for outlook, name in outlooks.items()}}
            if outlooks
            else {}
        ),
        "tasks": tasks,
        "waiting": [_request_json(request, running=False) for request in event.waiting],
        "running": [_request_json(request, running=True) for request in event.running],
    }


def _outlook_json(outlook: Outlook) -> dict[str, Any]:
    return {**asdict(outlook), "outputs": list(outlook.outputs), "counts": list(outlook.counts)}


def _params_json(params: Params) -> dict[str, Any]:
    cost = params.cost
    value = {name: known for name, known in asdict(params).items() if name in _Params.__dataclass_fields__}
    value |= {"swap_s_per_token": cost.swap_s_per_token, "decode_s_per_token": cost.decode_s_per_token}
    costs = _Costs(
        **{name: term for name, term in cost._asdict().items() if name in _Costs.model_fields},
        keeps=params.keeps_output,
        host=params.host_cache,
        shared=params.reads_shared_once,
    )
    if costs == _Costs(decode_base_s=cost.decode_s_per_token):
        return value
    return value | {"costs": costs.model_dump(exclude_defaults=True)}


def _request_json(request: Request, *, running: bool) -> dict[str, Any]:
    model = _Running if running else _Waiting
    return {name: getattr(request, name) for name in model.model_fields}


def decision_json(decision: Decision) -> dict[str, Any]:
    """Return the JSON value of a decision; all times in seconds."""
    terms = decision.terms
    return {
        "format": DECISION_FORMAT,
        "resident": list(decision.resident),
        "admit": list(decision.admit),
        "preempt": list(decision.preempt),
        "score_s": terms.score_s,
        "terms": {
            "admit_s": to_s(terms.admit_ns),
            "move_s": to_s(terms.move_ns),
            "redo_s": to_s(terms.redo_ns),
            "revoke_s": to_s(terms.revoke_ns),
            "reuse_s": to_s(terms.reuse_ns),
        },
    }


class _Terms(Strict):
    admit_s: float
    move_s: float
    redo_s: float
    revoke_s: float
    reuse_s: float


class _Decision(Strict):
    format: Literal["topas-decision/1"]
    resident: list[Name]
    admit: list[RequestId]
    preempt: list[RequestId]
    score_s: float
    terms: _Terms


def decision_of_json(value: object, *, source: str | None = None, line: int | None = None) -> Decision:
    """Return the decision that a JSON value describes (without credits, which the format does not carry)."""
    raw = validate(_Decision, value, source=source, line=line)
    terms = raw.terms
    return Decision(
        tuple(raw.resident),
        tuple(raw.admit),
        tuple(raw.preempt),
        Terms(
            *(to_ns(x) for x in (terms.admit_s, terms.move_s, terms.redo_s, terms.revoke_s, terms.reuse_s))
        ),
    )


def log_line(event: Event, decision: Decision) -> str:
    """Return one line of an event log: the event and the decision made on it."""
    entry = {"event": event_json(event), "decision": decision_json(decision)}
    return json.dumps(entry, separators=(",", ":"))


class _Logged(Strict):
    event: dict[str, Any]
    decision: dict[str, Any]
    engine: dict[str, Any] | None = None  # what a server observed; not read


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event as a file holds it; ``line`` and the recorded ``decision`` only if the file is a log."""

    event: Event
    line: int | None = None
    decision: Decision | None = None


def read_events(path: str | Path) -> Iterator[LoggedEvent]:
    """Yield the one event of an event file, or all of an event log, line by line.

    Raises
    ------
    InputError
        naming the file, the line of a log, and the field that is wrong.
    """
    source = str(path)
    try:
        with Path(path).open("rb") as stream:
            first = stream.readline(MAX_BYTES + 2)
            if not _is_log(first):
                rest = b"" if len(first) > MAX_BYTES else stream.read(MAX_BYTES + 1)
                yield LoggedEvent(event_of(parse_json(first + rest, source=source), source=source))
                return
            lines = itertools.chain([first], iter(partial(stream.readline, MAX_BYTES + 2), b""))
            for number, line in enumerate(lines, start=1):
                yield _logged(line.removesuffix(b"\n"), source, number)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror}", source=source) from None


def _is_log(first: bytes) -> bool:
    """Return whether a file's first line is one of an event log: a whole object that is no event."""
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "event" in value


def _logged(line: bytes, source: str, number: int) -> LoggedEvent:
    if not line.strip():
        raise InputError(
            "expected an event and its decision, found an empty line", source=source, line=number
        )
    raw = validate(_Logged, parse_json(line, source=source, line=number), source=source, line=number)
    part = "event"
    try:
        event = event_of(raw.event, source=source, line=number)
        part = "decision"
        return LoggedEvent(event, number, decision_of_json(raw.decision, source=source, line=number))
    except InputError as error:
        field = f"{part}.{error.field}" if error.field else part
        raise InputError(error.expected, source=source, line=number, field=field) from None
