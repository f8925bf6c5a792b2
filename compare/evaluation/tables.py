"""The evaluation's tables: data frames of changes, targets, guard and bounds, and how pages show them.

Changes are those of :mod:`compare.change`: in each setting (:data:`CELL`) against the best baseline, and
their averages over the loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from compare.bound import Bounded, Bounds
from compare.cases import CASES
from compare.change import JCT, averages, best_of, changes, differences
from compare.evaluation.plan import Guard, Target
from compare.page import change, markdown_table, number, percent

SETTING = ("workload", "prefix_tokens", "output_sigma", "case")
CELL = (*SETTING, "load")
"""An operating point, without the seed: what results are averaged for."""

NAMES = {"mean_jct_s": "mean", "p99_jct_s": "p99", "max_jct_s": "largest"}
"""What the plan and the tables call the metrics."""

AIMED = ("mean_jct_s", "p99_jct_s")
"""The metrics that targets and guard speak of."""

BOUND, KNOWN = "bound", "best known"
"""What stands beside the policies in the table of how far schedules could go."""


def named(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the names that pages use: of a file its stem; ``outputs`` says how lengths vary."""
    return runs.assign(
        workload=[Path(name).stem for name in runs["workload"]],
        outputs=runs["output_sigma"].map(outputs_in_words),
    )


def outputs_in_words(sigma: float | None) -> str:
    """Return whether outputs are fixed, and else how they vary."""
    return "own" if sigma is None or pd.isna(sigma) else f"sigma {sigma:g}" if sigma else "fixed"


def found_in(runs: pd.DataFrame, baselines: Sequence[str]) -> pd.DataFrame:
    """Return the paired differences of all that is no baseline in every setting."""
    found = differences(runs, CELL, baselines, list(JCT))
    return found[~found["policy"].isin(baselines) & found["best_baseline"].notna()]


def by_cell(found: pd.DataFrame) -> pd.DataFrame:
    """Return the changes: a row a setting, policy and metric; fractions, and seconds for the values."""
    table = changes(found, CELL).rename(columns={"value": "value_s", "best_value": "best_baseline_s"})
    table = table.assign(outputs=table["output_sigma"].map(outputs_in_words)).drop(columns="rows")
    first = [*CELL, "outputs", "metric", "policy", "seeds", "value_s", "best_baseline", "best_baseline_s"]
    return table[[*first, "change", "low", "high"]]


def over_loads(found: pd.DataFrame) -> pd.DataFrame:
    """Return the changes averaged over the loads of each setting, which ``loads`` lists."""
    keys = [*SETTING, "metric", "policy"]
    loads = found.groupby(keys, sort=False, dropna=False)["load"].agg(lambda own: sorted(set(own)))
    table = averages(found, SETTING).merge(loads.rename("loads").reset_index(), on=keys)
    return table.assign(outputs=table["output_sigma"].map(outputs_in_words))


def against_targets(
    means: pd.DataFrame, targets: Iterable[Target], loads: Sequence[float], policy: str
) -> pd.DataFrame:
    """Return each target beside the average over exactly these loads, in percent; NaN where there is none."""
    own = means[(means["policy"] == policy) & means["loads"].map(lambda some: some == sorted(loads))]
    known = {
        (row["workload"], row["prefix_tokens"], row["outputs"], row["metric"]): 100 * row["change"]
        for _, row in own.iterrows()
    }
    rows = []
    for target in targets:
        outputs = outputs_in_words(target.output_sigma)
        for metric in AIMED:
            aim = getattr(target, NAMES[metric])
            value = known.get((target.workload, target.prefix_tokens, outputs, metric), float("nan"))
            head = {"workload": target.workload, "prefix_tokens": target.prefix_tokens}
            head |= {"output_sigma": target.output_sigma, "outputs": outputs, "metric": NAMES[metric]}
            rows.append(
                {**head, "target": aim, "found": value, "missed_by": value - aim, "met": value <= aim}
            )
    return pd.DataFrame(rows)


def breaches(cells: pd.DataFrame, guard: Guard, policy: str) -> pd.DataFrame:
    """Return where a policy exceeds the best baseline by more than the guard allows, the worst first.

    ``interval_excludes_zero`` is None where there is no interval.
    """
    own = cells[(cells["policy"] == policy) & cells["metric"].isin(AIMED)]
    most = own["metric"].map({metric: getattr(guard, NAMES[metric]) / 100 for metric in AIMED}).astype(float)
    broken = own[own["change"] > most].sort_values("change", ascending=False, kind="stable")
    excludes = ((broken["low"] > 0) | (broken["high"] < 0)).astype("boolean").where(broken["low"].notna())
    return broken.assign(interval_excludes_zero=excludes)


# --- how pages show them ----------------------------------------------------------------------------------


