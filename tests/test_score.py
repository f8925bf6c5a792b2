"""The score is the paper's, term by term (Eq. 3, 6-13)."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import NS, Reference, events, expected_path, make_event, many, shuffled

from topas.formats import event_of
from topas.problem import compile_event
from topas.score import conditional_gains_ns, decision_on, joint_gain_ns, score, score_state


def some_of(names: list[str]) -> st.SearchStrategy[list[str]]:
    """Return a strategy of subsets in any order."""
    return st.lists(st.sampled_from(names), unique=True) if names else st.just([])


@many(250)
@given(events(), st.data())
def test_every_term_is_that_of_the_reference(raw: dict, data: st.DataObject) -> None:
    """Exact to the nanosecond.

    Durations of the random events are multiples of 10 ms, so an expected path is a multiple of 1/3^n ns:
    it never lies half way between two nanoseconds and has one right rounding. The aged gain is a product
    with an irrational number; where that falls within 0.001 ns of a half, 1 ns either way is right.
    """
    reference, event = Reference(raw), event_of(raw)
    for _ in range(3):
        admit = data.draw(some_of(list(reference.waiting)))
        preempt = data.draw(some_of(list(reference.running)))
        terms, expected = score(event, admit, preempt), reference.parts(admit, preempt)
        assert abs(terms.admit_ns - expected.admit) <= reference.unsure_ns(admit)
        assert terms.move_ns == expected.move
        assert terms.redo_ns == expected.redo
        assert terms.revoke_ns == expected.revoke
        assert terms.reuse_ns == expected.reuse
        assert terms.score_ns == expected.score + terms.admit_ns - expected.admit


@many(100)
@given(st.data())
def test_a_gain_of_any_durations_is_within_a_nanosecond(data: st.DataObject) -> None:
    """L before and L after are each rounded by at most half a nanosecond, so their difference by one."""
    seconds = st.floats(0, 1000, allow_nan=False)
    after = {"a": [], "b": [], "c": ["a", "b"]}
    samples = {name: data.draw(st.lists(seconds, min_size=1, max_size=3)) for name in after}
    service = data.draw(seconds)
    raw = make_event(budget=100, agents="A=0", tasks={"t": "a=1"}, waiting=["r t.a A 1 1"])
    raw["tasks"]["t"]["stages"] = {
        name: {"after": after[name], "residual_s": samples[name]} for name in after
    }
    raw["waiting"][0]["service_s"] = service
    whole = {name: [round(x * NS) for x in listed] for name, listed in samples.items()}
    exact = expected_path(after, whole, {}) - expected_path(after, whole, {"a": round(service * NS)})
    assert abs(score(event_of(raw), ["r"], []).admit_ns - exact) <= 1 + Fraction(1, 1000)


@many(80)
@given(events(), st.data())
def test_conditional_gains_add_up_to_the_joint_gain_in_any_order(raw: dict, data: st.DataObject) -> None:
    problem = compile_event(event_of(raw))
    chosen = data.draw(some_of(list(range(len(problem.waiting)))))
    admit_ns = score_state(problem, chosen, []).admit_ns
    for order in (chosen, chosen[::-1], data.draw(st.permutations(chosen))):
        gains = conditional_gains_ns(problem, order)
        assert sum(gains) == admit_ns
        assert all(gain >= 0 for gain in gains)


@many(80)
@given(events(), st.data())
def test_the_order_of_anything_does_not_matter(raw: dict, data: st.DataObject) -> None:
    reference = Reference(raw)
    admit, preempt = data.draw(some_of(list(reference.waiting))), data.draw(some_of(list(reference.running)))
    terms = score(event_of(raw), admit, preempt)
    assert score(event_of(raw), data.draw(st.permutations(admit)), preempt[::-1]) == terms
    assert score(event_of(shuffled(raw, data.draw(st.integers(0, 99)))), admit, preempt) == terms


@many(80)
@given(events(), st.data())
def test_no_term_is_negative_and_costs_are_never_aged(raw: dict, data: st.DataObject) -> None:
    event, reference = event_of(raw), Reference(raw)
    admit, preempt = data.draw(some_of(list(reference.waiting))), data.draw(some_of(list(reference.running)))
    young = score(replace(event, params=replace(event.params, rho=0.0)), admit, preempt)
    old = score(replace(event, params=replace(event.params, rho=3.0)), admit, preempt)
    for terms in (young, old):
        assert min(terms.admit_ns, terms.move_ns, terms.redo_ns, terms.revoke_ns, terms.reuse_ns) >= 0
    assert old.admit_ns >= young.admit_ns
    assert replace(old, admit_ns=0) == replace(young, admit_ns=0)


@many(80)
@given(events(), st.data())
def test_credits_of_a_decision_are_its_conditional_gains(raw: dict, data: st.DataObject) -> None:
    event = event_of(raw)
    problem = compile_event(event)
    admit = data.draw(some_of(list(range(len(problem.waiting)))))
    decision = decision_on(event, [problem.waiting[k].id for k in admit])
    assert decision.credits_ns == conditional_gains_ns(problem, admit)
    assert sum(decision.credits_ns) == decision.terms.admit_ns
    for k, credit in zip(admit, decision.credits_ns, strict=True):
        tasks = problem.tables.waiting["task"]
        task = int(tasks[k])
        earlier = [x for x in admit[: admit.index(k)] if tasks[x] == task]
        assert credit == joint_gain_ns(problem, task, [*earlier, k]) - joint_gain_ns(problem, task, earlier)


def test_an_aged_gain_by_hand() -> None:
    """Waited 10 (e - 1) s over H_age = 10 s with rho = 1: g = 1 + ln e = 2; a gain of 3 s counts 6 s."""
    raw = make_event(
        budget=100, agents="A=0", tasks={"t": "a=5"}, waiting=["r t.a A 1 3"], rho=1.0, time=10 * (math.e - 1)
    )
    assert score(event_of(raw), ["r"], []).admit_ns == 6 * NS


def test_a_task_that_arrives_now_or_later_is_not_aged() -> None:
    for arrival in (4, 9):
        raw = make_event(
            budget=100,
            agents="A=0",
            tasks={"t": f"@{arrival} a=5"},
            waiting=["r t.a A 1 3"],
            rho=1.0,
            time=4.0,
        )
        assert score(event_of(raw), ["r"], []).admit_ns == 3 * NS


def test_each_delayed_task_is_charged_the_whole_move_once() -> None:
    """B leaves (50 tokens) and A enters (100): 1.5 s for each of two tasks; the third task has none at A."""
    raw = make_event(
        budget=1000,
        agents="A=100 B=50 C=7",
        resident="B C",
        tasks={"t": "a=5", "u": "a=5", "v": "c=5"},
        waiting=["r1 t.a A 1 1", "r2 t.a A 1 1", "r3 u.a A 1 1", "r4 v.c C 1 1"],
    )
    terms = score(event_of(raw), ["r1", "r2", "r3", "r4"], [])
    assert terms.move_ns == 3 * NS


def test_a_request_that_does_not_wait_or_run_is_refused() -> None:
    raw = make_event(budget=100, agents="A=0", tasks={"t": "a=5"}, waiting=["r t.a A 1 3"])
    with pytest.raises(KeyError):
        score(event_of(raw), ["x"], [])
    with pytest.raises(KeyError):
        score(event_of(raw), [], ["r"])
