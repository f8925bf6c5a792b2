"""SGLang's new-token ratio: it reserves only a share of what running requests may still generate.

The constants and the rule after a retraction are those of SGLang 0.5
(``managers/scheduler_components/new_token_ratio_tracker.py``): the ratio starts at 0.7, falls to 0.098
over 600 decode steps, and is set anew when decoding runs out of KV.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

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


def entering_share(room: int, left: int, count: int) -> tuple[int, Fraction]:
    """Return what ``count`` admitted requests reserve that do not decode yet: (least, share of the rest).

    Together they may generate ``left`` tokens and there is room for ``room``. Each reserves
    ``least + floor(share * (its own - least))``, together at most the room, and at least its first token
    where there is one for each: else a small request could be let in upon tokens that these are due next.
    """
    if left <= room:
        return 0, Fraction(1)
    if room < count:
        return 0, Fraction(max(room, 0), left)
    return 1, Fraction(room - count, left - count)
