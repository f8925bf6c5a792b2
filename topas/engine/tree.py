"""The KV cache: a prefix tree of nodes with leases, host copies and leftovers in order of their last use.

A node is a run of KV tokens: an agent's prefix, or what one request added behind its parent. Admitted
requests lease their whole path. What nobody leases is a leftover and stays until its room is needed; then
leaves go first, least recently used, node by node, as in SGLang's radix tree. A use renews a path from its
end up to the prefix, so a node is always younger than those below it and the least recently used leftover
is a leaf. With the host tier on, what is evicted is copied to host memory once and stays in the tree;
without it, it is gone. Loads and write-backs share one link and are served in order.
"""

from __future__ import annotations

from topas.compiled import kernel
from topas.cost import move_s
from topas.engine.linked import append, insert_behind, unlink
from topas.engine.state import CONTEXTS, PREFIXES

LATE = 1 << 20
"""Steps to execution of an agent that no task will ask for."""


@kernel
def list_of(node, now):
    """Return the list that a leftover stands in."""
    return PREFIXES if node < now.agents else CONTEXTS


@kernel
def leave(w, node):
    """Make a node without users the most recently used leftover."""
    now = w.now[0]
    now.stamps += 1
    w.nodes[node].stamp = now.stamps
    w.nodes[node].listed = 1
    now.leftover += w.nodes[node].tokens
    append(w.lists, list_of(node, now), w.nodes, node)


@kernel
def take_up(w, node):
    """Take a node out of the leftovers."""
    now = w.now[0]
    w.nodes[node].listed = 0
    now.leftover -= w.nodes[node].tokens
    unlink(w.lists, list_of(node, now), w.nodes, node)


@kernel
def lease(w, node):
    """Let one more request use a node that is on the GPU or on its way."""
    now = w.now[0]
    w.nodes[node].users += 1
    if w.nodes[node].users == 1:
        now.used += w.nodes[node].tokens
        if node < now.agents:
            now.prefixes += w.nodes[node].tokens
        if w.nodes[node].listed:
            take_up(w, node)


@kernel
def give_back(w, node):
    """End the lease of a whole path, from its last node up to the prefix."""
    now = w.now[0]
    while node >= 0:
        w.nodes[node].users -= 1
        if w.nodes[node].users == 0:
            now.used -= w.nodes[node].tokens
            if node < now.agents:
                now.prefixes -= w.nodes[node].tokens
            leave(w, node)
        node = w.nodes[node].parent


@kernel
def touch(w, node):
    """Renew the leftovers of a path, as a look-up in a radix tree does."""
    while node >= 0:
        if w.nodes[node].listed:
            take_up(w, node)
            leave(w, node)
        node = w.nodes[node].parent


@kernel
def transfer(e, w, tokens):
    """Queue a move on the link; return when it is over."""
    now = w.now[0]
    now.link_free_s = max(now.link_free_s, now.now_s) + move_s(e.cost, tokens)
    return now.link_free_s


@kernel
def end_of_context(w, stage):
    """Return the last node of a stage's context that exists, the agent's prefix where none does."""
    now = w.now[0]
    node = w.stages[stage].tip
    while node >= now.agents and w.nodes[node].ready_s < 0.0 and not w.nodes[node].on_host:
        node = w.nodes[node].parent
    w.stages[stage].tip = node
    return node


@kernel
def cached_tokens(w, stage, reusable):
    """Return how many tokens of a prompt are on the GPU: prefix, and context up to ``reusable`` tokens."""
    agent = w.stages[stage].agent
    if w.nodes[agent].ready_s < 0.0:
        return 0
    if reusable == 0:
        return w.nodes[agent].tokens
    node = end_of_context(w, stage)
    while w.nodes[node].ready_s < 0.0:
        node = w.nodes[node].parent
    return w.nodes[agent].tokens + min(w.nodes[node].end, reusable)


@kernel
def use_prefix(e, w, agent):
    """Lease an agent's prefix; return whether a prefill must compute it.

    An absent one is loaded from host if a copy exists there, else computed once.
    """
    now = w.now[0]
    cold = False
    if w.nodes[agent].users == 0 and w.nodes[agent].ready_s < 0.0:
        now.loads += 1
        w.nodes[agent].since = now.loads
        if w.nodes[agent].on_host:
            w.nodes[agent].ready_s = transfer(e, w, w.nodes[agent].tokens)
        else:
            w.nodes[agent].ready_s = now.now_s
            cold = True
    lease(w, agent)
    return cold


@kernel
def split(w, node, at):
    """Cut a context's node in two ``at`` a token, counted from behind the prefix; return the upper part."""
    now = w.now[0]
    upper = now.nodes
    now.nodes += 1
    a, b = w.nodes[upper], w.nodes[node]
    a.parent = b.parent
    a.tokens = at - (b.end - b.tokens)
    a.end = at
    a.users = b.users
    a.ready_s = b.ready_s
    a.on_host = b.on_host
    a.stamp = b.stamp
    a.listed = b.listed
    b.parent = upper
    b.tokens -= a.tokens
    if b.listed:
        insert_behind(w.lists, CONTEXTS, w.nodes, upper, node)
    return upper


