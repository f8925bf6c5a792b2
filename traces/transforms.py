"""Traces made of traces: other arrivals, other beliefs about stages, tasks that die, workflows mixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

import numpy as np

from topas.errors import InputError
from topas.schema import MAX_COUNT
from topas.trace import Trace
from topas.workflow import StageProfile, Workflow
from traces.arrivals import poisson_arrivals

_NOISE, _DEATHS = 4, 5
"""Keep what is drawn here apart from the arrivals and lengths of the same seed."""


def with_arrivals(trace: Trace, arrivals_s: Sequence[float]) -> Trace:
    """Return the same tasks in the same order, the k-th arriving at ``arrivals_s[k]`` (seconds, increasing).

    Raises
    ------
    InputError
        if there are not as many times as tasks.
    """
    if len(arrivals_s) != len(trace.tasks):
        raise InputError(f"expected {len(trace.tasks)} arrivals, found {len(arrivals_s)}", field="arrivals")
    tasks = zip(trace.tasks, arrivals_s, strict=True)
    return replace(trace, tasks=tuple(replace(task, arrival_s=time_s) for task, time_s in tasks))


def retimed(trace: Trace, rate_per_s: float, seed: int) -> Trace:
    """Return the same tasks with Poisson arrivals drawn anew; raises as :func:`poisson_arrivals` does."""
    return with_arrivals(trace, poisson_arrivals(len(trace.tasks), rate_per_s, seed))


def in_bursts(trace: Trace, rate_per_s: float, seed: int, size: int) -> Trace:
    """Return the same tasks at the same mean rate, ``size`` at a time: the bursts are a Poisson process.

    Raises
    ------
    InputError
        if the size is not positive, or as :func:`poisson_arrivals` does.
    """
    if size < 1:
        raise InputError(f"expected at least one task a burst, found {size}", field="size")
    bursts = math.ceil(len(trace.tasks) / size)
    times_s = poisson_arrivals(bursts, rate_per_s / size, seed)
    return with_arrivals(trace, [times_s[k // size] for k in range(len(trace.tasks))])


def scaled_profiles(trace: Trace, factor: float) -> Trace:
    """Return the trace with lengths expected of every stage ``factor`` times as long; it does the same."""
    return _profiled(trace, lambda _workflow, _stage, profile: _scaled(profile, factor))


def noisy_profiles(trace: Trace, sigma: float, seed: int) -> Trace:
    """Return the trace with the lengths expected of each stage multiplied by a lognormal number of mean 1.

    Each stage of each workflow draws one, in the order of their names; the trace does the same.
    """
    rng = np.random.default_rng([_NOISE, seed])
    drawn = {
        (name, stage): math.exp(sigma * float(rng.standard_normal()) - sigma**2 / 2)
        for name in sorted(trace.workflows)
        for stage in trace.workflows[name].dag.names
    }
    return _profiled(trace, lambda workflow, stage, profile: _scaled(profile, drawn[workflow, stage]))


def without_profiles(trace: Trace) -> Trace:
    """Return the trace with nothing known of any stage before it ever ran."""
    return _profiled(trace, lambda _workflow, _stage, _profile: None)


def dying(trace: Trace, share: float, seed: int) -> Trace:
    """Return the trace with so large a share of its tasks dying half-way, each after a stage drawn for it.

    Such a task keeps its first k stages in the DAG's order, k uniform from 1 to all but one; the others have
    no rounds. Its workflow, and so what is believed of it, stays whole. One of a single stage stays alive.
    """
    tasks = []
    for k, task in enumerate(trace.tasks):
        rng = np.random.default_rng([_DEATHS, seed, k])
        dies, size = rng.random() < share, len(task.rounds)
        kept = int(rng.integers(1, size)) if dies and size > 1 else size
        tasks.append(replace(task, rounds=task.rounds[:kept] + ((),) * (size - kept)))
    return replace(trace, tasks=tuple(tasks))


def merged(name: str, parts: Mapping[str, Trace]) -> Trace:
    """Return the tasks of several traces in turn, k-th after k-th, as if they shared one server.

    Agents, workflows and tasks are named ``PART.NAME``: no prefix is shared between the parts. All arrive
    at 0 s; give them arrivals.
    """
    agents: dict[str, int] = {}
    workflows: dict[str, Workflow] = {}
    queues = []
    for part, trace in parts.items():
        agents |= {f"{part}.{agent}": tokens for agent, tokens in trace.agents.items()}
        own = {
            old: replace(
                workflow, name=f"{part}.{old}", agents=tuple(f"{part}.{agent}" for agent in workflow.agents)
            )
            for old, workflow in trace.workflows.items()
        }
        workflows |= {workflow.name: workflow for workflow in own.values()}
        queues.append(
            [
                replace(task, id=f"{part}.{task.id}", workflow=own[task.workflow.name], arrival_s=0.0)
                for task in trace.tasks
            ]
        )
    turns = chain.from_iterable(zip_longest(*queues))
    return Trace(name, agents, workflows, tuple(task for task in turns if task is not None))


def _scaled(profile: StageProfile | None, factor: float) -> StageProfile | None:
    if profile is None:
        return None
    given, new = (
        min(round(tokens * factor), MAX_COUNT) for tokens in (profile.input_tokens, profile.max_new_tokens)
    )
    return profile._replace(input_tokens=given, max_new_tokens=max(new, 1))


def _profiled(trace: Trace, change: Callable[[str, str, StageProfile | None], StageProfile | None]) -> Trace:
    """Return the trace with each stage's profile replaced: a function of workflow, stage and profile."""
    workflows = {
        name: replace(
            workflow,
            profiles=tuple(
                change(name, stage, profile)
                for stage, profile in zip(workflow.dag.names, workflow.profiles, strict=True)
            ),
        )
        for name, workflow in trace.workflows.items()
    }
    tasks = tuple(replace(task, workflow=workflows[task.workflow.name]) for task in trace.tasks)
    return replace(trace, workflows=workflows, tasks=tasks)
