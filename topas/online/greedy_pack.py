"""GreedyPack: the request allocation for one set of resident prefixes (paper section IV-E).

For a set R it keeps the running requests that R covers, preempts the others, and admits, one after the
other, the fitting request with the largest aged conditional progress per reserved token, while holding
a slot and the room of the smallest request for each prefix of R that nothing uses yet. Every
intermediate state in which all of R is used is a candidate. Compiled; integer nanoseconds throughout,
with the coefficients of :class:`topas.problem.Problem`.
"""

from __future__ import annotations

import numpy as np

from topas.compiled import allocating_kernel
from topas.progress import mean_longest_path

NOTHING = -(1 << 62)
"""The value of a prefix set for which no state is feasible."""


@allocating_kernel
def left_ns(task, bit, stage, work, mask, done, p):
    """Return L of a task after the work in ``done`` and one more request, through the memo if it has one."""
    at = p.memo_at[task]
    if at >= 0:
        known = p.memo[at + (mask | (1 << bit))]
        if known >= 0:
            return known
    part = p.part_at[task]
    done[part + stage] += work
    mean = mean_longest_path(p.z, p.weights, p.before, p.before_at, p.rows[p.row[task]], done, part, p.finish)
    done[part + stage] -= work
    left = np.int64(np.rint(mean + p.rest_ns[task]))
    if at >= 0:
        p.memo[at + (mask | (1 << bit))] = left
    return left


@allocating_kernel
def joint_gain_ns(k, task, mask, done, p):
    """Return the aged gain of a task's admissions so far together with waiting request k."""
    if p.work_stage[k] < 0:
        # The request's stage has no service left to do: it changes nothing.
        left = p.memo[p.memo_at[task] + mask] if p.memo_at[task] >= 0 else np.int64(-1)
        if left < 0:
            left = left_ns(task, p.work_bit[k], 0, 0, mask, done, p)
    else:
        left = left_ns(task, p.work_bit[k], p.work_stage[k], p.work_ns[k], mask, done, p)
    return np.int64(np.rint(p.age[task] * np.float64(p.path_ns[task] - left)))


@allocating_kernel
def earlier(p, best, kept, chosen, count):
    """Return whether a state holds the first request, in canonical order, that only one of two holds."""
    flags = p.flags
    flags[:] = 0
    for q in range(len(kept)):
        if kept[q]:
            flags[p.running_rank[q]] += 1
        if best.kept[q]:
            flags[p.running_rank[q]] += 2
    for i in range(count):
        flags[p.waiting_rank[chosen[i]]] += 1
    for i in range(best.counts[1]):
        flags[p.waiting_rank[best.admitted[i]]] += 2
    for flag in flags:
        if flag == 1:
            return True
        if flag == 2:
            return False
    return False


@allocating_kernel
def offer(p, best, score, running, moved, kept, chosen, gains, count):
    """Keep a feasible state if it beats the best: score, more running, fewer moved tokens, earlier task.

    An empty state is the last resort: any other state beats it.
    """
    have = best.counts[0]
    if have and best.counts[2] > 0 and running == 0:
        return
    if have and not (best.counts[2] == 0 and running > 0):
        if score < best.counts[4]:
            return
        if score == best.counts[4]:
            if running < best.counts[2]:
                return
            if running == best.counts[2]:
                if moved > best.counts[3]:
                    return
                if moved == best.counts[3] and not earlier(p, best, kept, chosen, count):
                    return
    best.counts[0] = 1
    best.counts[1] = count
    best.counts[2] = running
    best.counts[3] = moved
    best.counts[4] = score
    best.kept[:] = kept
    best.admitted[:count] = chosen[:count]
    best.gains[:count] = gains[:count]


