"""Bounds by prices: what prefix sets can be worth at most if tokens, slots and preemptions are paid for.

A Lagrangian relaxation. For prices y >= 0 of the rows

    prefixes of R' + tokens <= B;   admissions <= K;   running <= max_running;   staying >= running - K

the sum over groups of the best option less its price, plus the prices of all that is there to spend, bounds
the value of every state. It is bounded for all sets R' at once that hold the agents ``inside``, maybe some
``free`` ones, and no other: only moves that are sure are charged, and each free agent counts on its own. It
is worth what options with it bring beyond their group's best without a free agent - shared out evenly if they
need several free agents - and its reuse, less the price of its prefix; less than nothing counts as nothing.
All in integers: the bound is exact.
"""

from __future__ import annotations

import numpy as np

from oracle.branch.options import ADMITTED, MOST_VALUE, STAYS, TOKENS
from topas.compiled import kernel

RUNNING, KEPT = 2, 3
"""Places of prices and caps, behind those of tokens and admissions: the batch, and how many must stay."""

STEPS = 12
"""Most prices of one row tried in a turn."""
ROUNDS = 8
PRECISION = 10
"""Most turns of all rows, which end when one lowers the bound by less than a 2^10th."""


@kernel
def charge_for(j, prices, o):
    """Return the price of what option j takes."""
    return (
        prices[TOKENS] * o.takes[j, TOKENS]
        + (prices[ADMITTED] + prices[RUNNING]) * o.takes[j, ADMITTED]
        + (prices[RUNNING] - prices[KEPT]) * o.takes[j, STAYS]
    )


@kernel
def bound(inside, free, prices, worth, o):
    """Return the bound; what each free agent is worth is left in ``worth[0]``, by agent.

    O(options x agents of each). ``worth[1]`` is work space.
    """
    allowed = inside | free
    own, share = worth
    total = np.int64(o.nothing)
    total += prices[TOKENS] * o.caps[TOKENS] + prices[ADMITTED] * o.caps[ADMITTED]
    total += prices[RUNNING] * o.caps[RUNNING] - prices[KEPT] * o.caps[KEPT]
    move, room = np.int64(0), o.caps[TOKENS]
    for a in range(len(o.prefix)):
        own[a] = o.reuse[a] - prices[TOKENS] * o.prefix[a]
        share[a] = 0
        if (inside >> a) & 1:
            total += own[a]
            room -= o.prefix[a]
        if ((inside ^ o.resident) & ~free) >> a & 1:
            move += o.swap[a]
    for g in range(len(o.at) - 1):
        base, loose = np.int64(0), False
        for j in range(o.at[g] + 1, o.at[g + 1]):
            agents = o.agents[j]
            if agents & ~inside == 0:
                if o.takes[j, TOKENS] <= room:
                    base = max(base, o.value[j] - move * o.pays[j] - charge_for(j, prices, o))
            elif agents & ~allowed == 0:
                loose = True
        total += base
        if not loose:
            continue
        touched = np.int64(0)
        for j in range(o.at[g] + 1, o.at[g + 1]):
            agents = o.agents[j]
            if agents & ~allowed or agents & free == 0:
                continue
            left = o.value[j] - charge_for(j, prices, o) - base
            if left <= 0:
                continue
            count, moves = 0, move
            a, rest = o.lowest[j], (agents & free) >> o.lowest[j]
            while rest:
                if rest & 1:
                    count += 1
                    if not (o.resident >> a) & 1:
                        moves += o.swap[a]
                rest >>= 1
                a += 1
            left -= moves * o.pays[j]
            if left <= 0:
                continue
            if count > 1:
                left = -(-left // count)
            a, rest = o.lowest[j], (agents & free) >> o.lowest[j]
            while rest:
                if rest & 1:
                    share[a] = max(share[a], left)
                rest >>= 1
                a += 1
            touched |= agents & free
        a = 0
        while touched:
            if touched & 1:
                own[a] += share[a]
                share[a] = 0
            touched >>= 1
            a += 1
    for a in range(len(o.prefix)):
        if (free >> a) & 1 and own[a] > 0:
            total += own[a]
    return total


@kernel
def settle(row, enough, inside, free, prices, worth, o):
    """Minimise the bound over one price, until it is at most ``enough``; return the least bound found.

    It is taken as convex and piecewise linear: the next price is where the tangents on both sides meet.
    ``prices[row]`` is left at the price of the least bound.
    """
    highest = MOST_VALUE // max(o.caps[row], len(o.at), 1)
    price = min(prices[row], highest)
    least, at = MOST_VALUE << 1, price
    low, low_meets, low_slope = np.int64(-1), np.int64(0), np.int64(0)
    high, high_meets, high_slope = np.int64(-1), np.int64(0), np.int64(0)
    for _ in range(STEPS):
        prices[row] = price
        value = bound(inside, free, prices, worth, o)
        if value < least:
            least, at = value, price
        if value <= enough:
            break
        prices[row] = price + 1
        slope = bound(inside, free, prices, worth, o) - value
        if slope < 0:
            low, low_meets, low_slope = price, value - price * slope, slope
        else:
            high, high_meets, high_slope = price, value - price * slope, slope
            if price == 0 or slope == 0:
                break
        if low < 0:
            price = high - (high >> 2) if high == at and high >> 2 else np.int64(0)
        elif high < 0:
            # The first guess is what everything is worth, spread over what there is.
            price = low + (low >> 2) if low > 0 else (value - o.nothing) // max(o.caps[row], 1)
            price = min(max(price, low + 1), highest)
            if price <= low:
                break
        else:
            price = (low_meets - high_meets + high_slope - low_slope - 1) // (high_slope - low_slope)
            if price <= low or price >= high:
                break
    prices[row] = at
    return least


@kernel
def minimise(enough, inside, free, prices, worth, o):
    """Minimise the bound over all prices in turn, until it is at most ``enough``; return the least found.

    Tokens come last: their price alone would pay for what admissions are short of, and stay there.
    """
    least = MOST_VALUE << 1
    for _ in range(ROUNDS):
        before = least
        for i in range(len(o.rows) - 1, -1, -1):
            if least > enough:
                least = settle(o.rows[i], enough, inside, free, prices, worth, o)
        if least <= enough or len(o.rows) == 1 or before - least < least >> PRECISION:
            break
    return least
