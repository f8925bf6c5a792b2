"""An event compiled into arrays and integer nanoseconds: what search, score and exact models share.

Requests are in canonical order: earlier task first, then task id, then request id. Agents are those of
the requests and the resident ones, by name.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topas.event import Event, Request
from topas.progress import PathModel, Paths, PathStore
from topas.units import to_ns

_stores = [PathStore()]


def current_store() -> PathStore:
    """Return this process's store of path evaluations, a new one when the last is full.

    Problems keep the store that they were compiled with, so they outlive it.
    """
    if _stores[0].full:
        _stores[0] = PathStore()
    return _stores[0]


Table = npt.NDArray[np.void]
"""One row a thing, named fields."""


def int_fields(names: str) -> np.dtype[np.void]:
    """Return the type of a row of integers."""
    return np.dtype([(name, np.int64) for name in names.split()])


AGENT = int_fields("prefix swap_ns reuse_ns resident active smallest")
"""``swap_ns`` moves the prefix over the link once, ``reuse_ns`` is Eq. 11; ``active`` if requests use it;
``smallest`` waiting reservation (-1: none waits)."""
WAITING = int_fields("agent task reserve rank stage work_ns bit")
"""``rank`` orders waiting and running requests together. A request does ``work_ns`` at place ``stage`` of its
task's evaluated part (-1: it changes nothing) and is ``bit`` of the task's memo."""
RUNNING = int_fields("agent task reserve rank redo_ns revoke_ns")
"""``redo_ns`` and ``revoke_ns``: what preempting it costs (Eq. 9-10)."""
TASK = np.dtype(
    [
        *int_fields("first ready path_ns row part_at memo_at").descr,
        ("age", np.float64),
        ("rest_ns", np.float64),
    ]
)
"""``ready`` waiting requests from ``first`` on; ``age`` is g_i of Eq. 12, the others say how L is computed:
see :class:`~topas.progress.PathModel`. ``memo_at`` is -1 without a memo, ``part_at`` the task's place among
the evaluated stages of all."""


class Tables(NamedTuple):
    """An event as compiled code reads it: int64 nanoseconds, tokens, indices; ``cap`` is K."""

    agents: Table
    waiting: Table
    running: Table
    tasks: Table
    paths: Paths
    budget: int
    max_running: int
    cap: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One event compiled: the names and objects that rows of the tables stand for, and the tables.

    Tasks with waiting requests come first, in order, so that the requests of each are neighbours.
    """

    event: Event
    agents: tuple[str, ...]
    waiting: tuple[Request, ...]
    running: tuple[Request, ...]
    tasks: tuple[str, ...]
    models: tuple[PathModel | None, ...]
    store: PathStore
    tables: Tables

    def ready(self, task: int) -> range:
        """Return the waiting requests of a task."""
        first = int(self.tables.tasks["first"][task])
        return range(first, first + int(self.tables.tasks["ready"][task]))


def age_weight(waited_s: float, rho: float, age_scale_s: float) -> float:
    """Return ``g = 1 + rho log(1 + waited / H_age)`` (Eq. 12)."""
    return 1.0 + rho * math.log1p(max(waited_s, 0.0) / age_scale_s)


def compile_event(event: Event) -> Problem:
    """Compile an event. O(requests log requests), and one path evaluation per new task state."""
    store = current_store()
    params, states = event.params, event.tasks

    def order(request: Request) -> tuple[float, str, str]:
        return (states[request.task].arrival_s, request.task, request.id)

    merged = sorted((*event.waiting, *event.running), key=order)
    rank = {request.id: place for place, request in enumerate(merged)}
    waiting = tuple(sorted(event.waiting, key=lambda request: rank[request.id]))
    running = tuple(sorted(event.running, key=lambda request: rank[request.id]))
    names = tuple(sorted({r.agent for r in waiting} | {r.agent for r in running} | event.resident))
    place = {name: k for k, name in enumerate(names)}
    index = {task: t for t, task in enumerate(dict.fromkeys(r.task for r in (*waiting, *running)))}

    tasks = _table(TASK, len(index), memo_at=-1, row=-1, age=1.0)
    stage_of, work_ns, bit_of = [-1] * len(waiting), [0] * len(waiting), [0] * len(waiting)
    models: list[PathModel | None] = [None] * len(index)
    parts, first = 0, 0
    for t, (task, requests) in enumerate(itertools.groupby(waiting, key=lambda request: request.task)):
        state = states[task]
        work = sorted(
            (state.dag.index[r.stage], to_ns(r.service_s), k) for k, r in enumerate(requests, start=first)
        )
        key = tuple(item[:2] for item in work)
        model = models[t] = store.model(state.dag, state.residuals, key, params.scenarios, params.seed)
        for bit, (stage, service_ns, k) in enumerate(work):
            stage_of[k], work_ns[k] = model.part.get(stage, -1), service_ns
            bit_of[k] = bit if model.memo_at >= 0 else 0
        age = age_weight(event.time_s - state.arrival_s, params.rho, params.age_scale_s)
        tasks[t] = (first, len(work), model.path_ns, model.row, parts, model.memo_at, age, model.rest_ns)
        parts, first = parts + len(model.part), first + len(work)

    cost, prefixes = params.cost, [event.agents[a] for a in names]
    wanted = [params.beta * event.reuse_counts.get(a, 0) for a in names]
    agents = _table(
        AGENT,
        len(names),
        prefix=prefixes,
        swap_ns=[to_ns(tokens * cost.swap_s_per_token) for tokens in prefixes],
        reuse_ns=[
            to_ns(n * tokens * cost.swap_s_per_token) for n, tokens in zip(wanted, prefixes, strict=True)
        ],
        resident=[a in event.resident for a in names],
        smallest=-1,
    )
    for request in (*waiting, *running):
        agents["active"][place[request.agent]] = 1
    waits = _table(
        WAITING,
        len(waiting),
        agent=[place[r.agent] for r in waiting],
        task=[index[r.task] for r in waiting],
        reserve=[r.reserve_tokens for r in waiting],
        rank=[rank[r.id] for r in waiting],
        stage=stage_of,
        work_ns=work_ns,
        bit=bit_of,
    )
    least: dict[int, int] = {}
    for request in waiting:
        a = place[request.agent]
        least[a] = min(least.get(a, request.reserve_tokens), request.reserve_tokens)
    agents["smallest"][list(least)] = list(least.values())
    runs = _table(
        RUNNING,
        len(running),
        agent=[place[r.agent] for r in running],
        task=[index[r.task] for r in running],
        reserve=[r.reserve_tokens for r in running],
        rank=[rank[r.id] for r in running],
        redo_ns=[to_ns(cost.decode_s_per_token * r.generated_tokens) for r in running],
        revoke_ns=[to_ns(r.credit_s) for r in running],
    )
    limits = (event.budget_tokens, params.max_running, params.K)
    tables = Tables(agents, waits, runs, tasks, store.paths, *limits)
    return Problem(event, names, waiting, running, tuple(index), tuple(models), store, tables)


def _table(fields: np.dtype[np.void], rows: int, **columns: object) -> Table:
    """Return a table of zeros but for these columns."""
    found = np.zeros(rows, dtype=fields)
    for name, values in columns.items():
        found[name] = values
    return found
