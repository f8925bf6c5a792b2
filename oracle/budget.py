"""How much a search may still spend."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """Seconds and schedules that may be spent; ``used`` counts schedules, ``most`` < 0 is no limit on them.

    The only state of a search besides its solutions. Reads the clock it is given.
    """

    until_s: float
    most: int
    clock: Callable[[], float]
    used: int = 0
    begin_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Note the time."""
        self.begin_s = self.clock()

    def share(self, part: float) -> Budget:
        """Return a budget of a part of what is left, to be charged back with :meth:`charge`."""
        now_s = self.clock()
        most = self.most if self.most < 0 else max(int(part * (self.most - self.used)), 0)
        return Budget(now_s + part * max(self.until_s - now_s, 0.0), most, self.clock)

    def at_most(self, count: int) -> Budget:
        """Return this budget with at most ``count`` schedules."""
        most = count if self.most < 0 else min(count, self.most)
        return Budget(self.until_s, most, self.clock)

    def charge(self, other: Budget) -> None:
        """Count what a share has used."""
        self.used += other.used

    @property
    def spent(self) -> float:
        """Return how much is spent, from 0 to 1, of what is scarcer."""
        by_count = self.used / self.most if self.most > 0 else float(self.most == 0)
        if self.until_s == math.inf:
            return min(by_count, 1.0)
        whole_s = self.until_s - self.begin_s
        by_time = (self.clock() - self.begin_s) / whole_s if whole_s > 0 else 1.0
        return min(max(by_count, by_time), 1.0)
