"""Candidate decisions and their rollouts. Compiled.

``p`` is a :class:`topas.online.rollout.situation.Situation`, ``s`` scratch arrays for it; inner loops take
their arrays one by one, because reading an array out of a tuple counts references each time. A node is a
request: an active one, or an expected one. Batches and decode steps take what :mod:`topas.cost` says. The
rules of admission are those of the simulator's queue policies: from the head, until one
does not fit.
"""

from __future__ import annotations

import numpy as np

from topas.compiled import allocating_kernel
from topas.cost import decode_s, decode_steps, move_s, pairs, prefill_s

LPM, SPF, PARROT, FINISH, GATHER, AGENT = 0, 1, 2, 3, 4, 5
"""Rules of admission: see :func:`choose`."""
FUTURE, WAITING, RUNNING, DONE = 0, 1, 2, 3
NEVER = 1e30
_KEY = 1 << 20
LATER = _KEY >> 1


USED, IDLE, BATCH, ASIDE = range(4)
"""Counters: tokens in use, tokens of idle prefixes in memory, running requests, requests passed over."""


@allocating_kernel
def rank_of(rule, node, arrival, cached, depth, task, left, stages):
    """Return the place of a waiting request within its agent's queue; smallest first."""
    first = np.int64(0)
    if rule == LPM:
        first = -cached[node]
    elif rule == SPF:
        first = -depth[node]
    elif rule == PARROT:
        first = task[node]
    elif rule >= FINISH:
        first = left[task[node]] - stages[task[node]]
    return first * _KEY + arrival


@allocating_kernel
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


@allocating_kernel
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


@allocating_kernel
def push_run(run, n, finish, node):
    """Put a request that finishes at a step into a batch of n, a binary heap by that step.

    The heap of :func:`push` once more: a view of one agent's queue for either costs a tenth of a decision.
    """
    i = n
    while i > 0:
        up = (i - 1) >> 1
        if run[up, 0] <= finish:
            break
        run[i, 0] = run[up, 0]
        run[i, 1] = run[up, 1]
        i = up
    run[i, 0] = finish
    run[i, 1] = node


@allocating_kernel
def pop_run(run, n):
    """Take the request that finishes next out of a batch of n + 1."""
    first = run[0, 1]
    finish, node = run[n, 0], run[n, 1]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and run[child + 1, 0] < run[child, 0]:
            child += 1
        if run[child, 0] >= finish:
            break
        run[i, 0] = run[child, 0]
        run[i, 1] = run[child, 1]
        i = child
    run[i, 0] = finish
    run[i, 1] = node
    return first


@allocating_kernel
def line_up(rule, node, arrival, cached, depth, task, agent, left, stages, size, heap):
    """Put a waiting request into its agent's queue, a heap by the rule's rank."""
    rank = rank_of(rule, node, arrival[node], cached, depth, task, left, stages)
    push(heap, size, agent[node], rank, node)


@allocating_kernel
def come(rule, node, came, now, arrival, cached, depth, task, agent, left, stages, size, weight, heap):
    """Let an expected request arrive."""
    now[node] = WAITING
    arrival[node] = came
    line_up(rule, node, arrival, cached, depth, task, agent, left, stages, size, heap)
    weight[agent[node]] += 1.0 / left[task[node]]


@allocating_kernel
def eighth_power(x):
    """Return x to the eighth."""
    x *= x
    x *= x
    return x * x


@allocating_kernel
def choose(rule, force, most, free, prefix, smallest, users, size, weight, heap):
    """Return the agent whose head is tried next, -1 if none.

    ``lpm``: prefixes in use first, then longer contexts in memory, then arrival. ``spf``, ``parrot``:
    deeper stage, earlier task first, whatever is in use. ``finish``: prefixes in use, then most
    finished stages of the task. ``gather``: prefixes in use, else the agent with the largest sum over its
    queue of 1 / unfinished stages. ``agent``: the agent ``force`` first, then as ``finish``. ``most`` caps
    the prefixes in use (0: none). From ``finish`` on, agents none of whose requests fits are passed over.

    An idle prefix that is still in memory has no precedence: it takes as much room from the batch as any.
    """
    used = 0
    if most > 0:
        for a in range(len(size)):
            used += users[a] > 0
    best, best_rank, best_class = -1, 0.0, -1
    for a in range(len(size)):
        if size[a] == 0 or (most > 0 and users[a] == 0 and used >= most):
            continue
        if rule >= FINISH and free < smallest[a] + (prefix[a] if users[a] == 0 else 0):
            continue
        first = 1 if users[a] > 0 else 0
        if rule in (SPF, PARROT):
            first = 0
        elif rule == AGENT and a == force:
            first = 2
        rank = -weight[a] if rule == GATHER and first == 0 else np.float64(heap[a, 0, 0])
        if first > best_class or (first == best_class and rank < best_rank):
            best, best_rank, best_class = a, rank, first
    return best


