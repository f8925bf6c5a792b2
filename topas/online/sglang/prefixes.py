"""Which agent a request belongs to, and how long that agent's static prefix is, read off token ids.

Requests of one name (or of none) and one salt that begin alike are one *variant*. A variant remembers the
latest prompt of each of a few tasks; its prefix is what a majority of these prompts begin with. So neither an
odd prompt nor a hostile client that uses another's name can lengthen or shrink it: a minority has no say,
and other content is another variant.

With m = floor(n/2) + 1 of n prompts as the majority, the longest such prefix is the largest common prefix of
m neighbours in sorted order: any m prompts with a common prefix lie within a run of prompts that have it. It
is unique, since two majorities share a prompt. A prompt counts up to the length that its client declared, and
without its last token, which the engine always computes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from topas.wire import MAX_NAME

Tokens = np.ndarray[Any, np.dtype[np.int64]]

SAMPLES = 8
"""Tasks of which a variant remembers a prompt."""

HEAD_TOKENS = 32
"""Leading tokens by which the variants of a name are told apart."""

MIN_PREFIX_TOKENS = 16
"""A shorter common beginning is no prefix: a chat template alone has that much."""

MAX_SAMPLE_TOKENS = 32_768
"""Longest part of a prompt that is remembered, and so the longest prefix."""

UNSHARED = "unshared"
"""The agent of requests without a name that share nothing yet, and of those that fit no other."""

_WORD = 4
_BIG = np.dtype(">u4")  # as bytes, prompts in this form sort as their token ids do
_LARGEST_ID = (1 << 31) - 1


def _no_tokens() -> Tokens:
    empty = np.zeros(0, dtype=np.int64)
    empty.setflags(write=False)
    return empty


class Agent:
    """An agent as the server knows it.

    ``id`` is unique among the agents of a book and never changes. ``prefix`` is a read-only array of token
    ids under ``salt``; another object takes its place when, and only when, its content changes.
    """

    __slots__ = ("id", "prefix", "salt")

    def __init__(self, name: str, salt: Hashable = None) -> None:
        self.id = name
        self.salt = salt
        self.prefix: Tokens = _no_tokens()

    @property
    def prefix_tokens(self) -> int:
        """Return l_a, the length of the static prefix."""
        return len(self.prefix)

    def __repr__(self) -> str:
        """Return id and prefix length."""
        return f"Agent({self.id!r}, prefix_tokens={self.prefix_tokens})"


class _Variant:
    """Prompts that begin alike; ``agent`` from the time that they are known to share a prefix."""

    __slots__ = ("agent", "samples", "shared", "size", "trimmed")

    def __init__(self) -> None:
        self.samples: OrderedDict[str, tuple[bytes, bool]] = OrderedDict()
        self.size = 0
        self.trimmed = False
        self.shared = b""
        self.agent: Agent | None = None

    def remember(self, task: str, sample: bytes, *, declared: bool) -> int:
        """Put a task's prompt in place of its last one, or of the oldest task's; return the bytes added."""
        if task not in self.samples and len(self.samples) == SAMPLES:
            self.samples.popitem(last=False)
        self.samples[task] = (sample, declared)
        self.samples.move_to_end(task)
        shared = self._shared()
        if len(shared) < MIN_PREFIX_TOKENS * _WORD:
            shared = b""
        if shared != self.shared:
            self.shared = shared
        self.trimmed = False
        return self._weigh()

    def trim(self) -> int:
        """Cut the prompts to the length of the prefix, which stays as it is; return the bytes saved."""
        if self.trimmed:
            return 0
        self.trimmed = True
        for task, (sample, declared) in self.samples.items():
            cut = self.shared if sample.startswith(self.shared) else sample[: len(self.shared)]
            self.samples[task] = (cut, declared)
        return -self._weigh()

    def _weigh(self) -> int:
        """Measure what is held, once where several prompts are one object; return the difference."""
        before = self.size
        held = {
            id(text): len(text) for text in (self.shared, *(sample for sample, _ in self.samples.values()))
        }
        self.size = sum(held.values())
        return self.size - before

    def _shared(self) -> bytes:
        if len(self.samples) == 1:
            ((sample, declared),) = self.samples.values()
            return sample if declared else b""
        ordered = sorted(sample for sample, _ in self.samples.values())
        majority = len(ordered) // 2 + 1
        best = b""
        for k in range(len(ordered) - majority + 1):
            first = ordered[k]
            size = _common(first, ordered[k + majority - 1])
            if size > len(best):
                best = first[:size]
        return best


def _common(a: bytes, b: bytes) -> int:
    """Return the length in bytes of the tokens with which both begin."""
    count = min(len(a), len(b)) // _WORD
    if a[: count * _WORD] == b[: count * _WORD]:
        return count * _WORD
    differ = np.frombuffer(a, np.uint32, count) != np.frombuffer(b, np.uint32, count)
    return int(differ.argmax()) * _WORD


class PrefixBook:
    """The agents of a server, iterated over without order.

    Memory is bounded: at most ``max_agents`` variants with a prefix, as many without, and ``max_tokens``
    remembered tokens of four bytes. Without room the prompts of variants with a prefix are cut to its length,
    then variants without a prefix are forgotten, then those with one, and with them their agents; each time
    the least recently used first. What agents in use need after that may exceed ``max_tokens``.
    """

    def __init__(self, max_agents: int = 256, max_tokens: int = 4_000_000) -> None:
        self._max_agents = max_agents
        self._max_bytes = max_tokens * _WORD
        self._bytes = 0
        self._known: OrderedDict[Hashable, _Variant] = OrderedDict()
        self._new: OrderedDict[Hashable, _Variant] = OrderedDict()
        self._plain: OrderedDict[str, Agent] = OrderedDict()
        self._unshared = Agent(UNSHARED)
        self._ids = {UNSHARED}

    def __iter__(self) -> Iterator[Agent]:
        """Yield every agent that has, or had, a prefix."""
        return (variant.agent for variant in self._known.values() if variant.agent is not None)

    @property
    def tokens(self) -> int:
        """Return how many tokens are remembered."""
        return self._bytes // _WORD

    def place(  # noqa: PLR0913  the facts of a request
        self,
        name: str | None,
        salt: Hashable,
        task: str,
        tokens: Sequence[int] | Tokens,
        declared: int | None,
        *,
        keep: Collection[str] = frozenset(),
    ) -> Agent:
        """Return the agent of a request, and learn from its prompt.

        A request whose variant has no prefix yet belongs to the agent of its name, one whose prompt does not
        begin with its variant's prefix to the agent ``unshared``; both have no prefix.

        Parameters
        ----------
        name : the agent's declared name, None if there is none.
        salt : what else the engine tells equal prompts apart by.
        task : the request's task; a later request of a task replaces what is remembered of it.
        tokens : the prompt.
        declared : declared length of the agent's prefix, None if nothing was declared.
        keep : ids of agents in use, which are not forgotten.
        """
        length = min(len(tokens) - 1, MAX_SAMPLE_TOKENS)
        prompt = np.asarray(tokens[: max(length, 0)], dtype=np.int64)
        if length <= 0 or prompt.min() < 0 or prompt.max() > _LARGEST_ID:
            return self._without_prefix(name, keep)
        text = prompt.astype(_BIG).tobytes()
        limit = length if declared is None else max(min(declared, length), 0)
        key = (name, salt, text[: min(HEAD_TOKENS, limit) * _WORD])
        variant = self._variant(key)
        self._bytes += variant.remember(task, text[: limit * _WORD], declared=declared is not None)
        if variant.shared and variant.agent is None:
            self._name(variant, key, name, salt, keep)
        if variant.agent is not None:
            _update(variant.agent, variant.shared)
        self._forget(key, keep)
        if variant.agent is None:
            return self._without_prefix(name, keep)
        return variant.agent if text.startswith(variant.shared) else self._unshared

    def _variant(self, key: Hashable) -> _Variant:
        for variants in (self._known, self._new):
            found = variants.get(key)
            if found is not None:
                variants.move_to_end(key)
                return found
        return self._new.setdefault(key, _Variant())

    def _name(
        self, variant: _Variant, key: Hashable, name: str | None, salt: Hashable, keep: Collection[str]
    ) -> None:
        """Give a variant an agent: that of its name if it is free. Without room it has to wait."""
        if len(self._known) >= self._max_agents and not self._forget_known(keep):
            return
        agent = self._plain.pop(name, None) if name is not None else None
        if agent is None:
            agent = Agent(self._free_id(name))
        agent.salt = salt
        variant.agent = agent
        self._known[key] = self._new.pop(key)

    def _free_id(self, name: str | None) -> str:
        number = 1
        found = name if name is not None else "shared-1"
        while found in self._ids:
            number += 1
            end = f"#{number}"
            found = f"{name[: MAX_NAME - len(end)]}{end}" if name is not None else f"shared-{number}"
        self._ids.add(found)
        return found

    def _without_prefix(self, name: str | None, keep: Collection[str]) -> Agent:
        """Return the agent of a name that no variant has, or the common one."""
        if name is None:
            return self._unshared
        agent = self._plain.get(name)
        if agent is not None:
            self._plain.move_to_end(name)
            return agent
        if name in self._ids:
            return self._unshared
        if len(self._plain) >= self._max_agents:
            oldest = next((other for other in self._plain if other not in keep), None)
            if oldest is None:
                return self._unshared
            del self._plain[oldest]
            self._ids.remove(oldest)
        self._ids.add(name)
        agent = self._plain[name] = Agent(name)
        return agent

    def _forget(self, latest: Hashable, keep: Collection[str]) -> None:
        for variant in self._known.values():
            if self._bytes <= self._max_bytes:
                break
            self._bytes -= variant.trim()
        while len(self._new) > self._max_agents or (self._bytes > self._max_bytes and self._new):
            oldest = next((key for key in self._new if key != latest), None)
            if oldest is None:
                break
            self._bytes -= self._new.pop(oldest).size
        while self._bytes > self._max_bytes and self._forget_known(keep, latest):
            pass

    def _forget_known(self, keep: Collection[str], latest: Hashable = None) -> bool:
        for key, variant in self._known.items():
            agent = variant.agent
            if key != latest and agent is not None and agent.id not in keep:
                del self._known[key]
                self._bytes -= variant.size
                self._ids.remove(agent.id)
                return True
        return False


def _update(agent: Agent, shared: bytes) -> None:
    if len(shared) == len(agent.prefix) * _WORD and agent.prefix.astype(_BIG).tobytes() == shared:
        return
    prefix = np.frombuffer(shared, _BIG).astype(np.int64)
    prefix.setflags(write=False)
    agent.prefix = prefix
