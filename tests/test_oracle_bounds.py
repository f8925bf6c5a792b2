"""Lower bounds on the mean JCT: below everything that a schedule reaches, and wrong ones are found out."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from support_bounds import (
    TOLERANCE,
    Drawn,
    Value,
    check,
    drawn,
    least,
    program_bound,
    reached,
    simple_bounds,
)
from support_constant import seeded
from support_sim import (
    Stage,
    ask,
    chain,
    make_profile,
    make_trace,
    scripted,
    single,
    stepping,
)

from oracle import extra
from oracle.bounds import critical_path, single_machine, work
from oracle.bounds.critical_path import at_once, critical_path_s, earliest
from oracle.bounds.single_machine import gpu_time_s, kv_time_s, srpt_sum_s
from oracle.bounds.work import TraceWork, Unit, work_of
from oracle.models import linear, trace_lp
from oracle.models.linear import LinearProgram, dual_bound
from oracle.models.trace_lp import TraceProgram, groups_of, levels_of
from oracle.trace import TraceBounds, lower_bounds
from topas.errors import InputError
from topas.event import Event
from topas.policies import JointPolicy, policy_names
from topas.profile import Profile, load_profile
from topas.sim import simulate
from topas.sim.schedule import Schedule
from topas.trace import Trace
from traces.workloads import WORKLOADS, generate

pytest.importorskip("highspy")
SMALL, SMALL_RUNS = 4, 300
"""Requests of a case that is searched through, and how many schedules of it at most."""


# --- no schedule is below a bound ---------------------------------------------------------------------


def test_simple_bounds_on_thousands_of_cases() -> None:
    tight = 0
    for seed in range(500):
        case = drawn(seed)
        best = reached(case, seeded(f"{seed} play"), tries=3)
        values = list(simple_bounds(case))
        check(case, values, best, seed)
        tight += max(value for _, value in values) > best * (1 - 1e-9)
    assert tight > 30


def test_slot_programs_on_hundreds_of_cases() -> None:
    solved = 0
    for seed in range(2000, 2250):
        case = drawn(seed, 6)
        best = reached(case, seeded(f"{seed} play"), tries=3)
        value = program_bound(case, seeded(f"{seed} bounds"))
        if value:
            check(case, [value], best, seed)
            solved += 1
    assert solved > 100


def test_all_bounds_where_everything_is_tried() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100):
        case, best = drawn(seed, SMALL), least(seed, SMALL, SMALL_RUNS)
        values = list(simple_bounds(case))
        value = program_bound(case, seeded(f"{seed} bounds"))
        if value:
            values.append(value)
        check(case, values, best, seed)
        seen["program"] += value is not None
        seen["tight"] += max(value for _, value in values) > best * (1 - 1e-5)
    assert seen["program"] > 40
    assert seen["tight"] > 12


def test_what_lower_bounds_chooses() -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        case, best = drawn(seed, SMALL), least(seed, SMALL, SMALL_RUNS)
        found = lower_bounds(case.trace, case.profile, time_limit_s=0.5)
        check(case, [(b.name, b.mean_jct_s) for b in found.bounds], best, seed)
        seen.update(bound.name for bound in found.bounds)
        names = {b.name for b in found.bounds} | {name for name, _ in found.refused}
        assert names == NAMES
        assert found.best.mean_jct_s == max(b.mean_jct_s for b in found.bounds)
    assert set(seen) == NAMES


NAMES = {
    "critical-path",
    "gpu-time",
    "kv-time",
    "batches",
    "windows",
    "slot-lp",
    "slot-lp-by-task",
    "slot-mip",
    "cp-sat",
}


@pytest.mark.parametrize("agents", [5, 11])
def test_many_prefixes_whose_sums_are_put_together(agents: int) -> None:
    for seed in range(3 if agents < 10 else 1):
        rng = seeded(f"many {seed}")
        lengths = {f"A{k:02d}": 2**k + rng.randrange(3) for k in range(agents)}
        tasks = [(0.5 * k, single(name, ask(3, rng.randint(1, 5)))) for k, name in enumerate(lengths)]
        trace = make_trace(lengths, *tasks)
        budget = rng.choice([1, 2]) * (max(lengths.values()) + 20)
        profile = make_profile(kv_budget_tokens=budget, decode_s_per_kv_token=rng.choice([0.0, 1e-3]))
        asked = work_of(trace, profile)
        assert len(levels_of(asked)) <= trace_lp.LEVELS
        case = Drawn(trace, profile)
        value = program_bound(case, rng)
        assert value
        check(case, [*simple_bounds(case), value], reached(case, rng, tries=4), seed)


@pytest.mark.parametrize("profile", ["study", "a100-80g-qwen2.5-32b", "h200-141g-qwen2.5-32b"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_policy_on_every_workload(workload: str, profile: str) -> None:
    trace, engine = generate(workload, rate_per_s=0.3, tasks=3, seed=2), load_profile(profile)
    found = lower_bounds(trace, engine, time_limit_s=0.3)
    for policy in policy_names():
        reached_s = simulate(trace, policy, engine).metrics["mean_jct_s"]
        assert 0 < found.best.mean_jct_s <= reached_s * (1 + TOLERANCE)


# --- wrong bounds are found out -----------------------------------------------------------------------

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def _units(**factors: Callable[[Unit], Any]) -> Plant:
    """Change what every request asks for."""

    def plant(patch: Patch) -> None:
        right = work._unit

        def wrong(*args: Any, **kwargs: Any) -> Unit:  # noqa: ANN401
            unit = right(*args, **kwargs)
            return dataclasses.replace(unit, **{name: new(unit) for name, new in factors.items()})

        patch.setattr(work, "_unit", wrong)

    return plant


def _rounds(**changes: Any) -> Plant:  # noqa: ANN401
    """Change every request before it is looked at."""

    def plant(patch: Patch) -> None:
        right = work._unit

        def wrong(agent: int, prefix: int, spec: Any, *rest: Any) -> Unit:  # noqa: ANN401
            return right(agent, prefix, dataclasses.replace(spec, **changes), *rest)

        patch.setattr(work, "_unit", wrong)

    return plant


def _one_fewer(module: Any) -> Plant:  # noqa: ANN401
    """Let one request fewer fit together."""
    right = critical_path.at_once
    return lambda patch: patch.setattr(module, "at_once", lambda *args: max(right(*args) - 1, 1))


def _smaller_budget(work_given: TraceWork, share: float) -> TraceWork:
    alone = max(int(work_given.prefix[unit.agent]) + unit.need_tokens for unit in work_given.units)
    budget = max(int(work_given.profile.kv_budget_tokens * share), alone)
    profile = work_given.profile.model_copy(update={"kv_budget_tokens": budget})
    return dataclasses.replace(work_given, profile=profile)


def _kv_time_budget(patch: Patch) -> None:
    right = single_machine.kv_time_s
    patch.setattr(single_machine, "kv_time_s", lambda asked: right(_smaller_budget(asked, 0.7)))


def _program_budget(patch: Patch) -> None:
    right = TraceProgram._add_engine

    def wrong(self: TraceProgram) -> Any:  # noqa: ANN401
        kept = self.work
        self.work = _smaller_budget(kept, 0.6)
        engine = right(self)
        self.work = kept
        return engine

    patch.setattr(TraceProgram, "_add_engine", wrong)


def _instants_budget(patch: Patch) -> None:
    right = TraceProgram._add_integers

    def wrong(self: TraceProgram, columns: Any) -> None:  # noqa: ANN401
        kept = self.work
        self.work = _smaller_budget(kept, 0.6)
        right(self, columns)
        self.work = kept

    patch.setattr(TraceProgram, "_add_integers", wrong)


def _full_reservations(patch: Patch) -> None:
    right = work._unit

    def wrong(agent: int, prefix: int, spec: Any, *rest: Any) -> Unit:  # noqa: ANN401
        return dataclasses.replace(right(agent, prefix, spec, *rest), need_tokens=spec.reserve_tokens + 1)

    patch.setattr(work, "_unit", wrong)


def _half_as_many(patch: Patch) -> None:
    right = work.most_running
    patch.setattr(single_machine, "most_running", lambda asked: max(right(asked) // 2, 1))


def _longest_tail(patch: Patch) -> None:
    patch.setattr(single_machine, "min", max, raising=False)


def _whole_runs(patch: Patch) -> None:
    """Treat requests that may be run in pieces like others."""
    right = work.work_of
    patch.setattr(work, "work_of", lambda *args: dataclasses.replace(right(*args), whole=True))


def _later(name: str, position: int, change: Callable[[TraceProgram, Any], Any]) -> Plant:
    """Change an argument of a method of the slot program."""

    def plant(patch: Patch) -> None:
        right = getattr(TraceProgram, name)

        def wrong(self: TraceProgram, *args: Any) -> Any:  # noqa: ANN401
            given = list(args)
            given[position] = change(self, given[position])
            return right(self, *given)

        patch.setattr(TraceProgram, name, wrong)

    return plant


def _lower_tangents(patch: Patch) -> None:
    right = trace_lp.tangents
    lower = lambda *args: ((0.8 * at_rest, 0.8 * slope) for at_rest, slope in right(*args))  # noqa: E731
    patch.setattr(trace_lp, "tangents", lower)


def _smaller_levels(patch: Patch) -> None:
    right = trace_lp.levels_of
    lower = lambda asked: [dataclasses.replace(k, high=0.7 * k.high) for k in right(asked)]  # noqa: E731
    patch.setattr(trace_lp, "levels_of", lower)


def _slower_levels(patch: Patch) -> None:
    right = trace_lp.levels_of
    lower = lambda asked: [dataclasses.replace(k, most=max(k.most - 1, 1)) for k in right(asked)]  # noqa: E731
    patch.setattr(trace_lp, "levels_of", lower)


def _half_of_other_time(patch: Patch) -> None:
    """Charge prefills, prefixes and growing KV twice."""

    def wrong(self: TraceProgram, done: Any) -> Any:  # noqa: ANN401
        p = self.program
        ahead = p.variables(self.slots, high=self.slot_s * self.slots)
        rows = p.constrain((1.0, ahead), (-0.5, done), high=0.0)
        p.add(rows[1:], ahead[:-1], -1.0)
        return rows

    patch.setattr(TraceProgram, "_ahead", wrong)


def _larger_of_merged(patch: Patch) -> None:
    right = work.smallest

    def wrong(units: Sequence[Unit]) -> Unit:
        return dataclasses.replace(right(units), decode_s=max(unit.decode_s for unit in units))

    patch.setattr(trace_lp, "smallest", wrong)


def _older(patch: Patch) -> None:
    """Count each task from half a slot before its arrival."""
    right = TraceProgram._add_group

    def wrong(self: TraceProgram, group: Any) -> Any:  # noqa: ANN401
        self.constant_s += 0.5 * self.slot_s
        return right(self, group)

    patch.setattr(TraceProgram, "_add_group", wrong)


def _late_shares(patch: Patch) -> None:
    right = trace_lp._shares
    patch.setattr(trace_lp, "_shares", lambda g, after_s, *rest: right(g, after_s + 0.2 * rest[-1], *rest))


def _all_decoded(unit: Unit) -> float:
    return unit.steps * 2.0 + unit.steps * (unit.steps - 1) / 2


PLANTS: dict[str, tuple[Plant, dict[str, Any] | None]] = {
    "service": (_units(decode_s=lambda u: 1.1 * u.decode_s), None),
    "prefill": (_units(prefill_s=lambda u: 1.1 * u.prefill_s), None),
    "reused tokens ignored": (_rounds(reused_tokens=0), None),
    "one wave too many": (_one_fewer(critical_path), None),
    "gpu-time: shared by half as many": (_half_as_many, None),
    "kv-time: less memory": (_kv_time_budget, None),
    "the longest tail": (_longest_tail, None),
    "sglang as if it reserved all": (_full_reservations, None),
    "decode steps instead of sooner prefills": (_units(decode_s=_all_decoded), None),
    "gpu-time: prefills with their base": (_units(again_s=lambda u: u.again_s + 1.5), None),
    "program: pieces as whole runs": (
        _whole_runs,
        {"integer": False, "pooled": False, "slot_s": 0.5, "window_s": 30.0},
    ),
    "program: service": (_later("_separate", 2, lambda _, least_s: 1.3 * least_s), {}),
    "program: a decode step for the first token": (_units(steps=lambda u: u.steps + 1), {}),
    "program: a decode step for the first token, pooled": (
        _units(steps=lambda u: u.steps + 1),
        {"pooled": True},
    ),
    "program: precedence": (
        _later("_wait_for", 3, lambda self, after: tuple((k, w + self.slot_s) for k, w in after)),
        {},
    ),
    "program: memory": (_program_budget, {}),
    "program: memory at instants": (_instants_budget, {"integer": True}),
    "program: strong links": (_smaller_levels, {}),
    "program: places": (_slower_levels, {}),
    "program: tangents": (_lower_tangents, {}),
    "program: paths": (_later("_add_path", 2, lambda _, count: 0.7 * count), {"pooled": False}),
    "program: prefills and prefixes": (_half_of_other_time, {}),
    "program: waves": (_one_fewer(trace_lp), {}),
    "program: merged by the largest": (_larger_of_merged, {}),
    "program: window": (_older, {}),
    "program: earliest times": (_late_shares, {}),
}


# Cases in which one rule is what binds, with what a schedule reaches.


def breaking(*long: str) -> JointPolicy:
    """Preempt long requests when short ones come, and let all in at the next event."""

    def choose(event: Event) -> tuple[list[str], list[str]]:
        waiting = sorted(request.id for request in event.waiting)
        running = [request.id for request in event.running if request.task in long]
        if running and any(request.task not in long for request in event.waiting):
            return [], running
        return waiting, []

    return scripted(choose)


TICK_S = 1 / 1024


def with_breaks(long: int, first_s: float, each_s: float, breaks: int) -> Trace:
    """Return tasks of 7 tokens, and at each break two of one token, one a moment after the other."""
    tasks = [(0.0, single("A", ask(0, 7))) for _ in range(long)]
    for k in range(breaks):
        then_s = first_s + k * (each_s + TICK_S)
        tasks += [(then_s, single("A", ask(0, 1))), (then_s + TICK_S, single("A", ask(0, 1)))]
    return make_trace({"A": 0}, *tasks)


def growing() -> tuple[Drawn, float]:
    """Return a request whose steps take 2, 3, ... 7 s and whose further prefills take 4 s each."""
    profile = make_profile(
        prefill_s_per_token=0.0, prefill_base_s=4.0, decode_base_s=1.0, decode_s_per_kv_token=1.0, redo="keep"
    )
    case = Drawn(with_breaks(1, 9.0, 4.0, 4), profile)
    return case, float(simulate(case.trace, breaking("t00"), profile).metrics["mean_jct_s"])


def together() -> tuple[Drawn, float]:
    """Return six requests that get a token each from one prefill of 1.5 s; a step takes them 6.25 s."""
    profile = make_profile(
        prefill_s_per_token=0.0, prefill_base_s=1.5, decode_base_s=0.25, decode_s_per_seq=1.0, redo="keep"
    )
    case = Drawn(with_breaks(6, 1.5, 1.5, 6), profile)
    policy = breaking(*(f"t{k:02d}" for k in range(6)))
    return case, float(simulate(case.trace, policy, profile).metrics["mean_jct_s"])


def interrupted() -> tuple[Drawn, float]:
    """Return a long request that makes way for short ones and goes on where it was."""
    trace = make_trace(
        {"A": 0}, (0.0, single("A", ask(0, 40))), *[(t, single("A", ask(0, 2))) for t in (3.0, 6.0, 9.0)]
    )
    profile = make_profile(prefill_base_s=1.0, prefill_s_per_token=0.0, max_running=1, redo="keep")

    def short_first(event: Event) -> tuple[list[str], list[str]]:
        waiting = max(request.id for request in event.waiting)
        return [waiting], [request.id for request in event.running if request.id < waiting]

    return Drawn(trace, profile), float(simulate(trace, scripted(short_first), profile).metrics["mean_jct_s"])


def waves() -> tuple[Drawn, float]:
    """Return a fork of four of which two fit at once, then a join."""
    stages = {"a": Stage("A", [ask(0, 2)]), "z": Stage("A", [ask(0, 2)], tuple("bcde"))}
    stages |= {v: Stage("A", [ask(0, 4)], ("a",)) for v in "bcde"}
    case = Drawn(make_trace({"A": 3}, (0.0, stages)), stepping(11))
    return case, float(simulate(case.trace, "fcfs", case.profile).metrics["mean_jct_s"])


def tails() -> tuple[Drawn, float]:
    """Return tasks that end with a long wait behind one request and none behind the other."""
    stages = {"a": Stage("A", [ask(0, 4, tool_s=30.0)]), "b": Stage("A", [ask(0, 4)])}
    case = Drawn(make_trace({"A": 0}, *[(0.0, stages)] * 3), stepping(40, max_running=1))
    order = tuple(f"t{k:02d}/{v}/0" for v in "ab" for k in range(3))
    return case, float(simulate(case.trace, Schedule(order), case.profile).metrics["mean_jct_s"])


def queue() -> tuple[Drawn, float]:
    """Return six requests of which two fit at once."""
    tasks = [(0.0, single("A", ask(0, 4))) for _ in range(6)]
    case = Drawn(make_trace({"A": 3}, *tasks), stepping(11))
    return case, float(simulate(case.trace, "fcfs", case.profile).metrics["mean_jct_s"])


BY_HAND = (queue, growing, together, interrupted, waves, tails)


def found_wrong(options: dict[str, Any] | None, seeds: Iterable[int]) -> str | None:
    """Return the first case whose check fails."""
    made = ((make.__name__, *make()) for make in BY_HAND)
    random_ones = ((str(seed), drawn(seed, SMALL), least(seed, SMALL, SMALL_RUNS)) for seed in seeds)
    for name, case, best in itertools.chain(made, random_ones):
        if options is None:
            values: list[Value] = list(simple_bounds(case))
        else:
            if options.get("pooled") and case.profile.redo != "decode":
                continue
            value = program_bound(case, seeded(f"{name} bounds"), **options)
            values = [value] if value else []
        try:
            check(case, values, best, name)
        except AssertionError:
            return name
    return None


@pytest.mark.parametrize("options", [None, {}, {"integer": True}, {"pooled": True}])
def test_right_bounds_are_not(options: dict[str, Any] | None) -> None:
    assert found_wrong(options, range(25)) is None


@pytest.mark.parametrize("name", PLANTS)
def test_a_wrong_bound_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, options = PLANTS[name]
    plant(monkeypatch)
    assert found_wrong(options, range(80)) is not None


# --- by hand ------------------------------------------------------------------------------------------


def bounds_by_hand(trace: Trace, profile: Profile) -> tuple[float, float, float]:
    asked = work_of(trace, profile)
    return critical_path_s(asked), gpu_time_s(asked), kv_time_s(asked)


def test_one_request_takes_what_it_must() -> None:
    """Prefill of 10 tokens at 1/16 s, then 3 steps of 1/4 s and, on 15 + 11 tokens and more, of KV."""
    trace = make_trace({"A": 15}, (2.0, single("A", ask(10, 4))))
    profile = make_profile(decode_s_per_kv_token=1 / 128)
    alone_s = 10 / 16 + 3 / 4 + (26 + 27 + 28) / 128
    assert bounds_by_hand(trace, profile)[0] == pytest.approx(alone_s)
    case = Drawn(trace, profile)
    value = program_bound(case, seeded(0), slot_s=0.25, pooled=False, integer=False)
    assert value
    reached_s = simulate(trace, "fcfs", profile).metrics["mean_jct_s"]
    assert reached_s == pytest.approx(alone_s + 15 / 16)  # the prefix is computed
    assert alone_s - 1e-4 <= value[1] <= reached_s


def test_waits_of_tools_count_behind_the_last_round_too() -> None:
    rounds = (ask(0, 3, tool_s=5.0), ask(0, 2, tool_s=7.0))
    trace = make_trace({"A": 0}, (0.0, single("A", *rounds)))
    assert bounds_by_hand(trace, stepping(10)) == pytest.approx((2 + 5 + 1 + 7,) * 3)


def test_reused_tokens_need_no_prefill() -> None:
    rounds = (ask(16, 1), ask(32, 1, reused_tokens=16))
    trace = make_trace({"A": 0}, (0.0, single("A", *rounds)))
    assert bounds_by_hand(trace, make_profile())[0] == 2.0
    assert simulate(trace, "fcfs", make_profile()).metrics["mean_jct_s"] == 2.0


def test_four_with_room_for_two_go_in_two_waves() -> None:
    case, reached_s = waves()
    asked = work_of(case.trace, case.profile)
    (job,) = asked.jobs
    assert at_once(asked, job, (1, 2, 3, 4)) == 2
    assert earliest(asked, job).start_s == (0, 1, 1, 1, 1, 7)
    assert critical_path_s(asked) == reached_s == 8.0
    pieces = case.profile.model_copy(
        update={"redo": "prefill", "kv_budget_tokens": 15, "prefill_base_s": 9.0}
    )
    asked = work_of(case.trace, pieces)
    assert at_once(asked, job, (1, 2, 3, 4)) == 3
    assert earliest(asked, asked.jobs[0]).start_s[-1] == pytest.approx(10 + 12 * 4 / 3)


def test_sgl_admission_holds_what_is_in_use() -> None:
    trace = make_trace({"A": 5}, (0.0, single("A", ask(10, 2, 30))))
    for admission, tokens in (("full", 40), ("sglang", 11)):
        (job,) = work_of(trace, make_profile(admission=admission)).jobs
        assert job.units[0].need_tokens == tokens


def test_three_jobs_on_one_machine() -> None:
    """The long one makes way: 1 s, 2 s and 3 + 5 s."""
    assert srpt_sum_s([(0.0, 5.0), (1.0, 1.0), (2.0, 2.0)]) == 1 + 2 + 8
    trace = make_trace(
        {"A": 0}, *[(t, single("A", ask(0, n + 1))) for t, n in ((0.0, 5), (1.0, 1), (2.0, 2))]
    )
    expected = pytest.approx(11 / 3)
    assert bounds_by_hand(trace, stepping(100, max_running=1))[1] == expected
    assert bounds_by_hand(trace, stepping(100, decode_base_s=0.0, decode_s_per_seq=1.0))[1] == expected
    # Three at once share a step: a third of the work each, so what binds is the longest path.
    assert bounds_by_hand(trace, stepping(100))[1] == pytest.approx(8 / 3)


def test_kv_time() -> None:
    """Four requests hold 10 + 10 / 2 of 30 tokens for 4 s each: 2 s of a machine, and 4 s at the least."""
    trace = make_trace({"A": 10}, *[(0.0, single("A", ask(5, 5))) for _ in range(4)])
    assert bounds_by_hand(trace, stepping(30))[2] == pytest.approx((2 + 4 + 6 + 8) / 4)
    assert simulate(trace, "fcfs", stepping(30)).metrics["mean_jct_s"] == 6.0


def least_sum(jobs: Sequence[tuple[int, int]]) -> int:
    """Return the least sum of JCTs over all ways to give a machine's unit slots to jobs."""
    best = 10**9
    stack = [(0, tuple(size for _, size in jobs), 0)]
    while stack:
        now, left, total = stack.pop()
        if not any(left):
            best = min(best, total)
            continue
        total += sum(1 for (release, _), rest in zip(jobs, left, strict=True) if rest and release <= now)
        there = [k for k, (release, _) in enumerate(jobs) if left[k] and release <= now]
        stack += [
            (now + 1, tuple(rest - (j == k) for j, rest in enumerate(left)), total) for k in there or [None]
        ]
    return best


