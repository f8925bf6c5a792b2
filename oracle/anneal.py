"""Simulated annealing over schedules, compiled: moves, and the loop that tries them.

A solution is a plan: rank, mode and gate of each request, and their order (:mod:`topas.sim.schedule`).
"""

from __future__ import annotations

import math

import numpy as np

from oracle.evaluate import play
from topas.compiled import allocating_kernel, kernel
from topas.sim.schedule import GATE, MODE, ORDER, RANK


@kernel
def agent_of(world, r):
    """Return the agent of a request."""
    return world.stages[world.requests[r].stage].agent


@allocating_kernel
def shift(order, source, target):
    """Move what stands at ``source`` to ``target``; those between close up."""
    moved = order[source]
    if source < target:
        for k in range(source, target):
            order[k] = order[k + 1]
    else:
        for k in range(source, target, -1):
            order[k] = order[k - 1]
    order[target] = moved


@allocating_kernel
def near(size, k, reach):
    """Return another position within ``reach`` of k."""
    other = k + np.random.randint(1, reach + 1) * (1 if np.random.random() < 0.5 else -1)
    return min(max(other, 0), size - 1)


@allocating_kernel
def move_request(order):
    """Move one request, most often not far."""
    size = len(order)
    k = np.random.randint(size)
    reach = min(size, int(math.exp(np.random.random() * math.log(size))) + 1)
    shift(order, k, near(size, k, reach))


@allocating_kernel
def move_block(order, world):
    """Move a run of neighbours of one agent, or of a random length, as a whole."""
    size = len(order)
    begin = np.random.randint(size)
    end = begin + 1
    if np.random.random() < 0.5:
        a = agent_of(world, order[begin])
        while begin > 0 and agent_of(world, order[begin - 1]) == a:
            begin -= 1
        while end < size and agent_of(world, order[end]) == a:
            end += 1
    else:
        end = min(size, begin + np.random.randint(1, 31))
    length = end - begin
    if length == size:
        return
    reach = min(size, int(math.exp(np.random.random() * math.log(size))) + 1)
    target = min(near(size, begin, reach), size - length)
    block = order[begin:end].copy()
    if target < begin:
        for k in range(begin - 1, target - 1, -1):
            order[k + length] = order[k]
    else:
        for k in range(begin, target):
            order[k] = order[k + length]
    order[target : target + length] = block


@allocating_kernel
def swap_tasks(order, rank, mode, gate, task_at):
    """Let two tasks change places in everything, request by request."""
    tasks = len(task_at) - 1
    t = np.random.randint(tasks)
    u = near(tasks, t, 2 if np.random.random() < 0.5 else tasks)
    size = min(task_at[t + 1] - task_at[t], task_at[u + 1] - task_at[u])
    for k in range(size):
        r, q = task_at[t] + k, task_at[u] + k
        order[rank[r]], order[rank[q]] = q, r
        mode[r], mode[q] = mode[q], mode[r]
        gate[r], gate[q] = gate[q], gate[r]


@allocating_kernel
def join_task(order, mode, gate, task_at):
    """Put all requests of one task, or of a few that arrived together, right behind those of another."""
    tasks = len(task_at) - 1
    t, u = np.random.randint(tasks), np.random.randint(tasks)
    last = t + 1 if np.random.random() < 0.5 else min(tasks, t + np.random.randint(1, 16))
    for v in range(t, last):
        if v == u:
            continue
        size = min(task_at[v + 1] - task_at[v], task_at[u + 1] - task_at[u])
        for k in range(size):
            r, q = task_at[v] + k, task_at[u] + k
            a = 0
            while order[a] != r:
                a += 1
            b = 0
            while order[b] != q:
                b += 1
            shift(order, a, b)
            mode[r], gate[r] = mode[q], gate[q]


