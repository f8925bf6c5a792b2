"""What TOPAS needs of a running SGLang scheduler: reading its state, and moving prefixes and requests.

This file and :mod:`topas.online.sglang.plugin` are all that knows SGLang's inside; versions are checked in
:mod:`topas.online.sglang.compat`. Nothing here decides anything.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from topas.online.sglang.prefixes import Agent

MAX_KEYS = 1024
"""Agents whose prefix is kept in the form that SGLang's tree takes."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A lock on the part of an agent's prefix that is in GPU memory: ``tokens`` of ``prefix``."""

    lock: Any
    tokens: int
    prefix: np.ndarray[Any, np.dtype[np.integer[Any]]]


class SGLangEngine:
    """One scheduler process of SGLang. Requests are SGLang's ``Req`` objects."""

    def __init__(self, scheduler: Any) -> None:  # noqa: ANN401  SGLang's types are not imported here
        self.scheduler = scheduler
        self.tree = scheduler.tree_cache
        self.page_tokens: int = scheduler.page_size
        self.kv_tokens: int = scheduler.max_total_num_tokens
        self.max_running: int = scheduler.max_running_requests
        self._keys: dict[str, tuple[Any, Any]] = {}

    # --- state ----------------------------------------------------------------------------------------

    @property
    def new_token_ratio(self) -> float:
        """Return the share of what a request may still generate that SGLang reserves now."""
        return float(self.scheduler.new_token_ratio_tracker.current)

    @property
    def waiting(self) -> list[Any]:
        """Return the queue; assigning to it replaces it."""
        queue: list[Any] = self.scheduler.waiting_queue
        return queue

    @waiting.setter
    def waiting(self, queue: list[Any]) -> None:
        self.scheduler.waiting_queue = queue

    @property
    def chunked(self) -> Any:  # noqa: ANN401  a Req or None
        """Return the request between two chunks of its prefill: it runs, but stands in no batch."""
        return self.scheduler.chunked_req

    def running(self, batch: Any) -> list[Any]:  # noqa: ANN401  a ScheduleBatch
        """Return the admitted requests that are not finished."""
        found = [req for req in batch.reqs if not req.finished()]
        chunked = self.chunked
        if chunked is not None and not chunked.finished() and all(req is not chunked for req in found):
            found.append(chunked)
        return found

    @property
    def free_tokens(self) -> int:
        """Return the KV tokens that are free or evictable."""
        return int(self.scheduler.token_to_kv_pool_allocator.available_size() + self.tree.evictable_size())

    @property
    def has_grammars(self) -> bool:
        """Return whether requests wait for a grammar to compile; SGLang must look after those."""
        return bool(self.scheduler.grammar_manager.has_waiting_grammars())

    @property
    def has_host_tier(self) -> bool:
        """Return whether evicted KV can live on in host memory."""
        return getattr(self.tree, "cache_controller", None) is not None

    # --- prefixes -------------------------------------------------------------------------------------

    def on_gpu(self, agent: Agent) -> int:
        """Return how many tokens of an agent's prefix are in GPU memory. Changes nothing, not even LRU."""
        return int(self._found(agent)[0])

    def pin(self, agent: Agent, pin: Pin | None) -> Pin | None:
        """Lock what is there of a prefix; ``pin`` is the lock on it so far, given up if the new one differs.

        The walk splits the node that crosses the prefix's end, so exactly the prefix is locked.
        """
        found = self._found(agent)[0]
        if pin is not None and pin.prefix is agent.prefix and pin.tokens == found:
            return pin
        new = None
        if found:
            match = self.tree.match_prefix(self._match_params(agent))
            if match.device_prefix_len:
                new = Pin(self.tree.lock(match.last_device_node), match.device_prefix_len, agent.prefix)
        try:
            self.unpin(pin)  # after the deeper lock: nothing may be evicted in between
        except BaseException:
            self.unpin(new)
            raise
        return new

    def unpin(self, pin: Pin | None) -> None:
        """Give up a lock; the prefix stays as an evictable leftover."""
        if pin is not None:
            self.tree.unlock(pin.lock)

    def touch(self, agent: Agent) -> None:
        """Make what is there of a prefix the most recently used in SGLang's order of eviction."""
        if agent.prefix_tokens:
            self.tree.touch_prefix(self._key(agent))

    def release(self, agent: Agent) -> int:
        """Move an unlocked prefix, and all that is cached behind it, off the GPU; return the tokens.

        SGLang's own eviction walk offers evictable leaves in LRU order; those behind the prefix are
        taken, then the prefix itself up to where others share it, and all others are passed over. With a
        host tier what has no copy there yet is written first.
        """
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: PLC0415

        tokens, node, _ = self._found(agent)
        if not tokens:
            return 0
        tree, core, full = self.tree, self.tree.tree_core, ComponentType.FULL
        path = {step.node_id for step in core.collect_path_info([node])[0]}
        tracker: dict[Any, int] = defaultdict(int)
        core.evict_device_start(full, tree.evictable_size())
        try:
            while True:
                leaf, progress = tree._evict_device_next_node(full, tracker)  # noqa: SLF001
                if leaf is None:
                    if not progress:
                        break
                elif leaf in path or any(step.node_id == node for step in core.collect_path_info([leaf])[0]):
                    self._evict(leaf, tracker)
                    path.discard(leaf)
                    if not path:
                        break
        finally:
            core.evict_device_end(full)
        return int(tracker[full])

    def _evict(self, leaf: int, tracker: dict[Any, int]) -> None:
        """Evict one leaf as SGLang does, with a copy to host memory where that is due."""
        tree = self.tree
        backup = tree._evict_device_leaf(leaf, tracker)  # noqa: SLF001
        if backup is None:
            return
        if tree._execute_and_commit_kv_backup(backup, write_back=True) > 0:  # noqa: SLF001
            tree.writing_check(write_back=True)
            tree._demote(leaf, tracker)  # noqa: SLF001
        else:
            tree._drop_subtree_no_host(leaf, tracker)  # noqa: SLF001

    def _found(self, agent: Agent) -> tuple[int, Any, int]:
        if not agent.prefix_tokens:
            return 0, None, 0
        found: tuple[int, Any, int] = self.tree.tree_core.match_full_device_prefix(self._key(agent))
        return found

    def _key(self, agent: Agent) -> Any:  # noqa: ANN401  a RadixKey
        from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: PLC0415

        known = self._keys.get(agent.id)
        if known is None or known[0] is not agent.prefix:
            if len(self._keys) >= MAX_KEYS:
                self._keys.clear()  # of agents that are forgotten, for the most part
            extra_key, cache_salt = cast("tuple[Any, Any]", agent.salt)
            key = RadixKey(array("q", agent.prefix.tolist()), extra_key=extra_key, cache_salt=cache_salt)
            known = self._keys[agent.id] = (agent.prefix, key)
        return known[1]

    def _match_params(self, agent: Agent) -> Any:  # noqa: ANN401
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams  # noqa: PLC0415

        return MatchPrefixParams(key=self._key(agent))

    # --- requests -------------------------------------------------------------------------------------

    def preempt(self, reqs: Sequence[Any], batch: Any) -> list[Any]:  # noqa: ANN401
        """Put running requests back at the queue's front, their KV kept as an evictable leftover.

        Returns those that were put back: one that is finishing, aborted, in the middle of its prefill or
        part of a beam stays. A returned one must not run again in the same scheduling step: with the
        overlap scheduler its last token is still on its way.
        """
        from sglang.srt.mem_cache.common import release_kv_cache  # noqa: PLC0415

        present = {id(req) for req in batch.reqs}
        out = [
            req
            for req in reqs
            if id(req) in present
            and not req.finished()
            and req.to_finish is None
            and req.beam_group is None
            and req is not self.chunked
        ]
        if not out:
            return out
        gone = {id(req) for req in out}
        for req in out:
            release_kv_cache(req, self.tree, checkpoint=True)
            req.reset_for_retract()
            req.time_stats.set_wait_queue_entry_time()
        batch.filter_batch(keep_indices=[k for k, req in enumerate(batch.reqs) if id(req) not in gone])
        batch.batch_is_full = False
        # not through _add_request_to_queue, which may abort it where the queue's length is limited
        self.waiting = out + self.waiting
        return out


def tokens_of(ids: Any) -> np.ndarray[Any, np.dtype[np.int64]]:  # noqa: ANN401  list or array('q')
    """Return token ids as an array, without a copy where they are one already."""
    if isinstance(ids, array) and ids.typecode == "q":
        return np.frombuffer(ids, dtype=np.int64)
    return np.asarray(ids, dtype=np.int64)
