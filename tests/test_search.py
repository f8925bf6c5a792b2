"""Search: what it may choose, how good the choice is, and which step of Algorithm 1 finds it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import NS, Raw, Reference, events, make_event, many, shuffled
from support_search import Search, State

from topas.decision import Decision
from topas.event import Event
from topas.feasible import violations
from topas.formats import event_of
from topas.online.search import select
from topas.score import decision_on, score


def decide(raw: Raw, **params: float) -> Decision:
    """Return the decision for an event, with some parameters changed."""
    return select(event_of(raw | {"params": raw["params"] | params}))


def second_opinion(raw: Raw, **parts: bool) -> State | None:
    """Return what the independent implementation selects."""
    return Search(Reference(raw), **parts).run()


def agrees(raw: Raw) -> None:
    """Assert that both implementations decide alike, order of admission and all terms included."""
    decision, state = select(event_of(raw)), second_opinion(raw)
    if state is None:
        assert (decision.admit, decision.preempt) == ((), ())
        return
    assert (decision.admit, decision.preempt) == (state.admit, state.preempt)
    terms, parts = decision.terms, state.parts
    assert abs(terms.admit_ns - parts.admit) <= Reference(raw).unsure_ns(state.admit)
    assert (terms.move_ns, terms.redo_ns, terms.revoke_ns) == (parts.move, parts.redo, parts.revoke)
    assert terms.reuse_ns == parts.reuse


# -------------------------------------------------------------------------- what a decision always is


def assert_sound(raw: Raw, event: Event) -> None:
    """Assert that a choice is legal, judged by the one score, credited in full, and not too good to be true.

    A state that keeps what runs exists unless the budget or the batch limit were shrunk below it; then at
    least preempting everything is among the candidates, if all prefix sets are packed and K allows it.
    """
    decision, reference = select(event), Reference(raw)
    pool = reference.agents_of(reference.known)
    if reference.feasible((), ()) or (len(pool) <= event.params.M and not event.params.K):
        assert violations(event, decision) == []
        best = reference.optimum()
        assert best is not None
        assert decision.terms.score_ns <= best + reference.unsure_ns(decision.admit)
    if reference.feasible((), ()) and not reference.chosen(decision.admit, decision.preempt):
        assert not any(reference.chosen(*state) for state in reference.states())
    assert decision.terms == score(event, decision.admit, decision.preempt)
    assert decision.credits_ns == decision_on(event, decision.admit, decision.preempt).credits_ns
    assert sum(decision.credits_ns) == decision.terms.admit_ns
    assert len(decision.credits_ns) == len(decision.admit)
    assert all(credit >= 0 for credit in decision.credits_ns)


@many(300)
@given(events())
def test_a_choice_is_feasible_rightly_scored_and_never_above_the_optimum(raw: Raw) -> None:
    assert_sound(raw, event_of(raw))


@many(60)
@given(st.one_of(events(most_waiting=0), events(most_running=0), events(agent_counts=[1])))
def test_so_it_is_with_nothing_waiting_or_running_and_with_one_agent(raw: Raw) -> None:
    assert_sound(raw, event_of(raw))


@many(100)
@given(events(), st.integers(0, 999))
def test_the_same_event_in_any_order_gets_the_same_decision(raw: Raw, seed: int) -> None:
    first = select(event_of(raw))
    assert select(event_of(raw)) == first
    assert select(event_of(shuffled(raw, seed))) == first


def test_an_empty_event_asks_for_nothing() -> None:
    raw = make_event(budget=10, agents="A=5", tasks={}, resident="A", reuse={"A": 3})
    assert select(event_of(raw)) == Decision((), (), (), select(event_of(raw)).terms)
    assert select(event_of(raw)).terms.score_ns == 0


# --------------------------------------------------------------------------- the second implementation


@many(300)
@given(events(pool_limits=[0, 2, 6]))
def test_an_independent_implementation_decides_alike(raw: Raw) -> None:
    agrees(raw)


@many(100)
@given(events(most_waiting=9, most_running=4, agent_counts=[8, 7, 6, 5], pool_limits=[0, 5]))
def test_so_it_does_in_larger_pools(raw: Raw) -> None:
    agrees(raw)


@pytest.mark.parametrize("most", [0, 6])
@pytest.mark.parametrize("budget", [150, 260, 400])
def test_so_it_does_for_a_task_with_more_ready_requests_than_the_memo_holds(budget: int, most: int) -> None:
    """Thirteen ready requests: eleven branches, one of them with three requests, one with nothing left."""
    branches = "".join(f" s{k:02}={0 if k == 4 else 20 - k % 6}" for k in range(11))
    waiting = [f"r{k:02} t.s{k:02} {'ABC'[k % 3]} {10 + 7 * (k % 4)} {3 + k % 5}" for k in range(11)]
    waiting += ["x t.s00 A 12 4", "y t.s00 A 0 4"]
    raw = make_event(
        budget=budget,
        agents="A=40 B=20 C=30",
        tasks={"t": f"z=0{branches} end<s01,s02=3"},
        waiting=waiting,
        running=["q t.s01 B 10 5"],
        resident="B",
        M=most,
    )
    agrees(raw)
    event = event_of(raw)
    assert violations(event, select(event)) == []


# ------------------------------------------------------------------------ where greedy must be optimal


@st.composite
def greedy_is_optimal(draw: st.DrawFn) -> Raw:
    """Draw an event in which the best state is among those that the packs emit.

    Every task is a chain with one ready request, so gains do not depend on each other, and all requests
    reserve alike, so the pack under R takes the largest gains that leave a place for each prefix of R.
    Either nothing is moved for any choice (all prefixes resident or free to move), where more is never
    worse; or all is moved (none resident), where in the best state every gain exceeds the cost that all
    share, so that state is the top of the pack's order. Nothing runs; all prefix sets are enumerated.
    """
    agents = ["A", "B", "C", "D"][: draw(st.integers(1, 4))]
    count, reserve = draw(st.integers(1, 5)), draw(st.sampled_from([1, 10, 30]))
    setting = draw(st.sampled_from(["resident", "free", "cold"]))
    numbers = st.integers(1, 900).map(lambda x: x / 100)
    tasks = {
        f"t{k}": f"@{draw(st.integers(0, 9))} a={draw(numbers)} b<a={draw(numbers)}" for k in range(count)
    }
    raw = make_event(
        budget=draw(st.integers(0, 400)),
        agents=" ".join(f"{name}={draw(st.integers(0, 100))}" for name in agents),
        tasks=tasks,
        waiting=[
            f"r{k} t{k}.a {draw(st.sampled_from(agents))} {reserve} {draw(numbers)}" for k in range(count)
        ],
        resident=" ".join(agents) if setting == "resident" else "",
        reuse={name: draw(st.integers(0, 3)) for name in agents} if setting == "resident" else {},
        time=9.0,
        rho=draw(st.sampled_from([0.0, 0.5])),
        K=draw(st.sampled_from([0, 0, 1, 2, 3])),
        swap_s_per_token=0.0 if setting == "free" else draw(st.sampled_from([0.001, 0.01, 0.05])),
    )
    raw["params"]["max_running"] = draw(st.sampled_from([0, 0, 2, 3]))
    return raw


@many(200)
@given(greedy_is_optimal())
def test_the_search_is_optimal_where_greedy_must_be(raw: Raw) -> None:
    reference = Reference(raw)
    decision = select(event_of(raw))
    best = reference.optimum()
    assert best is not None
    assert abs(decision.terms.score_ns - best) <= reference.unsure_ns(decision.admit)


# ---------------------------------------------------------------- each step of Algorithm 1 has its event


def test_pairs_find_two_branches_that_pay_only_together() -> None:
    """Branches of 10 s at B and C: one alone gains nothing and moves 0.5 s; both gain 10 s and move 1 s."""
    raw = make_event(
        budget=1000,
        agents="A=50 B=50 C=50",
        tasks={"t": "a=5", "u": "b=10 c=10"},
        waiting=["rb u.b B 10 10", "rc u.c C 10 10"],
        running=["r0 t.a A 10 5"],
        resident="A",
    )
    for most in (0, 1, 6):
        decision = decide(raw, M=most)
        assert (decision.admit, decision.preempt) == (("rb", "rc"), ())
        assert decision.terms.score_ns == 9 * NS
    raw["params"]["M"] = 0
    without = second_opinion(raw, pairs=False)
    assert without is not None
    assert (without.admit, without.parts.score) == ((), 0)


def test_single_growth_goes_on_after_a_pair() -> None:
    """Branches of 10, 10 and 7 s, cold: no single pays, B and C give 3 - 1 s, D then makes it 10 - 1.5 s."""
    raw = make_event(
        budget=1000,
        agents="B=50 C=50 D=50",
        tasks={"u": "b=10 c=10 d=7"},
        waiting=["rb u.b B 10 10", "rc u.c C 10 10", "rd u.d D 10 10"],
    )
    for most in (0, 1, 6):
        decision = decide(raw, M=most)
        assert set(decision.admit) == {"rb", "rc", "rd"}
        assert decision.terms.score_ns == 8.5 * NS


def test_pairs_are_tried_once() -> None:
    """Two tasks of two branches each: growth takes the pair worth 10 - 1 s and does not try the second.

    All four prefixes are worth 18 s and delay both tasks by 2 s: the enumeration finds 14 s.
    """
    raw = make_event(
        budget=1000,
        agents="B=50 C=50 D=50 E=50",
        tasks={"u": "b=10 c=10", "v": "d=8 e=8"},
        waiting=["rb u.b B 10 10", "rc u.c C 10 10", "rd v.d D 10 8", "re v.e E 10 8"],
    )
    for most in (0, 3):
        grown = decide(raw, M=most)
        assert (grown.admit, grown.terms.score_ns) == (("rb", "rc"), 9 * NS)
    for most in (4, 6):  # a pool of exactly M agents is enumerated
        enumerated = decide(raw, M=most)
        assert (set(enumerated.admit), enumerated.terms.score_ns) == ({"rb", "rc", "rd", "re"}, 14 * NS)


def test_growth_takes_the_first_agent_by_name_of_equally_good_ones() -> None:
    """A and B bring 5 s each and do not fit together; C's 3 s fit beside A alone."""
    raw = make_event(
        budget=130,
        agents="A=50 B=80 C=50",
        tasks={"t": "a=5", "u": "b=5", "v": "c=3"},
        waiting=["ra t.a A 10 5", "rb u.b B 10 5", "rc v.c C 10 3"],
        swap_s_per_token=0.0,
    )
    for most in (0, 6):
        decision = decide(raw, M=most)
        assert (decision.resident, decision.terms.score_ns) == (("A", "C"), 8 * NS)


