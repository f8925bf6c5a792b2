"""What no schedule of a trace can beat, and the best schedule known: items to find out beside the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pydantic import TypeAdapter

from compare.source import Source, trace_of
from compare.study import Metrics, Run
from topas.event import Params
from topas.profile import Profile


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
class KnownSchedule:
    """A schedule that was played: its JCT in seconds and how it was found."""

    found: str
    mean_jct_s: float
    p99_jct_s: float
    max_jct_s: float

    @classmethod
    def of(cls, found: str, metrics: Metrics) -> KnownSchedule:
        """Return the schedule that some run played."""
        return cls(found, metrics.mean_jct_s, metrics.p99_jct_s, metrics.max_jct_s)


@dataclass(frozen=True, slots=True)
class BoundCase:
    """Bounds to prove."""

    kept: ClassVar[str] = "traces"
    kind: ClassVar[TypeAdapter[Any]] = TypeAdapter(Bounds)
    source: Source
    profile: Profile
    time_limit_s: float

    def content(self) -> dict[str, Any]:
        """Return all that the answer depends on."""
        return {
            "trace": self.source.content(),
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
        return f"{self.source}, bounds"


@dataclass(frozen=True, slots=True)
class ImproveCase:
    """A good schedule to look for, for so many seconds."""

    kept: ClassVar[str] = "traces"
    kind: ClassVar[TypeAdapter[Any]] = TypeAdapter(KnownSchedule)
    source: Source
    profile: Profile
    params: Params
    seconds: float
    seed: int

    def content(self) -> dict[str, Any]:
        """Return all that the answer depends on, but for the speed of the machine."""
        return {
            "trace": self.source.content(),
            "profile": self.profile.model_dump(mode="json"),
            "params": asdict(self.params),
            "seconds": self.seconds,
            "seed": self.seed,
        }

    def answer(self) -> KnownSchedule:
        """Look for it."""
        from oracle.improve import improve  # noqa: PLC0415  needs the solvers' extra

        trace = trace_of(self.source)
        found = improve(trace, self.profile, seconds=self.seconds, seed=self.seed, params=self.params)
        metrics = found.result.metrics
        return KnownSchedule(
            found.found_by, found.mean_jct_s, float(metrics["p99_jct_s"]), float(metrics["max_jct_s"])
        )

    def __str__(self) -> str:
        """One line for messages."""
        return f"{self.source}, improve"


@dataclass(frozen=True, slots=True)
class Bounded:
    """A trace with all that is to be found out about it; ``improve`` is None if no search is made."""

    runs: tuple[Run, ...]
    bound: BoundCase
    improve: ImproveCase | None

    @property
    def source(self) -> Source:
        """The trace."""
        return self.bound.source

    @property
    def items(self) -> tuple[Run | BoundCase | ImproveCase, ...]:
        """All items."""
        return (*self.runs, *((self.improve,) if self.improve else ()), self.bound)

    def played(self, answers: Mapping[Any, Any]) -> list[KnownSchedule]:
        """Return the schedules of the policies that finished."""
        return [KnownSchedule.of(run.name, answers[run].metrics) for run in self.runs if run in answers]

    def known(self, answers: Mapping[Any, Any]) -> list[KnownSchedule]:
        """Return all schedules that were found: that of the search, then those of the policies."""
        found = [answers[self.improve]] if self.improve in answers else []
        return [*found, *self.played(answers)]
