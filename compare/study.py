"""A study: a table of runs, each kept when it is done, and the data frame of what they came to.

``run_study(runs, folder)`` returns a row a run. Statistics (:mod:`compare.change`), pages and plots are
functions of such frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import ConfigDict, TypeAdapter

from compare.cases import CASES, View
from compare.source import Source, trace_of
from compare.store import find_out, key_of
from topas.event import Params
from topas.policies import JointPolicy, get_policy
from topas.policies.policy import Policy
from topas.profile import Profile
from topas.sim import simulate
from topas.sim.result import Tail, tails


@dataclass(frozen=True)
class Metrics:
    """What a run is measured by, in the order of the columns; a wall clock measured the last two."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    makespan_s: float
    first_task_s: float
    requests_per_s: float
    mean_batch: float
    peak_batch: int
    prefix_loads: int
    preemptions: int
    recomputed_tokens: int
    decisions: int
    decision_ms_mean: float
    decision_ms_p99: float


METRICS = tuple(item.name for item in fields(Metrics))
COUNTS = tuple(item.name for item in fields(Metrics) if item.type == "int")
"""Metrics that are whole numbers."""

TIMINGS = METRICS[-2:]
"""Metrics that a wall clock measured: they differ from run to run."""

REPRODUCIBLE = METRICS[:-2]


@dataclass(frozen=True, slots=True)
class Played:
    """What a run came to: its metrics, and the tail of each workflow and agent."""

    metrics: Metrics
    tails: tuple[Tail, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one trace on one engine; ``label`` is how tables call the policy, and changes nothing."""

    kept: ClassVar[str] = "cells"
    kind: ClassVar[TypeAdapter[Any]] = TypeAdapter(Played)
    source: Source
    policy: str
    profile: Profile
    params: Params = field(default_factory=Params)
    label: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """What tables call the policy."""
        return self.label or self.policy

    def content(self) -> dict[str, Any]:
        """Return all that the metrics depend on."""
        return {
            "trace": self.source.content(),
            "policy": self.policy,
            "profile": self.profile.model_dump(mode="json"),
            "params": asdict(self.params),
        }

    def answer(self) -> Played:
        """Simulate.

        Raises
        ------
        InputError, SimulationError
            as :func:`topas.sim.simulate` does.
        ValueError
            if a metric is missing or not finite.
        """
        trace = trace_of(self.source)
        policy = seen_through(get_policy(self.policy), CASES[self.source.case].view)
        result = simulate(trace, policy, self.profile, params=self.params)
        return Played(METRICS_OF.validate_python(dict(result.metrics)), tails(trace, result.tasks))

    def __str__(self) -> str:
        """One line for messages: ``dag-4, load 0.5, seed 1, lpm``."""
        return f"{self.source}, {self.name}"


METRICS_OF: TypeAdapter[Metrics] = TypeAdapter(Metrics, config=None)


def seen_through(policy: Policy, view: View | None) -> Policy:
    """Return a policy that decides on what ``view`` makes of each event; queue policies see none."""
    if view is None or not isinstance(policy, JointPolicy):
        return policy
    decide = policy.decide
    return replace(policy, decide=lambda event: decide(view(event)))


def runs_of(
    sources: Iterable[Source], policies: Iterable[str], profile: Profile, params: Params
) -> tuple[Run, ...]:
    """Return a run a trace and policy, the policies of one trace next to each other."""
    policies = tuple(policies)
    return tuple(Run(source, policy, profile, params) for source in sources for policy in policies)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a study's runs came to, in their order.

    ``runs`` has a row a finished run (:data:`IDENTITY`, then :data:`METRICS`), ``tails`` a row a finished
    run and workflow or agent. ``failures`` say in one line why others failed. ``resumed`` runs were already
    there; ``rejected`` had a file that could not be used and ran again.
    """

    runs: pd.DataFrame
    tails: pd.DataFrame
    failures: Mapping[Run, str]
    resumed: int = 0
    rejected: int = 0


def run_study(runs: Sequence[Run], folder: Path, *, jobs: int = 1, progress: bool | None = None) -> Outcome:
    """Simulate the runs that ``folder/cells`` does not hold yet and return all of them.

    Each finished run is written at once and whole. One failed run does not stop the others.

    Parameters
    ----------
    folder : where the results are kept; created if need be.
    jobs : processes at a time.
    progress : show a bar on standard error; None: only on a terminal.

    Raises
    ------
    InputError
        if the folder cannot be made or written.
    Interrupted
        on Ctrl-C; finished runs stay.
    """
    done = find_out(runs, folder, jobs=jobs, progress=progress, unit="cell")
    return outcome_of(runs, done.results, done.failures, done.resumed, done.rejected)


def outcome_of(
    runs: Iterable[Run],
    played: Mapping[Run, Played],
    failures: Mapping[Run, str],
    resumed: int = 0,
    rejected: int = 0,
) -> Outcome:
    """Put runs and what they came to together."""
    runs = tuple(runs)
    finished = [(run, played[run]) for run in runs if run in played]
    metrics = [{**row(run), **asdict(one.metrics)} for run, one in finished]
    found = [{**row(run), **asdict(tail)} for run, one in finished for tail in one.tails]
    failed = {run: failures[run] for run in runs if run in failures}
    names = [item.name for item in fields(Tail)]
    return Outcome(frame(metrics, METRICS), frame(found, names), failed, resumed, rejected)


def part_of(outcome: Outcome, runs: Sequence[Run]) -> Outcome:
    """Return some runs' part of an outcome."""
    wanted = {key_of(run): run.name for run in runs}
    found, tails = (
        table[table["key"].map(wanted) == table["policy"]].drop_duplicates()
        for table in (outcome.runs, outcome.tails)
    )
    failures = {run: outcome.failures[run] for run in runs if run in outcome.failures}
    return Outcome(found, tails, failures)


IDENTITY: Mapping[str, str] = {
    "key": "object",
    "workload": "object",
    "case": "object",
    "prefix_tokens": "Int64",
    "output_sigma": "float64",
    "profile": "object",
    "host_cache": "bool",
    "admission": "object",
    "redo": "object",
    "load": "float64",
    "rate_per_s": "float64",
    "seed": "Int64",
    "tasks": "int64",
    "policy": "object",
}
"""Columns that say what was run, and their types."""

SETTING = tuple(IDENTITY)[1:9]
"""Columns that tell apart what is never averaged: everything but load, seed and policy."""


def row(run: Run) -> dict[str, object]:
    """Return a run's values of :data:`IDENTITY`."""
    profile = run.profile
    engine = {name: getattr(profile, name) for name in ("host_cache", "admission", "redo")}
    return {
        "key": key_of(run),
        **run.source.row(),
        "profile": profile.name,
        **engine,
        "policy": run.name,
    }


def frame(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a data frame of :data:`IDENTITY` and more columns, of the same types if it is empty."""
    names = [*IDENTITY, *(name for name in columns if name not in IDENTITY)]
    table = pd.DataFrame(list(rows), columns=names)
    counts = dict.fromkeys((name for name in COUNTS if name in names), "int64")
    return table.astype({**IDENTITY, **counts})