def test_a_swap_finds_the_prefix_that_must_replace_another() -> None:
    """A and B do not fit together; B's request gains 20 s for 1 s of moving, 1 s redone and 2 s of credit."""
    raw = make_event(
        budget=100,
        agents="A=50 B=50",
        tasks={"t": "a=5", "u": "b=20"},
        waiting=["r1 u.b B 40 20"],
        running=["r0 t.a A 40 5 generated=100 credit=2"],
        resident="A",
    )
    for most in (0, 1, 6):
        decision = decide(raw, M=most)
        assert (decision.admit, decision.preempt) == (("r1",), ("r0",))
        assert decision.terms.score_ns == 16 * NS
    raw["params"]["M"] = 0
    without = second_opinion(raw, first_repairs=False, last_repairs=False)
    assert without is not None
    assert (without.admit, without.preempt, without.parts.score) == ((), (), 0)


def test_a_drop_makes_room_under_the_prefix_that_stays() -> None:
    """All 200 tokens are taken; without B and its request two of A gain 10 s each and 1 s is redone."""
    raw = make_event(
        budget=200,
        agents="A=50 B=50",
        tasks={"t": "a=5", "u": "a=10", "v": "b=5", "w": "a=10"},
        waiting=["r1 u.a A 50 10", "r2 w.a A 50 10"],
        running=["q1 t.a A 50 5", "q2 v.b B 50 5 generated=100"],
        resident="A B",
    )
    for most in (0, 1, 6):
        decision = decide(raw, M=most)
        assert (decision.admit, decision.preempt) == (("r1", "r2"), ("q2",))
        assert decision.terms.score_ns == 19 * NS
    raw["params"]["M"] = 0
    without = second_opinion(raw, first_repairs=False, last_repairs=False)
    assert without is not None
    assert (without.admit, without.preempt, without.parts.score) == ((), (), 0)


