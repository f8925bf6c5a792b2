"""``topas compare``: policies side by side, their changes against the best baseline, their tails."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from compare.change import COMPARED, JCT, best_of, changes, differences
from compare.page import change, csv, markdown_table, named, number, parquet, percent, render, screen_table
from compare.source import Source
from compare.study import IDENTITY, REPRODUCIBLE, TIMINGS, Outcome, Run
from topas.files import write_all
from topas.params import params_in_words

PROFILE = ("profile", "host_cache", "admission", "redo")
PLACE = ("workload", *PROFILE)
"""Columns of what a comparison averages within: a workload on an engine."""

SUMMARY = (
    "workload", "profile", "scope", "load", "rate_per_s", "metric", "policy",
    "cells", "value", "best_baseline", "change", "low", "high",
)  # fmt: skip

SHOWN_TAILS = 20
"""So many workflows and agents of a workload stand on the page, those of the largest JCT."""


@dataclass(frozen=True)
class Comparison:
    """What was run and what came of it.

    ``command`` is the command line that makes it again; ``baselines`` are those among which the best one is
    sought, ``policies`` all that ran, ``runs`` all that were asked for.
    """

    command: str
    policies: tuple[str, ...]
    baselines: tuple[str, ...]
    runs: tuple[Run, ...]
    outcome: Outcome

    @classmethod
    def of(
        cls, command: str, runs: Sequence[Run], baselines: Collection[str], outcome: Outcome
    ) -> Comparison:
        """Compare the policies that were run with those of the baselines among them."""
        policies = tuple(dict.fromkeys(run.name for run in runs))
        ran = tuple(policy for policy in policies if policy in baselines)
        return cls(command, policies, ran, tuple(runs), outcome)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row a metric and policy: at each operating point, then over all of them.

        ``scope`` is ``point`` or ``average``; the other columns are those of :func:`compare.change.changes`.
        The rate of a load may differ from seed to seed where lengths do; then it is their mean.
        """
        return summary_of(self.outcome.runs, self.baselines)


def summary_of(runs: pd.DataFrame, baselines: Collection[str]) -> pd.DataFrame:
    """Return :attr:`Comparison.summary` of some runs."""
    runs = runs.assign(point=runs["load"].where(runs["load"].notna(), runs["rate_per_s"]))
    # A number per workload and engine, in the order of the runs, keeps points and averages together.
    runs["place"] = runs.groupby(list(PLACE), sort=False, dropna=False).ngroup()
    at = runs.drop_duplicates(["place", "point", "seed"])
    at = at.groupby(["place", "point"], sort=False, dropna=False)[["load", "rate_per_s"]].mean().reset_index()
    parts = []
    for order, (scope, by) in enumerate((("point", ["point"]), ("average", list[str]()))):
        keys = ["place", *PLACE, *by]
        found = changes(differences(runs, keys, baselines, REPRODUCIBLE), keys)
        found = found.merge(at, "left", on=["place", *by]) if by else found.assign(load=None, rate_per_s=None)
        parts.append(found.assign(scope=scope, order=order))
    table = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    table = table.sort_values(["place", "order"], kind="stable").rename(columns={"rows": "cells"})
    types = {"load": "float64", "rate_per_s": "float64"}
    return table[[*SUMMARY, *PROFILE[1:]]].astype(types).reset_index(drop=True)


def write_report(comparison: Comparison, folder: Path) -> tuple[Path, ...]:
    """Write ``results``, ``timings``, ``summary`` and ``tails`` as CSV, the results as Parquet, the page.

    All but the timings have the same bytes whenever the same runs are done by the same versions.
    """
    results = results_table(comparison.outcome.runs)
    contents = {
        "results.csv": csv(results),
        "results.parquet": parquet(results),
        "timings.csv": csv(timings_table(comparison.outcome.runs)),
        "summary.csv": csv(comparison.summary[list(SUMMARY)]),
        "tails.csv": csv(comparison.outcome.tails),
        "report.md": markdown(comparison).encode(),
    }
    return write_all(folder, contents)


