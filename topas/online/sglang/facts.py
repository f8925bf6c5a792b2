"""What clients tell of a request, read from ``custom_params`` and the routing key.

Whatever a client sends, reading it never raises: facts that are wrong in any part count as no facts at all,
with one line that says why. The keys and limits are those of :mod:`topas.wire`.

Without facts of our own, names that other systems use are understood; each fact is taken from the first
source that has it:

1. OpenTelemetry's attributes for generative AI, as keys of ``custom_params``;
2. ``nvext.agent_context`` of NVIDIA Dynamo, there too (``nvext.agent_hints`` names neither task nor agent);
3. the session headers of Dynamo and of coding agents, as keys there (in any case) or as HTTP headers, which
   :func:`pack_headers` puts into the routing key;
4. a routing key as such, as the name of the task.

A session is one chain of reasoning and tool calls, so each session is a task, also one that another session
started: its ``final`` ends it alone. Ids that are new with every spawn are never taken for an agent or a
stage, of which histories are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from topas.errors import InputError
from topas.schema import parse_json
from topas.wire import (
    KEY,
    MAX_BYTES,
    MAX_NAME,
    StageSpec,
    check_facts,
    check_flag,
    check_name,
    shown,
)
from topas.workflow import Workflow, workflow_of

MAX_LINE = 200
"""Longest line that says what was wrong."""

MAX_KEYS = 64
"""Most keys of ``custom_params`` among which other systems' names are looked for."""

MAX_KEY = 64
"""Longest key that is looked at: all names known here are shorter."""

MAX_PACKED = 8192
"""Longest packed routing key: two names at most, each character at most twelve in JSON."""

PACKED = "topas-facts/1:"
"""How a routing key made by :func:`pack_headers` begins."""

SESSIONS = {
    "x-dynamo-session-id": "task",
    "x-claude-code-agent-id": "task",
    "x-claude-code-session-id": "task",
    "x-session-id": "task",
    "x-claude-code-agent-type": "agent",
    "x-dynamo-session-final": "final",
}
"""Headers of sessions and the facts that they are. Of several that name the task the first one counts: the
one that is written for it, then the id of a spawned agent, then that of the session that spawned it."""

HEADERS = tuple(SESSIONS)
"""HTTP headers worth forwarding. A parent session's header is accepted, and says nothing that is used."""

PACKABLE = ("task", "agent", "final")
"""Facts that a packed routing key may hold."""

OTEL = {
    "gen_ai.workflow.name": "workflow",
    "gen_ai.conversation.id": "task",
    "gen_ai.agent.name": "agent",
    "gen_ai.operation.name": "stage",
}
"""OpenTelemetry's attribute names, and the facts that they are."""

OTEL_OPERATIONS = frozenset(
    ("chat", "create_agent", "embeddings", "execute_tool", "generate_content", "invoke_agent",
     "invoke_workflow", "plan", "retrieval", "text_completion")
)  # fmt: skip
"""OpenTelemetry's own operation names: the kind of a call, not a stage of a workflow."""

CONTEXT = {
    "session_type_id": "workflow",
    "trajectory_id": "task",
    "session_id": "task",
    "session_final": "final",
}
"""Fields of Dynamo's ``agent_context`` and the facts that they are; of two for the task the first counts."""

TRUE = frozenset(("1", "on", "true", "yes"))
FALSE = frozenset(("0", "false", "no", "off"))

Claim = tuple[str, str, object]
"""A fact, where it stands, and its value, not yet checked."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a client said of a request; None where it said nothing.

    ``final`` says whether this is the last request of the stage, ``prefix_tokens`` how long the agent's
    static prefix is. Equal DAGs under one workflow name are one object.
    """

    workflow: str | None = None
    task: str | None = None
    stage: str | None = None
    agent: str | None = None
    final: bool | None = None
    prefix_tokens: int | None = None
    dag: Workflow | None = None


NO_FACTS = RequestFacts()


def read_facts(custom_params: object, routing_key: object = None) -> tuple[RequestFacts, str | None]:
    """Return a request's facts, and one line that says what was wrong with them, if anything was.

    Parameters
    ----------
    custom_params : the request's ``custom_params``: an object or None, from a client that means well.
    routing_key : the request's routing key, as it came or from :func:`pack_headers`.
    """
    try:
        return _read(custom_params, routing_key), None
    except InputError as error:
        return NO_FACTS, _line(str(error))
    except Exception as error:  # noqa: BLE001  a raise in the scheduler would end the server for all
        return NO_FACTS, _line(f"cannot be read: {type(error).__name__}")


def pack_headers(headers: Mapping[str, str]) -> str | None:
    """Return the routing key that carries what known HTTP headers say, None if there is none.

    It can say no more than a plain ``custom_params.topas`` could. A value that is too long or not printable
    is passed on cut, for :func:`read_facts` to refuse.

    Parameters
    ----------
    headers : HTTP headers; names in any case, of a name that comes twice the first.
    """
    found: dict[str, object] = {}
    for name, value in headers.items():
        key = name.lower()
        if key in HEADERS and value.strip():
            found.setdefault(key, value.strip()[: MAX_NAME + 1])
    facts: dict[str, object] = {}
    for fact, _, said in _of_sessions(found):
        facts.setdefault(fact, said)
    return PACKED + json.dumps(facts, separators=(",", ":")) if facts else None


