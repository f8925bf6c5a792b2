"""A whole trace: bounds below, the best schedule known, the policies between, and where TOPAS loses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter

from compare.cell import Cell, Result, Source, source_content, source_in_words, trace_of
from topas.decision import Decision
from topas.event import Event, Params
from topas.files import whole_file
from topas.formats import log_line
from topas.policies import baseline_names
from topas.profile import Profile
from topas.sim import simulate

EXACT = "topas-exact"
"""The policy that takes the optimum of every event."""

PAPER = "topas-paper"
"""The heuristic for the same score: the paper's Algorithm 1."""


def usual_policies() -> tuple[str, ...]:
    """Return the policies that stand beside a trace's bounds, the exact one first: it takes longest."""
    return (EXACT, PAPER, "topas", *baseline_names(), "downstream-gate")


@dataclass(frozen=True, slots=True)
class BoundValue:
    """One lower bound on the mean JCT that any schedule of the trace can have."""

    name: str
    mean_jct_s: float
    status: str
    solve_s: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """All bounds of a trace; ``best`` is the highest, ``refused`` says which do not apply, and why."""

    values: tuple[BoundValue, ...]
    best: BoundValue
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that was played: its JCT and how it was found."""

    mean_jct_s: float
    p99_jct_s: float
    found: str


@dataclass(frozen=True, slots=True)
class BoundCase:
    """Bounds to prove."""

    kind: ClassVar[TypeAdapter[Bounds]] = TypeAdapter(Bounds)
    source: Source
    profile: Profile
    time_limit_s: float

    def content(self) -> dict[str, Any]:
        """Return all that the answer depends on."""
        return {
            "trace": source_content(self.source),
            "profile": self.profile.model_dump(mode="json"),
            "time_limit_s": self.time_limit_s,
        }

    def answer(self) -> Bounds:
        """Prove them."""
        from oracle.trace import lower_bounds  # noqa: PLC0415  needs the solvers' extra

        found = lower_bounds(trace_of(self.source), self.profile, time_limit_s=self.time_limit_s)

        def value(bound: Any) -> BoundValue:  # noqa: ANN401  the oracle's own type
            return BoundValue(bound.name, bound.mean_jct_s, str(bound.status), bound.solve_s)

        refused = tuple((name, reason) for name, reason in found.refused)
        return Bounds(tuple(value(bound) for bound in found.bounds), value(found.best), refused)

    def __str__(self) -> str:
        """One line for messages."""
        return f"{source_in_words(self.source)}, bounds"


@dataclass(frozen=True, slots=True)
class ImproveCase:
    """A good schedule to look for, for so many seconds."""

    kind: ClassVar[TypeAdapter[Schedule]] = TypeAdapter(Schedule)
    source: Source
    profile: Profile
    params: Params
    seconds: float
    seed: int

    def content(self) -> dict[str, Any]:
        """Return all that the answer depends on, but for the speed of the machine."""
        return {
            "trace": source_content(self.source),
            "profile": self.profile.model_dump(mode="json"),
            "params": asdict(self.params),
            "seconds": self.seconds,
            "seed": self.seed,
        }

    def answer(self) -> Schedule:
        """Look for it."""
        from oracle.improve import improve  # noqa: PLC0415  needs the solvers' extra

        trace = trace_of(self.source)
        found = improve(trace, self.profile, seconds=self.seconds, seed=self.seed, params=self.params)
        return Schedule(found.mean_jct_s, float(found.result.metrics["p99_jct_s"]), found.found_by)

    def __str__(self) -> str:
        """One line for messages."""
        return f"{source_in_words(self.source)}, improve"


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy on the trace; ``over_bound`` and ``over_best`` are its mean JCT over these, minus 1."""

    policy: str
    mean_jct_s: float
    p99_jct_s: float
    over_bound: float | None
    over_best: float | None


@dataclass(frozen=True, slots=True)
class Split:
    """Where the distance of a policy to the bound comes from, in seconds of mean JCT; the parts add up.

    ``search_s``: what the policy loses to the optimum of every event; negative where the worse decisions
    happen to give the better schedule. ``score_s``: what these optima lose to the best schedule known, for
    the score sees one event. ``unexplained_s``: the best schedule known against the bound.
    """

    policy: str
    search_s: float
    score_s: float
    unexplained_s: float

    @property
    def total_s(self) -> float:
        """The whole distance."""
        return self.search_s + self.score_s + self.unexplained_s


@dataclass(frozen=True, slots=True)
class WholeTrace:
    """What a trace came to; parts that failed or were not asked for are None or missing."""

    label: str
    tasks: int
    bounds: Bounds | None
    best: Schedule | None
    rows: tuple[PolicyRow, ...]
    split: Split | None

    def over_bound(self, mean_jct_s: float) -> float | None:
        """Return a mean JCT over the best bound, minus 1; None without a positive bound."""
        return _over(mean_jct_s, self.bounds.best.mean_jct_s if self.bounds else None)


def whole_trace(
    source: Source, policy: str, bounds: Bounds | None, improved: Schedule | None, runs: Mapping[str, Result]
) -> WholeTrace:
    """Put a trace's results together; ``policy`` is the one whose distance is split up."""
    means = {name: run.metrics["mean_jct_s"] for name, run in runs.items()}
    known = [] if improved is None else [improved]
    known += [Schedule(means[name], run.metrics["p99_jct_s"], name) for name, run in runs.items()]
    best = min(known, key=lambda one: one.mean_jct_s, default=None)
    bound_s = None if bounds is None else bounds.best.mean_jct_s
    best_s = None if best is None else best.mean_jct_s
    rows = tuple(
        PolicyRow(
            name,
            means[name],
            run.metrics["p99_jct_s"],
            _over(means[name], bound_s),
            _over(means[name], best_s),
        )
        for name, run in runs.items()
    )
    split = None
    if bound_s is not None and best_s is not None and {policy, EXACT} <= means.keys():
        split = Split(policy, means[policy] - means[EXACT], means[EXACT] - best_s, best_s - bound_s)
    return WholeTrace(source_in_words(source), source.tasks, bounds, best, rows, split)


def _over(value_s: float, base_s: float | None) -> float | None:
    return value_s / base_s - 1 if base_s else None


@dataclass(frozen=True, slots=True)
class TraceCase:
    """All that is to be found out about a trace."""

    source: Source
    runs: tuple[Cell, ...]
    bound: BoundCase
    improve: ImproveCase | None

    def items(self) -> tuple[Cell | BoundCase | ImproveCase, ...]:
        """Return its items, the longest first: topas-exact solves all events one after the other."""
        more = () if self.improve is None else (self.improve,)
        return (*sorted(self.runs, key=lambda run: run.policy != EXACT), *more, self.bound)

    def result(self, results: Mapping[Any, Any], policy: str) -> WholeTrace:
        """Put together what was found; ``policy`` is the one whose distance is split up."""
        runs = {cell.policy: results[cell] for cell in self.runs if cell in results}
        return whole_trace(self.source, policy, results.get(self.bound), results.get(self.improve), runs)


def record(cell: Cell, path: Path) -> Path:
    """Run a cell and write its event log to ``path``."""
    with whole_file(path) as stream:

        def note(event: Event, decision: Decision) -> None:
            stream.write(log_line(event, decision) + "\n")

        simulate(trace_of(cell.source), cell.policy, cell.profile, params=cell.params, record=note)
    return path


def recorded(_: Cell, path: Path) -> Path | None:
    """Return the event log of a cell if it is there: it was written whole, under the cell's own key."""
    return path if path.is_file() else None