def test_shortest_remaining_first_is_the_least() -> None:
    for seed in range(150):
        rng = seeded(seed)
        jobs = [(rng.randint(0, 4), rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
        assert srpt_sum_s(jobs) == least_sum(jobs), jobs
    assert srpt_sum_s([]) == 0
    assert srpt_sum_s([(3.0, 0.0), (3.0, 0.0)]) == 0


# --- linear programs ----------------------------------------------------------------------------------


def test_any_prices_bound_a_program() -> None:
    solved = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rows, columns = rng.integers(1, 6, size=2)
        matrix = rng.integers(-3, 4, size=(rows, columns)).astype(float)
        cost, high = rng.normal(size=columns), rng.uniform(0, 5, size=columns)
        inside = matrix @ (high * rng.uniform(0, 1, size=columns))  # so that there is a solution
        row_low = np.where(rng.random(rows) < 0.5, inside - rng.uniform(0, 1, rows), -np.inf)
        row_high = np.where(rng.random(rows) < 0.5, inside + rng.uniform(0, 1, rows), np.inf)
        upper = np.concatenate([matrix[np.isfinite(row_high)], -matrix[np.isfinite(row_low)]])
        limits = np.concatenate([row_high[np.isfinite(row_high)], -row_low[np.isfinite(row_low)]])
        exact = linprog(cost, A_ub=upper, b_ub=limits, bounds=list(zip(np.zeros(columns), high, strict=True)))
        assert exact.success
        given = (sparse.csr_matrix(matrix), cost, (np.zeros(columns), high), (row_low, row_high))
        for scale in (0.0, 0.1, 1.0, 100.0):
            assert dual_bound(*given, scale * rng.normal(size=rows)) <= exact.fun + 1e-9
        program = LinearProgram()
        x = program.variables(columns, high=high)
        for k in range(columns):
            program.reward(x[k : k + 1], -cost[k])
        for k in range(rows):
            program.constrain(
                *[(matrix[k, j], x[j : j + 1]) for j in range(columns)], low=row_low[k], high=row_high[k]
            )
        answer = program.solve(time_limit_s=5.0)
        assert answer.finished
        assert answer.bound <= exact.fun + 1e-12
        solved += answer.bound > exact.fun - 1e-3
    assert solved > 55


@pytest.mark.parametrize("integer", [False, True])
def test_a_solver_stopped_at_once_still_bounds(integer: bool) -> None:  # noqa: FBT001  a parameter
    case, reached_s = queue()
    asked = work_of(case.trace, case.profile)
    program = TraceProgram(asked, groups_of(asked.jobs, 1), slot_s=0.25, window_s=20.0, integer=integer)
    value, status = program.bound(time_limit_s=0.0)
    assert "optimal" not in status.lower()
    assert 3.0 - 1e-3 <= value <= reached_s  # as if each were alone


def test_jobs_of_one_shape_are_merged_by_arrival() -> None:
    def task(at_s: float, agent: str, tokens: int) -> tuple[float, dict[str, Stage]]:
        return at_s, chain((agent, ask(tokens, tokens)), (agent, ask(2, 2)))

    trace = make_trace(
        {"A": 3, "B": 3}, task(5.0, "A", 4), task(5.0, "B", 9), task(6.0, "A", 2), task(8.0, "A", 7)
    )
    jobs = work_of(trace, make_profile()).jobs
    first, second, other = sorted(groups_of(jobs, 2), key=lambda g: (g.job.units[0].agent, g.arrivals_s[0]))
    assert (list(first.arrivals_s), list(second.arrivals_s), list(other.arrivals_s)) == ([0, 1], [3], [0])
    assert first.job.units[0] == jobs[2].units[0]
    assert second.job.units == jobs[3].units
    assert [len(group.arrivals_s) for group in groups_of(jobs, 9)] == [3, 1]


# --- what is refused ----------------------------------------------------------------------------------


def refused(trace: Trace, profile: Profile) -> dict[str, str]:
    found: TraceBounds = lower_bounds(trace, profile, time_limit_s=0.2)
    assert {"critical-path", "gpu-time", "kv-time"} <= {bound.name for bound in found.bounds}
    return dict(found.refused)


PROGRAMS = ("slot-lp", "slot-lp-by-task", "slot-mip")


@pytest.mark.parametrize(
    ("changes", "output", "reason"),
    [
        ({"decode_base_s": 0.0, "decode_s_per_seq": 0.25}, 4, "decode_base_s above 0"),
        ({}, 1, "needs requests that decode"),
        ({"redo": "keep"}, 4, "redo=keep: .* by a prefill shorter than a step"),
        ({"redo": "prefill", "prefill_s_per_token": 0.0}, 4, "redo=prefill: .* by a prefill shorter"),
    ],
)
def test_engines_that_the_programs_do_not_cover(changes: dict[str, Any], output: int, reason: str) -> None:
    trace = make_trace({"A": 3}, (0.0, single("A", ask(4, output))))
    why = refused(trace, make_profile(**changes))
    for name in PROGRAMS:
        assert re.search(reason, why[name])


def test_engines_that_they_cover() -> None:
    trace = make_trace({"A": 3}, (0.0, single("A", ask(4, 4))))
    for redo in ("decode", "prefill", "keep"):
        for admission in ("full", "sglang"):
            profile = make_profile(redo=redo, admission=admission, prefill_base_s=1.0)
            assert not set(refused(trace, profile)) & set(PROGRAMS)


def test_a_program_that_is_too_large_is_refused() -> None:
    found = lower_bounds(queue()[0].trace, stepping(11), time_limit_s=0.0)
    why = dict(found.refused)
    assert {why[name] for name in PROGRAMS} == {"too large for the time limit"}


def test_a_request_that_never_fits_is_refused() -> None:
    trace = make_trace({"A": 100}, (0.0, single("A", ask(4, 4))))
    with pytest.raises(InputError, match="KV tokens"):
        lower_bounds(trace, make_profile(kv_budget_tokens=100))


def test_without_the_solver_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    case, _ = queue()
    monkeypatch.setattr(extra, "importlib", SimpleNamespace(import_module=missing))
    monkeypatch.setattr(linear, "quiet_highs", extra.quiet_highs.__wrapped__)
    with pytest.raises(
        InputError, match=r"needs highspy, which is not installed: pip install 'topas\[oracle\]'"
    ):
        lower_bounds(case.trace, case.profile, time_limit_s=1.0)
