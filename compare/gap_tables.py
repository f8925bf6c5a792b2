"""Gaps as tables: a row an event, tallies of gaps, what differs, and a whole trace beside its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pandas as pd

from compare.bound import Bounded, Bounds
from compare.judge import Verdict
from oracle.result import Status
from topas.decision import Decision, Terms
from topas.units import to_s

NEAR = 0.01
"""A gap up to this is counted apart from larger ones."""

WAITING_BELOW = (2, 5, 9, 17, 33, 65)
"""Where one range of waiting requests ends and the next begins."""

SIGNS = {"admit": 1, "move": -1, "redo": -1, "revoke": -1, "reuse": 1}
"""Terms of Eq. 13 and how they enter the score."""

TERMS = tuple(item.name.removesuffix("_ns") for item in fields(Terms))
CHOSEN = {"resident": "resident prefixes", "admit": "admissions", "preempt": "preemptions"}
"""What a decision consists of, and what the page calls it."""

EVENT_COLUMNS = (
    *("group", "file", "index", "time_s", "waiting", "running", "agents", "search", "status"),
    *("made_s", "best_s", "bound_s", "gap", "gap_at_most"),
    *(f"{side}_{term}_s" for side in ("made", "best") for term in TERMS),
    *(f"same_{part}" for part in CHOSEN),
    *("beside_kept", "solve_s"),
)


def events_frame(judged: Iterable[tuple[Mapping[str, object], Verdict]]) -> pd.DataFrame:
    """Return a row an event: the judged decision against the solver's; times and scores in seconds.

    ``search`` says how the search covers the agents: ``enumerated`` (at most M: all sets) or ``grown``.
    ``gap`` is NaN where the optimum is not proved, ``gap_at_most`` where it is or nothing bounds it.
    """
    table = pd.DataFrame([{**place, **_row(one)} for place, one in judged], columns=list(EVENT_COLUMNS))
    same = {f"same_{part}": "boolean" for part in CHOSEN}
    return table.astype({**{name: "float64" for name in table if name.endswith("_s")}, **same}).astype(
        {"gap": "float64", "gap_at_most": "float64", "beside_kept": "bool"}
    )


def _row(verdict: Verdict) -> dict[str, object]:
    made, best = verdict.made, verdict.best
    same = {f"same_{part}": None if best is None else _set(made, part) == _set(best, part) for part in CHOSEN}
    return {
        "time_s": verdict.time_s,
        "waiting": verdict.waiting,
        "running": verdict.running,
        "agents": verdict.agents,
        "search": "enumerated" if verdict.enumerated else "grown",
        "status": verdict.status.value,
        "made_s": made.terms.score_s,
        "best_s": None if best is None else best.terms.score_s,
        "bound_s": None if verdict.bound_ns is None else to_s(verdict.bound_ns),
        "gap": verdict.gap,
        "gap_at_most": verdict.gap_at_most,
        **_terms("made", made),
        **_terms("best", best),
        **same,
        "beside_kept": verdict.beside_kept,
        "solve_s": verdict.solve_s,
    }


def _set(decision: Decision, part: str) -> frozenset[str]:
    return frozenset(getattr(decision, part))


def _terms(side: str, decision: Decision | None) -> dict[str, float | None]:
    return {
        f"{side}_{term}_s": None if decision is None else to_s(getattr(decision.terms, f"{term}_ns"))
        for term in TERMS
    }


@dataclass(frozen=True, slots=True)
class Distribution:
    """Gaps of ``count`` events: exact ones (to the nanosecond), others within 1 %, and worse ones.

    The numbers are fractions, percentiles interpolated linearly; None of no events.
    """

    count: int
    exact: int
    near: int
    worse: int
    mean: float | None
    median: float | None
    p95: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, gaps: Sequence[float] | pd.Series[float]) -> Distribution:
        """Summarise some gaps."""
        own = pd.Series(gaps, dtype="float64").dropna()
        exact, near = int((own == 0).sum()), int(((own > 0) & (own <= NEAR)).sum())
        numbers: tuple[float | None, ...] = (None,) * 5
        if len(own):
            numbers = (own.mean(), *(own.quantile(q) for q in (0.5, 0.95, 0.99)), own.max())
        values = (None if value is None else float(value) for value in numbers)
        return cls(len(own), exact, near, len(own) - exact - near, *values)


def tally(name: str, events: pd.DataFrame) -> dict[str, Any]:
    """Tally events of one kind. Only those with a proved optimum are in ``proved``.

    ``bounded`` are those where the solver found a decision but no proof: its gaps are upper limits.
    ``unknown`` and ``infeasible`` count the others; nothing is said of their gaps.
    """
    proved, bounded = Distribution.of(events["gap"]), Distribution.of(events["gap_at_most"])
    infeasible = int((events["status"] == Status.INFEASIBLE.value).sum())
    unknown = len(events) - proved.count - bounded.count - infeasible
    counts = {"proved": asdict(proved), "bounded": asdict(bounded), "unknown": unknown}
    return {"name": name, "events": len(events), **counts, "infeasible": infeasible}


GROUPINGS: Mapping[str, Callable[[pd.DataFrame], pd.Series[str]]] = {
    "group": lambda events: events["group"],
    "waiting": lambda events: events.sort_values("waiting", kind="stable")["waiting"].map(waiting_range),
    "search": lambda events: events["search"].sort_values(kind="stable"),
}
"""The ways in which events are grouped, in the order in which each is shown."""


def tallies(events: pd.DataFrame, names: pd.Series[str]) -> list[dict[str, Any]]:
    """Tally events by the names that each of them has, in the order of these."""
    return [tally(name, events.loc[names.index[names == name]]) for name in dict.fromkeys(names)]


def waiting_range(waiting: int) -> str:
    """Return the range that a number of waiting requests lies in: ``5-8``."""
    low = 0
    for end in WAITING_BELOW:
        if waiting < end:
            return f"{low}-{end - 1}"
        low = end
    return f"{low} or more"


def differences(events: pd.DataFrame) -> list[dict[str, Any]]:
    """Return in how many of the events with a proved gap something differs between decision and optimum.

    ``net_s`` is by how much the term, as it enters the score, is larger in the optimum, summed over all
    these events: the terms' sums add up to the summed gap. None for a set of agents or requests.
    """
    behind = events[events["gap"] > 0]
    found: list[dict[str, Any]] = []
    for term in TERMS:
        changed = behind[f"best_{term}_s"] - behind[f"made_{term}_s"]
        net_s = float(SIGNS[term] * changed.sum())
        found.append({"name": f"term {term}", "events": int((changed != 0).sum()), "net_s": net_s})
    for part, name in CHOSEN.items():
        found.append({"name": name, "events": int((~behind[f"same_{part}"]).sum()), "net_s": None})
    beside = int(behind["beside_kept"].sum())
    return [*found, {"name": "optimum preempts at a prefix that stays", "events": beside, "net_s": None}]


def tied(events: pd.DataFrame) -> int:
    """Return how many events reach the optimum's score by another decision."""
    exact = events[events["gap"] == 0]
    return int((~exact[[f"same_{part}" for part in CHOSEN]].all(axis="columns")).sum())


