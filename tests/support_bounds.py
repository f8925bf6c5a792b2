"""Random cases for the lower bounds, what schedules reach on them, and every bound that is claimed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from support_constant import seeded
from support_exhaustive import least_mean_jct_s
from support_sim import SHAPES, Stage, ask, largest_need, make_decision, make_profile, make_trace

from oracle import trace as whole_trace
from oracle.bounds import batches, critical_path, single_machine, windows, work
from oracle.models import trace_lp
from topas.decision import Decision
from topas.engine.core import BLOCK, SKIP, STRICT
from topas.errors import SimulationError
from topas.event import Event
from topas.feasible import violations
from topas.policies import JointPolicy, baseline_names
from topas.profile import Profile
from topas.sim import simulate
from topas.sim.build import request_names
from topas.sim.schedule import Schedule
from topas.trace import Round, Trace

TOLERANCE = 1e-6
WIDE: Mapping[str, Mapping[str, Sequence[str]]] = {
    **SHAPES,
    "exits": {"a": (), "b": ("a",), "c": ("a",), "d": ()},
    "wide": {"a": (), "b": ("a",), "c": ("a",), "d": ("a",), "e": ("b", "c", "d")},
    "join-4": {"a": (), "b": (), "c": (), "d": (), "e": ("a", "b", "c", "d")},
    "shortcut": {"a": (), "b": ("a",), "c": ("a", "b")},
}
Value = tuple[str, float]


@dataclass(frozen=True)
class Drawn:
    """A random trace and engine."""

    trace: Trace
    profile: Profile


def drawn_trace(rng: random.Random, most: int) -> Trace:
    """Draw a trace of at most ``most`` requests, ReAct rounds included."""
    count = rng.choice([1, 1, 2, 3, 4])
    lengths = rng.choice([(0,), (7,), (2, 5, 9), (0, 3, 6), (1, 2, 4, 8)])
    agents = {name: rng.choice(lengths) for name in "ABCD"[:count]}
    left, now_s = rng.randint(1, most), 0.0
    tasks: list[tuple[float, Mapping[str, Stage]]] = []
    alike = rng.random() < 0.4  # tasks of one shape and one length, which are merged well
    made: dict[str, Stage] | None = None
    while left > 0:
        if made is None or not alike or len(made) > left:
            shape = WIDE[rng.choice([s for s in WIDE if len(WIDE[s]) <= left])]
            made = {
                v: Stage(rng.choice(list(agents)), [drawn_round(rng)], after) for v, after in shape.items()
            }
        left -= len(made)
        stages = dict(made)
        if left > 0 and rng.random() < 0.3:
            v = rng.choice(list(stages))
            first = stages[v].rounds[0]
            context = first.input_tokens + first.output_tokens
            again = Round(
                context + 2, rng.choice([1, 3]), 4, rng.choice([0.0, 0.6]), rng.choice([0, 1, context])
            )
            stages[v] = Stage(stages[v].agent, [first, again], stages[v].after)
            left -= 1
        tasks.append((now_s, stages))
        now_s += rng.choice([0, 0, 0, 0.3, 1, 2, 7])
    return make_trace(agents, *tasks)


def drawn_round(rng: random.Random) -> Round:
    """Draw a request."""
    output = rng.choice([1, 2, 4, 7])
    allowed = output + rng.choice([0, 0, 3, 12])
    return ask(rng.choice([0, 1, 4, 8]), output, allowed, tool_s=rng.choice([0.0, 0.0, 0.0, 0.7, 3.0]))


def drawn_profile(rng: random.Random, trace: Trace) -> Profile:
    """Draw an engine that can serve each request of a trace."""
    admission = rng.choice(["full", "sglang"])
    slack = rng.choice([0, 2, 6, 15, 40, 300]) + (admission == "sglang")
    return make_profile(
        kv_budget_tokens=largest_need(trace) + slack,
        swap_bytes_per_s=rng.choice([4.0, 50.0, 1e4]),
        prefill_base_s=rng.choice([0.0, 0.0, 0.05, 1.0]),
        prefill_s_per_token=rng.choice([0.0, 1 / 16, 0.4]),
        decode_base_s=rng.choice([0.25, 0.25, 1.0, 0.02]),
        decode_s_per_seq=rng.choice([0.0, 0.01, 0.2]),
        decode_s_per_kv_token=rng.choice([0.0, 0.0, 1 / 256, 0.05]),
        max_running=rng.choice([1, 2, 3, 64, 64]),
        host_cache=rng.random() < 0.4,
        admission=admission,
        redo=rng.choice(["decode", "decode", "prefill", "keep"]),
    )


def drawn(seed: object, most: int = 9) -> Drawn:
    """Draw a case."""
    rng = seeded(seed)
    trace = drawn_trace(rng, most)
    return Drawn(trace, drawn_profile(rng, trace))


# --- what schedules reach -----------------------------------------------------------------------------


def wild(rng: random.Random) -> JointPolicy:
    """Return a policy that preempts, admits and holds back by chance, within the rules."""
    preempts, holds = rng.choice([0.0, 0.1, 0.4]), rng.choice([0.0, 0.2, 0.5])

    def decide(event: Event) -> Decision:
        waiting = sorted(request.id for request in event.waiting)
        running = sorted(request.id for request in event.running)
        rng.shuffle(waiting)
        preempt = [name for name in running if rng.random() < preempts]
        if violations(event, make_decision(event, (), preempt)):
            preempt = []
        admit: list[str] = []
        for name in waiting:
            idle = len(preempt) == len(running) and not admit
            if not idle and rng.random() < holds:
                continue
            if not violations(event, make_decision(event, [*admit, name], preempt)):
                admit.append(name)
        return make_decision(event, admit, preempt)

    return JointPolicy("wild", decide)


def chance_schedule(trace: Trace, rng: random.Random) -> Schedule:
    """Return a schedule by chance."""
    names = list(request_names(trace))
    rng.shuffle(names)
    return Schedule(tuple(names), {name: rng.choice((SKIP, SKIP, BLOCK, STRICT)) for name in names})


def played(case: Drawn, policy: Any) -> float | None:  # noqa: ANN401  a policy of any kind
    """Return the mean JCT, or None where the policy stalls."""
    try:
        return float(simulate(case.trace, policy, case.profile).metrics["mean_jct_s"])
    except SimulationError:
        return None


def reached(case: Drawn, rng: random.Random, tries: int = 12) -> float:
    """Return the least mean JCT of all policies and of some schedules by chance."""
    found = [played(case, policy) for policy in (*baseline_names(), "topas", "topas-paper", "topas-base")]
    for _ in range(tries):
        found += [played(case, wild(rng)), played(case, chance_schedule(case.trace, rng))]
    return min(value for value in found if value is not None)


@lru_cache(maxsize=4096)
def least(seed: object, most: int, runs: int) -> float:
    """Return the least mean JCT of everything that could be decided, or else of what is reached."""
    case = drawn(seed, most)
    best = reached(case, seeded(f"{seed} play"))
    try:
        return min(best, least_mean_jct_s(case.trace, case.profile, runs))
    except RuntimeError:
        return best


# --- what is claimed ----------------------------------------------------------------------------------


def simple_bounds(case: Drawn) -> Iterator[Value]:
    """Yield the bounds that are computed at once."""
    asked = work.work_of(case.trace, case.profile)
    yield "critical-path", critical_path.critical_path_s(asked)
    yield "gpu-time", single_machine.gpu_time_s(asked)
    yield "kv-time", single_machine.kv_time_s(asked)
    found = batches.batch_bound_s(asked, time_limit_s=0.02)
    if not isinstance(found, str):
        yield "batches", found[0]
    known_s = min(
        float(simulate(case.trace, name, case.profile).metrics["mean_jct_s"]) for name in ("lpm", "spf")
    )
    windowed = windows.window_bound_s(asked, lambda: known_s, time_limit_s=0.02)
    if not isinstance(windowed, str):
        yield "windows", windowed[0]


def program_bound(
    case: Drawn,
    rng: random.Random,
    *,
    slot_s: float | None = None,
    window_s: float | None = None,
    **options: Any,  # noqa: ANN401  those of TraceProgram
) -> Value | None:
    """Return a program of random width, window and merging, or None where it is refused."""
    asked = work.work_of(case.trace, case.profile)
    if whole_trace._uncovered(asked):
        return None
    usual_s = max(unit.least_s for unit in asked.units)
    width_s = usual_s / rng.choice([0.6, 1, 2, 3, 3.7])
    usual_windows = rng.choice([1.0, 2.0, 5.0])
    window_s = window_s or usual_windows * whole_trace.usual_jct_s(case.trace, case.profile)
    if slot_s is None:
        slot_s = max(width_s, (case.trace.tasks[-1].arrival_s + window_s) / 40)
    size = rng.choice([1, 1, 2, 9])
    chosen = {"integer": rng.random() < 0.15, "pooled": asked.whole and rng.random() < 0.3} | options
    groups = trace_lp.groups_of(asked.jobs, size)
    program = trace_lp.TraceProgram(asked, groups, slot_s=slot_s, window_s=window_s, **chosen)
    value, _ = program.bound(time_limit_s=5.0)
    return f"slots {slot_s:.3f} s, window {window_s:.3f} s, {size} jobs as one, {chosen}", value


def check(case: Drawn, values: Iterable[Value], best: float, seed: object) -> None:
    """Fail if a bound is above what is reached."""
    for name, value in values:
        room = TOLERANCE * max(best, 1.0)
        assert value <= best + room, f"{seed}: {name} {value} above {best} on {case.profile}"
