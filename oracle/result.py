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
    none. ``bound_ns`` is a proved upper bound on the score of any joint state: the score itself if
    OPTIMAL, None if INFEASIBLE or nothing was proved. ``solve_s`` is wall-clock time.
    """

    status: Status
    decision: Decision | None
    bound_ns: int | None
    solver: str
    solve_s: float
