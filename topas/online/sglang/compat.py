"""Which SGLang this plugin was built for and tested with, and which of its modes it can serve under."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

SUPPORTED = ("0.5.23",)
"""Tested versions of SGLang: the seams used are not a public interface, so others are refused."""


class UnsupportedError(RuntimeError):
    """SGLang, or the way it was started, is not supported; the message says what to change."""


def installed_version() -> str | None:
    """Return the version of the installed SGLang."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def version_problem() -> str | None:
    """Return why the installed SGLang cannot be used, None if it can."""
    found = installed_version()
    if found is None:
        return "SGLang is not installed"
    plain = found.partition("+")[0].removesuffix(".post1")
    if plain not in SUPPORTED:
        return f"SGLang {found} is not supported; topas was tested with {', '.join(SUPPORTED)}"
    return None


def require_supported_mode(scheduler: Any) -> None:  # noqa: ANN401
    """Refuse what was never tested under TOPAS, before the first request.

    Raises
    ------
    UnsupportedError
        naming the option to change.
    """
    args = scheduler.server_args

    def option(name: str, default: object = None) -> Any:  # noqa: ANN401
        return getattr(args, name, default)

    problems = {
        "--tp-size above 1": option("tp_size", 1) > 1,
        "--pp-size above 1": option("pp_size", 1) > 1,
        "--dp-size above 1": option("dp_size", 1) > 1,
        "--disable-radix-cache": option("disable_radix_cache", default=False),
        "--enable-priority-scheduling": option("enable_priority_scheduling", default=False),
        "--speculative-algorithm": option("speculative_algorithm") is not None,
        "--disaggregation-mode": option("disaggregation_mode", "null") not in ("null", None),
        "--enable-lora": bool(option("enable_lora", default=False)),
        "a hierarchical cache with a storage backend": option("hicache_storage_backend") is not None,
        "--enable-streaming-session": bool(option("enable_streaming_session", default=False)),
        "embedding and reward models": not scheduler.is_generation,
        "sliding-window models": bool(scheduler.is_hybrid_swa),
        "Mamba models": bool(scheduler.tree_cache.supports_mamba()),
        "diffusion language models": scheduler.dllm_config is not None,
    }
    wrong = [name for name, present in problems.items() if present]
    if type(scheduler.tree_cache).__name__ != "UnifiedRadixCache":
        wrong.append(f"the prefix cache {type(scheduler.tree_cache).__name__}")
    if wrong:
        raise UnsupportedError(
            f"--schedule-policy topas does not work with {', '.join(wrong)}: not tested there yet"
        )
