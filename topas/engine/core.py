"""The loop of docs/model.md: take in what has happened, let somebody decide, prefill or decode.

One turn takes in events that are due, decides if anything changed and something waits, then runs the
prefill that is waiting, else a run of decode steps up to the next event, else waits. Where a policy
outside decides, ``advance`` returns before the decision and is called again after :func:`carry_out`.
"""

from __future__ import annotations

import numpy as np

from topas.compiled import kernel
from topas.cost import decode_s, decode_steps, prefill_s
from topas.engine import heap
from topas.engine.linked import append, unlink
from topas.engine.rules import ASK, GATE, GATE_BACKLOG, PLAN, looks_up, rank
from topas.engine.state import (
    ADMITTED,
    ARRIVED,
    COMPLETED,
    DECODE,
    DONE,
    LOADING,
    PREEMPTED,
    PREFILL,
    QUEUE,
    READY,
    REDO_DECODE,
    REDO_KEEP,
    RUN,
    STAGE_OVER,
    STAGE_PASSED,
    WAITING,
)
from topas.engine.tree import (
    add_context,
    cached_tokens,
    evict_agent,
    give_back,
    load_ahead,
    touch,
    trim,
    use_context,
    use_prefix,
)

FINISHED, DECIDE, TOOK, PAUSED, FULL, STUCK, NO_PROGRESS, LIVELOCK = range(8)
"""Why ``advance`` returned: all is done; a decision is due; a rule's decision was made (where it
``asks``); so many turns are over; records are full (see :func:`has_room`); nothing is admitted to an idle
engine; turns without progress; preemptions without completions."""

ARRIVAL, ENQUEUE, LOADED, ROUND_OVER = range(4)
"""Kinds of events."""
SKIP, BLOCK, STRICT = range(3)
"""What a request of a plan does to those behind it in the order: nothing; while it waits and does not fit,
hold them back; from the start until it is admitted, hold them back."""
IDLE_TURNS = 1000
"""Turns without a token, an admission or a step of time after which a run is broken off."""
REFRESH_PASSES = 32
"""Every so many passes over the queue SGLang looks up all that waits, which keeps their prefixes young."""
DUPLICATE_TOKENS = 32
"""SGLang looks for shared beginnings in the queue where at most so many tokens are cached."""
INITIAL = 0.7
FLOOR = 0.7 * 0.14
DECAY = (INITIAL - FLOOR) / 600
RETRACT_STEPS = 20
"""SGLang's new-token ratio (0.5, ``managers/scheduler_components/new_token_ratio_tracker.py``): the share
of what running requests may still generate that it reserves. It starts at 0.7, falls to 0.098 over 600
decode steps, and is set anew when decoding runs out of KV."""


# --- small things -----------------------------------------------------------------------------------------


@kernel
def note(e, w, kind, who, service_ns, reused):
    """Write a line of the log."""
    if e.logs:
        now = w.now[0]
        line = w.log[now.logged]
        line.kind = kind
        line.who = who
        line.time_s = now.now_s
        line.service_ns = service_ns
        line.reused = reused
        now.logged += 1


@kernel
def at(w, time_s, kind, who):
    """Let something happen at a time."""
    now = w.now[0]
    now.serial += 1
    heap.push(w.events, time_s, float(now.serial), 0, 4 * who + kind)


@kernel
def reserve_of(r):
    """Return d_r of Eq. 2: dynamic suffix and decode reservation."""
    return r.input + r.most


@kernel
def generated_of(r, now):
    """Return how many tokens a request has generated."""
    return r.generated + (now.step - r.join_step if r.phase == DECODE else 0)


@kernel
def reusable_of(r):
    """Return how many leading dynamic tokens may be cached: its stage's context, or its own kept KV."""
    return r.input + r.generated if r.kept else r.reused


@kernel
def nanoseconds(seconds):
    """Round to integer nanoseconds, half to even."""
    return np.int64(np.rint(seconds * 1e9))


# --- tasks --------------------------------------------------------------------------------------------------


