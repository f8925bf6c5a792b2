"""A serving engine small enough to be checked at every step, with the interface that TOPAS needs of SGLang.

:class:`FakeEngine` offers what :class:`topas.online.sglang.engine.SGLangEngine` does, over a prefix store
that is one dictionary, and is the scheduler behind it too: :meth:`FakeEngine.step` asks for a prefill batch,
else decodes, and with ``overlap`` learns a step's results only after the next step has begun. It asserts what
SGLang relies on: KV accounting, balanced locks, each request in one place, and no second run in the step of a
preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from topas.online.sglang.engine import Pin
from topas.online.sglang.metrics import COUNTERS, GAUGES, HISTOGRAMS
from topas.online.sglang.prefixes import Agent

Path = tuple[int, ...]


class FINISH_LENGTH:  # noqa: N801  SGLang's name
    """A request that generated all it could."""


class FINISH_ABORT:  # noqa: N801  SGLang's name, which the scheduling looks at
    """A request that was aborted."""


class Req:
    """A request: SGLang's attributes that the plugin reads, and the lengths that only the engine knows."""

    def __init__(  # noqa: PLR0913  as many facts
        self,
        rid: str,
        prompt: Sequence[int],
        outputs: int,
        *,
        max_new_tokens: int | None = None,
        facts: dict[str, Any] | None = None,
        ignore_eos: bool = False,
    ) -> None:
        self.rid = rid
        self.origin_input_ids = list(prompt)
        self.output_ids: list[int] = []
        self.outputs = outputs
        self.sampling_params = SimpleNamespace(
            custom_params=None if facts is None else {"topas": facts},
            max_new_tokens=max_new_tokens or outputs,
            ignore_eos=ignore_eos,
        )
        self.routing_key = None
        self.extra_key = self.cache_salt = None
        self.input_embeds = self.multimodal_inputs = self.session = None
        self.finished_reason: object = None
        self.to_finish: object = None
        self.locked: Path = ()
        self.held = 0
        self.computed = 0
        self.prefilled = False
        self.preempted_at = -1
        self.run = 0

    def finished(self) -> bool:
        """Return whether it is complete or aborted."""
        return self.finished_reason is not None

    @property
    def tokens(self) -> Path:
        """Return what it has in KV once it is prefilled."""
        return (*self.origin_input_ids, *self.output_ids)

    def __repr__(self) -> str:
        """Return its name."""
        return self.rid


@dataclass
class Batch:
    """A batch; finished requests stand in it until the engine decodes again."""

    reqs: list[Req] = field(default_factory=list)
    batch_is_full: bool = False


class Counts:
    """Metrics that keep what they are told, and know the names that there are."""

    def __init__(self) -> None:
        self.counted: dict[tuple[str, ...], float] = {}
        self.shown: dict[str, float] = {}
        self.timed: dict[str, int] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter that exists, with the labels that it has."""
        assert tuple(labels) == COUNTERS[name][1]
        key = (name, *labels.values())
        self.counted[key] = self.counted.get(key, 0) + amount

    def show(self, name: str, value: float) -> None:
        """Set a gauge that exists."""
        assert name in GAUGES
        self.shown[name] = value

    def time(self, name: str, seconds: float) -> None:
        """Count an observation."""
        assert name in HISTOGRAMS
        assert seconds >= 0
        self.timed[name] = self.timed.get(name, 0) + 1


class Clock:
    """Time that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@dataclass
class _Page:
    """A page of KV in the store, named by all tokens up to its end."""

    locks: int = 0
    used: int = 0