def flat_params(custom_params: object) -> object:
    """Return ``custom_params`` in the form that SGLang can carry between its processes.

    SGLang's message format knows objects and lists of plain values, and the scheduler ends with an error when
    something deeper arrives. A value that is nested more deeply becomes its JSON text here, which
    :func:`read_facts` reads alike, or None if it has none. The same object comes back if all is flat.
    """
    if type(custom_params) is not dict:
        return custom_params
    deep = {key: _text(value) for key, value in custom_params.items() if _is_deep(value)}
    return custom_params | deep if deep else custom_params


def _is_deep(value: object) -> bool:
    inner: Iterable[object] = ()
    if type(value) is dict:
        inner = value.values()
    elif type(value) is list:
        inner = value
    return any(type(item) in (dict, list) for item in inner)


def _text(value: object) -> str | None:
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return None


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_LINE])


def _read(custom_params: object, routing_key: object) -> RequestFacts:
    if custom_params is not None and type(custom_params) is not dict:
        raise InputError(f"expected an object, found {shown(custom_params)}", field="custom_params")
    params: dict[object, object] = custom_params or {}
    if params.get(KEY) is not None:
        return _facts(_object(params[KEY], KEY))
    known = _lowered(params)
    claims = [*_of_otel(known), *_of_dynamo(known), *_of_sessions(known)]
    if type(routing_key) is str and routing_key.startswith(PACKED):
        claims += _of_packed(routing_key)
    elif routing_key is not None and routing_key != "":
        claims.append(("task", "routing key", routing_key))
    found: dict[str, str | bool] = {}
    for fact, field, value in claims:
        if fact not in found:
            found[fact] = check_flag(value, field) if fact == "final" else check_name(value, field)
    return RequestFacts(**found)  # type: ignore[arg-type]  # checked by name


def _facts(value: dict[str, Any]) -> RequestFacts:
    stages = check_facts(value)
    dag = None if stages is None else _workflow(value.get("workflow") or "", stages)
    agent = value.get("agent")
    if agent is None and dag is not None and value.get("stage") is not None:
        agent = dag.agents[dag.dag.index[value["stage"]]]
    return RequestFacts(
        workflow=value.get("workflow"),
        task=value.get("task"),
        stage=value.get("stage"),
        agent=agent,
        final=value.get("final"),
        prefix_tokens=value.get("prefix_tokens"),
        dag=dag,
    )


@lru_cache(maxsize=1024)
def _workflow(name: str, stages: tuple[StageSpec, ...]) -> Workflow:
    """Build a DAG once for all requests that bring it along."""
    if len(json.dumps(stages, separators=(",", ":"), ensure_ascii=False)) > MAX_BYTES:
        raise InputError(f"expected at most {MAX_BYTES} bytes of JSON", field=f"{KEY}.dag")
    return workflow_of(name, stages, f"{KEY}.dag")


def _object(value: object, field: str) -> dict[str, Any]:
    """Return an object, also from its JSON text. Its keys are still to be checked."""
    if type(value) is str:
        try:
            value = parse_json(value, max_bytes=MAX_BYTES)
        except InputError as error:
            raise InputError(error.expected, field=field) from None
    if type(value) is not dict:
        raise InputError(f"expected an object or its JSON text, found {shown(value)}", field=field)
    return value


def _lowered(params: dict[object, object]) -> dict[str, object]:
    """Return what stands under short text keys, in lower case."""
    if len(params) > MAX_KEYS:
        raise InputError(f"expected at most {MAX_KEYS} keys, found {len(params)}", field="custom_params")
    known: dict[str, object] = {}
    for key, value in params.items():
        if type(key) is str and len(key) <= MAX_KEY and value is not None:
            known.setdefault(key.lower(), value)
    return known


def _of_otel(known: dict[str, object]) -> Iterator[Claim]:
    for name, fact in OTEL.items():
        value = known.get(name)
        kind_only = fact == "stage" and type(value) is str and value in OTEL_OPERATIONS
        if value is not None and not kind_only:
            yield fact, name, value


def _of_dynamo(known: dict[str, object]) -> Iterator[Claim]:
    if "nvext" not in known:
        return
    context = _object(known["nvext"], "nvext").get("agent_context")
    if context is None:
        return
    context = _object(context, "nvext.agent_context")
    for name, fact in CONTEXT.items():
        if context.get(name) is not None:
            yield fact, f"nvext.agent_context.{name}", context[name]


def _of_sessions(known: Mapping[str, object]) -> Iterator[Claim]:
    """Yield what the headers of sessions say, by their lower-case names."""
    for name, fact in SESSIONS.items():
        value = known.get(name)
        if value is None:
            continue
        if fact == "final" and type(value) is str:
            word = value.lower()
            yield fact, name, True if word in TRUE else False if word in FALSE else value
        else:
            yield fact, name, value


def _of_packed(routing_key: str) -> Iterator[Claim]:
    if len(routing_key) > MAX_PACKED:
        raise InputError(f"expected at most {MAX_PACKED} characters", field="routing key")
    for key, value in _object(routing_key[len(PACKED) :], "routing key").items():
        if key not in PACKABLE:
            raise InputError(f"unknown key {shown(key)}", field="routing key")
        yield key, f"routing key.{key}", value
