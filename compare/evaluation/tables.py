"""The evaluation for programs: rows of changes, runs and times, and all of a part as JSON."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from typing import Any

from compare.cell import METRICS, TIMINGS
from compare.evaluation.bound_page import BoundRow, Reach
from compare.evaluation.changes import JCT, Average, Change, Reached, Results, excludes_zero
from compare.evaluation.draw import Setting

Row = dict[str, object]


def change_rows(found: Iterable[Change]) -> list[Row]:
    """Return a row a setting, policy and metric; changes are fractions, values seconds."""
    return [
        {
            **_place(one.setting),
            "metric": one.metric,
            "policy": one.policy,
            "seeds": len(one.by_seed),
            "value_s": one.value_s,
            "best_baseline": one.best,
            "best_baseline_s": one.best_s,
            "change": one.ratio,
            "low": one.paired.low,
            "high": one.paired.high,
        }
        for one in found
    ]


def run_rows(results: Results) -> list[Row]:
    """Return a row a run with every metric that a rerun reproduces."""
    return _metric_rows(results, [name for name in METRICS if name not in TIMINGS])


def timing_rows(results: Results) -> list[Row]:
    """Return a row a run with its decision times, which no rerun reproduces."""
    return _metric_rows(results, ["decisions", *TIMINGS])


def _metric_rows(results: Results, names: Sequence[str]) -> list[Row]:
    return [
        {
            **_place(run.draw.setting),
            "seed": run.draw.seed,
            "tasks": run.draw.tasks,
            "policy": run.label,
            **{name: metrics[name] for name in names},
        }
        for run, metrics in results.items()
    ]


def bound_json(rows: Iterable[BoundRow]) -> list[Row]:
    """Return a row a trace, with one column a policy."""
    return [
        {
            **_place(row.setting),
            "bound": row.bound,
            "bound_s": row.bound_s,
            "best_known_by": row.best_known_by,
            "best_known_s": row.best_known_s,
            "best_baseline": row.baseline,
            "best_baseline_s": row.baseline_s,
            **{f"{name}_s": value for name, value in row.policies.items()},
        }
        for row in rows
    ]


def reach_json(found: Iterable[Reach]) -> list[Row]:
    """Return a row a setting: target and changes, as shares of the best baseline."""
    return [
        {
            "workload": one.setting.workload,
            "outputs": one.setting.outputs,
            "target": one.target,
            **one.changes,
        }
        for one in found
    ]


def averages_json(found: Iterable[Average]) -> list[Row]:
    """Return the averages over the loads."""
    return [
        {
            **{name: value for name, value in _place(one.setting).items() if name != "load"},
            "loads": list(one.loads),
            "metric": one.metric,
            "policy": one.policy,
            **asdict(one.change),
        }
        for one in found
    ]


def targets_json(reached: Iterable[Reached]) -> list[Row]:
    """Return the targets beside what was found, in percent."""
    return [
        {
            "workload": one.target.workload,
            "prefix_tokens": one.target.prefix_tokens,
            "output_sigma": one.target.output_sigma,
            "metric": JCT[one.metric],
            "target": one.aim,
            "found": one.found,
            "missed_by": one.missed_by,
            "met": one.met,
        }
        for one in reached
    ]


def breaches_json(broken: Sequence[Change]) -> list[Row]:
    """Return the settings beyond the guard, and whether that is more than chance."""
    rows = zip(change_rows(broken), broken, strict=True)
    return [{**row, "interval_excludes_zero": excludes_zero(one.paired)} for row, one in rows]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of equal columns as CSV; no rows give an empty text."""
    stream = StringIO()
    if rows:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return stream.getvalue()


def _place(setting: Setting) -> Row:
    return {**asdict(setting), "outputs": setting.outputs}
