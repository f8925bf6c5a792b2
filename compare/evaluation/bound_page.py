"""The table of bounds: how far policies are from what no schedule can do better, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from compare.evaluation.draw import Setting
from compare.evaluation.parts import BoundedTrace
from compare.evaluation.plan import Target
from compare.report import markdown_table, number, percent
from compare.whole import Bounds, Schedule

MEAN = "mean_jct_s"
BOUND, KNOWN = "bound", "best known"
"""What stands beside the policies in :class:`Reach`."""


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


@dataclass(frozen=True, slots=True)
class Reach:
    """How far mean JCT could fall: changes against the best baseline, averaged over the loads of a setting.

    ``changes[BOUND]`` is the change that a schedule at the bound would have: none has a lower one.
    ``target`` is what was aimed at, None for nothing.
    """

    setting: Setting
    target: float | None
    changes: Mapping[str, float]


def reaches(rows: Sequence[BoundRow], targets: Sequence[Target]) -> tuple[Reach, ...]:
    """Average what is known over the loads; a setting with a failed item says nothing of that item."""
    aims = {Setting(t.workload, t.prefix_tokens, t.output_sigma, 0.0): t.mean / 100 for t in targets}
    groups: dict[Setting, list[BoundRow]] = {}
    for row in rows:
        groups.setdefault(replace(row.setting, load=0.0), []).append(row)
    found = []
    for setting, group in groups.items():
        items = [{BOUND: row.bound_s, KNOWN: row.best_known_s, **row.policies} for row in group]
        changes = {}
        for name in items[0]:
            pairs = [(item.get(name), row.baseline_s) for item, row in zip(items, group, strict=True)]
            ratios = [value / rival - 1 for value, rival in pairs if value is not None and rival]
            if len(ratios) == len(group):
                changes[name] = fmean(ratios)
        found.append(Reach(setting, aims.get(setting), changes))
    return tuple(found)


def reach_table(found: Sequence[Reach]) -> str:
    """Return a row a setting: target, what the bound leaves, best known, policies."""
    names = list(dict.fromkeys(name for one in found for name in one.changes))
    lines = [
        [f"`{one.setting.workload}`", one.setting.outputs, "" if one.target is None else percent(one.target)]
        + [percent(one.changes[name]) if name in one.changes else "failed" for name in names]
        for one in found
    ]
    return markdown_table(["workload", "outputs", "target", *names], lines)


def bound_table(rows: Sequence[BoundRow]) -> str:
    """Return a row a trace; in brackets how far above the bound."""
    policies = list(dict.fromkeys(name for row in rows for name in row.policies))
    lines = []
    for row in rows:
        bound = "failed" if row.bound_s is None else f"{number(row.bound_s)} ({row.bound})"
        line = [f"`{row.setting.workload}`", row.setting.outputs, f"{row.setting.load:g}", bound]
        line.append(_value(row, row.best_known_s, row.best_known_by))
        line.append(_value(row, row.baseline_s, row.baseline))
        line += [_value(row, row.policies.get(name)) for name in policies]
        lines.append(line)
    return markdown_table(["workload", "outputs", "load", BOUND, KNOWN, "best baseline", *policies], lines)


def _value(row: BoundRow, value_s: float | None, by: str = "") -> str:
    if value_s is None:
        return "failed"
    over = row.over_bound(value_s)
    return f"{number(value_s)}{f' `{by}`' if by else ''}{'' if over is None else f' ({percent(over)})'}"
