"""A trace on a profile, as the engine takes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topas.engine import state
from topas.engine.core import ARRIVAL, INITIAL
from topas.engine.heap import push
from topas.engine.rules import ASK, PLAN
from topas.engine.state import Records, Setup, World
from topas.policies import JointPolicy, Policy
from topas.profile import Profile
from topas.residual import IntArray
from topas.sim.schedule import Schedule
from topas.trace import Trace

_STAGE_FACTS = ("task", "agent", "first", "requests", "after", "successors", "missing", "depth")
_REQUEST_FACTS = ("stage", "following", "input", "output", "most", "reused", "tool_s", "fixed")
_REDO = {"decode": state.REDO_DECODE, "prefill": state.REDO_PREFILL, "keep": state.REDO_KEEP}


FRUITLESS_PREEMPTIONS = 20_000
"""Preemptions in a row without a finished request after which a run is broken off (livelock)."""


def request_names(trace: Trace) -> tuple[str, ...]:
    """Return the ids of all requests in the engine's order: by task, stage and round."""
    return tuple(
        f"{task.id}/{name}/{index}"
        for task in trace.tasks
        for name, rounds in zip(task.workflow.dag.names, task.rounds, strict=True)
        for index in range(len(rounds))
    )


def agent_names(trace: Trace) -> list[str]:
    """Return the agents in the engine's order."""
    return sorted(trace.agents)


def setup_of(  # noqa: PLR0913  what a run is made of
    profile: Profile,
    policy: Policy | Schedule,
    requests: Sequence[str],
    *,
    most_changes: int = 0,
    asks: bool = False,
    logs: bool = False,
) -> Setup:
    """Return an engine that obeys a policy."""
    joint = isinstance(policy, JointPolicy)
    plan = policy.plan(requests) if isinstance(policy, Schedule) else np.empty((4, 0), np.int64)
    rule = PLAN if isinstance(policy, Schedule) else ASK if isinstance(policy, JointPolicy) else policy.rule
    ahead = not isinstance(policy, Schedule | JointPolicy) and policy.foresight
    return Setup(
        cost=profile.cost,
        budget=profile.kv_budget_tokens,
        max_running=profile.max_running,
        most_changes=most_changes,
        most_fruitless=FRUITLESS_PREEMPTIONS,
        rule=rule,
        host=profile.host_cache,
        by_ratio=profile.admission == "sglang",
        in_tree=profile.prefix_sharing == "tree",
        redo=_REDO[profile.redo],
        by_steps=ahead or (isinstance(policy, JointPolicy) and policy.leaves_idle),
        ahead=ahead,
        joint=joint,
        asks=asks,
        logs=logs,
        plan=plan,
    )


def world_of(trace: Trace, profile: Profile, names: Sequence[str], *, logs: bool = False) -> World:
    """Return a trace before its first arrival."""
    number = {name: k for k, name in enumerate(agent_names(trace))}
    tasks: list[tuple[float, ...]] = []
    stages: list[tuple[float, ...]] = []
    requests: list[tuple[float, ...]] = []
    after: list[int] = []
    for t, task in enumerate(trace.tasks):
        dag, base = task.workflow.dag, len(stages)
        tasks.append((task.arrival_s, base, len(dag)))
        for v, rounds in enumerate(task.rounds):
            agent, stage = number[task.workflow.agents[v]], len(stages)
            stages.append(
                (
                    t,
                    agent,
                    len(requests),
                    len(rounds),
                    len(after),
                    len(dag.after[v]),
                    len(dag.before[v]),
                    dag.depth[v],
                )
            )
            after += [base + other for other in dag.after[v]]
            for index, spec in enumerate(rounds):
                following = len(requests) + 1 if index + 1 < len(rounds) else -1
                fixed = profile.ignore_eos and spec.output_tokens == spec.max_new_tokens
                sizes = (spec.input_tokens, spec.output_tokens, spec.max_new_tokens, spec.reused_tokens)
                requests.append((stage, following, *sizes, spec.tool_s, fixed))
    return _world(
        _records(state.TASK, tasks, "arrival_s", "first_stage", "stages"),
        _records(
            state.STAGE,
            stages,
            "task",
            "agent",
            "first",
            "requests",
            "after",
            "successors",
            "missing",
            "depth",
        ),
        np.array(after, dtype=np.int64),
        _records(
            state.REQUEST,
            requests,
            "stage",
            "following",
            "input",
            "output",
            "most",
            "reused",
            "tool_s",
            "fixed",
        ),
        [trace.agents[name] for name in number],
        np.argsort(np.argsort(names)),
        profile,
        logs=logs,
    )


def _world(  # noqa: PLR0913  the parts of a world
    tasks: Records,
    stages: Records,
    after: IntArray,
    requests: Records,
    prefixes: Sequence[int],
    ranks: IntArray,
    profile: Profile,
    *,
    logs: bool,
) -> World:
    many, agents = len(requests), len(prefixes)
    spare = 4 * min(profile.max_running, many) + 64  # the engine asks for more: see ``grown``
    tasks["left"] = tasks["stages"]
    stages["tip"] = stages["agent"]
    requests["name_rank"] = ranks
    requests["start_s"] = -1.0
    nodes = np.zeros(agents + 2 * many + spare, state.NODE)
    nodes["ready_s"] = -1.0
    nodes["parent"] = -1
    nodes["tokens"][:agents] = prefixes
    now = np.zeros(1, state.NOW)
    now["ratio"], now["agents"], now["nodes"], now["smallest"] = (
        INITIAL,
        agents,
        agents,
        profile.kv_budget_tokens,
    )
    now["unfinished"], now["now_s"], now["serial"] = len(tasks), 0.0, 1
    lines = 2 * (4 * many + len(stages) + len(tasks)) + spare if logs else 0
    world = World(
        tasks=tasks,
        stages=stages,
        after=after,
        requests=requests,
        nodes=nodes,
        lists=np.full((4, 2), -1, np.int64),
        events=state.heap_items(many + len(tasks) + spare),
        finishing=state.heap_items(many + spare),
        queue=state.heap_items(many),
        batch=np.zeros(many, np.int64),
        followers=np.zeros(many, np.int64),
        computing=np.zeros(many, np.int64),
        log=np.zeros(lines, state.ENTRY),
        now=now,
    )
    push(world.events, float(tasks["arrival_s"][0]), 1.0, 0, ARRIVAL)
    return world


def _records(dtype: np.dtype[np.void], rows: Sequence[tuple[float, ...]], *names: str) -> Records:
    """Return records with these fields set."""
    records = np.zeros(len(rows), dtype)
    for name, column in zip(names, zip(*rows, strict=True), strict=False):
        records[name] = column
    return records


def grown(world: World) -> World:
    """Return a world with twice the room for what preemptions may leave behind."""
    return world._replace(
        nodes=_doubled(world.nodes), events=_doubled(world.events), finishing=_doubled(world.finishing)
    )


def _doubled(records: Records) -> Records:
    more = np.zeros(2 * len(records), records.dtype)
    more[: len(records)] = records
    if "parent" in (records.dtype.names or ()):
        more["ready_s"][len(records) :] = -1.0
        more["parent"][len(records) :] = -1
    return more
