"""An event as arrays for rollouts: every request that is there or expected, and what it costs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topas.event import Costs, Event, Outlook, Request, TaskState
from topas.online.rollout import kernel
from topas.residual import FloatArray, IntArray

Flags = npt.NDArray[np.bool_]


BASES = (kernel.FINISH, kernel.SPF, kernel.LPM, kernel.GATHER)
"""Rules that rollouts follow, and that propose."""
RULES = (kernel.PARROT,)
"""Rules that only propose."""
CAPS = (1, 2)
"""``finish`` also proposes with at most so many prefixes in use."""


class Situation(NamedTuple):
    """N nodes (requests, active or expected) of T tasks with S stages and A agents.

    By node: ``task``, ``stage``, ``agent``, ``inputs`` (tokens to prefill), ``reserve`` (d_r), ``depth``,
    ``following`` (the next request of its stage, -1: none), ``arrival`` (rank), ``status``, ``ghost`` (it
    comes from outside: the next round of a stage whose tool runs), ``mark`` (a random number). By stage:
    requests left, predecessors left, ``first`` expected request, successors ``after[after_at[k]:]``. By
    task: ``left`` requests, all ``stages``, ``age`` in seconds. By agent: ``prefix``, and the ``smallest``
    reservation of its requests. Costs in seconds.
    """

    task: IntArray
    stage: IntArray
    agent: IntArray
    inputs: IntArray
    reserve: IntArray
    depth: IntArray
    following: IntArray
    arrival: IntArray
    status: IntArray
    ghost: Flags
    mark: IntArray
    stage_left: IntArray
    stage_missing: IntArray
    first: IntArray
    after: IntArray
    after_at: IntArray
    left: IntArray
    stages: IntArray
    age: FloatArray
    prefix: IntArray
    smallest: IntArray
    resident: Flags
    agent_waits: Flags
    may_drop: Flags
    bases: IntArray
    rules: IntArray
    caps: IntArray
    running: bool
    budget: int
    max_running: int
    most_changes: int
    host: bool
    prefill_base: float
    prefill_token: float
    decode_base: float
    decode_seq: float
    decode_kv: float
    swap_s: float
    horizon: int
    tail: float
    scale: float
    margin: float
    race: float


class Scratch(NamedTuple):
    """Room for one rollout."""

    status: IntArray
    left: IntArray
    stage_left: IntArray
    stage_missing: IntArray
    users: IntArray
    there: Flags
    ready: FloatArray
    link: FloatArray
    used: IntArray
    idle: IntArray
    batch: IntArray
    running: IntArray
    finish: IntArray
    heap: IntArray
    size: IntArray
    weight: FloatArray
    aside: IntArray
    asides: IntArray
    arrival: IntArray


class Candidates(NamedTuple):
    """Room for candidates: ``taken[i, :takes[i]]`` are admitted, ``status[i]`` says what then runs."""

    size: IntArray
    status: IntArray
    taken: IntArray
    takes: IntArray
    key: IntArray
    cost: FloatArray
    alive: Flags
    reference: IntArray
    out: IntArray


class Case(NamedTuple):
    """A situation with its requests: ``requests[node]`` is None for an expected one.

    ``out[k, node]`` are the tokens still to come in scenario k, ``lost`` those to generate again if the
    request is preempted.
    """

    situation: Situation
    requests: list[Request | None]
    out: IntArray
    lost: IntArray


MARKS = np.random.default_rng(7).integers(1, 1 << 59, 1 << 15)
"""Numbers whose sums tell sets of requests apart."""

_COLUMNS = 10


class _Builder:
    """Collects rows of nodes and stages, task by task."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.names = sorted(event.agents)
        self.index = {name: k for k, name in enumerate(self.names)}
        self.prefix = [event.agents[name] for name in self.names]
        everyone = sorted((*event.waiting, *event.running), key=lambda r: (r.arrival_s, r.id))
        self.place = {request.id: k for k, request in enumerate(everyone)}
        self.running = {request.id for request in event.running}
        self.active: dict[tuple[str, str], list[Request]] = {}
        for request in everyone:
            self.active.setdefault((request.task, request.stage), []).append(request)
        self.nodes: list[list[int]] = []
        self.requests: list[Request | None] = []
        self.outlooks: list[Outlook] = []
        self.stage_left: list[int] = []
        self.missing: list[int] = []
        self.first: list[int] = []
        self.after: list[int] = []
        self.after_at = [0]
        self.left: list[int] = []
        self.stages: list[int] = []

    def add_task(self, t: int, name: str, state: TaskState) -> None:
        """Add what is left of a task."""
        dag, base, start = state.dag, len(self.stage_left), len(self.nodes)
        done = [residual.finished for residual in state.residuals]
        for k in range(len(dag)):
            before = len(self.nodes)
            self.first.append(-1)
            self.missing.append(0)
            requests = self.active.get((name, dag.names[k]), [])
            if requests or not done[k]:
                self.missing[-1] = 0 if requests else sum(not done[b] for b in dag.before[k])
                self._add_stage(t, base + k, k, state, requests, expected=not done[k])
            self.stage_left.append(len(self.nodes) - before)
            self.after.extend(base + b for b in dag.after[k])
            self.after_at.append(len(self.after))
        self.left.append(len(self.nodes) - start)
        self.stages.append(max(len(dag), self.left[-1]))

    def _add_stage(  # noqa: PLR0913  a stage's place, state and requests
        self, t: int, stage: int, k: int, state: TaskState, requests: list[Request], *, expected: bool
    ) -> None:
        outlook = state.outlooks[k] if state.outlooks else _outlook(self.event, state, k, requests)
        depth, start = state.dag.depth[k], len(self.nodes)
        for request in requests:
            runs = request.id in self.running
            status = kernel.RUNNING if runs else kernel.WAITING
            tokens = 0 if runs else request.input_tokens
            owner = self.index[request.agent]
            self._add(
                [
                    t,
                    stage,
                    owner,
                    tokens,
                    request.reserve_tokens,
                    depth,
                    -1,
                    self.place[request.id],
                    status,
                    0,
                ],
                request,
                outlook,
            )
        done = state.requests[k] if state.requests else 0
        more = requests_left(outlook.counts, done) - len(requests) if expected else 0
        owner = self._owner(outlook.agent)
        reserve = outlook.input_tokens + outlook.max_new_tokens
        for number in range(more if requests else max(more, 1)):
            node = len(self.nodes)
            ghost = number == 0 and not requests and self.missing[-1] == 0
            if node > start:
                self.nodes[-1][6] = node
            else:
                self.first[-1] = node
            self._add(
                [
                    t,
                    stage,
                    owner,
                    outlook.input_tokens,
                    reserve,
                    depth,
                    -1,
                    kernel.LATER - 1,
                    kernel.FUTURE,
                    ghost,
                ],
                None,
                outlook,
            )

    def _add(self, row: list[int], request: Request | None, outlook: Outlook) -> None:
        self.nodes.append(row)
        self.requests.append(request)
        self.outlooks.append(outlook)

    def _owner(self, agent: str) -> int:
        """Return an agent's index; one that the event does not know has no prefix."""
        found = self.index.get(agent)
        if found is None:
            found = self.index[agent] = len(self.prefix)
            self.prefix.append(0)
        return found


