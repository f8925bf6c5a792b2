"""An event as arrays for rollouts: every request that is there or expected, and what it costs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topas.cost import Cost
from topas.event import Event, Outlook, Request, TaskState
from topas.online.rollout import kernel, nodes
from topas.residual import FloatArray, IntArray, Residual
from topas.workflow import Dag

Flags = npt.NDArray[np.bool_]


BASES = (kernel.FINISH, kernel.SPF, kernel.LPM, kernel.GATHER)
"""Rules that rollouts follow, and that propose."""
RULES = (kernel.PARROT,)
"""Rules that only propose."""
CAPS = (1, 2)
"""``finish`` also proposes with at most so many prefixes in use."""
_BASES, _RULES, _CAPS = (np.array(rules, dtype=np.int64) for rules in (BASES, RULES, CAPS))


class Situation(NamedTuple):
    """N nodes (requests, active or expected) of T tasks with S stages and A agents.

    By node: ``task``, ``stage``, ``agent``, ``inputs`` (tokens to prefill), ``cached`` (context in
    memory), ``generated`` tokens, ``reserve`` (d_r), ``depth``,
    ``following`` (the next request of its stage, -1: none), ``arrival`` (rank), ``status``, ``ghost`` (it
    comes from outside: the next round of a stage whose tool runs), ``mark`` (a random number). By stage:
    requests left, predecessors left, ``first`` expected request, successors ``after[after_at[k]:]``. By
    task: ``left`` requests, all ``stages``, ``age`` in seconds. By agent: ``prefix``, and the ``smallest``
    reservation of its requests; ``least`` is the smallest of all. ``cost``, ``keeps``, ``host`` and
    ``shared`` are the engine's (:class:`topas.event.Params`).
    """

    task: IntArray
    stage: IntArray
    agent: IntArray
    inputs: IntArray
    cached: IntArray
    generated: IntArray
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
    least: int
    running: bool
    budget: int
    max_running: int
    most_changes: int
    cost: Cost
    keeps: bool
    host: bool
    shared: bool
    horizon: int
    tail: float
    drain: float
    scale: float
    margin: float
    race: float


class Scratch(NamedTuple):
    """Room for one rollout."""

    status: IntArray
    arrival: IntArray
    left: IntArray
    stage_left: IntArray
    stage_missing: IntArray
    users: IntArray
    there: Flags
    ready: FloatArray
    size: IntArray
    weight: FloatArray
    heap: IntArray
    run: IntArray
    aside: IntArray
    counts: IntArray
    held: IntArray
    coming: IntArray
    due: FloatArray


class Candidates(NamedTuple):
    """Room for candidates: ``taken[i, :takes[i]]`` are admitted, ``status[i]`` says what then runs."""

    size: IntArray
    status: IntArray
    taken: IntArray
    takes: IntArray
    key: IntArray
    cost: FloatArray
    base_cost: FloatArray
    played: FloatArray
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


class Structure(NamedTuple):
    """A DAG as arrays: ``before[before_at[v]:]`` are the predecessors of stage v, ``after`` alike."""

    depth: IntArray
    before: IntArray
    after: IntArray
    indegree: IntArray
    outdegree: IntArray


@lru_cache(maxsize=1024)
def structure_of(dag: Dag) -> Structure:
    """Return a DAG as arrays."""
    return Structure(
        _ints(dag.depth),
        _ints([b for before in dag.before for b in before]),
        _ints([a for after in dag.after for a in after]),
        _ints([len(before) for before in dag.before]),
        _ints([len(after) for after in dag.after]),
    )


class _Agents:
    """Agents by number; one that the event does not know has no prefix."""

    def __init__(self, event: Event) -> None:
        names = sorted(event.agents)
        self.index = {name: k for k, name in enumerate(names)}
        self.prefix = [event.agents[name] for name in names]

    def number(self, name: str) -> int:
        found = self.index.get(name)
        if found is None:
            found = self.index[name] = len(self.prefix)
            self.prefix.append(0)
        return found


class _Outlooks:
    """The outlooks of an event, each once."""

    def __init__(self, agents: _Agents) -> None:
        self.agents = agents
        self.places: dict[int, int] = {}
        self.found: list[Outlook] = []

    def place(self, outlook: Outlook) -> int:
        """Return the number of an outlook; equal ones that are not the same count as two."""
        place = self.places.get(id(outlook))
        if place is None:
            place = self.places[id(outlook)] = len(self.found)
            self.found.append(outlook)
        return place

    def table(self) -> IntArray:
        """Return agent, input tokens, most output tokens and tokens reused by outlook."""
        rows = [
            (self.agents.number(o.agent), o.input_tokens, o.max_new_tokens, o.reused_tokens)
            for o in self.found
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, 4)


def case_of(event: Event) -> Case:
    """Return an event as a case for rollouts. O(requests and open stages)."""
    settings, running = event.params.lookahead, {request.id for request in event.running}
    everyone = sorted((*event.waiting, *event.running), key=lambda r: (r.arrival_s, r.id))
    names = sorted(event.tasks, key=lambda name: (event.tasks[name].arrival_s, name))
    states = [event.tasks[name] for name in names]
    structures = [structure_of(state.dag) for state in states]
    sizes = [len(state.dag) for state in states]
    starts = _ends(sizes)
    base = dict(zip(names, starts.tolist(), strict=False))
    agents = _Agents(event)
    rows = [
        (
            base[r.task] + event.tasks[r.task].dag.index[r.stage],
            agents.index[r.agent],
            r.input_tokens,
            max(r.cached_tokens - event.agents[r.agent], 0),
            r.reserve_tokens,
            r.id in running,
            r.generated_tokens,
            r.max_new_tokens,
            r.preemptions,
            _seed(r.id),
            rank,
        )
        for rank, r in enumerate(everyone)
    ]
    requests = np.array(rows, dtype=np.int64).reshape(-1, 11)
    place = requests[:, nodes.PLACE]
    active = np.bincount(place, minlength=int(starts[-1]))
    outlooks = _Outlooks(agents)
    stages = _stages(event, states, dict(zip(place.tolist(), everyone, strict=True)), outlooks)
    done, begun, outlook = stages[:, 0] > 0, stages[:, 1] > 0, stages[:, 2]
    more = np.maximum(stages[:, 3] - active, (~done & (active == 0)).astype(np.int64))
    before_at = _ends(np.concatenate([s.indegree for s in structures]))
    after_at = _ends(np.concatenate([s.outdegree for s in structures]))
    before = _joined([s.before for s in structures], starts)
    missing = nodes.stages_of(done, before, before_at, active)
    expected = outlooks.table()
    table, first, count = nodes.nodes_of(
        np.repeat(np.arange(len(states)), sizes),
        np.concatenate([s.depth for s in structures]),
        missing,
        more,
        begun,
        outlook,
        requests[np.argsort(place, kind="stable")],
        expected,
    )
    samples, means = zip(*(_lengths(o.outputs) for o in outlooks.found), strict=True)
    lengths, lengths_at = np.concatenate(samples), _ends([len(values) for values in samples])
    known = nodes.lengths_known(table, lengths, lengths_at)
    size = table.shape[1]
    marks = MARKS[:size] if size <= len(MARKS) else np.resize(MARKS, size)
    out = nodes.outputs_left(
        table,
        requests,
        expected,
        lengths,
        lengths_at,
        marks,
        1 if known else settings.scenarios,
    )
    at = table[nodes.REQUEST]
    seen: list[Request | None] = [everyone[q] if q >= 0 else None for q in at.tolist()]
    generated = np.where(at >= 0, requests[at, nodes.DONE], 0)
    agent, status, many = table[nodes.AGENT], table[nodes.STATUS], len(agents.prefix)
    left = np.bincount(table[nodes.TASK], minlength=len(states))
    resident, waits = np.zeros(many, np.bool_), np.zeros(many, np.bool_)
    resident[[agents.index[name] for name in event.resident]] = True
    waits[agent[status == kernel.WAITING]] = True
    age = event.time_s - np.array([state.arrival_s for state in states])
    situation = Situation(
        task=table[nodes.TASK],
        stage=table[nodes.STAGE],
        agent=agent,
        inputs=table[nodes.INPUTS],
        cached=table[nodes.CACHED],
        generated=generated,
        reserve=table[nodes.RESERVE],
        depth=table[nodes.DEPTH],
        following=table[nodes.FOLLOWING],
        arrival=table[nodes.ARRIVAL],
        status=status,
        ghost=table[nodes.GHOST] > 0,
        mark=marks,
        stage_left=count,
        stage_missing=missing,
        first=first,
        after=_joined([s.after for s in structures], starts),
        after_at=after_at,
        left=left,
        stages=np.maximum(sizes, left),
        age=age,
        prefix=_ints(agents.prefix),
        smallest=nodes.smallest(agent, table[nodes.RESERVE], many),
        resident=resident,
        agent_waits=waits,
        may_drop=_may_drop(requests, np.array(means)[outlook[place]], many, settings.preempt),
        bases=_BASES,
        rules=_RULES,
        caps=_CAPS,
        least=int(table[nodes.RESERVE].min()),
        running=bool(event.running),
        budget=event.budget_tokens,
        max_running=event.params.max_running or size,
        most_changes=event.params.K or size,
        cost=cost_of(event),
        keeps=event.params.keeps_output,
        host=event.params.host_cache,
        shared=event.params.reads_shared_once,
        horizon=settings.horizon,
        tail=settings.tail,
        drain=settings.drain,
        scale=max(float(age.mean()), 1.0),
        margin=settings.margin,
        race=settings.race,
    )
    return Case(situation, seen, out, generated * (not event.params.keeps_output))


def _stages(
    event: Event, states: Sequence[TaskState], requests: Mapping[int, Request], outlooks: _Outlooks
) -> IntArray:
    """Return of each stage: whether it is done, requests done, its outlook, requests expected from now on.

    The outlook of a stage that is done means nothing, unless it still has requests.
    """
    rows: list[tuple[bool, int, int, int]] = []
    known: dict[tuple[int, int], tuple[bool, int, int, int]] = {}
    over = (True, 0, 0, 0)
    for state in states:
        if state.outlooks:
            seen, counts = state.outlooks, state.requests
        else:
            at = len(rows)
            seen = tuple(_outlook(event, r, requests.get(at + k)) for k, r in enumerate(state.residuals))
            counts = (0,) * len(seen)
        for residual, outlook, done in zip(state.residuals, seen, counts, strict=True):
            if residual.finished:
                rows.append((True, done, outlooks.place(outlook), 0) if len(rows) in requests else over)
                continue
            row = known.get((id(outlook), done))
            if row is None:
                more = requests_left(outlook.counts, done)
                row = known[id(outlook), done] = (False, done, outlooks.place(outlook), more)
            rows.append(row)
    return _ints(rows)


def _outlook(event: Event, residual: Residual, request: Request | None) -> Outlook:
    """Return what an event says about a stage that has no outlook: its service, as decode steps."""
    service_s = residual.mean_ns / 1e9 if request is None else request.service_s
    step_s = cost_of(event).decode_s_per_token
    tokens = max(round(service_s / step_s), 1) if step_s > 0 else 1
    return Outlook("" if request is None else request.agent, 0, tokens, (tokens,), (1,))


def _may_drop(requests: IntArray, outputs: FloatArray, agents: int, share: float) -> Flags:
    """Return the agents whose running requests may be preempted: all new to it, and with little done.

    ``outputs[q]`` is the output length expected of request q.
    """
    runs = requests[:, nodes.RUNS] > 0
    who = requests[runs, nodes.WHO]
    work = np.bincount(who, weights=requests[runs, nodes.DONE], minlength=agents)
    before = np.bincount(who, weights=requests[runs, nodes.BACK], minlength=agents)
    longest = np.zeros(agents)
    np.maximum.at(longest, who, outputs[runs])
    found: Flags = (longest > 0) & (work <= share * longest) & (before == 0) & (share > 0)
    return found


def cost_of(event: Event) -> Cost:
    """Return what work takes; where an event says nothing of the GPU's, a decode step takes a second."""
    cost = event.params.cost
    return cost if any(cost._replace(swap_s_per_token=0.0)) else cost._replace(decode_base_s=1.0)


