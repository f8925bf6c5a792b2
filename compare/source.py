"""Where a trace comes from: a generator, a fixed workload or a file, by all that it depends on."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from compare.cases import AS_IT_IS, CASES, tasks_of
from topas.errors import InputError
from topas.files import read_file
from topas.profile import Profile
from topas.trace import Trace
from topas.trace.format import read_trace
from traces.load import check_load, one_prefix_rate_per_s
from traces.workloads import DEFAULT_OPTIONS, FIXED, WorkloadOptions, generate


@dataclass(frozen=True, slots=True)
class Source:
    """A trace, the same for every policy.

    ``workload`` names a generator, or is the path of a trace file, whose digest ``sha256`` is. ``load`` is
    kept where the rate was asked for as a share of the one-prefix-at-a-time rate. A fixed workload has
    neither rate nor seed; a file neither, if its own arrivals count. ``case`` names what is changed of it
    (:data:`compare.cases.CASES`).
    """

    workload: str
    tasks: int
    seed: int | None = None
    rate_per_s: float | None = None
    load: float | None = None
    options: WorkloadOptions = DEFAULT_OPTIONS
    case: str = AS_IT_IS
    sha256: str | None = None

    def trace(self) -> Trace:
        """Return the trace.

        Raises
        ------
        InputError
            if a file is no longer the one that was planned with, or a number is out of range.
        """
        if self.rate_per_s is None or self.seed is None:
            return self._given() if self.sha256 else _fixed(self.workload, self.options)
        if self.case == AS_IT_IS and not self.sha256:
            return _drawn(self, self.rate_per_s)
        case = CASES[self.case]
        return case.arrive(case.change(self._unit(), self.seed), self.rate_per_s, self.seed)

    def at_load(self, load: float, profile: Profile) -> tuple[Source, Profile]:
        """Return the source at a load, and the engine that its case gives it.

        The load is a share of the one-prefix-at-a-time rate of this very draw on that engine.

        Raises
        ------
        InputError
            if the load is not positive, or the trace has no such rate.
        """
        rate, engine = _unit_rate(replace(self, rate_per_s=None, load=None), profile)
        return replace(self, rate_per_s=check_load(load) * rate, load=load), engine

    def content(self) -> dict[str, Any]:
        """Return all that the trace depends on, as a JSON object."""
        return asdict(self)

    def row(self) -> dict[str, object]:
        """Return the columns of a table that tell sources apart."""
        return {
            "workload": self.workload,
            "case": self.case,
            "prefix_tokens": self.options.prefix_tokens,
            "output_sigma": self.options.output_sigma,
            "load": self.load,
            "rate_per_s": self.rate_per_s,
            "seed": self.seed,
            "tasks": self.tasks,
        }

    def _given(self) -> Trace:
        if hashlib.sha256(read_file(self.workload)).hexdigest() != self.sha256:
            raise InputError("the file changed since it was planned with", source=self.workload)
        return read_trace(self.workload)

    def _unit(self) -> Trace:
        return self._given() if self.sha256 else _drawn(self, 1.0)

    def __str__(self) -> str:
        """One line for messages: ``dag-4, load 0.5, seed 1``."""
        place = "" if self.rate_per_s is None else f"{self.rate_per_s:g} tasks/s"
        parts = [self.workload, place if self.load is None else f"load {self.load:g}"]
        parts += [f"{name} {value:g}" for name in SHOWN if (value := getattr(self.options, name)) is not None]
        parts += ["" if self.seed is None else f"seed {self.seed}", self.case * (self.case != AS_IT_IS)]
        return ", ".join(part for part in parts if part)


SHOWN = ("prefix_tokens", "output_sigma")
"""Options that studies vary, and that messages therefore name."""


@dataclass(frozen=True, slots=True)
class Points:
    """Operating points and draws of generated workloads.

    ``at`` are arrival rates in tasks a second or, if ``loads``, shares of the one-prefix-at-a-time rate.
    """

    at: tuple[float, ...]
    loads: bool
    seeds: tuple[int, ...]
    tasks: int
    options: WorkloadOptions = DEFAULT_OPTIONS


def sources_of(workload: str, points: Points, profile: Profile) -> list[Source]:
    """Return the traces of a named workload; a load is turned into a rate with each seed's own lengths.

    Raises
    ------
    InputError
        if a number is out of range or an option has no meaning for the workload.
    """
    if workload in FIXED:
        return [Source(workload, len(_fixed(workload, points.options).tasks))]
    found = []
    for at in points.at:
        for seed in points.seeds:
            source = Source(workload, points.tasks, seed, options=points.options)
            found.append(
                source.at_load(at, profile)[0] if points.loads else replace(source, rate_per_s=float(at))
            )
    return found


def trace_file(path: str) -> Source:
    """Return the source of a file, which is read once, so that a wrong one is refused before anything runs.

    Raises
    ------
    InputError
        if it cannot be read or is no valid trace.
    """
    digest = hashlib.sha256(read_file(path)).hexdigest()
    return Source(path, len(read_trace(path).tasks), sha256=digest)


@lru_cache(maxsize=4)
def trace_of(source: Source) -> Trace:
    """Return a source's trace; the runs of one source follow each other, so a few are kept."""
    return source.trace()


@lru_cache(maxsize=1024)
def _unit_rate(source: Source, profile: Profile) -> tuple[float, Profile]:
    """Return the rate of load 1, and the engine."""
    case, seed = CASES[source.case], source.seed or 0
    trace = case.change(source._unit(), seed)  # noqa: SLF001  of its own class
    engine = case.engine(profile, trace)
    return one_prefix_rate_per_s(trace, engine), engine


def _drawn(source: Source, rate_per_s: float) -> Trace:
    return tasks_of(source.workload, rate_per_s, source.tasks, source.seed or 0, source.options)


def _fixed(workload: str, options: WorkloadOptions) -> Trace:
    return generate(workload, rate_per_s=1.0, tasks=1, seed=0, options=options)
