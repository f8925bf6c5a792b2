"""From a model's answer to a decision that is known to be good: re-scored and checked.

No model is believed. What it chose is scored by the shared library, checked by the independent checker,
and the score that it claimed is compared with the one it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from topas.decision import Decision
from topas.feasible import violations
from topas.problem import Problem
from topas.score import conditional_gains_ns, decision_of, joint_gain_ns


class OracleError(RuntimeError):
    """An exact model contradicts the shared library: a fault of ours, not of the input."""


def verified(
    problem: Problem,
    admit: Iterable[int],
    preempt: Iterable[int],
    *,
    claimed_ns: int | None = None,
    tolerance_ns: int = 0,
) -> Decision:
    """Return the decision for a state given by indices, admissions in greedy order, with its credits.

    Raises
    ------
    OracleError
        if the state is not feasible, or its score differs from the claimed one by more than the
        tolerance.
    """
    dropped = sorted(set(preempt))
    ordered = greedy_order(problem, admit, dropped)
    decision = decision_of(problem, ordered, dropped, conditional_gains_ns(problem, ordered))
    found = violations(problem.event, decision)
    if found:
        raise OracleError(f"an exact model's state is not feasible: {'; '.join(found)}")
    score_ns = decision.terms.score_ns
    if claimed_ns is not None and abs(claimed_ns - score_ns) > tolerance_ns:
        raise OracleError(
            f"an exact model claims a score of {claimed_ns} ns for a state that has {score_ns} ns"
            f" (tolerance {tolerance_ns} ns)"
        )
    return decision


def greedy_order(problem: Problem, admit: Iterable[int], preempt: Iterable[int]) -> list[int]:
    """Return admissions in the order in which GreedyPack would choose them from among themselves.

    Largest aged conditional gain per reserved token first; the gains of a task change with its earlier
    admissions. Zero gains come last, first those of a task that is represented already (docs/model.md,
    section 3). O(admissions squared).
    """
    dropped = set(preempt)
    present = {int(t) for q, t in enumerate(problem.running_task) if q not in dropped}
    left = sorted(admit)
    sofar: dict[int, tuple[list[int], int]] = {}

    def gain_ns(k: int) -> int:
        task = int(problem.waiting_task[k])
        before, joint_ns = sofar.get(task, ([], 0))
        return joint_gain_ns(problem, task, [*before, k]) - joint_ns

    gain = {k: gain_ns(k) for k in left}
    ordered: list[int] = []

    def preference(k: int) -> tuple[float, bool, int]:
        tokens = int(problem.waiting_reserve[k])
        ratio = 0.0
        if gain[k] > 0:
            ratio = gain[k] / tokens if tokens else math.inf
        return (-ratio, gain[k] > 0 or int(problem.waiting_task[k]) not in present, k)

    while left:
        choice = min(left, key=preference)
        left.remove(choice)
        ordered.append(choice)
        task = int(problem.waiting_task[choice])
        before, joint_ns = sofar.get(task, ([], 0))
        sofar[task] = ([*before, choice], joint_ns + gain[choice])
        present.add(task)
        for k in left:
            if int(problem.waiting_task[k]) == task:
                gain[k] = gain_ns(k)
    return ordered
