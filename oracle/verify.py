"""From a model's answer to a decision that is known to be good: re-scored and checked.

No model is believed. What it chose is scored by the shared library, checked by the independent checker,
and the score that it claimed is compared with the one it has.
"""

from __future__ import annotations

from oracle.models.answer import Answer
from topas.decision import Decision
from topas.feasible import violations
from topas.online.search import in_greedy_order
from topas.problem import Problem


class OracleError(RuntimeError):
    """An exact model contradicts the shared library: a fault of ours, not of the input."""


def verified(problem: Problem, answer: Answer) -> Decision:
    """Return the decision of an answer that has a state, admissions in greedy order, with its credits.

    Raises
    ------
    OracleError
        if the state is not feasible, or its score differs from the claimed one by more than the
        tolerance.
    """
    decision = in_greedy_order(problem, answer.admit, answer.preempt)
    found = violations(problem.event, decision)
    if found:
        raise OracleError(f"an exact model's state is not feasible: {'; '.join(found)}")
    claimed_ns, score_ns = answer.claimed_ns, decision.terms.score_ns
    if claimed_ns is not None and abs(claimed_ns - score_ns) > answer.tolerance_ns:
        raise OracleError(
            f"an exact model claims a score of {claimed_ns} ns for a state that has {score_ns} ns"
            f" (tolerance {answer.tolerance_ns} ns)"
        )
    return decision
