"""The table of bounds: how far policies are from what no schedule can do better, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compare.evaluation.draw import Setting
from compare.evaluation.parts import BoundedTrace
from compare.report import markdown_table, number, percent
from compare.whole import Bounds, Schedule

MEAN = "mean_jct_s"


@dataclass(frozen=True, slots=True)
class BoundRow:
    """Mean JCT in seconds of one trace: highest bound, best schedule known, best baseline and policies.

    None where an item failed. ``best_known_by`` is the search, or the policy that does as well.
    """

    setting: Setting
    bound: str
    bound_s: float | None
    best_known_by: str
    best_known_s: float | None
    baseline: str
    baseline_s: float | None
    policies: Mapping[str, float]

    def over_bound(self, value_s: float | None) -> float | None:
        """Return a mean JCT over the bound, minus 1."""
        return value_s / self.bound_s - 1 if value_s is not None and self.bound_s else None


def bound_rows(
    traces: Sequence[BoundedTrace], answers: Mapping[Any, Any], baselines: Sequence[str]
) -> tuple[BoundRow, ...]:
    """Put the answers of each trace together."""
    rows = []
    for trace in traces:
        bounds: Bounds | None = answers.get(trace.bound)
        improved: Schedule | None = answers.get(trace.improve)
        means = {run.label: float(answers[run][MEAN]) for run in trace.runs if run in answers}
        known = dict(means) if improved is None else {improved.found: improved.mean_jct_s, **means}
        by = min(known, key=lambda name: known[name], default="")
        rivals = {name: means[name] for name in baselines if name in means}
        rival = min(rivals, key=lambda name: rivals[name], default="")
        rows.append(
            BoundRow(
                trace.setting,
                "" if bounds is None else f"{bounds.best.name}, {bounds.best.status}",
                None if bounds is None else bounds.best.mean_jct_s,
                by,
                known.get(by),
                rival,
                rivals.get(rival),
                {name: value for name, value in means.items() if name not in baselines},
            )
        )
    return tuple(rows)


def bound_table(rows: Sequence[BoundRow]) -> str:
    """Return a row a trace; in brackets how far above the bound."""
    policies = list(dict.fromkeys(name for row in rows for name in row.policies))
    lines = []
    for row in rows:
        bound = "failed" if row.bound_s is None else f"{number(row.bound_s)} ({row.bound})"
        line = [f"`{row.setting.workload}`", f"{row.setting.load:g}", bound]
        line.append(_value(row, row.best_known_s, row.best_known_by))
        line.append(_value(row, row.baseline_s, row.baseline))
        line += [_value(row, row.policies.get(name)) for name in policies]
        lines.append(line)
    return markdown_table(["workload", "load", "bound", "best known", "best baseline", *policies], lines)


def _value(row: BoundRow, value_s: float | None, by: str = "") -> str:
    if value_s is None:
        return "failed"
    over = row.over_bound(value_s)
    return f"{number(value_s)}{f' `{by}`' if by else ''}{'' if over is None else f' ({percent(over)})'}"
