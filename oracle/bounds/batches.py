"""Lower bound 5: batches in lockstep, by dynamic programming over counts.

Let every task be there at the first arrival, and let every request take as many decode steps as the
shortest of all, L. This makes no schedule impossible, so a bound on the relaxed trace, less the mean of
(arrival - first arrival), is one on the trace. Count time in decode steps. A schedule is then a set of
intervals of length L; with n requests of agents R running, a step takes
``base + n per_seq + per_kv (prefixes of R + contexts)``, each prefill takes its time before its interval
begins, and so does the computation of each agent's prefix before the agent's first one.

*In some best schedule all intervals begin at multiples of L.* Take the intervals by their beginning modulo L
and let the earliest begin at 0. Move all intervals of one remainder together by d, as long as it stays
between the two neighbouring remainders. Beginnings and ends have the same remainder, so no two events change
their order: what runs together, hence memory, and what waits for what stay as they are, and each completion
time is a sum of (distance of events) x (constant) + (constant), so linear in d. Move the way that does not
increase the sum until the remainder meets a neighbour; where an end then falls on a beginning, let the end
come first, which needs no more memory and delays nothing. One remainder less each time, until one is left.

So a schedule is a sequence of batches, and a state is how many requests of each unit are done. The sum of
completion times is the sum over batches of (time of the batch) x (tasks not complete before it):

    V(done) = min over batches of time(batch, done) * (N - complete(done)) + V(done + batch),   V(all) = 0.

The states in which n tasks are still to begin give the sums for n tasks too. So the tasks may be cut into
runs of consecutive arrivals, each bounded as if it were alone: leaving tasks out delays nobody. The best cut
is taken.

Units that wait for the same units, and that the same units wait for, may be counted together (twins), m of
them: then at most ``floor(done / m)`` tasks are through with them, and a batch of n needs k of the agents
with ``n <= k * (tasks that may be among them)``: a relaxation with fewer states.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.bounds.critical_path import earliest
from oracle.bounds.work import TaskWork, TraceWork, Unit, smallest
from topas.compiled import allocating_kernel
from topas.residual import FloatArray, IntArray

MOST_STATES = 20_000_000
"""Largest table of counts, possible ones or not: a number each."""
RUNS = (100, 60, 30, 15, 7)
"""Longest runs of tasks that are tried where all of them are too many."""
ROUNDING = 1e-9
"""Share of the bound that is taken off for the rounding of sums of doubles."""
OPERATIONS_PER_S = 2.5e8
"""States x batches that are looked at in a second, on a slow machine."""
ALONE_OPERATIONS = 3e6
"""States x batches at most for a job alone."""


@dataclass(frozen=True, slots=True)
class Twins:
    """Units counted together, as small as the smallest of them, and the kinds that they wait for.

    ``size`` of them belong to a task. ``prefix_group`` is shared by kinds of one agent.
    """

    size: int
    before: tuple[int, ...]
    last: bool
    prefix: float
    prefix_group: int
    need_tokens: int
    context_tokens: int
    prefill_s: float


def batch_bound_s(work: TraceWork, *, time_limit_s: float) -> tuple[float, str] | str:
    """Return the bound on the mean JCT in seconds and how it was counted, or why there is none."""
    merged = merged_units(work)
    if isinstance(merged, str):
        return merged
    tasks, steps = len(work.jobs), min(unit.steps for unit in merged)
    for most in (tasks, *(size for size in RUNS if size < tasks)):
        counted = counted_of(work, merged, work.jobs[0], most, time_limit_s * OPERATIONS_PER_S)
        if counted is not None:
            kinds, batches = counted
            sums_s = _least_sums_s(work, kinds, batches, steps, most, compute=most == tasks)
            bound_s = _best_runs_s(sums_s, [job.arrival_s for job in work.jobs]) / tasks
            how = ["exact"] if most == tasks else [f"runs of at most {most}"]
            how += ["twins together"] if any(kind.size > 1 for kind in kinds) else []
            return float(bound_s * (1 - ROUNDING)), ", ".join(how)
    return "too many states for the time limit"


def merged_units(work: TraceWork) -> list[Unit] | str:
    """Return the units of a task as small as the smallest of all tasks, or why that cannot be."""
    if not work.whole:
        return f"redo={work.profile.redo}: a request may be run in pieces"
    if len({_shape(job) for job in work.jobs}) > 1:
        return "the tasks are not all of one shape"
    merged = [smallest(column) for column in zip(*(job.units for job in work.jobs), strict=True)]
    return merged if min(unit.steps for unit in merged) else "needs requests that decode"


def alone_s(work: TraceWork, job: TaskWork) -> float:
    """Return the earliest completion of a job that has the engine to itself, in seconds from its arrival.

    The better of the critical path with waves and of its batches, with all prefixes computed before.
    """
    path_s = earliest(work, job).job_s
    steps = min(unit.steps for unit in job.units)
    if not work.whole or not steps:
        return path_s
    counted = counted_of(work, job.units, job, 1, ALONE_OPERATIONS)
    if counted is None:
        return path_s
    sums_s = _least_sums_s(work, *counted, steps, 1, compute=False)
    return max(path_s, float(sums_s[1]) * (1 - ROUNDING))


def counted_of(
    work: TraceWork,
    units: Sequence[Unit],
    job: TaskWork,
    tasks: int,
    operations: float,
    *,
    twins_only: bool = False,
) -> tuple[list[Twins], IntArray] | None:
    """Return kinds, twins together only if need be or always, and batches; None if they are too many."""
    for twins in (True,) if twins_only else (False, True):
        kinds = _twins_of(work, units, job, twins=twins)
        states = float(np.prod([tasks * kind.size + 1.0 for kind in kinds]))
        if states > min(MOST_STATES, operations):
            continue
        most = int(operations / states)
        batches = np.array(list(itertools.islice(_batches(work, kinds, tasks), most + 1)), dtype=np.int64)
        if len(batches) <= most:
            return kinds, batches
    return None


def _shape(job: TaskWork) -> object:
    units = tuple((unit.agent, tuple(k for k, _ in unit.after)) for unit in job.units)
    return units, tuple(k for k, _ in job.ends)


def _twins_of(work: TraceWork, units: Sequence[Unit], job: TaskWork, *, twins: bool) -> list[Twins]:
    """Return the kinds of units in topological order: each unit its own, or twins together."""
    waits = [tuple(k for k, _ in unit.after) for unit in units]
    onward = [tuple(j for j, after in enumerate(waits) if k in after) for k in range(len(units))]
    agents = [unit.agent for unit in units]
    members: list[list[int]] = []
    for k in range(len(units)):
        alike = [
            group
            for group in members
            if twins
            and (waits[group[0]], onward[group[0]]) == (waits[k], onward[k])
            and agents.count(agents[k]) == agents.count(agents[group[0]]) == 1
        ]
        if alike:
            alike[0].append(k)
        else:
            members.append([k])
    place = {k: number for number, group in enumerate(members) for k in group}
    ends = {k for k, _ in job.ends}
    base_s = work.profile.prefill_base_s
    return [
        Twins(
            size=len(group),
            before=tuple(sorted({place[p] for p in waits[group[0]]})),
            last=not ends.isdisjoint(group),
            prefix=min(float(work.prefix[units[k].agent]) for k in group),
            prefix_group=units[group[0]].agent,
            need_tokens=min(units[k].need_tokens for k in group),
            context_tokens=min(units[k].context_tokens for k in group),
            prefill_s=min(units[k].prefill_s for k in group) - base_s,
        )
        for group in members
    ]


def _batches(work: TraceWork, kinds: Sequence[Twins], tasks: int) -> Iterator[list[int]]:
    """Yield how many of each kind may run together, with one prefix a kind."""
    budget, most = float(work.profile.kv_budget_tokens), work.profile.max_running

    def more(k: int, chosen: list[int], used: float, count: int) -> Iterator[list[int]]:
        if k == len(kinds):
            if count:
                yield chosen
            return
        kind = kinds[k]
        yield from more(k + 1, [*chosen, 0], used, count)
        groups = {kinds[j].prefix_group for j in range(k) if chosen[j]}
        used += 0.0 if kind.prefix_group in groups else kind.prefix
        for n in range(1, min(tasks * kind.size, most - count) + 1):
            if used + n * kind.need_tokens > budget:
                break
            yield from more(k + 1, [*chosen, n], used + n * kind.need_tokens, count + n)

    yield from more(0, [], 0.0, 0)


def _best_runs_s(sums_s: FloatArray, arrivals_s: Sequence[float]) -> float:
    """Return the best sum over a partition of the tasks into runs of consecutive arrivals.

    Each run is bounded as if the other tasks were not there, and all its tasks there at its first arrival.
    ``sums_s`` says by how many; longer runs are not tried.
    """
    best = [0.0]
    for end in range(1, len(arrivals_s) + 1):
        best.append(-np.inf)
        early_s = 0.0
        for begin in range(end - 1, max(end - len(sums_s), -1), -1):
            # Tasks begin..end-1: how much later than the first of them the others arrive, all together.
            if begin + 1 < end:
                early_s += (end - begin - 1) * (arrivals_s[begin + 1] - arrivals_s[begin])
            best[end] = max(best[end], best[begin] + sums_s[end - begin] - early_s)
    return best[-1]


@dataclass(frozen=True, slots=True)
class Table:
    """What the compiled functions read: kinds, one an entry, and batches, how many of each kind.

    A state's number has the counts done as digits, worth ``strides``. A request costs ``prefill_s``, and
    ``later_s`` besides the fixed part of the steps that it runs in.
    """

    tasks: int
    sizes: IntArray
    strides: IntArray
    before: IntArray
    after: IntArray
    last: IntArray
    prefix: FloatArray
    group: IntArray
    need: FloatArray
    batches: IntArray
    budget: float
    prefill_s: FloatArray
    later_s: FloatArray

    @property
    def states(self) -> int:
        """Return how many counts there are, possible ones or not."""
        return int(np.prod(self.tasks * self.sizes + 1))

    def kinds(self) -> tuple[Any, ...]:
        """Return the arrays in the order in which compiled functions take them."""
        return (
            self.tasks, self.sizes, self.strides, self.before, self.after, self.last, self.prefix,
            self.group, self.need, self.batches, self.budget,
        )  # fmt: skip


def table_of(work: TraceWork, kinds: Sequence[Twins], batches: IntArray, steps: int, tasks: int) -> Table:
    """Return kinds and batches as arrays; ``before`` is filled up with -1."""
    profile = work.profile
    before = np.full((len(kinds), max(1, *(len(kind.before) for kind in kinds))), -1, dtype=np.int64)
    after = np.zeros((len(kinds), len(kinds)), dtype=np.int64)
    for k, kind in enumerate(kinds):
        before[k, : len(kind.before)] = kind.before
        after[list(kind.before), k] = 1

    def column(name: str) -> Any:  # noqa: ANN401  an array of any type
        return np.array([getattr(kind, name) for kind in kinds])

    sizes = column("size").astype(np.int64)
    return Table(
        tasks,
        sizes,
        np.cumprod(np.concatenate([[1], (tasks * sizes + 1)[:-1]])),
        before,
        after,
        column("last").astype(np.int64),
        column("prefix").astype(np.float64),
        np.unique(column("prefix_group"), return_inverse=True)[1].astype(np.int64),
        column("need_tokens").astype(np.float64),
        batches,
        float(profile.kv_budget_tokens),
        column("prefill_s"),
        steps * (profile.decode_s_per_seq + profile.decode_s_per_kv_token * column("context_tokens")),
    )


def _least_sums_s(
    work: TraceWork, kinds: Sequence[Twins], batches: IntArray, steps: int, tasks: int, *, compute: bool
) -> FloatArray:
    """Return, for 0 to all tasks, the least sum of their completion times if they arrive together.

    With fewer than all tasks no prefix is charged for its computation: it is as if others had been there.
    """
    profile = work.profile
    table = table_of(work, kinds, batches, steps, tasks)
    values = np.full(table.states, np.inf)
    compiled: Any = _fill
    compiled(
        values,
        *table.kinds(),
        table.later_s + table.prefill_s,
        steps * profile.decode_base_s,
        steps * profile.decode_s_per_kv_token,
        profile.prefill_s_per_token if compute else 0.0,
    )
    fewer = (table.sizes * table.strides).sum() * (tasks - np.arange(tasks + 1))
    return np.asarray(values[fewer], dtype=np.float64)


@allocating_kernel
def count_up(state, tasks, sizes, before, after, last, done, ready, among):
    """Fill in what is done, ready and among how many tasks, by kind; return the complete tasks.

    The counts done are the digits of a state's number. -1 if no schedule comes to such counts.
    """
    count = len(sizes)
    for k in range(count):
        done[k] = state % (tasks * sizes[k] + 1)
        state //= tasks * sizes[k] + 1
    complete = tasks
    for k in range(count):
        through = tasks
        for j in before[k]:
            if j >= 0:
                through = min(through, done[j] // sizes[j])
        ready[k] = through * sizes[k] - done[k]
        if ready[k] < 0:
            return -1
        # Tasks that may be among these units: not those that are surely through with them.
        surely = max(done[k] - (sizes[k] - 1) * through, 0)
        for j in range(count):
            if after[k, j]:
                surely = max(surely, -(-done[j] // sizes[j]))
        among[k] = through - surely
        if last[k]:
            complete = min(complete, done[k] // sizes[k])
    return complete


@allocating_kernel
def prefixes_of(batch, done, ready, among, sizes, prefix, group, need, budget):
    """Return the tokens of prefixes that a batch uses, and uses first; (-1, 0) if it is not possible now."""
    used, first, tokens = 0.0, 0.0, 0.0
    for k in range(len(sizes)):
        n = batch[k]
        if n == 0:
            continue
        if n > ready[k] or among[k] <= 0:
            return -1.0, 0.0
        agents = -(-n // among[k])
        if agents > sizes[k]:
            return -1.0, 0.0
        shared, known = False, done[k] > 0
        for j in range(len(sizes)):
            if j != k and group[j] == group[k]:
                known = known or done[j] > 0
                shared = shared or (j < k and batch[j] > 0)
        if not shared:
            used += agents * prefix[k]
            if not known:
                first += prefix[k]
        tokens += n * need[k]
    if used + tokens > budget:
        return -1.0, 0.0
    return used, first


@allocating_kernel
def _fill(
    values, tasks, sizes, strides, before, after, last, prefix, group, need, batches, budget, each_s,
    base_s, per_prefix_s, compute_s,
) -> None:  # fmt: skip
    """Fill ``values``, the least sum still to come by state."""
    count = len(sizes)
    done = np.zeros(count, dtype=np.int64)
    ready = np.zeros(count, dtype=np.int64)
    among = np.zeros(count, dtype=np.int64)
    for state in range(len(values) - 1, -1, -1):
        complete = count_up(state, tasks, sizes, before, after, last, done, ready, among)
        if complete < 0:
            continue
        if complete == tasks:
            values[state] = 0.0
            continue
        best = np.inf
        for b in range(len(batches)):
            used, first = prefixes_of(batches[b], done, ready, among, sizes, prefix, group, need, budget)
            if used < 0:
                continue
            time_s = base_s + per_prefix_s * used + compute_s * first
            then = state
            for k in range(count):
                time_s += batches[b, k] * each_s[k]
                then += batches[b, k] * strides[k]
            best = min(best, time_s * (tasks - complete) + values[then])
        values[state] = best
