"""Lognormal lengths in tokens that keep their mean, whatever the spread and the cap."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from topas.schema import MAX_COUNT

_PHI = NormalDist().cdf


def length_tokens(z: float, mean: int, sigma: float, cap: int = MAX_COUNT) -> int:
    """Turn a standard normal draw into a length of at least 1 token (0 if the mean is 0).

    ``min(exp(mu + sigma * z), cap)`` rounded, with ``mu`` such that its expectation is ``mean``. The
    same ``z`` gives a longer length for a larger mean, so one seed compares across settings.
    ``sigma`` of 0 gives ``mean`` itself. ``cap`` must exceed ``mean`` unless ``sigma`` is 0.
    """
    if sigma == 0 or mean == 0:
        return mean
    return max(1, round(min(math.exp(_location(mean, sigma, cap) + sigma * z), cap)))


@lru_cache(maxsize=1024)
def _location(mean: int, sigma: float, cap: int) -> float:
    """Return mu by bisection: the clipped mean grows with mu, from below ``mean`` to ``cap``."""
    low = math.log(mean) - sigma**2 / 2  # right without a cap
    high = math.log(cap) + 10 * sigma
    for _ in range(100):
        middle = (low + high) / 2
        if _clipped_mean(middle, sigma, cap) < mean:
            low = middle
        else:
            high = middle
    return high


def _clipped_mean(mu: float, sigma: float, cap: int) -> float:
    """Return E[min(X, cap)] of a lognormal X: the part of the mean below the cap, and the cap above."""
    d = (math.log(cap) - mu) / sigma
    return math.exp(mu + sigma**2 / 2) * _PHI(d - sigma) + cap * _PHI(-d)
