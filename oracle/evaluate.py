"""What a plan costs: the simulator's rules for full reservation once more, compiled, without its reports.

A thousand times as many plans can be tried this way. Nothing rests on it: a plan found here counts with
what :func:`topas.sim.simulate` makes of it (:mod:`oracle.improve`), and a test plays random traces and
plans in both. Rule numbers are those of docs/model.md. Every sum is written as the engine writes it, so
that times are equal to the last bit.
"""

from __future__ import annotations

import math

import numpy as np

from topas.compiled import allocating_kernel

SKIP, BLOCK, STRICT = 0, 1, 2
"""What a request does to those behind it in the order: nothing; while it waits and does not fit, hold
them back; from the start until it is admitted, hold them back."""

USED, LEFTOVER, LEFT_COUNT, CONTEXTS = 0, 1, 2, 3
_COUNTERS = 4


@allocating_kernel
def run_s(first_s, growth_s, steps):
    """Return T(steps) of E5; ``growth_s`` is the time of one KV token times the batch."""
    return steps * first_s + growth_s * (steps * (steps - 1) / 2)


@allocating_kernel
def steps_until(first_s, growth_s, wait_s, most):
    """Return the fewest steps that take ``wait_s``, at most ``most``, as topas.sim.decode does."""
    if run_s(first_s, growth_s, most) < wait_s:
        return most
    one_s = run_s(first_s, growth_s, 1)
    if growth_s > 0:
        slope = one_s - growth_s / 2
        guess = (math.sqrt(slope * slope + 2 * growth_s * max(wait_s, 0.0)) - slope) / growth_s
    elif one_s > 0:
        guess = wait_s / one_s
    else:
        guess = 1.0
    steps = int(max(math.ceil(min(guess, most)), 1))
    while steps > 1 and run_s(first_s, growth_s, steps - 1) >= wait_s:
        steps -= 1
    while steps < most and run_s(first_s, growth_s, steps) < wait_s:
        steps += 1
    return steps


@allocating_kernel
def forget(key, left, left_tokens, count):
    """Take a key out of the leftovers, which stand in order of their last use."""
    tokens = left_tokens[key]
    if tokens >= 0:
        left_tokens[key] = -1
        k = 0
        while left[k] != key:
            k += 1
        for j in range(k, count[LEFT_COUNT] - 1):
            left[j] = left[j + 1]
        count[LEFT_COUNT] -= 1
        count[LEFTOVER] -= tokens
    return tokens


@allocating_kernel
def leave(key, tokens, left, left_tokens, count):
    """Make a key the most recent leftover (E7)."""
    forget(key, left, left_tokens, count)
    left[count[LEFT_COUNT]] = key
    count[LEFT_COUNT] += 1
    left_tokens[key] = tokens
    count[LEFTOVER] += tokens


@allocating_kernel
def trim(now_s, inst, stage_agent, left, left_tokens, rank, on_host, ready_s, children, link_s, count):
    """Evict leftovers until everything fits, a prefix after its contexts (E8-E10); return the link's end."""
    agents = len(inst.prefix_tokens)
    while count[LEFTOVER] > 0 and count[USED] + count[LEFTOVER] > inst.budget_tokens:
        key = left[0]
        if key < agents and children[key] > 0:
            oldest = -1
            for k in range(count[LEFT_COUNT]):
                other = left[k]
                mine = other >= agents and stage_agent[other - agents] == key
                if mine and (oldest < 0 or rank[other] < rank[oldest]):
                    oldest = other
            key = oldest
        tokens = forget(key, left, left_tokens, count)
        if inst.host and max(on_host[key], 0) < tokens:
            on_host[key] = tokens
            link_s = max(link_s, now_s) + tokens * inst.swap_s
        if key < agents:
            ready_s[key] = -1.0
        else:
            children[stage_agent[key - agents]] -= 1
    return link_s


