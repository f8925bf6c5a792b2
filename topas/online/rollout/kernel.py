"""Candidate decisions and their rollouts. Compiled.

``p`` is a :class:`topas.online.rollout.situation.Situation`, ``s`` scratch arrays for it. A node is a
request: an active one, or an expected one. Time runs in decode steps; between two completions all steps
are alike. The rules of admission are those of the simulator's queue policies: from the head, until one
does not fit.
"""

from __future__ import annotations

import numba
import numpy as np

LPM, SPF, PARROT, FINISH, GATHER, AGENT = 0, 1, 2, 3, 4, 5
"""Rules of admission: see :func:`choose`."""
FUTURE, WAITING, RUNNING, DONE = 0, 1, 2, 3
NEVER = 1e30
_KEY = 1 << 20
LATER = _KEY >> 1
_NORM = 8.0


@numba.njit(cache=True)
def rank_of(rule, node, arrival, p, left):
    """Return the place of a waiting request within its agent's queue; smallest first."""
    first = np.int64(0)
    if rule == SPF:
        first = -p.depth[node]
    elif rule == PARROT:
        first = p.task[node]
    elif rule >= FINISH:
        first = left[p.task[node]] - p.stages[p.task[node]]
    return first * _KEY + arrival


@numba.njit(cache=True)
def push(heap, size, agent, rank, node):
    """Put a request into its agent's queue, a binary heap."""
    i = size[agent]
    size[agent] += 1
    while i > 0:
        up = (i - 1) >> 1
        if heap[agent, up, 0] <= rank:
            break
        heap[agent, i, 0] = heap[agent, up, 0]
        heap[agent, i, 1] = heap[agent, up, 1]
        i = up
    heap[agent, i, 0] = rank
    heap[agent, i, 1] = node


