r"""Changes against the best baseline, their averages, targets and guard.

For a metric x (mean or p99 JCT), policy p and setting c (workload, prefix, outputs, load, case):

* the best baseline b of c and x is the one with the least mean over the seeds, the first of equal ones;
* the change is the ratio of means over the seeds, ``mean(x[p]) / mean(x[b]) - 1``: negative is a reduction;
* its interval is Student's t of the per-seed differences ``(x[p, s] - x[b, s]) / mean(x[b])``, whose mean
  is the change itself: p and b play the same trace at each seed, so the differences are paired;
* the average over the loads is the mean of the changes, with the interval of the per-seed averages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from compare.evaluation.draw import Setting
from compare.evaluation.plan import Guard, Target
from compare.evaluation.run import Metrics, Run
from compare.stats import Interval, best_of, interval

JCT = {"mean_jct_s": "mean", "p99_jct_s": "p99"}
"""The two metrics, and what the plan and the tables call them."""


@dataclass(frozen=True, slots=True)
class Change:
    """A policy against the best baseline in one setting; fractions, seconds for the values.

    ``by_seed`` are the per-seed differences as shares of the best baseline's mean. The mean of ``paired``
    is the change.
    """

    setting: Setting
    metric: str
    policy: str
    best: str
    value_s: float
    best_s: float
    by_seed: Mapping[int, float]
    paired: Interval

    @property
    def ratio(self) -> float:
        """Return the ratio of means minus 1."""
        return self.value_s / self.best_s - 1


@dataclass(frozen=True, slots=True)
class Average:
    """A policy's mean change over loads, in a setting whose load does not count."""

    setting: Setting
    loads: tuple[float, ...]
    metric: str
    policy: str
    change: Interval


@dataclass(frozen=True, slots=True)
class Reached:
    """A target of one metric beside what was found, in percent; None where a run is missing."""

    target: Target
    metric: str
    aim: float
    found: float | None

    @property
    def missed_by(self) -> float | None:
        """Return by how many points it was missed; negative where there was room to spare."""
        return None if self.found is None else self.found - self.aim

    @property
    def met(self) -> bool:
        """Return whether the change is as low as aimed at."""
        return self.found is not None and self.found <= self.aim


Results = Mapping[Run, Metrics]


def changes(results: Results, baselines: Collection[str]) -> tuple[Change, ...]:
    """Return the changes of all that is no baseline, in the order of the runs.

    A policy that misses a seed which another one of the same setting has is left out: means over other
    seeds would not compare.
    """
    by_setting: dict[Setting, dict[str, dict[int, Metrics]]] = {}
    for run, metrics in results.items():
        policies = by_setting.setdefault(run.draw.setting, {})
        policies.setdefault(run.label, {})[run.draw.seed] = metrics
    found = []
    for setting, policies in by_setting.items():
        seeds = {seed for own in policies.values() for seed in own}
        whole = {policy: own for policy, own in policies.items() if own.keys() == seeds}
        for metric in JCT:
            found += _changes_at(setting, metric, whole, baselines)
    return tuple(found)


def _changes_at(
    setting: Setting,
    metric: str,
    policies: Mapping[str, Mapping[int, Metrics]],
    baselines: Collection[str],
) -> list[Change]:
    values = {policy: {seed: own[seed][metric] for seed in sorted(own)} for policy, own in policies.items()}
    means = {policy: fmean(own.values()) for policy, own in values.items()}
    rivals = {policy: mean for policy, mean in means.items() if policy in baselines}
    if not rivals:
        return []
    best = best_of(metric, rivals)
    rows = []
    rival, rival_s = values[best], means[best]
    for policy, own in values.items():
        if policy not in baselines:
            differences = {seed: (value - rival[seed]) / rival_s for seed, value in own.items()}
            paired = interval(list(differences.values()))
            rows.append(Change(setting, metric, policy, best, means[policy], rival_s, differences, paired))
    return rows


def averages(found: Iterable[Change]) -> tuple[Average, ...]:
    """Return the changes averaged over the loads of each setting, in their order."""
    groups: dict[tuple[Setting, str, str], list[Change]] = {}
    for one in found:
        groups.setdefault((replace(one.setting, load=0.0), one.metric, one.policy), []).append(one)
    rows = []
    for (setting, metric, policy), members in groups.items():
        seeds = [seed for seed in members[0].by_seed if all(seed in one.by_seed for one in members)]
        per_seed = interval([fmean(one.by_seed[seed] for one in members) for seed in seeds])
        change = replace(per_seed, mean=fmean(one.ratio for one in members))
        rows.append(Average(setting, tuple(one.setting.load for one in members), metric, policy, change))
    return tuple(rows)


def against_targets(
    found: Sequence[Average], targets: Iterable[Target], loads: Sequence[float], policy: str
) -> tuple[Reached, ...]:
    """Return each target beside the average over exactly these loads."""
    known = {
        (one.setting.workload, one.setting.prefix_tokens, one.setting.output_sigma, one.metric): one
        for one in found
        if one.policy == policy and sorted(one.loads) == sorted(loads)
    }
    rows = []
    for target in targets:
        for metric, name in JCT.items():
            own = known.get((target.workload, target.prefix_tokens, target.output_sigma, metric))
            value = None if own is None else 100 * own.change.mean
            rows.append(Reached(target, metric, getattr(target, name), value))
    return tuple(rows)


def breaches(found: Iterable[Change], guard: Guard, policy: str) -> tuple[Change, ...]:
    """Return where a policy exceeds the best baseline by more than the guard allows, the worst first."""
    beyond = [
        one for one in found if one.policy == policy and 100 * one.ratio > getattr(guard, JCT[one.metric])
    ]
    return tuple(sorted(beyond, key=lambda one: -one.ratio))


def excludes_zero(one: Interval) -> bool | None:
    """Return whether an interval lies on one side of 0; None if one value has none."""
    if one.low is None or one.high is None:
        return None
    return one.low > 0 or one.high < 0