@kernel
def take_in(e, w):
    """Let everything happen that is due."""
    now = w.now[0]
    while w.events[0].what > 0 and w.events[1].key <= now.now_s:
        now.events += 1
        stamp = np.int64(w.events[1].tie)
        what = heap.pop(w.events)
        kind, who = what & 3, what >> 2
        if kind == ARRIVAL:
            arrive(e, w)
        elif kind == ENQUEUE:
            enqueue(e, w, who)
        elif kind == LOADED:
            if w.requests[who].stamp == stamp:
                loaded(w, who)
        else:
            round_over(e, w, who)


@kernel
def arrive(e, w):
    """Let the next task arrive."""
    now = w.now[0]
    t = now.arrived
    now.arrived += 1
    if now.arrived < len(w.tasks):
        at(w, w.tasks[now.arrived].arrival_s, ARRIVAL, now.arrived)
    note(e, w, ARRIVED, t, 0, 0)
    first = w.tasks[t].first_stage
    for v in range(first, first + w.tasks[t].stages):
        if w.stages[v].missing == 0 and not w.stages[v].finished:
            begin(e, w, v)


@kernel
def begin(e, w, stage):
    """Begin a stage whose predecessors are complete; one without requests is passed over."""
    w.stages[stage].below = -1
    while stage >= 0:
        v = stage
        stage = w.stages[v].below
        if w.stages[v].requests > 0:
            ready(e, w, w.stages[v].first)
        else:
            stage = complete(e, w, v, STAGE_PASSED, stage)


@kernel
def complete(e, w, v, kind, below):
    """Finish a stage; stack what is ready now, first one on top, over ``below``; return the top."""
    w.stages[v].finished = 1
    w.tasks[w.stages[v].task].left -= 1
    note(e, w, kind, v, 0, 0)
    for k in range(w.stages[v].after + w.stages[v].successors - 1, w.stages[v].after - 1, -1):
        other = w.after[k]
        w.stages[other].missing -= 1
        if w.stages[other].missing == 0:
            w.stages[other].below = below
            below = other
    return below


@kernel
def ready(e, w, r):
    """Queue a request, after its way to the engine and back, where that takes time."""
    if e.cost.request_s > 0.0:
        at(w, w.now[0].now_s + e.cost.request_s, ENQUEUE, r)
    else:
        enqueue(e, w, r)


@kernel
def enqueue(e, w, k):
    """Put a request into the queue."""
    now, r = w.now[0], w.requests[k]
    r.phase = WAITING
    r.arrival_s = now.now_s
    r.joined_at = now.prefilled
    now.smallest = min(now.smallest, reserve_of(r))
    append(w.lists, QUEUE, w.requests, k)
    now.waiting += 1
    now.changed = 1
    note(e, w, READY, k, 0, 0)


@kernel
def finish(e, w, k):
    """Take a finished request out of the engine; its context stays as a leftover."""
    now, r = w.now[0], w.requests[k]
    held = r.input + r.output
    now.used -= held - r.shared
    add_context(w, r.stage, r.node, held - r.shared)
    leave_engine(w, k)
    r.phase = DONE
    r.done_s = now.now_s
    r.generated = r.output
    now.requests += 1
    now.events += 1
    now.fruitless = 0
    r.service_ns += nanoseconds(now.now_s - r.start_s)
    w.tasks[w.stages[r.stage].task].attained_ns += r.service_ns
    note(e, w, COMPLETED, k, r.service_ns, max(r.input - r.to_prefill, 0))
    now.changed = 1
    if r.tool_s > 0.0:
        at(w, now.now_s + r.tool_s, ROUND_OVER, k)
    else:
        round_over(e, w, k)


@kernel
def round_over(e, w, k):
    """Go on to the next round of a stage, or to what comes after it."""
    now, r = w.now[0], w.requests[k]
    if r.following >= 0:
        ready(e, w, r.following)
        return
    task = w.tasks[w.stages[r.stage].task]
    top = complete(e, w, r.stage, STAGE_OVER, -1)
    while top >= 0:
        below = w.stages[top].below
        begin(e, w, top)
        top = below
    now.changed = 1
    if task.left == 0:
        task.done_s = now.now_s
        now.unfinished -= 1
        while now.oldest < now.arrived and w.tasks[now.oldest].left == 0:
            now.oldest += 1


