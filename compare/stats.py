r"""Means over seeds, paired intervals, and changes against the best baseline as the paper counts them.

For a metric x, policy p, operating points k and seeds s, all of one workload on one engine profile:

* at one point, the value of p is the mean over seeds of x[p, k, s];
* over the points, it is the mean over points and seeds (paper section V: "workload-level comparisons
  average each metric over the reported operating points");
* the best baseline b is the one with the lowest value (highest for a rate such as requests per second);
* the change of p is value(p) / value(b) - 1: negative is a reduction;
* the paired interval is that of the mean of the per-seed changes d[s] = x[p, s] / x[b, s] - 1 (over the
  points, x[., s] is first averaged over them), by Student's t with n - 1 degrees of freedom:
  mean(d) +- t(0.975, n - 1) * sd(d) / sqrt(n). One seed gives no interval.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.stats import t as student

from compare.cell import METRICS, TIMINGS, Result
from topas.profile import Profile

LOWER_IS_BETTER = ("mean_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "first_task_s")
HIGHER_IS_BETTER = ("requests_per_s",)
COMPARED = LOWER_IS_BETTER + HIGHER_IS_BETTER
"""Metrics with a best baseline; the others describe how a policy got there."""

CONFIDENCE = 0.95

Sample = Mapping[tuple[float | None, int | None], float]
"""Values of one policy by operating point and seed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its two-sided confidence interval; ``low`` and ``high`` are None for one value."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """A policy against the best baseline; fractions, negative where the policy's value is lower."""

    best: str
    ratio: float
    paired: Interval


@dataclass(frozen=True, slots=True)
class Point:
    """An operating point; ``load`` is None where rates were given, both are None for a fixed trace.

    The rate of a load may differ from seed to seed where lengths do; then it is their mean.
    """

    load: float | None
    rate_per_s: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric of one policy: at one operating point, or over all of them (``point`` None).

    ``value`` is the mean over ``cells`` cells. ``change`` is None where nothing is compared: no baseline
    finished all its cells, or the metric has no better side.
    """

    workload: str
    profile: Profile
    point: Point | None
    metric: str
    policy: str
    cells: int
    value: float
    change: Change | None


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of some values with its interval by Student's t."""
    mean = fmean(values)
    if len(values) == 1:
        return Interval(mean, None, None)
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def best_of(metric: str, values: Mapping[str, float]) -> str:
    """Return the policy with the best value of a compared metric; the first of equal ones."""
    choose = max if metric in HIGHER_IS_BETTER else min
    return choose(values, key=lambda policy: values[policy])


def summarise(results: Iterable[Result], baselines: Collection[str]) -> tuple[Summary, ...]:
    """Summarise every metric that a rerun reproduces: at each operating point, then over all of them.

    The order is that in which workloads, points and policies come. A policy that misses a cell (a failed
    one) which another policy has is left out where the cell would count: a mean over other points or
    seeds would not compare.

    Parameters
    ----------
    results : finished cells.
    baselines : policies among which the best baseline is sought.
    """
    settings: dict[tuple[str, Profile], list[Result]] = {}
    for result in results:
        settings.setdefault((result.cell.source.workload, result.cell.profile), []).append(result)
    return tuple(
        Summary(workload, profile, point, metric, *row)
        for (workload, profile), members in settings.items()
        for point, inside in (*_points(members).items(), (None, members))
        for metric in METRICS
        if metric not in TIMINGS
        for row in _rows(inside, metric, baselines)
    )


def _place(result: Result) -> float | None:
    source = result.cell.source
    return source.rate_per_s if source.load is None else source.load


def _points(results: Iterable[Result]) -> dict[Point, list[Result]]:
    places: dict[float | None, list[Result]] = {}
    for result in results:
        places.setdefault(_place(result), []).append(result)
    return {_point(members): members for members in places.values()}


def _point(results: Sequence[Result]) -> Point:
    rates = {one.cell.source.seed: one.cell.source.rate_per_s for one in results}
    known = [rate for rate in rates.values() if rate is not None]
    return Point(results[0].cell.source.load, fmean(known) if known else None)


def _rows(
    results: Sequence[Result], metric: str, baselines: Collection[str]
) -> Iterator[tuple[str, int, float, Change | None]]:
    """Yield policy, cells, value and change of one metric in one setting."""
    samples: dict[str, dict[tuple[float | None, int | None], float]] = {}
    for result in results:
        drawn = (_place(result), result.cell.source.seed)
        samples.setdefault(result.cell.policy, {})[drawn] = result.metrics[metric]
    draws = {drawn for sample in samples.values() for drawn in sample}
    samples = {policy: sample for policy, sample in samples.items() if sample.keys() == draws}
    values = {policy: fmean(sample.values()) for policy, sample in samples.items()}
    rivals = {policy: value for policy, value in values.items() if policy in baselines}
    best = best_of(metric, rivals) if rivals and metric in COMPARED else None
    if best is not None and not all(samples[best].values()):
        best = None  # nothing is a fraction of zero (an engine whose constants are all zero)
    for policy, value in values.items():
        change = None
        if best is not None:
            own, other = _by_seed(samples[policy]), _by_seed(samples[best])
            paired = interval([own[seed] / other[seed] - 1 for seed in own])
            change = Change(best, value / values[best] - 1, paired)
        yield policy, len(draws), value, change


def _by_seed(sample: Sample) -> dict[int | None, float]:
    seeds = dict.fromkeys(seed for _, seed in sample)
    return {seed: fmean(value for (_, own), value in sample.items() if own == seed) for seed in seeds}
