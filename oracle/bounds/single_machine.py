"""Lower bounds 2 and 3: one preemptive machine, on which SRPT is optimal.

Give every request a credit such that the credits of the requests in the engine never earn more than
elapsed time. Then any schedule is one of a single machine that may split jobs, on which "shortest
remaining processing time first" minimises the sum of completion times (Schrage 1968).

GPU time. A prefill counts by its tokens; so does a further one of the same request, which yields a token
(:attr:`Unit.again_s`, where that is less than a token's share of a decode step). A decode step with n
requests over k tokens of KV takes ``base + n per_seq + k per_kv``; it credits each of its n requests with
``per_seq + per_kv * context + (base + per_kv * shortest prefix) / n_max``, n_max the most that fit, so
at most the step itself.

KV token-seconds. A request holds ``need + prefix / m`` of the budget B for at least its shortest service,
m the most of its agent's requests that fit together: those in the engine never hold more than B.

Tails. Cut every task at a depth: the units with fewer than d units before them come first. When the last of
these ends, all of their credit is earned, and the longest path behind it is still to come. So the sum of
JCTs is at least that of SRPT on the credits of the units before the cut, plus, for each task, the least over
these units of the longest path behind. The best d is taken; d = 0 gives the critical path without waves.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from oracle.bounds.work import TaskWork, TraceWork, Unit, most_running

Credit = Callable[[Unit], float]


def srpt_sum_s(jobs: Sequence[tuple[float, float]]) -> float:
    """Return the least sum of (completion - release) of jobs (release, work) on one preemptive machine."""
    order = sorted(jobs)
    now, total, k = 0.0, 0.0, 0
    left: list[tuple[float, float]] = []
    while k < len(order) or left:
        if not left:
            now = max(now, order[k][0])
        while k < len(order) and order[k][0] <= now:
            heapq.heappush(left, (order[k][1], order[k][0]))
            k += 1
        work, release = heapq.heappop(left)
        pause = order[k][0] if k < len(order) else float("inf")
        if now + work <= pause:
            now += work
            total += now - release
        else:
            heapq.heappush(left, (work - (pause - now), release))
            now = pause
    return total


def gpu_time_s(work: TraceWork) -> float:
    """Return the GPU-time bound on the mean JCT in seconds."""
    profile = work.profile
    most = most_running(work)
    shortest = float(work.prefix.min())
    base_s = (profile.decode_base_s + profile.decode_s_per_kv_token * shortest) / most

    def credit(unit: Unit) -> float:
        per_token = profile.decode_s_per_seq + profile.decode_s_per_kv_token * unit.context_tokens + base_s
        return unit.prefill_s - profile.prefill_base_s + unit.steps * min(per_token, unit.again_s)

    return _best_tail(work, credit)


def kv_time_s(work: TraceWork) -> float:
    """Return the KV token-seconds bound on the mean JCT in seconds."""
    budget = work.profile.kv_budget_tokens
    least: dict[int, int] = {}
    for unit in work.units:
        least[unit.agent] = min(least.get(unit.agent, budget), unit.need_tokens)
    together = {
        agent: max(min((budget - work.prefix[agent]) // need, work.profile.max_running), 1.0)
        for agent, need in least.items()
    }

    def credit(unit: Unit) -> float:
        held = unit.need_tokens + work.prefix[unit.agent] / together[unit.agent]
        return float(held) / budget * unit.least_s

    return _best_tail(work, credit)


def _best_tail(work: TraceWork, credit: Credit) -> float:
    jobs = work.jobs
    depths = {id(job): _depths(job) for job in jobs}
    best = 0.0
    for cut in range(max(max(d) for d in depths.values()) + 2):
        parts = []
        tails = 0.0
        for job in jobs:
            inside = [unit for unit, d in zip(job.units, depths[id(job)], strict=True) if d < cut]
            parts.append((job.arrival_s, sum(credit(unit) for unit in inside)))
            tails += _tail_s(job, depths[id(job)], cut)
        best = max(best, (srpt_sum_s(parts) + tails) / len(jobs))
    return best


def _depths(job: TaskWork) -> list[int]:
    """Return for each unit the number of units on the longest path before it."""
    depths: list[int] = []
    for unit in job.units:
        depths.append(max((depths[k] + 1 for k, _ in unit.after), default=0))
    return depths


def _tail_s(job: TaskWork, depths: Sequence[int], cut: int) -> float:
    """Return how long a job lasts at least after the last of its units of depth below ``cut`` has ended.

    That unit is followed by all paths that lead on from it; the least over the units that can be last, of
    the longest path behind, is safe whichever it is.
    """
    behind = [0.0] * len(job.units)
    for k, wait in job.ends:
        behind[k] = max(behind[k], wait)
    for k in range(len(job.units) - 1, -1, -1):
        for before, wait in job.units[k].after:
            behind[before] = max(behind[before], wait + job.units[k].least_s + behind[k])
    inside = [behind[k] for k in range(len(job.units)) if depths[k] < cut]
    if inside:
        return min(inside)
    return max((unit.least_s + behind[k] for k, unit in enumerate(job.units) if not unit.after), default=0.0)
