"""Arrival times: a Poisson process."""

from __future__ import annotations

import math

import numpy as np

from topas.errors import InputError
from topas.trace import MAX_SECONDS

_STREAM = 1
"""Keeps the arrivals of a seed apart from whatever else is drawn with it."""


def poisson_arrivals(tasks: int, rate_per_s: float, seed: int) -> list[float]:
    """Return increasing arrival times in seconds with independent exponential gaps of mean 1 / rate.

    The first task arrives after the first gap. The same seed gives the same arrivals in units of the
    mean gap whatever the rate, and the first arrivals of a longer trace are those of a shorter one.

    Raises
    ------
    InputError
        if the rate is not positive and finite or so small that arrivals leave the range of a trace, there
        is no task, or the seed is negative.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise InputError(f"expected a positive number of tasks a second, found {rate_per_s}", field="rate")
    if tasks < 1:
        raise InputError(f"expected at least one task, found {tasks}", field="tasks")
    if seed < 0:
        raise InputError(f"expected a seed of at least 0, found {seed}", field="seed")
    gaps = np.random.default_rng([_STREAM, seed]).standard_exponential(tasks)
    with np.errstate(over="ignore"):  # an overflow is beyond the limit as well
        times = np.cumsum(gaps) / rate_per_s
    if times[-1] > MAX_SECONDS:
        raise InputError(f"the last task would arrive after {MAX_SECONDS:g} s", field="rate")
    return [float(time) for time in times]
