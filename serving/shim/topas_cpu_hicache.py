"""SGLang plugin: the hierarchical cache (``--enable-hierarchical-cache``) with ``--device cpu``.

SGLang 0.5.23 registers the host buffer with CUDA and copies between the tiers with a CUDA kernel. On a CPU
both tiers are ordinary memory: nothing has to be registered, and the copy is an assignment by index, done
when it returns.

Active where the environment has ``TOPAS_CPU_HICACHE=1``. Needs ``--hicache-io-backend direct`` and
``--hicache-mem-layout layer_first``, the one combination that uses this copy.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SWITCH = "TOPAS_CPU_HICACHE"


def register() -> None:
    """Have both functions replaced before a scheduler builds its caches, if the switch is on."""
    value = os.environ.get(SWITCH, "0")
    if value not in {"0", "1"}:
        raise ValueError(f"{SWITCH} must be 0 or 1, not {value!r}")
    if value == "1":
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 # found by SGLang only

        HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", _replace, HookType.BEFORE)


def _replace(*_args: object, **_kwargs: object) -> None:
    # Imported this late because SGLang sets up its metrics first. One of the two names does not exist on a
    # CPU, so it cannot be hooked.
    from sglang.srt.mem_cache.pool_host import common, mha  # noqa: PLC0415

    common._cuda_host_register = _need_not_register
    mha.transfer_kv_direct = copy_rows
    print("topas-cpu-hicache: active", file=sys.stderr, flush=True)


def _need_not_register(*_args: object, **_kwargs: object) -> None:
    pass


def copy_rows(
    src_layers: list[Tensor],
    dst_layers: list[Tensor],
    src_indices: Tensor,
    dst_indices: Tensor,
    page_size: int,  # noqa: ARG001 # SGLang passes it by name
) -> None:
    """Copy rows (one a token) between the tiers: ``dst[layer][dst_indices] = src[layer][src_indices]``."""
    rows, places = src_indices.long().cpu(), dst_indices.long().cpu()
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[places] = source[rows]