def worst(events: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the events of the largest proved gaps, the largest first; equal ones in order of place."""
    return events[events["gap"] > 0].sort_values("gap", ascending=False, kind="stable").head(count)


def whole_trace(trace: Bounded, answers: Mapping[Any, Any], policy: str, exact: str) -> dict[str, Any]:
    """Return a trace beside its bounds: ``bounds``, ``best`` known schedule, ``rows`` of policies, ``split``.

    Parts that failed or were not asked for are None or missing. ``over_bound`` and ``over_best`` are mean
    JCTs over these, minus 1. The ``split`` says where the distance of ``policy`` to the bound comes from, in
    seconds of mean JCT, and adds up: ``search_s``, what it loses to the optimum of every event (negative
    where the worse decisions happen to give the better schedule); ``score_s``, what these optima lose to
    the best schedule known, for the score sees one event; ``unexplained_s``, the latter against the bound.
    """
    bounds: Bounds | None = answers.get(trace.bound)
    best = min(trace.known(answers), key=lambda one: one.mean_jct_s, default=None)
    bound_s = None if bounds is None else bounds.best.mean_jct_s
    best_s = None if best is None else best.mean_jct_s
    rows: list[dict[str, Any]] = [
        {
            "policy": one.found,
            "mean_jct_s": one.mean_jct_s,
            "p99_jct_s": one.p99_jct_s,
            "max_jct_s": one.max_jct_s,
            "over_bound": over(one.mean_jct_s, bound_s),
            "over_best": over(one.mean_jct_s, best_s),
        }
        for one in trace.played(answers)
    ]
    means = {row["policy"]: row["mean_jct_s"] for row in rows}
    split: dict[str, Any] | None = None
    if bound_s is not None and best_s is not None and {policy, exact} <= means.keys():
        parts = (means[policy] - means[exact], means[exact] - best_s, best_s - bound_s)
        seconds = dict(zip(("search_s", "score_s", "unexplained_s"), parts, strict=True))
        split = {"policy": policy, **seconds, "total_s": sum(parts)}
    return {
        "label": str(trace.source),
        "tasks": trace.source.tasks,
        "bounds": None if bounds is None else asdict(bounds),
        "best": None if best is None else {**asdict(best), "over_bound": over(best.mean_jct_s, bound_s)},
        "rows": rows,
        "split": split,
    }


def over(value_s: float, base_s: float | None) -> float | None:
    """Return a value over a base, minus 1; None without a positive base."""
    return value_s / base_s - 1 if base_s else None


def share(fraction: float | None) -> str:
    """Return a fraction with three significant digits: ``0.0123 %``."""
    return "" if fraction is None or pd.isna(fraction) else f"{100 * fraction:.3g} %"
