"""The least mean JCT of a whole trace, proved, on engines where a request takes a constant time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from oracle.evaluate import bench_of, play
from oracle.models.trace_cpsat import (
    TraceAnswer,
    TraceProblem,
    exact,
    parallel_model,
    problem_of,
    serial_model,
    solve,
)
from oracle.result import Status
from topas.engine.core import STRICT
from topas.errors import InputError, SimulationError
from topas.profile import Profile
from topas.sim import refuse_unservable, simulate
from topas.sim.build import request_names
from topas.sim.schedule import Schedule
from topas.trace import Trace
from topas.units import NS_PER_S


class Family(StrEnum):
    """Engines with constant times: one request at a time, or several with free prefills."""

    SERIAL = "one request at a time"
    PARALLEL = "decode steps of constant time"


@dataclass(frozen=True, slots=True)
class TraceOptimum:
    """The best schedule found, as the simulator plays it, and what is proved.

    ``bound_s`` is a lower bound on the mean JCT of any schedule, up to the rounding of the simulator's
    clock. OPTIMAL: the schedule reaches it, to within a nanosecond a request (durations are rounded down
    to nanoseconds in the model). FEASIBLE: it does not, because time ran out or because the model
    leaves out a rule. UNKNOWN: no schedule was found. ``solve_s`` is wall-clock time.
    """

    status: Status
    mean_jct_s: float | None
    bound_s: float
    schedule: Schedule | None
    solve_s: float


def family(trace: Trace, profile: Profile) -> Family:
    """Return which model fits.

    Raises
    ------
    InputError
        if none does, saying why.
    """
    longest = max(spec.output_tokens for task in trace.tasks for rounds in task.rounds for spec in rounds)
    if profile.redo != "decode" and longest > 1:
        raise InputError(
            f"the optimum of a trace needs redo = decode: {profile.redo} lets preemption keep tokens",
            source=profile.name,
            field="redo",
        )
    if profile.max_running == 1:
        return Family.SERIAL
    constant = profile.decode_s_per_seq == profile.decode_s_per_kv_token == 0
    free_prefill = profile.prefill_base_s == profile.prefill_s_per_token == 0
    if constant and profile.decode_base_s == 0 and profile.prefill_base_s == 0 and not profile.host_cache:
        return Family.SERIAL  # batches of prefills take as long as one after another, and end later
    if constant and free_prefill and profile.admission == "full":
        return Family.PARALLEL
    raise InputError(
        "the optimum of a trace needs an engine on which a request takes a constant time "
        "(docs/optimality.md says which do)",
        source=profile.name,
    )


def solve_trace(  # noqa: PLR0913  the solver's independent inputs
    trace: Trace,
    profile: Profile,
    *,
    time_limit_s: float,
    seed: int = 0,
    workers: int = 1,
    hint: Schedule | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> TraceOptimum:
    """Return the best schedule of a trace and a proved bound.

    Parameters
    ----------
    hint : a schedule to begin with; the result is never worse.

    Raises
    ------
    InputError
        if the engine has no constant times, a request can never fit, or the solver is not installed.
    """
    begin_s = clock()
    serial = family(trace, profile) is Family.SERIAL
    build = serial_model if serial else parallel_model
    refuse_unservable(trace, profile)
    problem = problem_of(trace, profile)
    times = _start_times(trace, profile, hint, problem) if hint else ()
    answer = solve(build(problem), time_limit_s=time_limit_s, seed=seed, workers=workers, hint=times)
    played = [
        (mean, schedule)
        for schedule in (_schedule(trace, problem, answer, serial=serial), hint)
        if schedule and (mean := _mean_jct_s(trace, profile, schedule)) is not None
    ]
    bound_s = _bound_s(trace, problem, answer)
    if not played:
        return TraceOptimum(Status.UNKNOWN, None, bound_s, None, clock() - begin_s)
    mean_jct_s, schedule = min(played, key=lambda pair: pair[0])
    reached = mean_jct_s - bound_s <= (len(problem.items) + 2) / NS_PER_S
    status = Status.OPTIMAL if reached else Status.FEASIBLE
    return TraceOptimum(status, mean_jct_s, bound_s, schedule, clock() - begin_s)


def _bound_s(trace: Trace, problem: TraceProblem, answer: TraceAnswer) -> float:
    """Return the bound on the mean JCT from that on the sum of completion times."""
    arrivals = sum(exact(task.arrival_s) for task in trace.tasks)
    total = exact(answer.bound * problem.unit_ns) / NS_PER_S - arrivals
    return float(total / len(trace.tasks))


def _schedule(trace: Trace, problem: TraceProblem, answer: TraceAnswer, *, serial: bool) -> Schedule | None:
    """Return the order of the solution's starts, nobody to be overtaken; if serial, one by one.

    Carried out, each request is admitted no later than in a solution of the model, as long as the rules
    that the model leaves out do not bind.
    """
    if not answer.starts:
        return None
    names = request_names(trace)
    order = _by_start(answer.starts, problem)
    ordered = tuple(names[k] for k in order)
    gate = dict(zip(ordered[1:], ordered, strict=False)) if serial else {}
    return Schedule(ordered, dict.fromkeys(names, STRICT), gate)


def _by_start(starts: tuple[int, ...], problem: TraceProblem) -> list[int]:
    """Return the requests by start; requests of no length may start with their predecessors."""
    level: list[int] = []
    for item in problem.items:
        level.append(1 + max((level[p] for p in item.after), default=0))
    return sorted(range(len(starts)), key=lambda k: (starts[k], level[k], k))


def _mean_jct_s(trace: Trace, profile: Profile, schedule: Schedule) -> float | None:
    try:
        return float(simulate(trace, schedule, profile, check=True).metrics["mean_jct_s"])
    except SimulationError:
        return None


def _start_times(trace: Trace, profile: Profile, hint: Schedule, problem: TraceProblem) -> tuple[int, ...]:
    """Return when a schedule starts each request."""
    bench = bench_of(trace, profile)
    bench.setup.plan[:] = hint.plan(request_names(trace))
    play(bench)
    scale = NS_PER_S / problem.unit_ns
    ends = (round(end_s * scale) for end_s in bench.world.requests["done_s"])
    return tuple(max(end - item.time, 0) for end, item in zip(ends, problem.items, strict=True))
