"""Workloads that a small model on a CPU serves in seconds: lengths, tasks and load by default.

They are made for 4,000 KV tokens: three prefixes of Chain-3 and most of a batch fit, DAG-4's four do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from traces.workloads import WorkloadOptions

PROFILE = "cpu-tiny-qwen2"
"""The engine profile of the CPU servers, made by ``topas profile fit --cpu``."""

LOADS = (0.35,)
SEEDS = (1,)
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Size:
    """Lengths of a workload, and how many tasks a trace has."""

    options: WorkloadOptions
    tasks: int


SYNTHETIC = Size(WorkloadOptions(prefix_tokens=1000, input_tokens=64, output_tokens=64), 40)
SIZES: Mapping[str, Size] = {
    # the roles' prefixes, 230 to 1,600 tokens, nearly fill the memory
    "metagpt-tl": Size(WorkloadOptions(prefix_tokens=1600, input_tokens=256, output_tokens=64), 16),
    "metagpt-sop": Size(WorkloadOptions(prefix_tokens=1600, input_tokens=256, output_tokens=64), 24),
}


def size_of(workload: str, given: WorkloadOptions, tasks: int | None) -> Size:
    """Return a workload's size, with what was asked for in place of the default."""
    size = SIZES.get(workload, SYNTHETIC)
    changes = {item.name: value for item in fields(given) if (value := getattr(given, item.name)) is not None}
    return Size(replace(size.options, **changes), size.tasks if tasks is None else tasks)