@allocating_kernel
def next_fit(
    rule, force, most, budget, left, task, reserve, prefix, smallest, users, size, weight, heap, aside,
    count,
):  # fmt: skip
    """Take the next request off the queues that a rule admits, -1 if there is none.

    ``lpm``, ``spf`` and ``parrot`` stop at a head that does not fit; the others pass over it, and
    ``aside`` keeps it.
    """
    free = budget - count[USED]
    while True:
        a = choose(rule, force, most, free, prefix, smallest, users, size, weight, heap)
        if a < 0:
            return -1
        node = heap[a, 0, 1]
        fits = reserve[node] + (prefix[a] if users[a] == 0 else 0) <= free
        if not fits and rule < FINISH:
            return -1
        pop(heap, size, a)
        if fits:
            weight[a] -= 1.0 / left[task[node]]
            return node
        aside[count[ASIDE]] = node
        count[ASIDE] += 1


@allocating_kernel
def queue_up(rule, status, arrival, cached, depth, task, agent, left, stages, size, weight, heap):
    """Fill the agents' queues with the waiting requests."""
    size[:] = 0
    weight[:] = 0.0
    for node in range(len(status)):
        if status[node] == WAITING:
            line_up(rule, node, arrival, cached, depth, task, agent, left, stages, size, heap)
            weight[agent[node]] += 1.0 / left[task[node]]


@allocating_kernel
def enter(status, agent, reserve, prefix, resident, users, there, count):
    """Count what runs: users of prefixes, tokens, requests."""
    users[:] = 0
    there[:] = resident
    count[:] = 0
    for node in range(len(status)):
        if status[node] == RUNNING:
            a = agent[node]
            if users[a] == 0:
                count[USED] += prefix[a]
            users[a] += 1
            count[USED] += reserve[node]
            count[BATCH] += 1
    for a in range(len(users)):
        if there[a] and users[a] == 0:
            count[IDLE] += prefix[a]


