"""What a comparison on real servers leaves behind: a row a run, a row a figure, a page, a screen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

import pandas as pd
from tabulate import tabulate

from compare.cell import Source, source_in_words, trace_of
from compare.live.side_by_side import Played, Row, Run, Settings
from compare.page import csv, parquet
from compare.report import markdown_table, number, percent
from compare.stats import Interval, best_of, interval
from topas.files import write_all
from topas.profile import Profile
from topas.sim import simulate

COMPARED = ("mean_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "requests_per_s")
"""Figures with a best baseline, and those that the simulator predicts besides preemptions."""

PREDICTED = (*COMPARED, "preemptions")

Place = tuple[str, float | None, float | None]
"""A workload, its load and its rate in tasks a second (that of the first seed, where seeds differ)."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure of one policy at one operating point.

    ``live`` is over repeats and seeds. ``change`` is against the best baseline: the ratio of the means less
    1; ``paired`` is the mean change of pairs of one repeat and seed. ``predicted`` is the simulator's value,
    ``error`` its relative error; ``paced`` and ``paced_error`` are those of an engine as fast as the machine
    was in each run. None where there is nothing to compare.
    """

    place: Place
    metric: str
    policy: str
    runs: int
    live: Interval
    best: str | None
    change: float | None
    paired: Interval | None
    predicted: float | None
    error: float | None
    paced: float | None
    paced_error: float | None


@dataclass(frozen=True, slots=True)
class LiveComparison:
    """What was played and what came of it."""

    command: str
    hardware: str
    policies: tuple[str, ...]
    baselines: tuple[str, ...]
    settings: Settings
    runs: tuple[Run, ...]
    played: Played
    summaries: tuple[Summary, ...]


Predict = Callable[[Source, str, Settings], Mapping[str, float]]


def predict(source: Source, policy: str, settings: Settings) -> Mapping[str, float]:
    """Return what the simulator says of a run."""
    return simulate(trace_of(source), policy, settings.profile, params=settings.params).metrics


def at_speed(settings: Settings, speed: float) -> Settings:
    """Return the settings with an engine that is ``speed`` times as fast."""
    profile = settings.profile
    names = [n for n in Profile.model_fields if n.startswith(("prefill_", "decode_")) or n == "request_s"]
    slower = {name: getattr(profile, name) / speed for name in names}
    return replace(settings, profile=profile.model_copy(update=slower))


def compared(  # noqa: PLR0913  its parts
    command: str,
    hardware: str,
    policies: Sequence[str],
    baselines: Collection[str],
    runs: Sequence[Run],
    played: Played,
    predict: Predict = predict,
) -> LiveComparison:
    """Summarise what was played against the baselines that ran, beside the simulator's prediction."""
    ran = tuple(policy for policy in policies if policy in baselines)
    found = tuple(summaries(runs, played.rows, policies, ran, predict))
    return LiveComparison(
        command, hardware, tuple(policies), ran, runs[0].settings, tuple(runs), played, found
    )


def summaries(
    runs: Sequence[Run],
    rows: Mapping[Run, Row],
    policies: Sequence[str],
    baselines: Collection[str],
    predict: Predict,
) -> Iterable[Summary]:
    """Yield a summary for each operating point, figure and policy that has all its runs."""
    places: dict[Place, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.repeat):
        places.setdefault(_place(run, places), []).append(run)
    for place, members in places.items():
        sources = list(dict.fromkeys(run.source for run in members))
        complete = [p for p in policies if all(run in rows for run in members if run.policy == p)]
        predicted = {
            policy: [predict(source, policy, members[0].settings) for source in sources]
            for policy in complete
        }
        paced = {policy: _paced(members, policy, rows, predict) for policy in complete}
        for metric in (*(item.name for item in fields(Row)), "speed"):
            samples: dict[str, dict[tuple[Source, int], float]] = {}
            for policy in complete:
                values = {
                    (run.source, run.repeat): getattr(rows[run], metric)
                    for run in members
                    if run.policy == policy
                }
                if all(value is not None for value in values.values()):
                    samples[policy] = values
            yield from _summaries(place, metric, samples, baselines, predicted, paced)


