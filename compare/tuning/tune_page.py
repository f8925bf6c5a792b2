"""The page on tuning, in Markdown; its tables and its summary serve the screen too."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from statistics import fmean

from compare.cell import Cell, Source
from compare.gap_tables import Distribution
from compare.report import (
    JCT,
    markdown_table,
    number,
    percent,
    trace_in_words,
    with_interval,
)
from compare.stats import Interval, Summary
from compare.tuning.config_file import scalar
from compare.tuning.held_out import DEFAULT, TUNED, HeldOut, Row
from compare.tuning.outcome import Tuning
from compare.tuning.plan import Plan
from compare.tuning.space import in_words
from compare.tuning.study import ENOUGH, State
from compare.tuning.sweep import DECISION, PAPER, SCORED, Sweep
from topas.event import Params
from topas.params import params_in_words, values_of

_LOSS = (
    "The loss of a cell is {mean:g} ln(mean JCT / the best baseline's) + {p99:g} ln(p99 JCT / the best "
    "baseline's), the best baseline of each metric on that trace; a trial's loss is the mean over its cells. "
    "Below 0 is better than the best baselines. "
)
_PRUNED = (
    "A trial is given up when Wilcoxon's signed-rank test finds its losses above the best trial's on the "
    "same traces (p below {p:g}); so the losses of pruned trials are of fewer cells."
)
_FLATTERED = "The best of many trials flatters itself on its training traces; the next section counts."
_OVERALL = (
    "Over all held-out traces, the mean of the logarithms of the ratio; 95 % interval by Student's t over "
    "the seeds, or over traces that have none, each seed's traces averaged first."
)
_WORKLOADS = (
    "Mean over operating points and seeds. Default and tuned: change against the best baseline; last column: "
    "tuned against default. Brackets: 95 % interval of the mean per-seed change, paired by seed."
)
_IMPORTANCE = (
    "Importance: PED-ANOVA over the {complete} complete trials, for reaching the best quarter of them; the "
    "values sum to 1. It speaks of the ranges searched, and a parameter of small importance may still matter "
    "elsewhere."
)
_TOO_FEW = f"No importances: they take {ENOUGH} complete trials."
_SWEEP = (
    "M and K changed one at a time, on the held-out traces; everything else as in the default column above. "
    "Changes are against the first row, as over all held-out traces above."
)
_GAP = (
    "Decisions on the same {events} events, recorded under `"
    + PAPER
    + "` and the first row's setting on the "
    "first seed of each workload and load: how far the score is from the proved optimum under the setting's "
    "own K, and from the optimum without a cap."
)
_NOT_SCORE = " `{policy}` does not maximise the score, so its decisions have no such gap."
_TIMES = "Decision times depend on the machine and on what else it does; no rerun reproduces them."


def markdown(tuning: Tuning) -> str:
    """Return the page."""
    plan, found = tuning.plan, tuning.found
    counts = ", ".join(f"{len(found.of(state))} {state.value}" for state in State)
    what = f"policy `{plan.policy}`, profile `{plan.profile.name}`, sampler TPE with seed {plan.seed}"
    said = [
        f"topas {version('topas')}, simulated; {what}.",
        "The command that makes this again:\n",
        f"```sh\n{tuning.command}\n```\n",
        *(f"- Trained on `{name}`: {text}." for name, text in _traces(plan.train, plan)),
        *(f"- Held out: `{name}`: {text}." for name, text in _traces(tuning.held_sources, plan)),
        f"- Baselines: {', '.join(f'`{name}`' for name in plan.baselines)}.",
        f"- Default: {params_in_words(plan.base.on(Params()))}.",
    ]
    parts = ["# Tuned parameters", "\n".join(said), "## Search"]
    parts.append(
        f"{len(found.trials)} trials: {counts}. The best is trial {tuning.best.index} with a loss of "
        f"{_loss(tuning.best.loss)}; trial 0, the default, has {_loss(found.trials[0].loss)}."
    )
    if not tuning.best.index:
        parts.append("No trial was better than the default, so tuned and default are the same below.")
    explained = _LOSS.format(mean=plan.weights.mean, p99=plan.weights.p99)
    if plan.prune:
        explained += _PRUNED.format(p=plan.prune)
    parts.append(explained.strip())
    failed = found.of(State.FAILED)
    if failed:
        parts += ["### Failed trials", "\n".join(f"- trial {one.index}: {one.reason}" for one in failed)]
    parts += [_FLATTERED, *_held_out_parts(tuning), *_parameter_parts(tuning)]
    if tuning.sweep is not None:
        parts += ["## M and K", *_sweep_parts(tuning.sweep, plan.policy)]
    return "\n\n".join(parts) + "\n"


def screen(tuning: Tuning) -> str:
    """Return what a terminal shows: the outcome and the parameters."""
    return f"{outcome_in_words(tuning.held_out)}\n\n{_parameter_table(tuning)}"


def outcome_in_words(held_out: HeldOut) -> str:
    """Say what tuning brought on the held-out traces."""
    texts = [f"{JCT[name]} {change_in_words(one)}" for name, one in held_out.overall.items()]
    text = f"Tuned against default on held-out traces: {', '.join(texts)}."
    if any(one.low is None for one in held_out.overall.values()):
        return text + " One draw has no interval."
    if all(_open(one) for one in held_out.overall.values()):
        return text + " No difference beyond noise."
    return text


def _open(one: Interval) -> bool:
    return one.low is not None and one.high is not None and one.low <= 0 <= one.high


def change_in_words(one: Interval) -> str:
    """Return a change with its interval: ``-3.1 % [-5.0 %, -1.2 %]``."""
    if one.low is None or one.high is None:
        return percent(one.mean)
    return f"{percent(one.mean)} [{percent(one.low)}, {percent(one.high)}]"


def traces_in_words(sources: Sequence[Source], plan: Plan) -> str:
    """Name traces in one line."""
    return "; ".join(f"{name}: {text}" for name, text in _traces(sources, plan))


def _traces(sources: Sequence[Source], plan: Plan) -> list[tuple[str, str]]:
    found: dict[str, list[Cell]] = {}
    for source in sources:
        cell = Cell(source, plan.policy, plan.profile, Params())
        found.setdefault(source.workload, []).append(cell)
    return [(name, trace_in_words(cells)) for name, cells in found.items()]


def _loss(value: float | None) -> str:
    return "none" if value is None else f"{value:+.4f}"


def _held_out_parts(tuning: Tuning) -> list[str]:
    held_out = tuning.held_out
    rows = [[JCT[name], change_in_words(one)] for name, one in held_out.overall.items()]
    losses = ", ".join(f"{arm} {_loss(value)}" for arm, value in held_out.loss.items())
    return [
        "## On the held-out traces",
        f"{outcome_in_words(held_out)} Loss: {losses}.",
        markdown_table(["", "tuned against default"], rows),
        _OVERALL,
        "### By workload",
        _workload_table(held_out),
        _WORKLOADS,
        "### Time a decision",
        _time_table(held_out.rows),
        _TIMES,
    ]


def _workload_table(held_out: HeldOut) -> str:
    best = {(one.workload, one.metric, one.policy): one for one in held_out.against_best if one.point is None}
    own = {(one.workload, one.metric): one for one in held_out.against_default if _is_tuned(one)}
    rows = []
    for (workload, metric), against in own.items():
        default, tuned = (best[workload, metric, arm] for arm in (DEFAULT, TUNED))
        rival = "" if default.change is None else default.change.best
        value = "-" if not rival else f"`{rival}` {number(best[workload, metric, rival].value)}"
        cells = [_changed(one) for one in (default, tuned)]
        last = "" if against.change is None else with_interval(against.change.ratio, against.change)
        rows.append([f"`{workload}`", f"{JCT[metric]}, s", value, *cells, last])
    return markdown_table(["workload", "", "best baseline", DEFAULT, TUNED, "tuned against default"], rows)


def _is_tuned(one: Summary) -> bool:
    return one.point is None and one.policy == TUNED


def _changed(one: Summary) -> str:
    value = number(one.value)
    return value if one.change is None else f"{value}<br>{with_interval(one.change.ratio, one.change)}"


def _time_table(rows: Sequence[Row]) -> str:
    shown = []
    for arm in (DEFAULT, TUNED):
        own = [row.result.metrics for row in rows if row.arm == arm]
        shown.append([arm, *(number(fmean(one[name] for one in own)) for name in DECISION)])
    return markdown_table(["", "mean, ms", "p99, ms"], shown)


def _parameter_parts(tuning: Tuning) -> list[str]:
    complete = len(tuning.found.of(State.COMPLETE))
    explained = _TOO_FEW if tuning.found.importance is None else _IMPORTANCE.format(complete=complete)
    return ["## Parameters", _parameter_table(tuning), explained]


def _parameter_table(tuning: Tuning) -> str:
    space, importance = tuning.plan.space, tuning.found.importance
    names = list(space)
    before, after = values_of(tuning.plan.base, names), values_of(tuning.best.params, names)
    heads = ["parameter", "range", DEFAULT, TUNED]
    rows = [[f"`{n}`", in_words(n, space[n]), scalar(before[n]), scalar(after[n])] for n in names]
    if importance is not None:
        heads.append("importance")
        rows = [[*row, f"{importance.get(n, 0.0):.2f}"] for n, row in zip(names, rows, strict=True)]
    return markdown_table(heads, rows)


def _sweep_parts(sweep: Sweep, policy: str) -> list[str]:
    parts = [_SWEEP]
    heads = ["setting", "mean JCT, s", "change", "p99 JCT, s", "change", "decision mean, ms", "p99, ms"]
    for name in dict.fromkeys(one.policy for one in sweep.played):
        rows = []
        for one in (own for own in sweep.played if own.policy == name):
            changes = ["" if one.setting == sweep.base else change_in_words(c) for c in one.changes.values()]
            mean, p99 = changes or ("", "")
            times = [number(one.decision_ms_mean), number(one.decision_ms_p99)]
            rows.append([str(one.setting), number(one.mean_jct_s), mean, number(one.p99_jct_s), p99, *times])
        parts += [f"### `{name}`", markdown_table(heads, rows)]
    parts.append(_TIMES)
    if sweep.gaps:
        explained = _GAP.format(events=sweep.events)
        heads = ["policy", "setting", "proved", "exact", "mean gap", "p95", "mean gap, no cap", "p95"]
        rows = [
            [f"`{one.policy}`", str(one.setting), *_gaps(one.capped), *_gaps(one.free)[2:]]
            for one in sweep.gaps
        ]
        parts += ["### Distance to the optimum of an event", markdown_table(heads, rows)]
        parts.append(explained + ("" if policy in SCORED else _NOT_SCORE.format(policy=policy)))
    if sweep.failures:
        parts += ["### Failed", "They count in no table.", "\n".join(f"- {one}" for one in sweep.failures)]
    return parts


def _gaps(one: Distribution) -> list[str]:
    numbers = ["-" if value is None else percent(value).removeprefix("+") for value in (one.mean, one.p95)]
    return [str(one.count), str(one.exact), *numbers]