@allocating_kernel
def play(rule, status, taken, takes, p, s, out, limit):
    """Return the cost of a candidate under a base rule: mean completion time, its 8-norm, and the drain.

    ``status`` has what waits and runs, ``taken[:takes]`` are admitted at once. Without further arrivals all
    present tasks are followed to their end, or for ``horizon`` completions; what is left then is counted at
    the rate seen. Once the cost is sure to exceed ``limit``, NEVER is returned.

    The drain is the time that all present work takes at the speed of its first half. Who arrives later waits
    for it. At the end, batches are small for want of arrivals, which says nothing about the rule.
    """
    task, stage, agent, inputs, reserve = p.task, p.stage, p.agent, p.inputs, p.reserve
    cached, depth, following, first, after, after_at = (
        p.cached,
        p.depth,
        p.following,
        p.first,
        p.after,
        p.after_at,
    )
    stages, age, prefix, smallest = p.stages, p.age, p.prefix, p.smallest
    budget, max_running, least, horizon, scale = p.budget, p.max_running, p.least, p.horizon, p.scale
    cost, host, shared, generated = p.cost, p.host, p.shared, p.generated
    now, arrival, left, stage_left, missing = s.status, s.arrival, s.left, s.stage_left, s.stage_missing
    users, there, ready, size, weight, heap = s.users, s.there, s.ready, s.size, s.weight, s.heap
    run, aside, count, held, coming, due = s.run, s.aside, s.counts, s.held, s.coming, s.due
    enter(status, agent, reserve, prefix, p.resident, users, there, count)
    now[:] = status
    arrival[:] = p.arrival
    left[:] = p.left
    stage_left[:] = p.stage_left
    missing[:] = p.stage_missing
    ready[:] = 0.0
    n = 0
    still = np.int64(
        0
    )  # tokens that decode steps attend to, less those that n requests add in ``step`` steps
    for node in range(len(status)):
        if status[node] == RUNNING:
            push_run(run, n, out[node], node)
            n += 1
            held[node] = (
                inputs[node] + cached[node] + generated[node] + (0 if shared else prefix[agent[node]])
            )
            still += held[node]
    if shared:
        for a in range(len(users)):
            if users[a] > 0:
                still += prefix[a]
    for k in range(takes):
        now[taken[k]] = DONE  # not in the queue
    queue_up(rule, now, arrival, cached, depth, task, agent, left, stages, size, weight, heap)
    time, link, step, came = 0.0, 0.0, np.int64(0), np.int64(LATER)
    tasks = unfinished = len(left)
    completions = entering = first_due = last_due = 0
    deciding = takes > 0 or n > 0
    total = tail = 0.0
    limit *= tasks
    half, drain = (np.sum(left) + 1) // 2, -1.0
    while True:
        while first_due < last_due and due[first_due] <= time:
            came += 1
            come(
                rule, coming[first_due], came, now, arrival, cached, depth, task, agent, left, stages, size,
                weight, heap,
            )  # fmt: skip
            first_due += 1
        tokens = behind = new_pairs = cached_pairs = np.int64(0)
        admitted = 0
        while True:
            if entering < takes:
                node = taken[entering]
                entering += 1
            elif deciding:
                break  # what is decided now enters alone
            elif n < max_running and count[USED] + least <= budget:
                node = next_fit(
                    rule, -1, 0, budget, left, task, reserve, prefix, smallest, users, size, weight,
                    heap, aside, count,
                )  # fmt: skip
                if node < 0:
                    break
            else:
                break
            a = agent[node]
            count[USED] += reserve[node]
            new, context = inputs[node], cached[node] + prefix[a]
            if p.keeps:
                new += generated[node]
            held[node] = cached[node] + new + 1 - step
            if not shared:
                held[node] += prefix[a]
            if users[a] == 0:
                count[USED] += prefix[a]
                if shared:
                    still += prefix[a]
                if there[a]:
                    count[IDLE] -= prefix[a]
                else:
                    there[a] = True
                    if host:
                        link = max(link, time) + move_s(cost, prefix[a])
                        ready[a] = link
                    else:
                        new += prefix[a]
                        context -= prefix[a]
            tokens += new
            behind += context
            more_pairs, more_cached_pairs = pairs(new, context)
            new_pairs += more_pairs
            cached_pairs += more_cached_pairs
            still += held[node]
            users[a] += 1
            if count[USED] + count[IDLE] > budget:
                for b in range(len(users)):
                    if users[b] == 0 and there[b]:
                        there[b] = False
                        count[IDLE] -= prefix[b]
                        if count[USED] + count[IDLE] <= budget:
                            break
            finish = step + max(out[node] - 1, 0)
            if ready[a] > time:
                step_s = decode_s(cost, n + 1, still + (n + 1) * step, 1)
                if step_s > 0.0:
                    finish += np.int64((ready[a] - time) / step_s)
            push_run(run, n, finish, node)
            n += 1
            now[node] = RUNNING
            admitted += 1
        for k in range(count[ASIDE]):
            line_up(rule, aside[k], arrival, cached, depth, task, agent, left, stages, size, heap)
        count[ASIDE] = 0
        if admitted:
            time += prefill_s(cost, admitted, tokens, behind, new_pairs, cached_pairs)
        elif n == 0 and unfinished:
            if first_due == last_due:
                return NEVER
            time = max(time, due[first_due])
        deciding = False
        if total + unfinished * time > limit:
            return NEVER
        if n:
            if run[0, 0] > step:
                steps, kv = run[0, 0] - step, still + n * step
                if first_due < last_due:
                    steps = decode_steps(cost, n, kv, due[first_due] - time, steps)
                time += decode_s(cost, n, kv, steps)
                step += steps
            while n and run[0, 0] <= step:
                n -= 1
                node = pop_run(run, n)
                completions += 1
                now[node] = DONE
                a, t, v = agent[node], task[node], stage[node]
                users[a] -= 1
                count[USED] -= reserve[node]
                still -= held[node]
                if users[a] == 0:
                    count[USED] -= prefix[a]
                    count[IDLE] += prefix[a]
                    if shared:
                        still -= prefix[a]
                left[t] -= 1
                stage_left[v] -= 1
                other = following[node]
                if other >= 0 and now[other] == FUTURE:
                    coming[last_due] = other
                    due[last_due] = time + cost.request_s
                    last_due += 1
                if stage_left[v] == 0:
                    for k in range(after_at[v], after_at[v + 1]):
                        missing[after[k]] -= 1
                        other = first[after[k]]
                        if missing[after[k]] == 0 and other >= 0 and now[other] == FUTURE:
                            coming[last_due] = other
                            due[last_due] = time + cost.request_s
                            last_due += 1
                if left[t] == 0:
                    unfinished -= 1
                    total += time
                    tail += eighth_power((age[t] + time) / scale)
        if drain < 0.0 and completions >= half:
            drain = 2.0 * time
        if unfinished == 0 or completions >= horizon:
            break
    each = time / max(completions, 1)
    if drain < 0.0:
        drain = each * np.sum(p.left)
    for t in range(tasks):
        if left[t] > 0:
            time += left[t] * each
            total += time
            tail += eighth_power((age[t] + time) / scale)
    return total / tasks + p.tail * scale * (tail / tasks) ** 0.125 + p.drain * drain