def _paced(
    runs: Sequence[Run], policy: str, rows: Mapping[Run, Row], predict: Predict
) -> Sequence[Mapping[str, float]]:
    """Return a prediction a run, at the speed that the machine had in it; none if a speed is not known."""
    mine = [run for run in runs if run.policy == policy]
    speeds = [rows[run].speed for run in mine]
    return [
        predict(run.source, policy, at_speed(run.settings, speed))
        for run, speed in zip(mine, speeds, strict=True)
        if speed is not None and None not in speeds
    ]


def _summaries(  # noqa: PLR0913  one figure of one place
    place: Place,
    metric: str,
    samples: Mapping[str, Mapping[tuple[Source, int], float]],
    baselines: Collection[str],
    predicted: Mapping[str, Sequence[Mapping[str, float]]],
    paced: Mapping[str, Sequence[Mapping[str, float]]],
) -> Iterable[Summary]:
    means = {policy: fmean(values.values()) for policy, values in samples.items()}
    rivals = {policy: mean for policy, mean in means.items() if policy in baselines}
    best = best_of(metric, rivals) if metric in COMPARED and rivals else None
    for policy, values in samples.items():
        change, paired = None, None
        if best is not None and means[best]:
            change = means[policy] / means[best] - 1
            paired = interval([value / samples[best][key] - 1 for key, value in values.items()])
        yield Summary(
            place,
            metric,
            policy,
            len(values),
            interval(list(values.values())),
            best,
            change,
            paired,
            *_guessed(predicted[policy], metric, means[policy]),
            *_guessed(paced[policy], metric, means[policy]),
        )


def _guessed(
    predicted: Sequence[Mapping[str, float]], metric: str, mean: float
) -> tuple[float | None, float | None]:
    """Return the mean prediction of a figure and its relative error."""
    if metric not in PREDICTED or not predicted:
        return None, None
    guess = fmean(one[metric] for one in predicted)
    return guess, guess / mean - 1 if mean else None


def _place(run: Run, known: Iterable[Place]) -> Place:
    source = run.source
    if source.load is not None:
        for place in known:
            if place[:2] == (source.workload, source.load):
                return place
    return source.workload, source.load, source.rate_per_s


def write_live(comparison: LiveComparison, folder: Path) -> tuple[Path, ...]:
    """Write ``live.csv``, ``live.parquet``, ``summary.csv`` and ``report.md``."""
    table = rows_table(comparison.played.rows)
    contents = {
        "live.csv": csv(table),
        "live.parquet": parquet(table),
        "summary.csv": csv(summary_table(comparison.summaries)),
        "report.md": markdown(comparison).encode(),
    }
    return write_all(folder, contents)


def rows_table(rows: Mapping[Run, Row]) -> pd.DataFrame:
    """Return a row a run."""
    return pd.DataFrame(
        [
            {
                "workload": run.source.workload,
                "load": run.source.load,
                "rate_per_s": run.source.rate_per_s,
                "seed": run.source.seed,
                "tasks": run.source.tasks,
                "policy": run.policy,
                "repeat": run.repeat,
                **asdict(row),
            }
            for run, row in rows.items()
        ]
    )


def summary_table(summaries: Iterable[Summary]) -> pd.DataFrame:
    """Return a row a summary."""
    rows = []
    for one in summaries:
        workload, load, rate = one.place
        paired = one.paired or Interval(float("nan"), None, None)
        rows.append(
            {
                "workload": workload,
                "load": load,
                "rate_per_s": rate,
                "metric": one.metric,
                "policy": one.policy,
                "runs": one.runs,
                "mean": one.live.mean,
                "low": one.live.low,
                "high": one.live.high,
                "best_baseline": one.best,
                "change": one.change,
                "paired_change": None if one.paired is None else paired.mean,
                "paired_low": paired.low,
                "paired_high": paired.high,
                "predicted": one.predicted,
                "error": one.error,
                "paced": one.paced,
                "paced_error": one.paced_error,
            }
        )
    return pd.DataFrame(rows)


