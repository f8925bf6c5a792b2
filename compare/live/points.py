"""Experiments on a live server: what prefill batches and decode steps of known make-up take.

Every prompt is new to the server, except where a prefix is shared on purpose. The experiments are done in
an order shuffled by a seed, so that a drift of the machine does not look like an effect of a length.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np

from compare.live.probe import Probe, Timed
from compare.live.prompts import Vocab

MARK_EVERY = 16
"""Tokens between two marks: parsing each token would slow down what is measured."""
DECODE_TOKENS = 96
"""Tokens that each request of a decode experiment generates."""
FULLEST = 0.9
"""Largest part of the KV memory that an experiment fills: a full one makes the engine take requests back."""
PREFILL_TOKENS = (16, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 8192)
NEW_TOKENS = (16, 64, 256)
BATCH_TOKENS = (32, 128)
BATCHES = (2, 4, 8)
DECODE_BATCHES = (1, 2, 4, 8, 16, 32)
BLOCKER_TOKENS = 256
"""Prompt that keeps the engine busy until the requests of a batch wait together."""


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """A prefill batch: for each of its requests, tokens computed and tokens cached before them."""

    requests: tuple[tuple[int, int], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """Decode steps of ``requests``: mean seconds a step.

    ``kv_tokens`` sums the requests' own contexts; ``shared_tokens`` of them are a shared prefix that is
    counted once too often.
    """

    requests: int
    kv_tokens: int
    shared_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HostPoint:
    """A prefix of ``tokens`` that had to come from host memory: ``seconds`` longer than a warm one."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasuredPoints:
    """All that was measured; ``outside_s`` are times of requests outside the engine."""

    prefill: tuple[PrefillPoint, ...]
    decode: tuple[DecodePoint, ...]
    host: tuple[HostPoint, ...]
    outside_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How large an experiment may be: KV memory, batch, and longest prompt."""

    kv_tokens: int
    max_running: int
    host_cache: bool = False
    longest: int = 1 << 30


Step = Callable[[], Awaitable[None]]


class Experiments:
    """Makes points by asking a probe."""

    def __init__(self, probe: Probe, limits: ServerLimits, *, seed: int, vocab: Vocab) -> None:
        self.probe, self.limits, self.vocab = probe, limits, vocab
        self._rng = random.Random(seed)  # noqa: S311  prompts, no secrets
        self._draw = np.random.default_rng(seed)
        self.prefill: list[PrefillPoint] = []
        self.decode: list[DecodePoint] = []
        self.host: list[HostPoint] = []
        self.outside_s: list[float] = []

    def steps(self, repeats: int) -> list[Step]:
        """Return all experiments, each ``repeats`` times, shuffled."""
        found = [step for _ in range(repeats) for step in self._all()]
        self._rng.shuffle(found)
        return found

    def points(self) -> MeasuredPoints:
        """Return what was measured so far."""
        return MeasuredPoints(
            tuple(self.prefill), tuple(self.decode), tuple(self.host), tuple(self.outside_s)
        )

    def _all(self) -> Iterator[Step]:
        yield from self._prefills()
        yield from self._decodes()
        if self.limits.host_cache:
            for share in (4, 2):
                yield partial(self.host_load, self._longest // share)

    @property
    def _room(self) -> int:
        return int(FULLEST * self.limits.kv_tokens)

    @property
    def _longest(self) -> int:
        return min(self._room, self.limits.longest) - 1

    def _prefills(self) -> Iterator[Step]:
        longest = self._longest
        for tokens in (*(n for n in PREFILL_TOKENS if n < longest), longest):
            yield partial(self.one_prefill, 0, tokens)
        for prefix in (longest // 8, longest // 4, longest // 2):
            for tokens in (n for n in NEW_TOKENS if prefix + n < longest):
                yield partial(self.one_prefill, prefix, tokens)
        for n in (n for n in BATCHES if n < self.limits.max_running):
            for tokens in (size for size in BATCH_TOKENS if n * size < self._room // 2):
                yield partial(self.batch_prefill, n, 0, tokens)
                yield partial(self.batch_prefill, n, longest // 4, tokens)

    def _decodes(self) -> Iterator[Step]:
        room, longest, largest = self._room, self._longest, self.limits.max_running
        for n in (*(n for n in DECODE_BATCHES if n < largest), largest):
            most = min(room // n, longest) - DECODE_TOKENS
            for own in dict.fromkeys(max(int(most * share), 4) for share in (0.05, 0.5, 1.0)):
                if own <= most:
                    yield partial(self.decode_steps, n, 0, own)
            for prefix in (longest // 4, longest // 2) if n > 1 else ():
                if prefix + n * (16 + DECODE_TOKENS) <= room:
                    yield partial(self.decode_steps, n, prefix, 16)

    def prompt(self, tokens: int) -> list[int]:
        """Return a prompt that the server has never seen."""
        return [int(token) for token in self._draw.integers(self.vocab.low, self.vocab.high + 1, tokens)]

    # --- prefill --------------------------------------------------------------------------------------

    async def one_prefill(self, prefix_tokens: int, new_tokens: int) -> None:
        """Measure the prefill of one request behind a cached prefix."""
        prefix = self.prompt(prefix_tokens)
        if prefix:
            await self.probe.ask([*prefix, *self.prompt(1)], 1, MARK_EVERY)
        timed = await self.probe.ask([*prefix, *self.prompt(new_tokens)], 1, MARK_EVERY)
        cached = prefix_tokens if timed.cached_tokens is None else timed.cached_tokens
        seconds = timed.ttft_s
        if timed.prefill is not None:
            seconds = timed.prefill[1] - timed.prefill[0]
            self.outside_s.append(timed.elapsed_s - seconds)
        self.prefill.append(PrefillPoint(((timed.prompt_tokens - cached, cached),), seconds))

    async def batch_prefill(self, requests: int, prefix_tokens: int, new_tokens: int) -> None:
        """Measure prefill batches: requests that wait until a first one is through go together."""
        prefix = self.prompt(prefix_tokens)
        if prefix:
            await self.probe.ask([*prefix, *self.prompt(1)], 1, MARK_EVERY)
        prompts = [[*prefix, *self.prompt(new_tokens)] for _ in range(requests)]
        blocker = self.prompt(BLOCKER_TOKENS)
        asked = [self.probe.ask(prompt, 1, MARK_EVERY) for prompt in (blocker, *prompts)]
        batches: dict[float, list[Timed]] = {}
        for timed in await asyncio.gather(*asked):
            if timed.prefill is not None and timed.cached_tokens is not None:
                batches.setdefault(timed.prefill[0], []).append(timed)
        for batch in batches.values():
            cached = [timed.cached_tokens or 0 for timed in batch]
            new = [timed.prompt_tokens - count for timed, count in zip(batch, cached, strict=True)]
            spans = [timed.prefill[1] - timed.prefill[0] for timed in batch if timed.prefill]
            made_of = tuple(sorted(zip(new, cached, strict=True)))
            self.prefill.append(PrefillPoint(made_of, max(spans)))

    # --- decode ---------------------------------------------------------------------------------------

    async def decode_steps(self, requests: int, prefix_tokens: int, own_tokens: int) -> None:
        """Measure decode steps of requests that run together, each behind the same prefix if there is one."""
        prefix = self.prompt(prefix_tokens)
        if prefix:
            await self.probe.ask([*prefix, *self.prompt(1)], 1, MARK_EVERY)
        prompts = [[*prefix, *self.prompt(own_tokens)] for _ in range(requests)]
        asked = [self.probe.ask(prompt, DECODE_TOKENS, MARK_EVERY) for prompt in prompts]
        timed = await asyncio.gather(*asked)
        seconds = steps_between(timed)
        if seconds is not None:
            kv = requests * (prefix_tokens + own_tokens + DECODE_TOKENS // 2)
            self.decode.append(DecodePoint(requests, kv, (requests - 1) * prefix_tokens, seconds))

    # --- host memory ----------------------------------------------------------------------------------

    async def host_load(self, tokens: int) -> None:
        """Measure a prefix that was pushed out to host memory against the same one in GPU memory."""
        prefix = self.prompt(tokens)
        await self.probe.ask([*prefix, *self.prompt(1)], 1, MARK_EVERY)
        pushed = 0
        piece = min(self.limits.kv_tokens // 2, self.limits.longest - 1)
        while pushed < self.limits.kv_tokens + piece:
            await self.probe.ask(self.prompt(piece), 1, MARK_EVERY)
            pushed += piece
        loaded = await self.probe.ask([*prefix, *self.prompt(16)], 1, MARK_EVERY)
        warm = await self.probe.ask([*prefix, *self.prompt(16)], 1, MARK_EVERY)
        if loaded.host_tokens:
            self.host.append(HostPoint(loaded.host_tokens, loaded.ttft_s - warm.ttft_s))


def steps_between(timed: Sequence[Timed]) -> float | None:
    """Return the mean time of a step while all requests decode.

    The window goes from the last first token to the first end; steps with fewer requests, at the ramps,
    are left out. None if no request has two marks in it.
    """
    low = max(one.marks[0][1] for one in timed)
    high = min(one.end_s for one in timed)
    spans = []
    for one in timed:
        inside = [(count, at_s) for count, at_s in one.marks if low <= at_s <= high]
        if len(inside) > 1:
            (first, from_s), (last, to_s) = inside[0], inside[-1]
            spans.append((to_s - from_s) / (last - first))
    return median(spans) if spans else None