# --- admission ----------------------------------------------------------------------------------------------


@kernel
def entering_left(w):
    """Return what admitted requests that do not decode yet may generate."""
    left = 0
    k = w.lists[RUN, 0]
    while k >= 0:
        r = w.requests[k]
        if r.phase != DECODE:
            left += r.most - r.generated
        k = r.behind
    return left


@kernel
def free_tokens(e, w):
    """Return the tokens not spoken for: Eq. 2, or SGLang's estimate with the new-token ratio."""
    now = w.now[0]
    if not e.by_ratio:
        return float(e.budget - now.prefixes - now.copied - now.reserved)
    free = e.budget - now.used - entering_left(w) - now.fixed_left
    return free - now.ratio * (now.max_left - now.fixed_left)


@kernel
def fits(e, w, k):
    """Return whether a request, with its prefix if that is idle, fits beside the running ones.

    SGLang's own mode asks for one token more than the need.
    """
    agent = w.stages[w.requests[k].stage].agent
    need = reserve_of(w.requests[k])
    if e.by_ratio:
        need += 1
    if w.nodes[agent].users == 0 or w.nodes[agent].computing:
        need += w.nodes[agent].tokens
    return need <= free_tokens(e, w) and w.now[0].running < e.max_running


@kernel
def may_admit(e, w):
    """Return whether a rule need look at the queue at all."""
    now = w.now[0]
    if now.full or now.running >= e.max_running:
        return False
    return e.by_ratio or free_tokens(e, w) >= now.smallest


@kernel
def look(w):
    """Note of each waiting request how many tokens of its prompt are on the GPU."""
    k = w.lists[QUEUE, 0]
    while k >= 0:
        r = w.requests[k]
        r.cached = cached_tokens(w, r.stage, reusable_of(r))
        k = r.behind


@kernel
def mark_duplicates(w):
    """Give -1 cached tokens to waiting requests that miss a prefix which one before them misses too.

    SGLang's LPM lets them wait until the prefix is there.
    """
    now = w.now[0]
    for a in range(now.agents):
        w.nodes[a].seen = 0
    k = w.lists[QUEUE, 0]
    while k >= 0:
        r = w.requests[k]
        agent = w.stages[r.stage].agent
        if r.cached <= DUPLICATE_TOKENS and w.nodes[agent].tokens >= DUPLICATE_TOKENS:
            if w.nodes[agent].seen:
                r.cached = -1
            w.nodes[agent].seen = 1
        k = r.behind


@kernel
def line_up(e, w):
    """Put the queue in a rule's order: into the heap ``queue``."""
    now = w.now[0]
    w.queue[0].what = 0
    looking = looks_up(e.rule)
    if looking:
        look(w)
        if e.in_tree:
            mark_duplicates(w)
    backlog = 0
    if e.rule == GATE:
        k = w.lists[QUEUE, 0]
        while k >= 0:
            backlog += w.stages[w.requests[k].stage].successors == 0
            k = w.requests[k].behind
    k = w.lists[QUEUE, 0]
    while k >= 0:
        r = w.requests[k]
        stage = w.stages[r.stage]
        task = w.tasks[stage.task]
        if e.rule == PLAN:
            key = float(e.plan[0, k])
        else:
            key = rank(
                e.rule,
                task.arrival_s,
                task.attained_ns / 1e9,
                stage.depth,
                backlog >= GATE_BACKLOG and stage.successors == 0,
                r.cached,
                w.nodes[stage.agent].tokens + r.input + r.generated,
                now.prefilled - r.joined_at,
            )
        heap.push(w.queue, key, r.arrival_s, r.name_rank, k)
        k = r.behind