@kernel
def use_context(e, w, stage, reusable):
    """Lease a stage's context up to ``reusable`` tokens; return its last node and when all of it is there.

    What lies on the host is loaded; what lies beyond stays a part of an older branch.
    """
    now = w.now[0]
    ready_s = now.now_s
    node = end_of_context(w, stage)
    while node >= now.agents and w.nodes[node].end - w.nodes[node].tokens >= reusable:
        node = w.nodes[node].parent
    if node >= now.agents and w.nodes[node].end > reusable:
        node = split(w, node, reusable)
    missing = 0
    k = node
    while k >= now.agents and w.nodes[k].ready_s < 0.0:
        missing += w.nodes[k].tokens
        k = w.nodes[k].parent
    if missing > 0:
        there_s = transfer(e, w, missing)
        k = node
        while w.nodes[k].ready_s < 0.0:
            w.nodes[k].ready_s = there_s
            k = w.nodes[k].parent
    k = node
    while k >= now.agents:
        ready_s = max(ready_s, w.nodes[k].ready_s)
        lease(w, k)
        k = w.nodes[k].parent
    return node, ready_s


@kernel
def add_context(w, stage, node, tokens):
    """Put what a request has added behind its path into the tree, as a leftover."""
    now = w.now[0]
    new = now.nodes
    now.nodes += 1
    w.nodes[new].parent = node
    w.nodes[new].tokens = tokens
    w.nodes[new].end = w.nodes[node].end + tokens
    w.nodes[new].users = 0
    w.nodes[new].ready_s = now.now_s
    w.nodes[new].on_host = 0
    w.stages[stage].tip = new
    leave(w, new)


@kernel
def evict(e, w, node):
    """Take a leftover off the GPU, to host memory where there is that tier."""
    take_up(w, node)
    w.nodes[node].ready_s = -1.0
    if e.host and not w.nodes[node].on_host:
        w.nodes[node].on_host = 1
        transfer(e, w, w.nodes[node].tokens)


@kernel
def evict_agent(e, w, agent):
    """Move an idle prefix off the GPU, with everything cached behind it."""
    node = w.lists[CONTEXTS, 0]
    while node >= 0:
        behind = w.nodes[node].behind
        root = node
        while w.nodes[root].parent >= 0:
            root = w.nodes[root].parent
        if root == agent:
            evict(e, w, node)
        node = behind
    if w.nodes[agent].listed:
        evict(e, w, agent)


@kernel
def least_recent(w):
    """Return the least recently used leftover."""
    a, b = w.lists[PREFIXES, 0], w.lists[CONTEXTS, 0]
    if a < 0 or b < 0:
        return max(a, b)
    return a if w.nodes[a].stamp < w.nodes[b].stamp else b


@kernel
def wanted_last(w):
    """Return the least recently used context, else the prefix of most steps, oldest of equals."""
    if w.lists[CONTEXTS, 0] >= 0:
        return w.lists[CONTEXTS, 0]
    found = node = w.lists[PREFIXES, 0]
    while node >= 0:
        if w.nodes[node].steps > w.nodes[found].steps:
            found = node
        node = w.nodes[node].behind
    return found


@kernel
def trim(e, w):
    """Evict leftovers until everything fits."""
    now = w.now[0]
    while now.leftover > 0 and now.used + now.leftover > e.budget:
        if e.by_steps:
            if not now.fresh:
                steps_to_execution(w)
                now.fresh = 1
            evict(e, w, wanted_last(w))
        else:
            evict(e, w, least_recent(w))


@kernel
def steps_to_execution(w):
    """Write for each agent the least number of stages before one of its own may run.

    This is what KVFlow (arXiv 2507.07400) evicts by. A ready stage has 0; any other one more than the
    largest of its unfinished predecessors. O(open stages).
    """
    now = w.now[0]
    for a in range(now.agents):
        w.nodes[a].steps = LATE
    for t in range(now.oldest, now.arrived):
        if w.tasks[t].left == 0:
            continue
        first = w.tasks[t].first_stage
        last = first + w.tasks[t].stages
        for v in range(first, last):
            w.stages[v].steps = 0
        for v in range(first, last):
            if w.stages[v].finished:
                continue
            steps = w.stages[v].steps
            agent = w.stages[v].agent
            w.nodes[agent].steps = min(w.nodes[agent].steps, steps)
            for k in range(w.stages[v].after, w.stages[v].after + w.stages[v].successors):
                w.stages[w.after[k]].steps = max(w.stages[w.after[k]].steps, steps + 1)


@kernel
def load_ahead(e, w):
    """Load the prefixes of agents that are one step away, over those that are wanted later."""
    now = w.now[0]
    if not now.fresh:
        steps_to_execution(w)
        now.fresh = 1
    for a in range(now.agents):
        tokens = w.nodes[a].tokens
        if w.nodes[a].steps != 1 or w.nodes[a].ready_s >= 0.0 or not w.nodes[a].on_host:
            continue
        wanted = 0
        node = w.lists[PREFIXES, 0]
        while node >= 0:
            if w.nodes[node].steps <= 1:
                wanted += w.nodes[node].tokens
            node = w.nodes[node].behind
        if now.used + wanted + tokens <= e.budget:
            now.loads += 1
            w.nodes[a].since = now.loads
            w.nodes[a].ready_s = transfer(e, w, tokens)
            leave(w, a)
            trim(e, w)
