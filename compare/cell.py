"""Names under which the gap, tuning, evaluation and live studies still know sources and runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from compare.source import Points, Source, sources_of, trace_file, trace_of
from compare.store import canonical, code_digest
from compare.study import COUNTS, METRICS, TIMINGS
from compare.study import Run as Cell
from compare.study import runs_of as cells_of
from traces.workloads import WorkloadOptions

__all__ = [
    "COUNTS", "METRICS", "TIMINGS", "Cell", "Generated", "Points", "Result", "Source", "canonical",
    "cells_of",
    "code_digest", "key_of", "source_content", "source_in_words", "sources_of", "trace_file", "trace_of",
]  # fmt: skip


def Generated(  # noqa: N802, PLR0913  a constructor
    workload: str,
    rate_per_s: float,
    tasks: int,
    seed: int,
    options: WorkloadOptions,
    load: float | None = None,
) -> Source:
    """Return the source of a generated trace."""
    return Source(workload, tasks, seed, rate_per_s, load, options)


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run and its metrics."""

    cell: Cell
    metrics: Mapping[str, float]


def source_content(source: Source) -> dict[str, Any]:
    """Return a source as a JSON object."""
    return source.content()


def source_in_words(source: Source) -> str:
    """Name a source."""
    return str(source)


def key_of(kind: str, content: Mapping[str, Any]) -> str:
    """Return the SHA-256 over the canonical JSON of an item and the code that does it."""
    text = canonical({kind: content, "version": version("topas"), "code": code_digest()})
    return hashlib.sha256(text.encode()).hexdigest()
