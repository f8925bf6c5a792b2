"""A second SGLang plugin, for tests: it looks into the scheduler, and plants failures in TOPAS.

A request whose custom_params hold {"probe": {"op": ..., "out": FILE}} is a command: what is found is
written to FILE as JSON. Put this folder on PYTHONPATH and SGLang finds the plugin by its dist-info.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FAIL: dict[str, int] = {}
"""Which call of which planted function raises: {"event": 3} fails every third event."""


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    HookRegistry.register(f"{scheduler}._add_request_to_queue", _before_arrival, HookType.BEFORE)
    HookRegistry.register(f"{scheduler}.init_schedule_policy", _plant, HookType.AFTER)


def _before_arrival(scheduler: Any, req: Any, *_args: object, **_kwargs: object) -> None:
    params = req.sampling_params.custom_params
    command = params.get("probe") if isinstance(params, dict) else None
    if command:
        answer = _obey(scheduler, command)
        target = Path(command["out"])
        target.with_suffix(".part").write_text(json.dumps(answer))
        target.with_suffix(".part").replace(target)


def _obey(scheduler: Any, command: dict[str, Any]) -> dict[str, Any]:
    from topas.online.sglang import plugin

    if command["op"] == "fail":
        FAIL.clear()
        FAIL.update(command["every"])
    tree = scheduler.tree_cache
    answer: dict[str, Any] = {
        "total": scheduler.max_total_num_tokens,
        "free": scheduler.token_to_kv_pool_allocator.available_size(),
        "evictable": tree.evictable_size(),
        "protected": tree.protected_size(),
        "waiting": len(scheduler.waiting_queue),
        "running": len(scheduler.running_batch.reqs),
        "rows": scheduler.req_to_token_pool.available_size(),
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
        }
    return answer


def _plant(_: object, scheduler: Any, *_args: object, **_kwargs: object) -> None:
    from topas.online.sglang import plugin

    if not plugin._active:
        return
    current = plugin._active[0]
    for kind, owner, name in (
        ("event", current, "_event"),
        ("offer", current, "_offer"),
        ("taken", current, "_taken"),
        ("arrived", current, "arrived"),
        ("released", current, "released"),
        ("carry_out", current, "_carry_out"),
    ):
        if hasattr(owner, name):
            _wrap(owner, name, kind)


def _wrap(owner: Any, name: str, kind: str) -> None:
    original = getattr(owner, name)
    calls = 0

    def planted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        every = FAIL.get(kind, 0)
        calls += 1
        if every and calls % every == 0:
            raise RuntimeError(f"planted in {kind}")
        result = original(*args, **kwargs)
        if every and calls % every == every // 2 and kind == "carry_out":
            raise RuntimeError("planted behind carry_out")
        return result

    setattr(owner, name, planted)
