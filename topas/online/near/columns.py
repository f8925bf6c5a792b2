"""What each task may be given at an event, as columns: sets of its ready requests with value and size.

Given the prefix set R', the score is a sum of independent parts (see ``docs/optimality.md``), so a state is
a choice of at most one column a task and of the running requests that stay. Columns depend on the event
alone and are built once: tasks with one ready request in lists by agent, all others side by side.

A *value* is ``scale`` times a score in nanoseconds, plus one for each request that runs: so among equal
scores the state with more running requests has the higher value, and a bound on values bounds both.
Agents with requests, the *pool*, are bits of a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from topas.online.greedy_pack import joint_gain_ns
from topas.online.near.inner import inner
from topas.progress import MEMO_REQUESTS, mean_longest_path
from topas.residual import IntArray

MOST_AGENTS = 62
"""Larger pools have no mask."""
MOST_VALUE = 1 << 58
"""No sum of values, and no price times what it is the price of, exceeds this."""
MOST_PAIRED = 6
"""A task without a table of gains (see :data:`topas.progress.MEMO_REQUESTS`) gets chains for pairs of so
many agents at most."""


class Columns(NamedTuple):
    """Columns of one event; values are scaled, ``size`` is in tokens.

    By bit of the pool: ``agent`` (index), ``prefix``, ``swap``, ``reuse``, ``least`` (smallest waiting
    reservation, -1: none waits). ``lone`` are the requests of tasks that have no other ready: those of bit b
    stand from ``lone_at[b]`` to ``lone_at[b + 1]``, most value a token first. Other tasks have the columns
    from ``task_at[m]`` to ``task_at[m + 1]``: ``agents`` is a mask, ``requests`` how many there are, ``pays``
    whether the task waits for moves, ``made_of`` a mask over the task's ``slots``, or -1 - a place in
    ``chain`` where the requests stand. ``keep`` is what it saves to let a running request go on. ``numbers``:
    see the constants.
    """

    agent: IntArray
    prefix: IntArray
    swap: IntArray
    reuse: IntArray
    least: IntArray
    lone_at: IntArray
    lone: IntArray
    lone_value: IntArray
    lone_size: IntArray
    task_at: IntArray
    slots: IntArray
    agents: IntArray
    value: IntArray
    size: IntArray
    requests: IntArray
    pays: IntArray
    made_of: IntArray
    chain: IntArray
    running_bit: IntArray
    keep: IntArray
    running_size: IntArray
    numbers: IntArray


SCALE, BONUS, RESIDENT, USED, IDLE_SWAP, IDLE_TOKENS, LOST, EXACT, SLOTS = range(9)
"""``numbers``: the scale, what a running request adds, masks of the resident and of the used agents of the
pool, the value and the tokens of moving out the residents that nobody asks for, the value of preempting
everything, whether the columns of all tasks are complete, and the most admissions."""


@inner
def left_after(mask, task, first, slots, p):
    """Return L of a task after the requests of a mask over its slots, through its memo."""
    at = p.memo_at[task] + mask
    if p.memo[at] < 0:
        part = p.part_at[task]
        for bit in range(MEMO_REQUESTS):
            if (mask >> bit) & 1:
                k = slots[first + bit]
                if p.work_stage[k] >= 0:
                    p.done[part + p.work_stage[k]] += p.work_ns[k]
        mean = mean_longest_path(
            p.z, p.weights, p.before, p.before_at, p.rows[p.row[task]], p.done, part, p.finish
        )
        p.memo[at] = np.int64(np.rint(mean + p.rest_ns[task]))
        p.done[part : p.part_at[task + 1]] = 0
    return p.memo[at]


@inner
def put_chain(allowed, ready, bit_of, task, chain, used, p):
    """Order the requests of allowed agents by gain a token given those before; return the gains.

    They are put into ``chain`` from ``used`` on; the gains are joint ones, each with all before it.
    """
    part = p.part_at[task]
    count = 0
    for k in ready:
        if (allowed >> bit_of[p.waiting_agent[k]]) & 1:
            chain[used + count] = k
            count += 1
    joint = np.int64(0)
    gains = np.zeros(count, dtype=np.int64)
    for i in range(count):
        top, top_ratio, top_gain = i, -1.0, np.int64(0)
        for j in range(i, count):
            k = chain[used + j]
            gain = joint_gain_ns(k, task, 0, p.done, p) - joint
            ratio = gain / max(p.waiting_reserve[k], 1)
            if ratio > top_ratio:
                top, top_ratio, top_gain = j, ratio, gain
        k = chain[used + top]
        chain[used + top] = chain[used + i]
        chain[used + i] = k
        joint += top_gain
        gains[i] = joint
        if p.work_stage[k] >= 0:
            p.done[part + p.work_stage[k]] += p.work_ns[k]
    p.done[part : p.part_at[task + 1]] = 0
    return gains


@inner
def room_for(tasks, ready_at):
    """Return how many columns and how many places in chains the tasks can have at most."""
    columns, places = 1, 1
    for t in tasks:
        ready = ready_at[t + 1] - ready_at[t]
        if ready <= MEMO_REQUESTS:
            columns += (1 << ready) - 1
        else:
            columns += ready * (1 + MOST_AGENTS + MOST_PAIRED * MOST_PAIRED)
            places += ready * (1 + MOST_AGENTS + MOST_PAIRED * MOST_PAIRED)
    return columns, places


@numba.njit(cache=True)
def columns_of(active, scale, p):
    """Build the columns of an event.

    O(requests + columns) beside the gains, which a task's memo keeps. Columns that cannot fit are left out,
    and of requests that agree in stage, agent, service and reservation only the first n are ever used.
    """
    bonus = 1 if scale > 1 else 0
    agent = np.flatnonzero(active)
    pool = len(agent)
    bit_of = np.full(len(active), -1, dtype=np.int64)
    bit_of[agent] = np.arange(pool)
    waiting, running, tasks = len(p.waiting_agent), len(p.running_agent), len(p.mask)
    numbers = np.zeros(9, dtype=np.int64)
    numbers[SCALE], numbers[BONUS], numbers[EXACT] = scale, bonus, 1
    for b in range(pool):
        numbers[RESIDENT] |= np.int64(p.resident[agent[b]]) << b
    for a in range(len(active)):
        if p.resident[a] and not active[a]:
            numbers[IDLE_SWAP] += scale * p.swap_ns[a]
            numbers[IDLE_TOKENS] += p.prefix[a]
    slots_left = waiting
    if p.cap > 0:
        slots_left = min(slots_left, p.cap)
    if p.max_running > 0:
        slots_left = min(slots_left, p.max_running)
    numbers[SLOTS] = slots_left

    running_bit = np.empty(running, dtype=np.int64)
    keep = np.empty(running, dtype=np.int64)
    for q in range(running):
        running_bit[q] = bit_of[p.running_agent[q]]
        keep[q] = scale * (p.redo_ns[q] + p.revoke_ns[q])
        numbers[LOST] += keep[q]
        keep[q] += bonus
        numbers[USED] |= np.int64(1) << running_bit[q]

    # Requests by task.
    ready_at = np.zeros(tasks + 1, dtype=np.int64)
    for k in range(waiting):
        ready_at[p.waiting_task[k] + 1] += 1
    several, lone = 0, 0
    for t in range(tasks):
        several += ready_at[t + 1] > 1
        lone += ready_at[t + 1] == 1
    ready_at = np.cumsum(ready_at)
    fill = ready_at[:-1].copy()
    by_task = np.empty(max(waiting, 1), dtype=np.int64)
    for k in range(waiting):
        t = p.waiting_task[k]
        by_task[fill[t]] = k
        fill[t] += 1

    # Tasks with one ready request, by agent, most value a token first.
    lone_at = np.zeros(pool + 1, dtype=np.int64)
    alone = np.empty(lone, dtype=np.int64)
    ratio = np.empty(lone, dtype=np.float64)
    some = np.empty(several, dtype=np.int64)
    lone, several = 0, 0
    for t in range(tasks):
        if ready_at[t + 1] - ready_at[t] == 1:
            k = by_task[ready_at[t]]
            p.first_gain[k] = joint_gain_ns(k, t, 0, p.done, p)
            alone[lone] = k
            ratio[lone] = -(scale * p.first_gain[k] + bonus) / max(p.waiting_reserve[k], 1e-3)
            lone_at[bit_of[p.waiting_agent[k]] + 1] += 1
            lone += 1
        elif ready_at[t + 1] > ready_at[t]:
            some[several] = t
            several += 1
    lone_at = np.cumsum(lone_at)
    order = np.argsort(ratio, kind="mergesort")
    fill = lone_at[:-1].copy()
    lone_k = np.empty(lone, dtype=np.int64)
    lone_value = np.empty(lone, dtype=np.int64)
    lone_size = np.empty(lone, dtype=np.int64)
    for i in order:
        k = alone[i]
        b = bit_of[p.waiting_agent[k]]
        lone_k[fill[b]] = k
        lone_value[fill[b]] = scale * p.first_gain[k] + bonus
        lone_size[fill[b]] = p.waiting_reserve[k]
        fill[b] += 1

    # All other tasks.
    most, places = room_for(some, ready_at)
    task_at = np.zeros(several + 1, dtype=np.int64)
    slots = np.zeros(several * MEMO_REQUESTS, dtype=np.int64)
    agents = np.empty(most, dtype=np.int64)
    value = np.empty(most, dtype=np.int64)
    size = np.empty(most, dtype=np.int64)
    count = np.empty(most, dtype=np.int64)
    pays = np.empty(most, dtype=np.int64)
    made_of = np.empty(most, dtype=np.int64)
    chain = np.empty(places, dtype=np.int64)
    same = np.empty(MEMO_REQUESTS, dtype=np.int64)
    mask_agents = np.zeros(1 << MEMO_REQUESTS, dtype=np.int64)
    mask_size = np.zeros(1 << MEMO_REQUESTS, dtype=np.int64)
    at, used = 0, 0
    for m in range(several):
        t = some[m]
        ready = by_task[ready_at[t] : ready_at[t + 1]]
        if p.memo_at[t] >= 0:
            first = m * MEMO_REQUESTS
            for k in ready:
                slots[first + p.work_bit[k]] = k
            for i in range(len(ready)):
                k = slots[first + i]
                same[i] = -1
                for j in range(len(ready)):
                    o = slots[first + j]
                    if (
                        o < k
                        and p.work_stage[o] == p.work_stage[k]
                        and p.waiting_agent[o] == p.waiting_agent[k]
                        and p.waiting_reserve[o] == p.waiting_reserve[k]
                        and (p.work_ns[o] == p.work_ns[k] or p.work_stage[k] < 0)
                        and (same[i] < 0 or o > slots[first + same[i]])
                    ):
                        same[i] = j
            for mask in range(1, 1 << len(ready)):
                low = 0
                while not (mask >> low) & 1:
                    low += 1
                rest = mask & (mask - 1)
                k = slots[first + low]
                # A set that cannot fit is marked by a negative size; so are all sets that hold it.
                if mask_size[rest] < 0:
                    mask_size[mask] = -1
                    continue
                mask_agents[mask] = mask_agents[rest] | (np.int64(1) << bit_of[p.waiting_agent[k]])
                mask_size[mask] = mask_size[rest] + p.waiting_reserve[k]
                total = mask_size[mask]
                members = 0
                skipped = False
                for i in range(len(ready)):
                    if (mask >> i) & 1:
                        members += 1
                        if same[i] >= 0 and not (mask >> same[i]) & 1:
                            skipped = True
                for b in range(pool):
                    if (mask_agents[mask] >> b) & 1:
                        total += p.prefix[agent[b]]
                if total > p.budget or members > slots_left:
                    mask_size[mask] = -1
                    continue
                if skipped:
                    continue
                left = left_after(mask, t, first, slots, p)
                gain = np.int64(np.rint(p.age[t] * np.float64(p.path_ns[t] - left)))
                agents[at] = mask_agents[mask]
                value[at] = scale * gain + bonus * members
                size[at] = mask_size[mask]
                count[at] = members
                pays[at] = (mask_agents[mask] & ~numbers[RESIDENT]) != 0
                made_of[at] = mask
                at += 1
        else:
            numbers[EXACT] = 0
            own = np.int64(0)
            for k in ready:
                own |= np.int64(1) << bit_of[p.waiting_agent[k]]
            sets = [own]
            bits = [b for b in range(pool) if (own >> b) & 1]
            if len(bits) > 1:
                sets.extend([np.int64(1) << i for i in bits])
            if 2 < len(bits) <= MOST_PAIRED:
                sets.extend([(np.int64(1) << i) | (np.int64(1) << j) for i in bits for j in bits if j < i])
            for allowed in sets:
                gains = put_chain(allowed, ready, bit_of, t, chain, used, p)
                inside, total, reserved = np.int64(0), np.int64(0), np.int64(0)
                for i in range(len(gains)):
                    k = chain[used + i]
                    b = bit_of[p.waiting_agent[k]]
                    if not (inside >> b) & 1:
                        inside |= np.int64(1) << b
                        total += p.prefix[agent[b]]
                    reserved += p.waiting_reserve[k]
                    if total + reserved > p.budget or i + 1 > slots_left:
                        break
                    agents[at] = inside
                    value[at] = scale * gains[i] + bonus * (i + 1)
                    size[at] = reserved
                    count[at] = i + 1
                    pays[at] = (inside & ~numbers[RESIDENT]) != 0
                    made_of[at] = -1 - used
                    at += 1
                used += len(gains)
        task_at[m + 1] = at
    return Columns(
        agent,
        p.prefix[agent],
        scale * p.swap_ns[agent],
        scale * p.reuse_ns[agent],
        p.smallest[agent],
        lone_at,
        lone_k,
        lone_value,
        lone_size,
        task_at,
        slots,
        agents[:at],
        value[:at],
        size[:at],
        count[:at],
        pays[:at],
        made_of[:at],
        chain,
        running_bit,
        keep,
        p.running_reserve,
        numbers,
    )
