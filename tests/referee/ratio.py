"""SGLang's new-token ratio: it reserves only a share of what running requests may still generate.

The constants and the rule after a retraction are those of SGLang 0.5
(``managers/scheduler_components/new_token_ratio_tracker.py``): the ratio starts at 0.7, falls to 0.098
over 600 decode steps, and is set anew when decoding runs out of KV.
"""

from __future__ import annotations

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
