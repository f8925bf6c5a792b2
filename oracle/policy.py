"""Policies that maximise the paper's score at every event: ``topas-exact`` and ``topas-score``.

The first takes the optimum that CP-SAT proves, ties included, and is far too slow to serve with. The other
takes what branch and bound finds in a limited number of steps, which is nearly always the optimum too.
"""

from __future__ import annotations

from functools import partial

from oracle.branch.sets import solve_branch
from oracle.event import prepare, solve_event
from oracle.models.answer import Limits
from oracle.result import Status
from oracle.verify import verified
from topas.decision import Decision
from topas.errors import InputError, SimulationError
from topas.event import Event
from topas.online.search import select
from topas.policies.policy import JointPolicy
from topas.problem import compile_event
from topas.score import decision_on

WORK_LIMIT = 120.0
"""CP-SAT's deterministic work for one event. No wall-clock limit: the same event ends the same way."""
BRANCH_WORK = 1 / 16
"""The work of branch and bound for one event: some milliseconds at most."""


def decide_exactly(event: Event, work_limit: float = WORK_LIMIT) -> Decision:
    """Return the optimal decision; among equal scores more requests running, then fewer tokens moved.

    Admissions stand in greedy order, with their credits. If no state at all is feasible, nothing is
    changed, as in :func:`topas.online.search.select`.

    Raises
    ------
    InputError
        if OR-Tools is not installed.
    SimulationError
        if the optimum is not proved within the limit.
    """
    result = solve_event(event, time_limit_s=None, work_limit=work_limit, tie_break=True)
    if result.status is Status.INFEASIBLE:
        return decision_on(event, ())
    if result.decision is None or not result.ties_proved:
        what = "tie-break" if result.status is Status.OPTIMAL else "optimum"
        raise SimulationError(
            f"topas-exact: the {what} is not proved within {work_limit:g} units of work on the event at"
            f" {event.time_s:.3f} s ({len(event.waiting)} waiting, {len(event.running)} running)"
        )
    return result.decision


def decide_by_branching(event: Event) -> Decision:
    """Return the decision of the best score that is found; same input, same output.

    Where branch and bound does not prove it best, the paper's search (:func:`topas.online.search.select`) is
    asked too, and the better state of the two is taken; so the score is never below that of ``topas-paper``.
    """
    problem = compile_event(event)
    try:
        answer = solve_branch(problem, Limits(time_s=None, work=BRANCH_WORK))
    except InputError:
        return select(event)
    if answer.status not in (Status.OPTIMAL, Status.FEASIBLE):
        return select(event)
    found = verified(problem, answer)
    if answer.status is Status.OPTIMAL:
        return found
    paper = select(event)
    return paper if paper.resident and paper.terms.score_ns > found.terms.score_ns else found


TOPAS_SCORE = JointPolicy("topas-score", decide_by_branching, partial(prepare, "branch-and-bound"))
TOPAS_EXACT = JointPolicy("topas-exact", decide_exactly, prepare)
