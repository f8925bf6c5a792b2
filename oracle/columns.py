"""What each task may be given at an event: subsets of its ready requests as columns of a knapsack.

A column is one choice for one task, worth its aged joint gain. Given the prefix set R', the score is a sum
over tasks of what the chosen columns are worth, so an exact model picks at most one column a task.

Requests of a task that agree in stage, agent, service and reservation are interchangeable: the gain adds
up service per stage, Eq. 2 adds up reservations. So only the first ``n`` of each such kind are ever
needed, and a task has ``prod(size of kind + 1)`` subsets to tell apart, not ``2 ** requests``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topas.problem import Problem

MOST_COLUMNS = 1024
"""A task with more subsets to tell apart is not listed (see :mod:`oracle.cuts`)."""


@dataclass(frozen=True, slots=True)
class Column:
    """A non-empty set of ready requests of one task.

    ``requests`` are indices of waiting requests, ``agents`` those they use; ``pays`` if one of these is
    not resident now, so that the task waits for the moves (Eq. 8).
    """

    task: int
    requests: tuple[int, ...]
    agents: frozenset[int]
    tokens: int
    gain_ns: int
    pays: bool


def ready_of(problem: Problem) -> dict[int, list[int]]:
    """Return the waiting requests of each task that has any, in canonical order."""
    ready: dict[int, list[int]] = {}
    for k, task in enumerate(problem.waiting_task):
        ready.setdefault(int(task), []).append(k)
    return ready


def kinds_of(problem: Problem, requests: list[int]) -> list[list[int]]:
    """Group a task's requests into kinds of interchangeable ones."""
    kinds: dict[tuple[int, int, int, int], list[int]] = {}
    for k in requests:
        key = (
            int(problem.work_stage[k]),
            int(problem.work_ns[k]) if problem.work_stage[k] >= 0 else 0,
            int(problem.waiting_agent[k]),
            int(problem.waiting_reserve[k]),
        )
        kinds.setdefault(key, []).append(k)
    return list(kinds.values())


def is_listed(kinds: list[list[int]]) -> bool:
    """Return whether a task's subsets are few enough to be listed."""
    return math.prod(len(kind) + 1 for kind in kinds) <= MOST_COLUMNS


class Gains:
    """Aged joint gains of sets of ready requests, in ns; tasks in one state share the evaluations."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._left: dict[tuple[int, int, tuple[int, ...]], int] = {}

    def __call__(self, task: int, requests: tuple[int, ...]) -> int:
        """Return ``round(g_i (L_i - L_i(H)))``, the number of :func:`topas.score.joint_gain_ns`."""
        problem = self._problem
        path_ns = int(problem.path_ns[task])
        return int(np.rint(problem.age[task] * float(path_ns - self._left_ns(task, requests))))

    def _left_ns(self, task: int, requests: tuple[int, ...]) -> int:
        """Return L_i(H), through the memo of the shared library where the task has one."""
        problem, store = self._problem, self._problem.store
        model = problem.models[task]
        if model is None:
            return int(problem.path_ns[task])
        if model.memo_at >= 0:
            at = model.memo_at + sum(1 << int(problem.work_bit[k]) for k in requests)
            if store.memo[at] < 0:
                store.memo[at] = store.expected_ns(model, self._done(task, requests))
            return int(store.memo[at])
        done = self._done(task, requests)
        key = (model.row, problem.path_ns[task], tuple(done.values()))
        if key not in self._left:
            self._left[key] = store.expected_ns(model, done)
        return self._left[key]

    def _done(self, task: int, requests: tuple[int, ...]) -> dict[int, int]:
        """Return what a set of completions does to each stage of the evaluated part."""
        problem = self._problem
        model = problem.models[task]
        if model is None:
            return {}
        places = [0] * len(model.part)
        for k in requests:
            if problem.work_stage[k] >= 0:
                places[problem.work_stage[k]] += int(problem.work_ns[k])
        return {stage: places[place] for stage, place in model.part.items()}


def columns_of(problem: Problem, task: int, kinds: list[list[int]], gains: Gains) -> list[Column]:
    """Return the columns of one task without the dominated ones.

    Column c is dropped if another column d of the task has the same agents and as many requests, at least
    the gain and at most the tokens. Whatever state holds c, putting d in its place keeps the set R' and so
    the coverage, T_move, ``pays``, the reuse term and the room for prefixes; it keeps the number of
    admissions and of running requests, hence K, the batch limit and every tie-break by that number; it
    frees ``tokens(c) - tokens(d) >= 0`` tokens and changes the score by ``gain(d) - gain(c) >= 0``. So
    some optimal state has no dropped column, also among those with the most requests running. Of equal
    columns the first one stays.
    """
    found: dict[tuple[frozenset[int], int], list[Column]] = {}
    for requests in _subsets(kinds):
        agents = frozenset(int(problem.waiting_agent[k]) for k in requests)
        column = Column(
            task=task,
            requests=requests,
            agents=agents,
            tokens=sum(int(problem.waiting_reserve[k]) for k in requests),
            gain_ns=gains(task, requests),
            pays=any(not problem.resident[a] for a in agents),
        )
        found.setdefault((agents, len(requests)), []).append(column)
    return [column for group in found.values() for column in _undominated(group)]


def _undominated(group: list[Column]) -> Iterator[Column]:
    best = -1
    for column in sorted(group, key=lambda c: (c.tokens, -c.gain_ns)):
        if column.gain_ns > best:
            best = column.gain_ns
            yield column


def _subsets(kinds: list[list[int]]) -> Iterator[tuple[int, ...]]:
    """Return all non-empty subsets up to interchangeable requests."""
    for counts in itertools.product(*(range(len(kind) + 1) for kind in kinds)):
        if any(counts):
            yield tuple(sorted(k for kind, n in zip(kinds, counts, strict=True) for k in kind[:n]))