@allocating_kernel
def admit_by(rule, force, most, status, p, s, row):
    """Write into ``row`` what a rule admits now; return how many."""
    agent, reserve, prefix, users, there, count = p.agent, p.reserve, p.prefix, s.users, s.there, s.counts
    enter(status, agent, reserve, prefix, p.resident, users, there, count)
    queue_up(
        rule, status, p.arrival, p.cached, p.depth, p.task, agent, p.left, p.stages, s.size, s.weight, s.heap
    )
    takes = 0
    while count[BATCH] < p.max_running and takes < p.most_changes:
        node = next_fit(
            rule, force, most, p.budget, p.left, p.task, reserve, prefix, p.smallest, users,
            s.size, s.weight, s.heap, s.aside, count,
        )  # fmt: skip
        if node < 0:
            break
        a = agent[node]
        count[USED] += reserve[node] + (prefix[a] if users[a] == 0 else 0)
        count[BATCH] += 1
        users[a] += 1
        row[takes] = node
        takes += 1
    return takes


@allocating_kernel
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
    if dropped_count > p.most_changes or (dropped_count and not kept):
        return 0  # too many changes, or nobody gains by it
    for other in range(n):
        if c.key[other] == key:
            return other
    c.key[n] = key
    c.takes[n] = kept
    c.size[0] = n + 1
    return n


@allocating_kernel
def best_base(p, s, c, out):
    """Return the place of the base rule that does best by itself; ``played[b, k]`` are its costs."""
    c.base_cost[:] = 0.0
    for k in range(len(out)):
        best, slack = NEVER, 1.0 + p.race / np.sqrt(k + 1.0)
        for b in range(len(p.bases)):
            if c.base_cost[b] < NEVER:
                i = c.reference[b]
                limit = best * slack - c.base_cost[b]
                cost = play(p.bases[b], c.status[i], c.taken[i], c.takes[i], p, s, out[k], limit)
                c.played[b, k] = cost
                c.base_cost[b] += cost
                best = min(best, c.base_cost[b])
        for b in range(len(p.bases)):
            if c.base_cost[b] > best * slack:
                c.base_cost[b] = NEVER
    return np.argmin(c.base_cost)


@allocating_kernel
def look_ahead(p, s, c, out, lost):
    """Choose among all candidates; return the place of the best one.

    The base rule that does best by itself is the reference, and what all candidates are followed by. Another
    candidate is taken only if it is better than the reference's own decision by the margin.
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
    n = c.size[0]
    if n == 1:
        return 0
    for i in range(n):
        for node in range(len(p.status)):
            if p.ghost[node]:
                c.status[i, node] = WAITING
    base = best_base(p, s, c, out)
    own = c.reference[base]
    c.cost[:n] = 0.0
    for k in range(len(out)):
        # The others need not be followed beyond the reference's cost, which is known.
        c.cost[own] += c.played[base, k]
        best, slack = c.cost[own], 1.0 + p.race / np.sqrt(k + 1.0)
        for i in range(n):
            if i == own or c.cost[i] >= NEVER:
                continue
            c.out[:] = out[k]
            for node in range(len(p.status)):
                if p.status[node] == RUNNING and c.status[i, node] == WAITING:
                    c.out[node] += lost[node]
            limit = best * slack - c.cost[i]
            c.cost[i] += play(p.bases[base], c.status[i], c.taken[i], c.takes[i], p, s, c.out, limit)
            best = min(best, c.cost[i])
        for i in range(n):
            if i != own and c.cost[i] > best * slack:
                c.cost[i] = NEVER
    choice, cost = own, c.cost[own] * (1.0 - p.margin)
    for i in range(n):
        if c.cost[i] < cost:
            choice, cost = i, c.cost[i]
    return choice
