"""What a comparison leaves behind: tables for programs (CSV, Parquet), a page and a screen for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from io import BytesIO
from pathlib import Path

import polars as pl
from tabulate import tabulate

from compare.cell import COUNTS, METRICS, TIMINGS, Cell, Fixed, Result, TraceFile
from compare.run import Outcome
from compare.stats import COMPARED, Change, Point, Summary, best_of, summarise
from topas.files import write_all
from topas.params import params_in_words
from topas.profile import Profile

JCT = {"mean_jct_s": "mean JCT", "p99_jct_s": "p99 JCT"}
"""The paper's primary metrics, in seconds, and what people call them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was run and what came of it.

    ``command`` is the command line that makes it again; ``baselines`` are those among which the best one
    is sought, ``policies`` all that ran.
    """

    command: str
    policies: tuple[str, ...]
    baselines: tuple[str, ...]
    outcome: Outcome
    summaries: tuple[Summary, ...]

    @classmethod
    def of(
        cls, command: str, policies: Iterable[str], baselines: Collection[str], outcome: Outcome
    ) -> Comparison:
        """Summarise an outcome against those of the baselines that ran."""
        policies = tuple(policies)
        ran = tuple(policy for policy in policies if policy in baselines)
        return cls(command, policies, ran, outcome, summarise(outcome.results, ran))


def write_report(comparison: Comparison, folder: Path) -> tuple[Path, ...]:
    """Write ``results.csv``, ``results.parquet``, ``timings.csv``, ``summary.csv`` and ``report.md``.

    All but the timings have the same bytes whenever the same cells are run by the same versions.
    """
    results = comparison.outcome.results
    table = results_table(results)
    parquet = BytesIO()
    table.write_parquet(parquet)
    contents = {
        "results.csv": table.write_csv().encode(),
        "results.parquet": parquet.getvalue(),
        "timings.csv": timings_table(results).write_csv().encode(),
        "summary.csv": summary_table(comparison.summaries).write_csv().encode(),
        "report.md": markdown(comparison).encode(),
    }
    return write_all(folder, contents)


_IDENTITY: Mapping[str, type[pl.DataType]] = {
    "key": pl.String,
    "workload": pl.String,
    "profile": pl.String,
    "host_cache": pl.Boolean,
    "admission": pl.String,
    "redo": pl.String,
    "load": pl.Float64,
    "rate_per_s": pl.Float64,
    "seed": pl.Int64,
    "tasks": pl.Int64,
    "policy": pl.String,
}


def _identity(cell: Cell) -> tuple[object, ...]:
    source, profile = cell.source, cell.profile
    engine = (profile.name, profile.host_cache, profile.admission, profile.redo)
    drawn = (source.load, source.rate_per_s, source.seed, source.tasks)
    return (cell.key(), source.workload, *engine, *drawn, cell.policy)


def _table(results: Iterable[Result], metrics: Sequence[str]) -> pl.DataFrame:
    numbers = {name: pl.Int64 if name in COUNTS else pl.Float64 for name in metrics}
    rows = [(*_identity(result.cell), *(result.metrics[name] for name in metrics)) for result in results]
    return pl.DataFrame(rows, schema={**_IDENTITY, **numbers}, orient="row")


def results_table(results: Iterable[Result]) -> pl.DataFrame:
    """Return one row a cell with everything that a rerun reproduces."""
    return _table(results, [name for name in METRICS if name not in TIMINGS])


def timings_table(results: Iterable[Result]) -> pl.DataFrame:
    """Return one row a cell with the decision times.

    They depend on the machine and on what else it does; a process's first cell also loads compiled code.
    """
    return _table(results, ["decisions", *TIMINGS])


def summary_table(summaries: Iterable[Summary]) -> pl.DataFrame:
    """Return one row a summary; ``scope`` is ``point``, or ``average`` over the operating points."""
    schema: dict[str, type[pl.DataType]] = {
        "workload": pl.String,
        "profile": pl.String,
        "scope": pl.String,
        "load": pl.Float64,
        "rate_per_s": pl.Float64,
        "metric": pl.String,
        "policy": pl.String,
        "cells": pl.Int64,
        "value": pl.Float64,
        "best_baseline": pl.String,
        "change": pl.Float64,
        "paired_change": pl.Float64,
        "paired_low": pl.Float64,
        "paired_high": pl.Float64,
    }
    rows: list[tuple[object, ...]] = []
    for one in summaries:
        point = one.point or Point(None, None)
        place = ("average" if one.point is None else "point", point.load, point.rate_per_s)
        change: tuple[object, ...] = (None,) * 5
        if one.change is not None:
            paired = one.change.paired
            change = (one.change.best, one.change.ratio, paired.mean, paired.low, paired.high)
        head = (one.workload, one.profile.name, *place, one.metric, one.policy, one.cells, one.value)
        rows.append((*head, *change))
    return pl.DataFrame(rows, schema=schema, orient="row")


def screen(comparison: Comparison) -> str:
    """Return one small table a workload: averages over points and seeds, the best starred."""
    blocks = []
    for (workload, profile), summaries in _settings(comparison.summaries).items():
        columns = [_pick(summaries, None, metric) for metric in JCT]
        bests = [_best_value(metric, column.values()) for metric, column in zip(JCT, columns, strict=True)]
        rows = []
        for policy in comparison.policies:
            row = [policy]
            for column, best in zip(columns, bests, strict=True):
                one = column.get(policy)
                row.append("failed" if one is None else number(one.value) + " *" * (one.value == best))
                row.append("" if one is None or one.change is None else percent(one.change.ratio))
            rows.append(row)
        heads = [head for name in JCT.values() for head in (f"{name} s", "change")]
        align = ("left", *("right",) * len(heads))
        body = tabulate(rows, ["policy", *heads], "simple", disable_numparse=True, colalign=align)
        points = dict.fromkeys(_point_in_words(one.point) for one in summaries if one.point is not None)
        blocks.append(f"{workload}, profile {profile.name}, average over: {', '.join(points)}\n{body}")
    if comparison.baselines:
        blocks.append("* best; change: against the baseline with the best average of that metric")
    return "\n\n".join(blocks)


def markdown(comparison: Comparison) -> str:
    """Return the page: what was run, JCT at every operating point, changes over all of them."""
    parts = ["# Policies side by side", _what_was_run(comparison)]
    if comparison.outcome.failures:
        lines = [f"- {failure.cell}: {failure.reason}" for failure in comparison.outcome.failures]
        explained = "A policy is left out of every average that one of its failed cells belongs to."
        parts += ["## Failed cells", explained, "\n".join(lines)]
    for metric, name in JCT.items():
        parts += [f"## {name[0].upper()}{name[1:]} at every operating point, seconds"]
        parts += [_point_table(comparison, metric)]
    parts += [_EXPLAINED if comparison.baselines else "No baseline was run, so nothing is compared."]
    if comparison.baselines:
        parts += ["## Averages over the operating points against the best baseline"]
        parts += [_average_table(comparison), _AVERAGES_EXPLAINED]
    return "\n\n".join(parts) + "\n"


_EXPLAINED = (
    "The mean over the seeds; below it the change against the baseline with the best mean at that point: the "
    "mean of the per-seed changes with its 95 % interval (Student's t, paired by seed; one seed has no "
    "interval). The best value of a row is bold."
)
_AVERAGES_EXPLAINED = (
    "Each metric is averaged over the operating points and seeds; the best baseline of a row is the one with "
    "the best average, and the change is the ratio of the two averages minus 1, as the paper counts it: "
    "negative is a reduction. Brackets: 95 % interval of the mean per-seed change. All metrics: "
    "`summary.csv`; one row a cell: `results.csv`; decision times, which no rerun reproduces: `timings.csv`."
)


def number(value: float) -> str:
    """Return a value with four significant digits, and never with an exponent for large ones."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004  four digits


