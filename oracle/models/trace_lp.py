"""Lower bound 4: a linear program over time slots (and its mixed-integer version).

Take any schedule and cut time into slots of width ``slot_s``. For a unit (request) u let S_u(t) be 1 from
the start of its last run on and C_u(t) be 1 from its completion on. The variables are averages over a slot
of what happens in it; everything below holds at every instant, hence for averages, or is integrated.

Units, per slot s:

- ``S``, ``C``: averages of S_u and C_u; each rises with s. ``S <= C`` of every unit it waits for, moved by
  the wait in whole slots. Presence in the engine is ``x = S - C``, or ``x <= S - C`` where a request may be
  run in pieces.
- ``C(t) <= S(t - D)``, D its shortest service: so ``C(s) <= S(s - floor(D / slot))``, and, integrated,
  ``sum_(s' <= s) C(s') <= sum_(s' < s - k) S(s') + (1 - rho) S(s - k)`` with ``D / slot = k + rho``: the
  integral of a rising function is convex, so a chord lies above it.
- ``G``: tokens decoded by the end of the slot; ``G >= steps * C``; ``G`` rises by at most ``x`` slots of the
  fastest steps, and along any path of a job by at most the steps of the slot: of these requests one at a
  time is in the engine.
- Waves: if w units must be complete before a job goes on and c fit together (:mod:`critical_path`), those
  not complete at t - j D are complete at t only if at most ``j c``:
  ``sum of C(s - j k) >= (w - j c) * S(s)`` with ``k = floor(D / slot)``.

The engine, per slot. At an instant it decodes, or does anything else, with a set R of prefixes in use and
n requests. Sets are grouped by the sum of their prefixes into levels ``[Z_low, Z_high]``. A level has the
time it decodes ``w``, other time ``o``, the presence in both ``n_w``, ``n_o``, tokens ``g`` and steps ``q``:

- time: the sum of all ``w + o`` is the slot; all prefills fit into ``o``;
- memory: ``sum need * x <= sum (B - Z_low)(w + o)``, ``n <= n_max(level) * time``;
- a step with n requests takes ``t_0 + n t_1`` with ``t_0 = base + per_kv Z_low``,
  ``t_1 = per_seq + per_kv * context``: ``t_0 q + t_1 g <= w``, and ``g <= n / (t_0 + n t_1)`` per time, a
  concave function of n, replaced by tangents and the chord from 0 to 1;
- residency: agent a's prefix is in use a share ``z_a`` of the slot, split by level; ``z_a >= x`` of each of
  its requests (the strong links), ``sum of prefix * z_a <= Z_high * time`` in each level;
- a prefill ends at least the request's decode steps before its completion, and the prefix of each agent
  must have been computed once by then;
- KV grows by a token a step: of a request's last step on, ``per_kv * steps (steps - 1) / 2`` of decode time
  have gone into that. They are counted as other time, so that ``t_1`` may leave them out.

The objective is the sum of completion times, ``integral of (1 - C)``, over the window of each job: what is
not complete at its end counts up to it. Nothing forces completion, so windows make the bound no higher than
it is. Consecutive jobs of one shape may be taken as one of multiplicity m, with the least length of each
unit over them: S and C are then sums over them. To make a program smaller, tokens may be pooled: no ``G``,
but ``sum of steps * C`` of all units is at most the tokens of all slots so far.

The mixed-integer version adds 0/1 variables: is a's prefix in use at the instant between two slots. If all
services of a are longer than a slot it is in use inside a slot only if at one of its ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from oracle.bounds.batches import alone_s
from oracle.bounds.critical_path import at_once, earliest
from oracle.bounds.work import TaskWork, TraceWork, Unit, most_running, smallest
from oracle.models.linear import LinearProgram
from topas.residual import FloatArray, IntArray

LEVELS = 8
"""Most levels of resident prefixes; more sets than that are put together."""
TANGENTS = 7
SPLIT_CELLS = 40_000
"""Residency is split by level if agents x levels x slots are at most so many."""
EVEN = 1e-3
"""A share of a slot below this is left out of D."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Jobs of one shape, taken as one of multiplicity ``len(arrivals_s)``; arrivals from the first of all."""

    job: TaskWork
    arrivals_s: FloatArray


@dataclass(frozen=True, slots=True)
class Level:
    """Sets of prefixes of ``low`` to ``high`` tokens together; at most ``most`` requests beside them."""

    low: float
    high: float
    most: float