@allocating_kernel
def join_agent(order, rank, mode, gate, world):
    """Put a request beside another one of the same agent, and treat it alike."""
    size = len(order)
    r = order[np.random.randint(size)]
    for _ in range(20):
        q = order[np.random.randint(size)]
        if q != r and agent_of(world, q) == agent_of(world, r):
            shift(order, rank[r], rank[q])
            mode[r], gate[r] = mode[q], gate[q]
            return


@allocating_kernel
def change_mode(order, mode):
    """Change the mode of one request or of a few neighbours."""
    size = len(order)
    k = np.random.randint(size)
    value = np.random.randint(3)
    length = 1 if np.random.random() < 0.5 else np.random.randint(1, 12)
    for j in range(k, min(k + length, size)):
        mode[order[j]] = value


@allocating_kernel
def change_gate(order, gate, world, start_s, finish_s):
    """Open a gate, or hold a request (and those admitted with it of its agent) back to a later finish."""
    size = len(order)
    r = order[np.random.randint(size)]
    if gate[r] >= 0 and np.random.random() < 0.6:
        old = gate[r]
        every = np.random.random() < 0.5
        for q in range(size):
            if q == r or (every and gate[q] == old):
                gate[q] = -1
        return
    best = -1
    skip = np.random.randint(1, 4) if np.random.random() < 0.5 else 1
    after = start_s[r]
    for _ in range(skip):
        found = -1
        for q in range(size):
            if finish_s[q] > after and (found < 0 or finish_s[q] < finish_s[found]):
                found = q
        if found < 0:
            break
        best = found
        after = finish_s[found]
    if best < 0:
        return
    every = np.random.random() < 0.5
    for q in range(size):
        if q == r or (every and start_s[q] == start_s[r] and agent_of(world, q) == agent_of(world, r)):
            gate[q] = best


@allocating_kernel
def by_start(order, start_s):
    """Rewrite the order as that of admission (stable), which most often changes nothing but the look."""
    index = np.argsort(start_s[order], kind="mergesort")
    order[:] = order[index]


@allocating_kernel
def propose(world, task_at, plan, rank, start_s, finish_s):
    """Change a plan in place by one random move; ``rank`` and the times are those before it.

    The shares were set by hand: moves of single requests and of tasks find most of what is found.
    """
    order, mode, gate = plan[ORDER], plan[MODE], plan[GATE]
    move = np.random.random()
    if move < 0.30:
        move_request(order)
    elif move < 0.45:
        move_block(order, world)
    elif move < 0.60:
        swap_tasks(order, rank, mode, gate, task_at)
    elif move < 0.65:
        join_task(order, mode, gate, task_at)
    elif move < 0.80:
        join_agent(order, rank, mode, gate, world)
    elif move < 0.90:
        change_mode(order, mode)
    elif move < 0.98:
        change_gate(order, gate, world, start_s, finish_s)
    else:
        by_start(order, start_s)
    for k in range(len(order)):
        plan[RANK, order[k]] = k


@allocating_kernel
def anneal(bench, task_at, now, best, best_s, heat_s, tries, seed):
    """Try ``tries`` moves from the plan ``now``, in place; return the least sum of JCTs seen.

    A move that makes the sum d seconds worse is taken with probability ``exp(-d / heat_s)``. Where the
    sum falls below ``best_s``, the plan is copied to ``best``.
    """
    np.random.seed(seed)
    world, plan = bench.world, bench.setup.plan
    plan[:] = now
    value_s = play(bench)
    start_s, finish_s = world.requests["admitted_s"].copy(), world.requests["done_s"].copy()
    for _ in range(tries):
        plan[:] = now
        propose(world, task_at, plan, now[RANK], start_s, finish_s)
        new_s = play(bench)
        if new_s <= value_s or np.random.random() < math.exp((value_s - new_s) / heat_s):
            value_s = new_s
            now[:] = plan
            start_s[:], finish_s[:] = world.requests["admitted_s"], world.requests["done_s"]
            if value_s < best_s:
                best_s = value_s
                best[:] = now
    return best_s