@numba.njit(cache=True)
def pop(heap, size, agent):
    """Take the head off an agent's queue."""
    size[agent] -= 1
    n = size[agent]
    rank, node = heap[agent, n, 0], heap[agent, n, 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and heap[agent, child + 1, 0] < heap[agent, child, 0]:
            child += 1
        if heap[agent, child, 0] >= rank:
            break
        heap[agent, i, 0] = heap[agent, child, 0]
        heap[agent, i, 1] = heap[agent, child, 1]
        i = child
    heap[agent, i, 0] = rank
    heap[agent, i, 1] = node


@numba.njit(cache=True)
def choose(rule, force, most, p, s):
    """Return the agent whose head is tried next, -1 if none.

    ``lpm``: prefixes in memory first, then arrival. ``spf``, ``parrot``: deeper stage, earlier task first,
    whatever is in memory. ``finish``: prefixes in memory, then most finished stages of the task.
    ``gather``: prefixes in memory, else the agent with the largest sum over its queue of 1 / unfinished
    stages. ``agent``: the agent ``force`` first, then as ``finish``. ``most`` caps the prefixes in use
    (0: none). From ``finish`` on, agents none of whose requests fits are passed over.
    """
    free = p.budget - s.used[0]
    used = 0
    for a in range(len(s.size)):
        used += s.users[a] > 0
    best, best_rank, best_class = -1, 0.0, -1
    for a in range(len(s.size)):
        if s.size[a] == 0 or (most > 0 and s.users[a] == 0 and used >= most):
            continue
        if rule >= FINISH and free < p.smallest[a] + (p.prefix[a] if s.users[a] == 0 else 0):
            continue
        there = 1 if s.users[a] > 0 or s.there[a] else 0
        if rule in (SPF, PARROT):
            there = 0
        elif rule == AGENT and a == force:
            there = 2
        rank = -s.weight[a] if rule == GATHER and there == 0 else np.float64(s.heap[a, 0, 0])
        if there > best_class or (there == best_class and rank < best_rank):
            best, best_rank, best_class = a, rank, there
    return best


@numba.njit(cache=True)
def queue_up(rule, status, p, left, s):
    """Fill the agents' queues with the waiting requests."""
    s.size[:] = 0
    s.weight[:] = 0.0
    s.asides[0] = 0
    for node in range(len(status)):
        if status[node] == WAITING:
            a = p.agent[node]
            push(s.heap, s.size, a, rank_of(rule, node, p.arrival[node], p, left), node)
            s.weight[a] += 1.0 / left[p.task[node]]


@numba.njit(cache=True)
def enter(status, p, s):
    """Count what runs: users of prefixes, reserved tokens, requests."""
    s.users[:] = 0
    s.there[:] = p.resident
    s.used[0] = 0
    s.batch[0] = 0
    for node in range(len(status)):
        if status[node] == RUNNING:
            a = p.agent[node]
            if s.users[a] == 0:
                s.used[0] += p.prefix[a]
            s.users[a] += 1
            s.used[0] += p.reserve[node]
            s.batch[0] += 1


@numba.njit(cache=True)
def next_fit(rule, force, most, left, p, s):
    """Take the next request off the queues that a rule admits, -1 if there is none.

    ``lpm``, ``spf`` and ``parrot`` stop at a head that does not fit; the others pass over it, and
    ``s.aside`` keeps it (see :func:`put_back`).
    """
    while True:
        a = choose(rule, force, most, p, s)
        if a < 0:
            return -1
        node = s.heap[a, 0, 1]
        fits = s.used[0] + need_of(node, p, s) <= p.budget
        if not fits and rule < FINISH:
            return -1
        pop(s.heap, s.size, a)
        if fits:
            s.weight[a] -= 1.0 / left[p.task[node]]
            return node
        s.aside[s.asides[0]] = node
        s.asides[0] += 1


@numba.njit(cache=True)
def put_back(rule, arrivals, left, p, s):
    """Put what was passed over back into the queues."""
    for k in range(s.asides[0]):
        node = s.aside[k]
        push(s.heap, s.size, p.agent[node], rank_of(rule, node, arrivals[node], p, left), node)
    s.asides[0] = 0


@numba.njit(cache=True)
def need_of(node, p, s):
    """Return the tokens that a request needs, with its prefix if nobody uses that."""
    a = p.agent[node]
    return p.reserve[node] + (p.prefix[a] if s.users[a] == 0 else 0)


@numba.njit(cache=True)
def start(node, time, step, p, s, out):
    """Let a request run; return the tokens that its prefill computes."""
    a = p.agent[node]
    s.used[0] += need_of(node, p, s)
    tokens = p.inputs[node]
    wait = 0.0
    if s.users[a] == 0:
        if s.there[a]:
            s.idle[0] -= p.prefix[a]
        else:
            s.there[a] = True
            if p.host:
                s.link[0] = max(s.link[0], time) + p.prefix[a] * p.swap_s
                s.ready[a] = s.link[0]
            else:
                tokens += p.prefix[a]
    if s.ready[a] > time:
        wait = s.ready[a] - time
    s.users[a] += 1
    for b in range(len(s.users)):
        if s.used[0] + s.idle[0] <= p.budget:
            break
        if s.users[b] == 0 and s.there[b]:
            s.there[b] = False
            s.idle[0] -= p.prefix[b]
    n = s.batch[0]
    s.running[n] = node
    step_s = p.decode_base + (n + 1) * p.decode_seq
    s.finish[n] = step + max(out[node] - 1, 0) + (np.int64(wait / step_s) if step_s > 0.0 else 0)
    s.batch[0] = n + 1
    s.status[node] = RUNNING
    return tokens


@numba.njit(cache=True)
def make_ready(node, arrival, rule, p, s):
    """Put a request that has become ready into its queue."""
    s.status[node] = WAITING
    s.arrival[node] = arrival
    a = p.agent[node]
    push(s.heap, s.size, a, rank_of(rule, node, arrival, p, s.left), node)
    s.weight[a] += 1.0 / s.left[p.task[node]]


@numba.njit(cache=True)
def complete(node, arrival, rule, p, s):
    """Finish a request; what it makes ready waits. Return how many became ready."""
    s.status[node] = DONE
    a, task, stage = p.agent[node], p.task[node], p.stage[node]
    s.users[a] -= 1
    s.used[0] -= p.reserve[node]
    if s.users[a] == 0:
        s.used[0] -= p.prefix[a]
        s.idle[0] += p.prefix[a]
    s.left[task] -= 1
    s.stage_left[stage] -= 1
    ready = 0
    following = p.following[node]
    if following >= 0 and s.status[following] == FUTURE:
        ready += 1
        make_ready(following, arrival + ready, rule, p, s)
    if s.stage_left[stage] == 0:
        for k in range(p.after_at[stage], p.after_at[stage + 1]):
            other = p.after[k]
            s.stage_missing[other] -= 1
            first = p.first[other]
            if s.stage_missing[other] == 0 and first >= 0 and s.status[first] == FUTURE:
                ready += 1
                make_ready(first, arrival + ready, rule, p, s)
    return ready


@numba.njit(cache=True)
def play(rule, status, taken, count, p, s, out):
    """Return the cost of a candidate under a base policy: mean completion time and its 8-norm.

    ``status`` has what waits and runs, ``taken[:count]`` are admitted at once. Without further arrivals all
    present tasks are followed to their end, or for ``horizon`` completions; what is left then is counted at
    the rate seen.
    """
    enter(status, p, s)
    s.status[:] = status
    s.left[:] = p.left
    s.stage_left[:] = p.stage_left
    s.stage_missing[:] = p.stage_missing
    s.arrival[:] = p.arrival
    s.ready[:] = 0.0
    s.link[0] = 0.0
    s.idle[0] = 0
    for a in range(len(s.users)):
        if s.there[a] and s.users[a] == 0:
            s.idle[0] += p.prefix[a]
    n = 0
    for node in range(len(status)):
        if status[node] == RUNNING:
            s.running[n] = node
            s.finish[n] = out[node]
            n += 1
    time, step, tokens = 0.0, np.int64(0), np.int64(0)
    for k in range(count):
        tokens += start(taken[k], time, step, p, s, out)
    if count:
        time += p.prefill_base + tokens * p.prefill_token
    queue_up(rule, s.status, p, s.left, s)
    arrival = np.int64(LATER)
    unfinished, completions = len(p.left), 0
    total = tail = 0.0
    while unfinished and completions < p.horizon:
        n = s.batch[0]
        if n:
            last = s.finish[0]
            for k in range(1, n):
                last = min(last, s.finish[k])
            if last > step:
                time += (last - step) * (p.decode_base + n * p.decode_seq + s.used[0] * p.decode_kv)
                step = last
            k = 0
            while k < s.batch[0]:
                if s.finish[k] > step:
                    k += 1
                    continue
                node = s.running[k]
                s.batch[0] -= 1
                s.running[k] = s.running[s.batch[0]]
                s.finish[k] = s.finish[s.batch[0]]
                completions += 1
                arrival += complete(node, arrival, rule, p, s)
                task = p.task[node]
                if s.left[task] == 0:
                    unfinished -= 1
                    total += time
                    tail += ((p.age[task] + time) / p.scale) ** _NORM
        tokens, admitted = np.int64(0), 0
        while s.batch[0] < p.max_running:
            node = next_fit(rule, -1, 0, s.left, p, s)
            if node < 0:
                break
            tokens += start(node, time, step, p, s, out)
            admitted += 1
        put_back(rule, s.arrival, s.left, p, s)
        if admitted:
            time += p.prefill_base + tokens * p.prefill_token
        elif s.batch[0] == 0 and unfinished:
            return NEVER
    each = time / max(completions, 1)
    for task in range(len(p.left)):
        if s.left[task] > 0:
            time += s.left[task] * each
            total += time
            tail += ((p.age[task] + time) / p.scale) ** _NORM
    tasks = len(p.left)
    return total / tasks + p.tail * p.scale * (tail / tasks) ** (1.0 / _NORM)


@numba.njit(cache=True)
def admit_by(rule, force, most, status, p, s, row):
    """Write into ``row`` what a rule admits now; return how many."""
    enter(status, p, s)
    queue_up(rule, status, p, p.left, s)
    count = 0
    while s.batch[0] < p.max_running and count < p.most_changes:
        node = next_fit(rule, force, most, p.left, p, s)
        if node < 0:
            break
        s.used[0] += need_of(node, p, s)
        s.users[p.agent[node]] += 1
        s.batch[0] += 1
        row[count] = node
        count += 1
    return count


@numba.njit(cache=True)
def propose(rule, force, most, dropped, p, s, c):
    """Add a rule's decision to the candidates, once; return its place.

    ``dropped`` is the agent whose running requests are preempted first, -1 for none. What is preempted and
    admitted again keeps running.
    """
    n = c.size[0]
    status, row = c.status[n], c.taken[n]
    status[:] = p.status
    if dropped >= 0:
        for node in range(len(status)):
            if status[node] == RUNNING and p.agent[node] == dropped:
                status[node] = WAITING
    count = 0 if rule < 0 else admit_by(rule, force, most, status, p, s, row)
    kept = dropped_count = 0
    key = np.int64(0)
    for k in range(count):
        node = row[k]
        if p.status[node] == RUNNING:
            status[node] = RUNNING
        else:
            row[kept] = node
            kept += 1
            key += p.mark[node]
    for node in range(len(status)):
        if p.status[node] == RUNNING and status[node] != RUNNING:
            key += p.mark[node] * 3
            dropped_count += 1
    if dropped_count > p.most_changes:
        return 0
    for other in range(n):
        if c.key[other] == key:
            return other
    c.key[n] = key
    c.takes[n] = kept
    c.size[0] = n + 1
    return n


@numba.njit(cache=True)
def look_ahead(p, s, c, out, lost):
    """Choose among all candidates; return the place of the best one.

    Each candidate is followed by each base policy in each scenario. The reference is what the best base
    policy does by itself; another candidate is taken only if it is better by the margin.
    """
    c.size[0] = 0
    for k in range(len(p.bases)):
        c.reference[k] = propose(p.bases[k], -1, 0, -1, p, s, c)
    for rule in p.rules:
        propose(rule, -1, 0, -1, p, s, c)
    for most in p.caps:
        propose(FINISH, -1, most, -1, p, s, c)
    if p.running:
        propose(-1, -1, 0, -1, p, s, c)
    for a in range(len(p.prefix)):
        if p.agent_waits[a]:
            propose(AGENT, a, 0, -1, p, s, c)
    for a in range(len(p.prefix)):
        if p.may_drop[a]:
            for rule in p.bases:
                propose(rule, -1, 0, a, p, s, c)
    n, bases, scenarios = c.size[0], len(p.bases), len(out)
    if n == 1:
        return 0
    c.cost[:n] = 0.0
    c.alive[:n] = True
    for k in range(scenarios):
        best = NEVER
        for i in range(n):
            if not c.alive[i]:
                continue
            c.out[:] = out[k]
            status = c.status[i]
            for node in range(len(p.status)):
                if p.status[node] == RUNNING and status[node] == WAITING:
                    c.out[node] += lost[node]
                if p.ghost[node]:
                    status[node] = WAITING
            for b in range(bases):
                c.cost[i, b] += play(p.bases[b], status, c.taken[i], c.takes[i], p, s, c.out)
                best = min(best, c.cost[i, b])
        for i in range(n):
            if c.alive[i] and c.cost[i].min() > best * (1.0 + p.race / np.sqrt(k + 1.0)):
                c.alive[i] = i in c.reference
    reference, reference_cost = c.reference[0], c.cost[c.reference[0], 0]
    for b in range(1, bases):
        i = c.reference[b]
        if c.cost[i, b] < reference_cost:
            reference, reference_cost = i, c.cost[i, b]
    choice, cost = reference, reference_cost * (1.0 - p.margin)
    for i in range(n):
        if c.alive[i] and c.cost[i].min() < cost:
            choice, cost = i, c.cost[i].min()
    return choice
