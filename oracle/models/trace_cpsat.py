"""CP-SAT models of a whole trace on engines where a request takes a constant time.

Both models are relaxations: every schedule that any policy can bring about, with preemption or without,
is a solution of no greater value. So their optimum is a lower bound on the sum of completion times, and
is reached where a solution can be carried out. Times are integers in a unit of nanoseconds, durations
rounded down.

Common to both: releases, precedence of rounds and stages, tool waits, and a time p_r that r needs between
its admission (with its prefix there) and its end. All of ``reused_tokens`` are taken to be reused.

Preemption with ``redo`` = ``decode`` drops all that was generated, so leaving out an attempt that is
broken off keeps every other attempt where it is: they need no more memory and no more of the GPU. What such
an attempt can be good for is its prefix, which stays behind. The serial model therefore allows a prefix to
be set up ahead by another request of the agent; in the parallel model prefixes cost nothing to set up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any

from oracle.extra import solver_module
from oracle.models.cpsat import new_solver
from topas.profile import Profile
from topas.trace import Round, Trace
from topas.units import NS_PER_S

Solver = Any
"""Objects of OR-Tools, which has no types."""


@dataclass(frozen=True, slots=True)
class TraceItem:
    """A request; times are in ``TraceProblem.unit_ns``. ``after`` are the items it waits for."""

    agent: str
    task: int
    release: int
    time: int
    prefill: int
    tool: int
    after: tuple[int, ...]
    reserve_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class TraceProblem:
    """All requests in the order of :func:`topas.sim.build.request_names`.

    ``compute`` is what it takes to compute an agent's prefix, ``load`` to load it from host memory again.
    ``last`` are the requests at the end of each task. ``alike`` are pairs of requests, the same one of two
    equal tasks of which the first arrives no later.
    """

    items: tuple[TraceItem, ...]
    last: tuple[tuple[int, ...], ...]
    compute: dict[str, int]
    load: dict[str, int]
    prefix_tokens: dict[str, int]
    budget_tokens: int
    max_running: int
    host: bool
    alike: tuple[tuple[int, int], ...]
    unit_ns: int

    @property
    def horizon(self) -> int:
        """Return a time by which everything can be over: one after another, each with its setup."""
        setups = max(self.compute.values(), default=0) + max(self.load.values(), default=0)
        work = sum(item.time + item.prefill + item.tool + setups for item in self.items)
        return max(item.release for item in self.items) + work + 1


@dataclass(frozen=True, slots=True)
class TraceAnswer:
    """Start times by request in ``unit_ns`` (none if none were found), and a bound on the sum of ends."""

    starts: tuple[int, ...]
    bound: int


def exact(value: float) -> Fraction:
    """Return a constant as the decimal fraction that it is written as."""
    return Fraction(str(value))


@dataclass(frozen=True, slots=True)
class _RequestRow:
    """A request in seconds: when its task arrives, how long it takes, its prefill and its tool."""

    agent: str
    task: int
    spec: Round
    after: tuple[int, ...]
    times: tuple[Fraction, Fraction, Fraction, Fraction]


def _rows(trace: Trace, profile: Profile) -> tuple[list[_RequestRow], list[tuple[int, ...]]]:
    """Return all requests, and those at the end of each task."""
    rows: list[_RequestRow] = []
    last: list[tuple[int, ...]] = []
    for number, task in enumerate(trace.tasks):
        dag = task.workflow.dag
        ends: list[int] = []
        for v, rounds in enumerate(task.rounds):
            before = tuple(ends[p] for p in dag.before[v])
            agent = task.workflow.agents[v]
            for spec in rounds:
                fill_s, decode_s = _times_s(profile, trace.agents[agent], spec)
                times = (exact(task.arrival_s), fill_s + decode_s, fill_s, exact(spec.tool_s))
                rows.append(_RequestRow(agent, number, spec, before, times))
                before = (len(rows) - 1,)
            ends.append(len(rows) - 1)
        last.append(tuple(ends[v] for v in range(len(dag)) if not dag.after[v]))
    return rows, last


def _times_s(profile: Profile, prefix_tokens: int, spec: Round) -> tuple[Fraction, Fraction]:
    """Return the time to prefill a request whose prefix is there, and to decode it alone (E3-E5)."""
    new = max(spec.input_tokens - spec.reused_tokens, 1)
    fill_s = exact(profile.prefill_base_s) + new * exact(profile.prefill_s_per_token)
    steps = spec.output_tokens - 1
    per_kv_s = exact(profile.decode_s_per_kv_token)
    step_s = exact(profile.decode_base_s) + exact(profile.decode_s_per_seq)
    step_s += (prefix_tokens + spec.input_tokens + 1) * per_kv_s
    return fill_s, steps * step_s + per_kv_s * Fraction(steps * (steps - 1), 2)


def problem_of(trace: Trace, profile: Profile) -> TraceProblem:
    """Return the requests with their constant times, rounded down to nanoseconds."""
    rows, last = _rows(trace, profile)
    prefill_s = exact(profile.prefill_s_per_token)
    link_s = Fraction(profile.kv_bytes_per_token) / exact(profile.swap_bytes_per_s)
    used = {row.agent: trace.agents[row.agent] for row in rows}
    compute = {agent: _ns(tokens * prefill_s) for agent, tokens in used.items()}
    load = {agent: _ns(tokens * link_s) for agent, tokens in used.items()} if profile.host_cache else compute
    times = [tuple(_ns(value) for value in row.times) for row in rows]
    unit = max(math.gcd(*itertools.chain(*times), *compute.values(), *load.values()), 1)
    items = []
    for row, (release, whole, prefill, tool) in zip(rows, times, strict=True):
        items.append(
            TraceItem(
                agent=row.agent,
                task=row.task,
                release=release // unit,
                time=whole // unit,
                prefill=prefill // unit,
                tool=tool // unit,
                after=row.after,
                reserve_tokens=row.spec.reserve_tokens,
                context_tokens=row.spec.input_tokens + row.spec.output_tokens,
            )
        )
    return TraceProblem(
        items=tuple(items),
        last=tuple(last),
        compute={agent: value // unit for agent, value in compute.items()},
        load={agent: value // unit for agent, value in load.items()},
        prefix_tokens=dict(trace.agents),
        budget_tokens=profile.kv_budget_tokens,
        max_running=profile.max_running,
        host=profile.host_cache,
        alike=_alike(trace),
        unit_ns=unit,
    )


def _alike(trace: Trace) -> tuple[tuple[int, int], ...]:
    """Return the same requests of equal tasks that follow each other in order of arrival."""
    pairs: list[tuple[int, int]] = []
    latest: dict[tuple[object, ...], int] = {}
    begin = 0
    for task in trace.tasks:
        size = sum(map(len, task.rounds))
        key = (id(task.workflow), task.rounds)
        if key in latest:
            pairs += [(latest[key] + k, begin + k) for k in range(size)]
        latest[key] = begin
        begin += size
    return tuple(pairs)


def _ns(seconds: Fraction) -> int:
    return math.floor(seconds * NS_PER_S)


@dataclass(slots=True)
class _TraceModel:
    """A CP-SAT model under construction: the part that both engines share."""

    cp: ModuleType
    model: Solver
    starts: list[Solver]
    intervals: list[Solver]


def _base(problem: TraceProblem) -> _TraceModel:
    cp = solver_module("ortools.sat.python.cp_model")
    model = cp.CpModel()
    horizon = problem.horizon
    starts = [model.new_int_var(i.release, horizon, f"s{k}") for k, i in enumerate(problem.items)]
    intervals = [
        model.new_fixed_size_interval_var(start, item.time, f"i{k}")
        for k, (start, item) in enumerate(zip(starts, problem.items, strict=True))
    ]
    for item, start in zip(problem.items, starts, strict=True):
        for p in item.after:
            model.add(start >= starts[p] + problem.items[p].time + problem.items[p].tool)
    for k, later in problem.alike:
        # Equal tasks may change places request by request: the smaller start to the earlier task. Each keeps
        # its order, none starts too early, and nothing else in the models tells the two requests apart.
        model.add(starts[k] <= starts[later])
    ends = []
    for number, last in enumerate(problem.last):
        end = model.new_int_var(0, 2 * horizon, f"c{number}")
        for k in last:
            model.add(end >= starts[k] + problem.items[k].time + problem.items[k].tool)
        ends.append(end)
    model.minimize(sum(ends))
    return _TraceModel(cp, model, starts, intervals)


def heads(problem: TraceProblem) -> list[int]:
    """Return the earliest time at which each request can be ready, by precedence alone."""
    found: list[int] = []
    for item in problem.items:
        ready = [found[p] + problem.items[p].time + problem.items[p].tool for p in item.after]
        found.append(max([item.release, *ready]))
    return found


def _by_agent(problem: TraceProblem) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for k, item in enumerate(problem.items):
        rows.setdefault(item.agent, []).append(k)
    return rows


def survives(problem: TraceProblem, agent: str, between: TraceItem) -> bool:
    """Return whether an idle prefix can outlast a request of another agent (E8).

    When that one has finished and leftovers are trimmed, its context and its prefix are more recent.
    """
    prefixes = problem.prefix_tokens[agent] + problem.prefix_tokens[between.agent]
    return prefixes + between.context_tokens <= problem.budget_tokens


def serial_model(problem: TraceProblem) -> _TraceModel:
    """Model an engine that serves one request at a time, as a sequence with setups.

    A setup is due before the first request of an agent (its prefix is computed), and behind a request of
    another agent that the prefix cannot outlast (computed again, or loaded from host memory). It begins
    when the one before has ended and r is ready; or, ahead of time, by an attempt of another
    request of the agent that is broken off, which takes that one's prefill too. A load ahead of time
    overlaps with other requests and is not charged. Nor are the link's queue and evictions by anything
    else than the request just before.
    """
    base = _base(problem)
    model, starts, items = base.model, base.starts, problem.items
    model.add_no_overlap(base.intervals)
    size, head = len(items), heads(problem)
    first = [model.new_bool_var(f"first{k}") for k in range(size)]
    due = [model.new_bool_var(f"due{k}") for k in range(size)]
    ahead = [model.new_bool_var(f"ahead{k}") for k in range(size)]
    rows = _by_agent(problem)
    for same in rows.values():
        model.add_exactly_one(first[k] for k in same)
        for k in same:
            for other in same:
                model.add(starts[k] <= starts[other]).only_enforce_if(first[k])
    arcs = []
    for k, item in enumerate(items):
        setup = model.new_int_var_from_domain(
            base.cp.Domain.from_values([0, problem.load[item.agent], problem.compute[item.agent]]), f"u{k}"
        )
        model.add(setup >= problem.compute[item.agent]).only_enforce_if(first[k])
        model.add(setup >= problem.load[item.agent]).only_enforce_if(due[k], first[k].negated())
        model.add_implication(first[k], due[k])
        others = [q for q in rows[item.agent] if q != k]
        if not others:
            model.add(ahead[k] == 0)
        at_once = ahead[k].negated()
        model.add(starts[k] >= item.release + setup).only_enforce_if(at_once)
        for p in item.after:
            ready = starts[p] + items[p].time + items[p].tool
            model.add(starts[k] >= ready + setup).only_enforce_if(at_once)
        # an attempt of another request ahead: by computing; loads overlap
        computed = [first[k] if problem.host else due[k], ahead[k]]
        fill = min(items[q].prefill for q in rows[item.agent])
        begun = min(head[q] + items[q].prefill for q in rows[item.agent])
        model.add(starts[k] >= begun + setup).only_enforce_if(computed)
        arcs += [(0, k + 1, model.new_bool_var("")), (k + 1, 0, model.new_bool_var(""))]
        for q, earlier in enumerate(items):
            if q == k or k in earlier.after:
                continue
            arc = model.new_bool_var("")
            arcs.append((q + 1, k + 1, arc))
            end = starts[q] + earlier.time
            model.add(starts[k] >= end).only_enforce_if(arc)
            model.add(starts[k] >= end + setup).only_enforce_if(arc, at_once)
            model.add(starts[k] >= end + setup + fill).only_enforce_if(arc, *computed)
            if earlier.agent != item.agent and not survives(problem, item.agent, earlier):
                model.add_implication(arc, due[k])
    model.add_circuit(arcs)
    return base


def parallel_model(problem: TraceProblem) -> _TraceModel:
    """Model an engine whose steps take a constant time and whose prefills take none.

    The KV budget is a cumulative resource: each request reserves d_r while it runs, and each prefix is
    there while any request of its agent runs. A period of a prefix is named after the first of the
    requests in it (by index); each request is in one period of its agent, and the period covers it. Left
    out: that a request waits for the end of a step, and the link.
    """
    base = _base(problem)
    model, starts, items = base.model, base.starts, problem.items
    intervals, demands = list(base.intervals), [item.reserve_tokens for item in items]
    periods: list[list[Solver]] = [[] for _ in items]
    rows = _by_agent(problem)
    for agent, same in rows.items():
        for place, leader in enumerate(same):
            opened = model.new_bool_var("")
            begin = model.new_int_var(0, problem.horizon, "")
            end = model.new_int_var(0, 2 * problem.horizon, "")
            length = model.new_int_var(0, 2 * problem.horizon, "")
            intervals.append(model.new_optional_interval_var(begin, length, end, opened, ""))
            demands.append(problem.prefix_tokens[agent])
            for k in same[place:]:
                inside = opened if k == leader else model.new_bool_var("")
                periods[k].append(inside)
                model.add_implication(inside, opened)
                model.add(begin <= starts[k]).only_enforce_if(inside)
                model.add(end >= starts[k] + items[k].time).only_enforce_if(inside)
    for options in periods:
        model.add_exactly_one(options)
    model.add_cumulative(intervals, demands, problem.budget_tokens)
    model.add_cumulative(base.intervals, [1] * len(items), problem.max_running)
    return base


def solve(
    base: _TraceModel, *, time_limit_s: float, seed: int, workers: int, hint: Sequence[int]
) -> TraceAnswer:
    """Solve a model; ``hint`` are start times to try first."""
    for start, value in zip(base.starts, hint, strict=False):
        base.model.add_hint(start, value)
    solver = new_solver(time_s=time_limit_s, seed=seed, workers=workers)
    status = solver.solve(base.model)
    found = status in {base.cp.OPTIMAL, base.cp.FEASIBLE}
    starts = tuple(solver.value(start) for start in base.starts) if found else ()
    return TraceAnswer(starts, math.ceil(solver.best_objective_bound - 1e-6))
