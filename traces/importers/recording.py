"""Recorded sessions, as the importers return them, and how they become the tasks of a trace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from topas.errors import InputError
from topas.trace import Round, TaskSpec, Trace
from topas.workflow import Workflow
from traces.arrivals import poisson_arrivals

_STREAM = 3
"""Keeps the order of the sessions apart from the arrivals of the same seed."""


@dataclass(frozen=True, slots=True)
class Session:
    """One recorded session: its workflow, and the rounds of every stage in the DAG's order."""

    workflow: Workflow
    rounds: tuple[tuple[Round, ...], ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """What an importer read: sessions over shared agents (prefix tokens by name).

    ``notes`` say in words where the record could not be taken as it stands, and how often.
    """

    name: str
    agents: Mapping[str, int]
    sessions: tuple[Session, ...]
    notes: tuple[str, ...] = ()


def capped(recording: Recording, max_wait_s: float) -> Recording:
    """Return the recording with no tool wait longer than ``max_wait_s``.

    Recorded waits can be a person's, who came back after an hour; they then make up most of the JCT.

    Raises
    ------
    InputError
        if the cap is negative or not finite.
    """
    if not (math.isfinite(max_wait_s) and max_wait_s >= 0):
        raise InputError(f"expected a wait of at least 0 seconds, found {max_wait_s}", field="max_wait_s")
    longer = [
        spec
        for session in recording.sessions
        for rounds in session.rounds
        for spec in rounds
        if spec.tool_s > max_wait_s
    ]
    sessions = tuple(
        Session(
            session.workflow,
            tuple(
                tuple(replace(spec, tool_s=min(spec.tool_s, max_wait_s)) for spec in rounds)
                for rounds in session.rounds
            ),
        )
        for session in recording.sessions
    )
    note = f"{len(longer)} waits were cut to {max_wait_s:g} s"
    return replace(recording, sessions=sessions, notes=(*recording.notes, note))


def replayed(recording: Recording, *, rate_per_s: float, tasks: int, seed: int) -> Trace:
    """Return a trace whose tasks go round the sessions, in an order shuffled once by the seed.

    Arrivals are Poisson: when the sessions were recorded says nothing of how many share a server.
    Only the agents and workflows that some task uses are kept.

    Raises
    ------
    InputError
        if the rate, the number of tasks or the seed is out of range.
    """
    arrivals_s = poisson_arrivals(tasks, rate_per_s, seed)
    order = np.random.default_rng([_STREAM, seed]).permutation(len(recording.sessions))
    chosen = [recording.sessions[order[k % len(order)]] for k in range(tasks)]
    width = len(str(tasks - 1))
    specs = tuple(
        TaskSpec(f"t{k:0{width}d}", session.workflow, arrival_s, session.rounds)
        for k, (session, arrival_s) in enumerate(zip(chosen, arrivals_s, strict=True))
    )
    workflows = {spec.workflow.name: spec.workflow for spec in specs}
    used = sorted({agent for workflow in workflows.values() for agent in workflow.agents})
    return Trace(recording.name, {agent: recording.agents[agent] for agent in used}, workflows, specs)
