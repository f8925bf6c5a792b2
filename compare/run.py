"""Run cells in parallel; each result is a file of its own, so that an interrupted run goes on."""

from __future__ import annotations

import json
import math
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from joblib import Parallel, delayed
from tqdm import tqdm

from compare.cell import COUNTS, METRICS, Cell, Result, canonical, trace_of
from topas.errors import InputError, SimulationError
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


class Interrupted(KeyboardInterrupt):
    """The user stopped the run; ``done`` of ``total`` cells are kept."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__()
        self.done = done
        self.total = total


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
    paths = _paths(cells, folder / "cells")
    found = _stored(cells, paths)
    resumed, rejected = len(found), sum(path.exists() for path in paths.values()) - len(found)
    todo = [cell for cell in cells if cell not in found]
    failed: dict[Cell, str] = {}
    disable = None if progress is None else not progress
    with tqdm(total=len(cells), initial=resumed, unit="cell", disable=disable) as bar:
        try:
            for outcome in _attempts(todo, paths, jobs):
                if isinstance(outcome, Failure):
                    failed[outcome.cell] = outcome.reason
                else:
                    found[outcome.cell] = outcome
                bar.update()
        except KeyboardInterrupt:
            raise Interrupted(len(_stored(cells, paths)), len(cells)) from None
        except BrokenProcessPool:
            # The pool cannot say whose cell it was: what is not on disk is not done.
            found = _stored(cells, paths)
            lost = [cell for cell in cells if cell not in found and cell not in failed]
            failed |= dict.fromkeys(lost, "not done: a worker process died (out of memory?)")
    return Outcome(
        results=tuple(found[cell] for cell in cells if cell in found),
        failures=tuple(Failure(cell, failed[cell]) for cell in cells if cell in failed),
        resumed=resumed,
        rejected=rejected,
    )


def attempt(cell: Cell, path: Path) -> Result | Failure:
    """Run one cell and write its result to ``path``; a failure is returned, not raised."""
    try:
        metrics = dict(simulate(trace_of(cell.source), cell.policy, cell.profile, params=cell.params).metrics)
        if not _complete(metrics):
            raise SimulationError(f"a metric is missing or not finite: {metrics}")  # noqa: TRY301  one way out
        stored = {"format": FORMAT, "version": version("topas"), "cell": cell.content(), "metrics": metrics}
        with whole_file(path, "wb") as stream:
            stream.write(canonical(stored).encode() + b"\n")
    except Exception as error:  # noqa: BLE001  whatever one cell hits, the others are to run
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        return Failure(cell, " ".join(reason.split()))
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


def _paths(cells: Sequence[Cell], kept: Path) -> dict[Cell, Path]:
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder: {error.strerror}", source=str(kept)) from None
    return {cell: kept / f"{cell.key()}.json" for cell in cells}


def _stored(cells: Sequence[Cell], paths: Mapping[Cell, Path]) -> dict[Cell, Result]:
    return {cell: result for cell in cells if (result := read_result(cell, paths[cell])) is not None}


def _complete(metrics: Mapping[str, float]) -> bool:
    return (
        set(metrics) == set(METRICS)
        and all(type(metrics[name]) is int for name in COUNTS)
        and all(math.isfinite(value) for value in metrics.values())
    )


def _attempts(todo: Sequence[Cell], paths: Mapping[Cell, Path], jobs: int) -> Iterator[Result | Failure]:
    # Workers leave Ctrl-C to this process, which stops them; else each would print a traceback.
    pool = Parallel(
        n_jobs=max(min(jobs, len(todo)), 1),
        backend="loky",
        return_as="generator_unordered",
        batch_size=1,
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    outcomes = pool(delayed(attempt)(cell, paths[cell]) for cell in todo)
    try:
        yield from outcomes
    finally:
        with warnings.catch_warnings():
            # joblib warns that cells under way are given up: that is what an interrupt asks for.
            warnings.simplefilter("ignore")
            outcomes.close()
