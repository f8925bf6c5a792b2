"""The best known schedule: what a schedule is, its compiled evaluation, and the search."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_constant import seeded, tiny_trace
from support_exhaustive import least_mean_jct_s
from support_sim import (
    ask,
    largest_need,
    make_profile,
    make_trace,
    profiles,
    single,
    stepping,
    traces,
    watched,
)

from oracle.cohorts import anneal_cohorts, cohort_order, equal_cohorts
from oracle.evaluate import bench_of, play
from oracle.improve import BestKnown, improve
from topas.engine.core import BLOCK, SKIP, STRICT
from topas.errors import InputError, SimulationError
from topas.policies import policy_names
from topas.profile import Profile, load_profile
from topas.sim import SimResult, simulate
from topas.sim.build import request_names
from topas.sim.schedule import Schedule
from topas.trace import Trace
from traces.workloads import WorkloadOptions, generate

SLOW = settings(deadline=None, max_examples=250, derandomize=True, suppress_health_check=list(HealthCheck))


def evaluated(trace: Trace, profile: Profile, schedule: Schedule) -> tuple[float, list[float]]:
    """Return the sum of JCTs and the completion times by compiled evaluation."""
    bench = bench_of(trace, profile)
    bench.setup.plan[:] = schedule.plan(request_names(trace))
    play(bench)
    total_s = play(bench)  # a second time on the same bench, as the search does
    return float(total_s), bench.world.tasks["done_s"].tolist()


def random_schedule(trace: Trace, rng: random.Random) -> Schedule:
    names = list(request_names(trace))
    rng.shuffle(names)
    share = rng.choice([0.0, 0.1, 0.5])
    mode = {
        name: rng.choice((SKIP, BLOCK, STRICT) if rng.random() < share else (SKIP, BLOCK)) for name in names
    }
    gate = {name: rng.choice(names) for name in names if rng.random() < share / 4}
    return Schedule(tuple(names), mode, gate)


# --- schedules ----------------------------------------------------------------------------------------


@SLOW
@given(traces(), st.data())
def test_compiled_evaluation_is_the_simulator(trace: Trace, data: st.DataObject) -> None:
    profile = data.draw(profiles(largest_need(trace)))
    schedule = random_schedule(trace, seeded(data.draw(st.integers(0, 10**6))))
    total_s, done_s = evaluated(trace, profile, schedule)
    try:
        result = simulate(trace, schedule, profile, check=True)
    except SimulationError:
        assert total_s == math.inf
        return
    assert done_s == [task.completion_s for task in result.tasks]
    assert total_s == pytest.approx(sum(task.jct_s for task in result.tasks), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("workload", "rate"), [("chain-3", 0.15), ("dag-4", 0.16), ("metagpt-sop", 0.3)])
def test_and_so_it_is_on_workloads(workload: str, rate: float) -> None:
    trace = generate(workload, rate_per_s=rate, tasks=12, seed=1)
    for host in (False, True):
        profile = load_profile("study").model_copy(update={"host_cache": host})
        schedule = Schedule(request_names(trace))
        result = simulate(trace, schedule, profile, check=True)
        assert evaluated(trace, profile, schedule)[1] == [task.completion_s for task in result.tasks]


def test_modes_say_who_may_overtake() -> None:
    """A wants room for 9 while B's 5 run: C fits beside them, but not beside A."""
    trace = make_trace(
        {"X": 0},
        (0.0, single("X", ask(0, 5))),
        (1.0, single("X", ask(0, 9))),
        (1.0, single("X", ask(0, 4))),
    )
    first, big, small = request_names(trace)

    def admitted(order: tuple[str, ...], mode: int) -> list[str]:
        schedule = Schedule(order, {big: mode})
        return [name for _, name in played(trace, schedule)]

    assert admitted((first, big, small), SKIP) == [first, small, big]
    assert admitted((first, big, small), BLOCK) == [first, big, small]
    assert admitted((big, first, small), BLOCK) == [first, big, small]
    assert admitted((big, first, small), STRICT) == [big, first, small]


def played(trace: Trace, schedule: Schedule) -> list[tuple[float, str]]:
    return watched(trace, schedule, stepping(10))[1].admitted  # type: ignore[arg-type]


def test_a_gate_holds_a_request_back() -> None:
    trace = make_trace({"X": 0}, *[(0.0, single("X", ask(0, 3))) for _ in range(2)])
    one, two = request_names(trace)
    assert played(trace, Schedule((one, two))) == [(0.0, one), (0.0, two)]
    assert played(trace, Schedule((one, two), gate={one: two})) == [(0.0, two), (2.0, one)]


def test_a_standstill_is_an_error() -> None:
    trace = make_trace({"X": 0}, *[(0.0, single("X", ask(0, 3))) for _ in range(2)])
    one, two = request_names(trace)
    schedule = Schedule((one, two), gate={one: two, two: one})
    with pytest.raises(SimulationError, match="admits none of 2 waiting"):
        simulate(trace, schedule, stepping(10))
    assert evaluated(trace, stepping(10), schedule)[0] == math.inf


def test_one_schedule_can_be_played_twice() -> None:
    trace = generate("chain-3", rate_per_s=0.3, tasks=6, seed=1)
    policy = Schedule(request_names(trace), dict.fromkeys(request_names(trace), STRICT))
    assert (
        simulate(trace, policy, load_profile("study")).tasks
        == simulate(trace, policy, load_profile("study")).tasks
    )


