"""Gaps of many events: how they are distributed, where they are large and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

from compare.judge import Verdict
from oracle.result import Status
from topas.decision import Decision, Terms
from topas.sim.result import percentile
from topas.units import to_s

NEAR = 0.01
"""A gap up to this is counted apart from larger ones."""

WAITING_BELOW = (2, 5, 9, 17, 33, 65)
"""Where one range of waiting requests ends and the next begins."""

SIGNS = {"admit": 1, "move": -1, "redo": -1, "revoke": -1, "reuse": 1}
"""Terms of Eq. 13 and how they enter the score."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one event, with its place: the group it counts in, file, and index from 1."""

    group: str
    file: str
    index: int
    verdict: Verdict


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
    def of(cls, gaps: Sequence[float]) -> Distribution:
        """Summarise some gaps."""
        exact = sum(gap == 0 for gap in gaps)
        near = sum(0 < gap <= NEAR for gap in gaps)
        numbers: tuple[float | None, ...] = (None,) * 5
        if gaps:
            numbers = (fmean(gaps), *(percentile(gaps, q) for q in (50, 95, 99)), max(gaps))
        return cls(len(gaps), exact, near, len(gaps) - exact - near, *numbers)


@dataclass(frozen=True, slots=True)
class Tally:
    """Events of one kind. Only those with a proved optimum are in ``proved``.

    ``bounded`` are those where the solver found a decision but no proof: its gaps are upper limits.
    ``unknown`` and ``infeasible`` count the others; nothing is said of their gaps.
    """

    name: str
    events: int
    proved: Distribution
    bounded: Distribution
    unknown: int
    infeasible: int

    @classmethod
    def of(cls, name: str, judged: Iterable[Judged]) -> Tally:
        """Tally some events."""
        verdicts = [one.verdict for one in judged]
        proved = [gap for one in verdicts if (gap := one.gap) is not None]
        bounded = [gap for one in verdicts if (gap := one.gap_at_most) is not None]
        infeasible = sum(one.status == Status.INFEASIBLE for one in verdicts)
        unknown = len(verdicts) - len(proved) - len(bounded) - infeasible
        return cls(
            name, len(verdicts), Distribution.of(proved), Distribution.of(bounded), unknown, infeasible
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """In how many of the events with a proved gap something differs between the decision and the optimum.

    ``net_s`` is by how much the term, as it enters the score, is larger in the optimum, summed over all
    these events: the terms' sums add up to the summed gap. None for a set of agents or requests.
    """

    name: str
    events: int
    net_s: float | None


def tallies(
    judged: Iterable[Judged], name: Callable[[Judged], str], order: Callable[[Judged], int] = lambda _: 0
) -> tuple[Tally, ...]:
    """Tally events by a name, in the order of ``order``, then as they come."""
    found: dict[str, list[Judged]] = {}
    for one in sorted(judged, key=order):
        found.setdefault(name(one), []).append(one)
    return tuple(Tally.of(key, members) for key, members in found.items())


def waiting_range(judged: Judged) -> str:
    """Return the range that an event's number of waiting requests lies in: ``5-8``."""
    low = 0
    for end in WAITING_BELOW:
        if judged.verdict.waiting < end:
            return f"{low}-{end - 1}"
        low = end
    return f"{low} or more"


def search_kind(judged: Judged) -> str:
    """Return how the search covers the agents of an event (at most M: all sets)."""
    return "enumerated" if judged.verdict.enumerated else "grown"


def differences(judged: Iterable[Judged]) -> tuple[Difference, ...]:
    """Return what differs where a decision is proved worse than the optimum."""
    behind = [one.verdict for one in judged if one.verdict.gap]
    pairs = [(one.made, one.best) for one in behind if one.best is not None]
    found = []
    for field in fields(Terms):
        name = field.name.removesuffix("_ns")
        changes = [getattr(best.terms, field.name) - getattr(made.terms, field.name) for made, best in pairs]
        net_s = to_s(SIGNS[name] * sum(changes))
        found.append(Difference(f"term {name}", sum(change != 0 for change in changes), net_s))
    for k, name in enumerate(CHOSEN):
        found.append(Difference(name, sum(chosen(made)[k] != chosen(best)[k] for made, best in pairs), None))
    found.append(Difference(BESIDE_KEPT, sum(one.beside_kept for one in behind), None))
    return tuple(found)


BESIDE_KEPT = "optimum preempts at a prefix that stays"
CHOSEN = ("resident prefixes", "admissions", "preemptions")


def chosen(decision: Decision | None) -> tuple[frozenset[str], ...]:
    """Return what a decision consists of, as sets in the order of :data:`CHOSEN`; empty ones of none."""
    if decision is None:
        return (frozenset(),) * len(CHOSEN)
    return frozenset(decision.resident), frozenset(decision.admit), frozenset(decision.preempt)


def worst(judged: Iterable[Judged], count: int) -> tuple[Judged, ...]:
    """Return the events of the largest proved gaps, the largest first; equal ones in order of place."""
    behind = [one for one in judged if one.verdict.gap]
    return tuple(sorted(behind, key=lambda one: -(one.verdict.gap or 0.0))[:count])


@dataclass(frozen=True, slots=True)
class EventSummary:
    """Events tallied together and by group, waiting requests and search; what differs; the worst ones.

    ``tied`` events reach the optimum's score by another decision.
    """

    all: Tally
    by: Mapping[str, tuple[Tally, ...]]
    differences: tuple[Difference, ...]
    tied: int
    worst: tuple[Judged, ...]

    @classmethod
    def of(cls, judged: Sequence[Judged], keep: int) -> EventSummary:
        """Summarise verdicts, naming the ``keep`` events of the largest gaps."""
        by = {
            "group": tallies(judged, lambda one: one.group),
            "waiting": tallies(judged, waiting_range, lambda one: one.verdict.waiting),
            "search": tallies(judged, search_kind, lambda one: not one.verdict.enumerated),
        }
        exact = [one.verdict for one in judged if one.verdict.gap == 0]
        tied = sum(chosen(one.made) != chosen(one.best) for one in exact)
        return cls(Tally.of("all events", judged), by, differences(judged), tied, worst(judged, keep))
