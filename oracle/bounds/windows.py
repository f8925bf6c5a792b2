"""Lower bound 6: batches again, with arrivals: what begins in one window of L decode steps.

As in :mod:`oracle.bounds.batches` requests are as small as the smallest, take the steps L of the shortest,
and time is counted in decode steps, but tasks arrive when they do. Cut the decode steps (those in which a
counted request runs) into windows of L. In every schedule

- all requests that begin in one window run together at its last step, so they fit into memory together;
- a request begins in a later window than those that it waits for have begun in, for these took L steps;
- between the begin of one window and that of a later one pass, for each window, L steps of at least
  ``base + per_kv * shortest prefix`` and the prefills of the requests that begin in it; and, but for the last
  window, the rest of what these requests cost: ``L (per_seq + per_kv * context)`` each, for all of their
  steps are over by then. Nor is a window over before the tasks have arrived that begin in it. So if M bounds
  the time from which the steps of the next window are still to come, its end is no earlier than
  ``max(M + steps + prefills, arrivals)``, and ``max(M + steps + prefills + rest, arrivals)`` is the M behind
  it: the rest may have been done before the arrivals (as may the computation of prefixes, not charged);
- a request that begins in a window ends after the window. The k-th of those that complete a task with it
  ends no earlier than ``M + steps + prefills`` and k times the least rest, for k such requests have then had
  all of their steps;
- the c-th task to complete does so no earlier than the c-th smallest of (arrival + the task alone).

Tasks are alike, so the first to arrive may be taken as the first to begin. A schedule thus gives a sequence
of batches, and the least sum of completion times over all sequences is a lower bound. It is found forward
over the counts begun, with labels (time, sum so far). Less of both is never worse, so labels whose times are
close are merged into one with the least of each, which only lowers the bound. A label is dropped if its sum,
with the least that is still to come, is above that of a schedule that is known.

What is lost is about half a window a task: it begins, as it were, with its window. So this bound is for
loads in between, where tasks wait for a batch but arrive one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oracle.bounds.batches import (
    MOST_STATES,
    ROUNDING,
    alone_s,
    count_up,
    counted_of,
    merged_units,
    prefixes_of,
    table_of,
)
from oracle.bounds.work import TraceWork
from topas.compiled import allocating_kernel
from topas.residual import FloatArray

BUCKETS = 64
"""Labels of a state, by time behind the arrival of the last task begun."""
BUCKET_SHARES = (0.15, 0.4, 1.0)
"""Widths of a bucket that are tried, as shares of the shortest window: wider ones are faster and weaker."""
SLOTS = 300_000
"""States that are held at once."""
STEPS_PER_S = 2e7
"""Labels x batches that each width may try for a second of the time limit."""
MOST_BATCHES = 5000.0
"""Batches at most for the largest number of states."""


def window_bound_s(
    work: TraceWork, known_s: Callable[[], float], *, time_limit_s: float
) -> tuple[float, str] | str:
    """Return the bound on the mean JCT in seconds and how it was counted, or why there is none.

    Parameters
    ----------
    known_s : finds the mean JCT of some schedule, which the bound is at most; not asked if it is refused.
    """
    merged = merged_units(work)
    if isinstance(merged, str):
        return merged
    tasks, profile = len(work.jobs), work.profile
    steps = min(unit.steps for unit in merged)
    arrivals_s = np.array([job.arrival_s for job in work.jobs]) - work.jobs[0].arrival_s
    window_s = steps * (profile.decode_base_s + profile.decode_s_per_kv_token * float(work.prefix.min()))
    if window_s <= 0:
        return "needs a decode step to take time (decode_base_s above 0)"
    counted = counted_of(work, merged, work.jobs[0], tasks, MOST_STATES * MOST_BATCHES, twins_only=True)
    if counted is None:
        return "too many states for the time limit"
    kinds, batches = counted
    table = table_of(work, kinds, batches, steps, tasks)
    floors_s = np.sort(arrivals_s + np.array([alone_s(work, job) for job in work.jobs]))
    known_sum_s = known_s() * tasks + float(arrivals_s.sum())
    compiled: Any = _search
    for share in BUCKET_SHARES:
        least_s = float(
            compiled(
                table.states,
                *table.kinds(),
                table.prefill_s,
                table.later_s,
                window_s,
                arrivals_s,
                floors_s,
                _sums_from(floors_s),
                known_sum_s,
                share * window_s,
                STEPS_PER_S * time_limit_s,
            )
        )
        if least_s >= 0:
            how = f"labels merged within {share:g} windows"
            how += ", twins together" if any(kind.size > 1 for kind in kinds) else ""
            return (least_s * (1 - ROUNDING) - float(arrivals_s.sum())) / tasks, how
    return "too many states for the time limit"


def _sums_from(values: FloatArray) -> FloatArray:
    """Return the sums of all values from each place on, and 0 behind the last."""
    return np.asarray(np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]]), dtype=np.float64)


@allocating_kernel
def _search(
    states, tasks, sizes, strides, before, after, last, prefix, group, need, batches, budget, prefill_s,
    later_s, window_s, arrivals_s, floors_s, floors_from_s, known_s, width_s, most,
) -> float:  # fmt: skip
    """Return the least sum of completion times, ``known_s`` if none is less; -1 if a limit strikes."""
    count = len(sizes)
    done = np.zeros(count, dtype=np.int64)
    ready = np.zeros(count, dtype=np.int64)
    among = np.zeros(count, dtype=np.int64)
    slot_of = np.full(states, -1, dtype=np.int32)
    held = min(states, SLOTS)
    times = np.full((held, BUCKETS), np.inf)
    sums = np.full((held, BUCKETS), np.inf)
    free = np.zeros(held, dtype=np.int32)
    free_count, slots = 0, 1
    slot_of[0], times[0, 0], sums[0, 0] = 0, 0.0, 0.0
    size = len(batches)
    then = np.zeros(size, dtype=np.int64)
    complete_then = np.zeros(size, dtype=np.int64)
    begun_then = np.zeros(size, dtype=np.int64)
    now_s, after_s = np.zeros(size), np.zeros(size)
    least_s = later_s.min()
    tried = 0
    for state in range(states):
        slot = slot_of[state]
        if slot < 0:
            continue
        complete = count_up(state, tasks, sizes, before, after, last, done, ready, among)
        if complete == tasks:
            return float(min(sums[slot].min(), known_s))
        possible = 0
        for b in range(size):
            used, _ = prefixes_of(batches[b], done, ready, among, sizes, prefix, group, need, budget)
            if used < 0:
                continue
            then[possible] = state
            now_s[possible] = window_s
            after_s[possible] = 0.0
            begun_then[possible] = 0
            complete_then[possible] = tasks
            for k in range(count):
                n = batches[b, k]
                then[possible] += n * strides[k]
                now_s[possible] += n * prefill_s[k]
                after_s[possible] += n * later_s[k]
                if n and before[k, 0] < 0:
                    begun_then[possible] = max(begun_then[possible], -(-(done[k] + n) // sizes[k]))
                if last[k]:
                    complete_then[possible] = min(complete_then[possible], (done[k] + n) // sizes[k])
            possible += 1
        for label in range(BUCKETS):
            if times[slot, label] == np.inf:
                continue
            tried += possible
            if tried > most:
                return -1.0
            for b in range(possible):
                worked_s = times[slot, label] + now_s[b]
                arrived_s = arrivals_s[max(begun_then[b] - 1, 0)]
                end_s = max(worked_s, arrived_s)
                total_s = sums[slot, label]
                for c in range(complete, complete_then[b]):
                    own_s = worked_s + (c - complete + 1) * least_s
                    total_s += max(own_s, arrived_s, floors_s[c])
                left = tasks - complete_then[b]
                if total_s + max(floors_from_s[complete_then[b]], left * end_s) >= known_s:
                    continue
                other = slot_of[then[b]]
                if other < 0:
                    if free_count:
                        free_count -= 1
                        other = free[free_count]
                        times[other, :] = np.inf
                        sums[other, :] = np.inf
                    elif slots < held:
                        other = slots
                        slots += 1
                    else:
                        return -1.0
                    slot_of[then[b]] = other
                # While the engine waited for arrivals it may have done what is left of these requests.
                next_s = max(worked_s + after_s[b], arrived_s)
                begun = -(-(then[b] % (tasks * sizes[0] + 1)) // sizes[0])
                since_s = next_s - arrivals_s[max(begun - 1, 0)]
                bucket = min(max(int(since_s / width_s), 0), BUCKETS - 1)
                times[other, bucket] = min(times[other, bucket], next_s)
                sums[other, bucket] = min(sums[other, bucket], total_s)
        free[free_count] = slot
        free_count += 1
    return float(known_s)
