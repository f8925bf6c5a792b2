r"""The one statistic: the change of a policy against the best baseline, with its interval.

For a metric x, a cell c (rows that are compared with each other: a workload on an engine, at one operating
point or over several), policy p and draw s (a seed: each policy plays the same traces at each draw):

* x[p, s] is the mean over the rows of c at s (over the operating points, if c has several: the paper's
  "workload-level comparisons average each metric over the reported operating points", section V), and the
  value of p is x[p] = mean over s of x[p, s];
* the best baseline b is the one with the least x[b] (the largest for a rate such as requests a second), the
  first of equal ones;
* the difference of p at s is d[p, s] = (x[p, s] - x[b, s]) / x[b], and the change of p is their mean, which
  is the ratio of the values, x[p] / x[b] - 1: negative is a reduction;
* its 95 % interval is Student's t of the n paired differences: mean(d) +- t(0.975, n - 1) sd(d) / sqrt(n).
  One draw has none.

The average of changes over several cells (over the loads of a setting, say) is the mean over the draws of
each draw's mean difference over the cells, with the interval of these.

A policy that misses a row of a cell which another one has is left out of that cell: means over other draws
would not compare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pandas as pd
from scipy.stats import t as student

HIGHER_IS_BETTER = ("requests_per_s",)
COMPARED = (
    "mean_jct_s",
    "p50_jct_s",
    "p99_jct_s",
    "max_jct_s",
    "makespan_s",
    "first_task_s",
    *HIGHER_IS_BETTER,
)
"""Metrics with a best baseline; the others describe how a policy got there."""

JCT = {"mean_jct_s": "mean JCT", "p99_jct_s": "p99 JCT", "max_jct_s": "largest JCT"}
"""The metrics that every report shows, in seconds, and what people call them."""

CONFIDENCE = 0.95

DRAWN = ("load", "rate_per_s", "seed")
"""Columns that tell the rows of one policy in one cell apart."""


def best_of(metric: str, values: Mapping[str, float]) -> str:
    """Return the policy with the best value of a compared metric; the first of equal ones."""
    choose = max if metric in HIGHER_IS_BETTER else min
    return choose(values, key=lambda policy: values[policy])


def differences(
    runs: pd.DataFrame, by: Sequence[str], baselines: Collection[str], metrics: Sequence[str]
) -> pd.DataFrame:
    """Return the paired differences of all policies in all cells.

    Parameters
    ----------
    runs : a row a run: columns ``policy``, :data:`DRAWN`, those of ``by``, and the metrics.
    by : columns whose values make a cell.
    baselines : policies among which the best one is sought.

    Returns
    -------
    A row a cell, metric, policy and seed, in the order of the runs: ``rows`` (of the policy in the cell),
    ``value`` (x[p]), ``best_baseline`` and ``best_value``, ``difference``. The last three are None or NaN
    where nothing is compared: no baseline has all its rows, the metric has no better side, or a baseline's
    value is 0, of which nothing is a fraction.
    """
    found = [
        part
        for _, cell in runs.groupby(list(by), sort=False, dropna=False)
        for part in _differences(cell, by, baselines, metrics)
    ]
    names = [*by, "metric", "policy", "seed", "rows", "value", "best_baseline", "best_value", "difference"]
    return pd.DataFrame(found, columns=names)


def _differences(
    cell: pd.DataFrame, by: Sequence[str], baselines: Collection[str], metrics: Sequence[str]
) -> Iterator[dict[str, object]]:
    place = {name: cell[name].iloc[0] for name in by}
    drawn = [name for name in DRAWN if name in cell]
    policies = list(dict.fromkeys(cell["policy"]))
    wide = cell.set_index([*drawn, "policy"])[list(metrics)].unstack("policy")  # noqa: PD010  nothing is left out
    by_seed = wide.groupby(level="seed", sort=False, dropna=False).mean()
    seeds, whole = list(by_seed.index), wide.notna().all()
    for metric in metrics:
        own = {policy: by_seed[metric, policy].to_numpy() for policy in policies if whole[metric, policy]}
        values = {policy: float(x.mean()) for policy, x in own.items()}
        rivals = {policy: value for policy, value in values.items() if policy in baselines}
        best = best_of(metric, rivals) if metric in COMPARED and rivals else None
        if best is not None and not (wide[metric, best] != 0).all():
            best = None
        head = {**place, "metric": metric, "rows": len(wide), "best_baseline": best}
        for policy, x in own.items():
            row = {**head, "policy": policy, "value": values[policy]}
            row["best_value"] = None if best is None else values[best]
            rest = [None] * len(seeds) if best is None else (x - own[best]) / values[best]
            yield from ({**row, "seed": seed, "difference": d} for seed, d in zip(seeds, rest, strict=True))


def averages(found: pd.DataFrame, by: Sequence[str], carry: Sequence[str] = ()) -> pd.DataFrame:
    """Return the mean difference with its interval over all cells that agree in ``by``.

    Returns
    -------
    A row a group, metric and policy: ``change``, ``low``, ``high`` (fractions; NaN where there is none),
    ``seeds`` (how many count) and the columns to ``carry``, as the group's first row has them.
    """
    keys = [*by, "metric", "policy"]
    each = found.assign(difference=found["difference"].astype(float))
    each = each.groupby([*keys, "seed"], sort=False, dropna=False)["difference"].mean().reset_index()
    grouped = each.groupby(keys, sort=False, dropna=False)["difference"].agg(["mean", "sem", "size"])
    table = grouped.reset_index().rename(columns={"mean": "change", "size": "seeds"})
    table["low"], table["high"] = bounds(table["change"], table["sem"], table["seeds"])
    first = found.drop_duplicates(keys)[list(carry)].reset_index(drop=True)
    return pd.concat([table[[*keys, "change", "low", "high", "seeds"]], first], axis="columns")


CELL = ("rows", "value", "best_baseline", "best_value")


def changes(found: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the change with its interval of each cell of :func:`differences`, and the values behind it."""
    return averages(found, by, carry=CELL)


def bounds(mean: pd.Series, sem: pd.Series, count: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return the two ends of Student's interval of means, from their standard errors; NaN of one value."""
    half = student.ppf((1 + CONFIDENCE) / 2, (count - 1).where(count > 1)) * sem
    return mean - half, mean + half
