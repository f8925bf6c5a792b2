"""Branch and bound, and ``topas-score``: how they stand to the optimum and to the paper's search."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import Raw, events, make_event, many, shuffled

from compare import near
from compare.bench import mixed_event
from oracle import policy
from oracle.branch.options import scale_of
from oracle.branch.sets import solve_branch
from oracle.brute_force import brute_force
from oracle.event import solve_event
from oracle.models.answer import Answer, Limits
from oracle.policy import TOPAS_SCORE
from oracle.result import Status
from topas.errors import InputError
from topas.event import Event
from topas.feasible import violations
from topas.formats import event_json, event_of
from topas.online.search import select
from topas.policies import get_policy
from topas.problem import compile_event
from topas.score import decision_on

decide = TOPAS_SCORE.decide


def alone(event: Event) -> Answer:
    """Return what branch and bound finds without the paper's search."""
    return solve_branch(compile_event(event), Limits())


def assert_best(event: Event) -> None:
    """Assert that a decision is the best of all joint states, with the most requests running among these."""
    decision = decide(event)
    answer = brute_force(compile_event(event), tie_break=True)
    if answer.status is Status.INFEASIBLE:
        assert not decision.admit
        assert decision == select(event)
        return
    assert violations(event, decision) == []
    assert decision.terms.score_ns == answer.claimed_ns
    running = len(event.running) - len(decision.preempt) + len(decision.admit)
    assert running == len(event.running) - len(answer.preempt) + len(answer.admit)


@many(400)
@given(events())
def test_small_events_are_decided_as_well_as_trying_everything_does(raw: Raw) -> None:
    assert_best(event_of(raw))


@many(100)
@given(events(most_waiting=8, most_running=3, agent_counts=[8, 7, 6, 5]))
def test_so_are_those_of_many_agents(raw: Raw) -> None:
    assert_best(event_of(raw))


@many(100)
@given(events(most_waiting=7, most_running=4), st.sampled_from([1, 2, 3]), st.sampled_from([0, 2, 5]))
def test_so_are_those_with_caps_and_a_batch_limit(raw: Raw, cap: int, batch: int) -> None:
    raw["params"] |= {"K": cap, "max_running": batch}
    assert_best(event_of(raw))


@many(60)
@given(st.one_of(events(most_waiting=0), events(most_running=0), events(agent_counts=[1])))
def test_so_are_those_with_nothing_waiting_or_running_and_with_one_agent(raw: Raw) -> None:
    assert_best(event_of(raw))


