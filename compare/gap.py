"""Decisions against the optimum: every event against its exact solution, whole traces against bounds.

Everything is kept: recorded runs in ``DIR/logs``, runs of policies in ``DIR/cells``, bounds and improved
schedules in ``DIR/traces``, events in ``DIR/events``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from compare.bound import BoundCase, Bounded, ImproveCase
from compare.gap_tables import events_frame, whole_trace
from compare.judge import EventCase, Verdict
from compare.pool import Work, folder_for, run_all
from compare.source import Source, trace_of
from compare.store import find_out, key_of
from compare.study import Run, runs_of
from topas.decision import Decision
from topas.errors import InputError
from topas.event import Event, Params
from topas.files import whole_file
from topas.formats import log_line, read_events
from topas.policies import baseline_names
from topas.profile import Profile
from topas.sim import simulate

PAPER = "topas-paper"
"""The heuristic for the paper's score: Algorithm 1."""

EXACT = "topas-exact"
"""The policy that takes the optimum of every event."""

MOST_SEEDS = 50


def usual_policies() -> tuple[str, ...]:
    """Return the policies that stand beside a trace's bounds, the exact one first: it takes longest."""
    return (EXACT, PAPER, "topas", *baseline_names(), "downstream-gate")


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
class Gaps:
    """What came of it.

    ``events`` is as :func:`compare.gap_tables.events_frame` makes it, ``traces`` as ``whole_trace``; cases
    and verdicts are by file and index.
    ``sampled`` gives (events judged, events there are) of the groups that were sampled; ``failures`` says
    in one line what failed, and why.
    """

    settings: Settings
    events: pd.DataFrame
    cases: Mapping[tuple[str, int], EventCase]
    verdicts: Mapping[tuple[str, int], Verdict]
    sampled: Mapping[str, tuple[int, int]]
    traces: tuple[dict[str, object], ...]
    failures: Mapping[str, str]
    resumed: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event stands; ``index`` counts from 1 and is the line in a log."""

    group: str
    file: str
    index: int

    def __str__(self) -> str:
        """One line for messages: ``events.jsonl:12``."""
        return f"{self.file}:{self.index}"


def record(run: Run, path: Path) -> Path:
    """Play a run and write its event log to ``path``."""
    with whole_file(path) as stream:

        def note(event: Event, decision: Decision) -> None:
            stream.write(log_line(event, decision) + "\n")

        simulate(trace_of(run.source), run.policy, run.profile, params=run.params, record=note)
    return path


def recorded(_: Run, path: Path) -> Path | None:
    """Return the event log of a run if it is there: it was written whole, under the run's own key."""
    return path if path.is_file() else None


def record_all(
    runs: Iterable[Run], folder: Path, *, jobs: int = 1, progress: bool | None = None
) -> tuple[Mapping[Run, Path], dict[str, str]]:
    """Record the events of some runs; return the logs and what failed.

    Raises
    ------
    Interrupted
        on Ctrl-C; finished logs stay.
    """
    logs = folder_for(folder / "logs")
    paths = {run: logs / f"{key_of(run)}.jsonl" for run in runs}
    done = run_all(paths, Work(record, recorded), jobs=jobs, progress=progress, unit="log")
    return done.results, {f"{run}, events": reason for run, reason in done.failures.items()}


def enough_events(
    drawn: Mapping[str, Callable[[int], Source]], settings: Settings, folder: Path, jobs: int
) -> list[Group]:
    """Record seed after seed of every group until it has ``max_events`` events, or a run fails.

    Parameters
    ----------
    drawn : by name of the group, a function of the seed.

    Raises
    ------
    Interrupted
        on Ctrl-C; finished logs stay.
    """
    sources: dict[str, list[Source]] = {name: [] for name in drawn}
    counts = dict.fromkeys(drawn, 0)
    for seed in range(1, MOST_SEEDS + 1):
        short = [name for name, count in counts.items() if count < settings.max_events]
        for name in short:
            sources[name].append(drawn[name](seed))
        runs = {
            name: Run(sources[name][-1], settings.policy, settings.profile, settings.params) for name in short
        }
        logs, _ = record_all(runs.values(), folder, jobs=jobs)
        for name, run in runs.items():
            counts[name] += _lines(logs[run]) if run in logs else settings.max_events
    return [Group(name, sources=tuple(own)) for name, own in sources.items()]


def _lines(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


def measure(  # noqa: PLR0913  what, how and where
    groups: Sequence[Group],
    traces: Sequence[Source],
    settings: Settings,
    folder: Path,
    *,
    jobs: int = 1,
    progress: bool | None = None,
) -> Gaps:
    """Judge the events of the groups and measure the traces; what ``folder`` holds already is not done again.

    Raises
    ------
    InputError
        if a file of events is wrong, or a folder cannot be made.
    Interrupted
        on Ctrl-C; finished items stay.
    """
    places, sampled, failures = _places(groups, settings, folder, jobs=jobs, progress=progress)
    whole = [_bounded(source, settings) for source in traces]
    items = [item for trace in whole for item in trace.items]
    items.sort(key=lambda item: not (isinstance(item, Run) and item.policy == EXACT))  # it takes longest
    done = find_out([*items, *places.values()], folder, jobs=jobs, progress=progress)
    failures |= {str(item): done.failures[item] for item in items if item in done.failures}
    failures |= {str(place): done.failures[case] for place, case in places.items() if case in done.failures}
    judged = [
        ({"group": place.group, "file": place.file, "index": place.index}, done.results[case])
        for place, case in places.items()
        if case in done.results
    ]
    return Gaps(
        settings,
        events_frame(judged),
        {(place.file, place.index): case for place, case in places.items()},
        {(p.file, p.index): done.results[case] for p, case in places.items() if case in done.results},
        sampled,
        tuple(whole_trace(trace, done.results, settings.policy, EXACT) for trace in whole),
        failures,
        done.resumed,
        done.rejected,
    )


def _bounded(source: Source, settings: Settings) -> Bounded:
    profile, params, seconds = settings.profile, settings.params, settings.improve_s
    return Bounded(
        runs_of([source], settings.policies, profile, params),
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
    runs = runs_of(sources, [settings.policy], settings.profile, settings.params)
    logs, failures = record_all(runs, folder, jobs=jobs, progress=progress)
    paths = {run.source: str(path) for run, path in logs.items()}
    places: dict[Place, EventCase] = {}
    sampled = {}
    for group in groups:
        files = [(file, file) for file in group.files]
        files += [(str(one), paths[one]) for one in group.sources if one in paths]
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
