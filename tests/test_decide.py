"""``topas decide`` on events whose answer is worked out by hand.

Unless a test says otherwise, moving a prefix takes 10 ms a token, decoding 10 ms a token, reuse counts
once (beta = 1) and tasks do not age (rho = 0).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_events import Raw, make_event

from topas.cli import main
from topas.policies import policy_names

Decide = Callable[..., dict[str, Any]]
DOUBLED = {"time": 10 * (math.e - 1), "age_scale_s": 10.0, "rho": 1.0}
"""A task that arrived at 0 has waited 10 (e - 1) s: g = 1 + ln(1 + (e - 1)) = 2."""


@pytest.fixture
def decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Decide:
    """Return a function that writes an event file, runs the command on it and returns the decision."""

    def run(raw: Raw, policy: str = "topas-paper") -> dict[str, Any]:
        path = tmp_path / "event.json"
        path.write_text(json.dumps(raw))
        assert main(["decide", str(path), "--policy", policy, "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        decision: dict[str, Any] = json.loads(captured.out)
        assert set(decision) == {"format", "resident", "admit", "preempt", "score_s", "terms"}
        assert decision["format"] == "topas-decision/1"
        return decision

    return run


def terms(admit: float = 0, move: float = 0, redo: float = 0, revoke: float = 0, reuse: float = 0) -> dict:
    return {"admit_s": admit, "move_s": move, "redo_s": redo, "revoke_s": revoke, "reuse_s": reuse}


# ------------------------------------------------------------------------------------------- progress


def test_a_chain_gains_what_its_current_stage_loses(decide: Decide) -> None:
    """E[Z] = (2 + 10) / 2 = 6 and E[(Z - 5)+] = (0 + 5) / 2 = 2.5; the 4 s behind stay: 3.5 s gained.

    Loading 100 tokens takes 1 s, for one task.
    """
    raw = make_event(budget=1000, agents="A=100", tasks={"t": "a=2|10 b<a=4"}, waiting=["r t.a A 50 5"])
    decision = decide(raw)
    assert (decision["resident"], decision["admit"], decision["preempt"]) == (["A"], ["r"], [])
    assert decision["terms"] == terms(admit=3.5, move=1.0)
    assert decision["score_s"] == 2.5


def test_the_expectation_is_outside_the_maximum(decide: Decide) -> None:
    """Branch b is 0 or 10, c is 6: LP is 6 or 10, L = 8. Completing b leaves 6: 2 s are gained.

    A path fixed from means (5 against 6) would see none.
    """
    raw = make_event(budget=1000, agents="B=0", tasks={"t": "b=0|10 c=6"}, waiting=["r t.b B 50 10"])
    assert decide(raw)["terms"] == terms(admit=2.0)


def test_a_branch_that_is_no_bottleneck_gains_exactly_nothing(decide: Decide) -> None:
    """The path is c then d, 9 + 2 s. There is room for one request: c's, which takes 5 s off it."""
    tasks = {"t": "a=0 b<a=4 c<a=9 d<b,c=2"}
    waiting = ["rb t.b B 400 4", "rc t.c B 400 5"]
    raw = make_event(budget=500, agents="B=100", tasks=tasks, waiting=waiting, resident="B")
    decision = decide(raw)
    assert (decision["admit"], decision["terms"]) == (["rc"], terms(admit=5.0))
    alone = make_event(budget=500, agents="B=100", tasks=tasks, waiting=waiting[:1], resident="B")
    decision = decide(alone)
    assert (decision["admit"], decision["terms"]) == (["rb"], terms(admit=0.0))


def test_two_equal_branches_gain_only_together(decide: Decide) -> None:
    """Each alone leaves the other's 6 s; both leave nothing. The first is a zero-gain choice."""
    raw = make_event(
        budget=500, agents="B=100", tasks={"t": "b=6 c=6 d<b,c=2"}, waiting=["rb t.b B 50 6", "rc t.c B 50 6"]
    )
    decision = decide(raw)
    # 6 s gained; the move of 1 s is charged once, for the one task.
    assert (decision["admit"], decision["terms"]) == (["rb", "rc"], terms(admit=6.0, move=1.0))


def test_two_requests_of_a_stage_add_up(decide: Decide) -> None:
    """Of 10 s left, the first takes 6 and the second the other 4; a third gains nothing but runs too."""
    waiting = ["r1 t.a A 10 6", "r2 t.a A 10 6", "r3 t.a A 10 6"]
    raw = make_event(budget=500, agents="A=10", tasks={"t": "a=10"}, waiting=waiting, resident="A")
    decision = decide(raw)
    assert (decision["admit"], decision["terms"]) == (["r1", "r2", "r3"], terms(admit=10.0))


