"""Which prefix sets are packed: local search for a good one, then branch and bound over all.

A node has agents that are in, agents that are out, and free ones. Its bound is that of :mod:`prices` with the
columns that need no agent that is out, moves as far as they are sure, and each free agent on its own: it is
worth what columns with it bring beyond the best without a free agent - shared out evenly if they need several
free agents - and its reuse, less the price of its prefix; less than nothing counts as nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from topas.online.near.columns import EXACT, IDLE_SWAP, LOST, MOST_VALUE, RESIDENT, USED, columns_of
from topas.online.near.core import core_for, solve_core
from topas.online.near.inner import inner
from topas.online.near.pack import best_value, pack, picked_for
from topas.online.near.prices import (
    ADMITTED,
    DROPPED,
    NOTHING,
    RUNNING,
    TOKENS,
    bound,
    open_set,
    opened_for,
    settle,
)
from topas.residual import IntArray

MOST_PRECISE = 0.02
"""Prices of the whole search are tuned to this share of themselves."""
SEEN = 1 << 12
"""Prefix sets whose bound is remembered, a power of two."""


class Work(NamedTuple):
    """What the search has done, and its work space; ``counts``: see the constants."""

    seen: IntArray
    seen_bound: IntArray
    worth: IntArray
    share: IntArray
    stack: IntArray
    counts: IntArray


NODES, PACKED, CORES, BOUNDED, REMEMBERED = range(5)


@inner
def place_of(inside, w):
    """Return where a set is remembered, or would be; -1 if the table is nearly full."""
    at = (inside * 0x1E3779B97F4A7C15) & (SEEN - 1)
    while w.seen[at] >= 0 and w.seen[at] != inside:
        at = (at + 1) & (SEEN - 1)
    if w.seen[at] < 0 and w.counts[REMEMBERED] > SEEN // 2:
        return -1
    return at


@inner
def visit(inside, c, p, o, x, best, core, w, exactly):
    """Bound a prefix set, and pack it if it may hold a better state; return whether that is settled.

    ``exactly``: settled means that it holds no better state than the best one now.
    """
    at = place_of(inside, w)
    known = best_value(best, c)
    if at >= 0 and w.seen[at] == inside and (w.seen_bound[at] <= known or not exactly):
        return w.seen_bound[at] <= known
    if not open_set(inside, c, p, o):
        least = np.int64(NOTHING)
    else:
        w.counts[BOUNDED] += 1
        least = settle(TOKENS, known, c, o)
        if least > known:
            again = False
            for row in (ADMITTED, RUNNING, DROPPED):
                if o.active[row] and (o.prices[row] > 0 or o.uses[row] > o.caps[row]):
                    least = settle(row, known, c, o)
                    again = True
                    bound(c, o)
                    if least <= known:
                        break
            if again and least > known:
                least = settle(TOKENS, known, c, o)
    settled = least <= known
    if not settled:
        w.counts[PACKED] += 1
        bound(c, o)
        pack(c, p, o, x, best)
        settled = least <= best_value(best, c)
        if exactly and not settled:
            w.counts[CORES] += 1
            settled = solve_core(c, p, o, x, best, core)
            if settled:
                least = best_value(best, c)
    if at >= 0:
        if w.seen[at] < 0:
            w.counts[REMEMBERED] += 1
        w.seen[at], w.seen_bound[at] = inside, least
    return settled


@inner
def climb(start, c, p, o, x, best, core, w):
    """Add, drop and swap single agents of a set as long as that finds better states; return the last set."""
    pool = len(c.agent)
    inside = start
    while True:
        known, found = best_value(best, c), inside
        for swaps in range(2):
            for a in range(pool):
                for b in range(pool):
                    trial = inside ^ (np.int64(1) << a)
                    if swaps:
                        if not (inside >> a) & 1 or (inside >> b) & 1:
                            continue
                        trial ^= np.int64(1) << b
                    elif a != b:
                        continue
                    if trial:
                        visit(trial, c, p, o, x, best, core, w, exactly=False)
                        value = best_value(best, c)
                        if value > known:
                            known, found = value, trial
        if found == inside:
            return inside
        inside = found


@inner
def node_bound(inside, free, prices, c, p, w):
    """Return the bound of a node, leaving in ``w.worth`` what each free agent is worth."""
    pool = len(c.agent)
    resident = c.numbers[RESIDENT]
    token, admission = prices[TOKENS], prices[ADMITTED] + prices[RUNNING]
    stays = prices[DROPPED] - prices[RUNNING]
    total = token * p.budget - c.numbers[LOST]
    move = c.numbers[IDLE_SWAP]
    for b in range(pool):
        w.worth[b] = c.reuse[b] - token * c.prefix[b]
        w.share[b] = 0
        here = (inside >> b) & 1
        if here:
            total += w.worth[b]
        if here != (resident >> b) & 1 and not (free >> b) & 1:
            move += c.swap[b]
    allowed = inside | free
    for b in range(pool):
        if not (allowed >> b) & 1:
            continue
        here = (inside >> b) & 1
        charge = admission
        if not (resident >> b) & 1:
            charge += move if here else move + c.swap[b]
        sum_b = np.int64(0)
        for j in range(c.lone_at[b], c.lone_at[b + 1]):
            price = token * c.lone_size[j]
            value = c.lone_value[j]
            if value < price - (price >> 30):
                break
            sum_b += max(value - charge - price, 0)
        if here:
            total += sum_b
        else:
            w.worth[b] += sum_b
    for m in range(len(c.task_at) - 1):
        begin, end = c.task_at[m], c.task_at[m + 1]
        base, used = np.int64(0), np.int64(0)
        for j in range(begin, end):
            agents = c.agents[j]
            if agents & ~inside == 0:
                left = c.value[j] - move * c.pays[j] - token * c.size[j] - admission * c.requests[j]
                base = max(base, left)
        total += base
        for j in range(begin, end):
            agents = c.agents[j]
            if agents & ~allowed or agents & free == 0:
                continue
            left = c.value[j] - token * c.size[j] - admission * c.requests[j] - base
            if left <= 0:
                continue
            open_agents = agents & free
            count = 0
            charge = move
            b = 0
            rest = open_agents
            while rest:
                if rest & 1:
                    count += 1
                    if not (resident >> b) & 1:
                        charge += c.swap[b]
                rest >>= 1
                b += 1
            left -= charge * c.pays[j]
            if left <= 0:
                continue
            if count > 1:
                left = -(-left // count)
            b = 0
            rest = open_agents
            while rest:
                if rest & 1:
                    w.share[b] = max(w.share[b], left)
                rest >>= 1
                b += 1
            used |= open_agents
        b = 0
        while used:
            if used & 1:
                w.worth[b] += w.share[b]
                w.share[b] = 0
            used >>= 1
            b += 1
    out = 0
    stay = 0
    for q in range(len(c.keep)):
        b = c.running_bit[q]
        if not (allowed >> b) & 1:
            out += 1
            continue
        stay += 1
        left = max(c.keep[q] + stays - token * c.running_size[q], 0)
        if (inside >> b) & 1:
            total += left
        else:
            w.worth[b] += left
    waiting = len(p.waiting_agent)
    total += prices[ADMITTED] * (p.cap if p.cap > 0 else waiting)
    total += prices[RUNNING] * (p.max_running if p.max_running > 0 else waiting + len(c.keep))
    if p.cap > 0:
        if out > p.cap:
            return np.int64(NOTHING)
        total += prices[DROPPED] * (p.cap - out - stay)
    for b in range(pool):
        if (free >> b) & 1 and w.worth[b] > 0:
            total += w.worth[b]
    return total


@inner
def tune(everything, prices, c, p, best, w):
    """Change the prices of tokens and admissions in turn while that lowers the bound of all sets."""
    known = best_value(best, c)
    least = node_bound(0, everything, prices, c, p, w)
    worth_of_all = max(least + c.numbers[LOST], 0)
    step = 0.5
    while step > MOST_PRECISE and least > known:
        lowered = False
        for row in (TOKENS, ADMITTED):
            if row == ADMITTED and p.cap == 0:
                continue
            cap = p.budget if row == TOKENS else p.cap
            before = prices[row]
            # From nothing a price starts at a share of what all of the row could bring.
            high = (
                np.int64(before * (1 + step))
                if before > 0
                else np.int64(step * worth_of_all / max(cap, 1) / 4)
            )
            for trial in (min(high, MOST_VALUE // max(cap, 1)), np.int64(before * (1 - step))):
                prices[row] = trial
                found = node_bound(0, everything, prices, c, p, w)
                if found < least:
                    least, before, lowered = found, trial, True
                    break
            prices[row] = before
        if not lowered:
            step /= 2


@inner
def too_large(inside, c, p):
    """Return whether the prefixes of a set, and a request for each, exceed the budget for sure."""
    total = np.int64(0)
    for b in range(len(c.agent)):
        if (inside >> b) & 1:
            total += c.prefix[b]
            if not (c.numbers[USED] >> b) & 1:
                total += c.least[b]
    return total > p.budget


@inner
def branch(start, most, c, p, o, x, best, core, w):
    """Search all prefix sets, a good one first; return whether no state is better than the best for sure."""
    pool = len(c.agent)
    sure = c.numbers[EXACT] == 1
    everything = (np.int64(1) << pool) - 1
    prices = o.prices.copy()
    prices[TOKENS] = min(prices[TOKENS], MOST_VALUE // max(p.budget, 1))
    tune(everything, prices, c, p, best, w)
    w.stack[0], w.stack[1] = 0, everything
    top = 1
    if start:
        # On top of the stack, as a node without free agents.
        w.stack[2], w.stack[3] = start, 0
        top = 2
    while top > 0:
        top -= 1
        inside, free = w.stack[2 * top], w.stack[2 * top + 1]
        if w.counts[NODES] >= most:
            return False
        w.counts[NODES] += 1
        known = best_value(best, c)
        closed = too_large(inside, c, p)
        while not closed:
            value = node_bound(inside, free, prices, c, p, w)
            if value <= known:
                closed = True
                break
            chosen, chosen_worth = -1, np.int64(-1)
            forced = False
            for b in range(pool):
                if not (free >> b) & 1:
                    continue
                bit = np.int64(1) << b
                gain = w.worth[b]
                if gain > 0 and value - gain <= known:
                    inside |= bit
                    free ^= bit
                    forced = True
                elif (gain <= 0 and value + gain <= known) or too_large(inside | bit, c, p):
                    free ^= bit
                    forced = True
                elif abs(gain) > chosen_worth:
                    chosen, chosen_worth = b, abs(gain)
            if forced:
                closed = too_large(inside, c, p)
                continue
            if free == 0:
                if inside:
                    sure = visit(inside, c, p, o, x, best, core, w, exactly=True) and sure
                closed = True
                break
            bit = np.int64(1) << chosen
            first, second = inside | bit, inside
            if w.worth[chosen] <= 0:
                first, second = second, first
            w.stack[2 * top], w.stack[2 * top + 1] = second, free ^ bit
            w.stack[2 * top + 2], w.stack[2 * top + 3] = first, free ^ bit
            top += 2
            break
    return sure


@numba.njit(cache=True)
def near_search(active, scale, p, best, nodes, looks):
    """Leave the best state found in ``best``; return whether it is proved best, and what was done.

    ``active`` are the agents with requests, ``scale`` that of values; the branch and bound has at most
    ``nodes`` nodes, and looks at columns at most ``looks`` times.
    """
    c = columns_of(active, scale, p)
    o, x, core = opened_for(c, p), picked_for(c, p), core_for(c)
    pool = len(c.agent)
    w = Work(
        np.full(SEEN, -1, dtype=np.int64),
        np.empty(SEEN, dtype=np.int64),
        np.zeros(pool, dtype=np.int64),
        np.zeros(pool, dtype=np.int64),
        np.zeros(4 * pool + 8, dtype=np.int64),
        np.zeros(5, dtype=np.int64),
    )
    start = np.int64(0)
    for inside in (c.numbers[USED], c.numbers[RESIDENT]):
        before = best_value(best, c)
        if inside:
            visit(inside, c, p, o, x, best, core, w, exactly=False)
        if best_value(best, c) > before:
            start = inside
    start = climb(start, c, p, o, x, best, core, w)
    sure = False
    if best_value(best, c) > NOTHING:
        most = min(nodes, looks // (len(c.lone) + len(c.value) + 1))
        sure = branch(start, most, c, p, o, x, best, core, w)
    return sure, w.counts
