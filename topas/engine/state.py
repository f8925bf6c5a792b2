"""The records of an engine: what was asked of it, what is going on, and what it is.

Everything is numbered: tasks in order of arrival, stages over all tasks in topological order, requests in
order of stage and round. Nodes of the prefix tree begin with one for each agent's prefix, agents in order
of name.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topas.cost import Cost
from topas.engine.heap import ITEM

Records = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]

NEW, WAITING, LOADING, PREFILL, DECODE, DONE = range(6)
"""Phases: not ready, in the queue, admitted and waiting for KV, for its prefill, decoding, done."""

REDO_DECODE, REDO_PREFILL, REDO_KEEP = range(3)
"""What a preempted request does again: all, the prefill of what it has, or nothing that stays in memory."""

TASK = np.dtype(
    [
        ("arrival_s", "f8"),
        ("done_s", "f8"),
        ("first_stage", "i8"),
        ("stages", "i8"),
        ("left", "i8"),  # stages that are not complete
        ("attained_ns", "i8"),
    ]
)

STAGE = np.dtype(
    [
        ("task", "i8"),
        ("agent", "i8"),
        ("first", "i8"),  # first request
        ("requests", "i8"),
        ("after", "i8"),  # successors stand from here in ``after``
        ("successors", "i8"),
        ("missing", "i8"),  # predecessors that are not complete
        ("depth", "i8"),
        ("finished", "i8"),
        ("tip", "i8"),  # node at the end of its context; its agent's where there is none
        ("steps", "i8"),  # scratch of steps_to_execution
        ("below", "i8"),  # scratch of begin: a stack
    ]
)

REQUEST = np.dtype(
    [
        ("stage", "i8"),
        ("following", "i8"),  # next round of its stage, -1: none
        ("input", "i8"),
        ("output", "i8"),
        ("most", "i8"),  # max_new_tokens
        ("reused", "i8"),
        ("tool_s", "f8"),
        ("name_rank", "i8"),  # place of its id among all ids: the last tie break
        ("fixed", "i8"),  # the engine knows that it will use up its allowance
        ("phase", "i8"),
        ("arrival_s", "f8"),  # when it joined the queue first
        ("admitted_s", "f8"),  # when it was admitted last
        ("done_s", "f8"),
        ("generated", "i8"),  # exact but while decoding, where it lags behind the step counter
        ("held", "i8"),  # dynamic KV tokens, leased context included, lagging alike
        ("copied", "i8"),  # of these, a copy of the prefix until its prefill is done
        ("shared", "i8"),  # of these, context leased in the tree
        ("node", "i8"),  # last leased node of its path
        ("kept", "i8"),  # its own KV was left in the tree by a preemption
        ("cold", "i8"),  # its prefill computes the prefix
        ("to_prefill", "i8"),
        ("credit_ns", "i8"),
        ("service_ns", "i8"),
        ("start_s", "f8"),
        ("join_step", "i8"),
        ("joined_at", "i8"),  # tokens prefilled when it joined the queue
        ("finish_step", "i8"),
        ("stamp", "i8"),  # serial of the load that it waits for
        ("preemptions", "i8"),
        ("cached", "i8"),  # scratch: prompt tokens on the GPU, as of the last look
        ("before", "i8"),  # neighbours in its list, waiting or running
        ("behind", "i8"),
    ]
)

NODE = np.dtype(
    [
        ("parent", "i8"),  # -1: a prefix
        ("tokens", "i8"),
        ("end", "i8"),  # dynamic tokens from behind the prefix to here
        ("users", "i8"),  # leases of admitted requests
        ("ready_s", "f8"),  # when it is on the GPU; -1: it is not
        ("on_host", "i8"),
        ("stamp", "i8"),  # last use; a parent's is never before a child's
        ("listed", "i8"),  # a leftover: on the GPU without users
        ("before", "i8"),  # neighbours among the leftovers
        ("behind", "i8"),
        ("since", "i8"),  # of a prefix: when it came, in order
        ("steps", "i8"),  # of a prefix: steps to execution
        ("computing", "i8"),  # of a prefix: a prefill that is waiting will compute it
        ("seen", "i8"),  # of a prefix: scratch of the look for duplicates
    ]
)

NOW = np.dtype(
    [
        ("now_s", "f8"),
        ("link_free_s", "f8"),
        ("ratio", "f8"),  # SGLang's new-token ratio
        ("agents", "i8"),
        ("nodes", "i8"),
        ("used", "i8"),  # KV tokens of admitted requests and their prefixes
        ("leftover", "i8"),
        ("prefixes", "i8"),  # of ``used``, prefixes
        ("reserved", "i8"),
        ("copied", "i8"),
        ("stamps", "i8"),
        ("serial", "i8"),
        ("step", "i8"),
        ("arrived", "i8"),
        ("oldest", "i8"),  # no task before this one is unfinished
        ("unfinished", "i8"),
        ("waiting", "i8"),
        ("running", "i8"),
        ("decoding", "i8"),
        ("batch", "i8"),
        ("followers", "i8"),
        ("computing", "i8"),
        ("max_left", "i8"),
        ("fixed", "i8"),
        ("fixed_left", "i8"),
        ("attended", "i8"),
        ("prefilled", "i8"),
        ("passes", "i8"),
        ("smallest", "i8"),
        ("changed", "i8"),
        ("full", "i8"),  # SGLang's latch
        ("fresh", "i8"),  # steps to execution are up to date
        ("strict_at", "i8"),  # of a plan
        ("resume", "i8"),
        ("failure", "i8"),
        ("was_s", "f8"),
        ("was_step", "i8"),
        ("was_running", "i8"),
        ("was_requests", "i8"),
        ("idle", "i8"),
        ("logged", "i8"),
        ("requests", "i8"),
        ("steps", "i8"),
        ("step_requests", "i8"),
        ("peak", "i8"),
        ("loads", "i8"),
        ("preemptions", "i8"),
        ("recomputed", "i8"),
        ("events", "i8"),
        ("fruitless", "i8"),
        ("decisions", "i8"),
    ]
)

ENTRY = np.dtype([("kind", "i8"), ("who", "i8"), ("time_s", "f8"), ("service_ns", "i8"), ("reused", "i8")])
"""A line of the log: what happened to a task, stage or request."""

ARRIVED, READY, ADMITTED, PREEMPTED, COMPLETED, STAGE_OVER, STAGE_PASSED = range(7)


class World(NamedTuple):
    """What the engine has and does. ``lists[k]`` are the ends of a list: see the constants below."""

    tasks: Records
    stages: Records
    after: Ints
    requests: Records
    nodes: Records
    lists: Ints
    events: Records
    finishing: Records
    queue: Records
    batch: Ints
    followers: Ints
    computing: Ints
    log: Records
    now: Records


PREFIXES, CONTEXTS, QUEUE, RUN = range(4)
"""Lists: idle prefixes, idle contexts (least recently used first); waiting, running (as they came)."""


class Setup(NamedTuple):
    """What the engine is, and whom it obeys. ``plan`` has rank, mode and gate by request (rule PLAN)."""

    cost: Cost
    budget: int
    max_running: int
    most_changes: int  # K; 0: no cap
    most_fruitless: int  # preemptions in a row without a finished request: more are a livelock
    rule: int
    host: bool
    by_ratio: bool  # SGLang's admission: see ``admit``
    in_tree: bool  # a prefix is one copy in a radix tree
    redo: int
    by_steps: bool  # idle prefixes go by steps to execution, and stay until their room is needed
    ahead: bool  # load what is one step away
    joint: bool
    asks: bool  # return before each decision of a rule too
    logs: bool
    plan: Ints


def heap_items(capacity: int) -> Records:
    """Return room for a heap."""
    return np.zeros(capacity + 1, ITEM)
