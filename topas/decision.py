"""A scheduling decision: the post-decision state S' and what its score is made of."""

from __future__ import annotations

from dataclasses import dataclass

from topas.units import to_s


@dataclass(frozen=True, slots=True)
class Terms:
    """The five terms of Eq. 13, each a non-negative number of integer nanoseconds."""

    admit_ns: int = 0
    move_ns: int = 0
    redo_ns: int = 0
    revoke_ns: int = 0
    reuse_ns: int = 0

    @property
    def score_ns(self) -> int:
        """Return ``admit - move - redo - revoke + reuse`` (Eq. 13)."""
        return self.admit_ns - self.move_ns - self.redo_ns - self.revoke_ns + self.reuse_ns

    @property
    def score_s(self) -> float:
        """Return the score in seconds."""
        return to_s(self.score_ns)


@dataclass(frozen=True, slots=True)
class Decision:
    """Prefixes to keep resident, requests to admit (in greedy order) and to preempt.

    ``credits_ns[k]`` is the aged conditional gain of ``admit[k]`` given the admissions before it
    (Eq. 7): the credit to store (Eq. 10).
    """

    resident: tuple[str, ...]
    admit: tuple[str, ...]
    preempt: tuple[str, ...]
    terms: Terms
    credits_ns: tuple[int, ...] = ()
