"""The page on gaps: Markdown tables of single events and of whole traces."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from compare.gap import Study
from compare.gap_stats import EventSummary, Judged, Tally
from compare.report import markdown_table, number, percent
from compare.whole import Split, WholeTrace

GROUPINGS = {"group": "By source", "waiting": "By waiting requests", "search": "By how agents are searched"}
"""The ways in which events are grouped, and their headings."""

_GAPS = (
    "The gap of a decision is (optimum - score) / |optimum|. Exact: the same score to the nanosecond. Only "
    "events whose optimum is proved count under exact, within and worse, and in the numbers behind them."
)
_BOUNDED = "Here the time limit came before the proof. The gaps are upper limits: (bound - score) / |bound|."
_DIFFERS = (
    "Of the {behind} proved events with a gap. The last column sums how much more the term brings to the "
    "score in the optimum; the terms add up to the summed gap."
)
_TIED = "{tied} of the {exact} exact events have another decision of equal score."
_SAMPLED = "Of `{name}`, {judged} of {total} events were judged, evenly spaced (seed {seed})."
_WHOLE = (
    "Mean and p99 JCT in seconds. No schedule, not even one that knows the whole trace ahead, has a mean JCT "
    "below the best bound; the optimum lies between it and the best known schedule."
)
_SPLIT = (
    "Search: what `{policy}` loses to the optimum of every event (`topas-exact`). Score: what these optima "
    "lose to the best known schedule, as each sees one event only. Unexplained: the best known schedule "
    "against the bound, of which nobody knows how much is the bound's. A negative part is no error of "
    "arithmetic: worse decisions by the score can lead to a better schedule."
)
_NUMBERS = ("mean", "median", "p95", "p99", "max")
_PROVED = ("events", "proved", "exact", "within 1 %", "worse", *_NUMBERS)
_APART = ("bounded", "unknown", "infeasible")


def markdown(study: Study, command: str, keep: int) -> str:
    """Return the page: what was done, per-event gaps with the ``keep`` largest ones, whole traces."""
    settings = study.settings
    params = settings.params
    constants = f"beta {params.beta}, rho {params.rho}, M {params.M}, K {params.K}"
    limit = f"at most {settings.time_limit_s:g} s an event"
    said = [
        f"topas {version('topas')}; profile `{settings.profile.name}`; {constants}; {limit}.",
        "The command that makes this again:\n",
        f"```sh\n{command}\n```",
    ]
    parts = ["# Distance to the optimum", "\n".join(said)]
    if study.failures:
        lines = [f"- {item}: {reason}" for item, reason in study.failures.items()]
        parts += ["## Failed", "They count in no table.", "\n".join(lines)]
    return "\n\n".join([*parts, summary_text(study, keep)]) + "\n"


def summary_text(study: Study, keep: int) -> str:
    """Return the tables of the page."""
    parts = []
    if study.judged:
        parts += ["## Single events", *_event_parts(EventSummary.of(study.judged, keep), study)]
    if study.traces:
        parts += ["## Whole traces", _WHOLE]
    for trace in study.traces:
        parts += [f"### {trace.label}", *_trace_parts(trace)]
    return "\n\n".join(parts)


def _event_parts(summary: EventSummary, study: Study) -> list[str]:
    lines = [_GAPS]
    for name, (judged, total) in study.sampled.items():
        lines.append(_SAMPLED.format(name=name, judged=judged, total=total, seed=study.settings.seed))
    parts = ["\n".join(lines), tally_table("", (summary.all,))]
    for key, heading in GROUPINGS.items():
        if len(summary.by[key]) > 1:
            parts += [f"### {heading}", tally_table(key, summary.by[key])]
    if summary.all.bounded.count:
        heads = ["", "bounded", "at most 0", "at most 1 %", "more", *_NUMBERS]
        rows = [[one.name, *_numbers(one, bounded=True)] for one in (summary.all, *summary.by["group"])]
        parts += ["### Without proof", _BOUNDED, markdown_table(heads, rows)]
    proved = summary.all.proved
    if summary.tied:
        parts.append(_TIED.format(tied=summary.tied, exact=proved.exact))
    if proved.exact < proved.count:
        behind = proved.count - proved.exact
        parts += ["### What differs", _DIFFERS.format(behind=behind), _difference_table(summary, behind)]
    if summary.worst:
        parts += ["### Largest gaps", _worst_table(summary.worst)]
    return parts


def tally_table(key: str, some: Sequence[Tally]) -> str:
    """Return tallies as a Markdown table, events without a proof at its right."""
    rows = []
    for one in some:
        apart = (str(count) for count in (one.bounded.count, one.unknown, one.infeasible))
        rows.append([one.name, str(one.events), *_numbers(one, bounded=False), *apart])
    return markdown_table([key, *_PROVED, *_APART], rows)


def _numbers(tally: Tally, *, bounded: bool) -> list[str]:
    own = tally.bounded if bounded else tally.proved
    counts = [str(count) for count in (own.count, own.exact, own.near, own.worse)]
    return [*counts, *(_share(x) for x in (own.mean, own.median, own.p95, own.p99, own.max))]


def _difference_table(summary: EventSummary, behind: int) -> str:
    rows = []
    for one in summary.differences:
        net = "" if one.net_s is None else f"{one.net_s:+.6f}"
        rows.append([one.name, str(one.events), _share(one.events / behind), net])
    return markdown_table(["difference", "events", "share", "optimum - decision, s"], rows)


def _worst_table(some: Sequence[Judged]) -> str:
    rows = []
    for rank, one in enumerate(some, start=1):
        verdict = one.verdict
        counts = (str(verdict.waiting), str(verdict.running), str(verdict.agents))
        scores = [f"{side.terms.score_s:.6f}" for side in (verdict.made, verdict.best) if side]
        rows.append([f"{rank:02d}", f"{one.file}:{one.index}", *counts, *scores, _share(verdict.gap)])
    heads = ["in `worst/`", "event", "waiting", "running", "agents", "score, s", "optimum, s", "gap"]
    return markdown_table(heads, rows)


def _share(fraction: float | None) -> str:
    """Return a fraction with three significant digits: ``0.0123 %``."""
    return "" if fraction is None else f"{100 * fraction:.3g} %"


def _trace_parts(trace: WholeTrace) -> list[str]:
    parts = []
    if trace.bounds is not None:
        rows = [[f"`{one.name}`", number(one.mean_jct_s), one.status] for one in trace.bounds.values]
        rows += [[f"`{name}`", "", reason] for name, reason in trace.bounds.refused]
        parts.append(markdown_table(["lower bound", "mean JCT", "status"], rows))
    parts.append(whole_table(trace))
    if trace.split is not None:
        parts += [_split_table(trace.split), _SPLIT.format(policy=trace.split.policy)]
    return parts


def whole_table(trace: WholeTrace) -> str:
    """Return a trace's table: the best bound, the best known schedule, every policy."""
    rows = []
    if trace.bounds is not None:
        bound = trace.bounds.best
        rows.append([f"best bound: `{bound.name}`", number(bound.mean_jct_s), "", "", ""])
    if trace.best is not None:
        over = _percent(trace.over_bound(trace.best.mean_jct_s))
        jct = (number(trace.best.mean_jct_s), number(trace.best.p99_jct_s))
        rows.append([f"best known: `{trace.best.found}`", *jct, over, ""])
    for row in trace.rows:
        jct = (number(row.mean_jct_s), number(row.p99_jct_s))
        rows.append([f"`{row.policy}`", *jct, _percent(row.over_bound), _percent(row.over_best)])
    return markdown_table(["", "mean JCT", "p99 JCT", "to the bound", "to the best known"], rows)


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else percent(fraction)


def _split_table(split: Split) -> str:
    parts = {"search": split.search_s, "score": split.score_s, "unexplained": split.unexplained_s}
    parts[f"`{split.policy}` - bound"] = split.total_s
    rows = [
        [name, f"{value:+.3f}", percent(value / split.total_s) if split.total_s > 0 else ""]
        for name, value in parts.items()
    ]
    return markdown_table(["mean JCT lost to", "s", "share"], rows)