@dataclass(frozen=True, slots=True)
class UnitColumns:
    """Variables of a unit: slots ``first`` on."""

    first: int
    start: IntArray
    end: IntArray
    tokens: IntArray


@dataclass(frozen=True, slots=True)
class EngineColumns:
    """Variables and rows of the engine, one a slot; ``resident`` is agents x slots.

    To the rows the units add their presence, tokens and prefills.
    """

    steps: IntArray
    resident: IntArray
    computed: IntArray
    memory: IntArray
    presence: IntArray
    agent_presence: IntArray
    decoded: IntArray
    prefilled: IntArray
    grown: IntArray


def groups_of(jobs: Sequence[TaskWork], size: int) -> list[TaskGroup]:
    """Put up to ``size`` consecutive jobs of one shape together, each unit as small as the smallest.

    A shape is the precedence of units, and their agents.
    """
    shapes: dict[object, list[list[TaskWork]]] = {}
    for job in jobs:
        key = (tuple((unit.agent, unit.after) for unit in job.units), job.ends)
        open_groups = shapes.setdefault(key, [[]])
        if len(open_groups[-1]) == size:
            open_groups.append([])
        open_groups[-1].append(job)
    start_s = min(job.arrival_s for job in jobs)
    merged = []
    for members in (group for groups in shapes.values() for group in groups):
        units = tuple(smallest(column) for column in zip(*(job.units for job in members), strict=True))
        arrivals = np.array([job.arrival_s - start_s for job in members])
        merged.append(TaskGroup(TaskWork(members[0].arrival_s, units, members[0].ends), arrivals))
    return merged


def levels_of(work: TraceWork) -> list[Level]:
    """Return the levels: every sum of prefixes that leaves room for a request, put together to a few."""
    profile, units = work.profile, work.units
    budget, least = profile.kv_budget_tokens, min(unit.need_tokens for unit in units)
    sums = {0.0}
    for tokens in work.prefix:
        sums |= {value + float(tokens) for value in sums if value + tokens + least <= budget}
        if len(sums) > 64 * LEVELS:
            return _merged(np.linspace(0.0, budget - least, LEVELS + 1), work, least)
    ordered = sorted(sums)
    if len(ordered) > LEVELS:
        return _merged(np.linspace(0.0, ordered[-1], LEVELS + 1), work, least)
    return [Level(value, value, _most_beside(work, value, least)) for value in ordered]


def _merged(edges: FloatArray, work: TraceWork, least: int) -> list[Level]:
    pairs = pairwise(edges)
    return [Level(float(low), float(high), _most_beside(work, float(low), least)) for low, high in pairs]


