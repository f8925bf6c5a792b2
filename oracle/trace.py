"""Lower bounds on the mean JCT that any schedule of a trace can have, and which one is best.

*Any schedule*: one that knows the whole trace, holds requests back, preempts, and moves prefixes as it
likes, on the engine of :mod:`topas.sim` with the given profile. Each bound is proved in its module's
docstring and in docs/optimality.md, and is refused where the proof does not cover an option of the profile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from statistics import median

from oracle.bounds.batches import batch_bound_s
from oracle.bounds.critical_path import critical_path_s
from oracle.bounds.single_machine import gpu_time_s, kv_time_s
from oracle.bounds.windows import window_bound_s
from oracle.bounds.work import TraceWork, longest_step_s, most_running, work_of
from oracle.improve import improve
from oracle.models.trace_lp import TraceProgram, groups_of
from oracle.trace_optimum import TraceOptimum, solve_trace
from topas.errors import InputError
from topas.profile import Profile
from topas.sim import refuse_unservable, simulate
from topas.trace import Trace

SMALL_ROWS = 4000
"""Up to this size the mixed-integer version is tried too."""
LADDER = (
    (1, 3, False),
    (1, 2, False),
    (1, 2, True),
    (2, 2, False),
    (1, 1, False),
    (1, 1, True),
    (4, 2, False),
    (4, 2, True),
    (8, 2, True),
    (16, 2, True),
    (32, 2, True),
    (64, 2, True),
    (16, 1, True),
    (64, 1, True),
)
"""(jobs taken as one, slots a usual service, tokens pooled) of the program by task, best first."""
WINDOW = 2.0
"""The window of a job in mean JCTs of a good simple policy: what a program holds of its life."""
EVALUATIONS = 4000
"""Schedules that are tried for one to cut the windows' search short with, a second or two."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A proved lower bound on the mean JCT; ``status`` says how its solver ended."""

    name: str
    mean_jct_s: float
    status: str
    solve_s: float


@dataclass(frozen=True, slots=True)
class TraceBounds:
    """All bounds of a trace; ``refused`` are (name, reason) of those that do not apply.

    ``optimum`` is what the exact model of the whole trace found, on engines that have one.
    """

    bounds: tuple[Bound, ...]
    refused: tuple[tuple[str, str], ...]
    optimum: TraceOptimum | None = None

    @property
    def best(self) -> Bound:
        """Return the highest bound (the first of equals)."""
        return max(self.bounds, key=lambda bound: bound.mean_jct_s)


def lower_bounds(
    trace: Trace,
    profile: Profile,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> TraceBounds:
    """Return lower bounds on the mean JCT of any schedule.

    The time limit decides how fine the programs are, and ends each after its share; what a program has
    proved by then counts.

    Raises
    ------
    InputError
        if a request can never fit the profile's KV budget, or the solver is not installed.
    """
    refuse_unservable(trace, profile)
    work = work_of(trace, profile)
    found: list[Bound] = []
    refused: list[tuple[str, str]] = []

    def note(name: str, prove: Callable[[], tuple[float, str] | str]) -> None:
        """Keep what is proved, or the reason why nothing is."""
        begin = clock()
        answer = prove()
        if isinstance(answer, str):
            refused.append((name, answer))
        else:
            found.append(Bound(name, *answer, clock() - begin))

    usual_s = cache(partial(usual_jct_s, trace, profile))

    def known_s() -> float:
        return min(usual_s(), _improved_jct_s(trace, profile, seed))

    note("critical-path", lambda: (critical_path_s(work), "exact"))
    note("gpu-time", lambda: (gpu_time_s(work), "exact"))
    note("kv-time", lambda: (kv_time_s(work), "exact"))
    note("batches", partial(batch_bound_s, work, time_limit_s=time_limit_s))
    note("windows", partial(window_bound_s, work, known_s, time_limit_s=time_limit_s))
    reason = _uncovered(work)
    if reason:
        refused += [(name, reason) for name in ("slot-lp", "slot-lp-by-task", "slot-mip")]
    else:
        for name, program, share in _programs(work, WINDOW * usual_s(), most_rows(time_limit_s)):
            if program is None:
                refused.append((name, "too large for the time limit"))
            else:
                note(name, partial(program.bound, time_limit_s=share * time_limit_s, seed=seed))
    try:
        optimum = solve_trace(trace, profile, time_limit_s=time_limit_s, seed=seed, clock=clock)
    except InputError as error:
        refused.append(("cp-sat", error.expected))
        return TraceBounds(tuple(found), tuple(refused))
    found.append(Bound("cp-sat", optimum.bound_s, optimum.status, optimum.solve_s))
    return TraceBounds(tuple(found), tuple(refused), optimum)


def most_rows(time_limit_s: float) -> float:
    """Return how large a program may be: HiGHS takes about ``0.02 (rows / 1000)^1.7`` s, half the limit."""
    return float(1000.0 * (25.0 * time_limit_s) ** (1 / 1.7))


def _programs(
    work: TraceWork, window_s: float, rows: float
) -> Iterator[tuple[str, TraceProgram | None, float]]:
    """Yield name, program and share of the time limit of each program that is small enough."""
    usual_s = median(unit.least_s for unit in work.units if unit.steps)
    span_s = work.jobs[-1].arrival_s - work.jobs[0].arrival_s + window_s

    def program(size: int, slots: int, *, pooled: bool, integer: bool = False) -> TraceProgram | None:
        # A hair under the quotient, so that a service is a whole number of slots in spite of rounding.
        slot_s = usual_s / slots * (1 - 1e-9)
        if span_s / slot_s > rows:
            return None  # before it is built: a slot has many rows
        found = TraceProgram(
            work,
            groups_of(work.jobs, size),
            slot_s=slot_s,
            window_s=window_s,
            integer=integer,
            pooled=pooled and work.whole,
        )
        return found if found.program.rows <= rows else None

    yield "slot-lp", program(len(work.jobs), 2, pooled=False), 0.3
    for size, slots, pooled in LADDER:
        found = program(size, slots, pooled=pooled)
        if found is not None:
            yield "slot-lp-by-task", found, 1.0
            small = found.program.rows <= SMALL_ROWS
            yield "slot-mip", program(size, slots, pooled=pooled, integer=True) if small else None, 0.5
            return
    yield "slot-lp-by-task", None, 0.0
    yield "slot-mip", None, 0.0


def _uncovered(work: TraceWork) -> str | None:
    """Return why the programs do not cover the profile, or None."""
    profile = work.profile
    if profile.decode_base_s <= 0:
        return "needs a decode step to take time (decode_base_s above 0)"
    if not any(unit.steps for unit in work.units):
        return "needs requests that decode"
    step_s = longest_step_s(profile, most_running(work))
    if any(profile.prefill_base_s + unit.again_s < step_s for unit in work.units):
        return f"redo={profile.redo}: a preempted request may gain a token by a prefill shorter than a step"
    return None


def usual_jct_s(trace: Trace, profile: Profile) -> float:
    """Return the mean JCT of the best of some simple policies."""
    return min(
        float(simulate(trace, policy, profile).metrics["mean_jct_s"]) for policy in ("lpm", "spf", "fcfs")
    )


def _improved_jct_s(trace: Trace, profile: Profile, seed: int) -> float:
    """Return the mean JCT of a fair schedule, the same in every run; infinite where that would take long."""
    if profile.admission != "full":
        return float("inf")
    found = improve(trace, profile, max_evaluations=EVALUATIONS, seed=seed, starts=("lpm", "spf"))
    return found.mean_jct_s
