"""Following one SGLang scheduler: its requests go through the book, whatever policy orders them.

Nothing here may take a request down. Every hook that SGLang calls goes through :meth:`Scheduling.guard`:
what fails is counted, logged once, and the engine goes on as it would without TOPAS.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from topas.online.sglang.book import Book, Entry, Phase
from topas.online.sglang.engine import SGLangEngine, tokens_of
from topas.online.sglang.facts import read_facts
from topas.online.sglang.metrics import ServerMetrics

logger = logging.getLogger("topas")

HEALTH_CHECK = "HEALTH_CHECK"
"""Request ids of SGLang's health checks begin so."""

EXPIRY_EVERY_S = 1.0
"""How often tasks that nothing is heard of are looked for; that takes time with their number."""

Result = TypeVar("Result")


class Scheduling(ABC):
    """What queue and joint policies have in common in a live engine."""

    def __init__(
        self, engine: SGLangEngine, book: Book, metrics: ServerMetrics, clock: Callable[[], float]
    ) -> None:
        self.engine = engine
        self.book = book
        self.metrics = metrics
        self._clock = clock
        self._start_s = clock()
        self._reported: set[str] = set()
        self._next_expiry_s = 0.0
        self.changed = False

    def now_s(self) -> float:
        """Return the seconds since the scheduler started."""
        return self._clock() - self._start_s

    # --- what SGLang tells ----------------------------------------------------------------------------

    @abstractmethod
    def prefill(self, original: Callable[[], Any], batch: Any) -> Any:  # noqa: ANN401
        """Take SGLang's place in choosing the next prefill batch; ``original`` is its own choice."""

    def arrived(self, req: Any) -> None:  # noqa: ANN401
        """Enter a request that has just joined the queue; a known one was retracted."""
        queue = self.engine.waiting
        if not queue or queue[-1] is not req:
            return  # refused or aborted at the door
        self.changed = True
        known = self.book.entries.get(id(req))
        if known is not None:
            self.metrics.count("retractions")
            known.output_tokens = len(req.output_ids)
            self.book.put_back(known, self.now_s())
            return
        if self._is_foreign(req):
            return
        params = req.sampling_params
        facts, wrong = read_facts(params.custom_params, req.routing_key)
        kind = "wrong" if wrong else "none" if facts.task is None else "given"
        self.metrics.count("requests", facts=kind)
        if wrong:
            self.report("facts", f"a request's facts are ignored: {wrong}")
        self.book.arrived(
            req,
            facts,
            tokens_of(req.origin_input_ids),
            (req.extra_key, req.cache_salt),
            params.max_new_tokens,
            self.now_s(),
            ratio_free=bool(params.ignore_eos),
        )

    def released(self, req: Any) -> None:  # noqa: ANN401
        """Note that a request has given its KV back: it is complete, aborted, or will run again."""
        self.changed = True
        entry = self.book.entries.get(id(req))
        if entry is not None and req.finished():
            entry.output_tokens = len(req.output_ids)
            aborted = type(req.finished_reason).__name__ == "FINISH_ABORT"
            self.book.left(entry, self.now_s(), completed=not aborted)

    def aborted(self) -> None:
        """Note that requests may have left the queue."""
        self.changed = True

    def reset(self) -> None:
        """Note that the prefix cache was emptied."""
        self.changed = True

    # --- helpers --------------------------------------------------------------------------------------

    @staticmethod
    def _is_foreign(req: Any) -> bool:  # noqa: ANN401
        """Return whether a request is none of ours: it is never held back and never preempted."""
        return (
            req.rid.startswith(HEALTH_CHECK)
            or req.input_embeds is not None
            or req.multimodal_inputs is not None
            or req.session is not None
        )

    def reconcile(self, running: list[Any]) -> None:
        """Bring the book in line with the engine, which is right where the two differ."""
        now_s = self.now_s()
        queued = {id(req) for req in self.engine.waiting}
        there = {id(req) for req in running}
        for key, entry in list(self.book.entries.items()):
            if key in there:
                entry.output_tokens = len(entry.req.output_ids)
                if entry.phase is not Phase.RUNNING:
                    self.book.started(entry, now_s)
            elif key in queued:
                if entry.phase is Phase.RUNNING:
                    self.book.put_back(entry, now_s)
            else:
                self.book.left(entry, now_s, completed=False)
        if now_s >= self._next_expiry_s:
            self._next_expiry_s = now_s + EXPIRY_EVERY_S
            expired = self.book.expire(now_s)
            if expired:
                self.metrics.count("expired_tasks", expired)

    def started_by_engine(self, answer: Any) -> bool:  # noqa: ANN401
        """Note what SGLang took from the whole queue by itself; return whether it took anything."""
        new = answer[0]
        if new is None:
            return False
        now_s = self.now_s()
        for req in new.reqs:
            entry = self.entry(req)
            if entry is not None and entry.phase is not Phase.RUNNING:
                self.book.started(entry, now_s)
        return True

    def entry(self, req: Any) -> Entry | None:  # noqa: ANN401
        """Return what the book knows of a request."""
        return self.book.entries.get(id(req))

    def guard(self, what: str, call: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
        """Run something of ours; if it fails, count and log that, and do what the engine would have done."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001  whatever it is, requests must be served
            self.metrics.count("fallbacks", reason=what)
            self.report(f"{what}:{type(error).__name__}", f"{what} failed, serving goes on", error=error)
            return otherwise()

    def report(self, key: str, text: str, *, error: BaseException | None = None) -> None:
        """Log something the first time it happens."""
        if key not in self._reported:
            self._reported.add(key)
            logger.warning("topas: %s (logged once, see the metrics)", text, exc_info=error)