def test_the_pack_takes_the_largest_gain_per_reserved_token(decide: Decide) -> None:
    """20 s for 100 tokens against 12 s for 50 and 11 s for 50: the order is by ratio; 100 tokens fit."""
    raw = make_event(
        budget=200,
        agents="A=100",
        tasks={"t": "a=20", "u": "a=11", "v": "a=12"},
        waiting=["r1 t.a A 100 20", "r2 u.a A 50 11", "r3 v.a A 50 12"],
        resident="A",
    )
    decision = decide(raw)
    assert (decision["admit"], decision["terms"]) == (["r3", "r2"], terms(admit=23.0))


# ---------------------------------------------------------------------------------------------- moves


def test_a_move_that_costs_more_than_it_gains_is_not_made(decide: Decide) -> None:
    """B takes 2 s to load and its request gains 1 s; A's request runs on."""
    raw = make_event(
        budget=1000,
        agents="A=100 B=200",
        tasks={"t": "a=9", "u": "b=1"},
        waiting=["r1 u.b B 50 1"],
        running=["r0 t.a A 50 9"],
        resident="A",
    )
    decision = decide(raw)
    assert (decision["resident"], decision["admit"]) == (["A"], [])
    assert (decision["score_s"], decision["terms"]) == (0.0, terms())


def test_each_task_that_waits_for_an_incoming_prefix_is_charged(decide: Decide) -> None:
    """A goes out and B comes in, 1 + 2 s, for each of two tasks of B; v's request is at C, resident."""
    raw = make_event(
        budget=1000,
        agents="A=100 B=200 C=100",
        tasks={"t": "b=10", "u": "b=10", "v": "c=1"},
        waiting=["r1 t.b B 50 9", "r2 t.b B 50 1", "r3 u.b B 50 10", "r4 v.c C 50 1"],
        resident="A C",
    )
    decision = decide(raw)
    # Gain per token: r3 and r1 before r2 and r4; the last two are alike, the earlier task first.
    assert decision["admit"] == ["r3", "r1", "r2", "r4"]
    assert decision["terms"] == terms(admit=21.0, move=6.0)


def test_an_idle_prefix_leaves_without_delaying_anyone(decide: Decide) -> None:
    """A's 100 tokens are written back; nobody waits for an incoming prefix, so nothing is charged."""
    raw = make_event(
        budget=1000, agents="A=100 B=100", tasks={"t": "b=4"}, waiting=["r t.b B 9 4"], resident="A B"
    )
    decision = decide(raw)
    assert (decision["resident"], decision["terms"]) == (["B"], terms(admit=4.0))


def test_a_prefix_set_that_does_not_fit_is_no_choice(decide: Decide) -> None:
    """Both prefixes take 400 of 500 tokens and both requests 120: one side only, the better one."""
    raw = make_event(
        budget=500,
        agents="A=200 B=200",
        tasks={"t": "a=8", "u": "b=9"},
        waiting=["r1 t.a A 60 8", "r2 u.b B 60 9"],
    )
    decision = decide(raw)
    assert (decision["resident"], decision["admit"]) == (["B"], ["r2"])
    assert decision["terms"] == terms(admit=9.0, move=2.0)
    # With 20 tokens more both fit: 8 + 9 s, and 4 s of moving for each of two tasks: 9 s against 7 s.
    decision = decide(raw | {"budget_tokens": 520})
    assert (decision["admit"], decision["terms"]) == (["r2", "r1"], terms(admit=17.0, move=8.0))


def test_room_is_kept_for_every_prefix_of_the_set(decide: Decide) -> None:
    """300 tokens are left beside both prefixes, of which 50 are held for B's smallest request.

    r1 has the largest ratio but takes 260: under A and B it is passed over for r2, r3 and r4, 19 s.
    Under A alone it gains 18 s, and r2 does not fit beside it.
    """
    raw = make_event(
        budget=500,
        agents="A=100 B=100",
        tasks={"t": "a=18", "u": "a=10", "v": "b=6", "w": "b=3"},
        waiting=["r1 t.a A 260 18", "r2 u.a A 150 10", "r3 v.b B 100 6", "r4 w.b B 50 3"],
        resident="A B",
    )
    decision = decide(raw)
    assert (decision["admit"], decision["terms"]) == (["r2", "r3", "r4"], terms(admit=19.0))