def screen(comparison: LiveComparison) -> str:
    """Return one small table an operating point."""
    blocks = []
    for place in dict.fromkeys(one.place for one in comparison.summaries):
        jct, p99 = (_pick(comparison, place, metric) for metric in ("mean_jct_s", "p99_jct_s"))
        rows = []
        for policy in comparison.policies:
            one, tail = jct.get(policy), p99.get(policy)
            if one is None or tail is None:
                rows.append([policy, "failed", *[""] * 6])
                continue
            rows.append(
                [
                    policy,
                    _with_half(one.live),
                    _changed(one),
                    _with_half(tail.live),
                    *_shown(one.predicted, one.error),
                    *_shown(one.paced, one.paced_error),
                ]
            )
        heads = ["policy", "mean JCT s", "change", "p99 JCT s", "simulated", "error", "at its speed", "error"]
        align = ("left", *("right",) * (len(heads) - 1))
        body = tabulate(rows, heads, "simple", disable_numparse=True, colalign=align)
        blocks.append(f"{_in_words(place)}, real SGLang on this machine's CPU\n{body}")
    blocks.append(
        "change: against the best baseline; simulated: mean JCT on the fitted profile, and at the speed that "
        "the machine had in each run"
    )
    return "\n\n".join(blocks)


def markdown(comparison: LiveComparison) -> str:
    """Return the page."""
    parts = ["# Policies side by side on a real engine", _what_was_run(comparison)]
    if comparison.played.failures:
        lines = [f"- {run}: {reason}" for run, reason in comparison.played.failures.items()]
        parts += ["## Failed runs", "\n".join(lines)]
    for metric, title in (
        ("mean_jct_s", "Mean JCT, seconds"),
        ("p99_jct_s", "99th percentile of JCT, seconds"),
    ):
        parts += [f"## {title}", _metric_table(comparison, metric)]
    parts += [_EXPLAINED, "## What the simulator predicted", _prediction_table(comparison), _PREDICTED]
    parts += ["## How they got there", _cause_table(comparison), _CAUSES]
    return "\n\n".join(parts) + "\n"


_EXPLAINED = (
    "Mean over the repeats with the half-width of its 95 % interval (Student's t); below it the change "
    "against the best baseline of the row, with the 95 % interval of the mean of the changes paired by "
    "repeat. The best value of a row is bold."
)
_PREDICTED = (
    "The simulator's mean JCT on the same trace with the fitted profile, and its error against the "
    "measured one. Below it the same with the profile's times divided by the speed of the machine in each "
    "run: the time that the batches which the server ran should take by the profile, over the time that "
    "its scheduler process computed. A virtual machine changes its speed by more than a tenth from one "
    "minute to the next."
)
_CAUSES = (
    "Means over the repeats. Computed: prompt tokens prefilled; again: those of them that would not have "
    "been with unlimited memory. Preemptions include what SGLang took back. Event: one scheduling event "
    "of the plugin, its 99th percentile as the upper end of the histogram's bucket, and its share of the "
    "run's time; SGLang's own policies do not tell."
)


def _what_was_run(comparison: LiveComparison) -> str:
    settings, profile = comparison.settings, comparison.settings.profile
    sources = dict.fromkeys(run.source for run in comparison.runs)
    repeats = max(run.repeat for run in comparison.runs)
    shown = ", ".join(
        f"{name} {value}" for name, value in profile.model_dump(exclude={"format", "name", "note"}).items()
    )
    done = f"{len(comparison.played.rows)} of {len(comparison.runs)}"
    lines = (
        f"topas {version('topas')} on {comparison.hardware}; {done} runs finished, {repeats} repeats.",
        "The command that makes this again:\n",
        f"```sh\n{comparison.command}\n```\n",
        *(f"- {_source(source)}." for source in sources),
        f"- Servers: {settings.kv_tokens} KV tokens, at most {settings.max_running} requests in a batch.",
        "- Each policy has a server; one runs at a time, with an empty cache before each run.",
        f"- Profile `{profile.name}`: {shown}.",
        f"- Policies: {', '.join(f'`{p}`' for p in comparison.policies)}.",
    )
    return "\n".join(lines)


