"""Baselines: ways to order the queue (paper section V-A). Ties go to the earlier request, then its id."""

from __future__ import annotations

import math

from topas.event import Request
from topas.policies.policy import Key, QueuePolicy, QueueView

GATE_BACKLOG = 4
"""Waiting exit-stage requests at which the downstream gate opens (the paper gives no number)."""


def _fcfs(_: QueueView) -> Key:
    return lambda r: (r.arrival_s, r.id)


def _lpm(view: QueueView) -> Key:
    return lambda r: (-view.cached(r), r.arrival_s, r.id)


def _parrot_fcfs(view: QueueView) -> Key:
    tasks = view.tasks
    return lambda r: (tasks[r.task].arrival_s, r.arrival_s, r.id)


def _autellix_las(view: QueueView) -> Key:
    tasks = view.tasks
    return lambda r: (tasks[r.task].attained_s, r.arrival_s, r.id)


def _depth(view: QueueView, request: Request) -> int:
    dag = view.tasks[request.task].dag
    return dag.depth[dag.index[request.stage]]


def _spf(view: QueueView) -> Key:
    return lambda r: (-_depth(view, r), r.arrival_s, r.id)


def _is_exit(view: QueueView, request: Request) -> bool:
    dag = view.tasks[request.task].dag
    return not dag.after[dag.index[request.stage]]


def _downstream_gate(view: QueueView) -> Key:
    backlog = sum(_is_exit(view, request) for request in view.waiting)
    if backlog < GATE_BACKLOG:
        return _lpm(view)
    return lambda r: (not _is_exit(view, r), -view.cached(r), r.arrival_s, r.id)


def _hrrn(view: QueueView) -> Key:
    def key(r: Request) -> tuple[float | str, ...]:
        cached = view.cached(r)
        if cached < 0:  # a duplicate, which waits until the prefix is there
            return (math.inf, r.arrival_s, r.id)
        missing = view.prompt(r) - cached
        return (-view.passed(r) / missing if missing > 0 else -math.inf, r.arrival_s, r.id)

    return key


FCFS = QueuePolicy("fcfs", _fcfs)
"""First come, first served, by request."""
LPM = QueuePolicy("lpm", _lpm)
"""Longest prefix match: most prompt tokens in GPU memory first. No switch to FCFS on long queues."""
PARROT_FCFS = QueuePolicy("parrot-fcfs", _parrot_fcfs)
"""Earlier task first, then earlier request (Parrot's order as the paper runs it)."""
AUTELLIX_LAS = QueuePolicy("autellix-las", _autellix_las)
"""Least attained service: the task that has received least LLM service first (Autellix)."""
SPF = QueuePolicy("spf", _spf)
"""Shortest path first: deeper stage first, FCFS within a depth; SRPT on equal-cost chains."""
DOWNSTREAM_GATE = QueuePolicy("downstream-gate", _downstream_gate)
"""The paper's strawman (Figure 1): LPM, but exit stages first while their backlog has accumulated."""
HRRN = QueuePolicy("hrrn", _hrrn)
"""Highest response ratio next, SGLang's own: tokens prefilled by the engine since the request came, over
tokens of its prompt that are not in GPU memory (SGLang 0.5 ``SchedulePolicy._sort_by_hrrn``). As for LPM,
host copies do not count as cached, which SGLang's hierarchical cache would do: the stronger rival."""
KVFLOW = QueuePolicy("kvflow", _fcfs, foresight=True)
"""First come, first served, over a cache that evicts by steps to execution and loads what comes next
(KVFlow, arXiv 2507.07400, as published: its system is a fork of SGLang)."""
