"""All joint states of a small event, one after the other: slow, and too simple to be wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from oracle.models.answer import Answer
from oracle.result import Status
from topas.decision import Decision
from topas.errors import InputError
from topas.feasible import violations
from topas.problem import Problem
from topas.score import decision_of

MOST_STATES = 1 << 16


def brute_force(problem: Problem, *, tie_break: bool = False) -> Answer:
    """Return the best non-empty state: its score by the shared library, its feasibility by the checker.

    ``tie_break``: more requests running, then fewer prefix tokens moved. O(2 ** requests) scores.

    Raises
    ------
    InputError
        if there are more than ``MOST_STATES`` states.
    """
    requests = len(problem.waiting) + len(problem.running)
    if 1 << requests > MOST_STATES:
        raise InputError(
            f"expected at most {MOST_STATES} joint states for brute force, found 2^{requests}: use cp-sat"
        )
    best: tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...]] | None = None
    for admit, preempt, decision in states(problem):
        running = len(problem.running) - len(preempt) + len(admit)
        value = (decision.terms.score_ns, running, -moved_tokens(problem, decision))
        if not tie_break:
            value = (value[0], 0, 0)
        if running and (best is None or value > best[0]):
            best = (value, admit, preempt)
    if best is None:
        return Answer(Status.INFEASIBLE)
    (score_ns, _, _), admit, preempt = best
    return Answer(Status.OPTIMAL, admit, preempt, score_ns, score_ns, ties_proved=tie_break)


def states(problem: Problem) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], Decision]]:
    """Yield every feasible (admit, preempt) and its decision, the empty state included."""
    for preempt in _subsets(range(len(problem.running))):
        for admit in _subsets(range(len(problem.waiting))):
            decision = decision_of(problem, list(admit), list(preempt), ())
            if not violations(problem.event, decision):
                yield admit, preempt, decision


def moved_tokens(problem: Problem, decision: Decision) -> int:
    """Return the prefix tokens that enter or leave."""
    event = problem.event
    return sum(event.agents[a] for a in event.resident.symmetric_difference(decision.resident))


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(items, n) for n in range(len(items) + 1))
