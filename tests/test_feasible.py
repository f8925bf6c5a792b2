"""Planted violations, each of which the checker must catch and name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import Raw, Reference, events, make_event, many

from topas.decision import Decision, Terms
from topas.event import Event
from topas.feasible import violations
from topas.formats import event_of

EVENT = event_of(
    make_event(
        budget=330,
        agents="A=100 B=50 C=10",
        tasks={"t": "a=5 b=5 c=5"},
        waiting=["w1 t.a A 30 5", "w2 t.b B 30 5", "w3 t.c C 30 5"],
        running=["q1 t.a A 40 5", "q2 t.b B 40 5"],
        resident="A B",
    )
)


def decision(resident: str = "", admit: str = "", preempt: str = "") -> Decision:
    return Decision(tuple(resident.split()), tuple(admit.split()), tuple(preempt.split()), Terms())


def capped(**params: int) -> Event:
    return replace(EVENT, params=replace(EVENT.params, **params))


@pytest.mark.parametrize(
    "good",
    [
        decision("A B"),
        decision("B A", "w1"),
        decision("A B", "w2 w1"),
        decision("A", "w1", "q2"),
        decision("C", "w3", "q2 q1"),
        decision("A B C", "w3"),
        decision("", "", "q1 q2"),
    ],
    ids=str,
)
def test_what_can_be_carried_out_is_feasible(good: Decision) -> None:
    assert violations(EVENT, good) == []


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        # 100 + 50 + 10 of prefixes, 40 + 40 of running, 30 + 30 + 30 to admit.
        (decision("A B C", "w1 w2 w3"), ["budget: 330 tokens exceed 329"]),
        (decision("A B C"), ["resident: C is idle"]),
        (decision("A B", "", "q2"), ["resident: B is idle"]),
        (decision("A"), ["resident: B is missing"]),
        (decision("A B", "w3"), ["resident: C is missing"]),
        (decision("A B X"), ["resident: X is idle"]),
        (decision("A A B"), ["resident: an agent is named twice"]),
        (decision("A B", "x"), ["admit: x is not among the event's requests"]),
        (decision("A B", "q1"), ["admit: q1 is not among the event's requests"]),
        (decision("A B", "", "w1"), ["preempt: w1 is not among the event's requests"]),
        (decision("A B", "", "x"), ["preempt: x is not among the event's requests"]),
        (decision("A B", "w1 w1"), ["admit: w1 is named twice"]),
        (decision("B", "", "q1 q1"), ["preempt: q1 is named twice"]),
        (decision("A B", "q1", "q1"), ["admit: q1 is not among the event's requests"]),
        (decision("A C", "w3"), ["resident: B is missing"]),
    ],
    ids=str,
)
def test_a_planted_violation_is_caught(bad: Decision, found: list[str]) -> None:
    assert violations(replace(EVENT, budget_tokens=329), bad) == found


def test_the_budget_counts_a_shared_prefix_once_and_may_be_used_up() -> None:
    """100 + 50 of prefixes, 40 + 40 running, 30 admitted at A: 260 tokens."""
    assert violations(replace(EVENT, budget_tokens=260), decision("A B", "w1")) == []
    assert violations(replace(EVENT, budget_tokens=259), decision("A B", "w1")) == [
        "budget: 260 tokens exceed 259"
    ]


def test_the_caps_count_admissions_and_preemptions_apart() -> None:
    assert violations(capped(K=1), decision("A", "w1", "q2")) == []
    assert violations(capped(K=1), decision("A B", "w1 w2")) == ["admit: 2 requests exceed K = 1"]
    assert violations(capped(K=1), decision("", "", "q1 q2")) == ["preempt: 2 requests exceed K = 1"]
    assert violations(capped(K=1), decision("A B", "w1 w2", "q1 q2")) == [
        "admit: 2 requests exceed K = 1",
        "preempt: 2 requests exceed K = 1",
    ]
    assert violations(capped(K=2), decision("A B", "w1 w2", "q1 q2")) == []
    assert violations(capped(K=0), decision("A B C", "w1 w2 w3")) == []


def test_the_batch_limit_counts_all_that_would_run() -> None:
    assert violations(capped(max_running=3), decision("A B", "w1")) == []
    assert violations(capped(max_running=2), decision("A B", "w1")) == [
        "running: 3 requests exceed the batch limit 2"
    ]
    assert violations(capped(max_running=2), decision("A", "w1", "q2")) == []


def test_several_violations_are_all_listed() -> None:
    event = replace(capped(K=1, max_running=3), budget_tokens=200)
    assert violations(event, decision("A X", "w1 w2")) == [
        "resident: X is idle",
        "resident: B is missing",
        "budget: 290 tokens exceed 200",
        "admit: 2 requests exceed K = 1",
        "running: 4 requests exceed the batch limit 3",
    ]


@many(150)
@given(events(), st.data())
def test_feasible_is_what_the_paper_says(raw: Raw, data: st.DataObject) -> None:
    reference, event = Reference(raw), event_of(raw)

    def some(names: list[str]) -> list[str]:
        return data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []

    admit, preempt = some(list(reference.waiting)), some(list(reference.running))
    resident = reference.agents_of(reference.chosen(admit, preempt))
    judged = violations(event, Decision(tuple(sorted(resident)), tuple(admit), tuple(preempt), Terms()))
    assert (judged == []) == reference.feasible(admit, preempt)
    other = data.draw(st.frozensets(st.sampled_from(sorted(event.agents))))
    if other != resident:
        assert violations(event, Decision(tuple(sorted(other)), tuple(admit), tuple(preempt), Terms()))