# ----------------------------------------------------------------------------------------- preemption


def preemption_event(gain: float) -> Raw:
    """Return an event in which B can come in for A: 1 + 1 s moved, 120 tokens redone, 3 s of credit."""
    return make_event(
        budget=200,
        agents="A=100 B=100",
        tasks={"t": "a=9", "u": f"b={gain}"},
        waiting=[f"r1 u.b B 50 {gain}"],
        running=["r0 t.a A 50 9 generated=120 credit=3"],
        resident="A",
    )


def test_a_preemption_that_pays(decide: Decide) -> None:
    """7 s gained - 2 moved - 1.2 redone - 3 revoked = 0.8 s."""
    decision = decide(preemption_event(7.0))
    assert (decision["resident"], decision["admit"], decision["preempt"]) == (["B"], ["r1"], ["r0"])
    assert decision["terms"] == terms(admit=7.0, move=2.0, redo=1.2, revoke=3.0)
    assert decision["score_s"] == 0.8


def test_a_preemption_that_does_not_pay(decide: Decide) -> None:
    """6 - 2 - 1.2 - 3 = -0.2 s."""
    decision = decide(preemption_event(6.0))
    assert (decision["resident"], decision["admit"], decision["preempt"]) == (["A"], [], [])
    assert decision["score_s"] == 0.0


def test_what_was_credited_and_generated_is_what_a_preemption_costs(decide: Decide) -> None:
    """Of the 6 s, only moving is left to pay when nothing was generated and no credit is stored."""
    raw = preemption_event(6.0)
    raw["running"][0] |= {"generated_tokens": 0, "credit_s": 0.0}
    decision = decide(raw)
    assert (decision["preempt"], decision["terms"]) == (["r0"], terms(admit=6.0, move=2.0))


# ----------------------------------------------------------------------------------------------- caps


def test_a_cap_on_admissions(decide: Decide) -> None:
    """Gains of 5, 4 and 3 s for as many tokens: the best K of them."""
    raw = make_event(
        budget=1000,
        agents="A=100",
        tasks={"t": "a=3", "u": "a=5", "v": "a=4"},
        waiting=["r1 t.a A 50 3", "r2 u.a A 50 5", "r3 v.a A 50 4"],
        resident="A",
    )
    for cap, admitted in ((1, ["r2"]), (2, ["r2", "r3"]), (3, ["r2", "r3", "r1"]), (0, ["r2", "r3", "r1"])):
        assert decide(raw | {"params": raw["params"] | {"K": cap}})["admit"] == admitted


def test_a_cap_on_preemptions(decide: Decide) -> None:
    """B needs both of A's requests gone: not allowed for K = 1."""
    raw = make_event(
        budget=200,
        agents="A=100 B=100",
        tasks={"t": "a=9", "u": "b=50"},
        waiting=["r1 u.b B 50 50"],
        running=["q1 t.a A 50 1", "q2 t.a A 50 1"],
        resident="A",
    )
    for cap, dropped in ((1, []), (2, ["q1", "q2"]), (0, ["q1", "q2"])):
        assert decide(raw | {"params": raw["params"] | {"K": cap}})["preempt"] == dropped


def test_a_cap_that_cannot_cover_a_prefix_set_rules_it_out(decide: Decide) -> None:
    """A and B bring 9 + 8 s but take two admissions: for K = 1 the better one alone."""
    raw = make_event(
        budget=1000,
        agents="A=10 B=10",
        tasks={"t": "a=9", "u": "b=8"},
        waiting=["r1 t.a A 50 9", "r2 u.b B 50 8"],
        K=1,
    )
    decision = decide(raw)
    assert (decision["resident"], decision["admit"]) == (["A"], ["r1"])


def test_the_batch_limit_counts_what_runs(decide: Decide) -> None:
    raw = make_event(
        budget=1000,
        agents="A=100",
        tasks={"t": "a=9", "u": "a=5", "v": "a=4"},
        waiting=["r1 u.a A 50 5", "r2 v.a A 50 4"],
        running=["r0 t.a A 50 9"],
        resident="A",
        max_running=2,
    )
    assert decide(raw)["admit"] == ["r1"]


# ------------------------------------------------------------------------------------ zero gains, ties