@kernel
def look_up(e, w):
    """Keep the paths of waiting requests young, as SGLang's look-ups do (E24).

    A rule that orders by what is cached looks up the whole queue at every pass, another one now and then,
    last first.
    """
    now = w.now[0]
    refresh = now.passes % REFRESH_PASSES == 0
    now.passes += 1
    if looks_up(e.rule):
        k = w.lists[QUEUE, 0]
        while k >= 0:
            touch(w, last_cached(w, k))
            k = w.requests[k].behind
    elif refresh:
        n = w.queue[0].what
        while w.queue[0].what > 0:  # sorted in place: what leaves the heap stands behind it
            left = w.queue[0].what
            k = heap.pop(w.queue)
            w.queue[left].what = k
        for i in range(1, n + 1):
            touch(w, last_cached(w, w.queue[i].what))
        line_up(e, w)


@kernel
def last_cached(w, k):
    """Return the last node of a waiting request's path that is on the GPU, -1 if none is."""
    r = w.requests[k]
    node = w.stages[r.stage].tip if reusable_of(r) > 0 else w.stages[r.stage].agent
    while node >= 0 and w.nodes[node].ready_s < 0.0:
        node = w.nodes[node].parent
    return node


@kernel
def admit_by_rule(e, w):
    """Admit in the rule's order; stop at the first request that does not fit (SGLang's rule).

    In SGLang's own admission mode a request that did not fit also latches the batch as full: nobody is
    tried again until a running request leaves.
    """
    now = w.now[0]
    now.decisions += 1
    line_up(e, w)
    if e.in_tree:
        look_up(e, w)
    admitted = 0
    while w.queue[0].what > 0 and (e.most_changes == 0 or admitted < e.most_changes):
        k = heap.pop(w.queue)
        if not fits(e, w, k):
            now.full = 1 if e.by_ratio else 0
            if e.in_tree:
                touch(w, last_cached(w, k))
            break
        admit(e, w, k, 0)
        admitted += 1


@kernel
def admit_by_plan(e, w):
    """Admit what a plan made ahead says: see :mod:`topas.sim.schedule`."""
    now = w.now[0]
    now.decisions += 1
    line_up(e, w)
    order = e.plan[3]
    while w.queue[0].what > 0:
        place = np.int64(w.queue[1].key)
        k = heap.pop(w.queue)
        while now.strict_at < len(order) and (
            e.plan[1, order[now.strict_at]] != STRICT or w.requests[order[now.strict_at]].phase >= LOADING
        ):
            now.strict_at += 1
        if place > now.strict_at or now.running >= e.max_running:
            return
        mode, gate = e.plan[1, k], e.plan[2, k]
        if gate >= 0 and w.requests[gate].phase != DONE:
            if mode == STRICT:
                return
        elif fits(e, w, k):
            admit(e, w, k, 0)
        elif mode != SKIP:
            return


@kernel
def admit(e, w, k, credit_ns):
    """Admit a waiting request: lease its path, and send it on to the link or to the prefill."""
    now, r = w.now[0], w.requests[k]
    agent = w.stages[r.stage].agent
    unlink(w.lists, QUEUE, w.requests, k)
    now.waiting -= 1
    append(w.lists, RUN, w.requests, k)
    now.running += 1
    r.credit_ns = credit_ns
    r.admitted_s = now.now_s
    now.reserved += reserve_of(r)
    follows = e.in_tree and w.nodes[agent].computing
    r.cold = use_prefix(e, w, agent)
    ready_s = w.nodes[agent].ready_s
    r.node = agent
    r.shared = 0
    reusable = reusable_of(r)
    if reusable > 0:
        node, there_s = use_context(e, w, r.stage, reusable)
        r.node = node
        r.shared = w.nodes[node].end
        ready_s = max(ready_s, there_s)
    r.held = r.input + r.generated
    now.used += r.held - r.shared
    r.to_prefill = max(r.held - r.shared, 1)  # the last token is computed to yield the next
    now.recomputed += max(r.generated - max(r.shared - r.input, 0), 0)
    note(e, w, ADMITTED, k, 0, 0)
    if r.cold and e.in_tree and w.nodes[agent].tokens > 0:
        w.nodes[agent].computing = 1
        w.computing[now.computing] = agent
        now.computing += 1
    if follows and e.joint:
        r.phase = LOADING
        r.stamp = -1
        w.followers[now.followers] = k
        now.followers += 1
    elif follows:
        r.cold = 1
        r.copied = w.nodes[agent].tokens
        r.held += r.copied
        now.used += r.copied
        now.copied += r.copied
        to_prefill(w, k)
    elif ready_s > now.now_s:
        r.phase = LOADING
        r.stamp = now.serial + 1
        at(w, ready_s, LOADED, k)
    else:
        to_prefill(w, k)


