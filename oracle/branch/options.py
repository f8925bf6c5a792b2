"""What an event offers, as groups of options of which each takes one.

A group is a task (one of its columns, or nothing) or a running request (it stays, or not). A *value* is
``scale`` times a score in nanoseconds, plus one for each request that runs: so among equal scores the state
with more running requests has the higher value, and a bound on values bounds both. Agents are bits of a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oracle.columns import Columns
from topas.problem import Problem
from topas.residual import IntArray

MOST_AGENTS = 62
"""More agents have no mask."""
MOST_VALUE = 1 << 58
"""No sum of values, and no price times what it is the price of, exceeds this."""

TOKENS, ADMITTED, STAYS = range(3)
"""What an option takes: tokens of requests, admissions, running requests that stay."""


class Options(NamedTuple):
    """Groups, options and agents of one event.

    Group g has the options from ``at[g]`` to ``at[g + 1]``, the first of which is nothing. Of each:
    ``value``, what it ``takes``, its ``agents`` and the ``lowest`` of these, whether it ``pays`` for moves,
    and what it is ``of``: a column, -1 - a running request, or ``len(value)`` for nothing. By agent:
    ``prefix``; ``swap`` and ``reuse`` as values; the ``least`` tokens of requests beside the prefix; how many
    are ``running``. ``caps`` of tokens, admissions and running requests, and the fewest that may stay;
    ``rows`` are the places of those that can bind. ``nothing`` is the value of preempting everything.
    """

    at: IntArray
    value: IntArray
    takes: IntArray
    agents: IntArray
    lowest: IntArray
    pays: IntArray
    of: IntArray
    prefix: IntArray
    swap: IntArray
    reuse: IntArray
    least: IntArray
    running: IntArray
    caps: IntArray
    rows: IntArray
    resident: int
    active: int
    nothing: int


def scale_of(problem: Problem) -> int:
    """Return the scale of values; 1, without the tie-break, for large scores, 0 if they are too large."""
    agents, _, running, tasks = problem.tables[:4]
    swap_ns = int(agents["swap_ns"].sum()) * (len(tasks) + 1)
    sums = (agents["reuse_ns"], running["redo_ns"], running["revoke_ns"])
    most = (
        float((tasks["age"] * tasks["path_ns"]).sum()) + swap_ns + sum(int(array.sum()) for array in sums) + 1
    )
    scale = 1 << (len(problem.waiting) + len(problem.running) + 2).bit_length()
    if most * scale < MOST_VALUE / 2:
        return scale
    return 1 if most < MOST_VALUE / 2 else 0


def options_of(problem: Problem, columns: Columns, scale: int) -> Options:
    """Return the options of an event with these columns."""
    tables, table = problem.tables, columns.table
    agents, running, budget = tables.agents, tables.running, tables.budget
    bit = np.left_shift(1, np.arange(len(agents)))
    # Where each column, and each running request, stands behind the options of nothing before it.
    starts = np.flatnonzero(np.diff(table["task"], prepend=-1))
    count = len(table)
    at = np.concatenate(
        (starts + np.arange(len(starts)), count + len(starts) + 2 * np.arange(len(running) + 1))
    )
    real = np.ones(at[-1], dtype=bool)
    real[at[:-1]] = False

    def spread(of_columns: object, of_running: object, nothing: int = 0) -> IntArray:
        values = np.full(len(real), nothing, dtype=np.int64)
        values[real] = np.concatenate((np.asarray(of_columns), np.asarray(of_running)))
        return values

    bonus = 1 if scale > 1 else 0
    # There are members of columns that were dropped between those of the others.
    limits = np.stack((table["first"], table["first"] + table["requests"]), axis=1).ravel()
    users = bit[tables.waiting["agent"][columns.members[: limits[-1] + 1 if count else 0]]]
    masks = np.bitwise_or.reduceat(users, limits)[::2] if count else users
    loss = running["redo_ns"] + running["revoke_ns"]
    mask = spread(masks, bit[running["agent"]])
    waiting, runs, cap = len(problem.waiting), len(running), tables.cap
    runs_of = np.bincount(running["agent"], minlength=len(agents))
    most = tables.max_running or waiting + runs
    caps = np.array((budget, cap or waiting, most, runs - cap if cap else 0))
    return Options(
        at=at,
        value=spread(scale * table["gain_ns"] + bonus * table["requests"], scale * loss + bonus),
        takes=np.stack(
            (
                np.minimum(spread(table["tokens"], running["reserve"]), budget + 1),
                spread(table["requests"], np.zeros(len(running))),
                spread(np.zeros(count), np.ones(len(running))),
            ),
            axis=1,
        ),
        agents=mask,
        lowest=np.log2(np.maximum(mask & -mask, 1)).astype(np.int64),
        pays=spread(table["pays"], np.zeros(len(running))),
        of=spread(np.arange(count), -1 - np.arange(len(running)), len(real)),
        # What cannot fit at all may stand for anything larger, lest a price times it overflow.
        prefix=np.minimum(agents["prefix"], budget + 1),
        swap=scale * agents["swap_ns"],
        reuse=scale * agents["reuse_ns"],
        least=np.where(runs_of > 0, 0, agents["smallest"]),
        running=runs_of,
        caps=caps,
        rows=np.flatnonzero((True, tables.cap > 0, tables.max_running > 0, caps[-1] > 0)),
        resident=int(bit[agents["resident"] > 0].sum()),
        active=int(bit[agents["active"] > 0].sum()),
        nothing=-scale * int(loss.sum()),
    )
