"""The near-exact search: what it may choose, and how it stands to the optimum and to the paper's search."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support_events import Raw, Reference, events, make_event, many, shuffled

from compare import near
from compare.bench import mixed_event
from oracle.brute_force import brute_force
from oracle.event import solve_event
from oracle.result import Status
from oracle.verify import greedy_order
from topas.decision import Decision
from topas.event import Event
from topas.feasible import violations
from topas.formats import event_json, event_of
from topas.online.near import policy
from topas.online.near.columns import columns_of
from topas.online.near.policy import TOPAS_SCORE, improve, scale_of, select_near
from topas.online.search import compile_search, select
from topas.policies import get_policy
from topas.problem import compile_event
from topas.score import decision_on


def proved(event: Event) -> bool:
    """Return whether the near-exact search alone, without the paper's, proves its state best."""
    problem = compile_event(event)
    active, data, best, _ = compile_search(problem)
    return improve(problem, active, data, best)


def alone(event: Event) -> Decision | None:
    """Return what the near-exact search decides without the paper's, proved or not."""
    problem = compile_event(event)
    active, data, best, _ = compile_search(problem)
    improve(problem, active, data, best)
    if not best.counts[0]:
        return None
    ids = [problem.waiting[k].id for k in best.admitted[: best.counts[1]]]
    dropped = [r.id for q, r in enumerate(problem.running) if not best.kept[q]]
    return decision_on(event, ids, dropped)


def assert_best(event: Event) -> None:
    """Assert that a decision is the best of all joint states, with the most requests running among these."""
    decision = select_near(event)
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
def test_it_proves_small_events_by_itself_wherever_something_can_run(raw: Raw) -> None:
    event = event_of(raw)
    answer = brute_force(compile_event(event))
    found = alone(event)
    if proved(event):
        assert found is not None
        assert found.terms.score_ns == answer.claimed_ns
    else:
        assert found is None or not found.resident
        assume(answer.status is not Status.INFEASIBLE)
        # Only where the running requests do not fit any more may it start without a state.
        assert not Reference(raw).feasible((), ()) or not event.running


@many(150)
@given(events(), st.integers(0, 999))
def test_a_decision_is_scored_and_credited_by_the_library_in_any_order_of_the_event(
    raw: Raw, seed: int
) -> None:
    event = event_of(raw)
    decision = select_near(event)
    assert decision == decision_on(event, decision.admit, decision.preempt)
    assert sum(decision.credits_ns) == decision.terms.admit_ns
    assert select_near(event) == decision
    assert select_near(event_of(shuffled(raw, seed))) == decision


@many(60)
@given(events(most_waiting=7))
def test_admissions_stand_in_greedy_order(raw: Raw) -> None:
    event = event_of(raw)
    problem = compile_event(event)
    decision = select_near(event)
    place = {r.id: k for k, r in enumerate(problem.waiting)}
    dropped = [q for q, r in enumerate(problem.running) if r.id in decision.preempt]
    admitted = [place[i] for i in decision.admit]
    assert greedy_order(problem, admitted, dropped) == admitted


@pytest.mark.parametrize("cap", [0, 8])
@pytest.mark.parametrize(("waiting", "agents"), [(30, 4), (60, 8), (150, 10)])
def test_random_larger_events_are_proved_and_agree_with_the_solver(
    waiting: int, agents: int, cap: int
) -> None:
    for seed in range(1, 4):
        event = mixed_event(waiting, agents, seed, cap)
        result = solve_event(event, time_limit_s=None, work_limit=60)
        decision = select_near(event)
        assert result.status is Status.OPTIMAL
        assert proved(event)
        assert decision.terms.score_ns == result.bound_ns
        assert violations(event, decision) == []


@pytest.mark.parametrize("cap", [0, 8])
def test_large_events_are_never_decided_worse_than_by_the_paper(cap: int) -> None:
    for waiting, agents in ((600, 10), (1000, 32)):
        for seed in range(1, 4):
            event = mixed_event(waiting, agents, seed, cap)
            found, paper = alone(event), select(event)
            assert found is not None
            assert violations(event, found) == []
            assert found.terms.score_ns >= paper.terms.score_ns


def many_ready(budget: int, seed: int, branches: int = 14) -> Event:
    """Return an event with a task of more ready requests than the memo holds, and two small ones."""
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
def test_a_task_with_many_ready_requests_is_decided_no_worse_than_by_the_paper(budget: int) -> None:
    for seed in range(4):
        event = many_ready(budget, seed)
        decision, paper = select_near(event), select(event)
        assert not proved(event)
        assert violations(event, decision) == []
        assert decision.terms.score_ns >= paper.terms.score_ns
        assert decision == decision_on(event, decision.admit, decision.preempt)


def test_if_its_limits_strike_the_papers_search_helps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "NODES", 0)
    for seed in range(1, 6):
        event = mixed_event(40, 6, seed)
        assert not proved(event)
        assert select_near(event).terms.score_ns >= select(event).terms.score_ns


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
    assert select_near(event) == select(event)


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
    assert select_near(event) == select(event)


def test_a_column_is_worth_the_joint_gain_of_its_requests() -> None:
    event = mixed_event(40, 4, 1)
    problem = compile_event(event)
    active, data, _, _ = compile_search(problem)
    scale = scale_of(problem)
    columns = columns_of(active, scale, data)
    seen = 0
    for m in range(len(columns.task_at) - 1):
        for j in range(columns.task_at[m], columns.task_at[m + 1]):
            made = int(columns.made_of[j])
            members = [int(columns.slots[10 * m + bit]) for bit in range(10) if (made >> bit) & 1]
            gain_ns = decision_on(event, [problem.waiting[k].id for k in members]).terms.admit_ns
            assert columns.value[j] == scale * gain_ns + len(members)
            assert columns.size[j] == sum(problem.waiting_reserve[k] for k in members)
            seen += 1
    assert seen > 10


@many(60)
@given(events())
def test_an_event_that_was_written_and_read_gets_the_same_decision(raw: Raw) -> None:
    event = event_of(raw)
    assert select_near(event_of(json.loads(json.dumps(event_json(event))))) == select_near(event)


def test_an_empty_gpu_takes_even_a_request_that_costs_more_than_it_gains() -> None:
    event = event_of(make_event(budget=1000, agents="A=500", tasks={"t": "a=1"}, waiting=["r t.a A 10 1"]))
    assert select_near(event).admit == ("r",)


def test_nothing_is_changed_if_no_state_can_be_reached() -> None:
    raw = make_event(
        budget=50,
        agents="A=40",
        tasks={"t": "a=5", "u": "a=5"},
        running=["q1 t.a A 40 5", "q2 u.a A 40 5"],
        resident="A",
        K=1,
    )
    decision = select_near(event_of(raw))
    assert (decision.resident, decision.admit, decision.preempt) == (("A",), (), ())
    assert select_near(event_of(raw | {"params": raw["params"] | {"K": 2}})).preempt == ("q1", "q2")


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
    decision = select_near(event)
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
