"""SGLang's new-token ratio: it reserves only a share of what running requests may still generate.

The constants and the rule after a retraction are those of SGLang 0.5
(``managers/scheduler_components/new_token_ratio_tracker.py``): the ratio starts at 0.7, falls to 0.098
over 600 decode steps, and is set anew when decoding runs out of KV.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

INITIAL = 0.7
FLOOR = 0.7 * 0.14
DECAY = (INITIAL - FLOOR) / 600
RETRACT_STEPS = 20


class NewTokenRatio:
    """The share now, and how it moves."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = INITIAL

    def reset(self) -> None:
        """Start over, as SGLang does when it is idle."""
        self.value = INITIAL

    def decay(self, steps: int) -> None:
        """Fall by ``steps`` decode steps."""
        self.value = max(self.value - DECAY * steps, FLOOR)

    def retracted(self, generated: Sequence[int], max_new: Sequence[int]) -> None:
        """Set the share from the requests that stay: ``(generated + 20 n) / (max_new + 1)``, at most 1."""
        self.value = min(1.0, (sum(generated) + RETRACT_STEPS * len(generated)) / (sum(max_new) + 1))

    def steps_until_room(self, free: float, need: float, running: int, left: int, most: int) -> int:
        """Return the first step in 1..most after which a request in need fits, or ``most``.

        After q steps ``free - q n - r(q) (left - q n)`` tokens are not spoken for, where ``r(q)`` is the
        share then, ``n`` the requests running and ``left`` what they may still generate together. While
        the share falls this is a concave parabola in q; afterwards it only shrinks.
        """
        decaying = min(most, math.ceil((self.value - FLOOR) / DECAY)) if self.value > FLOOR else 0
        if decaying < 1 or running == 0:
            return most

        def room(q: int) -> float:
            share = max(self.value - DECAY * q, FLOOR)
            return free - q * running - share * (left - q * running) - need

        a = -DECAY * running
        b = running * (self.value - 1.0) + DECAY * left
        c = free - need - self.value * left
        under_root = b * b - 4 * a * c
        if under_root < 0 or b <= 0:
            return most
        first = max(math.floor((-b + math.sqrt(under_root)) / (2 * a)) - 1, 1)
        for q in range(first, min(first + 4, decaying + 1)):
            if room(q) > 0:
                return q
        return most