def test_zero_gain_choices_stay_with_a_task_in_the_pack(decide: Decide) -> None:
    """K = 2. Nothing gains at first: q is no bottleneck, p1 and p2 are equal branches.

    q's task is the earlier one, but u is already in the pack (r0 runs): p1, then p2 gains 6 s.
    """
    raw = make_event(
        budget=1000,
        agents="A=100",
        tasks={"t": "b=1 c=9", "u": "@1 b=6 c=6 e=2"},
        waiting=["q t.b A 50 1", "p1 u.b A 50 6", "p2 u.c A 50 4"],
        running=["r0 u.e A 50 2"],
        resident="A",
        K=2,
    )
    decision = decide(raw)
    # p1 leaves 6 s in c, p2 then takes 4 of them.
    assert (decision["admit"], decision["terms"]) == (["p1", "p2"], terms(admit=4.0))
    # Were r0 of task t, q would come first, and one admission of u gains nothing.
    raw["running"][0] |= {"task": "t", "stage": "c"}
    decision = decide(raw)
    assert (decision["admit"][0], decision["terms"]) == ("q", terms(admit=0.0))


def test_equal_scores_run_more_requests(decide: Decide) -> None:
    """The second request gains nothing and costs nothing."""
    raw = make_event(
        budget=1000,
        agents="A=100",
        tasks={"t": "a=5"},
        waiting=["r1 t.a A 50 5", "r2 t.a A 50 5"],
        resident="A",
    )
    decision = decide(raw)
    assert (decision["admit"], decision["score_s"]) == (["r1", "r2"], 5.0)


def test_equal_scores_move_fewer_tokens(decide: Decide) -> None:
    """Moves are free here; B is smaller, though A's task is earlier and A's name first."""
    raw = make_event(
        budget=200,
        agents="A=100 B=90",
        tasks={"t": "a=5", "u": "@1 b=5"},
        waiting=["r1 t.a A 50 5", "r2 u.b B 50 5"],
        swap_s_per_token=0.0,
        time=1.0,
    )
    assert decide(raw)["admit"] == ["r2"]
    raw["agents"]["B"]["prefix_tokens"] = 101
    assert decide(raw)["admit"] == ["r1"]


def test_more_running_counts_before_fewer_moved(decide: Decide) -> None:
    """Two requests at A, one at B, the same gain of 5 s in all; A moves more tokens, for nothing."""
    raw = make_event(
        budget=200,
        agents="A=100 B=20",
        tasks={"t": "a=5", "u": "b=5"},
        waiting=["r1 t.a A 50 4", "r2 t.a A 50 1", "r3 u.b B 150 5"],
        swap_s_per_token=0.0,
    )
    assert decide(raw)["admit"] == ["r1", "r2"]


def test_equal_states_take_the_earlier_task(decide: Decide) -> None:
    raw = make_event(
        budget=150,
        agents="A=100 B=100",
        tasks={"t": "@3 a=5", "u": "@1 b=5"},
        waiting=["r1 t.a A 50 5", "r2 u.b B 50 5"],
        time=3.0,
    )
    assert decide(raw)["admit"] == ["r2"]
    raw["tasks"]["u"]["arrival_s"] = 3.0  # at the same time: by the task's name
    assert decide(raw)["admit"] == ["r1"]


def test_equal_requests_of_a_task_go_by_id(decide: Decide) -> None:
    raw = make_event(
        budget=150,
        agents="A=100 B=100",
        tasks={"t": "a=5"},
        waiting=["r2 t.a A 50 5", "r1 t.a B 50 5", "r3 t.a A 50 5"],
    )
    decision = decide(raw)
    assert (decision["resident"], decision["admit"]) == (["B"], ["r1"])


# -------------------------------------------------------------------------------------- reuse, ablations


def test_reuse_keeps_the_prefix_that_downstream_work_will_need(decide: Decide) -> None:
    """Either agent's request gains 5 s and moves 1 s; two stages of B are about to be ready, worth 2 s."""
    raw = make_event(
        budget=150,
        agents="A=100 B=100",
        tasks={"t": "a=5", "u": "@1 b=5"},
        waiting=["r1 t.a A 50 5", "r2 u.b B 50 5"],
        reuse={"B": 2},
        beta=1.0,
        time=1.0,
    )
    decision = decide(raw)
    assert (decision["admit"], decision["terms"]) == (["r2"], terms(admit=5.0, move=1.0, reuse=2.0))
    assert decide(raw, "topas-no-reuse")["admit"] == ["r1"]