@kernel
def to_prefill(w, k):
    """Let a request join the next prefill batch."""
    now = w.now[0]
    w.requests[k].phase = PREFILL
    w.batch[now.batch] = k
    now.batch += 1


@kernel
def loaded(w, k):
    """Go on with a request whose KV has arrived."""
    if w.requests[k].phase == LOADING:
        to_prefill(w, k)
        w.now[0].changed = 1


@kernel
def leave_engine(w, k):
    """Give back a request's slot, reservation and path."""
    now, r = w.now[0], w.requests[k]
    unlink(w.lists, RUN, w.requests, k)
    now.running -= 1
    now.full = 0
    now.reserved -= reserve_of(r)
    give_back(w, r.node)
    if r.phase == DECODE:
        now.decoding -= 1
        done = now.step - r.join_step
        left = r.most - r.generated - done
        now.max_left -= left
        now.attended -= w.nodes[w.stages[r.stage].agent].tokens + r.held + done
        if r.fixed:
            now.fixed -= 1
            now.fixed_left -= left
    elif r.phase == PREFILL:
        now.copied -= r.copied
        i = 0
        while w.batch[i] != k:
            i += 1
        now.batch -= 1
        while i < now.batch:
            w.batch[i] = w.batch[i + 1]
            i += 1


@kernel
def preempt(e, w, k, keep):
    """Put a running request back into the queue, its KV dropped or kept as a leftover."""
    now, r = w.now[0], w.requests[k]
    generated = generated_of(r, now)
    held = r.held + generated - r.generated
    now.used -= held - r.shared
    r.kept = keep and r.phase == DECODE
    if r.kept:
        add_context(w, r.stage, r.node, held - r.shared)
    leave_engine(w, k)
    if r.start_s >= 0.0:
        if e.redo == REDO_DECODE:
            r.service_ns = 0
        else:
            r.service_ns += nanoseconds(now.now_s - r.start_s)
    r.start_s = -1.0
    if e.redo == REDO_DECODE:
        now.recomputed += generated
        generated = 0
    r.generated = generated
    r.phase = WAITING
    r.credit_ns = 0
    r.held = r.copied = r.shared = 0
    r.joined_at = now.prefilled
    r.preemptions += 1
    append(w.lists, QUEUE, w.requests, k)
    now.waiting += 1
    now.preemptions += 1
    now.fruitless += 1
    if now.fruitless > e.most_fruitless:
        now.failure = LIVELOCK
    note(e, w, PREEMPTED, k, 0, 0)


@kernel
def members(w, records, k, numbers):
    """Write the numbers of a list's records, in order; return how many there are."""
    count, i = 0, w.lists[k, 0]
    while i >= 0:
        numbers[count] = i
        count += 1
        i = records[i].behind
    return count


@kernel
def carry_out(e, w, preempted, idle, admitted, credits_ns):
    """Preempt, move ``idle`` prefixes off the GPU unless they are in use, admit; each in its order."""
    for k in preempted:
        preempt(e, w, k, keep=e.redo == REDO_KEEP)
    for a in idle:
        if w.nodes[a].users == 0:
            evict_agent(e, w, a)
    for i in range(len(admitted)):
        admit(e, w, admitted[i], credits_ns[i])


# --- the GPU ------------------------------------------------------------------------------------------------


