"""Residual service of a stage: empirical distribution and its conditioning (paper Eq. 4).

Durations are integer nanoseconds, so that hypothetical completions compose exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from topas.units import to_ns

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class Residual:
    """A distribution over the remaining service of one stage; immutable, compared by identity.

    ``values_ns`` are the distinct outcomes in increasing order, ``probs`` their probabilities. It is
    ``finished`` if no service is left with certainty.
    """

    __slots__ = ("_scenarios", "finished", "mean_ns", "probs", "samples_ns", "values_ns")

    def __init__(self, samples_ns: Iterable[int]) -> None:
        samples = np.sort(np.fromiter(samples_ns, dtype=np.int64))
        if samples.size == 0 or samples[0] < 0:
            msg = "a residual needs at least one sample, none negative"
            raise ValueError(msg)
        self.samples_ns: IntArray = samples
        values, counts = np.unique(samples, return_counts=True)
        self.values_ns: IntArray = values
        self.probs: FloatArray = counts / samples.size
        self.mean_ns = float(samples.mean())
        self.finished = bool(values[-1] == 0)
        self._scenarios: dict[tuple[str, int, int], IntArray] = {}

    def scenarios(self, stage: str, count: int, seed: int) -> IntArray:
        """Return ``count`` equally likely outcomes, a Latin hypercube margin of this distribution.

        The order is a permutation drawn from ``seed`` and the stage's name alone, so every candidate
        and every task of an event is judged on the same scenarios, and an event's other stages do not
        change them.
        """
        key = (stage, count, seed)
        found = self._scenarios.get(key)
        if found is None:
            found = self.samples_ns[_strata(stage, count, seed) * self.samples_ns.size // (2 * count)]
            self._scenarios[key] = found
        return found

    def __repr__(self) -> str:
        """Return a short description in seconds."""
        return f"Residual(mean={self.mean_ns / 1e9:.6g}s, outcomes={self.values_ns.size})"


@lru_cache(maxsize=65536)
def _strata(stage: str, count: int, seed: int) -> IntArray:
    rng = np.random.default_rng([seed, zlib.crc32(stage.encode())])
    return 2 * rng.permutation(count).astype(np.int64) + 1


FINISHED = Residual([0])


@lru_cache(maxsize=65536)
def residual_of_seconds(samples_s: tuple[float, ...]) -> Residual:
    """Return the residual with these equally likely samples; equal samples give one object."""
    samples = [to_ns(value) for value in samples_s]
    return FINISHED if not any(samples) else Residual(samples)


@lru_cache(maxsize=65536)
def outlived(one_more_ns: int) -> Residual:
    """Return the residual of a stage that has received more service than any execution seen.

    Eq. 4 is undefined there; the residual is the smallest positive service of one more expected request.
    """
    return Residual([one_more_ns])
