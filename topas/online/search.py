"""Algorithm 1: which prefix sets are packed, and the best state among all that the packs emit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from topas.compiled import allocating_kernel, kernel
from topas.decision import Decision
from topas.event import Event, Request, TaskState
from topas.online.greedy_pack import (
    ADMITTED,
    ANY,
    NOTHING,
    Room,
    copy,
    find_first_gains,
    greedy_pack,
    order_greedily,
    room_for,
)
from topas.problem import Problem, compile_event
from topas.residual import residual_of_seconds
from topas.score import decision_of
from topas.workflow import dag_of


@kernel
def repairs(inside, trial, p, w):
    """Pack every set that drops one agent of ``inside``, or swaps one for an active agent outside."""
    agents = len(inside)
    for a in range(agents):
        if inside[a]:
            copy(inside, trial, agents)
            trial[a] = 0
            greedy_pack(trial, p, w)
            for b in range(agents):
                if p.agents[b]["active"] and not inside[b]:
                    trial[b] = 1
                    greedy_pack(trial, p, w)
                    trial[b] = 0


@allocating_kernel
def search(most, p, w):
    """Run Algorithm 1 over the active agents, leaving the selected state in ``w.best``."""
    agents = len(p.agents)
    trial = np.zeros(agents, dtype=np.int64)
    used = np.zeros(agents, dtype=np.int64)
    active = np.zeros(agents, dtype=np.int64)
    grown = np.zeros(agents, dtype=np.int64)
    for a in range(agents):
        active[a] = p.agents[a]["active"]
        grown[a] = active[a] * p.agents[a]["resident"]
    for q in range(len(p.running)):
        used[p.running[q]["agent"]] = 1
    find_first_gains(p, w)
    pool = np.flatnonzero(active)
    if len(pool) <= most:
        for subset in range(1 << len(pool)):
            for i in range(len(pool)):
                trial[pool[i]] = (subset >> i) & 1
            greedy_pack(trial, p, w)
        return
    value = greedy_pack(grown, p, w)
    repairs(grown, trial, p, w)
    if value == NOTHING:
        # Idle resident prefixes do not all fit: grow from those in use.
        grown[:] = used
        value = greedy_pack(grown, p, w)
    paired = False
    while True:
        first, second, top = -1, -1, value
        for a in range(agents):
            if active[a] and not grown[a]:
                trial[:] = grown
                trial[a] = 1
                found = greedy_pack(trial, p, w)
                if found > top:
                    first, top = a, found
        if first < 0 and not paired:
            paired = True
            for a in range(agents):
                for b in range(a + 1, agents):
                    if active[a] and active[b] and not grown[a] and not grown[b]:
                        trial[:] = grown
                        trial[a] = 1
                        trial[b] = 1
                        found = greedy_pack(trial, p, w)
                        if found > top:
                            first, second, top = a, b, found
        if first < 0:
            break
        grown[first] = 1
        if second >= 0:
            grown[second] = 1
        value = top
    repairs(grown, trial, p, w)
    # The incumbent: the running requests as they are. Its prefix set may not be the resident one.
    greedy_pack(used, p, w)


def select(event: Event) -> Decision:
    """Return the decision of ``topas-paper`` for an event (Algorithm 1, Eq. 14); same input, same output.

    If no state at all is feasible (the running requests exceed a shrunken budget and may not be
    preempted under K), nothing is changed.
    """
    problem = compile_event(event)
    room = room_for(problem)
    search(event.params.M, problem.tables, room)
    return _decision(problem, room)


def in_greedy_order(problem: Problem, admit: Iterable[int], preempt: Iterable[int]) -> Decision:
    """Return the decision for a state given by indices, its admissions as GreedyPack would choose them.

    Largest aged conditional gain a token first, from among themselves (docs/model.md, section 3).
    """
    room, admitted = room_for(problem), sorted(admit)
    room.best.kept[:] = 1
    room.best.kept[list(preempt)] = 0
    room.best.admitted[: len(admitted)] = admitted
    order_greedily(len(admitted), problem.tables, room)
    return _decision(problem, room)


def _decision(problem: Problem, room: Room) -> Decision:
    """Return the decision that leads to the best state; without one, nothing is changed."""
    best = room.best
    if not best.sums[ANY]:
        return decision_of(problem, [], [], ())
    count = best.sums[ADMITTED]
    preempt = [int(q) for q in np.flatnonzero(best.kept == 0)]
    return decision_of(problem, best.admitted[:count].tolist(), preempt, tuple(best.gains[:count].tolist()))


def small_event() -> Event:
    """Return an event that any search decides at once: what compiled code is loaded with."""
    task = TaskState(0.0, dag_of({"stage": ()}), (residual_of_seconds((1.0,)),))
    request = Request("request", "task", "stage", "agent", 1, 1.0)
    return Event(0.0, 1, {"agent": 0}, {"task": task}, (request,), ())


def warm_up() -> None:
    """Compile the search, or load it compiled from the cache: seconds once, milliseconds afterwards."""
    select(small_event())