def _most_beside(work: TraceWork, tokens: float, least: int) -> float:
    room = work.profile.kv_budget_tokens - tokens
    return float(min(most_running(work), room // least if least else np.inf))


class TraceProgram:
    """The program of a trace; build it, then :meth:`bound`."""

    def __init__(  # noqa: PLR0913  what a program depends on
        self,
        work: TraceWork,
        groups: Sequence[TaskGroup],
        *,
        slot_s: float,
        window_s: float,
        integer: bool = False,
        pooled: bool = False,
    ) -> None:
        self.work, self.groups, self.slot_s = work, groups, slot_s
        self.program = LinearProgram()
        self.levels = levels_of(work)
        last_s = max(float(group.arrivals_s[-1]) for group in groups)
        self.slots = int((last_s + window_s) // slot_s) + 1
        self.window_s = window_s
        self.pooled = pooled
        self.engine = self._add_engine()
        self.constant_s = 0.0
        columns = [self._add_group(group) for group in groups]
        if integer:
            self._add_integers(columns)

    # ------------------------------------------------------------------------------------------- the engine

    def _add_engine(self) -> EngineColumns:
        p, work, slots, slot_s = self.program, self.work, self.slots, self.slot_s
        profile, levels = work.profile, self.levels
        count, agents = len(levels), len(work.prefix)
        most = np.array([level.most for level in levels])[:, np.newaxis]
        if levels[0].high == 0 and work.prefix.min() > 0:
            most[0] = 0.0  # without a prefix in use nothing runs
        least_context = min(unit.context_tokens for unit in work.units)
        per_request_s = profile.decode_s_per_seq + profile.decode_s_per_kv_token * least_context
        fixed_s = [profile.decode_base_s + profile.decode_s_per_kv_token * level.low for level in levels]
        fastest = slot_s / np.array(fixed_s)[:, np.newaxis]

        def variables(high: FloatArray | float) -> IntArray:
            return p.variables(count, slots, high=high)

        decode, other = variables(slot_s), variables(slot_s)
        in_decode, in_other = variables(most * slot_s), variables(most * slot_s)
        steps, tokens = variables(fastest), variables(most * fastest)
        prefill, compute = p.variables(slots, high=slot_s), p.variables(slots, high=slot_s)
        growth = p.variables(slots, high=slot_s)
        resident = p.variables(agents, slots, high=1.0)
        time = p.empty(slots, low=slot_s, high=slot_s)
        memory, presence = p.empty(slots, high=0.0), p.empty(slots, low=0.0, high=0.0)
        decoded = p.empty(slots, high=0.0)
        if self.pooled:
            ahead = p.variables(slots, high=float(sum(unit.steps for unit in work.units)))
            p.add(decoded, ahead, 1.0)
            p.add(decoded[1:], ahead[:-1], -1.0)
        room = p.constrain((1.0, prefill), (1.0, compute), (1.0, growth), high=0.0)
        # A prefill has at least its own request in the engine, hence a prefix. (The one that computed a
        # prefix may have been of a run that does not count.)
        alone = p.constrain((-1.0, prefill), (-1.0, growth), low=0.0)
        with_prefix = p.constrain((1.0, prefill), (1.0, growth), high=0.0)
        for k, level in enumerate(levels):
            for columns in (decode[k], other[k]):
                p.add(time, columns, 1.0)
                p.add(memory, columns, -(profile.kv_budget_tokens - level.low))
            p.add(room, other[k], -1.0)
            p.add(alone, in_other[k], 1.0)
            if most[k, 0]:
                p.add(with_prefix, other[k], -1.0)
            p.add(presence, in_decode[k], 1.0)
            p.add(presence, in_other[k], 1.0)
            p.add(decoded, tokens[k], -1.0)
            p.constrain((1.0, in_decode[k]), (-float(most[k, 0]), decode[k]), high=0.0)
            p.constrain((1.0, in_other[k]), (-float(most[k, 0]), other[k]), high=0.0)
            p.constrain((fixed_s[k], steps[k]), (per_request_s, tokens[k]), (-1.0, decode[k]), high=0.0)
            p.constrain((1.0, tokens[k]), (-float(most[k, 0]), steps[k]), high=0.0)
            p.constrain((1.0, steps[k]), (-1.0, tokens[k]), high=0.0)
            for at_rest, slope in tangents(fixed_s[k], per_request_s, float(most[k, 0])):
                p.constrain((1.0, tokens[k]), (-at_rest, decode[k]), (-slope, in_decode[k]), high=0.0)
        agent_presence = self._add_residency((decode, other), (in_decode, in_other), resident, most)
        computed = p.variables(agents, slots, high=1.0)
        prefilled, loaded, grown = self._ahead(prefill), self._ahead(compute), self._ahead(growth)
        for a, prefix in enumerate(work.prefix):
            compute_s = float(prefix) * profile.prefill_s_per_token
            p.constrain((1.0, computed[a, 1:]), (-1.0, computed[a, :-1]), low=0.0)
            p.add(loaded, computed[a], compute_s)
            p.add(loaded[1:], computed[a, :-1], -compute_s)
        return EngineColumns(
            steps, resident, computed, memory, presence, agent_presence, decoded, prefilled, grown
        )

    def _ahead(self, done: IntArray) -> IntArray:
        """Return rows that take up what consumes ``done``: what is done may be consumed later, not sooner."""
        p = self.program
        ahead = p.variables(self.slots, high=self.slot_s * self.slots)
        rows = p.constrain((1.0, ahead), (-1.0, done), high=0.0)
        p.add(rows[1:], ahead[:-1], -1.0)
        return rows

    def _add_residency(
        self,
        time: tuple[IntArray, IntArray],
        presence: tuple[IntArray, IntArray],
        resident: IntArray,
        most: FloatArray,
    ) -> IntArray:
        """Link the agents' residency with the levels; return rows that take up the agents' presence."""
        p, slots, slot_s, prefix = self.program, self.slots, self.slot_s, self.work.prefix
        agents, count = len(prefix), len(self.levels)
        if agents * count * slots > SPLIT_CELLS:
            row = p.empty(slots, high=0.0)
            for a in range(agents):
                p.add(row, resident[a], slot_s * float(prefix[a]))
            for k, level in enumerate(self.levels):
                p.add(row, time[0][k], -level.high)
                p.add(row, time[1][k], -level.high)
            return np.zeros((0, slots), dtype=np.int64)
        share = p.variables(agents, count, slots, high=1.0)
        running = p.variables(agents, count, slots, high=most[np.newaxis] * slot_s)
        rows = np.stack([p.empty(slots, low=0.0, high=0.0) for _ in range(agents)])
        for a in range(agents):
            whole = p.constrain((1.0, resident[a]), high=0.0)
            for k in range(count):
                p.add(whole, share[a, k], -1.0)
                p.add(rows[a], running[a, k], 1.0)
                p.constrain((slot_s, share[a, k]), (-1.0, time[0][k]), (-1.0, time[1][k]), high=0.0)
                p.constrain((1.0, running[a, k]), (-slot_s * float(most[k, 0]), share[a, k]), high=0.0)
        for k, level in enumerate(self.levels):
            row = p.constrain((-level.high, time[0][k]), (-level.high, time[1][k]), high=0.0)
            total = p.constrain((1.0, presence[0][k]), (1.0, presence[1][k]), low=0.0, high=0.0)
            for a in range(agents):
                p.add(row, share[a, k], slot_s * float(prefix[a]))
                p.add(total, running[a, k], -1.0)
        return rows

    # ------------------------------------------------------------------------------------------- the jobs

    def _add_group(self, group: TaskGroup) -> list[UnitColumns]:
        slot_s, job = self.slot_s, group.job
        times = earliest(self.work, job)
        stop = min(self.slots, int((float(group.arrivals_s[-1]) + self.window_s) // slot_s) + 1)
        columns: list[UnitColumns] = []
        for k, unit in enumerate(job.units):
            columns.append(self._add_unit(group, unit, (times.start_s[k], times.end_s[k]), stop, columns))
        for path in [] if self.pooled else _paths(job):
            self._add_path(columns, path, len(group.arrivals_s))
        done = self.program.variables(stop, high=_shares(group, alone_s(self.work, job), 0, stop, slot_s))
        self._wait_for(done, 0, job, job.ends, columns)
        self.program.reward(done, slot_s)
        self.constant_s += float(np.sum(stop * slot_s - group.arrivals_s))
        return columns

    def _add_unit(
        self,
        group: TaskGroup,
        unit: Unit,
        times_s: tuple[float, float],
        stop: int,
        others: Sequence[UnitColumns],
    ) -> UnitColumns:
        p, slot_s, engine, work = self.program, self.slot_s, self.engine, self.work
        profile, count = work.profile, float(len(group.arrivals_s))
        first = min(int((float(group.arrivals_s[0]) + times_s[0]) // slot_s), stop - 1)
        size = stop - first
        start = p.variables(size, high=_shares(group, times_s[0], first, stop, slot_s))
        end = p.variables(size, high=_shares(group, times_s[1], first, stop, slot_s))
        tokens = p.variables(0 if self.pooled else size, high=count * unit.steps)
        for rising in (start, end, tokens):
            p.constrain((1.0, rising[1:]), (-1.0, rising[:-1]), low=0.0)
        self._separate(start, end, unit.least_s, count)
        self._wait_for(start, first, group.job, unit.after, others)
        here = np.arange(first, stop)
        fastest = slot_s / (
            profile.decode_base_s
            + profile.decode_s_per_seq
            + profile.decode_s_per_kv_token * (float(work.prefix[unit.agent]) + unit.context_tokens)
        )
        presence: list[tuple[float, IntArray]] = [(1.0, start), (-1.0, end)]
        if not work.whole:
            inside = p.variables(size, high=count)
            p.constrain((1.0, inside), (-1.0, start), (1.0, end), high=0.0)
            presence = [(1.0, inside)]
        if self.pooled:
            p.add(engine.decoded[here], end, float(unit.steps))
            p.add(engine.decoded[here[1:]], end[:-1], -float(unit.steps))
        else:
            grows = p.constrain((1.0, tokens), *[(-fastest * sign, x) for sign, x in presence], high=0.0)
            p.add(grows[1:], tokens[:-1], -1.0)
            p.constrain((1.0, tokens), (-float(unit.steps), end), low=0.0)
            p.add(engine.decoded[here], tokens, 1.0)
            p.add(engine.decoded[here[1:]], tokens[:-1], -1.0)
        link = p.constrain((count, engine.resident[unit.agent, here]), low=0.0)
        for sign, x in presence:
            p.add(link, x, -sign)
            p.add(engine.memory[here], x, sign * unit.need_tokens * slot_s)
            p.add(engine.presence[here], x, -sign * slot_s)
            if len(engine.agent_presence):
                p.add(engine.agent_presence[unit.agent, here], x, -sign * slot_s)
        growth_s = profile.decode_s_per_kv_token * unit.steps * (unit.steps - 1) / 2
        p.add(engine.grown[here], end, growth_s)
        p.add(engine.grown[here[1:]], end[:-1], -growth_s)
        # Prefill, and the prefix before it, end at least the decode steps before the completion.
        ahead = int(unit.decode_s // slot_s)
        if ahead < size:
            then, over = here[: size - ahead], end[ahead:]
            prefill_s = unit.prefill_s - profile.prefill_base_s
            p.constrain((count, engine.computed[unit.agent, then]), (-1.0, over), low=0.0)
            p.add(engine.prefilled[then], over, prefill_s)
            p.add(engine.prefilled[then[1:]], over[:-1], -prefill_s)
        return UnitColumns(first, start, end, tokens)

    def _separate(self, start: IntArray, end: IntArray, least_s: float, count: float) -> None:
        """Keep ``end`` at least ``least_s`` behind ``start``."""
        p, size = self.program, len(start)
        whole, part = divmod(least_s / self.slot_s, 1.0)
        k = int(whole)
        if k >= size:
            return
        p.constrain((1.0, end[k:]), (-1.0, start[: size - k]), high=0.0)
        if part <= EVEN:
            return
        # Sums over all slots so far of start and of end.
        high = count * np.arange(1, size + 1, dtype=np.float64)
        begun, over = p.variables(size, high=high), p.variables(size, high=high)
        for sums, each in ((begun, start), (over, end)):
            row = p.constrain((1.0, sums), (-1.0, each), low=0.0, high=0.0)
            p.add(row[1:], sums[:-1], -1.0)
        row = p.constrain((1.0, over[k:]), (-(1.0 - part), start[: size - k]), high=0.0)
        p.add(row[1:], begun[: size - k - 1], -1.0)

    def _wait_for(
        self,
        later: IntArray,
        first: int,
        job: TaskWork,
        after: tuple[tuple[int, float], ...],
        columns: Sequence[UnitColumns],
    ) -> None:
        """Let ``later``, whose first slot is ``first``, rise only behind the units it waits for, in waves."""
        p, size = self.program, len(later)
        for k, wait_s in after:
            before = columns[k]
            shift = before.first + int(wait_s // self.slot_s) - first
            ready = max(shift, 0)
            if ready:
                p.constrain((1.0, later[: min(ready, size)]), high=0.0)
            if ready < size:
                p.constrain((1.0, later[ready:]), (-1.0, before.end[ready - shift : size - shift]), high=0.0)
        together = at_once(self.work, job, tuple(k for k, _ in after)) if len(after) > 1 else len(after)
        step = int(min((job.units[k].least_s for k, _ in after), default=0.0) // self.slot_s)
        if len(after) <= together or not step or not self.work.whole:
            return
        for wave in range(1, -(-len(after) // together)):
            begin = max(columns[k].first for k, _ in after) + wave * step - first
            idle = np.arange(max(begin, 0), size)
            if not len(idle):
                continue
            row = p.constrain((-float(len(after) - wave * together), later[idle]), low=0.0)
            for k, _ in after:
                p.add(row, columns[k].end[first + idle - wave * step - columns[k].first], 1.0)

    def _add_path(self, columns: Sequence[UnitColumns], path: Sequence[int], count: int) -> None:
        """At most one request of a path is in the engine: they get at most the steps that there are."""
        p, first = self.program, min(columns[k].first for k in path)
        stop = columns[path[0]].first + len(columns[path[0]].start)
        row = p.empty(stop - first, high=0.0)
        for k in range(len(self.levels)):
            p.add(row, self.engine.steps[k, first:stop], -float(count))
        for k in path:
            at = columns[k].first - first
            p.add(row[at:], columns[k].tokens, 1.0)
            p.add(row[at + 1 :], columns[k].tokens[:-1], -1.0)

    def _add_integers(self, columns: Sequence[Sequence[UnitColumns]]) -> None:
        """Say at each instant between slots which prefixes are in use: 0 or 1."""
        p, work, slots = self.program, self.work, self.slots
        agents = len(work.prefix)
        shortest = [np.inf] * agents
        for unit in work.units:
            shortest[unit.agent] = min(shortest[unit.agent], unit.least_s)
        # Instant s is the begin of slot s.
        in_use = p.variables(agents, slots + 1, high=1.0, integer=True)
        memory = p.empty(slots + 1, high=float(work.profile.kv_budget_tokens))
        for a in range(agents):
            p.add(memory, in_use[a], float(work.prefix[a]))
            if work.whole and shortest[a] > self.slot_s:
                p.constrain(
                    (1.0, self.engine.resident[a]),
                    (-1.0, in_use[a, :-1]),
                    (-1.0, in_use[a, 1:]),
                    high=0.0,
                )
        if not work.whole:
            return
        for group, units in zip(self.groups, columns, strict=True):
            count = float(len(group.arrivals_s))
            for unit, own in zip(group.job.units, units, strict=True):
                size = len(own.start)
                # Begun and complete at the end of each slot: between the averages of the slots beside it.
                begun, over = p.variables(size, high=count), p.variables(size, high=count)
                for at_end, each in ((begun, own.start), (over, own.end)):
                    p.constrain((1.0, at_end), (-1.0, each), low=0.0)
                    p.constrain((1.0, at_end[:-1]), (-1.0, each[1:]), high=0.0)
                k = int(unit.least_s // self.slot_s)
                if k < size:
                    p.constrain((1.0, over[k:]), (-1.0, begun[: size - k]), high=0.0)
                if k:
                    p.constrain((1.0, over[: min(k, size)]), high=0.0)
                room = work.profile.kv_budget_tokens - float(work.prefix[unit.agent])
                most = min(count, room // unit.need_tokens)
                inside = np.arange(own.first + 1, own.first + size + 1)
                p.constrain((most, in_use[unit.agent, inside]), (-1.0, begun), (1.0, over), low=0.0)
                p.add(memory[inside], begun, float(unit.need_tokens))
                p.add(memory[inside], over, -float(unit.need_tokens))

    def bound(self, *, time_limit_s: float, seed: int = 0) -> tuple[float, str]:
        """Return a proved lower bound on the mean JCT in seconds, and how the solver ended."""
        answer = self.program.solve(time_limit_s=time_limit_s, seed=seed)
        tasks = sum(len(group.arrivals_s) for group in self.groups)
        return (self.constant_s + answer.bound) / tasks, answer.status


def tangents(fixed_s: float, per_request_s: float, most: float) -> Iterator[tuple[float, float]]:
    """Yield (value at 0, slope) of lines above ``n / (fixed + n per_request)`` at every whole n.

    The first is the chord from 0 to 1; the others touch it between 1 and ``most``.
    """
    yield 0.0, 1.0 / (fixed_s + per_request_s)
    for n in np.geomspace(1.5, max(most, 1.5), TANGENTS):
        time_s = fixed_s + per_request_s * float(n)
        slope = fixed_s / time_s**2
        yield float(n) / time_s - slope * float(n), slope


def _shares(group: TaskGroup, after_s: float, first: int, stop: int, slot_s: float) -> FloatArray:
    """Return, by slot, the average over the slot of how many jobs are at least ``after_s`` old."""
    begin = np.arange(first, stop)[:, np.newaxis] * slot_s
    past = (begin + slot_s - group.arrivals_s[np.newaxis] - after_s) / slot_s
    return np.asarray(np.clip(past, 0.0, 1.0).sum(axis=1), dtype=np.float64)


def _paths(job: TaskWork) -> Iterator[list[int]]:
    """Yield paths of a job that hold all its units."""
    onward: list[list[int]] = [[] for _ in job.units]
    for k, unit in enumerate(job.units):
        for before, _ in unit.after:
            onward[before].append(k)
    left = set(range(len(job.units)))
    while left:
        path = [min(left)]
        while job.units[path[0]].after:
            path.insert(0, job.units[path[0]].after[0][0])
        while onward[path[-1]]:
            path.append(next((k for k in onward[path[-1]] if k in left), onward[path[-1]][0]))
        yield path
        left -= set(path)
