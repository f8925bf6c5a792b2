"""GreedyPack: the request allocation for one set of resident prefixes (paper section IV-E).

For a set R it keeps the running requests that R covers, preempts the others, and admits, one after the
other, the fitting request with the largest aged conditional progress per reserved token, while holding
a slot and the room of the smallest request for each prefix of R that nothing uses yet. Every
intermediate state in which all of R is used is a candidate. Compiled; integer nanoseconds throughout,
with the coefficients of :class:`topas.problem.Tables`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topas.compiled import kernel
from topas.problem import Problem, Table, int_fields
from topas.progress import mean_longest_path
from topas.residual import IntArray

NOTHING = -(1 << 62)
"""The value of a prefix set for which no state is feasible."""

ANY, ADMITTED, RUNNING, MOVED, SCORE = range(5)
"""``Pack.sums``: whether there is a state, its admissions, requests running, tokens moved, and score."""

TASK_STATE = int_fields("packed delayed joint mask")
"""Of a task in a pack: has it a request there, does it wait for a move, its gain (ns) and its set of
admissions as the memo names it."""


class Pack(NamedTuple):
    """A post-decision state: 0/1 by running request; admissions in order of choice with their gains."""

    kept: IntArray
    admitted: IntArray
    gains: IntArray
    sums: IntArray


class Room(NamedTuple):
    """Work space: the best state so far, the one being packed, and what is known of it.

    ``covered`` is 0/1 by agent; ``left`` are candidates in canonical order; by waiting request ``gain`` is
    that in the present pack, ``first`` that in an empty one; ``done`` is service by evaluated stage.
    """

    best: Pack
    pack: Pack
    covered: IntArray
    tasks: Table
    left: IntArray
    gain: IntArray
    first: IntArray
    done: IntArray
    finish: IntArray
    flags: IntArray


def room_for(problem: Problem) -> Room:
    """Return the work space of a search; no state is known."""
    agents, waiting, running = len(problem.agents), len(problem.waiting), len(problem.running)

    def zeros(size: int) -> IntArray:
        return np.zeros(size, dtype=np.int64)

    parts = [len(model.part) for model in problem.models if model]
    best, pack = (Pack(zeros(running), zeros(waiting), zeros(waiting), zeros(5)) for _ in range(2))
    tasks = np.zeros(len(problem.tasks), dtype=TASK_STATE)
    lists = (zeros(waiting), zeros(waiting), zeros(waiting))
    sizes = (sum(parts), max(parts, default=0), waiting + running)
    return Room(best, pack, zeros(agents), tasks, *lists, *map(zeros, sizes))


@kernel
def copy(source, target, count):
    """Copy the first values of an array."""
    for i in range(count):
        target[i] = source[i]


@kernel
def add_work(k, times, p, w):
    """Count the service of waiting request k as done, so many times more."""
    request = p.waiting[k]
    if request["stage"] >= 0:
        w.done[p.tasks[request["task"]]["part_at"] + request["stage"]] += times * request["work_ns"]


@kernel
def gain_ns(t, mask, p, w):
    """Return the aged gain of a task after the service in ``w.done``, that of the requests in its mask."""
    task = p.tasks[t]
    at = task["memo_at"] + mask
    left = p.paths.memo[at] if task["memo_at"] >= 0 else np.int64(-1)
    if left < 0:
        mean = mean_longest_path(p.paths, task["row"], w.done, task["part_at"], w.finish)
        left = np.int64(np.rint(mean + task["rest_ns"]))
        if task["memo_at"] >= 0:
            p.paths.memo[at] = left
    return np.int64(np.rint(task["age"] * np.float64(task["path_ns"] - left)))


@kernel
def conditional_gain_ns(k, p, w):
    """Return what waiting request k adds to the gain of its task in the present pack."""
    request = p.waiting[k]
    state = w.tasks[request["task"]]
    add_work(k, 1, p, w)
    joint = gain_ns(request["task"], state["mask"] | (1 << request["bit"]), p, w)
    add_work(k, -1, p, w)
    return joint - state["joint"]


@kernel
def clear(w):
    """Begin a pack: no admissions."""
    w.covered[:] = 0
    w.done[:] = 0
    for state in w.tasks:
        state["packed"] = 0
        state["delayed"] = 0
        state["joint"] = 0
        state["mask"] = 0


@kernel
def next_choice(left, room, slots, p, w):
    """Return the candidate of the largest gain a token among those that fit, or -1, and how many are left.

    A request of an uncovered prefix may use what is held for it: a slot, and the smallest reservation. What
    does not fit now never will, for room and slots only shrink. Without gain, tasks in the pack go first.
    """
    choice, ratio, known, kept = -1, -1.0, False, 0
    for i in range(left):
        k = w.left[i]
        request = p.waiting[k]
        a, tokens = request["agent"], request["reserve"]
        own = 0 if w.covered[a] else p.agents[a]["smallest"]
        if tokens - own > room or slots + (1 - w.covered[a]) < 1:
            continue
        w.left[kept] = k
        kept += 1
        gain = w.gain[k]
        this = 0.0
        if gain > 0:
            this = np.inf if tokens == 0 else gain / tokens
        packed = w.tasks[request["task"]]["packed"] == 1
        if this > ratio or (this == 0.0 and ratio == 0.0 and packed and not known):
            choice, ratio, known = k, this, packed
    return choice, kept


@kernel
def admit(choice, count, left, p, w):
    """Put a candidate into the pack as its admission number ``count``; return how many are left."""
    kept = 0
    for i in range(left):
        if w.left[i] != choice:
            w.left[kept] = w.left[i]
            kept += 1
    request = p.waiting[choice]
    t = request["task"]
    state, gain = w.tasks[t], w.gain[choice]
    w.pack.admitted[count] = choice
    w.pack.gains[count] = gain
    w.covered[request["agent"]] = 1
    state["packed"] = 1
    state["joint"] += gain
    state["mask"] |= 1 << request["bit"]
    add_work(choice, 1, p, w)
    if p.tasks[t]["ready"] > 1:  # the gains of the task change with this choice
        for i in range(kept):
            if p.waiting[w.left[i]]["task"] == t:
                w.gain[w.left[i]] = conditional_gain_ns(w.left[i], p, w)
    return kept


@kernel
def earlier(p, w):
    """Return whether the pack holds the first request, in canonical order, that only it or the best holds."""
    flags = w.flags
    flags[:] = 0
    for q in range(len(p.running)):
        flags[p.running[q]["rank"]] += w.pack.kept[q] + 2 * w.best.kept[q]
    for i in range(w.pack.sums[ADMITTED]):
        flags[p.waiting[w.pack.admitted[i]]["rank"]] += 1
    for i in range(w.best.sums[ADMITTED]):
        flags[p.waiting[w.best.admitted[i]]["rank"]] += 2
    for flag in flags:
        if flag in (1, 2):
            return flag == 1
    return False


@kernel
def beats(p, w):
    """Return whether the pack beats the best: score, more running, fewer moved tokens, earlier task.

    An empty state is the last resort: any other state beats it.
    """
    new, old = w.pack.sums, w.best.sums
    if not old[ANY] or (new[RUNNING] > 0) != (old[RUNNING] > 0):
        return not old[ANY] or new[RUNNING] > 0
    if new[SCORE] != old[SCORE]:
        return new[SCORE] > old[SCORE]
    if new[RUNNING] != old[RUNNING]:
        return new[RUNNING] > old[RUNNING]
    if new[MOVED] != old[MOVED]:
        return new[MOVED] < old[MOVED]
    return earlier(p, w)


@kernel
def offer(p, w):
    """Keep the pack, which is feasible, if it beats the best state."""
    if beats(p, w):
        count = w.pack.sums[ADMITTED]
        copy(w.pack.sums, w.best.sums, len(w.pack.sums))
        copy(w.pack.kept, w.best.kept, len(w.pack.kept))
        copy(w.pack.admitted, w.best.admitted, count)
        copy(w.pack.gains, w.best.gains, count)


@kernel
def greedy_pack(inside, p, w):
    """Pack under the prefix set ``inside`` (0/1 per agent), offering every state; return the best score.

    O(waiting x admissions). Returns :data:`NOTHING` if the set cannot be covered within the budget,
    the batch limit and the caps. ``w.first`` must be known.
    """
    waiting, running, sums = len(p.waiting), len(p.running), w.pack.sums
    used = 0
    move_ns = 0
    base_ns = np.int64(0)
    sums[ANY], sums[MOVED] = 1, 0
    for a in range(len(inside)):
        agent = p.agents[a]
        if inside[a]:
            used += agent["prefix"]
            base_ns += agent["reuse_ns"]
        if inside[a] != agent["resident"]:
            move_ns += agent["swap_ns"]
            sums[MOVED] += agent["prefix"]
    if used > p.budget:
        return NOTHING
    clear(w)
    kept = 0
    for q in range(running):
        request = p.running[q]
        a = request["agent"]
        w.pack.kept[q] = inside[a]
        if inside[a]:
            used += request["reserve"]
            kept += 1
            w.covered[a] = 1
            w.tasks[request["task"]]["packed"] = 1
        else:
            base_ns -= request["redo_ns"] + request["revoke_ns"]
    if p.cap > 0 and running - kept > p.cap:
        return NOTHING
    held = np.int64(0)
    uncovered = 0
    for a in range(len(inside)):
        if inside[a] and not w.covered[a]:
            if p.agents[a]["smallest"] < 0:
                return NOTHING
            held += p.agents[a]["smallest"]
            uncovered += 1
    slots = waiting
    if p.cap > 0:
        slots = min(slots, p.cap)
    if p.max_running > 0:
        slots = min(slots, p.max_running - kept)
    if used + held > p.budget or slots < uncovered:
        return NOTHING

    left = 0
    for k in range(waiting):
        if inside[p.waiting[k]["agent"]]:
            w.left[left] = k
            w.gain[k] = w.first[k]
            left += 1
    top = NOTHING
    count = 0
    gained_ns = np.int64(0)
    delayed = 0
    while True:
        if uncovered == 0:
            sums[ADMITTED], sums[RUNNING] = count, kept + count
            sums[SCORE] = gained_ns - move_ns * delayed + base_ns
            top = max(top, sums[SCORE])
            offer(p, w)
        choice, left = next_choice(left, p.budget - used - held, slots - count - uncovered, p, w)
        if choice < 0:
            return top
        request = p.waiting[choice]
        agent, state = p.agents[request["agent"]], w.tasks[request["task"]]
        if not w.covered[request["agent"]]:
            held -= agent["smallest"]
            uncovered -= 1
        used += request["reserve"]
        if not agent["resident"] and not state["delayed"]:
            state["delayed"] = 1
            delayed += 1
        left = admit(choice, count, left, p, w)
        gained_ns += w.pack.gains[count]
        count += 1


@kernel
def find_first_gains(p, w):
    """Find ``w.first``, what each waiting request gains alone."""
    clear(w)
    for k in range(len(p.waiting)):
        w.first[k] = conditional_gain_ns(k, p, w)


@kernel
def order_greedily(count, p, w):
    """Put the best state's ``count`` admissions, in canonical order, into the order of GreedyPack's choices.

    That is the order in which it would choose them from among themselves; their gains are left beside them.
    """
    clear(w)
    for q in range(len(p.running)):
        if w.best.kept[q]:
            w.tasks[p.running[q]["task"]]["packed"] = 1
    w.covered[:] = 1
    for i in range(count):
        k = w.best.admitted[i]
        w.left[i] = k
        w.gain[k] = conditional_gain_ns(k, p, w)
    left = count
    for i in range(count):
        choice, left = next_choice(left, p.budget, count, p, w)
        left = admit(choice, i, left, p, w)
    copy(w.pack.admitted, w.best.admitted, count)
    copy(w.pack.gains, w.best.gains, count)
    w.best.sums[ANY], w.best.sums[ADMITTED] = 1, count