@kernel
def run_prefill(e, w):
    """Run one prefill batch; it yields the first token of each of its requests."""
    now = w.now[0]
    count, followers = now.batch, now.followers
    now.batch = now.followers = 0
    for i in range(now.computing):
        w.nodes[w.computing[i]].computing = 0
    now.computing = 0
    computed = whole = pairs = cached_pairs = 0
    for i in range(count):
        r = w.requests[w.batch[i]]
        prefix = w.nodes[w.stages[r.stage].agent].tokens
        new = r.to_prefill + (prefix if r.cold else 0)
        tokens = max(prefix + r.held - r.copied, new)
        computed += new
        whole += tokens
        pairs += tokens * tokens
        cached_pairs += (tokens - new) * (tokens - new)
    now.prefilled += computed
    start_s = now.now_s
    if now.decoding == 0:
        now.full = 0  # as in SGLang, where the latch goes with the empty batch that had it
    now.peak = max(now.peak, now.decoding + count)
    now.now_s += prefill_s(e.cost, count, computed, whole - computed, pairs - cached_pairs, cached_pairs)
    now.events += 1
    for i in range(count):
        start_decoding(e, w, w.batch[i], start_s)
    for i in range(followers):
        loaded(w, w.followers[i])
    if e.by_ratio:
        now.changed = 1  # the new requests now count by the ratio alone


@kernel
def start_decoding(e, w, k, start_s):
    """Let a request whose prefill is done decode; one token may be all it needs."""
    now, r = w.now[0], w.requests[k]
    r.start_s = start_s
    r.cold = 0
    r.held += 1 - r.copied  # the tree keeps one copy
    now.used += 1 - r.copied
    now.copied -= r.copied
    r.copied = 0
    r.generated += 1
    left = r.output - r.generated
    r.phase = DECODE
    r.join_step = now.step
    r.finish_step = now.step + left
    now.decoding += 1
    now.max_left += r.most - r.generated
    now.attended += w.nodes[w.stages[r.stage].agent].tokens + r.held
    if r.fixed:
        now.fixed += 1
        now.fixed_left += r.most - r.generated
    if left > 0:
        now.serial += 1
        heap.push(w.finishing, float(r.finish_step), float(now.serial), 0, k)
    else:
        finish(e, w, k)


@kernel
def finishes_at(w, step):
    """Return whether the head of the finishing requests still decodes and finishes at that step."""
    r = w.requests[w.finishing[1].what]
    return r.phase == DECODE and r.finish_step == step


@kernel
def run_decode(e, w):
    """Run equal decode steps until a request finishes, something happens, or memory matters."""
    now = w.now[0]
    while not finishes_at(w, np.int64(w.finishing[1].key)):
        heap.pop(w.finishing)
    n = now.decoding
    most = np.int64(w.finishing[1].key) - now.step
    if e.by_ratio:
        room = decode_room(e, w) // n
        if room <= 0:
            retract(e, w)
            return
        most = min(most, room)
    kv = now.attended if e.in_tree else now.used
    steps = most
    if w.events[0].what > 0:
        steps = decode_steps(e.cost, n, kv, w.events[1].key - now.now_s, most)
    now.now_s += decode_s(e.cost, n, kv, steps)
    now.step += steps
    now.steps += steps
    now.step_requests += steps * n
    now.events += 1
    now.used += steps * n
    now.max_left -= steps * n
    now.fixed_left -= steps * now.fixed
    now.attended += steps * n
    now.ratio = max(now.ratio - DECAY * steps, FLOOR)
    while w.finishing[0].what > 0 and w.finishing[1].key <= now.step:
        ends = finishes_at(w, np.int64(w.finishing[1].key))
        k = heap.pop(w.finishing)
        if ends:
            finish(e, w, k)


@kernel
def decode_room(e, w):
    """Return the KV tokens left to decode into: those entering need one each for their first token."""
    now = w.now[0]
    return e.budget - now.used - (now.running - now.decoding)


@kernel
def retracted_next(w):
    """Return who goes back next: fewest generated tokens, then longest input, then largest id."""
    now = w.now[0]
    found, k = -1, w.lists[RUN, 0]
    while k >= 0:
        r = w.requests[k]
        if r.phase == DECODE:
            if found < 0:
                found = k
            else:
                other = w.requests[found]
                a, b = generated_of(r, now), generated_of(other, now)
                if a < b or (
                    a == b
                    and (r.input > other.input or (r.input == other.input and r.name_rank > other.name_rank))
                ):
                    found = k
        k = r.behind
    return found


