"""Decisions against the optimum: every event against its exact solution, whole traces against bounds.

Everything is an item of one resumable pool (:mod:`compare.pool`): recorded runs in ``DIR/logs``, runs of
policies in ``DIR/cells``, bounds and improved schedules in ``DIR/traces``, events in ``DIR/events``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare.cell import Cell, Source, cells_of, source_in_words
from compare.gap_stats import Judged
from compare.judge import EventCase
from compare.kept import answer_and_keep, question_path, read_answer
from compare.pool import Work, folder_for, run_all
from compare.run import attempt, cell_path, read_result
from compare.store import key_of
from compare.whole import BoundCase, ImproveCase, TraceCase, WholeTrace, record, recorded
from topas.errors import InputError
from topas.event import Params
from topas.formats import read_events
from topas.profile import Profile


@dataclass(frozen=True, slots=True)
class Group:
    """Events that are counted together: those of a file, or of recorded runs; ``name`` heads their row."""

    name: str
    files: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """How events are judged and traces are measured.

    ``decide`` makes the decision to judge on every event; None: the recorded one, or ``policy`` where
    none was recorded. ``policy`` is also the one whose traces' events are recorded, and whose distance to
    the bound is split up; ``policies`` are run on whole traces. A group with more than ``max_events``
    events (0: no limit) is sampled with ``seed``. ``improve_s`` of 0 looks for no better schedule.
    """

    profile: Profile
    params: Params
    policy: str
    policies: tuple[str, ...]
    decide: str | None = None
    time_limit_s: float = 10.0
    bound_s: float = 60.0
    improve_s: float = 0.0
    max_events: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Study:
    """What came of it.

    ``sampled`` gives (events judged, events there are) of the groups that were sampled; ``failures`` says
    in one line what failed, and why.
    """

    settings: Settings
    judged: tuple[Judged, ...]
    cases: Mapping[tuple[str, int], EventCase]
    sampled: Mapping[str, tuple[int, int]]
    traces: tuple[WholeTrace, ...]
    failures: Mapping[str, str]
    resumed: int
    rejected: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event stands; ``index`` counts from 1 and is the line in a log."""

    group: str
    file: str
    index: int

    def __str__(self) -> str:
        """One line for messages: ``events.jsonl:12``."""
        return f"{self.file}:{self.index}"


Item = Cell | BoundCase | ImproveCase | EventCase


def record_all(
    cells: Iterable[Cell], folder: Path, *, jobs: int = 1, progress: bool | None = None
) -> tuple[Mapping[Cell, Path], dict[str, str]]:
    """Record the events of some runs; return the logs and what failed.

    Raises
    ------
    Interrupted
        on Ctrl-C; finished logs stay.
    """
    logs = folder_for(folder / "logs")
    paths = {cell: logs / f"{key_of(cell)}.jsonl" for cell in cells}
    done = run_all(paths, Work(record, recorded), jobs=jobs, progress=progress, unit="log")
    return done.results, {f"{cell}, events": reason for cell, reason in done.failures.items()}


def measure(  # noqa: PLR0913  what, how and where
    groups: Sequence[Group],
    traces: Sequence[Source],
    settings: Settings,
    folder: Path,
    *,
    jobs: int = 1,
    progress: bool | None = None,
) -> Study:
    """Judge the events of the groups and measure the traces; what ``folder`` holds already is not done again.

    Raises
    ------
    InputError
        if a file of events is wrong, or a folder cannot be made.
    Interrupted
        on Ctrl-C; finished items stay.
    """
    places, sampled, failures = _places(groups, settings, folder, jobs=jobs, progress=progress)
    cases = [_trace_case(source, settings) for source in traces]
    items: list[Item] = [item for case in cases for item in case.items()]
    done = run_all(_paths([*items, *places.values()], folder), _WORK, jobs=jobs, progress=progress)
    results, failed = done.results, done.failures
    failures |= {str(item): failed[item] for item in items if item in failed}
    failures |= {str(place): failed[case] for place, case in places.items() if case in failed}
    return Study(
        settings=settings,
        judged=tuple(
            Judged(place.group, place.file, place.index, results[case])
            for place, case in places.items()
            if case in results
        ),
        cases={(place.file, place.index): case for place, case in places.items()},
        sampled=sampled,
        traces=tuple(case.result(results, settings.policy) for case in cases),
        failures=failures,
        resumed=done.resumed,
        rejected=done.rejected,
    )


