"""What a solver found out, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topas.decision import Decision


class Status(StrEnum):
    """How much a result proves; never confused with one another.

    ``OPTIMAL``: the decision is proved best. ``FEASIBLE``: the decision is valid, ``bound_ns`` limits what
    any other could gain. ``UNKNOWN``: the limit was reached before a decision was found. ``INFEASIBLE``:
    proved that no decision exists.
    """

    OPTIMAL = "OPTIMAL"
    FEASIBLE = "FEASIBLE"
    UNKNOWN = "UNKNOWN"
    INFEASIBLE = "INFEASIBLE"


@dataclass(frozen=True, slots=True)
class EventResult:
    """The answer to one event.

    ``decision`` has passed the independent checker and was scored by the shared library; None if there is
    none. ``bound_ns`` is a proved upper bound on the score of any joint state that counts (the one in which
    nothing runs counts only if it is the only one): the score itself if OPTIMAL, None if INFEASIBLE.
    ``solve_s`` is wall-clock time. ``ties_proved``: among the optimal states this one is also proved to
    have the most requests running and, of these, the fewest prefix tokens moved.
    """

    status: Status
    decision: Decision | None
    bound_ns: int | None
    solver: str
    solve_s: float
    ties_proved: bool = False
