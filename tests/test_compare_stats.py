"""Statistics, checked against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest

from compare.cell import METRICS, Cell, Fixed, Generated, Result
from compare.stats import Interval, Point, Summary, best_of, interval, summarise
from topas.event import Params
from topas.profile import load_profile
from traces.workloads import WorkloadOptions

STUDY = load_profile("study")
BASELINES = ("fcfs", "lpm")


def result(policy: str, rate: float, seed: int, **metrics: float) -> Result:
    """Return a result whose other metrics are 1."""
    source = Generated("dag-4", rate, 5, seed, WorkloadOptions())
    return Result(Cell(source, policy, STUDY, Params()), {**dict.fromkeys(METRICS, 1), **metrics})


def grid(metric: str, values: Mapping[str, Mapping[tuple[float, int], float]]) -> list[Result]:
    """Return results from ``{policy: {(rate, seed): value}}``."""
    return [
        result(policy, rate, seed, **{metric: value})
        for policy, sample in values.items()
        for (rate, seed), value in sample.items()
    ]


def pick(summaries: Iterable[Summary], metric: str, point: Point | None = None) -> dict[str, Summary]:
    return {one.policy: one for one in summaries if one.metric == metric and one.point == point}


# fcfs is best at rate 0.1 (mean 100 against 110), lpm at 0.2 (mean 150 against 300) and on average.
JCT = {
    "fcfs": {(0.1, 1): 80.0, (0.1, 2): 120.0, (0.2, 1): 280.0, (0.2, 2): 320.0},
    "lpm": {(0.1, 1): 100.0, (0.1, 2): 120.0, (0.2, 1): 140.0, (0.2, 2): 160.0},
    "topas": {(0.1, 1): 60.0, (0.1, 2): 60.0, (0.2, 1): 120.0, (0.2, 2): 120.0},
}


def test_the_interval_of_three_values_is_students() -> None:
    # mean 4, standard deviation 2; with two degrees of freedom t(p) = (2p - 1) sqrt(2 / (4p (1 - p)))
    quantile = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    found = interval([2.0, 4.0, 6.0])
    assert found.mean == 4.0
    assert found.high - 4.0 == pytest.approx(quantile * 2 / math.sqrt(3), rel=1e-9)
    assert 4.0 - found.low == pytest.approx(found.high - 4.0)


def test_one_value_has_no_interval() -> None:
    assert interval([3.0]) == Interval(3.0, None, None)


def test_at_a_point_the_best_baseline_is_that_points() -> None:
    found = pick(summarise(grid("mean_jct_s", JCT), BASELINES), "mean_jct_s", Point(None, 0.1))
    assert {policy: one.value for policy, one in found.items()} == {"fcfs": 100, "lpm": 110, "topas": 60}
    assert {one.change.best for one in found.values()} == {"fcfs"}
    assert found["topas"].change.ratio == pytest.approx(60 / 100 - 1)
    # per seed: 60/80 - 1 = -0.25 and 60/120 - 1 = -0.5; mean -0.375, sd 0.25 / sqrt(2), so sd / sqrt(n)
    # is 0.125; with one degree of freedom t(p) = tan(pi (p - 1/2)), that is 12.7062
    quantile = math.tan(math.pi * 0.475)
    paired = found["topas"].change.paired
    assert paired.mean == pytest.approx(-0.375)
    assert paired.high == pytest.approx(-0.375 + quantile * 0.125, rel=1e-9)
    assert paired.low == pytest.approx(-0.375 - quantile * 0.125, rel=1e-9)


def test_a_workload_is_compared_by_averages_over_points_as_in_the_paper() -> None:
    found = pick(summarise(grid("mean_jct_s", JCT), BASELINES), "mean_jct_s")
    # averages over points and seeds: fcfs 800/4 = 200, lpm 520/4 = 130, topas 360/4 = 90
    assert {policy: one.value for policy, one in found.items()} == {"fcfs": 200, "lpm": 130, "topas": 90}
    assert {one.change.best for one in found.values()} == {"lpm"}
    assert found["topas"].change.ratio == pytest.approx(90 / 130 - 1)
    assert found["fcfs"].change.ratio == pytest.approx(200 / 130 - 1)
    assert found["lpm"].change.ratio == 0
    assert found["topas"].cells == 4
    # per seed, averaged over points first: topas 90 and 90, lpm 120 and 140
    assert found["topas"].change.paired.mean == pytest.approx((90 / 120 - 1 + 90 / 140 - 1) / 2)


def test_each_metric_has_its_own_best_baseline() -> None:
    results = [
        result("fcfs", 0.1, 1, mean_jct_s=10.0, p99_jct_s=50.0, requests_per_s=2.0),
        result("lpm", 0.1, 1, mean_jct_s=20.0, p99_jct_s=40.0, requests_per_s=3.0),
        result("topas", 0.1, 1, mean_jct_s=5.0, p99_jct_s=30.0, requests_per_s=6.0),
    ]
    summaries = summarise(results, BASELINES)
    changes = {metric: pick(summaries, metric)["topas"].change for metric in METRICS[:6]}
    assert (changes["mean_jct_s"].best, changes["mean_jct_s"].ratio) == ("fcfs", -0.5)
    assert (changes["p99_jct_s"].best, changes["p99_jct_s"].ratio) == ("lpm", -0.25)
    assert (changes["requests_per_s"].best, changes["requests_per_s"].ratio) == ("lpm", 1.0)


def test_a_rate_is_better_when_higher_and_a_time_when_lower() -> None:
    values = {"a": 1.0, "b": 2.0}
    assert best_of("requests_per_s", values) == "b"
    assert best_of("mean_jct_s", values) == "a"


def test_the_first_of_equal_baselines_is_the_best() -> None:
    assert best_of("mean_jct_s", {"fcfs": 1.0, "lpm": 1.0}) == "fcfs"


def test_a_policy_that_is_no_baseline_is_no_comparator() -> None:
    found = pick(summarise(grid("mean_jct_s", JCT), ("fcfs",)), "mean_jct_s")
    assert {one.change.best for one in found.values()} == {"fcfs"}


def test_without_a_baseline_nothing_is_compared() -> None:
    found = pick(summarise(grid("mean_jct_s", JCT), ()), "mean_jct_s")
    assert found["topas"].value == 90
    assert found["topas"].change is None


def test_a_metric_without_a_better_side_is_not_compared() -> None:
    assert pick(summarise(grid("preemptions", JCT), BASELINES), "preemptions")["topas"].change is None


def test_nothing_is_a_fraction_of_zero() -> None:
    values = {"fcfs": {(0.1, 1): 0.0}, "topas": {(0.1, 1): 1.0}}
    assert pick(summarise(grid("mean_jct_s", values), BASELINES), "mean_jct_s")["topas"].change is None


def test_a_policy_that_misses_a_cell_counts_only_where_it_is_whole() -> None:
    values = {policy: dict(sample) for policy, sample in JCT.items()}
    del values["lpm"][0.2, 2]
    summaries = summarise(grid("mean_jct_s", values), BASELINES)
    assert set(pick(summaries, "mean_jct_s", Point(None, 0.1))) == {"fcfs", "lpm", "topas"}
    assert set(pick(summaries, "mean_jct_s", Point(None, 0.2))) == {"fcfs", "topas"}
    average = pick(summaries, "mean_jct_s")
    assert set(average) == {"fcfs", "topas"}
    assert average["topas"].change.best == "fcfs"


def test_decision_times_are_not_summarised() -> None:
    summaries = summarise(grid("mean_jct_s", JCT), BASELINES)
    assert {one.metric for one in summaries} == set(METRICS) - {"decision_ms_mean", "decision_ms_p99"}


def test_seeds_of_one_load_are_one_point_whatever_their_rates() -> None:
    results = []
    for seed, rate in ((1, 0.1), (2, 0.3)):
        source = Generated("dag-4", rate, 5, seed, WorkloadOptions(), load=0.5)
        results.append(Result(Cell(source, "fcfs", STUDY, Params()), dict.fromkeys(METRICS, seed)))
    found = pick(summarise(results, BASELINES), "mean_jct_s", Point(0.5, 0.2))
    assert found["fcfs"].value == 1.5


def test_a_fixed_trace_has_one_point_and_no_interval() -> None:
    cells = [Cell(Fixed("figure-2", 2), policy, STUDY, Params()) for policy in ("fcfs", "topas")]
    results = [
        Result(cell, dict.fromkeys(METRICS, value)) for cell, value in zip(cells, (4.0, 3.0), strict=True)
    ]
    found = pick(summarise(results, BASELINES), "mean_jct_s", Point(None, None))
    assert found["topas"].change.ratio == -0.25
    assert found["topas"].change.paired == Interval(-0.25, None, None)


def test_workloads_and_profiles_are_kept_apart() -> None:
    other = STUDY.model_copy(update={"host_cache": False})
    source = Generated("dag-4", 0.1, 5, 1, WorkloadOptions())
    results = [
        Result(Cell(source, "fcfs", profile, Params()), dict.fromkeys(METRICS, value))
        for profile, value in ((STUDY, 1.0), (other, 9.0))
    ]
    found = [
        one.value for one in summarise(results, BASELINES) if one.metric == "mean_jct_s" and not one.point
    ]
    assert found == [1.0, 9.0]
