"""The queue of a running engine, for queue policies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from topas.event import Request
from topas.online.tracker import LiveTask

if TYPE_CHECKING:
    from referee.engine import Engine

DUPLICATE_TOKENS = 32
"""SGLang looks for shared beginnings in the queue where at most so many tokens are cached."""


def duplicates(engine: Engine) -> frozenset[str]:
    """Return the waiting requests that miss a prefix which one before them in the queue misses too."""
    seen: set[str] = set()
    found = set()
    for job in engine.waiting.values():
        missing = engine.cached_tokens(job.request) <= DUPLICATE_TOKENS
        if missing and engine.trace.agents[job.agent] >= DUPLICATE_TOKENS:
            if job.agent in seen:
                found.add(job.request.id)
            seen.add(job.agent)
    return frozenset(found)


class EngineView:
    """The queue as a queue policy sees it, and the door (:class:`topas.policies.Door`)."""

    __slots__ = ("_behind", "_engine", "matched")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.matched = False
        self._behind: frozenset[str] | None = None if engine.in_tree else frozenset()

    @property
    def waiting(self) -> Collection[Request]:
        """Return the ready requests."""
        return [job.request for job in self._engine.waiting.values()]

    @property
    def tasks(self) -> dict[str, LiveTask]:
        """Return the tasks in progress."""
        return self._engine.tracker.tasks

    def cached(self, request: Request) -> int:
        """Return how many prompt tokens are on the GPU.

        For a duplicate that is less than nothing: SGLang's LPM lets it wait until the prefix is there.
        """
        self.matched = True
        if self._behind is None:
            self._behind = duplicates(self._engine)
        return -1 if request.id in self._behind else self._engine.cached_tokens(request)

    def passed(self, request: Request) -> int:
        """Return how many tokens were prefilled since the request joined the queue."""
        return self._engine.prefilled - self._engine.waiting[request.id].joined_at

    def prompt(self, request: Request) -> int:
        """Return the length of the request's prompt and of what it has generated."""
        job = self._engine.waiting[request.id]
        return self._engine.trace.agents[job.agent] + job.round.input_tokens + job.generated

    @property
    def running(self) -> Collection[str]:
        """Return the ids of admitted, unfinished requests."""
        return self._engine.running.keys()

    @property
    def in_use(self) -> Collection[str]:
        """Return agents whose prefix admitted requests use."""
        return self._engine.cache.active.keys()

    def fits(self, request: Request) -> bool:
        """Return whether a waiting request could be admitted now."""
        return self._engine.fits(self._engine.waiting[request.id])
