"""What a model of one event is asked, and what it answers, in indices of the problem."""

from __future__ import annotations

from dataclasses import dataclass

from oracle.result import Status


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a solver has to stop, and what its search may depend on.

    ``time_s`` is wall-clock time. ``work`` is a deterministic measure of work (about a second of a slow
    machine each): a solver that stops by it stops at the same place in every run. None: no limit.
    """

    time_s: float | None = 10.0
    work: float | None = None
    seed: int = 0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer about the non-empty states.

    ``admit`` and ``preempt`` are indices, empty if there is no state. ``claimed_ns`` is the score that the
    model believes it has; None if it has no state, or one whose continuous variables need not be tight.
    ``bound_ns``: no non-empty state scores more; None if nothing was proved. Both may be off by
    ``tolerance_ns``. ``ties_proved``: among equal scores the tie-break is proved too.
    """

    status: Status
    admit: tuple[int, ...] = ()
    preempt: tuple[int, ...] = ()
    claimed_ns: int | None = None
    bound_ns: int | None = None
    ties_proved: bool = False
    tolerance_ns: int = 0
