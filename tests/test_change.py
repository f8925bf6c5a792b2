"""Statistics, checked against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
import pytest

from compare.change import COMPARED, averages, best_of, changes, differences
from compare.comparison import summary_of
from compare.source import Source
from compare.study import METRICS, Metrics, Played, Run, outcome_of
from topas.event import Params
from topas.profile import Profile, load_profile

STUDY = load_profile("study")
BASELINES = ("fcfs", "lpm")


def played(**metrics: float) -> Played:
    """Return what a run came to whose other metrics are 1."""
    return Played(Metrics(**{**dict.fromkeys(METRICS, 1), **metrics}), ())


def run(policy: str, rate: float, seed: int, load: float | None = None, profile: Profile = STUDY) -> Run:
    return Run(Source("dag-4", 5, seed, rate, load), policy, profile, Params())


def table(found: Mapping[Run, Played]) -> pd.DataFrame:
    return outcome_of(found, found, {}).runs


def grid(metric: str, values: Mapping[str, Mapping[tuple[float, int], float]]) -> pd.DataFrame:
    """Return runs from ``{policy: {(rate, seed): value}}``."""
    return table(
        {
            run(policy, rate, seed): played(**{metric: value})
            for policy, sample in values.items()
            for (rate, seed), value in sample.items()
        }
    )


def pick(
    runs: pd.DataFrame, baselines: Iterable[str], metric: str, rate: float | None = None
) -> Mapping[str, pd.Series]:
    """Return the rows of one metric by policy: at a rate, or over all of them."""
    found = summary_of(runs, tuple(baselines))
    found = found[(found["metric"] == metric) & (found["scope"] == ("average" if rate is None else "point"))]
    if rate is not None:
        found = found[np.isclose(found["rate_per_s"], rate)]
    return {row["policy"]: row for _, row in found.iterrows()}


# fcfs is best at rate 0.1 (mean 100 against 110), lpm at 0.2 (mean 150 against 300) and on average.
JCT = {
    "fcfs": {(0.1, 1): 80.0, (0.1, 2): 120.0, (0.2, 1): 280.0, (0.2, 2): 320.0},
    "lpm": {(0.1, 1): 100.0, (0.1, 2): 120.0, (0.2, 1): 140.0, (0.2, 2): 160.0},
    "topas": {(0.1, 1): 60.0, (0.1, 2): 60.0, (0.2, 1): 120.0, (0.2, 2): 120.0},
}


def test_the_interval_of_three_values_is_students() -> None:
    # differences 1, 2 and 3: mean 2, sd 1; with two degrees of freedom
    # t(p) = (2p - 1) sqrt(2 / (4p (1 - p)))
    quantile = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    values = {"fcfs": dict.fromkeys([(0.1, s) for s in (1, 2, 3)], 1.0)}
    values["topas"] = {(0.1, seed): 1.0 + seed for seed in (1, 2, 3)}
    found = pick(grid("mean_jct_s", values), BASELINES, "mean_jct_s")["topas"]
    assert found["change"] == 2.0
    assert found["high"] - 2.0 == pytest.approx(quantile / math.sqrt(3), rel=1e-9)
    assert 2.0 - found["low"] == pytest.approx(found["high"] - 2.0)


def test_at_a_point_the_best_baseline_is_that_points() -> None:
    found = pick(grid("mean_jct_s", JCT), BASELINES, "mean_jct_s", 0.1)
    assert {policy: one["value"] for policy, one in found.items()} == {"fcfs": 100, "lpm": 110, "topas": 60}
    assert {one["best_baseline"] for one in found.values()} == {"fcfs"}
    # per seed, as shares of the best baseline's 100: (60 - 80) and (60 - 120); their mean is 60 / 100 - 1,
    # their sd 0.4 / sqrt(2), so sd / sqrt(n) is 0.2; with one degree of freedom t(p) = tan(pi (p - 1/2))
    quantile = math.tan(math.pi * 0.475)
    assert found["topas"]["change"] == pytest.approx(-0.4)
    assert found["topas"]["high"] == pytest.approx(-0.4 + quantile * 0.2, rel=1e-9)
    assert found["topas"]["low"] == pytest.approx(-0.4 - quantile * 0.2, rel=1e-9)


def test_a_workload_is_compared_by_averages_over_points_as_in_the_paper() -> None:
    found = pick(grid("mean_jct_s", JCT), BASELINES, "mean_jct_s")
    # averages over points and seeds: fcfs 800/4 = 200, lpm 520/4 = 130, topas 360/4 = 90
    assert {policy: one["value"] for policy, one in found.items()} == {"fcfs": 200, "lpm": 130, "topas": 90}
    assert {one["best_baseline"] for one in found.values()} == {"lpm"}
    assert found["topas"]["change"] == pytest.approx(90 / 130 - 1)
    assert found["fcfs"]["change"] == pytest.approx(200 / 130 - 1)
    assert found["lpm"]["change"] == 0
    assert found["topas"]["cells"] == 4
    # per seed, averaged over points first: topas 90 and 90, lpm 120 and 140, so -30 and -50 of 130
    half = math.tan(math.pi * 0.475) * 10 / 130
    assert found["topas"]["high"] == pytest.approx(90 / 130 - 1 + half)


def test_the_average_over_cells_is_the_mean_of_their_changes_with_the_interval_of_each_seeds_mean() -> None:
    found = differences(grid("mean_jct_s", JCT), ["rate_per_s"], BASELINES, ["mean_jct_s"])
    (own,) = averages(found[found["policy"] == "topas"], []).to_dict("records")
    # at 0.1 against fcfs's 100: -0.2 and -0.6; at 0.2 against lpm's 150: -20/150 and -40/150
    first, second = (-0.2 - 20 / 150) / 2, (-0.6 - 40 / 150) / 2
    assert own["change"] == pytest.approx((-0.4 - 0.2) / 2) == pytest.approx((first + second) / 2)
    half = math.tan(math.pi * 0.475) * (first - second) / 2
    assert (own["low"], own["high"]) == pytest.approx((own["change"] - half, own["change"] + half))
    assert own["seeds"] == 2


def test_each_metric_has_its_own_best_baseline() -> None:
    runs = table(
        {
            run("fcfs", 0.1, 1): played(mean_jct_s=10.0, p99_jct_s=50.0, requests_per_s=2.0),
            run("lpm", 0.1, 1): played(mean_jct_s=20.0, p99_jct_s=40.0, requests_per_s=3.0),
            run("topas", 0.1, 1): played(mean_jct_s=5.0, p99_jct_s=30.0, requests_per_s=6.0),
        }
    )
    found = {metric: pick(runs, BASELINES, metric)["topas"] for metric in COMPARED}
    told = {metric: (one["best_baseline"], one["change"]) for metric, one in found.items()}
    assert told["mean_jct_s"] == ("fcfs", -0.5)
    assert told["p99_jct_s"] == ("lpm", -0.25)
    assert told["requests_per_s"] == ("lpm", 1.0)


def test_a_rate_is_better_when_higher_and_a_time_when_lower() -> None:
    values = {"a": 1.0, "b": 2.0}
    assert best_of("requests_per_s", values) == "b"
    assert best_of("mean_jct_s", values) == "a"


def test_the_first_of_equal_baselines_is_the_best() -> None:
    assert best_of("mean_jct_s", {"fcfs": 1.0, "lpm": 1.0}) == "fcfs"


def test_a_policy_that_is_no_baseline_is_no_comparator() -> None:
    found = pick(grid("mean_jct_s", JCT), ("fcfs",), "mean_jct_s")
    assert {one["best_baseline"] for one in found.values()} == {"fcfs"}


def test_without_a_baseline_nothing_is_compared() -> None:
    found = pick(grid("mean_jct_s", JCT), (), "mean_jct_s")["topas"]
    assert found["value"] == 90
    assert found[["change", "low", "high"]].isna().all()


def test_a_metric_without_a_better_side_is_not_compared() -> None:
    runs = table({run(policy, 0.1, 1): played(preemptions=3) for policy in ("fcfs", "topas")})
    found = pick(runs, BASELINES, "preemptions")["topas"]
    assert found["value"] == 3
    assert math.isnan(found["change"])


def test_nothing_is_a_fraction_of_zero() -> None:
    values = {"fcfs": {(0.1, 1): 0.0}, "topas": {(0.1, 1): 1.0}}
    assert math.isnan(pick(grid("mean_jct_s", values), BASELINES, "mean_jct_s")["topas"]["change"])


def test_a_policy_that_misses_a_run_counts_only_where_it_is_whole() -> None:
    values = {policy: dict(sample) for policy, sample in JCT.items()}
    del values["lpm"][0.2, 2]
    runs = grid("mean_jct_s", values)
    assert set(pick(runs, BASELINES, "mean_jct_s", 0.1)) == {"fcfs", "lpm", "topas"}
    assert set(pick(runs, BASELINES, "mean_jct_s", 0.2)) == {"fcfs", "topas"}
    average = pick(runs, BASELINES, "mean_jct_s")
    assert set(average) == {"fcfs", "topas"}
    assert average["topas"]["best_baseline"] == "fcfs"


def test_decision_times_are_not_summarised() -> None:
    found = summary_of(grid("mean_jct_s", JCT), BASELINES)
    assert set(found["metric"]) == set(METRICS) - {"decision_ms_mean", "decision_ms_p99"}


def test_seeds_of_one_load_are_one_point_whatever_their_rates() -> None:
    runs = {run("fcfs", rate, seed, load=0.5): played(mean_jct_s=seed) for seed, rate in ((1, 0.1), (2, 0.3))}
    found = pick(table(runs), BASELINES, "mean_jct_s", 0.2)
    assert (found["fcfs"]["value"], found["fcfs"]["load"]) == (1.5, 0.5)


def test_one_trace_has_one_point_and_no_interval() -> None:
    runs = {
        Run(Source("figure-2", 2), policy, STUDY): played(mean_jct_s=value)
        for policy, value in (("fcfs", 4.0), ("topas", 3.0))
    }
    found = pick(table(runs), BASELINES, "mean_jct_s")["topas"]
    assert found["change"] == -0.25
    assert found[["low", "high"]].isna().all()
    by_policy = changes(differences(table(runs), ["workload"], BASELINES, ["mean_jct_s"]), ["workload"])
    assert list(by_policy["seeds"]) == [1, 1]


def test_workloads_and_profiles_are_kept_apart() -> None:
    other = STUDY.model_copy(update={"host_cache": False})
    runs = {
        run("fcfs", 0.1, 1, profile=profile): played(mean_jct_s=value)
        for profile, value in ((STUDY, 1.0), (other, 9.0))
    }
    found = summary_of(table(runs), BASELINES)
    found = found[(found["metric"] == "mean_jct_s") & (found["scope"] == "average")]
    assert list(found["value"]) == [1.0, 9.0]