@kernel
def entered_last(w):
    """Return the request that entered last and does not decode yet."""
    k = w.lists[RUN, 1]
    while w.requests[k].phase == DECODE:
        k = w.requests[k].before
    return k


@kernel
def retract(e, w):
    """Take requests back until one more decode step fits: those that have generated least (SGLang).

    The last one that decodes stays; then those go back that entered last and have not begun.
    """
    now = w.now[0]
    while now.decoding > 1 or now.running > now.decoding:
        preempt(e, w, retracted_next(w) if now.decoding > 1 else entered_last(w), keep=False)
        if now.decoding <= decode_room(e, w):
            break
    generated = most = 0
    k = w.lists[RUN, 0]
    while k >= 0:
        r = w.requests[k]
        if r.phase == DECODE:
            generated += generated_of(r, now)
            most += r.most
        k = r.behind
    now.ratio = min(1.0, (generated + RETRACT_STEPS * now.decoding) / (most + 1))
    now.changed = 1


# --- the loop -----------------------------------------------------------------------------------------------

START, DECIDED, RULE, TAKEN = range(4)
"""Where ``advance`` goes on."""


@kernel
def advance(e, w, turns):
    """Run for at most so many turns (0: no end), or up to a decision; return why it stopped."""
    now = w.now[0]
    while True:
        at_once = now.resume
        now.resume = START
        if at_once == START:
            if w.events[0].what == 0 and now.running == 0 and now.waiting == 0:
                return FINISHED
            if not has_room(e, w):
                return FULL
            now.was_s, now.was_step = now.now_s, now.step
            now.was_running, now.was_requests = now.running, now.requests
            take_in(e, w)
            if now.changed:
                now.changed = now.fresh = 0
                trim(e, w)
                if now.waiting > 0 and e.rule == ASK:
                    look(w)
                    now.resume = DECIDED
                    return DECIDE
                if now.waiting > 0 and (e.rule == PLAN or may_admit(e, w)):
                    if e.asks:
                        look(w)
                        now.resume = RULE
                        return DECIDE
                    decide(e, w)
                settle(e, w)
        elif at_once == RULE:
            decide(e, w)
            now.resume = TAKEN
            return TOOK
        else:
            settle(e, w)
        if now.failure:
            return now.failure
        if now.batch > 0:
            run_prefill(e, w)
        elif now.decoding > 0:
            run_decode(e, w)
        elif w.events[0].what > 0:
            now.now_s = max(now.now_s, w.events[1].key)
        elif now.waiting > 0:
            return STUCK
        still = (
            now.was_s == now.now_s
            and now.was_step == now.step
            and now.was_running == now.running
            and now.was_requests == now.requests
        )
        now.idle = now.idle + 1 if still else 0
        if now.idle > IDLE_TURNS:
            return NO_PROGRESS
        if now.running == 0:
            now.ratio = INITIAL
        if now.failure:
            return now.failure
        turns -= 1
        if turns == 0:
            return PAUSED


@kernel
def has_room(e, w):
    """Return whether the records have room for a turn: nodes and heap entries outlive preemptions."""
    now, requests = w.now[0], len(w.requests)
    spare = 2 * (now.preemptions + now.running) + 2
    return (
        len(w.nodes) - now.agents - 2 * requests >= spare
        and len(w.events) - requests - len(w.tasks) > spare
        and len(w.finishing) - requests > spare
        and (not e.logs or 2 * now.logged <= len(w.log))
    )


@kernel
def decide(e, w):
    """Let a rule or a plan decide."""
    if e.rule == PLAN:
        admit_by_plan(e, w)
    else:
        admit_by_rule(e, w)


@kernel
def settle(e, w):
    """Make room after a decision, and load ahead."""
    if e.ahead:
        load_ahead(e, w)
    trim(e, w)