def _trace_case(source: Source, settings: Settings) -> TraceCase:
    profile, params, seconds = settings.profile, settings.params, settings.improve_s
    return TraceCase(
        source,
        cells_of([source], settings.policies, profile, params),
        BoundCase(source, profile, settings.bound_s),
        ImproveCase(source, profile, params, seconds, settings.seed) if seconds > 0 else None,
    )


def _places(
    groups: Sequence[Group], settings: Settings, folder: Path, *, jobs: int, progress: bool | None
) -> tuple[dict[Place, EventCase], dict[str, tuple[int, int]], dict[str, str]]:
    """Return the events to judge, (judged, all) of the sampled groups, and what could not be recorded."""
    # Reading every file to its end refuses a wrong one before anything runs.
    counts = {file: _count(file) for group in groups for file in group.files}
    sources = [source for group in groups for source in group.sources]
    cells = cells_of(sources, [settings.policy], settings.profile, settings.params)
    logs, failures = record_all(cells, folder, jobs=jobs, progress=progress)
    paths = {cell.source: str(path) for cell, path in logs.items()}
    places: dict[Place, EventCase] = {}
    sampled = {}
    for group in groups:
        files = [(file, file) for file in group.files]
        files += [(source_in_words(one), paths[one]) for one in group.sources if one in paths]
        total = sum(counts[path] if path in counts else _count(path) for _, path in files)
        found = _cases(group.name, files, total, settings)
        places |= found
        if len(found) < total:
            sampled[group.name] = (len(found), total)
    return places, sampled, failures


def sample(count: int, most: int, seed: int) -> list[int]:
    """Return the indices of at most ``most`` of ``count`` things (0: all), evenly spaced.

    The places are ``(k + u) count / most`` for k = 0, 1, …, with one u in [0, 1) drawn from the seed.
    """
    if not most or count <= most:
        return list(range(count))
    offset = random.Random(seed).random()  # noqa: S311  no secret
    return [int((k + offset) * count / most) for k in range(most)]


def _count(file: str) -> int:
    count = sum(1 for _ in read_events(file))
    if not count:
        raise InputError("expected at least one event", source=file)
    return count


def _cases(
    group: str, files: Sequence[tuple[str, str]], total: int, settings: Settings
) -> dict[Place, EventCase]:
    """Return the events to judge of some files, each given by the name to show and its path."""
    wanted = frozenset(sample(total, settings.max_events, settings.seed))
    every = ((name, one) for name, path in files for one in read_events(path))
    policy = settings.decide or settings.policy
    return {
        Place(group, name, one.line or 1): EventCase.of(
            one.event, one.decision if settings.decide is None else None, policy, settings.time_limit_s
        )
        for number, (name, one) in enumerate(every)
        if number in wanted
    }


def _do(item: Item, path: Path) -> Any:  # noqa: ANN401  each item has its own kind of result
    return attempt(item, path) if isinstance(item, Cell) else answer_and_keep(item, path)


def _read(item: Item, path: Path) -> Any:  # noqa: ANN401  the same
    return read_result(item, path) if isinstance(item, Cell) else read_answer(item, path)


_WORK: Work[Item, Any] = Work(_do, _read)


def _paths(items: Iterable[Item], folder: Path) -> dict[Item, Path]:
    cells, traces, events = (folder_for(folder / name) for name in ("cells", "traces", "events"))
    paths: dict[Item, Path] = {}
    for item in items:
        if isinstance(item, Cell):
            paths[item] = cell_path(item, cells)
        else:
            paths[item] = question_path(item, events if isinstance(item, EventCase) else traces)
    return paths
