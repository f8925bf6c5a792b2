"""KV memory of the simulated engine: prefixes in use, evictable leftovers, host copies, and the link.

A prefix with admitted requests is in use. A prefix without any, and the dynamic KV of finished requests,
stay as evictable leftovers in order of their last use (LRU, leaves of the radix tree first) until their
room is needed. With the host tier on, what is evicted is copied to host memory once and can be loaded
again; loads and write-backs share one link and are served in order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from topas.online.foresight import LATE

Key = tuple[str, str, int]
"""A leftover: (agent, "", -1) is its prefix, (agent, task, stage) the dynamic KV of a stage."""


class KvCache:
    """Token-exact accounting; ``used`` + ``leftover`` never exceeds ``budget`` after :meth:`trim`.

    With ``steps``, the steps to execution of each agent, leftovers go by these instead of by age: contexts
    first, then the prefix that is wanted last (an agent without steps is not wanted).
    """

    def __init__(
        self, budget: int, prefixes: Mapping[str, int], *, host: bool, swap_s_per_token: float
    ) -> None:
        self.budget = budget
        self.used = 0
        self.leftover = 0
        self.loads = 0
        self._prefixes = prefixes
        self._host = host
        self._swap_s = swap_s_per_token
        self._link_free_s = 0.0
        self._users: dict[str, int] = {}
        self._ready_s: dict[str, float] = {}
        self._leftovers: OrderedDict[Key, int] = OrderedDict()
        self._children: dict[str, OrderedDict[Key, None]] = {}
        self._on_host: dict[Key, int] = {}
        self.steps: Mapping[str, int] | None = None

    @property
    def active(self) -> Mapping[str, int]:
        """Return agents whose prefix is in use, with the number of requests that use it."""
        return self._users

    @property
    def resident(self) -> list[str]:
        """Return agents whose prefix is on the GPU or on its way there."""
        return list(self._ready_s)

    def cached(self, agent: str, task: str, stage: int, reused: int) -> int:
        """Return how many tokens of a prompt are on the GPU: prefix, and context of the same stage."""
        if agent not in self._ready_s:
            return 0
        return self._prefixes[agent] + min(self._leftovers.get((agent, task, stage), 0), reused)

    def acquire(self, agent: str, now_s: float) -> tuple[float, bool]:
        """Use a prefix; return when it is ready, and whether a prefill must compute it.

        An absent prefix is loaded from host if a copy exists there, else computed once.
        """
        users = self._users.get(agent, 0)
        self._users[agent] = users + 1
        tokens = self._prefixes[agent]
        if users == 0:
            self.used += tokens
            key = (agent, "", -1)
            if key in self._leftovers:
                self.leftover -= self._leftovers.pop(key)
            elif agent not in self._ready_s:
                self.loads += 1
                if key in self._on_host:
                    self._ready_s[agent] = self._transfer(tokens, now_s)
                else:
                    self._ready_s[agent] = now_s
                    return now_s, True
        return self._ready_s[agent], False

    def release(self, agent: str) -> None:
        """Stop using a prefix; after its last user it is an evictable leftover."""
        self._users[agent] -= 1
        if not self._users[agent]:
            del self._users[agent]
            tokens = self._prefixes[agent]
            self.used -= tokens
            self._leave((agent, "", -1), tokens)

    def take_context(self, agent: str, task: str, stage: int, reused: int, now_s: float) -> tuple[int, float]:
        """Take over a stage's previous KV; return how many tokens need no prefill, and when they are there.

        What is left on the GPU beyond ``reused`` tokens stays a part of the older branch and is dropped.
        """
        key = (agent, task, stage)
        found = self._leftovers.pop(key, None)
        if found is not None:
            self.leftover -= found
            self._children[agent].pop(key)
            return min(found, reused), now_s
        stored = min(self._on_host.get(key, 0), reused)
        return (stored, self._transfer(stored, now_s)) if stored else (0, now_s)

    def leave_context(self, agent: str, task: str, stage: int, tokens: int) -> None:
        """Keep the dynamic KV of a finished request as a leftover; its tokens are no longer in use."""
        if tokens:
            self._on_host.pop((agent, task, stage), None)  # an older context of the stage
            self._leave((agent, task, stage), tokens)
            self._children.setdefault(agent, OrderedDict())[agent, task, stage] = None

    def touch(self, agent: str) -> None:
        """Make an idle prefix the most recently used leftover, as a look-up in a radix tree does."""
        key = (agent, "", -1)
        if key in self._leftovers:
            self._leftovers.move_to_end(key)

    def evict_prefix(self, agent: str, now_s: float) -> None:
        """Move an unused prefix off the GPU, with everything cached behind it."""
        for key in list(self._children.get(agent, ())):
            self._evict(key, now_s)
        if (agent, "", -1) in self._leftovers:
            self._evict((agent, "", -1), now_s)

    def trim(self, now_s: float) -> None:
        """Evict least recently used leftovers until everything fits."""
        while self.leftover and self.used + self.leftover > self.budget:
            self._evict(self._oldest() if self.steps is None else self._wanted_last(self.steps), now_s)

    def _oldest(self) -> Key:
        """Return the least recently used leftover, leaves of the radix tree first."""
        key = next(iter(self._leftovers))
        if not key[1] and self._children.get(key[0]):
            key = next(iter(self._children[key[0]]))
        return key

    def _wanted_last(self, steps: Mapping[str, int]) -> Key:
        """Return a context, else a prefix: that of most steps to execution, the oldest of equals."""
        return max(self._leftovers, key=lambda key: (bool(key[1]), steps.get(key[0], LATE)))

    def load_ahead(self, now_s: float) -> None:
        """Load the prefixes of agents that are one step away, over those that are wanted later."""
        steps = self.steps or {}
        for agent in sorted(name for name, count in steps.items() if count == 1):
            tokens = self._prefixes[agent]
            if agent in self._ready_s or (agent, "", -1) not in self._on_host:
                continue
            later = sum(
                size for key, size in self._leftovers.items() if key[1] or steps.get(key[0], LATE) > 1
            )
            if self.used + self.leftover - later + tokens <= self.budget:
                self.loads += 1
                self._ready_s[agent] = self._transfer(tokens, now_s)
                self._leave((agent, "", -1), tokens)
                self.trim(now_s)

    def _leave(self, key: Key, tokens: int) -> None:
        self.leftover += tokens - self._leftovers.pop(key, 0)
        self._leftovers[key] = tokens

    def _evict(self, key: Key, now_s: float) -> None:
        tokens = self._leftovers.pop(key)
        self.leftover -= tokens
        if self._host and self._on_host.get(key, 0) < tokens:
            self._on_host[key] = tokens
            self._transfer(tokens, now_s)
        if key[1]:
            self._children[key[0]].pop(key)
        else:
            del self._ready_s[key[0]]

    def _transfer(self, tokens: int, now_s: float) -> float:
        self._link_free_s = max(self._link_free_s, now_s) + tokens * self._swap_s
        return self._link_free_s
