"""Algorithm 1: which prefix sets are packed, and the best state among all that the packs emit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topas.compiled import allocating_kernel
from topas.decision import Decision
from topas.event import Event, Request, TaskState
from topas.online.greedy_pack import NOTHING, greedy_pack, joint_gain_ns
from topas.problem import Problem, compile_event
from topas.residual import FloatArray, IntArray, residual_of_seconds
from topas.score import decision_of
from topas.workflow import dag_of


class Input(NamedTuple):
    """What compiled code reads of a :class:`~topas.problem.Problem`, with the memos, and its work space."""

    prefix: IntArray
    swap_ns: IntArray
    reuse_ns: IntArray
    resident: IntArray
    smallest: IntArray
    waiting_agent: IntArray
    waiting_task: IntArray
    waiting_reserve: IntArray
    waiting_rank: IntArray
    work_stage: IntArray
    work_ns: IntArray
    work_bit: IntArray
    first_gain: IntArray
    running_agent: IntArray
    running_task: IntArray
    running_reserve: IntArray
    running_rank: IntArray
    redo_ns: IntArray
    revoke_ns: IntArray
    age: FloatArray
    path_ns: IntArray
    rest_ns: FloatArray
    row: IntArray
    part_at: IntArray
    memo_at: IntArray
    ready_count: IntArray
    z: IntArray
    weights: FloatArray
    before: IntArray
    before_at: IntArray
    rows: IntArray
    memo: IntArray
    mask: IntArray
    joint: IntArray
    done: IntArray
    finish: IntArray
    flags: IntArray
    budget: int
    max_running: int
    cap: int


class Best(NamedTuple):
    """The best state so far; ``counts`` is (any, admissions, requests running, tokens moved, score)."""

    counts: IntArray
    kept: IntArray
    admitted: IntArray
    gains: IntArray


class Scratch(NamedTuple):
    """Work space of one pack."""

    covered: IntArray
    in_pack: IntArray
    delayed: IntArray
    kept: IntArray
    left: IntArray
    gain: IntArray
    gains: IntArray
    chosen: IntArray


@allocating_kernel
def repairs(inside, active, p, best, s, trial):
    """Pack every set that drops one agent of ``inside``, or swaps one for an agent outside."""
    agents = len(inside)
    for a in range(agents):
        if inside[a]:
            trial[:] = inside
            trial[a] = 0
            greedy_pack(trial, p, best, s)
            for b in range(agents):
                if active[b] and not inside[b]:
                    trial[b] = 1
                    greedy_pack(trial, p, best, s)
                    trial[b] = 0


@allocating_kernel
def search(active, most, p, best, s):
    """Run Algorithm 1 over the active agents (0/1 per agent), leaving the selected state in ``best``."""
    agents = len(active)
    trial = np.zeros(agents, dtype=np.int64)
    used = np.zeros(agents, dtype=np.int64)
    for q in range(len(p.running_agent)):
        used[p.running_agent[q]] = 1
    for k in range(len(p.waiting_agent)):
        t = p.waiting_task[k]
        p.first_gain[k] = joint_gain_ns(k, t, 0, p.done, p)
    pool = np.flatnonzero(active)
    if len(pool) <= most:
        for subset in range(1 << len(pool)):
            for i in range(len(pool)):
                trial[pool[i]] = (subset >> i) & 1
            greedy_pack(trial, p, best, s)
        return
    grown = active * p.resident
    value = greedy_pack(grown, p, best, s)
    repairs(grown, active, p, best, s, trial)
    if value == NOTHING:
        # Idle resident prefixes do not all fit: grow from those in use.
        grown[:] = used
        value = greedy_pack(grown, p, best, s)
    paired = False
    while True:
        first, second, top = -1, -1, value
        for a in range(agents):
            if active[a] and not grown[a]:
                trial[:] = grown
                trial[a] = 1
                found = greedy_pack(trial, p, best, s)
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
                        found = greedy_pack(trial, p, best, s)
                        if found > top:
                            first, second, top = a, b, found
        if first < 0:
            break
        grown[first] = 1
        if second >= 0:
            grown[second] = 1
        value = top
    repairs(grown, active, p, best, s, trial)
    # The incumbent: the running requests as they are. Its prefix set may not be the resident one.
    greedy_pack(used, p, best, s)


def _zeros(size: int) -> IntArray:
    return np.zeros(max(size, 1), dtype=np.int64)


def compile_search(problem: Problem) -> tuple[IntArray, Input, Best, Scratch]:
    """Return the active agents and the arrays of one search."""
    agents, waiting, running = len(problem.agents), len(problem.waiting), len(problem.running)
    params, store, tasks = problem.event.params, problem.store, len(problem.tasks)
    smallest = np.full(agents, -1, dtype=np.int64)
    active = np.zeros(agents, dtype=np.int64)
    active[problem.running_agent] = 1
    if waiting:
        active[problem.waiting_agent] = 1
        least = np.full(agents, np.iinfo(np.int64).max)
        np.minimum.at(least, problem.waiting_agent, problem.waiting_reserve)
        found = np.unique(problem.waiting_agent)
        smallest[found] = least[found]
    models = problem.models
    data = Input(
        prefix=problem.prefix,
        swap_ns=problem.swap_ns,
        reuse_ns=problem.reuse_ns,
        resident=problem.resident,
        smallest=smallest,
        waiting_agent=problem.waiting_agent,
        waiting_task=problem.waiting_task,
        waiting_reserve=problem.waiting_reserve,
        waiting_rank=problem.waiting_rank,
        work_stage=problem.work_stage,
        work_ns=problem.work_ns,
        work_bit=problem.work_bit,
        first_gain=np.zeros(waiting, dtype=np.int64),
        running_agent=problem.running_agent,
        running_task=problem.running_task,
        running_reserve=problem.running_reserve,
        running_rank=problem.running_rank,
        redo_ns=problem.redo_ns,
        revoke_ns=problem.revoke_ns,
        age=problem.age,
        path_ns=problem.path_ns,
        rest_ns=np.array([m.rest_ns if m else 0.0 for m in models], dtype=np.float64),
        row=np.array([m.row if m else -1 for m in models], dtype=np.int64),
        part_at=problem.part_at,
        memo_at=problem.memo_at,
        ready_count=np.bincount(problem.waiting_task, minlength=tasks).astype(np.int64),
        z=store.z,
        weights=store.weights,
        before=store.before,
        before_at=store.before_at,
        rows=store.rows,
        memo=store.memo,
        mask=_zeros(tasks),
        joint=_zeros(tasks),
        done=_zeros(int(problem.part_at[-1]) + 1),
        finish=_zeros(max((len(m.part) for m in models if m), default=1)),
        flags=_zeros(waiting + running),
        budget=problem.event.budget_tokens,
        max_running=params.max_running,
        cap=params.K,
    )
    best = Best(_zeros(5), np.zeros(running, dtype=np.int64), _zeros(waiting), _zeros(waiting))
    scratch = Scratch(
        covered=np.zeros(agents, dtype=np.int64),
        in_pack=_zeros(tasks),
        delayed=_zeros(tasks),
        kept=np.zeros(running, dtype=np.int64),
        left=_zeros(waiting),
        gain=_zeros(waiting),
        gains=_zeros(waiting),
        chosen=_zeros(waiting),
    )
    return active, data, best, scratch


def select(event: Event) -> Decision:
    """Return TOPAS's decision for an event (Algorithm 1, Eq. 14); same input, same output.

    If no state at all is feasible (the running requests exceed a shrunken budget and may not be
    preempted under K), nothing is changed.
    """
    problem = compile_event(event)
    active, data, best, scratch = compile_search(problem)
    search(active, event.params.M, data, best, scratch)
    return decision_from(problem, best)


def decision_from(problem: Problem, best: Best) -> Decision:
    """Return the decision that leads to the best state; without one, nothing is changed."""
    if not best.counts[0]:
        return decision_of(problem, [], [], ())
    count = best.counts[1]
    admit = [int(k) for k in best.admitted[:count]]
    preempt = [k for k in range(len(problem.running)) if not best.kept[k]]
    return decision_of(problem, admit, preempt, tuple(int(gain) for gain in best.gains[:count]))


def small_event() -> Event:
    """Return an event that any search decides at once: what compiled code is loaded with."""
    task = TaskState(0.0, dag_of({"stage": ()}), (residual_of_seconds((1.0,)),))
    request = Request("request", "task", "stage", "agent", 1, 1.0)
    return Event(
        time_s=0.0,
        budget_tokens=1,
        agents={"agent": 0},
        tasks={"task": task},
        waiting=(request,),
        running=(),
    )


def warm_up() -> None:
    """Compile the search, or load it compiled from the cache: seconds once, milliseconds afterwards."""
    select(small_event())
