"""Items done in parallel; each result is a file of its own, so that an interrupted run goes on."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from joblib import Parallel, delayed
from tqdm import tqdm

from topas.errors import InputError

Item = TypeVar("Item", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Work(Generic[Item, Value]):
    """How an item is done and kept.

    ``do`` leaves the result in the file and returns it; ``read`` returns what a file holds, or None if it
    is not the whole result of that item.
    """

    do: Callable[[Item, Path], Value]
    read: Callable[[Item, Path], Value | None]


@dataclass(frozen=True, slots=True)
class Done(Generic[Item, Value]):
    """Results, and for each item that failed why, in one line; both in the order of the items.

    ``resumed`` items were already there; ``rejected`` had a file that could not be used and were done again.
    """

    results: Mapping[Item, Value]
    failures: Mapping[Item, str]
    resumed: int
    rejected: int


class Interrupted(KeyboardInterrupt):
    """The user stopped the run; ``done`` of ``total`` items are kept."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__()
        self.done = done
        self.total = total


def folder_for(path: Path) -> Path:
    """Return the folder, made if need be.

    Raises
    ------
    InputError
        if it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder: {error.strerror}", source=str(path)) from None
    return path


def run_all(
    paths: Mapping[Item, Path],
    work: Work[Item, Value],
    *,
    jobs: int = 1,
    progress: bool | None = None,
    unit: str = "item",
) -> Done[Item, Value]:
    """Do the items whose file does not hold their result yet and return all of them.

    Each finished item's file is written at once and whole. One failed item does not stop the others.

    Parameters
    ----------
    paths : the file of each item, in the order in which they are begun.
    work : how an item is done and kept.
    jobs : processes at a time.
    progress : show a bar on standard error; None: only on a terminal.
    unit : what the bar counts.

    Raises
    ------
    Interrupted
        on Ctrl-C; finished items stay.
    """
    found = _stored(paths, work)
    resumed, rejected = len(found), sum(path.exists() for path in paths.values()) - len(found)
    todo = [item for item in paths if item not in found]
    failed: dict[Item, str] = {}
    disable = None if progress is None else not progress
    with tqdm(total=len(paths), initial=resumed, unit=unit, disable=disable) as bar:
        try:
            for item, value, reason in _attempts(todo, paths, work, jobs):
                if value is None:
                    failed[item] = reason
                else:
                    found[item] = value
                bar.update()
        except KeyboardInterrupt:
            raise Interrupted(len(_stored(paths, work)), len(paths)) from None
        except BrokenProcessPool:
            # The pool cannot say whose item it was: what is not on disk is not done.
            found = _stored(paths, work)
            lost = [item for item in paths if item not in found and item not in failed]
            failed |= dict.fromkeys(lost, "not done: a worker process died (out of memory?)")
    return Done(
        results={item: found[item] for item in paths if item in found},
        failures={item: failed[item] for item in paths if item in failed},
        resumed=resumed,
        rejected=rejected,
    )


Attempt = tuple[Item, Value | None, str]
"""An item with its result, or with the reason why there is none."""


def _attempt(do: Callable[[Item, Path], Value], item: Item, path: Path) -> Attempt[Item, Value]:
    try:
        return item, do(item, path), ""
    except Exception as error:  # noqa: BLE001  whatever one item hits, the others are to run
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        return item, None, " ".join(reason.split())


def _stored(paths: Mapping[Item, Path], work: Work[Item, Value]) -> dict[Item, Value]:
    return {item: value for item, path in paths.items() if (value := work.read(item, path)) is not None}


def _attempts(
    todo: Sequence[Item], paths: Mapping[Item, Path], work: Work[Item, Value], jobs: int
) -> Iterator[Attempt[Item, Value]]:
    # Workers leave Ctrl-C to this process, which stops them; else each would print a traceback.
    pool = Parallel(
        n_jobs=max(min(jobs, len(todo)), 1),
        backend="loky",
        return_as="generator_unordered",
        batch_size=1,
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    outcomes = pool(delayed(_attempt)(work.do, item, paths[item]) for item in todo)
    try:
        for outcome in outcomes:  # noqa: UP028  `yield from` would close them before the warning is off
            yield outcome
    finally:
        with warnings.catch_warnings():
            # joblib warns that items under way are given up: that is what an interrupt asks for.
            warnings.simplefilter("ignore")
            outcomes.close()
