"""The limits of Eq. 2 as rows of a model, in the terms of whatever library the model is written with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from topas.problem import Problem


def limit_rows(
    problem: Problem,
    inside: Sequence[Any],
    stays: Sequence[Any],
    admitted: Sequence[tuple[int, int, Any]],
    total: Callable[[list[Any]], Any],
) -> Iterator[Any]:
    """Yield the budget, the batch limit and the caps, and that something runs.

    ``inside`` and ``stays`` are 0/1 variables of agents and of running requests; ``admitted`` are (tokens,
    requests, variable). ``total`` adds up terms.
    """
    tables = problem.tables
    tokens = [int(n) * z for n, z in zip(tables.agents["prefix"], inside, strict=True)]
    tokens += [int(n) * y for n, y in zip(tables.running["reserve"], stays, strict=True)]
    tokens += [n * x for n, _, x in admitted]
    admissions = [count * x for _, count, x in admitted]
    yield total(tokens) <= tables.budget
    yield total([*admissions, *stays]) >= 1
    if tables.max_running:
        yield total([*admissions, *stays]) <= tables.max_running
    if tables.cap and admissions:
        yield total(admissions) <= tables.cap
    if tables.cap and stays:
        yield total([*stays]) >= len(stays) - tables.cap
