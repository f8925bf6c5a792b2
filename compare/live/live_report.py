"""What a comparison on real servers leaves behind: a row a run, a row a figure, a page, a screen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from compare.change import COMPARED, JCT, bounds, changes, differences
from compare.comparison import SHOWN_TAILS, tail_table
from compare.live.side_by_side import LiveRow, LiveRun, Servers
from compare.page import change, csv, markdown_table, named, number, parquet, percent, render, screen_table
from compare.pool import Done
from compare.source import Source, trace_of
from topas.files import write_all
from topas.sim import simulate

METRICS = (*(item.name for item in fields(LiveRow) if item.name != "tails"), "speed")
PREDICTED = (*(name for name in COMPARED if name in METRICS), "preemptions")
"""Figures that the simulator predicts."""

PLACE = ("workload", "load", "rate_per_s")
"""Columns of an operating point; the rate is that of the first seed, where seeds differ."""

Predict = Callable[[Source, str, Servers], Mapping[str, float]]


def predict(source: Source, policy: str, settings: Servers) -> Mapping[str, float]:
    """Return what the simulator says of a run."""
    return simulate(trace_of(source), policy, settings.profile, params=settings.params).metrics


def at_speed(settings: Servers, speed: float) -> Servers:
    """Return the settings with an engine that is ``speed`` times as fast."""
    profile = settings.profile
    scaled = profile.cost.scaled(1 / speed)._asdict()
    del scaled["swap_s_per_token"]
    scaled["swap_bytes_per_s"] = profile.swap_bytes_per_s * speed
    return replace(settings, profile=profile.model_copy(update=scaled))


@dataclass(frozen=True)
class LiveComparison:
    """What was played and what came of it; ``baselines`` are those that ran."""

    command: str
    hardware: str
    policies: tuple[str, ...]
    baselines: tuple[str, ...]
    runs: tuple[LiveRun, ...]
    played: Done[LiveRun, LiveRow]
    predict: Predict = predict

    @classmethod
    def of(  # noqa: PLR0913  its parts
        cls,
        command: str,
        hardware: str,
        baselines: Collection[str],
        runs: Sequence[LiveRun],
        played: Done[LiveRun, LiveRow],
        predict: Predict = predict,
    ) -> LiveComparison:
        """Compare what was played with those of the baselines that ran, and with the simulator."""
        policies = tuple(dict.fromkeys(run.policy for run in sorted(runs, key=lambda run: run.repeat)))
        ran = tuple(policy for policy in policies if policy in baselines)
        return cls(command, hardware, policies, ran, tuple(runs), played, predict)

    @property
    def settings(self) -> Servers:
        """The servers."""
        return self.runs[0].settings

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row a run that finished, in the order of the runs."""
        found = []
        for run, row in self.played.results.items():
            figures = {name: getattr(row, name) for name in METRICS}
            found.append({**_place(run.source), "policy": run.policy, "repeat": run.repeat, **figures})
        return pd.DataFrame(found)

    @cached_property
    def tails(self) -> pd.DataFrame:
        """A row a run that finished and workflow or agent."""
        return pd.DataFrame(
            {**_place(run.source), "policy": run.policy, "repeat": run.repeat, **asdict(tail)}
            for run, row in self.played.results.items()
            for tail in row.tails
        )

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row an operating point, figure and policy that has all its runs there.

        ``mean``, ``low`` and ``high`` are over repeats and seeds; ``change`` and its two ends are as
        :func:`compare.change.changes` counts them, paired by seed and repeat. ``predicted`` is the
        simulator's value and ``error`` its relative error; ``paced`` and ``paced_error`` are those of an
        engine as fast as the machine was in each run. NaN where there is nothing to compare.
        """
        rows = self._by_place()
        keys = [*PLACE, "metric", "policy"]
        found = differences(rows, PLACE, self.baselines, METRICS)
        table = changes(found, PLACE).rename(columns={"low": "change_low", "high": "change_high"})
        long = rows.melt([*PLACE, "policy"], METRICS, "metric", "x").dropna(subset="x").astype({"x": float})
        means = long.groupby(keys, sort=False, dropna=False)["x"].agg(["mean", "sem", "size"]).reset_index()
        means["low"], means["high"] = bounds(means["mean"], means["sem"], means["size"])
        table = table.merge(means.rename(columns={"size": "runs"}), on=keys).merge(
            self._predictions(), "left", on=keys
        )
        for error, guess in (("error", "predicted"), ("paced_error", "paced")):
            table[error] = table[guess] / table["mean"].where(table["mean"] != 0) - 1
        told = ["runs", "mean", "low", "high", "best_baseline", "change", "change_low", "change_high"]
        return table[[*keys, *told, "predicted", "error", "paced", "paced_error"]]

    def _by_place(self) -> pd.DataFrame:
        """Return the rows of policies that miss no run at a place; each repeat of a seed is a draw."""
        asked = pd.DataFrame([{**_place(run.source), "policy": run.policy} for run in self.runs])
        first = asked.drop_duplicates(["workload", "load"])[[*PLACE]].rename(columns={"rate_per_s": "first"})
        rows = self.rows.merge(first, on=["workload", "load"], how="left")
        rows["rate_per_s"] = rows["first"].where(rows["load"].notna(), rows["rate_per_s"])
        whole = asked.groupby(["workload", "load", "policy"], dropna=False, sort=False).size()
        count = rows.groupby(["workload", "load", "policy"], dropna=False)["repeat"].transform("size")
        due = rows.merge(whole.rename("due").reset_index(), on=["workload", "load", "policy"], how="left")[
            "due"
        ]
        draw = [f"{seed}.{repeat}" for seed, repeat in zip(rows["seed"], rows["repeat"], strict=True)]
        return rows.assign(seed=draw)[(count == due).to_numpy()]

    def _predictions(self) -> pd.DataFrame:
        found = []
        whole = self._by_place()
        for (*place, policy), _ in whole.groupby([*PLACE, "policy"], sort=False, dropna=False):
            mine = [run for run in self.runs if run.policy == policy and self._at(run, place)]
            sources = dict.fromkeys(run.source for run in mine)
            speeds = [self.played.results[run].speed for run in mine]
            plain = [self.predict(source, policy, self.settings) for source in sources]
            paced = [
                self.predict(run.source, policy, at_speed(run.settings, speed))
                for run, speed in zip(mine, speeds, strict=True)
                if speed is not None and None not in speeds
            ]
            for metric in PREDICTED:
                guesses = (
                    pd.Series([one[metric] for one in some], dtype=float).mean() for some in (plain, paced)
                )
                guess = dict(zip(("predicted", "paced"), guesses, strict=True))
                found.append(
                    {**dict(zip(PLACE, place, strict=True)), "policy": policy, "metric": metric, **guess}
                )
        return pd.DataFrame(found, columns=[*PLACE, "policy", "metric", "predicted", "paced"])

    @staticmethod
    def _at(run: LiveRun, place: Sequence[object]) -> bool:
        source, (workload, load, rate) = run.source, place
        if source.load is not None:
            return (source.workload, source.load) == (workload, load)
        return source.workload == workload and (source.rate_per_s == rate or source.rate_per_s is None)


def _place(source: Source) -> dict[str, object]:
    numbers = {name: getattr(source, name) for name in ("load", "rate_per_s")}
    numbers = {name: float("nan") if value is None else value for name, value in numbers.items()}
    return {"workload": source.workload, **numbers, "seed": source.seed, "tasks": source.tasks}


def write_live(comparison: LiveComparison, folder: Path) -> tuple[Path, ...]:
    """Write ``live.csv``, ``live.parquet``, ``summary.csv``, ``tails.csv`` and ``report.md``."""
    contents = {
        "live.csv": csv(comparison.rows),
        "live.parquet": parquet(comparison.rows),
        "summary.csv": csv(comparison.summary),
        "tails.csv": csv(comparison.tails),
        "report.md": markdown(comparison).encode(),
    }
    return write_all(folder, contents)


Figures = Mapping[tuple[str, str], "pd.Series[float]"]
"""The summaries at one operating point by metric and policy."""


def _places(comparison: LiveComparison) -> Iterator[tuple[str, Figures]]:
    """Yield each operating point in words with its summaries."""
    for (workload, load, rate), own in comparison.summary.groupby(list(PLACE), sort=False, dropna=False):
        at = "" if pd.isna(rate) else f", {rate:.3g} tasks/s"
        words = workload + ("" if pd.isna(load) else f", load {load:g}") + at
        yield words, {(row["metric"], row["policy"]): row for _, row in own.iterrows()}


def screen(comparison: LiveComparison) -> str:
    """Return one small table an operating point."""
    blocks = []
    for words, found in _places(comparison):
        rows = []
        for policy in comparison.policies:
            one = found.get(("mean_jct_s", policy))
            if one is None:
                rows.append([policy, "failed", *[""] * 7])
                continue
            others = (_with_half(found[metric, policy]) for metric in list(JCT)[1:])
            changed = (
                "" if pd.isna(one["change"]) or one["best_baseline"] == policy else percent(one["change"])
            )
            guesses = (_shown(one[name], form) for name, form in GUESSES)
            rows.append([policy, _with_half(one), changed, *others, *guesses])
        heads = ["policy", "mean JCT s", "change", "p99 JCT s", "largest JCT s", "simulated", "error"]
        table = screen_table([*heads, "at its speed", "error"], rows)
        blocks.append(f"{words}, real SGLang on this machine's CPU\n{table}")
    blocks.append(
        "change: against the best baseline; simulated: mean JCT on the fitted profile, and at the speed that "
        "the machine had in each run"
    )
    return "\n\n".join(blocks)


GUESSES = (("predicted", number), ("error", percent), ("paced", number), ("paced_error", percent))


def _shown(value: float, form: Callable[[float], str]) -> str:
    return "" if pd.isna(value) else form(value)


def markdown(comparison: LiveComparison) -> str:
    """Return the page."""
    profile = comparison.settings.profile
    return render(
        "live",
        comparison=comparison,
        repeats=max(run.repeat for run in comparison.runs),
        sources=[_source(source) for source in dict.fromkeys(run.source for run in comparison.runs)],
        constants=named(profile.model_dump(exclude={"format", "name", "note"})),
        metric_tables={name: _metric_table(comparison, metric) for metric, name in JCT.items()},
        prediction_table=_prediction_table(comparison),
        cause_table=_cause_table(comparison),
        tail_table=tail_table(comparison.tails, comparison.policies, ["workload"])
        if len(comparison.tails)
        else "",
        most=SHOWN_TAILS,
    )


def _source(source: Source) -> str:
    if source.sha256:
        return f"{source.workload}: {source.tasks} tasks, SHA-256 `{source.sha256}`"
    rate = "" if source.rate_per_s is None else f", {source.rate_per_s:.4g} tasks/s"
    lengths = named(asdict(source.options))
    return f"{source}{rate}, {source.tasks} tasks" + (f", {lengths}" if lengths else "")


def _metric_table(comparison: LiveComparison, metric: str) -> str:
    rows = []
    for words, found in _places(comparison):
        own = {policy: found.get((metric, policy)) for policy in comparison.policies}
        least = min((one["mean"] for one in own.values() if one is not None), default=None)
        rows.append([words, *(_cell(one, least) for one in own.values())])
    return markdown_table(["point", *comparison.policies], rows)


def _cell(one: pd.Series[float] | None, least: float | None) -> str:
    if one is None:
        return "failed"
    value = f"**{_with_half(one)}**" if one["mean"] == least else _with_half(one)
    if pd.isna(one["change"]) or one["best_baseline"] == one["policy"]:
        return value
    paired = {"change": one["change"], "low": one["change_low"], "high": one["change_high"]}
    return f"{value}<br>{change(paired)}"


def _prediction_table(comparison: LiveComparison) -> str:
    rows = []
    for words, found in _places(comparison):
        rows.append([words, *(_guess(found.get(("mean_jct_s", policy))) for policy in comparison.policies)])
    return markdown_table(["point", *comparison.policies], rows)


def _guess(one: pd.Series[float] | None) -> str:
    if one is None or pd.isna(one["error"]):
        return "failed"
    text = f"{number(one['predicted'])} ({percent(one['error'])})"
    if pd.isna(one["paced_error"]):
        return text
    return f"{text}<br>{number(one['paced'])} ({percent(one['paced_error'])})"


CAUSES = {
    "mean_ttft_s": "TTFT s",
    "cached_tokens": "cached",
    "computed_tokens": "computed",
    "recomputed_tokens": "again",
    "preemptions": "preemptions",
    "decision_ms_mean": "decision ms",
    "event_ms_mean": "event ms",
    "event_ms_p99": "event p99 ms",
    "speed": "speed",
}


def _cause_table(comparison: LiveComparison) -> str:
    rows = []
    for words, found in _places(comparison):
        for policy in comparison.policies:
            means = {metric: found.get((metric, policy)) for metric in (*CAUSES, "event_share")}
            share = means.pop("event_share")
            cells = ("-" if one is None else number(one["mean"]) for one in means.values())
            rows.append([words, policy, *cells, "-" if share is None else f"{100 * share['mean']:.2f} %"])
    return markdown_table(["point", "policy", *CAUSES.values(), "event share"], rows)


def _with_half(one: pd.Series[float]) -> str:
    mean = number(one["mean"])
    return mean if pd.isna(one["high"]) else f"{mean} ± {number(one['high'] - one['mean'])}"
