"""``topas-exact``: the proved optimum at every event, for the simulator; far too slow to serve with."""

from __future__ import annotations

from oracle.event import prepare, solve_event
from oracle.result import Status
from topas.decision import Decision
from topas.errors import SimulationError
from topas.event import Event
from topas.policies.policy import JointPolicy
from topas.score import decision_on

WORK_LIMIT = 120.0
"""CP-SAT's deterministic work for one event. No wall-clock limit: the same event ends the same way."""


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


TOPAS_EXACT = JointPolicy("topas-exact", decide_exactly, prepare)