def test_reuse_counts_only_for_a_prefix_that_is_used(decide: Decide) -> None:
    """B is worth 3 s of reuse, and its request, which gains nothing, must run for it: 1 s of moving."""
    raw = make_event(
        budget=500,
        agents="A=50 B=100",
        tasks={"t": "a=5", "u": "b=1 c=9"},
        waiting=["ra t.a A 10 5", "rb u.b B 10 1"],
        resident="A",
        reuse={"B": 3},
    )
    decision = decide(raw)
    assert decision["admit"] == ["ra", "rb"]
    assert decision["terms"] == terms(admit=5.0, move=1.0, reuse=3.0)
    raw["reuse_counts"]["B"] = 0
    decision = decide(raw)
    assert (decision["admit"], decision["terms"]) == (["ra"], terms(admit=5.0))


@pytest.mark.parametrize(
    ("policy", "expected", "score"),
    [
        ("topas-paper", terms(admit=10.0, move=1.0, reuse=1.5), 10.5),
        ("topas-no-reuse", terms(admit=10.0, move=1.0), 9.0),
        ("topas-no-aging", terms(admit=5.0, move=1.0, reuse=1.5), 5.5),
        ("topas-base", terms(admit=5.0, move=1.0), 4.0),
    ],
)
def test_an_ablation_lacks_exactly_its_terms(
    decide: Decide, policy: str, expected: dict, score: float
) -> None:
    """5 s of progress count double by age; beta = 0.5 times n = 3 times 1 s of loading is reuse."""
    raw = make_event(
        budget=1000,
        agents="A=100",
        tasks={"t": "a=5"},
        waiting=["r t.a A 50 5"],
        reuse={"A": 3},
        beta=0.5,
        **DOUBLED,
    )
    decision = decide(raw, policy)
    assert (decision["admit"], decision["terms"], decision["score_s"]) == (["r"], expected, score)


def test_age_decides_between_tasks_but_never_raises_costs(decide: Decide) -> None:
    """Task t waited and counts double: 2 * 4 - 2 s of moving against 7 - 2 of newcomer u. Costs never."""
    raw = make_event(
        budget=150,
        agents="A=100 B=100 Z=100",
        tasks={"t": "a=4", "u": f"@{DOUBLED['time']} b=7"},
        waiting=["r1 t.a A 50 4", "r2 u.b B 50 7"],
        resident="Z",
        **DOUBLED,
    )
    decision = decide(raw)
    assert (decision["admit"], decision["terms"]) == (["r1"], terms(admit=8.0, move=2.0))
    decision = decide(raw, "topas-no-aging")
    assert (decision["admit"], decision["terms"]) == (["r2"], terms(admit=7.0, move=2.0))


# ------------------------------------------------------------------------------------------- baselines


def queue_event(budget: int, **params: float) -> Raw:
    """Return three waiting requests that every baseline orders differently; A is resident.

    | | task arrival | request arrival | attained | depth | cached |
    | r0 | 2 | 2 | 9 | 0 | 100, A's prefix |
    | r1 | 1 | 4 | 4 | 1 | 0 |
    | r2 | 0 | 3 | 6 | 0 | 130 |
    """
    return make_event(
        budget=budget,
        agents="A=100 B=100",
        tasks={"t0": "@2/9 a=5 b<a=5", "t1": "@1/4 a=0 b<a=5", "t2": "@0/6 a=5 b<a=5"},
        waiting=[
            "r0 t0.a A 50 5 arrival=2",
            "r1 t1.b B 50 5 arrival=4",
            "r2 t2.a A 50 5 arrival=3 cached=130",
        ],
        resident="A",
        time=4.0,
        **params,
    )


@pytest.mark.parametrize(
    ("policy", "order", "fitting"),
    [
        ("fcfs", ["r0", "r2", "r1"], ["r0", "r2"]),
        ("lpm", ["r2", "r0", "r1"], ["r2", "r0"]),
        ("parrot-fcfs", ["r2", "r1", "r0"], ["r2"]),
        ("autellix-las", ["r1", "r2", "r0"], ["r1"]),
        ("spf", ["r1", "r0", "r2"], ["r1"]),
        ("downstream-gate", ["r2", "r0", "r1"], ["r2", "r0"]),
    ],
)
def test_a_baseline_takes_the_head_of_its_queue(
    decide: Decide, policy: str, order: list[str], fitting: list[str]
) -> None:
    """350 tokens hold all three. In 200 two requests of A fit, or one of B; the first misfit ends it."""
    assert decide(queue_event(350), policy)["admit"] == order
    decision = decide(queue_event(200), policy)
    assert (decision["admit"], decision["preempt"]) == (fitting, [])
    assert decide(queue_event(350, K=1), policy)["admit"] == order[:1]
    assert decide(queue_event(350, max_running=2), policy)["admit"] == order[:2]


