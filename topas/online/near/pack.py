"""The requests for one prefix set: columns chosen by prices, then made to fit and filled up.

What is worth more than its price is chosen. Agents of the set that nothing uses get their cheapest request,
what is too much is given up where it loses least, and room that is left is filled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topas.online.greedy_pack import offer
from topas.online.near.columns import BONUS, IDLE_TOKENS, RESIDENT, SCALE
from topas.online.near.inner import inner
from topas.online.near.prices import (
    ADMITTED,
    CONSTANT,
    DROPPED,
    INSIDE,
    NOTHING,
    RUNNING,
    SIZE,
    STAY,
    TASKS,
    TOKENS,
)
from topas.progress import MEMO_REQUESTS
from topas.residual import IntArray

FAR = 1 << 61
"""More than any loss."""


class Picked(NamedTuple):
    """A choice for one prefix set: 0/1 by lone column and by running request, and a place or -1 by task.

    ``spent`` of each row, ``times`` that the chosen columns use each agent. ``kept``, ``chosen`` and
    ``gains`` are work space for the state to offer.
    """

    lone: IntArray
    task: IntArray
    stays: IntArray
    spent: IntArray
    times: IntArray
    kept: IntArray
    chosen: IntArray
    gains: IntArray


@inner
def picked_for(c, p):
    """Return an empty choice."""
    return Picked(
        np.zeros(len(c.lone), dtype=np.int64),
        np.full(len(c.task_at), -1, dtype=np.int64),
        np.zeros(len(c.keep), dtype=np.int64),
        np.zeros(4, dtype=np.int64),
        np.zeros(len(c.agent), dtype=np.int64),
        np.zeros(len(c.keep), dtype=np.int64),
        np.zeros(max(len(p.waiting_agent), 1), dtype=np.int64),
        np.zeros(max(len(p.waiting_agent), 1), dtype=np.int64),
    )


@inner
def best_value(best, c):
    """Return the value of the best state so far; :data:`NOTHING` if nothing runs in it."""
    if not best.counts[0] or best.counts[2] == 0:
        return np.int64(NOTHING)
    return c.numbers[SCALE] * best.counts[4] + c.numbers[BONUS] * best.counts[2]


@inner
def count_times(agents, step, x):
    """Count the agents of a mask as used once more, or less."""
    b = 0
    while agents:
        if agents & 1:
            x.times[b] += step
        agents >>= 1
        b += 1


@inner
def set_lone(j, b, on, c, x):
    """Choose a lone column of agent b, or give it up."""
    step = 1 if on else -1
    x.lone[j] = on
    x.times[b] += step
    x.spent[TOKENS] += step * c.lone_size[j]
    x.spent[ADMITTED] += step
    x.spent[RUNNING] += step


@inner
def set_task(i, j, o, x):
    """Give the i-th task the column at place j, or none."""
    before = x.task[i]
    if before >= 0:
        count_times(o.agents[before], -1, x)
        x.spent[TOKENS] -= o.size[before]
        x.spent[ADMITTED] -= o.requests[before]
        x.spent[RUNNING] -= o.requests[before]
    x.task[i] = j
    if j >= 0:
        count_times(o.agents[j], 1, x)
        x.spent[TOKENS] += o.size[j]
        x.spent[ADMITTED] += o.requests[j]
        x.spent[RUNNING] += o.requests[j]


@inner
def set_stays(q, on, c, x):
    """Let a running request go on, or preempt it."""
    step = 1 if on else -1
    x.stays[q] = on
    x.times[c.running_bit[q]] += step
    x.spent[TOKENS] += step * c.running_size[q]
    x.spent[RUNNING] += step
    x.spent[DROPPED] -= step


@inner
def keeps_to_rows(o, x):
    """Return whether a choice keeps to the budget, the caps and the batch limit."""
    kept = True
    for row in range(4):
        kept = kept and x.spent[row] <= o.caps[row]
    return kept


@inner
def pick_by_price(c, o, x):
    """Choose every column that is worth more than its price."""
    token, admission = o.prices[TOKENS], o.prices[ADMITTED] + o.prices[RUNNING]
    stays = o.prices[DROPPED] - o.prices[RUNNING]
    x.spent[:] = 0
    x.spent[DROPPED] = o.facts[STAY]
    x.times[:] = 0
    for i in range(o.facts[SIZE]):
        b = o.bits[i]
        for j in range(c.lone_at[b], c.lone_at[b + 1]):
            x.lone[j] = 0
            size = c.lone_size[j]
            if size <= o.caps[TOKENS] and c.lone_value[j] - o.move[i] - admission - token * size > 0:
                set_lone(j, b, 1, c, x)
    for i in range(o.facts[TASKS]):
        top, which = np.int64(0), -1
        for j in range(o.start[i], o.start[i + 1]):
            left = o.value[j] - token * o.size[j] - admission * o.requests[j]
            if left > top:
                top, which = left, j
        x.task[i] = -1
        set_task(i, which, o, x)
    for q in range(len(c.keep)):
        x.stays[q] = 0
        if (o.facts[INSIDE] >> c.running_bit[q]) & 1 and c.keep[q] + stays > token * c.running_size[q]:
            set_stays(q, 1, c, x)


LONE, TASK, STAYS = range(3)


@inner
def worth(kind, i, j, bit, c, o):
    """Return what a column is worth beyond its price.

    It is the lone column j of the agent at place ``bit`` of the set, the one at place j (-1: none) of the
    i-th task, or running request i.
    """
    token, admission = o.prices[TOKENS], o.prices[ADMITTED] + o.prices[RUNNING]
    if kind == LONE:
        return c.lone_value[j] - o.move[bit] - admission - token * c.lone_size[j]
    if kind == TASK:
        if j < 0:
            return np.int64(0)
        return o.value[j] - token * o.size[j] - admission * o.requests[j]
    return c.keep[i] + o.prices[DROPPED] - o.prices[RUNNING] - token * c.running_size[i]


@inner
def change(kind, at, to, on, c, o, x):
    """Make one change of a choice; return whether there is any.

    A lone column of agent ``to`` or a running request is chosen or given up, a task gets the column ``to``.
    """
    if kind == LONE:
        set_lone(at, to, on, c, x)
    elif kind == TASK:
        set_task(at, to, o, x)
    elif kind == STAYS:
        set_stays(at, on, c, x)
    return kind >= 0


@inner
def cover(c, o, x):
    """Use every agent of the set, each by what loses least; return whether all could be used."""
    for i in range(o.facts[SIZE]):
        b = o.bits[i]
        if x.times[b] > 0:
            continue
        least, kind, at, to = np.int64(FAR), -1, -1, -1
        for j in range(c.lone_at[b], c.lone_at[b + 1]):
            loss = -worth(LONE, 0, j, i, c, o)
            if loss < least and c.lone_size[j] <= o.caps[TOKENS]:
                least, kind, at, to = loss, LONE, j, b
        for t in range(o.facts[TASKS]):
            now = worth(TASK, t, x.task[t], 0, c, o)
            for j in range(o.start[t], o.start[t + 1]):
                if (o.agents[j] >> b) & 1:
                    loss = now - worth(TASK, t, j, 0, c, o)
                    if loss < least and (x.task[t] < 0 or o.agents[x.task[t]] & ~o.agents[j] == 0):
                        least, kind, at, to = loss, TASK, t, j
        for q in range(len(c.keep)):
            if c.running_bit[q] == b:
                loss = -worth(STAYS, q, 0, 0, c, o)
                if loss < least:
                    least, kind, at = loss, STAYS, q
        if not change(kind, at, to, 1, c, o, x):
            return False
    return True


@inner
def may_go(agents, instead, x):
    """Return whether every agent of a mask is used elsewhere too, or by what comes instead."""
    gone = agents & ~instead
    b = 0
    while gone:
        if gone & 1 and x.times[b] < 2:
            return False
        gone >>= 1
        b += 1
    return True


@inner
def relief(tokens, requests, admissions, drops, o, x):
    """Return how much a change takes off the rows that are exceeded, as a sum of shares of their caps."""
    total = 0.0
    over = x.spent[TOKENS] - o.caps[TOKENS]
    if over > 0:
        total += min(tokens, over) / max(over, 1)
    over = x.spent[ADMITTED] - o.caps[ADMITTED]
    if over > 0:
        total += min(admissions, over) / over
    over = x.spent[RUNNING] - o.caps[RUNNING]
    if over > 0:
        total += min(requests, over) / over
    if drops > 0 and x.spent[DROPPED] + drops > o.caps[DROPPED]:
        return -1.0
    return total


@inner
def reduce(c, o, x):
    """Give up what loses least until the choice keeps to all rows; return whether it does."""
    while x.spent[DROPPED] > o.caps[DROPPED]:
        least, at = np.int64(FAR), -1
        for q in range(len(c.keep)):
            if not x.stays[q] and (o.facts[INSIDE] >> c.running_bit[q]) & 1:
                loss = -worth(STAYS, q, 0, 0, c, o)
                if loss < least:
                    least, at = loss, q
        if at < 0:
            return False
        set_stays(at, 1, c, x)
    while not keeps_to_rows(o, x):
        least, kind, at, to = np.inf, -1, -1, -1
        for i in range(o.facts[SIZE]):
            b = o.bits[i]
            for j in range(c.lone_at[b], c.lone_at[b + 1]):
                if x.lone[j] and x.times[b] > 1:
                    off = relief(c.lone_size[j], 1, 1, 0, o, x)
                    if off > 0:
                        loss = max(worth(LONE, 0, j, i, c, o), 0) / off
                        if loss < least:
                            least, kind, at, to = loss, LONE, j, b
        for t in range(o.facts[TASKS]):
            now = x.task[t]
            if now < 0:
                continue
            have = worth(TASK, t, now, 0, c, o)
            for j in range(o.start[t] - 1, o.start[t + 1]):
                other = j if j >= o.start[t] else -1
                size = o.size[other] if other >= 0 else 0
                count = o.requests[other] if other >= 0 else 0
                if size > o.size[now] or count > o.requests[now] or other == now:
                    continue
                if not may_go(o.agents[now], o.agents[other] if other >= 0 else 0, x):
                    continue
                off = relief(o.size[now] - size, o.requests[now] - count, o.requests[now] - count, 0, o, x)
                if off > 0:
                    loss = max(have - worth(TASK, t, other, 0, c, o), 0) / off
                    if loss < least:
                        least, kind, at, to = loss, TASK, t, other
        for q in range(len(c.keep)):
            if x.stays[q] and x.times[c.running_bit[q]] > 1:
                off = relief(c.running_size[q], 1, 0, 1, o, x)
                if off > 0:
                    loss = max(worth(STAYS, q, 0, 0, c, o), 0) / off
                    if loss < least:
                        least, kind, at = loss, STAYS, q
        if not change(kind, at, to, 0, c, o, x):
            return False
    return True


@inner
def fill(c, o, x):
    """Add what fits and raises the value, what loses least beside its price first."""
    while True:
        room = o.caps[TOKENS] - x.spent[TOKENS]
        places = min(o.caps[ADMITTED] - x.spent[ADMITTED], o.caps[RUNNING] - x.spent[RUNNING])
        top, kind, at, to = -np.int64(FAR), -1, -1, -1
        if places > 0:
            for i in range(o.facts[SIZE]):
                b = o.bits[i]
                for j in range(c.lone_at[b], c.lone_at[b + 1]):
                    if not x.lone[j] and c.lone_size[j] <= room and c.lone_value[j] > o.move[i]:
                        found = worth(LONE, 0, j, i, c, o)
                        if found > top:
                            top, kind, at, to = found, LONE, j, b
        for t in range(o.facts[TASKS]):
            now = x.task[t]
            value, size, count = np.int64(0), np.int64(0), np.int64(0)
            agents = np.int64(0)
            if now >= 0:
                value, size, count, agents = o.value[now], o.size[now], o.requests[now], o.agents[now]
            have = worth(TASK, t, now, 0, c, o)
            for j in range(o.start[t], o.start[t + 1]):
                if o.value[j] > value and o.size[j] - size <= room and o.requests[j] - count <= places:
                    found = worth(TASK, t, j, 0, c, o) - have
                    if found > top and may_go(agents, o.agents[j], x):
                        top, kind, at, to = found, TASK, t, j
        if o.caps[RUNNING] > x.spent[RUNNING]:
            for q in range(len(c.keep)):
                if (
                    not x.stays[q]
                    and (o.facts[INSIDE] >> c.running_bit[q]) & 1
                    and c.keep[q] > 0
                    and c.running_size[q] <= room
                ):
                    found = worth(STAYS, q, 0, 0, c, o)
                    if found > top:
                        top, kind, at = found, STAYS, q
        if not change(kind, at, to, 1, c, o, x):
            return


@inner
def offer_choice(c, p, o, x, best):
    """Offer the state of a choice that keeps to all rows, and return its value."""
    total = np.int64(0)
    for i in range(o.facts[SIZE]):
        if x.times[o.bits[i]] == 0:
            return np.int64(NOTHING)
    count = 0
    for i in range(o.facts[SIZE]):
        b = o.bits[i]
        for j in range(c.lone_at[b], c.lone_at[b + 1]):
            if x.lone[j]:
                x.chosen[count] = c.lone[j]
                count += 1
                total += c.lone_value[j] - o.move[i]
    for i in range(o.facts[TASKS]):
        if x.task[i] >= 0:
            at = x.task[i]
            total += o.value[at]
            j = o.column[at]
            made = c.made_of[j]
            if made < 0:
                for r in range(c.requests[j]):
                    x.chosen[count] = c.chain[-1 - made + r]
                    count += 1
            else:
                first = o.task[i] * MEMO_REQUESTS
                for bit in range(MEMO_REQUESTS):
                    if (made >> bit) & 1:
                        x.chosen[count] = c.slots[first + bit]
                        count += 1
    running = count
    for q in range(len(c.keep)):
        x.kept[q] = 0
        if (o.facts[INSIDE] >> c.running_bit[q]) & 1 and x.stays[q]:
            x.kept[q] = 1
            running += 1
            total += c.keep[q]
    total += o.facts[CONSTANT]
    moved = c.numbers[IDLE_TOKENS]
    inside, resident = o.facts[INSIDE], c.numbers[RESIDENT]
    for b in range(len(c.agent)):
        if ((inside ^ resident) >> b) & 1:
            moved += c.prefix[b]
    score = (total - c.numbers[BONUS] * running) // c.numbers[SCALE]
    offer(p, best, score, running, moved, x.kept, x.chosen, x.gains, count)
    return total


@inner
def pack(c, p, o, x, best):
    """Offer a state for the opened set at its prices."""
    pick_by_price(c, o, x)
    if cover(c, o, x) and reduce(c, o, x):
        fill(c, o, x)
        offer_choice(c, p, o, x, best)
