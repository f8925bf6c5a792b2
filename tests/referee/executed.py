"""A schedule as something that is asked at every decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from topas.engine.core import BLOCK, SKIP, STRICT
from topas.event import Request
from topas.sim.schedule import Schedule

if TYPE_CHECKING:
    from referee.view import EngineView


def executed(schedule: Schedule) -> Callable[[EngineView], Iterator[Request]]:
    """Return one run's executor; it remembers what it admitted, which with what runs tells what finished."""
    rank = {name: k for k, name in enumerate(schedule.order)}
    strict = [name for name in schedule.order if schedule.mode.get(name, BLOCK) == STRICT]
    strict.reverse()
    admitted: set[str] = set()

    def admit(door: EngineView) -> Iterator[Request]:
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