@lru_cache(maxsize=4096)
def requests_left(counts: tuple[int, ...], done: int) -> int:
    """Return how many requests of a stage are expected after ``done`` of them; at least one."""
    more = [count for count in counts if count > done]
    return max(round(sum(more) / len(more)) - done, 1) if more else 1


@lru_cache(maxsize=4096)
def _lengths(outputs: tuple[int, ...]) -> tuple[IntArray, float]:
    """Return output lengths as an array, and their mean."""
    lengths = np.array(outputs, dtype=np.int64)
    return lengths, float(lengths.mean())


@lru_cache(maxsize=65536)
def _seed(name: str) -> int:
    return zlib.crc32(name.encode())


def room_for(case: Case) -> tuple[Scratch, Candidates]:
    """Return scratch arrays for a case."""
    situation, scenarios = case.situation, len(case.out)
    nodes, agents, bases = len(situation.task), len(situation.prefix), len(situation.bases)
    most = bases + len(situation.rules) + len(situation.caps) + 2 + agents * (1 + bases)
    scratch = Scratch(
        status=_room(nodes),
        arrival=_room(nodes),
        left=_room(len(situation.left)),
        stage_left=_room(len(situation.stage_left)),
        stage_missing=_room(len(situation.stage_left)),
        users=_room(agents),
        there=np.empty(agents, np.bool_),
        ready=np.empty(agents),
        size=_room(agents),
        weight=np.empty(agents),
        heap=np.empty((agents, nodes + 1, 2), np.int64),
        run=np.empty((nodes + 1, 2), np.int64),
        aside=_room(nodes),
        counts=_room(4),
        held=_room(nodes),
        coming=_room(nodes),
        due=np.empty(nodes),
    )
    candidates = Candidates(
        size=_room(1),
        status=np.empty((most, nodes), np.int64),
        taken=np.empty((most, nodes), np.int64),
        takes=_room(most),
        key=_room(most),
        cost=np.empty(most),
        base_cost=np.empty(bases),
        played=np.empty((bases, scenarios)),
        reference=_room(bases),
        out=_room(nodes),
    )
    return scratch, candidates


def _room(size: int) -> IntArray:
    return np.empty(size, dtype=np.int64)


def _ints(values: Sequence[int] | Sequence[tuple[int, ...]]) -> IntArray:
    return np.array(values, dtype=np.int64)


def _ends(sizes: Sequence[int] | IntArray) -> IntArray:
    """Return where each part begins, and where the last one ends."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _joined(parts: Sequence[IntArray], starts: IntArray) -> IntArray:
    """Return the parts as one, each moved by its own start."""
    return np.concatenate(parts) + np.repeat(starts[:-1], [len(part) for part in parts])
