"""The whole-trace optimum: proved, replayed, and equal to what trying everything finds."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable

import pytest
from support_constant import ENGINES, seeded, tiny_engine, tiny_trace
from support_exhaustive import ChoiceEngine, _MoreError, least_mean_jct_s
from support_sim import ask, chain, largest_need, make_profile, make_trace, single, stepping

from oracle import trace_optimum
from oracle.models import trace_cpsat
from oracle.result import Status
from oracle.trace_optimum import solve_trace
from topas.errors import InputError, SimulationError
from topas.policies import baseline_names
from topas.profile import Profile, load_profile
from topas.sim import simulate
from topas.trace import Trace
from traces.workloads import generate

pytest.importorskip("ortools")
TOLERANCE_S = 1e-7
MOST_RUNS = 600


def figure_2() -> Trace:
    return generate("figure-2", rate_per_s=1.0, tasks=2, seed=1)


# --- trying everything --------------------------------------------------------------------------------


def unpruned(trace: Trace, profile: Profile) -> float:
    """Return the least mean JCT with no branch cut."""
    least, stack = math.inf, [list[object]()]
    while stack:
        choices = stack.pop()
        engine = ChoiceEngine(trace, profile, choices)  # type: ignore[arg-type]
        try:
            least = min(least, float(engine.run().metrics["mean_jct_s"]))
        except SimulationError:
            continue
        except _MoreError:
            if len(choices) < 9:  # as many decisions as a schedule without needless preemption has
                stack += [[*choices, choice] for choice in engine.options()]
    return least


def test_cutting_branches_does_not_change_the_minimum() -> None:
    checked = 0
    for seed in range(40):
        rng = seeded(seed)
        trace = tiny_trace(rng, most=2)
        if sum(len(rounds) for task in trace.tasks for rounds in task.rounds) > 2:
            continue
        profile = tiny_engine(rng, trace, rng.choice(ENGINES))
        profile = profile.model_copy(update={"redo": rng.choice(["decode", "prefill", "keep"])})
        assert least_mean_jct_s(trace, profile) == pytest.approx(unpruned(trace, profile), abs=1e-9)
        checked += 1
    assert checked > 20


def test_no_policy_beats_trying_everything() -> None:
    nothing_ahead = [name for name in baseline_names() if name != "kvflow"]  # which loads ahead
    for seed in range(30):
        rng = seeded(seed)
        trace = tiny_trace(rng, most=3)
        admission = rng.choice(["full", "sglang"])
        profile = make_profile(
            kv_budget_tokens=largest_need(trace) + rng.choice([1, 8, 20]),
            decode_s_per_seq=0.1,
            host_cache=rng.random() < 0.5,
            admission=admission,
            redo=rng.choice(["decode", "prefill", "keep"]),
        )
        least = least_mean_jct_s(trace, profile)
        for policy in (*nothing_ahead, "topas", "topas-paper", "topas-base"):
            assert least <= simulate(trace, policy, profile).metrics["mean_jct_s"] + 1e-9


# --- the optimum --------------------------------------------------------------------------------------


def test_figure_2_is_proved_and_replayed() -> None:
    trace, profile = figure_2(), load_profile("unit")
    found = solve_trace(trace, profile, time_limit_s=20)
    assert (found.status, found.mean_jct_s, found.bound_s) == (Status.OPTIMAL, 21.5, 21.5)
    assert found.schedule
    assert simulate(trace, found.schedule, profile, check=True).metrics["mean_jct_s"] == 21.5
    assert least_mean_jct_s(trace, profile) == 21.5


@pytest.mark.parametrize("kind", ENGINES)
def test_the_optimum_is_what_trying_everything_finds(kind: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(110):
        rng = seeded(f"{kind} {seed}")
        trace = tiny_trace(rng)
        profile = tiny_engine(rng, trace, kind)
        try:
            least = least_mean_jct_s(trace, profile, MOST_RUNS)
        except RuntimeError:
            continue
        found = solve_trace(trace, profile, time_limit_s=20)
        assert found.bound_s <= least + TOLERANCE_S, seed
        assert found.mean_jct_s is not None
        assert least <= found.mean_jct_s + TOLERANCE_S, seed
        if found.status is Status.OPTIMAL:
            assert found.mean_jct_s == pytest.approx(least, abs=TOLERANCE_S), seed
        seen[found.status] += 1
    assert seen.total() > 100
    assert seen[Status.OPTIMAL] > 0.75 * seen.total()
    assert set(seen) <= {Status.OPTIMAL, Status.FEASIBLE}


def test_a_dozen_requests_are_solved() -> None:
    trace = generate("chain-3", rate_per_s=0.5, tasks=4, seed=1)
    profile = load_profile("study").model_copy(update={"max_running": 1, "host_cache": False})
    found = solve_trace(trace, profile, time_limit_s=60)
    assert found.status is Status.OPTIMAL
    assert found.mean_jct_s is not None
    for policy in baseline_names():
        assert found.mean_jct_s <= simulate(trace, policy, profile).metrics["mean_jct_s"] + 1e-9


# --- what the proof rests on --------------------------------------------------------------------------


def _without_setups(problem: trace_cpsat.TraceProblem) -> trace_cpsat.TraceProblem:
    nothing = dict.fromkeys(problem.compute, 0)
    return dataclasses.replace(problem, compute=nothing, load=nothing)


def _without_memory(problem: trace_cpsat.TraceProblem) -> trace_cpsat.TraceProblem:
    return dataclasses.replace(problem, budget_tokens=10**6)


def _slower(problem: trace_cpsat.TraceProblem) -> trace_cpsat.TraceProblem:
    items = [dataclasses.replace(item, time=item.time + 1) for item in problem.items]
    return dataclasses.replace(problem, items=tuple(items))


def _dearer(problem: trace_cpsat.TraceProblem) -> trace_cpsat.TraceProblem:
    dear = {agent: value + 3 for agent, value in problem.compute.items()}
    return dataclasses.replace(problem, compute=dear, load=dear)


def _smaller(problem: trace_cpsat.TraceProblem) -> trace_cpsat.TraceProblem:
    return dataclasses.replace(problem, budget_tokens=problem.budget_tokens * 2 // 3)


Change = Callable[[trace_cpsat.TraceProblem], trace_cpsat.TraceProblem]


@pytest.mark.parametrize("change", [_without_setups, _without_memory])
def test_a_model_that_leaves_out_a_rule_proves_nothing(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay shows it: the bound is not reached, so optimality is not claimed."""
    if change is _without_setups:
        trace, profile = figure_2(), load_profile("unit")
    else:
        trace = make_trace({"A": 10}, *[(0.0, single("A", ask(0, 10))) for _ in range(4)])
        profile = stepping(30)
    assert solve_trace(trace, profile, time_limit_s=20).status is Status.OPTIMAL
    monkeypatch.setattr(trace_optimum, "problem_of", lambda t, p: change(trace_cpsat.problem_of(t, p)))
    found = solve_trace(trace, profile, time_limit_s=20)
    assert found.status is Status.FEASIBLE
    assert found.mean_jct_s is not None
    assert found.bound_s < found.mean_jct_s


