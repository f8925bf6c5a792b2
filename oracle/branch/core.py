"""The best state of one prefix set, among the options that a bound leaves in question.

At some prices every option has a loss: how much less it is worth, beside its price, than the best one of
its group. A state falls short of the bound by the losses of its options and the price of what it does not
spend. So the states within a gap of the bound have only options whose loss is below the gap; groups with one
such option are settled. Over the others, one after the other, goes a dynamic program; a label that takes no
less, covers no more and is worth no more than another is dropped. The gap is widened until the best state is
within it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oracle.branch.options import ADMITTED, MOST_VALUE, STAYS, TOKENS, Options
from oracle.branch.prices import KEPT, RUNNING, charge_for, minimise
from topas.compiled import allocating_kernel, kernel
from topas.problem import Table, int_fields
from topas.residual import IntArray

WIDTH = 256
"""Most labels of one step; beyond that the lossiest are dropped, and nothing is proved."""
LABELS = 1 << 15
WIDER = 3
"""The gap grows by so many bits."""
NOTHING = -(MOST_VALUE << 1)
"""Less than the value of any state."""

LABEL = int_fields("value loss tokens admitted stays covers before option")
"""The choice made for a number of groups: what it is worth, loses and takes, the agents that it uses, and the
label and the option that it comes from."""


class Core(NamedTuple):
    """Work space, and the best state: ``chosen`` options by group, of ``value[0]``.

    ``group`` are the groups in question; their options stand from ``start`` on, in ``option`` with ``loss``.
    """

    value: IntArray
    chosen: IntArray
    trial: IntArray
    group: IntArray
    start: IntArray
    option: IntArray
    loss: IntArray
    labels: Table


def core_for(o: Options) -> Core:
    """Return the work space; no state is known."""
    groups, options = len(o.at) - 1, len(o.value)

    def zeros(size: int) -> IntArray:
        return np.zeros(size, dtype=np.int64)

    return Core(
        value=np.full(1, NOTHING),
        chosen=zeros(groups),
        trial=zeros(groups),
        group=zeros(groups),
        start=zeros(groups + 1),
        option=zeros(options),
        loss=zeros(options),
        labels=np.zeros(LABELS, dtype=LABEL),
    )


@kernel
def gather(inside, gap, prices, o, core):
    """List the groups that have several options of a loss below the gap, settle the others.

    The settled ones, and the set itself, are label 0. Returns how many groups are left.
    """
    first, move, groups, at = core.labels[0], np.int64(0), 0, 0
    first["value"], first["tokens"] = o.nothing, 0
    first["loss"] = first["admitted"] = first["stays"] = first["covers"] = 0
    for a in range(len(o.prefix)):
        if (inside >> a) & 1:
            first["tokens"] += o.prefix[a]
            first["value"] += o.reuse[a]
        if ((inside ^ o.resident) >> a) & 1:
            move += o.swap[a]
    room = o.caps[TOKENS] - first["tokens"]
    for g in range(len(o.at) - 1):
        top = np.int64(0)
        for turn in range(2):
            for j in range(o.at[g], o.at[g + 1]):
                if o.agents[j] & ~inside or o.takes[j, TOKENS] > room:
                    continue
                left = o.value[j] - move * o.pays[j] - charge_for(j, prices, o)
                if turn == 0:
                    top = max(top, left)
                elif top - left < gap:
                    core.option[at], core.loss[at] = j, top - left
                    at += 1
        begin = core.start[groups]
        if at == begin + 1:
            at = begin
            take(first, core.option[begin], move, o)
            core.trial[g] = core.option[begin]
        else:
            core.group[groups] = g
            groups += 1
            core.start[groups] = at
    return groups, move


@kernel
def take(label, j, move, o):
    """Add option j to a label."""
    label["value"] += o.value[j] - move * o.pays[j]
    label["tokens"] += o.takes[j, TOKENS]
    label["admitted"] += o.takes[j, ADMITTED]
    label["stays"] += o.takes[j, STAYS]
    label["covers"] |= o.agents[j]


@allocating_kernel
def explore(inside, gap, prices, o, core):
    """Look for the best state whose loss is below the gap; return whether there is none better for sure."""
    core.start[0] = 0
    groups, move = gather(inside, gap, prices, o, core)
    labels, start, option, losses = core.labels, core.start, core.option, core.loss
    key = np.empty(groups, dtype=np.int64)
    for i in range(groups):
        key[i] = MOST_VALUE << 1
        for j in range(start[i], start[i + 1]):
            if losses[j] > 0:
                key[i] = min(key[i], losses[j])
        key[i] %= MOST_VALUE << 1
    order = np.argsort(-key, kind="mergesort")
    # What the groups from place i on take at least and at most, and the agents that they can use.
    least = np.zeros((groups + 1, 3), dtype=np.int64)
    most = np.zeros((groups + 1, 3), dtype=np.int64)
    reach = np.zeros(groups + 1, dtype=np.int64)
    for i in range(groups - 1, -1, -1):
        least[i] = 1 << 40
        reach[i] = reach[i + 1]
        for j in range(start[order[i]], start[order[i] + 1]):
            reach[i] |= o.agents[option[j]]
            for row in range(3):
                least[i, row] = min(least[i, row], o.takes[option[j], row])
                most[i, row] = max(most[i, row], o.takes[option[j], row])
        least[i] += least[i + 1]
        most[i] += most[i + 1]
    caps = o.caps
    slots = labels[0]["admitted"] + most[0, ADMITTED] > caps[ADMITTED]
    batch = labels[0]["admitted"] + labels[0]["stays"] + most[0, ADMITTED] + most[0, STAYS] > caps[RUNNING]
    drops = labels[0]["stays"] + least[0, STAYS] < caps[KEPT]

    sure = True
    first, end = 0, 1
    for i in range(groups + 1):
        # Leave the labels of this step that may lead to a state, in order of tokens.
        step = labels[first:end].copy()
        place = np.argsort(step["tokens"], kind="mergesort")
        end = first
        for at in place:
            label = step[at]
            unspent = caps[TOKENS] - label["tokens"] - most[i, TOKENS]
            running = label["admitted"] + label["stays"]
            if (
                label["tokens"] + least[i, TOKENS] > caps[TOKENS]
                or label["admitted"] + least[i, ADMITTED] > caps[ADMITTED]
                or running + least[i, ADMITTED] + least[i, STAYS] > caps[RUNNING]
                or label["stays"] + most[i, STAYS] < caps[KEPT]
                or label["loss"] + prices[TOKENS] * max(unspent, 0) >= gap
                or inside & ~(label["covers"] | reach[i])
            ):
                continue
            dominated = False
            for rank in range(end - 1, first - 1, -1):
                other = labels[rank]
                if (
                    other["value"] >= label["value"]
                    and label["covers"] & ~other["covers"] == 0
                    and (not slots or other["admitted"] <= label["admitted"])
                    and (not batch or other["admitted"] + other["stays"] <= running)
                    and (not drops or other["stays"] >= label["stays"])
                ):
                    dominated = True
                    break
            if not dominated:
                labels[end] = label
                end += 1
        if end - first > WIDTH:
            sure = False
            step = labels[first:end].copy()
            place = np.argsort(step["loss"], kind="mergesort")[: WIDTH // 2]
            for at in range(WIDTH // 2):
                labels[first + at] = step[place[at]]
            end = first + WIDTH // 2
        if i == groups or end == first:
            break
        begin, options = start[order[i]], start[order[i] + 1] - start[order[i]]
        new = end + (end - first) * options
        if new > LABELS:
            return False
        at = end
        # Of equal states the one with the earlier requests comes first, and stays.
        for before in range(end - 1, first - 1, -1):
            for j in range(begin, begin + options):
                labels[at] = labels[before]
                take(labels[at], option[j], move, o)
                labels[at]["loss"] += losses[j]
                labels[at]["before"], labels[at]["option"] = before, option[j]
                at += 1
        first, end = end, at
    top = -1
    for at in range(first, end):
        if labels[at]["value"] > core.value[0]:
            core.value[0], top = labels[at]["value"], at
    if top >= 0:
        for i in range(groups - 1, -1, -1):
            core.trial[core.group[order[i]]] = labels[top]["option"]
            top = labels[top]["before"]
        core.chosen[:] = core.trial
    return sure


@allocating_kernel
def solve_set(inside, prices, worth, o, core):
    """Find the best state of a prefix set if it beats the best one known; return whether that is sure.

    ``prices`` are those to begin with; good ones for the next set are left there.
    """
    value = minimise(core.value[0], inside, np.int64(0), prices, worth, o)
    gap = max((value - o.nothing) >> (4 * WIDER), 1)
    while value > core.value[0]:
        known = core.value[0]
        gap = min(gap, value - known)
        sure = explore(inside, gap, prices, o, core)
        if gap >= value - core.value[0] and sure:
            return True
        if sure:
            gap <<= WIDER
        elif core.value[0] == known or gap <= value - core.value[0]:
            return False
    return True
