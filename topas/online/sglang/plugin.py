"""The plugin that SGLang loads by its entry-point group ``sglang.srt.plugins``.

:func:`register` runs in every process of a server, before arguments are parsed, so it imports next to
nothing. It offers our policies to ``--schedule-policy`` and hooks the scheduler; the hooks do nothing
unless one of our policies was chosen.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import typing
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from topas.online.sglang.compat import (
    UnsupportedError,
    installed_version,
    require_supported_mode,
    version_problem,
)

if TYPE_CHECKING:
    from topas.online.sglang.scheduling import Scheduling

logger = logging.getLogger("topas")

POLICIES = (
    "topas", "topas-paper", "topas-score", "topas-base", "topas-no-reuse", "topas-no-aging",
    "parrot-fcfs", "autellix-las", "spf",
)  # fmt: skip
"""Policies of the registry that run in SGLang; it has ``fcfs``, ``lpm`` and ``hrrn`` itself."""

SIMULATED = ("kvflow", "downstream-gate", "topas-exact")
"""Policies of the registry that do not: a cache of its own, a strawman, and one that takes too long."""

_active: list[Scheduling] = []
"""The one scheduling of this process, if it is a scheduler under one of our policies."""


def register() -> None:
    """Offer the policies and hook the scheduler.

    Where this SGLang is not supported the policies are not offered, so that the server refuses to start
    with them; other policies are not affected.
    """
    problem = version_problem()
    if problem:
        logger.error("topas: %s; --schedule-policy topas is not available", problem)
        if _asked_for(sys.argv):
            raise SystemExit(f"topas: {problem}")
        return
    if refused := sorted(_chosen(sys.argv) & set(SIMULATED)):
        raise SystemExit(f"topas: {refused[0]} runs in the simulator only")
    if _asked_for(sys.argv):
        _read_config_early()
    _offer_policies()
    _hook()


def _chosen(argv: list[str]) -> set[str]:
    """Return the scheduling policies that a command line names."""
    chosen = {value for flag, value in pairwise(argv) if flag == "--schedule-policy"}
    return chosen | {arg.partition("=")[2] for arg in argv if arg.startswith("--schedule-policy=")}


def _asked_for(argv: list[str]) -> bool:
    """Return whether a command line chooses one of our policies."""
    return bool(_chosen(argv) & set(POLICIES))


def _read_config_early() -> None:
    """Refuse a wrong configuration with one line, before a model is loaded."""
    from topas.errors import InputError  # noqa: PLC0415  as all imports here
    from topas.online.sglang.config import load_config  # noqa: PLC0415

    try:
        load_config(os.environ.get("TOPAS_CONFIG"))
    except InputError as error:
        raise SystemExit(f"topas: {error}") from None


def _offer_policies() -> None:
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415

    hint = typing.get_type_hints(ServerArgs, include_extras=True)["schedule_policy"]
    choices = next(extra.choices for extra in hint.__metadata__ if getattr(extra, "choices", None))
    choices.extend(name for name in POLICIES if name not in choices)


_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_TREE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_POLICY = "sglang.srt.managers.schedule_policy.SchedulePolicy"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_SERVING = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase"


def _hook() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415

    for target, (hook, kind) in _HOOKS.items():
        HookRegistry.register(target, hook, HookType(kind))


def _require_hooks() -> None:
    """Stop the start where a hook could not be applied: SGLang only logs that, and would serve without it."""
    from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: PLC0415

    missing = sorted(_HOOKS.keys() - HookRegistry._patched)  # noqa: SLF001  there is no public question
    if missing:
        raise UnsupportedError(f"topas could not hook {', '.join(missing)}")


# --- hooks: SGLang calls these -------------------------------------------------------------------------


def _around_validation(original: Callable[..., Any], this: Any, policy: str, tree_cache: Any) -> Any:  # noqa: ANN401
    """Let SGLang's own policy object believe that it orders first come, first served."""
    if policy in SIMULATED:  # from Python; a command line was refused before
        raise UnsupportedError(f"topas: {policy} runs in the simulator only")
    if policy in POLICIES:
        _require_hooks()
        policy = "fcfs"
    return original(this, policy, tree_cache)


