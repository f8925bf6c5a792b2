"""Bounds by prices: what a prefix set can be worth at most if tokens, slots and preemptions are paid for.

A Lagrangian relaxation of the rows of one prefix set R'. For prices y >= 0 of the rows

    tokens of requests <= B - prefixes of R';   admissions <= K;   running <= max_running;   preempted <= K

the sum over tasks of the best column less its price, plus the prices of all that is there to spend, bounds
the value of every state whose prefix set is R'. It is convex and piecewise linear in each price, and is
minimised one price after the other where the tangents meet. All in integers: the bound is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topas.online.near.columns import IDLE_SWAP, LOST, MOST_VALUE, RESIDENT
from topas.online.near.inner import inner
from topas.residual import IntArray

NOTHING = -(1 << 62)
"""The value of a prefix set for which no state is feasible."""

TOKENS, ADMITTED, RUNNING, DROPPED = range(4)
"""The rows, and the places of their prices, uses and caps."""
COVERED = 4
"""Behind the uses: the mask of agents that the chosen columns use."""

PRICES = 12
"""Most prices tried in one minimisation."""


class Opened(NamedTuple):
    """The columns that one prefix set leaves: work space, filled by :func:`open_set`.

    ``bits`` are its agents, ``move`` what a task with a lone request of each pays. The tasks with several
    requests that have columns are ``task``, with the columns from ``start[i]`` to ``start[i + 1]``:
    ``column`` by its number, ``value`` less moves. ``caps`` of the rows; ``active`` rows are those that the
    event has; ``uses`` what :func:`bound` chose. ``facts``: see the constants.
    """

    bits: IntArray
    move: IntArray
    task: IntArray
    start: IntArray
    column: IntArray
    value: IntArray
    size: IntArray
    requests: IntArray
    agents: IntArray
    caps: IntArray
    active: IntArray
    uses: IntArray
    prices: IntArray
    facts: IntArray


INSIDE, SIZE, TASKS, CONSTANT, MOVE, STAY = range(6)
"""``facts``: the set, its number of agents, of tasks with several ready requests, the value of nothing but
the set itself, of moving its prefixes, and how many running requests may stay."""


@inner
def opened_for(c, p):
    """Return work space for the prefix sets of an event."""
    columns, tasks, pool = len(c.value), len(c.task_at), len(c.agent)
    active = np.zeros(4, dtype=np.int64)
    active[TOKENS] = 1
    active[ADMITTED] = p.cap > 0
    active[RUNNING] = p.max_running > 0
    active[DROPPED] = p.cap > 0 and len(c.keep) > 0
    return Opened(
        np.empty(pool, dtype=np.int64),
        np.empty(pool, dtype=np.int64),
        np.empty(tasks, dtype=np.int64),
        np.empty(tasks + 1, dtype=np.int64),
        np.empty(columns, dtype=np.int64),
        np.empty(columns, dtype=np.int64),
        np.empty(columns, dtype=np.int64),
        np.empty(columns, dtype=np.int64),
        np.empty(columns, dtype=np.int64),
        np.zeros(4, dtype=np.int64),
        active,
        np.zeros(5, dtype=np.int64),
        np.zeros(4, dtype=np.int64),
        np.zeros(6, dtype=np.int64),
    )


@inner
def open_set(inside, c, p, o):
    """Gather what a prefix set allows; return whether it can be covered by itself at all."""
    room = np.int64(p.budget)
    constant = -c.numbers[LOST]
    move = c.numbers[IDLE_SWAP]
    resident = c.numbers[RESIDENT]
    size = 0
    for b in range(len(c.agent)):
        here = (inside >> b) & 1
        if here:
            o.bits[size] = b
            size += 1
            room -= c.prefix[b]
            constant += c.reuse[b]
        if here != (resident >> b) & 1:
            move += c.swap[b]
    if room < 0:
        return False
    stay = 0
    served = np.int64(0)
    for q in range(len(c.keep)):
        if (inside >> c.running_bit[q]) & 1:
            stay += 1
            served |= np.int64(1) << c.running_bit[q]
    needed, places = np.int64(0), 0
    for i in range(size):
        b = o.bits[i]
        o.move[i] = 0 if (resident >> b) & 1 else move
        if not (served >> b) & 1:
            if c.least[b] < 0:
                return False
            needed += c.least[b]
            places += 1
    # Requests that run may be preempted to make room, so only those that nothing runs for are sure to come.
    if (
        needed > room
        or (p.cap > 0 and places > p.cap)
        or (p.max_running > 0 and size > 0 and places > p.max_running)
    ):
        return False
    waiting = len(p.waiting_agent)
    o.caps[TOKENS] = room
    o.caps[ADMITTED] = p.cap if p.cap > 0 else waiting
    o.caps[RUNNING] = p.max_running if p.max_running > 0 else waiting + stay
    o.caps[DROPPED] = p.cap - (len(c.keep) - stay) if p.cap > 0 else len(c.keep)
    if o.caps[DROPPED] < 0:
        return False
    tasks, at = 0, 0
    for m in range(len(c.task_at) - 1):
        o.start[tasks] = at
        for j in range(c.task_at[m], c.task_at[m + 1]):
            if c.agents[j] & ~inside == 0 and c.size[j] <= room:
                o.column[at] = j
                o.value[at] = c.value[j] - move * c.pays[j]
                o.size[at] = c.size[j]
                o.requests[at] = c.requests[j]
                o.agents[at] = c.agents[j]
                at += 1
        if at > o.start[tasks]:
            o.task[tasks] = m
            tasks += 1
    o.start[tasks] = at
    o.facts[INSIDE], o.facts[SIZE], o.facts[TASKS] = inside, size, tasks
    o.facts[CONSTANT], o.facts[MOVE], o.facts[STAY] = constant, move, stay
    return True


@inner
def bound(c, o):
    """Return the bound at ``o.prices``, leaving in ``o.uses`` what the columns chosen for it use."""
    token, admission = o.prices[TOKENS], o.prices[ADMITTED] + o.prices[RUNNING]
    stays = o.prices[DROPPED] - o.prices[RUNNING]
    room, inside = o.caps[TOKENS], o.facts[INSIDE]
    total = o.facts[CONSTANT] + token * room + o.prices[ADMITTED] * o.caps[ADMITTED]
    total += o.prices[RUNNING] * o.caps[RUNNING] + o.prices[DROPPED] * (o.caps[DROPPED] - o.facts[STAY])
    tokens, admitted, kept, covered = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(o.facts[SIZE]):
        b = o.bits[i]
        charge = o.move[i] + admission
        for j in range(c.lone_at[b], c.lone_at[b + 1]):
            size = c.lone_size[j]
            price = token * size
            value = c.lone_value[j]
            # Sorted by value a token, up to the rounding of that ratio.
            if value < price - (price >> 30):
                break
            left = value - charge - price
            if left > 0 and size <= room:
                total += left
                tokens += size
                admitted += 1
                covered |= np.int64(1) << b
    for i in range(o.facts[TASKS]):
        top, which = np.int64(0), -1
        for j in range(o.start[i], o.start[i + 1]):
            left = o.value[j] - token * o.size[j] - admission * o.requests[j]
            if left > top:
                top, which = left, j
        if which >= 0:
            total += top
            tokens += o.size[which]
            admitted += o.requests[which]
            covered |= o.agents[which]
    for q in range(len(c.keep)):
        b = c.running_bit[q]
        if (inside >> b) & 1:
            left = c.keep[q] + stays - token * c.running_size[q]
            if left > 0:
                total += left
                tokens += c.running_size[q]
                kept += 1
                covered |= np.int64(1) << b
    o.uses[TOKENS] = tokens
    o.uses[ADMITTED] = admitted
    o.uses[RUNNING] = admitted + kept
    o.uses[DROPPED] = o.facts[STAY] - kept
    o.uses[COVERED] = covered
    return total


@inner
def settle(row, enough, c, o):
    """Minimise the bound over one price, until it is at most ``enough``; return the least bound found.

    ``o.prices[row]`` is left at the price of that bound, or just above it where what is chosen then keeps to
    the row.
    """
    cap = o.caps[row]
    highest = MOST_VALUE // max(cap, 1, c.task_at[-1] + len(c.lone) if row != TOKENS else 1)
    price = min(o.prices[row], highest)
    o.prices[row] = price
    value = bound(c, o)
    least, at = value, price
    low, low_meets, low_slope = np.int64(-1), np.int64(0), np.int64(0)
    high, high_meets, high_slope = np.int64(-1), np.int64(0), np.int64(0)
    for _ in range(PRICES):
        if value <= enough:
            break
        slope = cap - o.uses[row]
        meets = value - price * slope
        if slope < 0:
            low, low_meets, low_slope = price, meets, slope
        else:
            high, high_meets, high_slope = price, meets, slope
            if price == 0 or slope == 0:
                break
        if low < 0:
            price = high - (high >> 2) if high > 8 and high == at and least == value else np.int64(0)
        elif high < 0:
            if low >= highest:
                break
            # The first guess is what the chosen columns are worth a token.
            price = low + (low >> 2) if low > 0 else (value - o.facts[CONSTANT]) // o.uses[row]
            price = min(max(price, low + 1), highest)
        else:
            # Where the two tangents meet, rounded up: what is chosen there keeps to the row.
            price = (low_meets - high_meets + high_slope - low_slope - 1) // (high_slope - low_slope)
            if price <= low or price >= high:
                break
        o.prices[row] = price
        value = bound(c, o)
        if value <= least:
            least, at = value, price
    o.prices[row] = at
    return least