def _place(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    words = {
        "case": row.get("case"),
        "workload": f"`{row['workload']}`",
        "prefix": "" if pd.isna(row.get("prefix_tokens", 0)) else f"{row.get('prefix_tokens')}",
        "outputs": row["outputs"],
        "load": f"{row.get('load', 0):g}",
    }
    return [str(words[name]) for name in columns]


PLACE = ("workload", "prefix", "outputs")


def change_table(found: pd.DataFrame, place: Sequence[str], by: Sequence[str]) -> str:
    """Return a row a place and a column a policy and metric; also the best baselines, if known."""
    policies = list(dict.fromkeys(found["policy"]))
    columns = [(policy, metric) for policy in policies for metric in JCT]
    rivals = "best_baseline_s" in found
    rows = []
    for _, own in found.groupby(list(by), sort=False, dropna=False):
        known = {(row["policy"], row["metric"]): row for row in own.to_dict("records")}
        row = _place(own.iloc[0], place)
        if rivals:
            bests = {metric: one for (_, metric), one in known.items()}
            told = [f"{one['best_baseline']} {number(one['best_baseline_s'])} s" for one in bests.values()]
            row.append(" / ".join(told))
        rows.append([*row, *(change(known[key]) if key in known else "failed" for key in columns)])
    heads = [*place, *(["best baseline, mean / p99 / largest"] if rivals else [])]
    return markdown_table([*heads, *(f"{policy} {NAMES[metric]}" for policy, metric in columns)], rows)


def targets_table(reached: pd.DataFrame) -> str:
    """Return a row a target and metric: what was aimed at, what was found, by how much it was missed."""
    rows = []
    for one in reached.to_dict("records"):
        found, verdict = f"{one['found']:+.1f} %", "met"
        if pd.isna(one["found"]):
            found, verdict = "", "not run"
        elif not one["met"]:
            verdict = f"missed by {one['missed_by']:.1f} points"
        rows.append([*_place(one, PLACE), one["metric"], f"{one['target']:+.1f} %", found, verdict])
    return markdown_table([*PLACE, "metric", "target", "found", "verdict"], rows)


def guard_table(broken: pd.DataFrame) -> str:
    """Return the settings in which a policy is worse than the guard allows."""
    rows = []
    for one in broken.to_dict("records"):
        surely = {True: "yes", False: "no"}.get(one["interval_excludes_zero"], "")
        place = _place(one, (*PLACE, "load"))
        rows.append([*place, NAMES[one["metric"]], one["best_baseline"], change(one), surely])
    heads = ["metric", "best baseline", "change", "interval excludes 0"]
    return markdown_table([*PLACE, "load", *heads], rows)


def worst_table(cells: pd.DataFrame) -> str:
    """Return a row a case: the worst change of each policy and metric, and where."""
    policies = list(dict.fromkeys(cells["policy"]))
    columns = [(policy, metric) for policy in policies for metric in JCT]
    rows = []
    for case, own in cells.groupby("case", sort=False):
        worst = own.loc[own.groupby(["policy", "metric"])["change"].idxmax()].to_dict("records")
        known = {(row["policy"], row["metric"]): row for row in worst}
        texts = (
            f"{change(row)}<br>`{row['workload']}`, load {row['load']:g}"
            if (row := known.get(key))
            else "failed"
            for key in columns
        )
        rows.append([case, CASES[case].about, *texts])
    heads = [f"{policy} {NAMES[metric]}" for policy, metric in columns]
    return markdown_table(["case", "what it is", *heads], rows)


def variants_table(found: pd.DataFrame) -> str:
    """Return a row a variant, a column a workload and kind of outputs: changes averaged over the loads."""
    means = averages(found, ["workload", "output_sigma"])
    means = means.assign(outputs=means["output_sigma"].map(outputs_in_words))
    known = {
        (r["policy"], r["workload"], r["outputs"], r["metric"]): r["change"] for r in means.to_dict("records")
    }
    places = list(dict.fromkeys(zip(means["workload"], means["outputs"], strict=True)))
    rows = []
    for variant in dict.fromkeys(means["policy"]):
        values = ([known.get((variant, *place, metric)) for metric in JCT] for place in places)
        cells = (" / ".join("failed" if one is None else percent(one) for one in some) for some in values)
        rows.append([variant, *cells])
    return markdown_table(["variant", *(f"{name}, {outputs}" for name, outputs in places)], rows)


def timings_table(runs: pd.DataFrame, policies: Iterable[str]) -> str:
    """Return decision times by workload and policy: decisions a run, ms a decision, and p99 ms of a run."""
    rows = []
    own = runs[runs["policy"].isin(list(policies))]
    for (workload, policy), some in own.groupby(["workload", "policy"], sort=False):
        count, p99 = some["decisions"], some["decision_ms_p99"]
        spent_ms = (count * some["decision_ms_mean"]).sum()
        values = (count.mean(), spent_ms / max(count.sum(), 1), p99.mean(), p99.max())
        rows.append([f"`{workload}`", policy, *map(number, values)])
    heads = ["decisions a run", "mean ms", "p99 ms, mean over runs", "p99 ms, worst run"]
    return markdown_table(["workload", "policy", *heads], rows)


# --- bounds -----------------------------------------------------------------------------------------------


def bound_rows(
    traces: Sequence[Bounded], answers: Mapping[Any, Any], baselines: Sequence[str]
) -> pd.DataFrame:
    """Return mean JCT in seconds of each trace: highest bound, best known schedule, best baseline, policies.

    None where an item failed. ``best_known_by`` is the search, or the policy that does as well.
    """
    rows = []
    for trace in traces:
        bounds: Bounds | None = answers.get(trace.bound)
        known = {one.found: one.mean_jct_s for one in trace.known(answers)}
        by = min(known, key=lambda name: known[name], default="")
        rivals = {name: known[name] for name in baselines if name in known}
        rival = best_of("mean_jct_s", rivals) if rivals else ""
        played = [run.name for run in trace.runs if run.name not in baselines]
        rows.append(
            {
                **trace.source.row(),
                "outputs": outputs_in_words(trace.source.options.output_sigma),
                "bound": "" if bounds is None else f"{bounds.best.name}, {bounds.best.status}",
                "bound_s": None if bounds is None else bounds.best.mean_jct_s,
                "best_known_by": by,
                "best_known_s": known.get(by),
                "best_baseline": rival,
                "best_baseline_s": rivals.get(rival),
                **{f"{name}_s": known.get(name) for name in played},
            }
        )
    return pd.DataFrame(rows).drop(columns=["rate_per_s", "seed", "tasks"])


def reaches(rows: pd.DataFrame, targets: Sequence[Target]) -> pd.DataFrame:
    """Return how far mean JCT could fall: changes against the best baseline, averaged over the loads.

    ``bound`` is the change that a schedule at the bound would have: none has a lower one. ``target`` is what
    was aimed at. A setting with a failed item says nothing of that item.
    """
    aims = {(t.workload, t.prefix_tokens, outputs_in_words(t.output_sigma)): t.mean / 100 for t in targets}
    policies = {column: column.removesuffix("_s") for column in rows if str(column).endswith("_s")}
    shown = {**policies, "bound_s": BOUND, "best_known_s": KNOWN}
    del shown["best_baseline_s"]
    found = []
    for key, own in rows.groupby(["workload", "prefix_tokens", "outputs"], sort=False):
        ratios = own[list(shown)].astype(float).div(own["best_baseline_s"].astype(float), axis="index") - 1
        means = ratios.mean(skipna=False).rename(shown)
        order = [BOUND, KNOWN, *(name for name in means.index if name not in (BOUND, KNOWN))]
        place = {"workload": key[0], "outputs": key[2], "target": aims.get(key)}
        found.append({**place, **means[order].to_dict()})
    return pd.DataFrame(found)


def reach_table(found: pd.DataFrame) -> str:
    """Return a row a setting: target, what the bound leaves, best known, policies."""
    names = [name for name in found if name not in ("workload", "outputs", "target")]
    rows = []
    for one in found.to_dict("records"):
        aim = "" if pd.isna(one["target"]) else percent(one["target"])
        texts = ("failed" if pd.isna(one[name]) else percent(one[name]) for name in names)
        rows.append([f"`{one['workload']}`", one["outputs"], aim, *texts])
    return markdown_table(["workload", "outputs", "target", *map(str, names)], rows)


def bound_table(rows: pd.DataFrame) -> str:
    """Return a row a trace; in brackets how far above the bound."""
    others = ("bound_s", "best_known_s", "best_baseline_s")
    policies = [str(name) for name in rows if str(name).endswith("_s") and name not in others]
    lines = []
    for one in rows.to_dict("records"):
        bound_s = one["bound_s"]

        def over(value_s: float, by: str = "", bound_s: float = bound_s) -> str:
            if pd.isna(value_s):
                return "failed"
            above = f" ({percent(value_s / bound_s - 1)})" if bound_s > 0 else ""
            return f"{number(value_s)}{f' `{by}`' if by else ''}{above}"

        bound = "failed" if pd.isna(bound_s) else f"{number(bound_s)} ({one['bound']})"
        line = [*_place(one, ("workload", "outputs", "load")), bound]
        line += [
            over(one["best_known_s"], one["best_known_by"]),
            over(one["best_baseline_s"], one["best_baseline"]),
        ]
        lines.append([*line, *(over(one[name]) for name in policies)])
    heads = [BOUND, KNOWN, "best baseline", *(name.removesuffix("_s") for name in policies)]
    return markdown_table(["workload", "outputs", "load", *heads], lines)