@allocating_kernel
def greedy_pack(inside, p, best, s):
    """Pack under the prefix set ``inside`` (0/1 per agent), offering every state; return the best score.

    O(waiting x admissions). Returns :data:`NOTHING` if the set cannot be covered within the budget,
    the batch limit and the caps.
    """
    agents, waiting, running = len(inside), len(p.waiting_agent), len(p.running_agent)
    used = 0
    move_ns = 0
    moved = np.int64(0)
    reuse_ns = np.int64(0)
    for a in range(agents):
        if inside[a]:
            used += p.prefix[a]
            reuse_ns += p.reuse_ns[a]
        if inside[a] != p.resident[a]:
            move_ns += p.swap_ns[a]
            moved += p.prefix[a]
    if used > p.budget:
        return NOTHING
    s.covered[:] = 0
    s.in_pack[:] = 0
    s.delayed[:] = 0
    kept_count = 0
    drop_ns = np.int64(0)
    for q in range(running):
        a = p.running_agent[q]
        s.kept[q] = inside[a]
        if inside[a]:
            used += p.running_reserve[q]
            kept_count += 1
            s.covered[a] = 1
            s.in_pack[p.running_task[q]] = 1
        else:
            drop_ns += p.redo_ns[q] + p.revoke_ns[q]
    if p.cap > 0 and running - kept_count > p.cap:
        return NOTHING
    held = np.int64(0)
    uncovered = 0
    for a in range(agents):
        if inside[a] and not s.covered[a]:
            if p.smallest[a] < 0:
                return NOTHING
            held += p.smallest[a]
            uncovered += 1
    slots = waiting
    if p.cap > 0:
        slots = min(slots, p.cap)
    if p.max_running > 0:
        slots = min(slots, p.max_running - kept_count)
    if used + held > p.budget or slots < uncovered:
        return NOTHING

    left = 0
    for k in range(waiting):
        if inside[p.waiting_agent[k]]:
            s.left[left] = k
            s.gain[k] = p.first_gain[k]
            left += 1
    for t in range(len(p.mask)):
        p.mask[t] = 0
        p.joint[t] = 0
    p.done[:] = 0

    top = NOTHING
    count = 0
    gain_ns = np.int64(0)
    tasks_delayed = 0
    while True:
        if uncovered == 0:
            score = gain_ns - move_ns * tasks_delayed - drop_ns + reuse_ns
            top = max(top, score)
            offer(p, best, score, kept_count + count, moved, s.kept, s.chosen, s.gains, count)
        choice = -1
        ratio = -1.0
        known = False
        kept_left = 0
        for i in range(left):
            k = s.left[i]
            a = p.waiting_agent[k]
            own = 0 if s.covered[a] else p.smallest[a]
            free_slots = slots - count - uncovered + (0 if s.covered[a] else 1)
            if used + held - own + p.waiting_reserve[k] > p.budget or free_slots < 1:
                continue  # what does not fit now never will: room and slots only shrink
            s.left[kept_left] = k
            kept_left += 1
            gain = s.gain[k]
            tokens = p.waiting_reserve[k]
            this = 0.0
            if gain > 0:
                this = np.inf if tokens == 0 else gain / tokens
            inside_pack = s.in_pack[p.waiting_task[k]] == 1
            if this > ratio or (this == 0.0 and ratio == 0.0 and inside_pack and not known):
                choice, ratio, known = k, this, inside_pack
        left = kept_left
        if choice < 0:
            break
        a = p.waiting_agent[choice]
        t = p.waiting_task[choice]
        for i in range(left):
            if s.left[i] == choice:
                s.left[i : left - 1] = s.left[i + 1 : left]
                break
        left -= 1
        if not s.covered[a]:
            s.covered[a] = 1
            held -= p.smallest[a]
            uncovered -= 1
        used += p.waiting_reserve[choice]
        s.in_pack[t] = 1
        if not p.resident[a] and not s.delayed[t]:
            s.delayed[t] = 1
            tasks_delayed += 1
        s.chosen[count] = choice
        s.gains[count] = s.gain[choice]
        gain_ns += s.gain[choice]
        count += 1
        # Same-task marginals change with this choice.
        p.joint[t] += s.gain[choice]
        if p.work_stage[choice] >= 0:
            p.done[p.part_at[t] + p.work_stage[choice]] += p.work_ns[choice]
        p.mask[t] |= 1 << p.work_bit[choice] if p.memo_at[t] >= 0 else 0
        if p.ready_count[t] > 1:
            for i in range(left):
                k = s.left[i]
                if p.waiting_task[k] == t:
                    s.gain[k] = joint_gain_ns(k, t, p.mask[t], p.done, p) - p.joint[t]
    return top