def _source(source: Source) -> str:
    if source.sha256:
        return f"{source.workload}: {source.tasks} tasks, SHA-256 `{source.sha256}`"
    rate = "" if source.rate_per_s is None else f", {source.rate_per_s:.4g} tasks/s"
    options = getattr(source, "options", None)
    lengths = {} if options is None else {k: v for k, v in asdict(options).items() if v is not None}
    named = "".join(f", {name} {value}" for name, value in lengths.items())
    return f"{source_in_words(source)}{rate}, {source.tasks} tasks{named}"


def _pick(comparison: LiveComparison, place: Place, metric: str) -> dict[str, Summary]:
    return {one.policy: one for one in comparison.summaries if one.place == place and one.metric == metric}


def _places(comparison: LiveComparison) -> list[Place]:
    return list(dict.fromkeys(one.place for one in comparison.summaries))


def _metric_table(comparison: LiveComparison, metric: str) -> str:
    rows = []
    for place in _places(comparison):
        found = _pick(comparison, place, metric)
        least = min((one.live.mean for one in found.values()), default=None)
        cells = []
        for policy in comparison.policies:
            one = found.get(policy)
            if one is None:
                cells.append("failed")
                continue
            value = _with_half(one.live)
            cells.append((f"**{value}**" if one.live.mean == least else value) + _below(one))
        rows.append([_in_words(place), *cells])
    return markdown_table(["point", *comparison.policies], rows)


def _below(one: Summary) -> str:
    if one.paired is None or one.best == one.policy:
        return ""
    low, high = one.paired.low, one.paired.high
    brackets = "" if low is None or high is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    return f"<br>{percent(one.paired.mean)}{brackets}"


def _prediction_table(comparison: LiveComparison) -> str:
    rows = []
    for place in _places(comparison):
        found = _pick(comparison, place, "mean_jct_s")
        rows.append([_in_words(place), *(_guess(found.get(policy)) for policy in comparison.policies)])
    return markdown_table(["point", *comparison.policies], rows)


def _guess(one: Summary | None) -> str:
    if one is None or one.predicted is None or one.error is None:
        return "failed"
    text = f"{number(one.predicted)} ({percent(one.error)})"
    if one.paced is None or one.paced_error is None:
        return text
    return f"{text}<br>{number(one.paced)} ({percent(one.paced_error)})"


def _shown(value: float | None, error: float | None) -> tuple[str, str]:
    return "" if value is None else number(value), "" if error is None else percent(error)


_CAUSE_COLUMNS = {
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
    for place in _places(comparison):
        found = {metric: _pick(comparison, place, metric) for metric in (*_CAUSE_COLUMNS, "event_share")}
        for policy in comparison.policies:
            cells = [_mean(found[metric].get(policy)) for metric in _CAUSE_COLUMNS]
            share = found["event_share"].get(policy)
            shared = "-" if share is None else f"{100 * share.live.mean:.2f} %"
            rows.append([_in_words(place), policy, *cells, shared])
    return markdown_table(["point", "policy", *_CAUSE_COLUMNS.values(), "event share"], rows)


def _mean(one: Summary | None) -> str:
    return "-" if one is None else number(one.live.mean)


def _with_half(live: Interval) -> str:
    return (
        number(live.mean) if live.high is None else f"{number(live.mean)} ± {number(live.high - live.mean)}"
    )


def _changed(one: Summary) -> str:
    return "" if one.change is None or one.best == one.policy else percent(one.change)


def _in_words(place: Place) -> str:
    workload, load, rate = place
    at = "" if rate is None else f", {rate:.3g} tasks/s"
    return workload + ("" if load is None else f", load {load:g}") + at
