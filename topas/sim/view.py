"""The queue of a running engine, for queue policies."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from topas.event import Request
from topas.online.tracker import LiveTask

if TYPE_CHECKING:
    from topas.sim.engine import Engine


class EngineView:
    """The queue as a queue policy sees it, and the door (:class:`topas.policies.Door`)."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def waiting(self) -> Collection[Request]:
        """Return the ready requests."""
        return [job.request for job in self._engine.waiting.values()]

    @property
    def tasks(self) -> dict[str, LiveTask]:
        """Return the tasks in progress."""
        return self._engine.tracker.tasks

    def cached(self, request: Request) -> int:
        """Return how many prompt tokens are on the GPU."""
        return self._engine.cached_tokens(request)

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
