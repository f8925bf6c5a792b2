"""The simulator's invariants, numbered as in docs/model.md; each raises SimulationError with the numbers."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from topas.decision import Decision
from topas.engine import state
from topas.engine.core import members
from topas.engine.state import CONTEXTS, PREFIXES, QUEUE, RUN, Setup, World
from topas.errors import SimulationError
from topas.event import Event
from topas.feasible import violations
from topas.residual import IntArray


def _fail(policy: str, time_s: float, number: int, what: str) -> NoReturn:
    raise SimulationError(f"I{number} under {policy} at {time_s:.6f} s: {what}")


def check_decision(policy: str, event: Event, decision: Decision) -> None:
    """I1: a decision is feasible on the event it was made on."""
    wrong = violations(event, decision)
    if wrong:
        _fail(policy, event.time_s, 1, "; ".join(wrong))


def check_state(policy: str, setup: Setup, world: World) -> None:
    """I2-I9: tokens and requests are conserved, and memory holds. Recounted from the records."""
    now = {name: world.now[name][0].item() for name in state.NOW.names or ()}

    def expect(number: int, what: str, counted: int, found: int) -> None:
        if counted != found:
            _fail(policy, now["now_s"], number, f"{what} is {counted}, but adds up to {found}")

    running = world.requests[_members(world, world.requests, RUN)]
    waiting = world.requests[_members(world, world.requests, QUEUE)]
    agents = now["agents"]
    nodes = world.nodes[: now["nodes"]]
    users = np.zeros(len(nodes), np.int64)
    for row in running:
        node = int(row["node"])
        while node >= 0:
            users[node] += 1
            node = int(nodes["parent"][node])
    if (users != nodes["users"]).any():
        wrong = np.flatnonzero(users != nodes["users"]).tolist()
        _fail(policy, now["now_s"], 2, f"leases of nodes {wrong} are not those of the running requests")
    generated = np.where(running["phase"] == state.DECODE, now["step"] - running["join_step"], 0)
    own = int((running["held"] + generated - running["shared"]).sum())
    leased = int(nodes["tokens"][nodes["users"] > 0].sum())
    expect(3, "KV in use", now["used"], leased + own)
    if now["used"] > setup.budget:
        _fail(policy, now["now_s"], 4, f"{now['used']} tokens in use exceed the budget {setup.budget}")
    reserved = int((running["input"] + running["most"]).sum())
    prefixes = int(nodes["tokens"][:agents][nodes["users"][:agents] > 0].sum())
    expect(5, "what is reserved", now["reserved"], reserved)
    expect(5, "prefixes in use", now["prefixes"], prefixes)
    if not setup.by_ratio and prefixes + reserved > setup.budget:
        _fail(policy, now["now_s"], 5, f"prefixes {prefixes} + reservations {reserved} exceed {setup.budget}")
    expect(6, "the queue", now["waiting"], len(waiting))
    expect(6, "the batch", now["running"], len(running))
    phases = world.requests["phase"]
    expect(6, "waiting requests", int((phases == state.WAITING).sum()), len(waiting))
    among = (phases > state.WAITING) & (phases < state.DONE)
    expect(6, "admitted requests", int(among.sum()), len(running))
    decoding = running[running["phase"] == state.DECODE]
    made = generated[running["phase"] == state.DECODE]
    left = decoding["most"] - decoding["generated"] - made
    expect(7, "requests that decode", now["decoding"], len(decoding))
    expect(7, "tokens left to them", now["max_left"], int(left.sum()))
    expect(
        7, "tokens left to those of known length", now["fixed_left"], int(left[decoding["fixed"] > 0].sum())
    )
    own_prefix = nodes["tokens"][world.stages["agent"][decoding["stage"]]]
    expect(8, "tokens attended to", now["attended"], int((own_prefix + decoding["held"] + made).sum()))
    _check_leftovers(policy, world, now)


def _check_leftovers(policy: str, world: World, now: dict[str, float]) -> None:
    """I9: leftovers are what is on the GPU unused, each younger than all that lies behind it."""
    listed = np.concatenate([_members(world, world.nodes, which) for which in (PREFIXES, CONTEXTS)])
    nodes = world.nodes[: int(now["nodes"])]
    idle = np.flatnonzero((nodes["ready_s"] >= 0) & (nodes["users"] == 0))
    if sorted(listed.tolist()) != idle.tolist() or nodes["tokens"][idle].sum() != now["leftover"]:
        _fail(
            policy,
            now["now_s"],
            9,
            f"leftovers {sorted(listed.tolist())} are not what is idle: {idle.tolist()}",
        )
    there = nodes["ready_s"] >= 0
    parent = nodes["parent"]
    inner = np.flatnonzero(there & (parent >= 0))
    if not there[parent[inner]].all():
        _fail(policy, now["now_s"], 9, "a node is on the GPU without its parent")
    both = inner[nodes["listed"][inner].astype(bool) & nodes["listed"][parent[inner]].astype(bool)]
    if (nodes["stamp"][both] > nodes["stamp"][parent[both]]).any():
        _fail(policy, now["now_s"], 9, "a node is younger than its parent")


def _members(world: World, records: state.Records, which: int) -> IntArray:
    room = np.empty(len(records), np.int64)
    return room[: members(world, records, which, room)]
