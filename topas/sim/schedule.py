"""A schedule of a whole trace as something that can be searched over and carried out.

Any order of admission can be written down as an order of the requests, and any delay of an admission as a
gate: "not before that request has finished". Times are not part of a schedule, so a change at one place
lets everything behind it move up.

At a decision the waiting requests are gone through in order. One with a closed gate is held back. One that
does not fit lets the next ones by (``SKIP``), or ends the decision (``BLOCK``, as queue policies do).
Nobody overtakes a request that is ``STRICT``, whether or not that one is ready. Nothing is preempted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from topas.engine.core import BLOCK
from topas.residual import IntArray

RANK, MODE, GATE, ORDER = range(4)
"""Rows of a plan, as the engine takes it: by request, but for the last, which is the order itself."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """``order`` are all requests of a trace by id; ``mode`` and ``gate`` give their exceptions.

    A request without a mode is ``BLOCK``, one without a gate is never held back. Reports say ``name``.
    """

    order: tuple[str, ...]
    mode: Mapping[str, int] = field(default_factory=dict)
    gate: Mapping[str, str] = field(default_factory=dict)
    name: str = "schedule"

    def plan(self, requests: Sequence[str]) -> IntArray:
        """Return the schedule in numbers over the requests of a trace, in the engine's order."""
        number = {name: k for k, name in enumerate(requests)}
        plan = np.empty((4, len(requests)), np.int64)
        plan[MODE], plan[GATE] = BLOCK, -1
        plan[ORDER] = [number[name] for name in self.order]
        plan[RANK, plan[ORDER]] = np.arange(len(requests))
        for name, mode in self.mode.items():
            plan[MODE, number[name]] = mode
        for name, gate in self.gate.items():
            plan[GATE, number[name]] = number[gate]
        return plan