@pytest.mark.parametrize("change", [_slower, _dearer, _smaller])
def test_a_model_that_asks_too_much_is_caught_by_trying_everything(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change is _smaller:
        trace = make_trace({"A": 5}, *[(0.0, single("A", ask(0, 10))) for _ in range(3)])
        profile = stepping(25)
    else:
        trace, profile = figure_2(), load_profile("unit")
    monkeypatch.setattr(trace_optimum, "problem_of", lambda t, p: change(trace_cpsat.problem_of(t, p)))
    found = solve_trace(trace, profile, time_limit_s=20)
    assert found.bound_s > least_mean_jct_s(trace, profile) + TOLERANCE_S


def test_a_prefix_set_up_ahead_by_a_broken_off_attempt_is_below_no_bound() -> None:
    """Preemption can help a clairvoyant schedule: what it leaves behind is a prefix."""
    trace = make_trace(
        {"A": 20},
        (0.0, single("A", ask(1, 40))),
        (6.0, single("A", ask(1, 1))),
        (6.0, single("A", ask(1, 1))),
    )
    profile = make_profile(kv_budget_tokens=70, prefill_s_per_token=0.25, decode_base_s=1.0, max_running=1)
    least = least_mean_jct_s(trace, profile)
    found = solve_trace(trace, profile, time_limit_s=20)
    assert found.bound_s <= least + TOLERANCE_S
    assert found.mean_jct_s is not None
    assert least < found.mean_jct_s
    assert found.status is Status.FEASIBLE


# --- limits and refusals ------------------------------------------------------------------------------


def test_without_time_nothing_is_claimed() -> None:
    trace, profile = figure_2(), load_profile("unit")
    found = solve_trace(trace, profile, time_limit_s=0.0)
    assert (found.status, found.mean_jct_s, found.schedule) == (Status.UNKNOWN, None, None)
    assert found.bound_s <= 21.5


def test_a_hint_is_the_least_that_comes_back() -> None:
    trace, profile = figure_2(), load_profile("unit")
    best = solve_trace(trace, profile, time_limit_s=20).schedule
    found = solve_trace(trace, profile, time_limit_s=0.0, hint=best)
    assert (found.status, found.mean_jct_s, found.schedule) == (Status.FEASIBLE, 21.5, best)
    assert solve_trace(trace, profile, time_limit_s=20, hint=best).status is Status.OPTIMAL


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"max_running": 2, "decode_base_s": 0.1}, "constant time"),
        ({"max_running": 2, "host_cache": True}, "constant time"),
        ({"max_running": 2, "prefill_base_s": 0.1}, "constant time"),
    ],
)
def test_other_engines_are_refused(changes: dict[str, object], word: str) -> None:
    profile = load_profile("unit").model_copy(update=changes)
    with pytest.raises(InputError, match=word):
        solve_trace(figure_2(), profile, time_limit_s=1)


@pytest.mark.parametrize("redo", ["prefill", "keep"])
def test_preemption_that_keeps_tokens_is_refused_where_there_are_any(redo: str) -> None:
    profile = load_profile("unit").model_copy(update={"redo": redo})
    assert solve_trace(figure_2(), profile, time_limit_s=20).mean_jct_s == 21.5
    trace = make_trace({"A": 1}, (0.0, chain(("A", ask(1, 3)), ("A", ask(1, 1)))))
    with pytest.raises(InputError, match="preemption keep tokens"):
        solve_trace(trace, profile, time_limit_s=1)


def test_a_request_that_never_fits_is_refused() -> None:
    trace = make_trace({"A": 100}, (0.0, single("A", ask(10, 1))))
    with pytest.raises(InputError, match="KV tokens"):
        solve_trace(trace, load_profile("unit"), time_limit_s=1)
