"""What a client may say of a request: keys, limits and checks, the same at the client and in the server.

The rules stand here once. :mod:`topas.client` applies them before it sends,
:mod:`topas.online.sglang.facts` to what arrives. Only the standard library is needed.

A fact is checked by exact type: over JSON nothing else arrives, and no code of a foreign class can run.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from topas.errors import InputError

KEY = "topas"
"""The key of ``custom_params`` under which the facts stand."""

NAMES = ("workflow", "task", "stage", "agent")
"""Facts that are names."""

KEYS = (*NAMES, "final", "prefix_tokens", "dag")
"""All facts."""

STAGE_KEYS = ("agent", "after", "rounds", "input_tokens", "max_new_tokens")
"""What may be said of a stage of a DAG."""

MAX_BYTES = 64 * 1024
"""Longest JSON text of the facts of one request."""

MAX_NAME = 200
"""Longest name, in characters."""

MAX_TOKENS = 1_000_000
"""Longest prefix, input or output of one request."""

MAX_STAGES = 64
MAX_EDGES = 512
MAX_ROUNDS = 1000

MAX_WORK_TOKENS = 10_000_000
"""Most tokens that all requests of one DAG may be said to need: sums of times then stay within 64 bits."""

MAX_SHOWN = 40
"""Longest piece of a wrong value that an error shows."""


class StageProfile(NamedTuple):
    """What is known of a stage before it ever ran: the profiled execution of paper section IV-B."""

    rounds: int
    input_tokens: int
    max_new_tokens: int


class StageSpec(NamedTuple):
    """A stage of a workflow; ``profile`` is None if nothing was said of it.

    It is hashable, so that equal workflows can be built once.
    """

    name: str
    agent: str
    after: tuple[str, ...]
    profile: StageProfile | None = None


def shown(value: object) -> str:
    """Return a short, printable form of a wrong value, whatever it is."""
    kind = type(value)
    if kind in (bool, float) or value is None:
        return repr(value)
    if kind is int:
        return repr(value) if -(10**18) < value < 10**18 else "a huge number"  # type: ignore[operator]
    if kind is str:
        cut = ascii(value[: MAX_SHOWN + 1])  # type: ignore[index]
        return cut if len(cut) <= MAX_SHOWN else cut[:MAX_SHOWN] + "..."
    if kind is dict:
        return "an object"
    return "a list" if kind is list else "something else"


def check_name(value: object, field: str) -> str:
    """Return a name: 1 to 200 printable characters.

    Raises
    ------
    InputError
        if it is anything else.
    """
    if type(value) is not str:
        raise InputError(f"expected a string, found {shown(value)}", field=field)
    if not 0 < len(value) <= MAX_NAME:
        raise InputError(f"expected 1 to {MAX_NAME} characters, found {len(value)}", field=field)
    if not value.isprintable():
        raise InputError(f"expected printable characters, found {shown(value)}", field=field)
    return value


def check_flag(value: object, field: str) -> bool:
    """Return a truth value.

    Raises
    ------
    InputError
        if it is anything else.
    """
    if type(value) is not bool:
        raise InputError(f"expected true or false, found {shown(value)}", field=field)
    return value


def _check_count(value: object, field: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InputError(f"expected an integer from {least} to {most}, found {shown(value)}", field=field)
    return value


def _refuse_unknown(value: dict[object, object], known: tuple[str, ...], field: str) -> None:
    for key in value:
        if type(key) is not str or key not in known:
            where = f"{field}." if field else ""
            expected = f"unknown key; known are {', '.join(known)}"
            raise InputError(expected, field=f"{where}{key if _plain(key) else shown(key)}")


def _plain(key: object) -> bool:
    return type(key) is str and 0 < len(key) <= MAX_SHOWN and key.isprintable()


def check_facts(value: object, field: str = KEY) -> tuple[StageSpec, ...] | None:
    """Check the facts of one request, the DAG's shape included, and return the stages of its DAG.

    A key whose value is None counts as not given. What :func:`order_of` refuses is not checked here,
    so that it can be remembered for a DAG that comes with every request.

    Raises
    ------
    InputError
        naming the first wrong field and what was expected there.
    """
    if type(value) is not dict:
        raise InputError(f"expected an object, found {shown(value)}", field=field)
    _refuse_unknown(value, KEYS, field)
    for key in NAMES:
        if value.get(key) is not None:
            check_name(value[key], f"{field}.{key}")
    if value.get("final") is not None:
        check_flag(value["final"], f"{field}.final")
    if value.get("prefix_tokens") is not None:
        _check_count(value["prefix_tokens"], f"{field}.prefix_tokens", 0, MAX_TOKENS)
    if value.get("dag") is None:
        return None
    dag = value["dag"]
    if type(dag) is dict and not 0 < len(dag) <= MAX_STAGES:
        raise InputError(f"expected 1 to {MAX_STAGES} stages, found {len(dag)}", field=f"{field}.dag")
    stages = check_stages(dag, f"{field}.dag")
    _refuse_much(stages, f"{field}.dag")
    _check_place(value.get("stage"), value.get("agent"), stages, field)
    return stages


def _check_place(stage: object, agent: object, stages: tuple[StageSpec, ...], field: str) -> None:
    """Refuse a stage that the DAG lacks, and an agent that is not the stage's one."""
    if stage is None:
        return
    owner = next((spec.agent for spec in stages if spec.name == stage), None)
    if owner is None:
        raise InputError(f"expected a stage of the DAG, found {shown(stage)}", field=f"{field}.stage")
    if agent is not None and agent != owner:
        expected = f"expected the stage's agent {shown(owner)}, found {shown(agent)}"
        raise InputError(expected, field=f"{field}.agent")