def test_a_repair_of_the_resident_set_finds_what_growth_walks_away_from() -> None:
    """Growth adds B to A for 2 - 0.5 s. C fits only alone, and gains 20 - 1 s: a swap from {A} alone."""
    raw = make_event(
        budget=200,
        agents="A=50 B=50 C=50",
        tasks={"t": "a=5", "u": "b=2", "v": "c=20"},
        waiting=["rb u.b B 10 2", "rc v.c C 120 20"],
        running=["q t.a A 10 5"],
        resident="A",
    )
    for most in (0, 2, 6):
        decision = decide(raw, M=most)
        assert (decision.admit, decision.preempt) == (("rc",), ("q",))
        assert decision.terms.score_ns == 19 * NS
    raw["params"]["M"] = 0
    without = second_opinion(raw, first_repairs=False)
    assert without is not None
    assert (without.admit, without.parts.score) == (("rb",), 1.5 * NS)


def test_a_repair_of_the_final_set_undoes_an_early_step_of_growth() -> None:
    """Cold start, moves are free, A and B fit, B and C fit, all three do not.

    Growth takes A (5 s), then B (1 s more). B with C completes both branches of u: 10 + 1 s.
    """
    raw = make_event(
        budget=190,
        agents="A=100 B=40 C=60",
        tasks={"t": "a=5", "u": "b=10 c=10", "v": "b=1"},
        waiting=["ra t.a A 10 5", "rb u.b B 10 10", "rc u.c C 10 10", "rv v.b B 10 1"],
        swap_s_per_token=0.0,
    )
    for most in (0, 2, 6):
        decision = decide(raw, M=most)
        assert set(decision.admit) == {"rb", "rc", "rv"}
        assert decision.terms.score_ns == 11 * NS
    raw["params"]["M"] = 0
    without = second_opinion(raw, last_repairs=False)
    assert without is not None
    assert without.parts.score == 6 * NS