def percent(fraction: float) -> str:
    """Return a signed percentage with one decimal: ``-15.2 %``."""
    return f"{_signed(fraction)} %"


def _signed(fraction: float) -> str:
    text = f"{100 * fraction:+.1f}"
    return "0.0" if text in {"+0.0", "-0.0"} else text


def with_interval(centre: float, change: Change) -> str:
    """Return a change with the interval of its paired one: ``-15.2 % [-17.0, -13.1]``."""
    low, high = change.paired.low, change.paired.high
    brackets = "" if low is None or high is None else f" [{_signed(low)}, {_signed(high)}]"
    return percent(centre) + brackets


def _settings(summaries: Iterable[Summary]) -> dict[tuple[str, Profile], list[Summary]]:
    found: dict[tuple[str, Profile], list[Summary]] = {}
    for one in summaries:
        found.setdefault((one.workload, one.profile), []).append(one)
    return found


def _what_was_run(comparison: Comparison) -> str:
    outcome = comparison.outcome
    cells = [*(one.cell for one in outcome.results), *(one.cell for one in outcome.failures)]
    workloads: dict[str, list[Cell]] = {}
    for cell in cells:
        workloads.setdefault(cell.source.workload, []).append(cell)
    profiles = dict.fromkeys(cell.profile for cell in cells)
    params = dict.fromkeys(cell.params for cell in cells)
    baseline = dict.fromkeys(comparison.baselines, " (baseline)")
    policies = (f"`{policy}`{baseline.get(policy, '')}" for policy in comparison.policies)
    lines = (
        f"topas {version('topas')}, simulated; {len(outcome.results)} of {len(cells)} cells finished.",
        "The command that makes this again:\n",
        f"```sh\n{comparison.command}\n```\n",
        *(f"- Workload `{name}`: {trace_in_words(own)}." for name, own in workloads.items()),
        *(f"- Profile `{one.name}`: {_named(one.model_dump(exclude=_NAMES))}." for one in profiles),
        *(f"- Parameters: {params_in_words(one)}." for one in params),
        f"- Policies: {', '.join(policies)}.",
    )
    return "\n".join(lines)


