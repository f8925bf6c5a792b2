"""A draw: one trace of the evaluation, by what it depends on, and the engine that it is played on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from compare.cases import CASES, Case, one_agent
from topas.errors import InputError
from topas.files import read_file
from topas.profile import Profile
from topas.trace import Trace
from topas.trace.format import read_trace
from traces.load import check_load, one_prefix_rate_per_s
from traces.transforms import merged
from traces.workloads import WorkloadOptions, generate

PARTS_OF_MIXED: Mapping[str, float] = {"chain-3": 1.0, "dag-4": 1.0, "metagpt-tl": 2 / 3}
"""Workloads that ``mixed`` takes in turn, and how long their prefixes are as a share of the given length."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An operating point, without the seed: what results are averaged for.

    ``prefix_tokens`` is None for recorded sessions, ``output_sigma`` where a workload draws outputs of its
    own. ``case`` names one of :data:`compare.cases.CASES`.
    """

    workload: str
    prefix_tokens: int | None
    output_sigma: float | None
    load: float
    case: str = "as-it-is"

    @property
    def outputs(self) -> str:
        """Return whether outputs are fixed, and else how they vary."""
        if self.output_sigma is None:
            return "own"
        return f"sigma {self.output_sigma:g}" if self.output_sigma else "fixed"

    def __str__(self) -> str:
        """One line for messages: ``chain-3, prefix 12000, outputs fixed, load 0.5``."""
        prefix = "" if self.prefix_tokens is None else f", prefix {self.prefix_tokens}"
        case = "" if self.case == "as-it-is" else f", {self.case}"
        return f"{self.workload}{prefix}, outputs {self.outputs}, load {self.load:g}{case}"


@dataclass(frozen=True, slots=True)
class Draw:
    """A setting with a seed, a number of tasks and an engine; ``path`` and ``sha256`` are of a trace file.

    The load is a share of the one-prefix-at-a-time rate of this very draw, as the engine of the case serves
    it. A trace file keeps its tasks and their order: the seed draws arrivals alone.
    """

    setting: Setting
    seed: int
    tasks: int
    profile: Profile
    path: str = ""
    sha256: str = ""

    @property
    def case(self) -> Case:
        """Return what is changed."""
        return CASES[self.setting.case]

    def content(self) -> dict[str, Any]:
        """Return all that the trace and the engine depend on, as a JSON object."""
        setting = asdict(self.setting)
        drawn = {"seed": self.seed, "tasks": self.tasks, "sha256": self.sha256}
        return {**setting, **drawn, "profile": self.profile.model_dump(mode="json")}

    def played(self) -> tuple[Trace, Profile]:
        """Return the trace and the engine.

        Raises
        ------
        InputError
            if a trace file changed since it was planned with, or a number is out of range.
        """
        case, trace = self.case, self._tasks()
        trace = case.change(trace, self.seed)
        engine = case.engine(self.profile, trace)
        rate_per_s = check_load(self.setting.load) * one_prefix_rate_per_s(trace, engine)
        return case.arrive(trace, rate_per_s, self.seed), engine

    def _tasks(self) -> Trace:
        setting = self.setting
        if self.path:
            if hashlib.sha256(read_file(self.path)).hexdigest() != self.sha256:
                raise InputError("the file changed while the evaluation ran", source=self.path)
            return read_trace(self.path)
        prefix, sigma = setting.prefix_tokens, setting.output_sigma
        if setting.workload == "one-agent":
            return one_agent(self.tasks, 1.0, self.seed, prefix or 0, sigma or 0.0)
        if setting.workload == "mixed":
            return self._mixed(prefix or 0, sigma)
        return self._generated(setting.workload, prefix, sigma)

    def _generated(self, workload: str, prefix: int | None, sigma: float | None) -> Trace:
        options = WorkloadOptions(prefix_tokens=prefix, output_sigma=sigma or None)
        return generate(workload, rate_per_s=1.0, tasks=self.tasks, seed=self.seed, options=options)

    def _mixed(self, prefix: int, sigma: float | None) -> Trace:
        parts = {
            name: self._generated(name, round(prefix * share), None if name.startswith("metagpt") else sigma)
            for name, share in PARTS_OF_MIXED.items()
        }
        trace = merged("mixed", parts)
        return replace(trace, tasks=trace.tasks[: self.tasks])

    def __str__(self) -> str:
        """One line for messages."""
        return f"{self.setting}, seed {self.seed}"


@lru_cache(maxsize=4)
def played(draw: Draw) -> tuple[Trace, Profile]:
    """Return a draw's trace and engine; the policies of one draw follow each other, so a few are kept."""
    return draw.played()


def session_draws(path: str, profile: Profile, loads: list[float], seeds: list[int]) -> tuple[Draw, ...]:
    """Return the draws of a trace file, which is read once so that a wrong one is refused at once.

    Raises
    ------
    InputError
        if it cannot be read or is no valid trace.
    """
    digest = hashlib.sha256(read_file(path)).hexdigest()
    tasks = len(read_trace(path).tasks)
    return tuple(
        Draw(Setting(Path(path).stem, None, None, load), seed, tasks, profile, path, digest)
        for load in loads
        for seed in seeds
    )
