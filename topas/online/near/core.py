"""The best state of one prefix set, among the columns that a bound leaves in question.

At some prices every column has a loss: how much less it is worth, beside its price, than the best one of its
task. A state falls short of the bound by the losses of its columns and the price of what it does not spend.
So only columns whose loss is below ``bound - best known value`` can be in a better state; tasks with one
such column are settled. Over the others, one after the other, goes a dynamic program whose labels are kept
apart by the agents used and, where they could bind, by the counters of the rows; of two such labels one
with no fewer tokens and no more value is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topas.online.near.inner import inner
from topas.online.near.pack import (
    FAR,
    LONE,
    STAYS,
    TASK,
    best_value,
    offer_choice,
    pick_by_price,
    set_lone,
    set_stays,
    set_task,
    worth,
)
from topas.online.near.prices import (
    ADMITTED,
    CONSTANT,
    DROPPED,
    INSIDE,
    NOTHING,
    RUNNING,
    SIZE,
    TASKS,
    TOKENS,
    bound,
)
from topas.residual import IntArray

WIDTH = 512
"""Most labels of one step; beyond that the lossiest are dropped, and nothing is proved."""
LABELS = 1 << 15


class Core(NamedTuple):
    """Work space. Groups: ``kind``, ``which`` (a lone column, task or running request), place of agent.

    Their options stand from ``options_at[g]`` on: column by place (or -1: none), value, loss, and what they
    use: rows in ``takes``, agents in ``covers``. Labels likewise, with the label before and the option.
    """

    kind: IntArray
    which: IntArray
    place: IntArray
    options_at: IntArray
    option: IntArray
    value: IntArray
    loss: IntArray
    takes: IntArray
    covers: IntArray
    least: IntArray
    most: IntArray
    reach: IntArray
    label_value: IntArray
    label_loss: IntArray
    label_takes: IntArray
    label_covers: IntArray
    label_before: IntArray
    label_option: IntArray


@inner
def core_for(c):
    """Return work space for the cores of an event."""
    groups = len(c.lone) + len(c.task_at) + len(c.keep) + 1
    options = 2 * groups + len(c.value)
    return Core(
        np.empty(groups, dtype=np.int64),
        np.empty(groups, dtype=np.int64),
        np.empty(groups, dtype=np.int64),
        np.empty(groups + 1, dtype=np.int64),
        np.empty(options, dtype=np.int64),
        np.empty(options, dtype=np.int64),
        np.empty(options, dtype=np.int64),
        np.empty((options, 4), dtype=np.int64),
        np.empty(options, dtype=np.int64),
        np.empty((groups + 1, 4), dtype=np.int64),
        np.empty((groups + 1, 4), dtype=np.int64),
        np.empty(groups + 1, dtype=np.int64),
        np.empty(LABELS, dtype=np.int64),
        np.empty(LABELS, dtype=np.int64),
        np.empty((LABELS, 4), dtype=np.int64),
        np.empty(LABELS, dtype=np.int64),
        np.empty(LABELS, dtype=np.int64),
        np.empty(LABELS, dtype=np.int64),
    )


@inner
def add_option(at, option, value, loss, tokens, admitted, running, dropped, agents, w):
    """Write one option."""
    w.option[at], w.value[at], w.loss[at], w.covers[at] = option, value, loss, agents
    w.takes[at, TOKENS], w.takes[at, ADMITTED] = tokens, admitted
    w.takes[at, RUNNING], w.takes[at, DROPPED] = running, dropped


@inner
def gather(gap, c, o, w):
    """List the groups that have more than one option of a loss below ``gap``, and the options of all.

    Groups with one option come first in value: their sum, and what they take, is returned.
    """
    groups, at = 0, 0
    fixed = np.zeros(4, dtype=np.int64)
    value, covered = o.facts[CONSTANT], np.int64(0)
    w.options_at[0] = 0
    for i in range(o.facts[SIZE]):
        b = o.bits[i]
        bit = np.int64(1) << b
        for j in range(c.lone_at[b], c.lone_at[b + 1]):
            if c.lone_size[j] > o.caps[TOKENS]:
                continue
            extra = worth(LONE, 0, j, i, c, o)
            if extra <= -gap:
                continue
            net = c.lone_value[j] - o.move[i]
            if extra >= gap:
                value += net
                covered |= bit
                fixed[TOKENS] += c.lone_size[j]
                fixed[ADMITTED] += 1
                fixed[RUNNING] += 1
                continue
            add_option(at, -1, 0, max(extra, 0), 0, 0, 0, 0, 0, w)
            add_option(at + 1, j, net, max(-extra, 0), c.lone_size[j], 1, 1, 0, bit, w)
            w.kind[groups], w.which[groups], w.place[groups] = LONE, j, b
            at += 2
            groups += 1
            w.options_at[groups] = at
    for t in range(o.facts[TASKS]):
        top = np.int64(0)
        for j in range(o.start[t], o.start[t + 1]):
            top = max(top, worth(TASK, t, j, 0, c, o))
        begin = at
        if top < gap:
            add_option(at, -1, 0, top, 0, 0, 0, 0, 0, w)
            at += 1
        for j in range(o.start[t], o.start[t + 1]):
            loss = top - worth(TASK, t, j, 0, c, o)
            if loss < gap:
                add_option(
                    at, j, o.value[j], loss, o.size[j], o.requests[j], o.requests[j], 0, o.agents[j], w
                )
                at += 1
        if at == begin + 1:
            at = begin
            value += w.value[at]
            covered |= w.covers[at]
            fixed += w.takes[at]
        else:
            w.kind[groups], w.which[groups], w.place[groups] = TASK, t, 0
            groups += 1
            w.options_at[groups] = at
    for q in range(len(c.keep)):
        if not (o.facts[INSIDE] >> c.running_bit[q]) & 1:
            continue
        extra = worth(STAYS, q, 0, 0, c, o)
        bit = np.int64(1) << c.running_bit[q]
        if extra >= gap:
            value += c.keep[q]
            covered |= bit
            fixed[TOKENS] += c.running_size[q]
            fixed[RUNNING] += 1
        elif extra <= -gap:
            fixed[DROPPED] += 1
        else:
            add_option(at, -1, 0, max(extra, 0), 0, 0, 0, 1, 0, w)
            add_option(at + 1, q, c.keep[q], max(-extra, 0), c.running_size[q], 0, 1, 0, bit, w)
            w.kind[groups], w.which[groups], w.place[groups] = STAYS, q, 0
            at += 2
            groups += 1
            w.options_at[groups] = at
    return groups, value, covered, fixed


@inner
def thin(first, count, w):
    """Keep the labels that lose no more than the mean; return how many, and that mean."""
    total = 0.0
    for i in range(first, first + count):
        total += w.label_loss[i]
    limit = np.int64(total / count)
    left = first
    for i in range(first, first + count):
        if w.label_loss[i] <= limit:
            w.label_value[left] = w.label_value[i]
            w.label_loss[left] = w.label_loss[i]
            w.label_takes[left] = w.label_takes[i]
            w.label_covers[left] = w.label_covers[i]
            w.label_before[left] = w.label_before[i]
            w.label_option[left] = w.label_option[i]
            left += 1
    return left - first, limit + 1


@inner
def solve_core(c, p, o, x, best, w):
    """Offer the best state of the opened set if it beats the best known one; return whether that is sure."""
    known = best_value(best, c)
    if known == NOTHING:
        return False
    gap = bound(c, o) - known
    if gap <= 0:
        return True
    groups, base, covered, fixed = gather(gap, c, o, w)
    need = o.facts[INSIDE] & ~covered
    key = np.empty(groups, dtype=np.int64)
    for g in range(groups):
        second = np.int64(FAR)
        for j in range(w.options_at[g], w.options_at[g + 1]):
            if w.loss[j] > 0:
                second = min(second, w.loss[j])
        key[g] = -second if second < FAR else 0
    order = np.argsort(key, kind="mergesort")
    # What the groups from place i on take at least and at most, and the agents that they can use.
    w.least[groups] = 0
    w.most[groups] = 0
    w.reach[groups] = 0
    for i in range(groups - 1, -1, -1):
        g = order[i]
        w.least[i] = FAR
        w.most[i] = 0
        w.reach[i] = w.reach[i + 1]
        for j in range(w.options_at[g], w.options_at[g + 1]):
            for row in range(4):
                w.least[i, row] = min(w.least[i, row], w.takes[j, row])
                w.most[i, row] = max(w.most[i, row], w.takes[j, row])
            w.reach[i] |= w.covers[j]
        for row in range(4):
            w.least[i, row] += w.least[i + 1, row]
            w.most[i, row] += w.most[i + 1, row]
    counted = np.zeros(4, dtype=np.int64)
    for row in range(1, 4):
        counted[row] = o.active[row] and fixed[row] + w.most[0, row] > o.caps[row]

    w.label_value[0], w.label_loss[0], w.label_covers[0] = base, 0, 0
    w.label_takes[0] = fixed
    first, count = 0, 1
    sure = True
    heads = np.empty(1 << 11, dtype=np.int64)
    tag_covers = np.empty(WIDTH + 1, dtype=np.int64)
    tag_counts = np.empty(WIDTH + 1, dtype=np.int64)
    tag_value = np.empty(WIDTH + 1, dtype=np.int64)
    token = o.prices[TOKENS]
    for i in range(groups):
        g = order[i]
        begin, options = w.options_at[g], w.options_at[g + 1] - w.options_at[g]
        if options > len(heads) or first + count + WIDTH >= LABELS:
            return False
        heads[:options] = first
        new, made, tags = first + count, 0, 0
        while True:
            # Labels of a step stand in order of tokens: merge those that each option makes.
            fewest, option = np.int64(FAR), -1
            for j in range(options):
                if heads[j] < first + count:
                    tokens = w.label_takes[heads[j], TOKENS] + w.takes[begin + j, TOKENS]
                    if tokens < fewest:
                        fewest, option = tokens, j
            if option < 0:
                break
            label = heads[option]
            heads[option] += 1
            j = begin + option
            if fewest + w.least[i + 1, TOKENS] > o.caps[TOKENS]:
                continue
            loss = w.label_loss[label] + w.loss[j]
            unspent = o.caps[TOKENS] - fewest - w.most[i + 1, TOKENS]
            if loss + token * max(unspent, 0) >= gap:
                continue
            covers = (w.label_covers[label] | w.covers[j]) & need
            if need & ~(covers | w.reach[i + 1]):
                continue
            counts = np.int64(0)
            fits = True
            for row in range(1, 4):
                if counted[row]:
                    taken = w.label_takes[label, row] + w.takes[j, row]
                    fits = fits and taken + w.least[i + 1, row] <= o.caps[row]
                    counts = (counts << 20) | taken
            if not fits:
                continue
            value = w.label_value[label] + w.value[j]
            tag = 0
            while tag < tags and (tag_covers[tag] != covers or tag_counts[tag] != counts):
                tag += 1
            if tag == tags:
                if tags == WIDTH:
                    sure = False
                    continue
                tag_covers[tag], tag_counts[tag] = covers, counts
                tags += 1
            elif tag_value[tag] >= value:
                continue
            tag_value[tag] = value
            at = new + made
            w.label_value[at], w.label_loss[at], w.label_covers[at] = value, loss, covers
            for row in range(4):
                w.label_takes[at, row] = w.label_takes[label, row] + w.takes[j, row]
            w.label_before[at], w.label_option[at] = label, j
            made += 1
            if made == WIDTH:
                sure = False
                made, gap = thin(new, made, w)
                if made > WIDTH - WIDTH // 8:
                    return False
        first, count = new, made
        if made == 0:
            return sure
    top, which = known, -1
    for label in range(first, first + count):
        inside = w.label_covers[label] == need
        for row in range(4):
            if row == TOKENS or o.active[row]:
                inside = inside and w.label_takes[label, row] <= o.caps[row]
        if inside and w.label_value[label] > top:
            top, which = w.label_value[label], label
    if which < 0:
        return sure
    pick_by_price(c, o, x)
    for i in range(groups - 1, -1, -1):
        g = order[i]
        j = w.option[w.label_option[which]]
        if w.kind[g] == LONE:
            if x.lone[w.which[g]] != (j >= 0):
                set_lone(w.which[g], w.place[g], 1 if j >= 0 else 0, c, x)
        elif w.kind[g] == TASK:
            set_task(w.which[g], j, o, x)
        elif x.stays[w.which[g]] != (j >= 0):
            set_stays(w.which[g], 1 if j >= 0 else 0, c, x)
        which = w.label_before[which]
    offer_choice(c, p, o, x, best)
    return sure
