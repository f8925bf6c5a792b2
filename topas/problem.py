"""An event compiled into arrays and integer nanoseconds: what search, score and exact models share.

Requests are in canonical order: earlier task first, then task id, then request id. Agents are those of
the requests and the resident ones, by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from topas.event import Event, Request
from topas.progress import PathModel, PathStore
from topas.residual import FloatArray, IntArray
from topas.units import to_ns

_stores = [PathStore()]


def current_store() -> PathStore:
    """Return this process's store of path evaluations, a new one when the last is full.

    Problems keep the store that they were compiled with, so they outlive it.
    """
    if _stores[0].full:
        _stores[0] = PathStore()
    return _stores[0]


@dataclass(frozen=True, slots=True)
class Problem:
    """One event as arrays; A agents, W waiting and Q running requests, T tasks that have any.

    Durations are int64 nanoseconds, reservations and prefixes tokens. ``swap_ns[a]`` moves a's prefix
    over the link once, ``reuse_ns[a]`` is a's part of Eq. 11, ``redo_ns``/``revoke_ns`` the cost of
    preempting a running request (Eq. 9-10), ``age[t]`` the weight g_i of Eq. 12. ``rank`` orders
    waiting and running requests together. ``work_*`` say what a waiting request does to its task:
    ``work_ns`` of service at place ``work_stage`` of the task's evaluated part (-1: it changes
    nothing), bit ``work_bit`` of the memo at ``memo_at[t]`` (-1: no memo).
    """

    event: Event
    agents: tuple[str, ...]
    prefix: IntArray
    swap_ns: IntArray
    reuse_ns: IntArray
    resident: IntArray
    waiting: tuple[Request, ...]
    waiting_agent: IntArray
    waiting_task: IntArray
    waiting_reserve: IntArray
    waiting_rank: IntArray
    work_stage: IntArray
    work_ns: IntArray
    work_bit: IntArray
    running: tuple[Request, ...]
    running_agent: IntArray
    running_task: IntArray
    running_reserve: IntArray
    running_rank: IntArray
    redo_ns: IntArray
    revoke_ns: IntArray
    tasks: tuple[str, ...]
    age: FloatArray
    models: tuple[PathModel | None, ...]
    part_at: IntArray
    memo_at: IntArray
    path_ns: IntArray
    store: PathStore


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
    agents = tuple(sorted({r.agent for r in waiting} | {r.agent for r in running} | event.resident))
    agent_index = {name: k for k, name in enumerate(agents)}
    task_index: dict[str, int] = {}
    ready: list[list[int]] = []
    for k, request in enumerate(waiting):
        if request.task not in task_index:
            task_index[request.task] = len(ready)
            ready.append([])
        ready[task_index[request.task]].append(k)
    for request in running:
        task_index.setdefault(request.task, len(task_index))

    models: list[PathModel | None] = [None] * len(task_index)
    stage_of, work_ns, bit_of = [-1] * len(waiting), [0] * len(waiting), [0] * len(waiting)
    age = [1.0] * len(task_index)
    for t, requests in enumerate(ready):
        state = states[waiting[requests[0]].task]
        age[t] = age_weight(event.time_s - state.arrival_s, params.rho, params.age_scale_s)
        index = state.dag.index
        work = sorted((index[waiting[k].stage], to_ns(waiting[k].service_s), k) for k in requests)
        model = store.model(
            state.dag, state.residuals, tuple(item[:2] for item in work), params.scenarios, params.seed
        )
        models[t] = model
        for bit, (stage, service_ns, k) in enumerate(work):
            stage_of[k], work_ns[k], bit_of[k] = model.part.get(stage, -1), service_ns, bit
    part_size = [len(model.part) if model else 0 for model in models]

    reuse = event.reuse_counts
    ints = _ints
    return Problem(
        event=event,
        agents=agents,
        prefix=ints([event.agents[a] for a in agents]),
        swap_ns=ints([to_ns(event.agents[a] * params.cost.swap_s_per_token) for a in agents]),
        reuse_ns=ints(
            [
                to_ns(params.beta * reuse.get(a, 0) * event.agents[a] * params.cost.swap_s_per_token)
                for a in agents
            ]
        ),
        resident=ints([a in event.resident for a in agents]),
        waiting=waiting,
        waiting_agent=ints([agent_index[r.agent] for r in waiting]),
        waiting_task=ints([task_index[r.task] for r in waiting]),
        waiting_reserve=ints([r.reserve_tokens for r in waiting]),
        waiting_rank=ints([rank[r.id] for r in waiting]),
        work_stage=ints(stage_of),
        work_ns=ints(work_ns),
        work_bit=ints(bit_of),
        running=running,
        running_agent=ints([agent_index[r.agent] for r in running]),
        running_task=ints([task_index[r.task] for r in running]),
        running_reserve=ints([r.reserve_tokens for r in running]),
        running_rank=ints([rank[r.id] for r in running]),
        redo_ns=ints([to_ns(params.cost.decode_s_per_token * r.generated_tokens) for r in running]),
        revoke_ns=ints([to_ns(r.credit_s) for r in running]),
        tasks=tuple(task_index),
        age=np.array(age, dtype=np.float64),
        models=tuple(models),
        part_at=ints(np.concatenate(([0], np.cumsum(part_size)))),
        memo_at=ints([model.memo_at if model else -1 for model in models]),
        path_ns=ints([model.path_ns if model else 0 for model in models]),
        store=store,
    )


def _ints(values: object) -> IntArray:
    return np.asarray(values, dtype=np.int64)
