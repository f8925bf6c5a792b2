"""Queue policies in a live engine: they order the queue, SGLang admits from its head."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from topas.event import Request
from topas.online.sglang.book import Book, TaskView
from topas.online.sglang.engine import SGLangEngine
from topas.online.sglang.metrics import ServerMetrics
from topas.online.sglang.scheduling import Scheduling
from topas.policies.policy import QueuePolicy


class _View:
    """The queue as a policy sees it (:class:`topas.policies.QueueView`)."""

    def __init__(self, waiting: Collection[Request], tasks: Mapping[str, TaskView]) -> None:
        self.waiting = waiting
        self.tasks = tasks

    @staticmethod
    def cached(_: Request) -> int:
        """Return 0: policies that need prefix matches are SGLang's own."""
        return 0

    passed = prompt = cached


class QueueScheduling(Scheduling):
    """Sorts the queue whenever something changed."""

    def __init__(
        self,
        engine: SGLangEngine,
        book: Book,
        policy: QueuePolicy,
        metrics: ServerMetrics,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(engine, book, metrics, clock)
        self.policy = policy

    def prefill(self, original: Callable[[], Any], batch: Any) -> Any:  # noqa: ANN401
        """Order the queue, then let SGLang admit."""
        if self.changed:
            self.changed = False
            self.guard("order", lambda: self._order(batch), lambda: None)
        answer = original()
        self.guard("book", lambda: self.started_by_engine(answer), lambda: False)
        return answer

    def _order(self, batch: Any) -> None:  # noqa: ANN401
        started_s = self._clock()
        self.reconcile(self.engine.running(batch))
        queue = self.engine.waiting
        entries = [self.entry(req) for req in queue]
        requests = {entry.id: self.book.request_of(entry) for entry in entries if entry is not None}
        tasks = {entry.live.id: TaskView(entry.job, entry.live) for entry in entries if entry is not None}
        rank = self.policy.rank(_View(list(requests.values()), tasks))
        foreign = [req for req, entry in zip(queue, entries, strict=True) if entry is None]
        ours = [(req, entry.id) for req, entry in zip(queue, entries, strict=True) if entry is not None]
        ours.sort(key=lambda pair: rank(requests[pair[1]]))
        self.engine.waiting = foreign + [req for req, _ in ours]
        self.metrics.count("decisions")
        self.metrics.time("event_seconds", self._clock() - started_s)
        self.metrics.show("tasks", len(self.book.jobs))