class FakeEngine:
    """An engine of ``kv_tokens``; ``scheduling`` is told what happens, as the plugin's hooks tell it."""

    def __init__(  # noqa: PLR0913  its sizes
        self,
        *,
        kv_tokens: int = 400,
        page_tokens: int = 1,
        max_running: int = 8,
        chunk_tokens: int = 1000,
        ratio: float = 0.5,
        overlap: bool = True,
    ) -> None:
        self.kv_tokens = kv_tokens
        self.page_tokens = page_tokens
        self.max_running = max_running
        self.chunk_tokens = chunk_tokens
        self.new_token_ratio = ratio
        self.overlap = overlap
        self.waiting: list[Any] = []
        self.chunked: Req | None = None
        self.has_grammars = False
        self.grammars: list[Req] = []
        self.batch = Batch()
        self.new: list[Req] = []
        self.in_flight: list[tuple[Req, int, bool]] = []
        self.done: list[Req] = []
        self.store: dict[Path, _Page] = {}
        self.steps = self.uses = 0
        self.pins = 0
        self.snapshots = 0
        self.taken: list[Req] = []
        self.offered: list[Req] = []
        self.fail: Exception | None = None
        self.scheduling: Any = None

    # --- the interface of the plugin's engine ---------------------------------------------------------

    def running(self, batch: Batch) -> list[Any]:
        """Return the admitted requests that are not finished."""
        self.snapshots += 1
        found = [req for req in batch.reqs if not req.finished()]
        if self.chunked is not None and not self.chunked.finished():
            found.append(self.chunked)
        return found

    @property
    def free_tokens(self) -> int:
        """Return the tokens that are free or evictable."""
        return self.kv_tokens - self._used() + self._evictable()

    def on_gpu(self, agent: Agent) -> int:
        """Return how much of a prefix is in the store."""
        return len(self._found(tuple(agent.prefix.tolist())))

    def touch(self, agent: Agent) -> None:
        """Make what is there of a prefix the most recently used."""
        self._match(tuple(agent.prefix.tolist()))

    def pin(self, agent: Agent, pin: Pin | None) -> Pin | None:
        """Lock what is there of a prefix instead of what ``pin`` locks."""
        path = self._match(tuple(agent.prefix.tolist()))
        if pin is not None and pin.prefix is agent.prefix and pin.tokens == len(path):
            return pin
        new = None
        if path:
            self._lock(path, 1)
            self.pins += 1
            new = Pin(path, len(path), agent.prefix)
        self.unpin(pin)
        return new

    def unpin(self, pin: Pin | None) -> None:
        """Give up a lock."""
        if pin is not None:
            self.pins -= 1
            self._lock(pin.lock, -1)

    def release(self, agent: Agent) -> int:
        """Evict a prefix and what is behind it, but for what is locked or shared."""
        path = self._match(tuple(agent.prefix.tolist()))
        if not path:
            return 0
        before = len(self.store)
        behind = sorted((key for key in self.store if key[: len(path)] == path), key=len, reverse=True)
        for key in [*behind, *reversed(self._pages(path))]:
            if key in self.store and not self.store[key].locks and not self._is_shared(key):
                del self.store[key]
        return (before - len(self.store)) * self.page_tokens

    def preempt(self, reqs: Sequence[Req], batch: Batch) -> list[Any]:
        """Put running requests back at the queue's front."""
        out = [
            req
            for req in reqs
            if any(req is other for other in batch.reqs)
            and not req.finished()
            and req.to_finish is None
            and req is not self.chunked
        ]
        for req in out:
            self._release(req)
            req.preempted_at = self.steps
        batch.reqs = [req for req in batch.reqs if all(req is not other for other in out)]
        batch.batch_is_full = False
        self.waiting = out + self.waiting
        return out

    # --- clients --------------------------------------------------------------------------------------

    def add(self, req: Req) -> None:
        """Queue a new or retracted request."""
        self.waiting.append(req)
        self.scheduling.guard("arrival", lambda: self.scheduling.arrived(req), lambda: None)

    def abort(self, req: Req) -> None:
        """Abort a request wherever it is; one that runs ends with its next result."""
        if req.finished():
            return
        if any(req is other for other in self.waiting):
            self.waiting = [other for other in self.waiting if other is not req]
            req.finished_reason = FINISH_ABORT()
            self.done.append(req)
        else:
            req.to_finish = FINISH_ABORT()
        self.scheduling.aborted()

    def flush(self) -> None:
        """Empty the store."""
        self.store.clear()
        self.pins = 0
        self.scheduling.reset()

    # --- one step -------------------------------------------------------------------------------------

    def step(self) -> None:
        """Ask for a prefill batch, else decode; then take in results."""
        self.steps += 1
        self.batch.reqs += [req for req in self.new if not req.finished() and req is not self.chunked]
        self.new, self.taken, self.offered = [], [], []
        new, _ = self.scheduling.prefill(self.original, self.batch)
        launched: list[tuple[Req, int, bool]] = []
        if new is not None:
            launched = [(req, req.run, req is not self.chunked) for req in new.reqs]
        else:
            self.batch.reqs = [req for req in self.batch.reqs if not req.finished()]
            if not self.batch.reqs:
                self.batch.batch_is_full = False
            launched = self._decode()
        late, self.in_flight = (self.in_flight, launched) if self.overlap else (launched, [])
        for req, run, whole in late:
            self._result(req, run, whole=whole)
        self.check()

    def original(self) -> tuple[Batch | None, Batch]:
        """Choose a prefill batch from the queue's head, as SGLang does."""
        self.offered = list(self.waiting)
        if self.fail is not None:
            raise self.fail
        for req in self.grammars:
            self.add(req)
        self.grammars, self.has_grammars = [], False
        chosen: list[Req] = []
        self.new = chosen
        room = self.chunk_tokens
        if self.chunked is not None:
            req = self.chunked
            room = self._extend(req, room)
            chosen.append(req)
            if req.computed == len(req.tokens):
                self.chunked = None
        for req in list(self.waiting):
            count = len(self.batch.reqs) + len(chosen)
            if room <= 0 or self.chunked is not None or self.batch.batch_is_full or count >= self.max_running:
                break
            path = self._match(req.tokens[:-1])
            self._lock(path, 1)
            left = req.sampling_params.max_new_tokens - len(req.output_ids)
            if len(req.tokens) - len(path) + left + self.page_tokens > self._rest(chosen):
                self._lock(path, -1)
                self.batch.batch_is_full = bool(chosen or self.batch.reqs)
                break
            assert req.preempted_at != self.steps, f"{req} runs again in the step of its preemption"
            req.locked, req.computed, req.held, req.run = path, len(path), 0, req.run + 1
            req.prefilled = False
            room = self._extend(req, room)
            chosen.append(req)
            self.taken.append(req)
            self.waiting = [other for other in self.waiting if other is not req]
            if req.computed < len(req.tokens):
                self.chunked = req
        return (Batch(chosen) if chosen else None), self.batch

    def _extend(self, req: Req, room: int) -> int:
        now = min(len(req.tokens) - req.computed, room)
        req.computed += now
        self._hold(req)
        return room - now

    def _rest(self, chosen: list[Req]) -> int:
        """Return what is left for new requests when what runs gets its share of what it may still need."""
        later = sum(
            int((req.sampling_params.max_new_tokens - len(req.output_ids)) * self.new_token_ratio)
            for req in self.batch.reqs
            if not req.finished()
        )
        later += sum(req.sampling_params.max_new_tokens + len(req.tokens) - req.computed for req in chosen)
        return self.free_tokens - later

    def _decode(self) -> list[tuple[Req, int, bool]]:
        step: list[tuple[Req, int, bool]] = []
        for req in list(self.batch.reqs):
            while self.free_tokens < self.page_tokens and self._decodes(req):
                self._retract(self.batch.reqs[-1])
            if self._decodes(req):
                req.computed += 1
                self._hold(req)
                step.append((req, req.run, True))
        return [item for item in step if self._decodes(item[0])]

    def _decodes(self, req: Req) -> bool:
        return req.prefilled and any(req is other for other in self.batch.reqs)

    def _retract(self, req: Req) -> None:
        self.batch.reqs = [other for other in self.batch.reqs if other is not req]
        self._release(req)
        self.add(req)

    def _result(self, req: Req, run: int, *, whole: bool) -> None:
        """Take in what a launched step made; that of a request that was put back since is thrown away."""
        if req.finished() or run != req.run or not (req.locked or req.held):
            return
        if req.to_finish is not None:
            req.finished_reason = req.to_finish
        elif whole:
            req.output_ids.append(len(req.output_ids))
            if not req.prefilled:
                req.prefilled = True
                self._keep(req, (*req.tokens[:-1],))
            if len(req.output_ids) >= req.outputs:
                req.finished_reason = FINISH_LENGTH()
        if req.finished():
            if req is self.chunked:
                self.chunked = None
            self._release(req)
            self.done.append(req)

    # --- memory ---------------------------------------------------------------------------------------

    def _pages(self, path: Path) -> list[Path]:
        return [path[:end] for end in range(self.page_tokens, len(path) + 1, self.page_tokens)]

    def _found(self, tokens: Path) -> Path:
        found: Path = ()
        for key in self._pages(tokens):
            if key not in self.store:
                break
            found = key
        return found

    def _match(self, tokens: Path) -> Path:
        found = self._found(tokens)
        self._use(self._pages(found))
        return found

    def _use(self, pages: list[Path]) -> None:
        self.uses += 1
        for key in pages:
            self.store.setdefault(key, _Page()).used = self.uses

    def _lock(self, path: Path, by: int) -> None:
        for key in self._pages(path):
            self.store[key].locks += by
            assert self.store[key].locks >= 0, "a lock was given up twice"

    def _is_shared(self, key: Path) -> bool:
        size = len(key) + self.page_tokens
        return any(len(other) == size and other[: len(key)] == key for other in self.store)

    def _used(self) -> int:
        here = {id(req): req for req in [*self.batch.reqs, *self.new, *self.waiting]}
        if self.chunked is not None:
            here[id(self.chunked)] = self.chunked
        return len(self.store) * self.page_tokens + sum(req.held for req in here.values())

    def _evictable(self) -> int:
        return sum(not page.locks for page in self.store.values()) * self.page_tokens

    def _hold(self, req: Req) -> None:
        """Have a request hold what it has computed beyond what it locks, and evict for it."""
        need = -(-(req.computed - len(req.locked)) // self.page_tokens) * self.page_tokens
        missing = self._used() + need - req.held - self.kv_tokens
        while missing > 0:
            inner = {key[: -self.page_tokens] for key in self.store}
            leaves = [key for key, page in self.store.items() if not page.locks and key not in inner]
            assert leaves, "out of KV memory"
            del self.store[min(leaves, key=lambda key: (self.store[key].used, key))]
            missing -= self.page_tokens
        req.held = need

    def _keep(self, req: Req, tokens: Path) -> None:
        """Put what a request has computed into the store, and lock it there."""
        pages = self._pages(tokens[: req.computed])
        self._use(pages)
        self._lock(pages[-1] if pages else (), 1)
        self._lock(req.locked, -1)
        req.locked = pages[-1] if pages else ()
        req.held = -(-(req.computed - len(req.locked)) // self.page_tokens) * self.page_tokens

    def _release(self, req: Req) -> None:
        self._keep(req, req.tokens)
        self._lock(req.locked, -1)
        req.locked, req.held = (), 0
        req.prefilled = False
        self.scheduling.guard("release", lambda: self.scheduling.released(req), lambda: None)

    # --- what must hold -------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that memory and requests add up."""
        assert self._used() <= self.kv_tokens
        for key in self.store:
            assert len(key) == self.page_tokens or key[: -self.page_tokens] in self.store
        running = [req for req in [*self.batch.reqs, *self.new] if not req.finished()]
        if self.chunked is not None and all(req is not self.chunked for req in running):
            running.append(self.chunked)
        places = [id(req) for req in [*self.waiting, *running, *self.done]]
        assert len(set(places)) == len(places), "a request stands in two places"
        locks = sum(page.locks for page in self.store.values()) * self.page_tokens
        pins = getattr(self.scheduling, "_pins", {})
        assert len(pins) == self.pins
        assert locks == sum(len(req.locked) for req in running) + sum(pin.tokens for pin in pins.values())


def tokens_of_family(family: int, count: int, own: int = 0, own_count: int = 0) -> list[int]:
    """Return a prompt: ``count`` tokens that a family shares, and some of its own."""
    return [
        *(np.arange(count) + 1000 * family).tolist(),
        *(np.arange(own_count) + 100_000 + 100 * own).tolist(),
    ]


def drain(engine: FakeEngine, most: int, each: Callable[[], None] = lambda: None) -> int:
    """Step until every request is done, and once more; return the steps, of which ``most`` are allowed."""
    first = engine.steps
    while engine.waiting or engine.running(engine.batch) or engine.new or engine.in_flight or engine.grammars:
        assert engine.steps - first < most, f"{len(engine.waiting)} requests wait for ever"
        engine.step()
        each()
    engine.step()
    return engine.steps - first