def results_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return everything of some runs that a rerun reproduces."""
    return runs[[*IDENTITY, *REPRODUCIBLE]]


def timings_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the decision times of some runs.

    They depend on the machine and on what else it does; a process's first run also loads compiled code.
    """
    return runs[[*IDENTITY, "decisions", *TIMINGS]]


Rows = Mapping[str, "pd.Series[float]"]
"""The summaries of one metric at one place by policy."""


def _places(summary: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield workload, profile and summaries of each workload and engine."""
    for _, own in summary.groupby(list(PLACE), sort=False, dropna=False):
        yield own["workload"].iloc[0], own["profile"].iloc[0], own


def _points(own: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each operating point in words with its summaries."""
    inside = own[own["scope"] == "point"]
    for _, at in inside.groupby(["load", "rate_per_s"], sort=False, dropna=False):
        yield _point_in_words(at["load"].iloc[0], at["rate_per_s"].iloc[0]), at


def _of(own: pd.DataFrame, metric: str) -> Rows:
    return {row["policy"]: row for _, row in own[own["metric"] == metric].iterrows()}


def _best_value(metric: str, rows: Rows) -> float | None:
    values = {policy: row["value"] for policy, row in rows.items()}
    return values[best_of(metric, values)] if values else None


def screen(comparison: Comparison) -> str:
    """Return one small table a workload: averages over points and seeds, the best starred."""
    blocks = []
    for workload, profile, own in _places(comparison.summary):
        columns = {metric: _of(own[own["scope"] == "average"], metric) for metric in JCT}
        bests = {metric: _best_value(metric, column) for metric, column in columns.items()}
        rows = []
        for policy in comparison.policies:
            row = [policy]
            for metric, column in columns.items():
                one = column.get(policy)
                row.append(
                    "failed" if one is None else number(one["value"]) + " *" * (one["value"] == bests[metric])
                )
                row.append("" if one is None or pd.isna(one["change"]) else percent(one["change"]))
            rows.append(row)
        heads = ["policy", *(head for name in JCT.values() for head in (f"{name} s", "change"))]
        points = ", ".join(words for words, _ in _points(own))
        blocks.append(f"{workload}, profile {profile}, average over: {points}\n{screen_table(heads, rows)}")
    if comparison.baselines:
        blocks.append("* best; change: against the baseline with the best average of that metric")
    return "\n\n".join(blocks)


def markdown(comparison: Comparison) -> str:
    """Return the page: what was run, JCT at every operating point, changes over all of them, tails."""
    workloads: dict[str, list[Source]] = {}
    for run in comparison.runs:
        workloads.setdefault(run.source.workload, []).append(run.source)
    return render(
        "compare",
        comparison=comparison,
        failures=comparison.outcome.failures,
        workloads={name: sources_in_words(own) for name, own in workloads.items()},
        profiles={
            p: p.model_dump(exclude=NAMES) for p in dict.fromkeys(run.profile for run in comparison.runs)
        },
        params=[params_in_words(one) for one in dict.fromkeys(run.params for run in comparison.runs)],
        point_tables={name: _point_table(comparison, metric) for metric, name in JCT.items()},
        average_table=_average_table(comparison) if comparison.baselines else "",
        tail_table=tail_table(comparison.outcome.tails, comparison.policies),
        most=SHOWN_TAILS,
    )


NAMES = {"format", "name", "note"}
"""Fields of a profile that are no constants."""


def sources_in_words(sources: Sequence[Source]) -> str:
    """Say in words what the traces of one workload are."""
    source = sources[0]
    if source.sha256:
        return f"a trace of {source.tasks} tasks, used as it is, SHA-256 `{source.sha256}`"
    if source.rate_per_s is None:
        return f"{source.tasks} tasks, fixed"
    loads = dict.fromkeys(f"{one.load:g}" for one in sources if one.load is not None)
    rates = dict.fromkeys(f"{one.rate_per_s:g}" for one in sources)
    at = f"loads {', '.join(loads)}" if loads else f"rates {', '.join(rates)} tasks/s"
    seeds = dict.fromkeys(str(one.seed) for one in sources)
    options = named(asdict(source.options)) or "default lengths"
    return f"{source.tasks} tasks, {at}, seeds {', '.join(seeds)}, {options}"


def _point_in_words(load: float, rate_per_s: float) -> str:
    if pd.isna(rate_per_s):
        return "as it is"
    rate = f"{rate_per_s:.4g} tasks/s"
    return rate if pd.isna(load) else f"load {load:g} ({rate})"


def _point_table(comparison: Comparison, metric: str) -> str:
    rows = []
    for workload, profile, own in _places(comparison.summary):
        for point, at in _points(own):
            found = _of(at, metric)
            best = _best_value(metric, found)
            cells = [_cell(found.get(policy), best) for policy in comparison.policies]
            rows.append([f"`{workload}`", profile, point, *cells])
    return markdown_table(["workload", "profile", "point", *comparison.policies], rows)


def _average_table(comparison: Comparison) -> str:
    others = [policy for policy in comparison.policies if policy not in comparison.baselines]
    rows = []
    for workload, profile, own in _places(comparison.summary):
        for metric in COMPARED:
            found = _of(own[own["scope"] == "average"], metric)
            rivals = {policy: row["value"] for policy, row in found.items() if policy in comparison.baselines}
            rival = best_of(metric, rivals) if rivals else ""
            shown = {policy: found[policy] for policy in (rival, *others) if policy in found}
            best = _best_value(metric, shown)
            first = f"`{rival}` {_cell(found[rival], best)}" if rival else "failed"
            rows.append(
                [f"`{workload}`", profile, metric, first, *(_cell(shown.get(one), best) for one in others)]
            )
    return markdown_table(["workload", "profile", "metric", "best baseline", *others], rows)


def _cell(row: pd.Series[float] | None, best: float | None) -> str:
    if row is None:
        return "failed"
    value = f"**{number(row['value'])}**" if row["value"] == best else number(row["value"])
    if pd.isna(row["change"]) or row["best_baseline"] == row["policy"]:
        return value
    return f"{value}<br>{change(row)}"


def tail_table(tails: pd.DataFrame, policies: Sequence[str], place: Sequence[str] = PLACE) -> str:
    """Return p99 and largest JCT of workflows and agents: of each workload those of the largest JCT.

    The p99 is the mean over operating points and seeds, the largest that of all of them. Agents that serve
    the same tasks share a row.
    """
    rows = []
    for _, own in tails.groupby(list(place), sort=False, dropna=False):
        found = own.groupby(["by", "name", "policy"], sort=False).agg(
            {"p99_jct_s": "mean", "max_jct_s": "max"}
        )
        texts = [f"{number(p99)} / {number(most)}" for p99, most in found.itertuples(index=False)]
        wide = pd.Series(texts, found.index).unstack("policy").reindex(columns=list(policies))  # noqa: PD010
        worst = found["max_jct_s"].groupby(["by", "name"], sort=False).max()
        alike: dict[tuple[str, ...], list[str]] = {}
        for by, name in worst.sort_values(ascending=False, kind="stable").index:
            alike.setdefault((by, *wide.loc[(by, name)].fillna("failed")), []).append(f"`{name}`")
            if len(alike) == SHOWN_TAILS:
                break
        workload = f"`{own['workload'].iloc[0]}`"
        rows += [[workload, by, ", ".join(sorted(names)), *texts] for (by, *texts), names in alike.items()]
    return markdown_table(["workload", "of", "names", *policies], rows)