@many(60)
@given(events(most_waiting=6, most_running=4), st.integers(0, 100))
def test_so_are_those_whose_budget_was_shrunk(raw: Raw, percent: int) -> None:
    event = event_of(raw)
    assert_best(replace(event, budget_tokens=event.budget_tokens * percent // 100))


@many(200)
@given(events(most_waiting=8, most_running=4, agent_counts=[3, 8, 5]))
def test_it_proves_small_events_by_itself(raw: Raw) -> None:
    event = event_of(raw)
    found, wanted = alone(event), brute_force(compile_event(event))
    assert (found.status, found.claimed_ns, found.bound_ns) == (
        wanted.status,
        wanted.claimed_ns,
        wanted.bound_ns,
    )


@many(150)
@given(events(), st.integers(0, 999))
def test_a_decision_is_scored_and_credited_by_the_library_in_any_order_of_the_event(
    raw: Raw, seed: int
) -> None:
    event = event_of(raw)
    decision = decide(event)
    assert decision == decision_on(event, decision.admit, decision.preempt)
    assert sum(decision.credits_ns) == decision.terms.admit_ns
    assert decide(event) == decision
    assert decide(event_of(shuffled(raw, seed))) == decision


@many(80)
@given(events(most_waiting=7, shrunk=False))
def test_admissions_stand_in_the_order_of_greedy_pack(raw: Raw) -> None:
    """Where the paper's search admits the same requests, it admits them in the same order."""
    event = event_of(raw)
    greedy, exact = select(event), decide(event)
    if (set(greedy.admit), greedy.preempt) == (set(exact.admit), exact.preempt):
        assert exact == greedy


@pytest.mark.parametrize("cap", [0, 8])
@pytest.mark.parametrize(("waiting", "agents"), [(30, 4), (60, 8), (150, 10)])
def test_random_larger_events_are_proved_and_agree_with_the_solver(
    waiting: int, agents: int, cap: int
) -> None:
    for seed in range(1, 4):
        event = mixed_event(waiting, agents, seed, cap)
        result = solve_event(event, time_limit_s=None, work_limit=60)
        decision = decide(event)
        assert result.status is alone(event).status is Status.OPTIMAL
        assert decision.terms.score_ns == alone(event).claimed_ns == result.bound_ns
        assert violations(event, decision) == []


@pytest.mark.parametrize("cap", [0, 8])
def test_large_events_are_proved_too(cap: int) -> None:
    for waiting, agents in ((600, 10), (1000, 32)):
        for seed in range(1, 4):
            event = mixed_event(waiting, agents, seed, cap)
            result = solve_event(event, solver="branch-and-bound")
            assert result.status is Status.OPTIMAL
            assert result.decision == decide(event)
            assert result.decision.terms.score_ns >= select(event).terms.score_ns


def many_ready(budget: int, seed: int, branches: int = 14) -> Event:
    """Return an event with a task of more sets of ready requests than are listed, and two small ones."""
    rng = np.random.default_rng(seed)
    agents = "ABC"
    stages = " ".join(f"s{k:02}={rng.integers(5, 25)}" for k in range(branches))
    waiting = [f"r{k:02} t.s{k:02} {agents[k % 3]} {10 + 7 * (k % 4)} {3 + k % 5}" for k in range(branches)]
    raw = make_event(
        budget=budget,
        agents="A=40 B=20 C=30",
        tasks={"t": f"{stages} end<s01,s02=3", "u": "a=9 b<a=4", "v": "a=6 b=5"},
        waiting=[*waiting, "u u.a A 30 9", "v1 v.a B 20 6", "v2 v.b C 20 5"],
        running=["q t.s01 B 10 5"],
        resident="B",
    )
    return event_of(raw)


@pytest.mark.parametrize("budget", [90, 150, 260, 400])
def test_a_task_with_many_ready_requests_is_left_to_the_papers_search(budget: int) -> None:
    for seed in range(4):
        event = many_ready(budget, seed)
        with pytest.raises(InputError, match="at most 1024 sets of ready requests a task, found more"):
            alone(event)
        assert decide(event) == select(event)


def test_if_its_limits_strike_the_papers_search_helps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "BRANCH_WORK", 0)
    for seed in range(1, 6):
        event = mixed_event(40, 6, seed)
        assert solve_branch(compile_event(event), Limits(work=0)).status is Status.UNKNOWN
        assert decide(event) == select(event)


@pytest.mark.parametrize("cap", [0, 8])
def test_stopped_on_the_way_it_has_a_bound_and_the_better_state_counts(
    cap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = mixed_event(1000, 32, 1, cap)
    optimum_ns, paper_ns = alone(event).claimed_ns, select(event).terms.score_ns
    assert optimum_ns is not None
    seen = set()
    for share in range(1, 7):
        monkeypatch.setattr(policy, "BRANCH_WORK", share * 2e-4)
        found = solve_branch(compile_event(event), Limits(work=share * 2e-4))
        seen.add(found.status)
        assert (found.bound_ns or 0) >= optimum_ns >= (found.claimed_ns or 0)
        assert decide(event).terms.score_ns >= max(found.claimed_ns or 0, paper_ns)
    assert Status.FEASIBLE in seen


def test_scores_beyond_its_integers_are_left_to_the_papers_search() -> None:
    """Eight tasks of half a million seconds, aged 190-fold: their sum is more than values can hold."""
    names = [f"t{k}" for k in range(8)]
    raw = make_event(
        budget=200,
        agents="A=50 B=40",
        tasks=dict.fromkeys(names, "a=500000"),
        waiting=[f"r{k} {name}.a {'AB'[k % 2]} 10 500000" for k, name in enumerate(names)],
        resident="A",
        time=100.0,
        rho=80.0,
    )
    event = event_of(raw)
    assert scale_of(compile_event(event)) == 0
    with pytest.raises(InputError, match="too large for branch and bound"):
        alone(event)
    assert decide(event) == select(event)


def test_pools_beyond_a_mask_are_left_to_the_papers_search() -> None:
    names = [f"A{k:03}" for k in range(70)]
    raw = make_event(
        budget=200,
        agents=" ".join(f"{name}=10" for name in names),
        tasks={f"t{k}": f"a={k + 1}" for k in range(70)},
        waiting=[f"r{k} t{k}.a {name} 10 {k + 1}" for k, name in enumerate(names)],
        M=0,
    )
    event = event_of(raw)
    with pytest.raises(InputError, match="at most 62 agents, found 70"):
        alone(event)
    assert decide(event) == select(event)


@many(60)
@given(events())
def test_an_event_that_was_written_and_read_gets_the_same_decision(raw: Raw) -> None:
    event = event_of(raw)
    assert decide(event_of(json.loads(json.dumps(event_json(event))))) == decide(event)


def test_an_empty_gpu_takes_even_a_request_that_costs_more_than_it_gains() -> None:
    event = event_of(make_event(budget=1000, agents="A=500", tasks={"t": "a=1"}, waiting=["r t.a A 10 1"]))
    assert decide(event).admit == ("r",)


def test_nothing_is_changed_if_no_state_can_be_reached() -> None:
    raw = make_event(
        budget=50,
        agents="A=40",
        tasks={"t": "a=5", "u": "a=5"},
        running=["q1 t.a A 40 5", "q2 u.a A 40 5"],
        resident="A",
        K=1,
    )
    decision = decide(event_of(raw))
    assert (decision.resident, decision.admit, decision.preempt) == (("A",), (), ())
    assert decide(event_of(raw | {"params": raw["params"] | {"K": 2}})).preempt == ("q1", "q2")


def test_it_may_preempt_beside_a_prefix_that_stays() -> None:
    """Algorithm 1 keeps both of A's requests; the optimum lets the cheap one make room for 20 s."""
    raw = make_event(
        budget=130,
        agents="A=50",
        tasks={"t": "a=5", "u": "a=5", "v": "a=20"},
        waiting=["r v.a A 40 20"],
        running=["q1 t.a A 40 5 credit=9", "q2 u.a A 40 5 credit=1"],
        resident="A",
    )
    event = event_of(raw)
    assert select(event).admit == ()
    decision = decide(event)
    assert (decision.admit, decision.preempt) == (("r",), ("q2",))


def test_its_gaps_are_tabled_by_workload_and_spread(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every event of the runs that were needed is judged, up to the number wanted, and found exact."""
    words = ["chain-3", "dag-4", "--events", "25", "--sigmas", "0.5", "--K", "3", "-o", str(tmp_path)]
    assert near.main(words) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["events of", "judged", "proved", "exact", "mean gap", "p99", "max"]
    assert rows[2:] == [
        [f"{name}, sigma 0.5, K = 3", "25", "100 %", "25", "0 %", "0 %", "0 %"]
        for name in ("chain-3", "dag-4")
    ]


def test_the_policy_is_registered_by_its_name() -> None:
    assert get_policy("topas-score") is TOPAS_SCORE
