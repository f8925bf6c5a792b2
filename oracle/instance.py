"""A trace and an engine as flat arrays, for compiled code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topas.profile import Profile
from topas.trace import Trace

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Instance(NamedTuple):
    """Requests in order of task, stage and round; stages numbered over all tasks.

    ``after[r]`` is the next round of r's stage or -1. ``next_stages[next_at[s] : next_at[s + 1]]`` are the
    stages that wait for s, ``missing[s]`` how many stages s waits for, ``first[s]`` its first request.
    """

    agent: Ints
    task: Ints
    stage: Ints
    after: Ints
    input_tokens: Ints
    output_tokens: Ints
    reserve_tokens: Ints
    reused_tokens: Ints
    tool_s: Floats
    first: Ints
    missing: Ints
    next_stages: Ints
    next_at: Ints
    stage_at: Ints
    arrival_s: Floats
    prefix_tokens: Ints
    budget_tokens: int
    max_running: int
    host: bool
    swap_s: float
    prefill_base_s: float
    prefill_s: float
    decode_base_s: float
    per_seq_s: float
    per_kv_s: float


def request_names(trace: Trace) -> tuple[str, ...]:
    """Return the ids of all requests, as the simulator names them, in the order of :class:`Instance`."""
    return tuple(
        f"{task.id}/{name}/{index}"
        for task in trace.tasks
        for name, rounds in zip(task.workflow.dag.names, task.rounds, strict=True)
        for index in range(len(rounds))
    )


def flatten(trace: Trace, profile: Profile) -> Instance:
    """Return the arrays of a trace on an engine."""
    agents = {name: k for k, name in enumerate(trace.agents)}
    rows: list[tuple[int, ...]] = []
    tool_s: list[float] = []
    first: list[int] = []
    missing: list[int] = []
    next_stages: list[int] = []
    next_at, stage_at = [0], [0]
    for number, task in enumerate(trace.tasks):
        dag, base = task.workflow.dag, stage_at[-1]
        for v, rounds in enumerate(task.rounds):
            first.append(len(rows))
            missing.append(len(dag.before[v]))
            next_stages += [base + other for other in dag.after[v]]
            next_at.append(len(next_stages))
            for index, spec in enumerate(rounds):
                following = len(rows) + 1 if index + 1 < len(rounds) else -1
                agent = agents[task.workflow.agents[v]]
                sizes = (spec.input_tokens, spec.output_tokens, spec.reserve_tokens, spec.reused_tokens)
                rows.append((agent, number, base + v, following, *sizes))
                tool_s.append(spec.tool_s)
        stage_at.append(base + len(dag))
    table = np.array(rows, dtype=np.int64)
    columns = [np.ascontiguousarray(table[:, k]) for k in range(table.shape[1])]
    agent_of, task_of, stage_of, after, inputs, outputs, reserves, reused = columns
    return Instance(
        agent=agent_of,
        task=task_of,
        stage=stage_of,
        after=after,
        input_tokens=inputs,
        output_tokens=outputs,
        reserve_tokens=reserves,
        reused_tokens=reused,
        tool_s=np.array(tool_s),
        first=np.array(first, dtype=np.int64),
        missing=np.array(missing, dtype=np.int64),
        next_stages=np.array(next_stages, dtype=np.int64),
        next_at=np.array(next_at, dtype=np.int64),
        stage_at=np.array(stage_at, dtype=np.int64),
        arrival_s=np.array([task.arrival_s for task in trace.tasks]),
        prefix_tokens=np.array(list(trace.agents.values()), dtype=np.int64),
        budget_tokens=profile.kv_budget_tokens,
        max_running=profile.max_running,
        host=profile.host_cache,
        swap_s=profile.swap_s_per_token,
        prefill_base_s=profile.prefill_base_s,
        prefill_s=profile.prefill_s_per_token,
        decode_base_s=profile.decode_base_s,
        per_seq_s=profile.decode_s_per_seq,
        per_kv_s=profile.decode_s_per_kv_token,
    )
