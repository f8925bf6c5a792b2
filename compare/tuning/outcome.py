"""All that tuning came to."""

from __future__ import annotations

from dataclasses import dataclass

from compare.cell import Source
from compare.tuning.held_out import HeldOut
from compare.tuning.plan import Plan
from compare.tuning.study import Found, Trial
from compare.tuning.sweep import Sweep


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was asked and what was found.

    ``command`` is the command line that makes it again; the parameters of the trial ``best`` are the tuned
    ones; ``sweep`` is None if it was left out.
    """

    command: str
    plan: Plan
    found: Found
    best: Trial
    held_sources: tuple[Source, ...]
    held_out: HeldOut
    sweep: Sweep | None
