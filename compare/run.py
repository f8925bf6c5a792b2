"""Run cells in parallel; each result is a file of its own, so that an interrupted run goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from compare.cell import COUNTS, METRICS, Cell, Result, canonical, trace_of
from compare.pool import Work, folder_for, run_all
from topas.errors import SimulationError
from topas.files import whole_file
from topas.sim import simulate

FORMAT = "topas-cell/1"


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that did not finish, and why, in one line."""

    cell: Cell
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results and failures, both in the order of the cells.

    ``resumed`` cells were already there; ``rejected`` had a file that could not be used and ran again.
    """

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    resumed: int
    rejected: int


def run_cells(cells: Sequence[Cell], folder: Path, *, jobs: int = 1, progress: bool | None = None) -> Outcome:
    """Run the cells that ``folder/cells`` does not hold yet and return all of them.

    Each finished cell is written at once and whole to ``folder/cells/<key>.json``. One failed cell does
    not stop the others.

    Parameters
    ----------
    cells : what to run; no two are equal.
    folder : where the results are kept; created if need be.
    jobs : processes at a time.
    progress : show a bar on standard error; None: only on a terminal.

    Raises
    ------
    InputError
        if the folder cannot be made or written.
    Interrupted
        on Ctrl-C; finished cells stay.
    """
    kept = folder_for(folder / "cells")
    paths = {cell: cell_path(cell, kept) for cell in cells}
    done = run_all(paths, Work(attempt, read_result), jobs=jobs, progress=progress, unit="cell")
    return Outcome(
        results=tuple(done.results.values()),
        failures=tuple(Failure(cell, reason) for cell, reason in done.failures.items()),
        resumed=done.resumed,
        rejected=done.rejected,
    )


def cell_path(cell: Cell, kept: Path) -> Path:
    """Return the file of a cell's result in the folder of all of them."""
    return kept / f"{cell.key()}.json"


def attempt(cell: Cell, path: Path) -> Result:
    """Run one cell and write its result to ``path``.

    Raises
    ------
    SimulationError
        if the simulator breaks off, or leaves out a metric.
    """
    metrics = dict(simulate(trace_of(cell.source), cell.policy, cell.profile, params=cell.params).metrics)
    if not _complete(metrics):
        raise SimulationError(f"a metric is missing or not finite: {metrics}")
    stored = {"format": FORMAT, "version": version("topas"), "cell": cell.content(), "metrics": metrics}
    with whole_file(path, "wb") as stream:
        stream.write(canonical(stored).encode() + b"\n")
    return Result(cell, metrics)


def read_result(cell: Cell, path: Path) -> Result | None:
    """Return the result that ``path`` holds for the cell, or None if there is no such valid file."""
    try:
        stored = json.loads(path.read_bytes())
        same = stored["format"] == FORMAT and canonical(stored["cell"]) == canonical(cell.content())
        metrics = stored["metrics"] if same else {}
        return Result(cell, metrics) if _complete(metrics) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _complete(metrics: Mapping[str, float]) -> bool:
    return (
        set(metrics) == set(METRICS)
        and all(type(metrics[name]) is int for name in COUNTS)
        and all(math.isfinite(value) for value in metrics.values())
    )
