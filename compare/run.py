"""Runs as the gap and tuning studies still want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from compare.cell import Cell, Result
from compare.store import answer_and_keep, find_out, key_of, read_answer


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that did not finish, and why, in one line."""

    cell: Cell
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results and failures, both in the order of the cells."""

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    resumed: int
    rejected: int


def run_cells(cells: Sequence[Cell], folder: Path, *, jobs: int = 1, progress: bool | None = None) -> Outcome:
    """Run what ``folder/cells`` does not hold yet and return all."""
    done = find_out(cells, folder, jobs=jobs, progress=progress, unit="cell")
    return Outcome(
        tuple(Result(cell, asdict(done.results[cell].metrics)) for cell in cells if cell in done.results),
        tuple(Failure(cell, done.failures[cell]) for cell in cells if cell in done.failures),
        done.resumed,
        done.rejected,
    )


def cell_path(cell: Cell, kept: Path) -> Path:
    """Return the file of a cell's result in the folder of all of them."""
    return kept / f"{key_of(cell)}.json"


def attempt(cell: Cell, path: Path) -> Result:
    """Run one cell and write its result to ``path``."""
    return Result(cell, asdict(answer_and_keep(cell, path).metrics))


def read_result(cell: Cell, path: Path) -> Result | None:
    """Return the result that ``path`` holds for the cell, or None."""
    found = read_answer(cell, path)
    return None if found is None else Result(cell, asdict(found.metrics))
