"""Which prefix sets are solved: branch and bound over all."""

from __future__ import annotations

import numpy as np

from oracle.branch.core import NOTHING, core_for, solve_set
from oracle.branch.options import MOST_AGENTS, options_of, scale_of
from oracle.branch.prices import bound, minimise
from oracle.columns import MOST_COLUMNS, columns_of
from oracle.models.answer import Answer, Limits
from oracle.result import Status
from topas.compiled import allocating_kernel, kernel
from topas.errors import InputError
from topas.problem import Problem

LOOKS_PER_S = 1 << 27
"""Options looked at in a second, about: what limits of time and work are counted in."""


def solve_branch(problem: Problem, limits: Limits) -> Answer:
    """Return the best non-empty state; among equal scores one with the most requests running.

    Limits are kept by counting, so the same problem gets the same answer.

    Raises
    ------
    InputError
        if the event has too many agents, sets of a task's ready requests, or too large scores.
    """
    scale, columns = scale_of(problem), columns_of(problem)
    if len(problem.agents) > MOST_AGENTS:
        raise InputError(f"expected at most {MOST_AGENTS} agents, found {len(problem.agents)}: use cp-sat")
    if len(columns.unlisted):
        raise InputError(
            f"expected at most {MOST_COLUMNS} sets of ready requests a task, found more: use cp-sat"
        )
    if not scale:
        raise InputError("has numbers too large for branch and bound: the score may leave 64 bits")
    o = options_of(problem, columns, scale)
    core = core_for(o)
    seconds = [limit for limit in (limits.time_s, limits.work) if limit is not None]
    looks = int(min(LOOKS_PER_S * min(seconds, default=np.inf), 1 << 60))
    worth = np.zeros((2, len(o.prefix)), dtype=np.int64)
    sure, root = search_sets(looks // max(len(o.value), 1), worth, o, core)
    bound_ns = int(root) // scale
    if core.value[0] == NOTHING:
        return Answer(Status.INFEASIBLE) if sure else Answer(Status.UNKNOWN, bound_ns=bound_ns)
    chosen = o.of[core.chosen]
    admit = tuple(k for column in chosen if 0 <= column < len(o.value) for k in columns.requests(column))
    stays = {-1 - int(q) for q in chosen if q < 0}
    preempt = tuple(q for q in range(len(problem.running)) if q not in stays)
    running = len(admit) + len(stays) if scale > 1 else 0
    score_ns = (int(core.value[0]) - running) // scale
    status = Status.OPTIMAL if sure else Status.FEASIBLE
    return Answer(status, admit, preempt, score_ns, score_ns if sure else bound_ns)


@kernel
def hopeless(inside, free, o):
    """Return whether a set's prefixes are too large, or too many requests run without theirs."""
    tokens, stays = np.int64(0), np.int64(0)
    for a in range(len(o.prefix)):
        if (inside >> a) & 1:
            tokens += o.prefix[a] + o.least[a]
        if ((inside | free) >> a) & 1:
            stays += o.running[a]
    return tokens > o.caps[0] or stays < o.caps[3]


@allocating_kernel
def search_sets(most, worth, o, core):
    """Search all prefix sets, leaving the best state in ``core``.

    Returns whether no state is better for sure, and a bound on all, after ``most`` bounds of nodes at most.
    """
    prices = np.zeros(4, dtype=np.int64)
    leaf = np.zeros(4, dtype=np.int64)
    stack = np.zeros((2 * len(o.prefix) + 2, 2), dtype=np.int64)
    stack[0, 1] = o.active
    root = minimise(core.value[0], np.int64(0), o.active, prices, worth, o)
    leaf[:] = prices
    top, sure = 1, True
    while top > 0:
        top -= 1
        inside, free = stack[top]
        closed = hopeless(inside, free, o)
        while not closed:
            most -= 1
            if most < 0:
                return False, root
            value, known = bound(inside, free, prices, worth, o), core.value[0]
            if value <= known:
                break
            chosen, forced = -1, False
            for a in range(len(o.prefix)):
                bit = np.int64(1) << a
                gain = worth[0, a]
                if not free & bit:
                    continue
                if gain > 0 and value - gain <= known:
                    inside |= bit
                    free ^= bit
                    forced = True
                elif (gain <= 0 and value + gain <= known) or hopeless(inside | bit, free, o):
                    free ^= bit
                    forced = True
                elif chosen < 0 or abs(gain) > abs(worth[0, chosen]):
                    chosen = a
            if forced:
                closed = hopeless(inside, free, o)
            elif free:
                bit = np.int64(1) << chosen
                likely = bit if worth[0, chosen] > 0 else np.int64(0)
                stack[top, 0], stack[top + 1, 0] = inside | (bit ^ likely), inside | likely
                stack[top, 1] = stack[top + 1, 1] = free ^ bit
                top += 2
                break
            else:
                if inside:
                    sure = solve_set(inside, leaf, worth, o, core) and sure
                break
    return sure, root