# --- cohorts ------------------------------------------------------------------------------------------


def test_cohorts_go_stage_by_stage() -> None:
    trace = generate("chain-3", rate_per_s=1.0, tasks=3, seed=1)
    names = request_names(trace)
    order = cohort_order(bench_of(trace, load_profile("study")).world, (2,))
    found = [tuple(names[k].split("/")[:2]) for k in order]
    tasks = [task.id for task in trace.tasks]
    assert found == [(t, s) for pair in (tasks[:2], tasks[2:]) for s in "ABC" for t in pair]


@given(st.integers(1, 40), st.integers(0, 99))
def test_cuts_stay_between_the_tasks(tasks: int, seed: int) -> None:
    turns = iter([k / 50 for k in range(51)])
    for cuts in equal_cohorts(tasks):
        assert all(0 < cut < tasks for cut in cuts)
    value, cuts = anneal_cohorts((), tasks, lambda c: float(len(c)), lambda: next(turns), seeded(seed))
    assert value == len(cuts) == 0


# --- the search ---------------------------------------------------------------------------------------


def small(workload: str = "chain-3", rate: float = 0.5, tasks: int = 8) -> Trace:
    options = WorkloadOptions(output_tokens=60, max_new_tokens=60)
    return generate(workload, rate_per_s=rate, tasks=tasks, seed=3, options=options)


def jct(result: SimResult) -> float:
    return float(result.metrics["mean_jct_s"])


def test_the_result_is_no_worse_than_any_policy_and_can_be_replayed() -> None:
    for workload in ("chain-3", "dag-4"):
        trace, profile = small(workload), load_profile("study")
        best = improve(trace, profile, max_evaluations=1500)
        assert best.evaluations <= 1500
        assert best.mean_jct_s == jct(best.result)
        for name in policy_names():
            assert best.mean_jct_s <= jct(simulate(trace, name, profile)) + 1e-9
        assert best.schedule
        again = simulate(trace, best.schedule, profile, check=True)
        assert [t.completion_s for t in again.tasks] == [t.completion_s for t in best.result.tasks]


def without_times(best: BestKnown) -> tuple[object, ...]:
    return best.mean_jct_s, best.found_by, best.schedule, best.evaluations, best.result.tasks


def test_the_same_number_of_schedules_finds_the_same() -> None:
    trace, profile = small("dag-4"), load_profile("study")
    runs = [improve(trace, profile, max_evaluations=800, seed=5, starts=["fcfs"]) for _ in range(2)]
    assert without_times(runs[0]) == without_times(runs[1])


def test_more_search_is_never_worse() -> None:
    trace, profile = small("dag-4", rate=2.0, tasks=40), load_profile("study")
    means = [improve(trace, profile, max_evaluations=n, starts=["fcfs"]).mean_jct_s for n in (1, 4, 2000)]
    assert means[0] == pytest.approx(jct(simulate(trace, "fcfs", profile)))
    assert means[2] < means[1] <= means[0]


def test_progress_only_falls() -> None:
    seen: list[tuple[float, int]] = []
    best = improve(
        small(), load_profile("study"), max_evaluations=600, progress=lambda *now: seen.append(now)
    )
    assert [mean for mean, _ in seen] == sorted((mean for mean, _ in seen), reverse=True)
    assert seen[-1][0] == pytest.approx(best.mean_jct_s)


def test_the_clock_ends_the_search() -> None:
    ticks = iter(range(10**9))
    best = improve(small(), load_profile("study"), seconds=100, clock=lambda: float(next(ticks)))
    assert best.evaluations < 10_000
    first = improve(small(), load_profile("study"), seconds=0.0, starts=["spf"])
    assert first.found_by == "spf"


def test_tiny_optima_are_found() -> None:
    reached = 0
    for seed in range(25):
        trace = tiny_trace(seeded(seed), most=3)
        profile = make_profile(kv_budget_tokens=largest_need(trace) + 5, decode_s_per_seq=0.1)
        least = least_mean_jct_s(trace, profile)
        best = improve(trace, profile, max_evaluations=400, starts=["fcfs", "spf"])
        assert best.mean_jct_s >= least - 1e-9
        reached += best.mean_jct_s <= least + 1e-9
    assert reached >= 22


def test_schedules_are_searched_with_sglangs_admission_too() -> None:
    trace = small()
    profile = load_profile("study").model_copy(update={"admission": "sglang"})
    best = improve(trace, profile, max_evaluations=400)
    assert best.evaluations == 400
    for name in policy_names():
        assert best.mean_jct_s <= jct(simulate(trace, name, profile)) + 1e-9


def test_what_cannot_be_searched_is_refused() -> None:
    trace, profile = small(tasks=2), load_profile("study")
    with pytest.raises(InputError, match="limit in seconds or evaluations"):
        improve(trace, profile)
    with pytest.raises(InputError, match="unknown policy 'best'"):
        improve(trace, profile, max_evaluations=5, starts=["best"])
    with pytest.raises(InputError, match="at least one policy"):
        improve(trace, profile, max_evaluations=5, starts=[])
    with pytest.raises(InputError, match="KV tokens"):
        improve(trace, load_profile("unit"), max_evaluations=5)