def _after_init(_: object, scheduler: Any, *_args: object, **_kwargs: object) -> None:  # noqa: ANN401
    """Start TOPAS where one of its policies was chosen. What is wrong here stops the server's start."""
    if scheduler.schedule_policy not in POLICIES:
        return
    require_supported_mode(scheduler)
    from topas.online.sglang.start import start  # noqa: PLC0415  numba and numpy: not in other processes

    _active[:] = [start(scheduler, os.environ.get("TOPAS_CONFIG"), time.monotonic)]
    logger.info("topas: ready on SGLang %s", installed_version())


def _around_prefill(original: Callable[..., Any], this: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    if not _active:
        return original(this, *args, **kwargs)
    batch = kwargs["running_batch"] if "running_batch" in kwargs else args[1]
    return _active[0].prefill(lambda: original(this, *args, **kwargs), batch)


def _after_arrival(_: object, __: object, req: Any, *_args: object, **_kwargs: object) -> None:  # noqa: ANN401
    if _active:
        current = _active[0]
        current.guard("arrival", lambda: current.arrived(req), _nothing)


def _after_release(_: object, __: object, req: Any, *_args: object, **_kwargs: object) -> None:  # noqa: ANN401
    if _active:
        current = _active[0]
        current.guard("release", lambda: current.released(req), _nothing)


def _after_abort(*_args: object, **_kwargs: object) -> None:
    if _active:
        _active[0].aborted()


def _after_reset(*_args: object, **_kwargs: object) -> None:
    if _active:
        _active[0].reset()


def _after_routing_key(result: str | None, this: Any, raw_request: Any) -> str | None:  # noqa: ANN401
    """Carry session headers that are common among agent clients to the scheduler, where no key is used."""
    if result is not None or raw_request is None or not _is_ours(this.tokenizer_manager):
        return None
    from topas.online.sglang.facts import pack_headers  # noqa: PLC0415

    try:
        return pack_headers(raw_request.headers)
    except Exception:  # noqa: BLE001  a header must not fail a request
        return None


def _before_tokenized(this: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Send facts that are nested deeply as text: SGLang's scheduler would end on them."""
    given = getattr(obj, "sampling_params", None)
    if _is_ours(this) and isinstance(given, dict) and "custom_params" in given:
        from topas.online.sglang.facts import flat_params  # noqa: PLC0415

        obj.sampling_params = given | {"custom_params": flat_params(given["custom_params"])}
    return (this, obj, *args), kwargs


def _is_ours(tokenizer_manager: Any) -> bool:  # noqa: ANN401
    """Return whether the server was started with one of our policies, in its HTTP process."""
    return tokenizer_manager.server_args.schedule_policy in POLICIES


def _nothing() -> None:
    """Leave things as they are."""


_HOOKS: dict[str, tuple[Callable[..., Any], str]] = {
    f"{_POLICY}._validate_and_adjust_policy": (_around_validation, "around"),
    f"{_SCHEDULER}.init_schedule_policy": (_after_init, "after"),
    f"{_SCHEDULER}._get_new_batch_prefill_raw": (_around_prefill, "around"),
    f"{_SCHEDULER}._add_request_to_queue": (_after_arrival, "after"),
    f"{_SCHEDULER}.abort_request": (_after_abort, "after"),
    f"{_TREE}.on_release": (_after_release, "after"),
    f"{_TREE}.reset": (_after_reset, "after"),
    f"{_SERVING}.extract_routing_key": (_after_routing_key, "after"),
    f"{_TOKENIZER}._create_tokenized_object": (_before_tokenized, "before"),
}