def check_stages(dag: object, field: str) -> tuple[StageSpec, ...]:
    """Check stages by name, each with ``agent`` and perhaps more of ``STAGE_KEYS``.

    Raises
    ------
    InputError
        naming the first wrong field and what was expected there.
    """
    if type(dag) is not dict:
        raise InputError(f"expected an object, found {shown(dag)}", field=field)
    return tuple(
        _stage(check_name(name, f"{field}[{shown(name)}]"), value, f"{field}.{name}")
        for name, value in dag.items()
    )


def _refuse_much(stages: tuple[StageSpec, ...], field: str) -> None:
    if sum(len(spec.after) for spec in stages) > MAX_EDGES:
        raise InputError(f"expected at most {MAX_EDGES} edges", field=field)
    known = [spec.profile for spec in stages if spec.profile is not None]
    work = sum(profile.rounds * (profile.input_tokens + profile.max_new_tokens) for profile in known)
    if work > MAX_WORK_TOKENS:
        raise InputError(f"expected at most {MAX_WORK_TOKENS} tokens in all, found {work}", field=field)


def _stage(name: str, value: object, field: str) -> StageSpec:
    if type(value) is not dict:
        raise InputError(f"expected an object, found {shown(value)}", field=field)
    _refuse_unknown(value, STAGE_KEYS, field)
    agent = check_name(value.get("agent"), f"{field}.agent")
    after = value.get("after")
    after = [] if after is None else after
    if type(after) is not list:
        raise InputError(f"expected a list of stages, found {shown(after)}", field=f"{field}.after")
    if len(after) >= MAX_STAGES:
        raise InputError(
            f"expected fewer than {MAX_STAGES} stages, found {len(after)}", field=f"{field}.after"
        )
    before = tuple(check_name(other, f"{field}.after") for other in after)
    return StageSpec(name, agent, before, _profile(value, field))


def _profile(value: dict[object, object], field: str) -> StageProfile | None:
    given = {key: value[key] for key in STAGE_KEYS[2:] if value.get(key) is not None}
    if not given:
        return None
    limits = {"rounds": (1, MAX_ROUNDS), "input_tokens": (0, MAX_TOKENS), "max_new_tokens": (1, MAX_TOKENS)}
    counts = {key: _check_count(given[key], f"{field}.{key}", *limits[key]) for key in given}
    for key in ("input_tokens", "max_new_tokens"):
        if key not in counts:
            raise InputError(f"expected with {' and '.join(counts)}", field=f"{field}.{key}")
    return StageProfile(counts.get("rounds", 1), counts["input_tokens"], counts["max_new_tokens"])


def order_of(after: Mapping[str, Sequence[str]], field: str = f"{KEY}.dag") -> tuple[str, ...]:
    """Return the stages so that each stands behind all of ``after[stage]``, equals by name.

    Raises
    ------
    InputError
        if a predecessor is unknown or named twice, naming the stage, or if there is a cycle, showing it.
    """
    for name, before in after.items():
        for other in before:
            if other not in after:
                raise InputError(f"unknown stage {shown(other)}", field=f"{field}.{name}.after")
        if len(set(before)) != len(before):
            raise InputError("a predecessor is named twice", field=f"{field}.{name}.after")
    left = TopologicalSorter({name: after[name] for name in sorted(after)})
    try:
        left.prepare()
    except CycleError as error:
        cycle = " -> ".join(shown(name) for name in error.args[1][:5])
        raise InputError(f"stages form a cycle: {cycle}", field=field) from None
    order = []
    ready = list(left.get_ready())
    heapq.heapify(ready)
    while ready:
        order.append(heapq.heappop(ready))
        left.done(order[-1])
        for name in left.get_ready():
            heapq.heappush(ready, name)
    return tuple(order)