def test_a_baseline_is_scored_like_any_decision(decide: Decide) -> None:
    """r1 and r2 of two tasks: 5 s each; B comes in for r1's task, 1 s."""
    decision = decide(queue_event(300, K=2), "parrot-fcfs")
    assert (decision["resident"], decision["admit"]) == (["A", "B"], ["r2", "r1"])
    assert decision["terms"] == terms(admit=10.0, move=1.0)


def test_ties_in_a_queue_go_to_the_earlier_request_and_then_its_id(decide: Decide) -> None:
    raw = make_event(
        budget=500,
        agents="A=100",
        tasks={"t": "@1/2 a=5"},
        waiting=["r9 t.a A 1 5 arrival=3", "r2 t.a A 1 5 arrival=4", "r1 t.a A 1 5 arrival=4"],
        resident="A",
        time=4.0,
    )
    for policy in ("fcfs", "lpm", "parrot-fcfs", "autellix-las", "spf", "downstream-gate"):
        assert decide(raw, policy)["admit"] == ["r9", "r1", "r2"]


def test_the_gate_opens_for_exit_stages_once_four_of_them_wait(decide: Decide) -> None:
    """x0 is the entrance, resident; e1 to e4 are exits of a cold agent, the third of which is cached."""
    exits = [f"e{k} t{k}.b B 1 5 arrival={9 - k}" + (" cached=7" if k == 3 else "") for k in range(1, 5)]
    raw = make_event(
        budget=900,
        agents="A=100 B=100",
        tasks={f"t{k}": f"a={5 if k == 0 else 0} b<a=5" for k in range(5)},
        waiting=["x0 t0.a A 1 5 arrival=1", *exits],
        resident="A",
        time=9.0,
    )
    assert decide(raw, "downstream-gate")["admit"] == ["e3", "e4", "e2", "e1", "x0"]
    raw["waiting"] = raw["waiting"][:-1]
    assert decide(raw, "downstream-gate")["admit"] == ["x0", "e3", "e2", "e1"]
    assert decide(raw, "lpm")["admit"] == ["x0", "e3", "e2", "e1"]


def test_a_baseline_fits_requests_beside_what_runs(decide: Decide) -> None:
    """r0 runs at A: of 310 tokens 150 are taken, B's prefix and request take 150, the next one does not fit.

    An idle resident prefix (C) is evictable and takes no room.
    """
    raw = make_event(
        budget=310,
        agents="A=100 B=100 C=100",
        tasks={"t": "a=5 b=5"},
        waiting=["r1 t.b B 50 5", "r2 t.a A 50 5", "r3 t.a A 5 5"],
        running=["r0 t.a A 50 5"],
        resident="A C",
    )
    decision = decide(raw, "fcfs")
    assert (decision["resident"], decision["admit"]) == (["A", "B"], ["r1"])


# ------------------------------------------------------------------------------------------ the command


def test_every_policy_decides_every_event(decide: Decide) -> None:
    for policy in policy_names():
        if policy == "topas-exact":
            continue  # needs the exact models
        assert decide(queue_event(350), policy)["preempt"] == []


def test_without_json_the_decision_is_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(preemption_event(7.0)))
    assert main(["decide", str(path), "--policy", "topas-paper"]) == 0
    out = capsys.readouterr().out
    for words in ("resident  B", "admit     r1", "preempt   r0", "0.800000 s", "redo 1.200000"):
        assert words in out
    assert "not feasible" not in out


def test_a_decision_that_cannot_be_carried_out_is_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The budget shrank below what runs; a baseline never preempts."""
    path = tmp_path / "event.json"
    path.write_text(json.dumps(preemption_event(7.0) | {"budget_tokens": 120}))
    assert main(["decide", str(path), "--policy", "fcfs"]) == 0
    assert "not feasible: budget: 150 tokens exceed 120" in capsys.readouterr().out


def test_an_unknown_policy_is_refused_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(queue_event(350)))
    assert main(["decide", str(path), "--policy", "nonsense", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "'nonsense'" in captured.err
    assert "topas-no-aging" in captured.err