@allocating_kernel
def play(inst, order, rank, mode, gate, start_s, finish_s, done_s):
    """Play a plan; return the sum of all JCTs in seconds, or infinity if it comes to a standstill.

    ``order`` are the requests by priority, ``rank`` its inverse, ``mode`` and ``gate`` by request.
    Writes when each request was admitted and finished, and when each task was complete.
    """
    requests, stages, agents = len(inst.agent), len(inst.first), len(inst.prefix_tokens)
    tasks = len(inst.arrival_s)
    missing = inst.missing.copy()
    stages_left = np.empty(tasks, np.int64)
    stage_agent = np.empty(stages, np.int64)
    for t in range(tasks):
        stages_left[t] = inst.stage_at[t + 1] - inst.stage_at[t]
    for s in range(stages):
        stage_agent[s] = inst.agent[inst.first[s]]
    keys = agents + stages
    left = np.empty(keys, np.int64)
    left_tokens = np.full(keys, -1, np.int64)
    child_rank = np.full(keys, -1, np.int64)
    on_host = np.full(keys, -1, np.int64)
    ready_s = np.full(agents, -1.0)
    children = np.zeros(agents, np.int64)
    users = np.zeros(agents, np.int64)
    count = np.zeros(_COUNTERS, np.int64)
    link_s = 0.0
    waiting = np.empty(requests, np.int64)
    n_waiting = 0
    prefill = np.empty(requests, np.int64)
    n_prefill = 0
    decoding = np.empty(requests, np.int64)
    n_decoding = 0
    finish_step = np.empty(requests, np.int64)
    prefill_tokens = np.empty(requests, np.int64)
    cold = np.zeros(requests, np.bool_)
    state = np.zeros(requests, np.int8)  # 0 not admitted, 1 admitted, 2 finished
    done = np.empty(requests, np.int64)
    ready = np.empty(requests, np.int64)
    n_running = 0
    reserved_and_prefixes = 0
    event_s = np.empty(requests, np.float64)
    event_no = np.empty(requests, np.int64)
    event_of = np.empty(requests, np.int64)
    n_events = 0
    serial = 0
    arrived = 0
    strict_at = 0
    step = 0
    now_s = inst.arrival_s[0]
    total_s = 0.0
    unfinished = tasks
    changed = False
    while unfinished > 0:
        # take in what has happened (E2); n_ready collects what becomes ready
        n_ready = 0
        n_done = 0
        while arrived < tasks and inst.arrival_s[arrived] <= now_s:
            for s in range(inst.stage_at[arrived], inst.stage_at[arrived + 1]):
                if missing[s] == 0:
                    ready[n_ready] = inst.first[s]
                    n_ready += 1
            arrived += 1
        while n_events > 0:
            k = 0
            for j in range(1, n_events):
                if event_s[j] < event_s[k] or (event_s[j] == event_s[k] and event_no[j] < event_no[k]):
                    k = j
            if event_s[k] > now_s:
                break
            r = event_of[k]
            n_events -= 1
            event_s[k], event_no[k], event_of[k] = event_s[n_events], event_no[n_events], event_of[n_events]
            changed = True
            if state[r] == 1:
                prefill[n_prefill] = r
                n_prefill += 1
            else:
                done[n_done] = r
                n_done += 1
        for k in range(n_done):
            r = done[k]
            if inst.after[r] >= 0:
                ready[n_ready] = inst.after[r]
                n_ready += 1
                continue
            s = inst.stage[r]
            for e in range(inst.next_at[s], inst.next_at[s + 1]):
                other = inst.next_stages[e]
                missing[other] -= 1
                if missing[other] == 0:
                    ready[n_ready] = inst.first[other]
                    n_ready += 1
            t = inst.task[r]
            stages_left[t] -= 1
            if stages_left[t] == 0:
                done_s[t] = now_s
                total_s += now_s - inst.arrival_s[t]
                unfinished -= 1
        for k in range(n_ready):
            r = ready[k]
            j = n_waiting
            while j > 0 and rank[waiting[j - 1]] > rank[r]:
                waiting[j] = waiting[j - 1]
                j -= 1
            waiting[j] = r
            n_waiting += 1
            changed = True
        if unfinished == 0:
            break
        # admit by the plan (oracle.schedule says how)
        if changed:
            changed = False
            link_s = trim(
                now_s, inst, stage_agent, left, left_tokens, child_rank, on_host, ready_s, children,
                link_s, count,
            )  # fmt: skip
            if n_waiting > 0:
                kept = 0
                stopped = False
                for k in range(n_waiting):
                    r = waiting[k]
                    if not stopped:
                        while strict_at < requests and (
                            state[order[strict_at]] > 0 or mode[order[strict_at]] != STRICT
                        ):
                            strict_at += 1
                        if rank[r] > strict_at or n_running >= inst.max_running:
                            stopped = True
                    admit = False
                    if not stopped:
                        a = inst.agent[r]
                        held = gate[r] >= 0 and state[gate[r]] != 2
                        need = inst.reserve_tokens[r]
                        if users[a] == 0:
                            need += inst.prefix_tokens[a]
                        if held:
                            stopped = mode[r] == STRICT
                        elif reserved_and_prefixes + need > inst.budget_tokens:
                            stopped = mode[r] != SKIP
                        else:
                            admit = True
                    if not admit:
                        waiting[kept] = r
                        kept += 1
                        continue
                    state[r] = 1
                    start_s[r] = now_s
                    n_running += 1
                    reserved_and_prefixes += need
                    tokens = inst.prefix_tokens[a]
                    users[a] += 1
                    cold[r] = False
                    if users[a] == 1:
                        count[USED] += tokens
                        if left_tokens[a] >= 0:
                            forget(a, left, left_tokens, count)
                        elif ready_s[a] < 0:
                            if on_host[a] >= 0:
                                link_s = max(link_s, now_s) + tokens * inst.swap_s
                                ready_s[a] = link_s
                            else:
                                ready_s[a] = now_s
                                cold[r] = True
                    wait_s = ready_s[a]
                    reused = 0
                    if inst.reused_tokens[r] > 0:
                        key = agents + inst.stage[r]
                        found = forget(key, left, left_tokens, count)
                        if found >= 0:
                            children[a] -= 1
                            reused = min(found, inst.reused_tokens[r])
                        else:
                            reused = min(max(on_host[key], 0), inst.reused_tokens[r])
                            if reused > 0:
                                link_s = max(link_s, now_s) + reused * inst.swap_s
                                wait_s = max(wait_s, link_s)
                    count[USED] += inst.input_tokens[r]
                    prefill_tokens[r] = max(inst.input_tokens[r] - reused, 1)
                    if wait_s > now_s:
                        event_s[n_events] = wait_s
                        event_no[n_events] = serial
                        event_of[n_events] = r
                        serial += 1
                        n_events += 1
                    else:
                        prefill[n_prefill] = r
                        n_prefill += 1
                n_waiting = kept
                link_s = trim(
                    now_s, inst, stage_agent, left, left_tokens, child_rank, on_host, ready_s, children,
                    link_s, count,
                )  # fmt: skip
        # one turn of the GPU
        n_done = 0
        if n_prefill > 0:
            tokens = 0
            for k in range(n_prefill):
                r = prefill[k]
                tokens += prefill_tokens[r]
                if cold[r]:
                    tokens += inst.prefix_tokens[inst.agent[r]]
            now_s += inst.prefill_base_s + tokens * inst.prefill_s
            for k in range(n_prefill):
                r = prefill[k]
                count[USED] += 1
                if inst.output_tokens[r] > 1:
                    finish_step[r] = step + inst.output_tokens[r] - 1
                    decoding[n_decoding] = r
                    n_decoding += 1
                else:
                    done[n_done] = r
                    n_done += 1
            n_prefill = 0
        elif n_decoding > 0:
            most = finish_step[decoding[0]]
            for k in range(1, n_decoding):
                most = min(most, finish_step[decoding[k]])
            most -= step
            next_s = math.inf
            if arrived < tasks:
                next_s = inst.arrival_s[arrived]
            for k in range(n_events):
                next_s = min(next_s, event_s[k])
            first_s = inst.decode_base_s + n_decoding * inst.per_seq_s + count[USED] * inst.per_kv_s
            growth_s = inst.per_kv_s * n_decoding
            steps = most
            if next_s < math.inf:
                steps = steps_until(first_s, growth_s, next_s - now_s, most)
            now_s += run_s(first_s, growth_s, steps)
            step += steps
            count[USED] += steps * n_decoding
            kept = 0
            for k in range(n_decoding):
                r = decoding[k]
                if finish_step[r] == step:
                    done[n_done] = r
                    n_done += 1
                else:
                    decoding[kept] = r
                    kept += 1
            n_decoding = kept
        else:
            next_s = math.inf
            if arrived < tasks:
                next_s = inst.arrival_s[arrived]
            for k in range(n_events):
                next_s = min(next_s, event_s[k])
            if next_s == math.inf:
                return math.inf
            now_s = max(now_s, next_s)
        # what finished leaves its context, then its prefix (E7)
        for k in range(n_done):
            r = done[k]
            a = inst.agent[r]
            tokens = inst.input_tokens[r] + inst.output_tokens[r]
            count[USED] -= tokens
            key = agents + inst.stage[r]
            on_host[key] = -1
            if left_tokens[key] < 0:
                children[a] += 1
                count[CONTEXTS] += 1
                child_rank[key] = count[CONTEXTS]
            leave(key, tokens, left, left_tokens, count)
            state[r] = 2
            finish_s[r] = now_s
            n_running -= 1
            reserved_and_prefixes -= inst.reserve_tokens[r]
            users[a] -= 1
            if users[a] == 0:
                reserved_and_prefixes -= inst.prefix_tokens[a]
                count[USED] -= inst.prefix_tokens[a]
                leave(a, inst.prefix_tokens[a], left, left_tokens, count)
            changed = True
            event_s[n_events] = now_s + inst.tool_s[r]
            event_no[n_events] = serial
            event_of[n_events] = r
            serial += 1
            n_events += 1
    return total_s
