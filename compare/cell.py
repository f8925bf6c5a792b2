"""A cell: one policy on one trace on one engine, and the key under which its result is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import oracle
import topas
import traces
from topas.errors import InputError
from topas.event import Params
from topas.files import read_file
from topas.profile import Profile
from topas.trace import Trace
from topas.trace.format import read_trace
from traces.load import rate_for_load
from traces.workloads import FIXED, WorkloadOptions, generate

COUNTS = ("peak_batch", "prefix_loads", "preemptions", "recomputed_tokens", "decisions")
"""Metrics that are whole numbers."""

TIMINGS = ("decision_ms_mean", "decision_ms_p99")
"""Metrics that a wall clock measured: they differ from run to run."""

METRICS = (
    "mean_jct_s",
    "p50_jct_s",
    "p99_jct_s",
    "makespan_s",
    "first_task_s",
    "requests_per_s",
    "mean_batch",
    *COUNTS,
    *TIMINGS,
)
"""What the result of a cell holds, in the order of the columns."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A trace that a generator makes; the same for every policy.

    ``load`` is kept where the rate was asked for as a share of the one-prefix-at-a-time rate.
    """

    workload: str
    rate_per_s: float
    tasks: int
    seed: int
    options: WorkloadOptions
    load: float | None = None

    def trace(self) -> Trace:
        """Return the trace."""
        return generate(
            self.workload, rate_per_s=self.rate_per_s, tasks=self.tasks, seed=self.seed, options=self.options
        )


@dataclass(frozen=True, slots=True)
class Fixed:
    """A workload that is one trace: neither rate nor seed changes it."""

    workload: str
    tasks: int
    rate_per_s: ClassVar[float | None] = None
    load: ClassVar[float | None] = None
    seed: ClassVar[int | None] = None

    @classmethod
    def of(cls, workload: str, options: WorkloadOptions) -> Fixed:
        """Count its tasks.

        Raises
        ------
        InputError
            if an option is given: it has none.
        """
        return cls(workload, len(_fixed(workload, options).tasks))

    def trace(self) -> Trace:
        """Return the trace."""
        return _fixed(self.workload, WorkloadOptions())


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that stands in a file and is used as it is; ``workload`` is the file's path as given."""

    workload: str
    sha256: str
    tasks: int
    rate_per_s: ClassVar[float | None] = None
    load: ClassVar[float | None] = None
    seed: ClassVar[int | None] = None

    @classmethod
    def of(cls, path: str) -> TraceFile:
        """Read a file once, so that a wrong one is refused before anything runs.

        Raises
        ------
        InputError
            if it cannot be read or is no valid trace.
        """
        digest = hashlib.sha256(read_file(path)).hexdigest()
        return cls(path, digest, len(read_trace(path).tasks))

    def trace(self) -> Trace:
        """Return the trace.

        Raises
        ------
        InputError
            if the file is no longer the one that was planned with.
        """
        if hashlib.sha256(read_file(self.workload)).hexdigest() != self.sha256:
            raise InputError("the file changed while the comparison ran", source=self.workload)
        return read_trace(self.workload)


Source = Generated | Fixed | TraceFile


def _fixed(workload: str, options: WorkloadOptions) -> Trace:
    return generate(workload, rate_per_s=1.0, tasks=1, seed=0, options=options)


@lru_cache(maxsize=4)
def trace_of(source: Source) -> Trace:
    """Return a source's trace; the cells of one source follow each other, so a few are kept."""
    return source.trace()


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the simulator: everything that its result depends on."""

    source: Source
    policy: str
    profile: Profile
    params: Params

    def content(self) -> dict[str, Any]:
        """Return the cell as a JSON object."""
        return {
            "trace": source_content(self.source),
            "policy": self.policy,
            "profile": self.profile.model_dump(mode="json"),
            "params": asdict(self.params),
        }

    def key(self) -> str:
        """Return the SHA-256 over the canonical JSON of the cell and the code that runs it.

        Equal cells have equal keys in every process; any change of the code runs its cells anew.
        """
        return key_of("cell", self.content())

    def __str__(self) -> str:
        """One line for messages: ``dag-4, load 0.5, seed 1, lpm``."""
        return f"{source_in_words(self.source)}, {self.policy}"


@dataclass(frozen=True, slots=True)
class Result:
    """A finished cell: every metric of :data:`METRICS`."""

    cell: Cell
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Points:
    """Operating points and draws of generated workloads.

    ``at`` are arrival rates in tasks a second or, if ``loads``, shares of the one-prefix-at-a-time rate.
    """

    at: tuple[float, ...]
    loads: bool
    seeds: tuple[int, ...]
    tasks: int
    options: WorkloadOptions


def sources_of(workload: str, points: Points, profile: Profile) -> list[Source]:
    """Return the traces of a named workload; a load is turned into a rate with each seed's own lengths.

    Raises
    ------
    InputError
        if a number is out of range or an option has no meaning for the workload.
    """
    options, tasks = points.options, points.tasks
    if workload in FIXED:
        return [Fixed.of(workload, options)]
    if not points.loads:
        return [
            Generated(workload, rate, tasks, seed, options) for rate in points.at for seed in points.seeds
        ]
    return [
        Generated(
            workload, rate_for_load(workload, load, profile, tasks, seed, options), tasks, seed, options, load
        )
        for load in points.at
        for seed in points.seeds
    ]


def cells_of(
    sources: Iterable[Source], policies: Iterable[str], profile: Profile, params: Params
) -> tuple[Cell, ...]:
    """Return a cell a trace and policy, the policies of one trace next to each other."""
    policies = tuple(policies)
    return tuple(Cell(source, policy, profile, params) for source in sources for policy in policies)


def source_content(source: Source) -> dict[str, Any]:
    """Return a source as a JSON object."""
    return {"kind": type(source).__name__, **asdict(source)}


def source_in_words(source: Source) -> str:
    """Name a source: ``dag-4, load 0.5, seed 1``."""
    load, rate, seed = source.load, source.rate_per_s, source.seed
    place = f"load {load:g}" if load is not None else "" if rate is None else f"{rate:g} tasks/s"
    parts = (source.workload, place, "" if seed is None else f"seed {seed}")
    return ", ".join(part for part in parts if part)


def key_of(kind: str, content: Mapping[str, Any]) -> str:
    """Return the SHA-256 over the canonical JSON of an item and the code that does it."""
    text = canonical({kind: content, "version": version("topas"), "code": code_digest()})
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return the SHA-256 over the source and data files of the simulator, the traces and the solvers.

    The version alone would let a policy under development keep the results of its earlier form.
    """
    digest = hashlib.sha256()
    for package in (topas, traces, oracle):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*")):
            if path.suffix in {".py", ".json"} and "cli" not in path.parts:
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def canonical(value: object) -> str:
    """Return JSON text that is the same for equal values: keys sorted, no spaces, no NaN.

    Raises
    ------
    ValueError
        if a number is NaN or infinite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