def test_growth_starts_from_the_resident_prefixes_that_can_still_be_used() -> None:
    """No request wants Y or Z. The other three prefixes hold equal branches: no pair of them gains."""
    raw = make_event(
        budget=400,
        agents="A=50 B=50 C=50 Y=20 Z=90",
        tasks={"t": "a=6 b=6 c=6"},
        waiting=["ra t.a A 10 6", "rb t.b B 10 6", "rc t.c C 10 6"],
        resident="A B C Y Z",
    )
    for most in (0, 6):
        decision = decide(raw, M=most)
        assert (decision.resident, decision.terms.score_ns) == (("A", "B", "C"), 6 * NS)


@pytest.mark.parametrize("running", [[], ["q t.d D 10 5"]])
def test_growth_does_not_stall_on_resident_prefixes_that_cannot_all_be_used(running: list[str]) -> None:
    """A, B and C are resident and idle. Any two of their requests take more than the budget: one must run."""
    raw = make_event(
        budget=230,
        agents="A=50 B=50 C=50 D=0",
        tasks={"t": "a=5 d=3", "u": "@1 a=7", "v": "a=5"},
        waiting=["ra t.a A 120 5", "rb u.a B 120 7", "rc v.a C 120 5"],
        running=running,
        resident="A B C D",
        time=1.0,
    )
    for most in (0, 2, 6):
        decision = decide(raw, M=most)
        assert (decision.admit, decision.preempt) == (("rb",), ())


