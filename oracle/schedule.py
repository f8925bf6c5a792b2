"""A schedule of a whole trace as something that can be searched over and carried out.

Any order of admission can be written down as an order of the requests, and any delay of an admission as a
gate: "not before that request has finished". Times are not part of a schedule, so a change at one place
lets everything behind it move up.

At a decision the waiting requests are gone through in order. One with a closed gate is held back. One that
does not fit lets the next ones by (``SKIP``), or ends the decision (``BLOCK``, as queue policies do).
Nobody overtakes a request that is ``STRICT``, whether or not that one is ready. Nothing is preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from oracle.evaluate import BLOCK, SKIP, STRICT
from topas.event import Request
from topas.policies import Door, Planned


@dataclass(frozen=True, slots=True)
class Schedule:
    """``order`` are all requests of a trace by id; ``mode`` and ``gate`` give their exceptions.

    A request without a mode is ``BLOCK``, one without a gate is never held back.
    """

    order: tuple[str, ...]
    mode: Mapping[str, int] = field(default_factory=dict)
    gate: Mapping[str, str] = field(default_factory=dict)

    def policy(self, name: str = "schedule") -> Planned:
        """Return what carries the schedule out in the simulator."""
        return Planned(name, lambda: _execution(self))


def _execution(schedule: Schedule) -> Callable[[Door], Iterator[Request]]:
    """Return one run's executor; it remembers what it admitted, which with what runs tells what finished."""
    rank = {name: k for k, name in enumerate(schedule.order)}
    strict = [name for name in schedule.order if schedule.mode.get(name, BLOCK) == STRICT]
    strict.reverse()
    admitted: set[str] = set()

    def admit(door: Door) -> Iterator[Request]:
        for request in sorted(door.waiting, key=lambda r: rank[r.id]):
            while strict and strict[-1] in admitted:
                strict.pop()
            if strict and rank[request.id] > rank[strict[-1]]:
                return
            mode = schedule.mode.get(request.id, BLOCK)
            gate = schedule.gate.get(request.id)
            if gate is not None and (gate not in admitted or gate in door.running):
                if mode == STRICT:
                    return
            elif door.fits(request):
                admitted.add(request.id)
                yield request
            elif mode != SKIP:
                return

    return admit
