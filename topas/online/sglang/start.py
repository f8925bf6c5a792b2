"""Putting the plugin together inside a scheduler's process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from topas.event import Params
from topas.online.sglang.book import Book
from topas.online.sglang.compat import installed_version
from topas.online.sglang.config import ServingConfig, load_config
from topas.online.sglang.engine import SGLangEngine
from topas.online.sglang.joint_scheduling import JointScheduling
from topas.online.sglang.log import DecisionWriter
from topas.online.sglang.metrics import metrics_for
from topas.online.sglang.queue_scheduling import QueueScheduling
from topas.online.sglang.scheduling import Scheduling
from topas.policies import JointPolicy, QueuePolicy, get_policy
from topas.profile import Profile, load_profile

logger = logging.getLogger("topas")

DEFAULT_PROFILE = "a100-80g-qwen2.5-32b"
"""Engine constants where the operator names none: their ratios matter more than their size."""


def start(scheduler: Any, config_path: str | None, clock: Callable[[], float]) -> Scheduling:  # noqa: ANN401
    """Return the scheduling of one scheduler.

    Raises
    ------
    InputError
        if the configuration or the profile it names is wrong; the server must not start then.
    """
    config = load_config(config_path)
    policy = get_policy(scheduler.schedule_policy)
    engine = SGLangEngine(scheduler)
    book = Book(config, _profile(config, engine), config.params.on(Params()))
    info = {"policy": policy.name, "version": version("topas"), "sglang": installed_version() or ""}
    metrics = metrics_for(scheduler, info)
    log = None if config.decision_log is None else DecisionWriter(config.decision_log)
    scheduling: Scheduling
    if isinstance(policy, JointPolicy):
        policy.prepare()
        scheduling = JointScheduling(engine, book, policy, metrics, clock, log)
    elif isinstance(policy, QueuePolicy):
        scheduling = QueueScheduling(engine, book, policy, metrics, clock)
    logger.warning(
        "topas %s schedules: policy %s, %d KV tokens, %d running requests, profile %s, configuration %s",
        version("topas"), policy.name, engine.kv_tokens, engine.max_running,
        config.profile or f"{DEFAULT_PROFILE} (see topas profile fit)", config_path or "none",
    )  # fmt: skip
    return scheduling


def _profile(config: ServingConfig, engine: SGLangEngine) -> Profile:
    """Return the engine's constants; memory and batch size are always the live engine's."""
    profile = load_profile(config.profile or DEFAULT_PROFILE)
    return profile.model_copy(
        update={
            "kv_budget_tokens": engine.kv_tokens,
            "max_running": engine.max_running,
            "host_cache": engine.has_host_tier,
        }
    )