def test_what_fits_beside_the_running_requests_alone_is_a_candidate() -> None:
    """B and C are resident and idle: using both gains 2 s. Without either, A's large request gains 20 s."""
    raw = make_event(
        budget=220,
        agents="A=50 B=50 C=50",
        tasks={"t": "a=5", "u": "a=20", "v": "b=1", "w": "c=1"},
        waiting=["ra u.a A 150 20", "rb v.b B 20 1", "rc w.c C 20 1"],
        running=["q t.a A 10 5"],
        resident="A B C",
    )
    for most in (0, 2, 6):
        decision = decide(raw, M=most)
        assert (decision.admit, decision.preempt) == (("ra",), ())
        assert decision.terms.score_ns == 20 * NS


def test_the_incumbent_is_kept_if_nothing_beats_it() -> None:
    """Three idle resident prefixes with dear or useless requests: what runs, runs on."""
    raw = make_event(
        budget=130,
        agents="A=50 B=50 C=50 D=50",
        tasks={"t": "a=5", "u": "b=2 c=9 d=1"},
        waiting=["rb u.b B 40 2", "rd u.d D 40 1"],
        running=["r0 t.a A 40 5 generated=500 credit=4"],
        resident="A B D",
    )
    for most in (0, 6):
        decision = decide(raw, M=most)
        assert (decision.resident, decision.admit, decision.preempt) == (("A",), (), ())


def test_nothing_is_changed_if_no_state_can_be_reached() -> None:
    """The budget shrank below what runs, and two requests may not be preempted at once."""
    raw = make_event(
        budget=50,
        agents="A=40",
        tasks={"t": "a=5", "u": "a=5"},
        running=["q1 t.a A 40 5", "q2 u.a A 40 5"],
        resident="A",
        K=1,
    )
    decision = select(event_of(raw))
    assert (decision.resident, decision.admit, decision.preempt) == (("A",), (), ())
    assert violations(event_of(raw), decision)
    assert select(event_of(raw | {"params": raw["params"] | {"K": 2}})).preempt == ("q1", "q2")


def test_a_batch_limit_below_what_runs_preempts_the_cheaper_side() -> None:
    """Two run and one may: A's request revokes 1 s, B's 2 s."""
    raw = make_event(
        budget=500,
        agents="A=50 B=50",
        tasks={"t": "a=5", "u": "b=5"},
        running=["q1 t.a A 40 5 credit=1", "q2 u.b B 40 5 credit=2"],
        resident="A B",
        max_running=1,
    )
    for most in (0, 6):
        decision = decide(raw, M=most)
        assert (decision.resident, decision.preempt) == (("B",), ("q1",))
        assert decision.terms.score_ns == -NS


def test_an_empty_gpu_takes_even_a_request_that_costs_more_than_it_gains() -> None:
    """An empty state is the last resort: 1 s is gained for 5 s of moving, else nothing would ever run."""
    raw = make_event(budget=1000, agents="A=500", tasks={"t": "a=1"}, waiting=["r t.a A 10 1"])
    for most in (0, 6):
        decision = decide(raw, M=most)
        assert (decision.admit, decision.terms.score_ns) == (("r",), -4 * NS)


@many(60)
@given(events(most_running=2))
def test_a_cap_counts_admissions_and_preemptions_apart(raw: Raw) -> None:
    event = event_of(raw)
    for cap in (1, 2):
        decision = select(replace(event, params=replace(event.params, K=cap)))
        assert len(decision.admit) <= cap
        assert len(decision.preempt) <= cap
