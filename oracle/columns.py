"""What each task may be given at an event: subsets of its ready requests as columns of a knapsack.

A column is one choice for one task, worth its aged joint gain. Given the prefix set R', the score is a sum
over tasks of what the chosen columns are worth, so an exact model picks at most one column a task.

Requests of a task that agree in stage, agent, service and reservation are interchangeable: the gain adds
up service per stage, Eq. 2 adds up reservations. So only the first ``n`` of each such kind are ever
needed, and a task has ``prod(size of kind + 1)`` subsets to tell apart, not ``2 ** requests``.

Column c is left out if it cannot fit by itself, or if another column d of the task has the same agents and
as many requests, at least the gain and at most the tokens. Whatever state holds c, putting d in its place
keeps the set R' and so the coverage, T_move, ``pays``, the reuse term and the room for prefixes; it keeps the
number of admissions and of running requests, hence K, the batch limit and every tie-break by that number; it
frees ``tokens(c) - tokens(d) >= 0`` tokens and changes the score by ``gain(d) - gain(c) >= 0``. So some
optimal state has no such column, also among those with the most requests running. Of equal columns the first
one stays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topas.compiled import kernel
from topas.online.greedy_pack import add_work, clear, gain_ns, room_for
from topas.problem import Problem, Table, int_fields
from topas.residual import IntArray

MOST_COLUMNS = 1024
"""A task with more subsets to tell apart is not listed (see :mod:`oracle.cuts`)."""

COLUMN = int_fields("task gain_ns tokens requests pays first kinds")
"""``requests`` of one ``task``, from ``Columns.members[first]`` on; ``pays`` if one of their agents is not
resident now, so that the task waits for the moves (Eq. 8); ``kinds`` marks those agents within the task."""


class Columns(NamedTuple):
    """The columns of an event, those of a task side by side, and the tasks whose columns are too many."""

    table: Table
    members: IntArray
    unlisted: IntArray

    def requests(self, column: int) -> list[int]:
        """Return the waiting requests of a column."""
        first = int(self.table["first"][column])
        found: list[int] = self.members[first : first + int(self.table["requests"][column])].tolist()
        return found


def columns_of(problem: Problem) -> Columns:
    """Return the columns of all tasks. O(columns squared) in each task, beside the gains."""
    ready = problem.tables.tasks["ready"]
    sizes = np.minimum(1 << np.minimum(ready, 60), MOST_COLUMNS)
    table = np.zeros(int(sizes.sum()), dtype=COLUMN)
    members = np.zeros(int((sizes * ready).sum()) + 1, dtype=np.int64)
    unlisted = np.zeros(len(ready), dtype=np.int64)
    kinds = np.zeros((5, int(ready.max(initial=0))), dtype=np.int64)
    count = list_columns(table, members, unlisted, kinds, MOST_COLUMNS, problem.tables, room_for(problem))
    return Columns(table[:count], members, np.flatnonzero(unlisted))


@kernel
def find_kinds(first, ready, kinds, p):
    """Group a task's requests into kinds of interchangeable ones; return how many there are.

    Rows of ``kinds``: the kind of each request and its place in it, a bit for its agent, and the size of each
    kind.
    """
    found = 0
    for i in range(ready):
        one = p.waiting[first + i]
        kinds[0, i], kinds[1, i], kinds[2, i] = found, 0, 1 << min(found, 60)
        for j in range(i - 1, -1, -1):
            other = p.waiting[first + j]
            if one["agent"] == other["agent"]:
                kinds[2, i] = kinds[2, j]
                if (
                    one["stage"] == other["stage"]
                    and one["reserve"] == other["reserve"]
                    and (one["work_ns"] == other["work_ns"] or one["stage"] < 0)
                ):
                    kinds[0, i], kinds[1, i] = kinds[0, j], kinds[1, j] + 1
                    break
        if kinds[0, i] == found:
            found += 1
        kinds[3, kinds[0, i]] = kinds[1, i] + 1
    return found


@kernel
def list_columns(table, members, unlisted, kinds, most, p, w):
    """Fill in columns and their members, and mark the tasks that are not listed; return how many columns."""
    clear(w)
    slots = len(p.waiting)
    if p.cap > 0:
        slots = min(slots, p.cap)
    if p.max_running > 0:
        slots = min(slots, p.max_running)
    kind, place, agent_bit, size, many = kinds
    at = used = 0
    for t in range(len(p.tasks)):
        task = p.tasks[t]
        first, ready = task["first"], task["ready"]
        begin, subsets = at, 1
        for c in range(find_kinds(first, ready, kinds, p)):
            subsets = min(subsets * (size[c] + 1), most + 1)
            many[c] = 0
        if subsets > most:
            unlisted[t] = 1
            continue
        for _ in range(subsets - 1):
            c = 0
            while many[c] == size[c]:
                many[c] = 0
                c += 1
            many[c] += 1
            new, prefixes, mask = table[at], 0, 0
            new["task"], new["first"] = t, used
            new["tokens"] = new["requests"] = new["pays"] = new["kinds"] = 0
            for i in range(ready):
                if place[i] < many[kind[i]]:
                    request = p.waiting[first + i]
                    agent = p.agents[request["agent"]]
                    members[used + new["requests"]] = first + i
                    new["requests"] += 1
                    new["tokens"] += request["reserve"]
                    new["pays"] |= 1 - agent["resident"]
                    mask |= 1 << request["bit"]
                    if not new["kinds"] & agent_bit[i]:
                        new["kinds"] |= agent_bit[i]
                        prefixes += agent["prefix"]
            if new["tokens"] + prefixes > p.budget or new["requests"] > slots:
                continue
            for i in range(new["requests"]):
                add_work(members[used + i], 1, p, w)
            new["gain_ns"] = gain_ns(t, mask, p, w)
            for i in range(new["requests"]):
                add_work(members[used + i], -1, p, w)
            used += new["requests"]
            at = keep(table, begin, at)
    return at


@kernel
def keep(table, begin, at):
    """Keep the column at ``at`` if none of its task's, from ``begin`` on, dominates it; return the end."""
    new, left = table[at], begin
    for j in range(begin, at):
        other = table[j]
        if (
            other["requests"] == new["requests"]
            and other["kinds"] == new["kinds"]
            and other["gain_ns"] >= new["gain_ns"]
            and other["tokens"] <= new["tokens"]
        ):
            return at
    for j in range(begin, at + 1):
        other = table[j]
        if (
            j == at
            or other["requests"] != new["requests"]
            or other["kinds"] != new["kinds"]
            or other["gain_ns"] > new["gain_ns"]
            or other["tokens"] < new["tokens"]
        ):
            table[left] = other
            left += 1
    return left