def case_of(event: Event) -> Case:
    """Return an event as a case for rollouts. O(requests and open stages)."""
    build, settings = _Builder(event), event.params.lookahead
    tasks = sorted(event.tasks, key=lambda name: (event.tasks[name].arrival_s, name))
    for t, name in enumerate(tasks):
        build.add_task(t, name, event.tasks[name])
    table = np.array(build.nodes, dtype=np.int64).reshape(-1, _COLUMNS).T.copy()
    status, agent = table[8], table[2]
    agents = len(build.prefix)
    resident, waits = np.zeros(agents, np.bool_), np.zeros(agents, np.bool_)
    resident[[build.index[name] for name in event.resident]] = True
    waits[agent[status == kernel.WAITING]] = True
    requests = build.requests
    generated = np.array([0 if r is None else r.generated_tokens for r in requests], dtype=np.int64)
    out, known = outputs_left(requests, build.outlooks, settings.scenarios)
    costs = event.params.costs or Costs(decode_base_s=token_s(event))
    age = np.array([event.time_s - event.tasks[name].arrival_s for name in tasks])
    situation = Situation(
        task=table[0],
        stage=table[1],
        agent=agent,
        inputs=table[3],
        reserve=table[4],
        depth=table[5],
        following=table[6],
        arrival=table[7],
        status=status,
        ghost=table[9] > 0,
        mark=np.resize(MARKS, len(requests)),
        stage_left=_ints(build.stage_left),
        stage_missing=_ints(build.missing),
        first=_ints(build.first),
        after=_ints(build.after),
        after_at=_ints(build.after_at),
        left=_ints(build.left),
        stages=_ints(build.stages),
        age=age,
        prefix=_ints(build.prefix),
        smallest=_smallest(agent, table[4], agents),
        resident=resident,
        agent_waits=waits,
        may_drop=_may_drop(requests, agent, status, generated, agents, settings.preempt),
        bases=_ints(BASES),
        rules=_ints(RULES),
        caps=_ints(CAPS),
        running=bool(event.running),
        budget=event.budget_tokens,
        max_running=event.params.max_running or len(requests),
        most_changes=event.params.K or len(requests),
        host=costs.host,
        prefill_base=costs.prefill_base_s,
        prefill_token=costs.prefill_s_per_token,
        decode_base=costs.decode_base_s,
        decode_seq=costs.decode_s_per_seq,
        decode_kv=costs.decode_s_per_kv_token,
        swap_s=event.params.swap_s_per_token,
        horizon=settings.horizon,
        tail=settings.tail,
        scale=max(float(age.mean()), 1.0),
        margin=settings.margin if known else settings.margin_unknown,
        race=settings.race,
    )
    return Case(situation, requests, out, generated * (not costs.keeps))