_NAMES = {"format", "name", "note"}
"""Fields of a profile that are no constants."""


def trace_in_words(cells: Sequence[Cell]) -> str:
    """Say in words what the traces of one workload are."""
    source = cells[0].source
    if isinstance(source, TraceFile):
        return f"a trace of {source.tasks} tasks, used as it is, SHA-256 `{source.sha256}`"
    if isinstance(source, Fixed):
        return f"{source.tasks} tasks, fixed"
    loads = dict.fromkeys(f"{one.source.load:g}" for one in cells if one.source.load is not None)
    rates = dict.fromkeys(f"{one.source.rate_per_s:g}" for one in cells)
    at = f"loads {', '.join(loads)}" if loads else f"rates {', '.join(rates)} tasks/s"
    seeds = dict.fromkeys(str(one.source.seed) for one in cells)
    options = _named(asdict(source.options)) or "default lengths"
    return f"{source.tasks} tasks, {at}, seeds {', '.join(seeds)}, {options}"


def _point_in_words(point: Point) -> str:
    if point.rate_per_s is None:
        return "as it is"
    rate = f"{point.rate_per_s:.4g} tasks/s"
    return rate if point.load is None else f"load {point.load:g} ({rate})"


def _named(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _pick(summaries: Iterable[Summary], point: Point | None, metric: str) -> dict[str, Summary]:
    return {one.policy: one for one in summaries if one.point == point and one.metric == metric}


def _best_value(metric: str, summaries: Iterable[Summary]) -> float | None:
    values = {one.policy: one.value for one in summaries}
    return values[best_of(metric, values)] if values else None


def _point_table(comparison: Comparison, metric: str) -> str:
    rows = []
    for (workload, profile), summaries in _settings(comparison.summaries).items():
        for point in dict.fromkeys(one.point for one in summaries if one.point is not None):
            own = _pick(summaries, point, metric)
            best = _best_value(metric, own.values())
            cells = [_markdown_cell(own.get(policy), best, paired=True) for policy in comparison.policies]
            rows.append([f"`{workload}`", profile.name, _point_in_words(point), *cells])
    return markdown_table(["workload", "profile", "point", *comparison.policies], rows)


def _average_table(comparison: Comparison) -> str:
    others = [policy for policy in comparison.policies if policy not in comparison.baselines]
    rows = []
    for (workload, profile), summaries in _settings(comparison.summaries).items():
        for metric in COMPARED:
            own = _pick(summaries, None, metric)
            rivals = {policy: one.value for policy, one in own.items() if policy in comparison.baselines}
            rival = own[best_of(metric, rivals)] if rivals else None
            shown = [own.get(policy) for policy in others]
            best = _best_value(metric, (one for one in (rival, *shown) if one is not None))
            first = (
                "failed" if rival is None else f"`{rival.policy}` {_markdown_cell(rival, best, paired=False)}"
            )
            cells = [_markdown_cell(one, best, paired=False) for one in shown]
            rows.append([f"`{workload}`", profile.name, metric, first, *cells])
    return markdown_table(["workload", "profile", "metric", "best baseline", *others], rows)


def _markdown_cell(one: Summary | None, best: float | None, *, paired: bool) -> str:
    if one is None:
        return "failed"
    value = f"**{number(one.value)}**" if one.value == best else number(one.value)
    if one.change is None or one.change.best == one.policy:
        return value
    centre = one.change.paired.mean if paired else one.change.ratio
    return f"{value}<br>{with_interval(centre, one.change)}"


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; a bar in a text is no end of its cell."""
    escaped = [[text.replace("|", "\\|") for text in row] for row in rows]
    return str(tabulate(escaped, heads, "github", disable_numparse=True))
