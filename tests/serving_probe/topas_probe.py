"""A second SGLang plugin, for tests: it looks into the scheduler, and plants failures in TOPAS.

A request whose custom_params hold {"probe": TEXT} is a command, TEXT being the JSON of {"op": ..., "out":
FILE}: what is found is written to FILE as JSON. Put this folder on PYTHONPATH and SGLang finds the plugin by
its dist-info.

Commands: ``state`` describes pool, queue and book; ``fail`` plants failures, {"every": {"event": 3}} one in
every third call, an empty object none; ``evict`` has all cached KV evicted that nothing has locked;
``policy`` has another policy decide, {"policy": "spf"}, which then goes without metrics.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

FAIL: dict[str, int] = {}
"""Which call of which planted function raises: {"event": 3} fails every third event."""

RAISED: dict[str, int] = {}
"""How many failures were raised."""

KEPT: dict[str, Any] = {}
"""The schedulings of the policies that were switched to."""

ORDER: list[str] = []
"""Request ids in the order in which they were taken into a batch."""

PLANTED: list[Any] = []
"""What can fail by now."""

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def register() -> None:
    """Have the scheduler hooked."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    HookRegistry.register(f"{SCHEDULER}._add_request_to_queue", _before_arrival, HookType.BEFORE)
    HookRegistry.register(f"{SCHEDULER}.run_batch", _before_batch, HookType.BEFORE)


def _before_batch(_: Any, batch: Any, *_args: object, **_kwargs: object) -> None:  # noqa: ANN401
    if batch.forward_mode.is_extend():
        ORDER.extend(req.rid for req in batch.reqs)


def _before_arrival(scheduler: Any, req: Any, *_args: object, **_kwargs: object) -> None:  # noqa: ANN401
    params = req.sampling_params.custom_params
    text = params.get("probe") if isinstance(params, dict) else None
    if text:
        command = json.loads(text)
        target = Path(command["out"])
        part = target.with_suffix(".part")
        part.write_text(json.dumps(_obey(scheduler, command)))
        part.replace(target)


def _obey(scheduler: Any, command: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    from topas.online.sglang import plugin  # noqa: PLC0415

    tree = scheduler.tree_cache
    raised = dict(RAISED)
    if command["op"] == "fail":
        if not PLANTED:
            PLANTED.append(plugin._active[0])
            _plant(plugin._active[0])
        FAIL.clear()
        FAIL.update(command["every"])
        RAISED.clear()
    elif command["op"] == "evict":
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams  # noqa: PLC0415

        tree.evict(EvictParams(num_tokens=tree.evictable_size()))
    elif command["op"] == "policy":
        _switch(scheduler, command["policy"])
    answer: dict[str, Any] = {
        "total": scheduler.max_total_num_tokens,
        "free": scheduler.token_to_kv_pool_allocator.available_size(),
        "evictable": tree.evictable_size(),
        "protected": tree.protected_size(),
        "waiting": len(scheduler.waiting_queue),
        "running": len(scheduler.running_batch.reqs) + (scheduler.chunked_req is not None),
        "rows": scheduler.req_to_token_pool.available_size(),
        "all_rows": scheduler.req_to_token_pool.size,
        "raised_before": raised,
        "order": ORDER[-10_000:],
    }
    try:
        answer["sanity"] = str(tree.sanity_check() or "ok")
    except BaseException as error:  # noqa: BLE001  the test shows it
        answer["sanity"] = repr(error)[:300]
    if plugin._active:
        current = plugin._active[0]
        answer |= {
            "entries": len(current.book.entries),
            "jobs": len(current.book.jobs),
            "tracked": len(current.book.tracker.tasks),
            "pins": {name: pin.tokens for name, pin in getattr(current, "_pins", {}).items()},
            "on_gpu": {agent.id: current.engine.on_gpu(agent) for agent in current.book.prefixes},
            "prefixes": {agent.id: agent.prefix_tokens for agent in current.book.prefixes},
            "keys": len(current.engine._keys),
            "falls_back": getattr(current, "_chosen", ()) is None,
        }
    return answer


def _switch(scheduler: Any, policy: str) -> None:  # noqa: ANN401
    """Begin anew with another policy: a start of the server takes half a minute."""
    from topas.online.sglang import plugin  # noqa: PLC0415
    from topas.online.sglang.start import start  # noqa: PLC0415

    KEPT.setdefault(scheduler.schedule_policy, plugin._active[0])
    if policy not in KEPT:
        metrics = os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)  # the names are taken
        scheduler.schedule_policy = policy
        KEPT[policy] = start(scheduler, os.environ.get("TOPAS_CONFIG"), time.monotonic)
        if metrics is not None:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
    scheduler.schedule_policy = policy
    plugin._active[:] = [KEPT[policy]]


def _plant(current: Any) -> None:  # noqa: ANN401
    """Make the functions of TOPAS breakable, at the first command: plugins are loaded in any order."""
    planted = {
        current: {
            "event": "_event", "order": "_order", "offer": "_offer", "taken": "_taken", "arrived": "arrived",
            "released": "released", "reconcile": "reconcile", "carry_out": "_carry_out", "keep": "_keep",
            "put_back": "_preempt", "give_up": "_release", "show": "_show",
        },
        current.engine: {
            "pin": "pin", "unpin": "unpin", "release": "release", "touch": "touch", "preempt": "preempt",
        },
        current.book: {"snapshot": "event", "enter": "arrived", "leave": "left", "admit": "admitted"},
    }  # fmt: skip
    for owner, names in planted.items():
        for kind, name in names.items():
            if hasattr(owner, name):
                _wrap(owner, name, kind)


def _wrap(owner: Any, name: str, kind: str) -> None:  # noqa: ANN401
    """Have a method raise before its work, or (kind with a +) behind it."""
    original = getattr(owner, name)
    calls = {kind: 0, f"{kind}+": 0}

    def fail(which: str) -> None:
        every = FAIL.get(which, 0)
        if every:
            calls[which] += 1
            if calls[which] % every == 0:
                RAISED[which] = RAISED.get(which, 0) + 1
                raise RuntimeError(f"planted in {which}")

    def planted(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        fail(kind)
        result = original(*args, **kwargs)
        fail(f"{kind}+")
        return result

    setattr(owner, name, planted)