def _smallest(agent: IntArray, reserve: IntArray, agents: int) -> IntArray:
    """Return the smallest reservation of each agent's requests."""
    least = np.full(agents, np.iinfo(np.int64).max >> 1)
    np.minimum.at(least, agent, reserve)
    return least


def _may_drop(  # noqa: PLR0913  columns of the case
    requests: Sequence[Request | None],
    agent: IntArray,
    status: IntArray,
    generated: IntArray,
    agents: int,
    share: float,
) -> Flags:
    """Return the agents whose running requests have done so little that they may be preempted."""
    work, longest = np.zeros(agents), np.zeros(agents)
    for node in map(int, np.flatnonzero(status == kernel.RUNNING)):
        request = requests[node]
        work[agent[node]] += generated[node]
        most = 0 if request is None else request.max_new_tokens
        longest[agent[node]] = max(longest[agent[node]], most)
    return (longest > 0) & (work <= share * longest) & (share > 0)


def token_s(event: Event) -> float:
    """Return the time of a decode step of an event that does not say what steps cost."""
    params = event.params
    return params.decode_s_per_token if params.decode_s_per_token > 0 else 1.0


def _outlook(event: Event, state: TaskState, k: int, requests: Sequence[Request]) -> Outlook:
    """Return what an event says about a stage that has no outlook: its service, as decode steps."""
    service_s = requests[0].service_s if requests else state.residuals[k].mean_ns / 1e9
    tokens = max(round(service_s / token_s(event)), 1)
    agent = requests[0].agent if requests else ""
    return Outlook(agent, 0, tokens, (tokens,), (1,))


@lru_cache(maxsize=4096)
def requests_left(counts: tuple[int, ...], done: int) -> int:
    """Return how many requests of a stage are expected after ``done`` of them; at least one."""
    more = [count for count in counts if count > done]
    return max(round(sum(more) / len(more)) - done, 1) if more else 1


def outputs_left(
    requests: Sequence[Request | None], outlooks: Sequence[Outlook], scenarios: int
) -> tuple[IntArray, bool]:
    """Return the output tokens still to come by scenario and node, and whether all lengths are known.

    An unknown length is a quantile of the lengths seen above what the request has generated; scenarios are
    strata of it, in an order of each request's own.
    """
    known = all(outlook.outputs[0] == outlook.outputs[-1] for outlook in outlooks)
    count = 1 if known else scenarios
    out = np.empty((count, len(requests)), dtype=np.int64)
    for node, (request, outlook) in enumerate(zip(requests, outlooks, strict=True)):
        most = outlook.max_new_tokens if request is None else request.max_new_tokens or outlook.max_new_tokens
        so_far = 0 if request is None else request.generated_tokens
        if outlook.outputs[0] == outlook.outputs[-1]:
            out[:, node] = max(min(outlook.outputs[0], most) - so_far, 1)
            continue
        samples = _array(outlook.outputs)
        skip = int(np.searchsorted(samples, so_far, side="right"))
        if skip == len(samples):
            out[:, node] = max((most - so_far) // 4, 1)
            continue
        seed = zlib.crc32((str(node) if request is None else request.id).encode())
        places = ((np.arange(count) + (seed >> 16)) % count + (seed & 0xFFFF) / 65536) / count
        drawn = samples[skip + (places * (len(samples) - skip)).astype(np.int64)]
        out[:, node] = np.maximum(np.minimum(drawn, most) - so_far, 1)
    return out, known


@lru_cache(maxsize=4096)
def _array(outputs: tuple[int, ...]) -> IntArray:
    return np.array(outputs, dtype=np.int64)


def room_for(situation: Situation) -> tuple[Scratch, Candidates]:
    """Return scratch arrays for a situation."""
    nodes, agents, bases = len(situation.task), len(situation.prefix), len(situation.bases)
    most = bases + len(situation.rules) + len(situation.caps) + 2 + agents * (1 + bases)
    scratch = Scratch(
        status=_room(nodes),
        left=_room(len(situation.left)),
        stage_left=_room(len(situation.stage_left)),
        stage_missing=_room(len(situation.stage_left)),
        users=_room(agents),
        there=np.empty(agents, np.bool_),
        ready=np.empty(agents),
        link=np.empty(1),
        used=_room(1),
        idle=_room(1),
        batch=_room(1),
        running=_room(nodes),
        finish=_room(nodes),
        heap=np.empty((agents, nodes + 1, 2), np.int64),
        size=_room(agents),
        weight=np.empty(agents),
        aside=_room(nodes),
        asides=_room(1),
        arrival=_room(nodes),
    )
    candidates = Candidates(
        size=_room(1),
        status=np.empty((most, nodes), np.int64),
        taken=np.empty((most, nodes), np.int64),
        takes=_room(most),
        key=_room(most),
        cost=np.empty((most, bases)),
        alive=np.empty(most, np.bool_),
        reference=_room(bases),
        out=_room(nodes),
    )
    return scratch, candidates


def _room(size: int) -> IntArray:
    return np.empty(size, dtype=np.int64)


def _ints(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
