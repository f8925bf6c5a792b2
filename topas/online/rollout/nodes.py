"""Nodes of a situation: every request that is there or expected, and what it may still generate. Compiled.

Tasks come one after another, their stages in the order of the DAG, of each stage first the active requests,
then the expected ones.
"""

from __future__ import annotations

import numpy as np

from topas.compiled import allocating_kernel
from topas.online.rollout.kernel import FUTURE, LATER, RUNNING, WAITING

(
    TASK, STAGE, AGENT, INPUTS, CACHED, RESERVE, DEPTH, FOLLOWING, ARRIVAL, STATUS, GHOST, OUTLOOK, REQUEST,
) = range(13)  # fmt: skip
"""Rows of the table of nodes."""
OWNER, INPUT, MOST, REUSED = range(4)
"""Columns of the table of outlooks: agent, input tokens, most output tokens, input tokens in memory."""
PLACE, WHO, PROMPT, CONTEXT, HELD, RUNS, DONE, ALLOWED, BACK, SEED, RANK = range(11)
"""Columns of the table of requests: stage, agent, input and how much of it is in memory, reservation, runs,
generated, allowed, times it was taken back, seed, and place in the order of arrival."""


@allocating_kernel
def stages_of(done, before, before_at, active):
    """Return how many predecessors each stage waits for: none if it has requests."""
    missing = np.zeros(len(done), np.int64)
    for v in range(len(done)):
        if not done[v] and not active[v]:
            for k in range(before_at[v], before_at[v + 1]):
                missing[v] += not done[before[k]]
    return missing


@allocating_kernel
def nodes_of(task, depth, missing, more, begun, outlook, requests, outlooks):
    """Return the table of nodes, first expected request and number of requests by stage.

    ``requests`` are in the order of their stages; ``more[v]`` are expected beside them; some are
    done already where ``begun[v]``.
    """
    stages = len(task)
    total = len(requests)
    for v in range(stages):
        total += more[v]
    table = np.zeros((13, total), np.int64)
    first = np.full(stages, -1, np.int64)
    count = np.zeros(stages, np.int64)
    node = q = 0
    for v in range(stages):
        start = node
        while q < len(requests) and requests[q, PLACE] == v:
            table[AGENT, node] = requests[q, WHO]
            if not requests[q, RUNS]:
                table[CACHED, node] = min(requests[q, CONTEXT], requests[q, PROMPT])
            # A running request computes its whole prompt again if it is preempted.
            table[INPUTS, node] = requests[q, PROMPT] - table[CACHED, node]
            table[RESERVE, node] = requests[q, HELD]
            table[FOLLOWING, node] = -1
            table[ARRIVAL, node] = requests[q, RANK]
            table[STATUS, node] = RUNNING if requests[q, RUNS] else WAITING
            table[REQUEST, node] = requests[q, RANK]
            node += 1
            q += 1
        active = node - start
        for number in range(more[v]):
            if node > start:
                table[FOLLOWING, node - 1] = node
            else:
                first[v] = node
            o = outlook[v]
            table[AGENT, node] = outlooks[o, OWNER]
            if number > 0 or active > 0 or begun[v]:
                table[CACHED, node] = min(outlooks[o, REUSED], outlooks[o, INPUT])
            table[INPUTS, node] = outlooks[o, INPUT] - table[CACHED, node]
            table[RESERVE, node] = outlooks[o, INPUT] + outlooks[o, MOST]
            table[FOLLOWING, node] = -1
            table[ARRIVAL, node] = LATER - 1
            table[STATUS, node] = FUTURE
            table[GHOST, node] = number == 0 and active == 0 and missing[v] == 0
            table[REQUEST, node] = -1
            node += 1
        table[TASK, start:node] = task[v]
        table[STAGE, start:node] = v
        table[DEPTH, start:node] = depth[v]
        table[OUTLOOK, start:node] = outlook[v]
        count[v] = node - start
    return table, first, count


@allocating_kernel
def smallest(agent, reserve, agents):
    """Return the smallest reservation of each agent's requests."""
    least = np.full(agents, np.int64(1) << 62)
    for node in range(len(agent)):
        least[agent[node]] = min(least[agent[node]], reserve[node])
    return least


@allocating_kernel
def lengths_known(table, outputs, outputs_at):
    """Return whether every request's output length is certain: one length was seen of its stage."""
    for node in range(table.shape[1]):
        o = table[OUTLOOK, node]
        if outputs[outputs_at[o]] != outputs[outputs_at[o + 1] - 1]:
            return False
    return True


@allocating_kernel
def outputs_left(table, requests, outlooks, outputs, outputs_at, marks, scenarios):
    """Return the output tokens still to come by scenario and node.

    An unknown length is a quantile of the lengths seen above what the request has generated; scenarios are
    strata of it, in an order of each request's own. A request that has outlived all lengths seen is given a
    quarter of what it is still allowed.
    """
    nodes = table.shape[1]
    left = np.empty((scenarios, nodes), np.int64)
    for node in range(nodes):
        q, o = table[REQUEST, node], table[OUTLOOK, node]  # requests here in the order of arrival
        low, high = outputs_at[o], outputs_at[o + 1]
        most, so_far, seed = outlooks[o, MOST], 0, marks[node]
        if q >= 0:
            so_far, seed = requests[q, DONE], requests[q, SEED]
            if requests[q, ALLOWED] > 0:
                most = requests[q, ALLOWED]
        if outputs[low] == outputs[high - 1]:
            left[:, node] = max(min(outputs[low], most) - so_far, 1)
            continue
        skip = low + np.searchsorted(outputs[low:high], so_far, side="right")
        if skip == high:
            left[:, node] = max((most - so_far) // 4, 1)
            continue
        shift, fraction = (seed >> 16) & 0xFFFF, (seed & 0xFFFF) / 65536
        for k in range(scenarios):
            place = ((k + shift) % scenarios + fraction) / scenarios
            drawn = outputs[skip + np.int64(place * (high - skip))]
            left[k, node] = max(min(drawn, most) - so_far, 1)
    return left
