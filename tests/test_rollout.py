"""Rollouts: the base rules are the simulator's, following them agrees with it, and decisions are sound."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from support_events import events, many
from support_sim import Stage, ask, make_profile, make_trace, single

from topas.event import Event
from topas.feasible import violations
from topas.formats import event_json, event_of
from topas.online.rollout import kernel
from topas.online.rollout.policy import look_ahead, may_change
from topas.online.rollout.situation import case_of, requests_left, room_for
from topas.online.search import select
from topas.params import Lookahead
from topas.policies import get_policy
from topas.policies.policy import QueuePolicy, admit_from_head
from topas.profile import Profile
from topas.sim import simulate
from traces.workloads import WorkloadOptions, generate

RULES = {"lpm": kernel.LPM, "spf": kernel.SPF, "parrot-fcfs": kernel.PARROT}


def recorded_events(
    workload: str, rate: float, tasks: int, sigma: float = 0.0, policy: str = "spf"
) -> list[Event]:
    """Return the events of a run of a workload in the plain engine with room for three prefixes."""
    trace = generate(
        workload, rate_per_s=rate, tasks=tasks, seed=3, options=WorkloadOptions(output_sigma=sigma)
    )
    found: list[Event] = []
    simulate(trace, policy, PROFILE, record=lambda event, _: found.append(event))
    return found


PROFILE = make_profile(kv_budget_tokens=36_000, decode_s_per_seq=0.001)
"""Of the terms of a profile, it has the plain ones."""
MEASURED = make_profile(
    kv_budget_tokens=36_000,
    prefill_base_s=0.01,
    prefill_s_per_token=1e-5,
    prefill_s_per_seq=0.004,
    prefill_s_per_cached_token=5e-6,
    prefill_s_per_pair=5e-9,
    prefill_s_per_cached_pair=5e-9,
    decode_base_s=0.02,
    decode_s_per_seq=0.001,
    decode_s_per_kv_token=2e-6,
    request_s=0.3,
)
"""It has all of them."""
MEASURED_TREE = MEASURED.model_copy(update={"prefix_sharing": "tree"})


@pytest.mark.parametrize("policy", ["spf", "parrot-fcfs"])
@pytest.mark.parametrize("workload", ["chain-3", "dag-4", "dag-10-wide"])
def test_a_rule_admits_what_the_queue_policy_of_its_name_admits(workload: str, policy: str) -> None:
    rule = get_policy(policy)
    assert isinstance(rule, QueuePolicy)
    checked = 0
    for event in recorded_events(workload, 0.05, 12, policy="topas-base"):
        case = case_of(event)
        scratch, candidates = room_for(case)
        row = candidates.taken[0]
        count = kernel.admit_by(RULES[policy], -1, 0, case.situation.status, case.situation, scratch, row)
        mine = [case.requests[node].id for node in row[:count]]
        order = sorted(event.waiting, key=rule.rank(event))
        assert mine == [request.id for request in admit_from_head(event, order)]
        checked += count
    assert checked > 10


@pytest.mark.parametrize("profile", [PROFILE, MEASURED, MEASURED_TREE])
@pytest.mark.parametrize("policy", ["spf", "parrot-fcfs"])
@pytest.mark.parametrize(("workload", "tasks"), [("chain-3", 9), ("dag-4", 6), ("dag-10-wide", 3)])
def test_following_a_base_policy_agrees_with_the_simulator(
    workload: str, tasks: int, policy: str, profile: Profile
) -> None:
    trace = generate(workload, rate_per_s=1e6, tasks=tasks, seed=3, options=WorkloadOptions())
    found: list[Event] = []
    result = simulate(trace, policy, profile, record=lambda event, _: found.append(event))
    event = next(event for event in found if len(event.tasks) == tasks)
    far = replace(event.params, lookahead=Lookahead(tail=0.0, drain=0.0, horizon=10**6))
    case = case_of(replace(event, params=far))
    scratch, candidates = room_for(case)
    row = candidates.taken[0]
    count = kernel.admit_by(RULES[policy], -1, 0, case.situation.status, case.situation, scratch, row)
    status, out = case.situation.status, case.out[0]
    cost = kernel.play(RULES[policy], status, row, count, case.situation, scratch, out, kernel.NEVER)
    left = np.mean([task.completion_s for task in result.tasks]) - event.time_s
    # Requests of a batch that miss a prefix compute it each in a tree (E24); clocks that begin elsewhere
    # round elsewhere, which can put a request into the batch after. Each term is worth more than that.
    assert cost == pytest.approx(left, rel=0.03 if profile is MEASURED_TREE else 1e-4)


@many(150)
@given(events())
def test_decisions_are_feasible_and_an_idle_engine_gets_work(raw: dict[str, object]) -> None:
    event = event_of(raw)
    if not event.waiting:
        return
    decision = look_ahead(event)
    if violations(event, select(event)):
        return  # no state is feasible
    assert violations(event, decision) == []
    fits = any(
        request.reserve_tokens + event.agents[request.agent] <= event.budget_tokens
        for request in event.waiting
    )
    if not event.running and fits:
        assert decision.admit


@pytest.mark.parametrize("sigma", [0.0, 0.5])
@pytest.mark.parametrize("workload", ["chain-3", "dag-10-wide", "metagpt-tl"])
def test_an_event_that_was_written_and_read_gives_the_same_decision(workload: str, sigma: float) -> None:
    found = recorded_events(workload, 0.05, 10, sigma)
    for event in found[:: max(len(found) // 15, 1)]:
        again = event_of(json.loads(json.dumps(event_json(event))))
        assert look_ahead(again) == look_ahead(event)


def test_what_is_chosen_costs_no_more_than_the_best_base_rule_by_itself() -> None:
    deviations = 0
    found = [
        recorded_events(name, 0.08, 12, 0.5, "topas-base") for name in ("dag-4", "dag-10-wide", "metagpt-tl")
    ]
    for event in itertools.chain(*found):
        case = case_of(event)
        scratch, candidates = room_for(case)
        choice = kernel.look_ahead(case.situation, scratch, candidates, case.out, case.lost)
        if candidates.size[0] == 1:
            continue
        base = int(candidates.base_cost.argmin())
        own = candidates.reference[base]
        assert candidates.base_cost[base] < kernel.NEVER
        assert candidates.cost[own] < kernel.NEVER
        assert choice == own or candidates.cost[choice] < candidates.cost[own] * (1 - case.situation.margin)
        deviations += choice != own
    assert deviations > 0


def test_expected_requests_are_those_of_executions_that_went_on() -> None:
    counts = (1, 1, 3, 5)
    assert [requests_left(counts, done) for done in range(6)] == [2, 3, 2, 2, 1, 1]


def test_scenarios_are_strata_of_the_lengths_above_what_was_generated() -> None:
    events_ = [e for e in recorded_events("chain-3", 0.05, 30, 0.5) if e.running and e.waiting]
    event = events_[-1]
    more = replace(event.params, lookahead=Lookahead(scenarios=8))
    case = case_of(replace(event, params=more))
    seen = {
        name: set(o.outputs)
        for t in event.tasks.values()
        for name, o in zip(t.dag.names, t.outlooks, strict=True)
    }
    for node, request in enumerate(case.requests):
        if request is None or len(seen[request.stage]) < 2:
            continue
        totals = case.out[:, node] + request.generated_tokens
        longer = [x for x in seen[request.stage] if x > request.generated_tokens]
        if longer:
            assert set(totals) <= {min(x, request.max_new_tokens) for x in longer}


@pytest.mark.parametrize("workload", ["chain-3", "dag-4", "metagpt-tl"])
def test_where_nothing_may_change_looking_ahead_would_change_nothing(workload: str) -> None:
    skipped = 0
    for event in recorded_events(workload, 0.08, 20, 0.5, "topas-base"):
        if may_change(event):
            continue
        case = case_of(event)
        scratch, candidates = room_for(case)
        choice = kernel.look_ahead(case.situation, scratch, candidates, case.out, case.lost)
        assert candidates.size[0] == 1
        assert candidates.takes[choice] == 0
        assert (candidates.status[choice] == case.situation.status).all()
        assert look_ahead(event).admit == look_ahead(event).preempt == ()
        skipped += 1
    assert skipped > 0


def test_a_rollout_is_given_up_only_when_it_costs_more_than_the_limit() -> None:
    given_up = 0
    for event in recorded_events("dag-4", 0.08, 12, 0.5)[::5]:
        case = case_of(event)
        scratch, candidates = room_for(case)
        kernel.look_ahead(case.situation, scratch, candidates, case.out, case.lost)
        status, row, takes = case.situation.status, candidates.taken[0], candidates.takes[0]

        def cost(limit: float, args: tuple[object, ...] = (status, row, takes)) -> float:
            return float(kernel.play(kernel.SPF, *args, case.situation, scratch, case.out[0], limit))  # noqa: B023

        whole = cost(kernel.NEVER)
        assert cost(whole * 1.01) == whole
        for share in (0.9, 0.5, 0.1):
            found = cost(whole * share)
            assert found in {whole, kernel.NEVER}
            given_up += found == kernel.NEVER
    assert given_up > 0


def test_context_in_memory_is_not_computed_again() -> None:
    events_ = recorded_events("metagpt-tl", 0.05, 12)
    seen = 0
    for event in events_:
        case = case_of(event)
        for node, request in enumerate(case.requests):
            if request is None or request.id in {r.id for r in event.running}:
                continue
            context = max(request.cached_tokens - event.agents[request.agent], 0)
            assert case.situation.inputs[node] + case.situation.cached[node] == request.input_tokens
            assert case.situation.cached[node] == min(context, request.input_tokens)
            seen += context > 0
    assert seen > 0


def test_known_lengths_need_one_scenario() -> None:
    for sigma, scenarios in ((0.0, 1), (0.5, 8)):
        assert len(case_of(recorded_events("chain-3", 0.05, 30, sigma)[-1]).out) == scenarios


def test_the_drain_is_the_time_of_all_work_at_the_speed_of_its_first_half() -> None:
    # two requests at a time, all alike: the cost with and without the drain differ by drain x 4 batches
    trace = make_trace({"A": 0}, *[(0.0, single("A", ask(1, 9)))] * 8)
    profile = make_profile(kv_budget_tokens=20, prefill_s_per_token=0.0)
    found: list[Event] = []
    simulate(trace, "topas-base", profile, record=lambda event, _: found.append(event))
    event = found[0]

    def cost(drain: float) -> float:
        settled = replace(event.params, lookahead=Lookahead(tail=0.0, drain=drain))
        case = case_of(replace(event, params=settled))
        scratch, candidates = room_for(case)
        row = candidates.taken[0]
        status, out = case.situation.status, case.out[0]
        count = kernel.admit_by(kernel.LPM, -1, 0, status, case.situation, scratch, row)
        return float(kernel.play(kernel.LPM, status, row, count, case.situation, scratch, out, kernel.NEVER))

    last_s = simulate(trace, "lpm", profile).metrics["makespan_s"]
    assert cost(2.0) - cost(0.0) == pytest.approx(2.0 * last_s, rel=0.05)


def test_a_stage_that_waits_for_a_tool_is_expected_to_go_on() -> None:
    """A round whose tool runs is no request yet; the rollout lets it come at once rather than never."""
    stages = {
        "a": Stage("A", (ask(10, 5, tool_s=3.0), ask(10, 5))),
        "b": Stage("B", (ask(10, 200),)),
        "c": Stage("C", (ask(10, 5),), ("a", "b")),
    }
    trace = make_trace(dict.fromkeys("ABC", 30), *[(1.0 * k, stages) for k in range(6)])
    found: list[Event] = []
    simulate(trace, "topas", make_profile(), record=lambda event, _: found.append(event))
    ghosts = 0
    for event in found:
        situation = case_of(event).situation
        for node in np.flatnonzero(situation.ghost):
            assert situation.status[node] == kernel.FUTURE
            assert situation.stage_missing[situation.stage[node]] == 0
            ghosts += 1
    assert ghosts > 0
