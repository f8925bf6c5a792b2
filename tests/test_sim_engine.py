"""The engine, computed by hand.

On the plain profile a prefill takes 1/16 s a token, a decode step 1/4 s, and the link 1/32 s a token; on
the stepping one a prefill takes no time and a decode step one second.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from referee.cache import KvCache
from support_sim import (
    STEP_S,
    Stage,
    admit_all,
    admit_what_fits,
    ask,
    chain,
    jcts,
    make_decision,
    make_profile,
    make_trace,
    recorded,
    scripted,
    single,
    stepping,
    watched,
)

from topas.decision import Decision
from topas.event import Event, Params
from topas.feasible import violations
from topas.policies import JointPolicy, policy_names
from topas.profile import Profile, load_profile
from topas.sim import SimResult, simulate
from topas.trace import Trace
from traces.workloads import generate


def play(trace: Trace, profile: Profile, policy: str = "fcfs") -> SimResult:
    """Return a checked run."""
    return simulate(trace, policy, profile, check=True)


# --- the paper's Figure 2 -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "mean_s", "completions"),
    [("spf", 21.5, [15.0, 30.0]), ("lpm", 24.0, [23.0, 27.0]), ("topas-paper", 24.0, [23.0, 27.0])],
)
def test_figure_2_is_exact(policy: str, mean_s: float, completions: list[float]) -> None:
    trace = generate("figure-2", rate_per_s=1.0, tasks=2, seed=0)
    result = play(trace, load_profile("unit"), policy)
    assert result.metrics["mean_jct_s"] == mean_s
    assert jcts(result) == completions


# --- prefill and decode ---------------------------------------------------------------------------------


def test_a_prefill_takes_base_and_tokens_and_gives_the_first_token() -> None:
    trace = make_trace({"A": 16}, (3.0, single("A", ask(16, 1))))
    assert jcts(play(trace, make_profile(prefill_base_s=0.5))) == [3.0 + 0.5 + 32 / 16]


def test_a_decode_step_takes_base_requests_and_kv_tokens() -> None:
    profile = make_profile(decode_s_per_seq=1 / 8, decode_s_per_kv_token=1 / 256)
    trace = make_trace({"A": 16}, (0.0, single("A", ask(16, 3))))
    # After the first token 16 + 16 + 1 tokens are in use.
    assert jcts(play(trace, profile)) == [2.0 + (1 / 4 + 1 / 8 + 33 / 256) + (1 / 4 + 1 / 8 + 34 / 256)]


def test_a_prefix_is_computed_once_and_counts_once() -> None:
    profile = make_profile(decode_s_per_kv_token=1 / 64)
    trace = make_trace({"A": 32}, *[(0.0, single("A", ask(16, 2)))] * 2)
    prefill_s = (32 + 16 + 16) / 16
    assert jcts(play(trace, profile)) == [prefill_s + 1 / 4 + (32 + 17 + 17) / 64] * 2


@pytest.mark.parametrize("arrival_s", [1.5, 1.4])
def test_a_prefill_comes_first_and_blocks_decoding_from_the_end_of_the_step(arrival_s: float) -> None:
    trace = make_trace({"A": 0}, (0.0, single("A", ask(16, 9))), (arrival_s, single("A", ask(32, 1))))
    # Three tokens of the first by 1.5, a prefill of 2 s, six tokens more.
    assert jcts(play(trace, make_profile())) == [3.5 + 6 * STEP_S, 3.5]


# --- prefixes: host loads, recomputation, the link ------------------------------------------------------


def _evicted_and_back() -> Trace:
    """Return a trace in which A's prefix is evicted by X and needed again while Y decodes."""
    return make_trace(
        {"A": 64, "X": 0, "Y": 0},
        (0.0, single("A", ask(16, 1))),
        (10.0, single("X", ask(150, 1))),
        (20.0, single("Y", ask(16, 41))),
        (21.0, single("A", ask(16, 1))),
    )


def test_a_host_load_takes_bytes_over_bandwidth_and_others_decode_meanwhile() -> None:
    result = play(_evicted_and_back(), make_profile(kv_budget_tokens=200, host_cache=True))
    load_s, prefill_s = 64 / 32, 16 / 16
    # Y's 40 steps last 10 s, and only the prefill of A's 16 tokens interrupts them.
    assert jcts(result) == [5.0, 10 + 150 / 16, 21 + 10 + prefill_s, 21 + load_s + prefill_s]
    assert result.metrics["prefix_loads"] == 4


def test_without_host_copies_the_prefix_is_computed_again() -> None:
    result = play(_evicted_and_back(), make_profile(kv_budget_tokens=200, host_cache=False))
    prefill_s = (64 + 16) / 16
    assert jcts(result) == [5.0, 10 + 150 / 16, 21 + 10 + prefill_s, 21 + prefill_s]
    assert result.metrics["prefix_loads"] == 4


def test_the_load_time_follows_the_bytes_and_the_bandwidth() -> None:
    profile = make_profile(
        kv_budget_tokens=200, host_cache=True, kv_bytes_per_token=10, swap_bytes_per_s=80.0
    )
    assert jcts(play(_evicted_and_back(), profile))[3] == 21 + 64 * 10 / 80 + 1


def _one_prefix_at_a_time(last_s: float) -> tuple[Trace, Profile]:
    """Return A, B, A, B, of which one prefix of 64 fits at a time; each request prefills 16 tokens."""
    times = {"A": (0.0, 20.0), "B": (10.0, last_s)}
    arrivals = sorted((when, agent) for agent, both in times.items() for when in both)
    trace = make_trace({"A": 64, "B": 64}, *[(when, single(agent, ask(16, 1))) for when, agent in arrivals])
    return trace, make_profile(kv_budget_tokens=100, host_cache=True)


def test_a_load_waits_for_the_write_backs_before_it_on_the_link() -> None:
    trace, profile = _one_prefix_at_a_time(22.5)
    # A is back at 20 + 2; behind that load the link writes back B's prefix and context, 81 tokens. B's own
    # load, asked for at 23 when A is done, starts behind the write-back.
    free_s = 22 + 81 / 32
    assert jcts(play(trace, profile)) == [5.0, 15.0, 23.0, free_s + 2 + 1]


def test_a_load_does_not_wait_when_the_link_is_free() -> None:
    trace, profile = _one_prefix_at_a_time(30.0)
    assert jcts(play(trace, profile)) == [5.0, 15.0, 23.0, 30 + 2 + 1]


def test_a_joint_decision_moves_prefixes_out_before_it_loads() -> None:
    trace, profile = _one_prefix_at_a_time(40.0)
    result = simulate(trace, scripted(admit_all), profile, check=True)
    # At 20 B's 81 tokens go first; at 40 A's prefix has its copy already, only its 17 new tokens go.
    assert jcts(result) == [5.0, 15.0, 20 + 81 / 32 + 2 + 1, 40 + 17 / 32 + 2 + 1]


def test_requests_that_need_a_prefix_in_transit_wait_for_the_one_load() -> None:
    trace = make_trace(
        {"A": 64, "X": 0},
        (0.0, single("A", ask(16, 1))),
        (10.0, single("X", ask(150, 1))),
        (21.0, single("A", ask(16, 1))),
        (22.0, single("A", ask(16, 1))),
    )
    result = play(trace, make_profile(kv_budget_tokens=200, host_cache=True))
    assert jcts(result)[2:] == [21 + 2 + 32 / 16] * 2
    assert result.metrics["prefix_loads"] == 3


def test_the_least_recently_used_prefix_goes_first() -> None:
    trace = make_trace(
        dict.fromkeys("ABC", 32),
        (0.0, single("A", ask(8, 1))),
        (10.0, single("B", ask(8, 1))),
        (20.0, single("A", ask(8, 1))),
        (30.0, single("C", ask(24, 1))),  # evicts 9 tokens of A's and 9 of B's contexts, then B's prefix
        (40.0, single("A", ask(8, 1))),
        (50.0, single("B", ask(8, 1))),
    )
    result = play(trace, make_profile(kv_budget_tokens=110))
    cold_s, warm_s = 40 / 16, 8 / 16
    assert jcts(result) == [cold_s, 10 + cold_s, 20 + warm_s, 30 + 56 / 16, 40 + warm_s, 50 + cold_s]
    assert result.metrics["prefix_loads"] == 4


def test_leftovers_leave_in_the_order_of_their_last_use_and_a_prefix_behind_its_leaves() -> None:
    cache = KvCache(100, {"A": 20, "B": 20}, host=False, swap_s_per_token=0.0)
    for agent in "AB":
        cache.acquire(agent, 0.0)
        cache.leave_context(agent, "t", 0, 10)
        cache.release(agent)
    cache.acquire("A", 0.0)
    cache.release("A")  # A's prefix is younger than all of B's; its context is the oldest of all
    left = []
    for used in (50, 55, 65, 85):
        cache.used = used
        cache.trim(0.0)
        left.append((cache.leftover, sorted(cache.resident)))
    assert left == [(50, ["A", "B"]), (40, ["A", "B"]), (20, ["A"]), (0, [])]


def test_a_prefix_that_became_idle_before_its_leaves_still_leaves_after_them() -> None:
    cache = KvCache(100, {"A": 20}, host=False, swap_s_per_token=0.0)
    cache.acquire("A", 0.0)
    cache.release("A")
    cache.leave_context("A", "t", 0, 10)  # as when a request is preempted and its KV kept
    cache.used = 75
    cache.trim(0.0)
    assert (cache.leftover, cache.resident) == (20, ["A"])


def test_a_load_that_was_given_up_does_not_start_the_request_of_a_later_load() -> None:
    # A's prefix is on its way until 615 when B comes and the policy drops A. Wanted again at 411, it is
    # loaded anew, behind the first load on the link: the end of that starts nobody.
    trace = make_trace(
        {"A": 64, "B": 0, "X": 0},
        (0.0, single("A", ask(10, 2))),
        (10.0, single("X", ask(150, 1))),
        (400.0, single("A", ask(10, 2))),
        (410.0, single("B", ask(10, 2))),
    )

    def choose(event: Event) -> tuple[list[str], list[str]]:
        waiting, running = [r.id for r in event.waiting], [r.id for r in event.running]
        return (waiting, running) if "t03/b/0" in waiting else (([], []) if running else admit_all(event))

    profile = stepping(200, host_cache=True)
    result, log = watched(trace, scripted(choose), profile)
    assert log.preempted == [(410.0, "t02/a/0")]
    first_s = 400 + 151 + 64  # X's tokens go before
    again_s = log.admitted[-1][0]
    assert again_s == 411.0
    # B's 12 tokens go before the second load as well.
    assert jcts(result)[2] == first_s + 12 + 64 + 1


# --- ReAct rounds: reuse and tool waits -----------------------------------------------------------------


def _two_rounds(reused_tokens: int, between: tuple[int, int] | None = None) -> Trace:
    """Return a stage with two rounds 10 s apart and, at 3 s, a request of X that takes memory."""
    rounds = (ask(16, 4, tool_s=10.0), ask(32, 1, reused_tokens=reused_tokens))
    tasks = [(0.0, single("A", *rounds))]
    if between:
        tasks.append((3.0, single("X", ask(*between))))
    return make_trace({"A": 16, "X": 0}, *tasks)


FIRST_ROUND_S = 32 / 16 + 3 * STEP_S
SECOND_READY_S = FIRST_ROUND_S + 10


@pytest.mark.parametrize("reused_tokens", [20, 7, 0])
def test_reused_tokens_need_no_prefill(reused_tokens: int) -> None:
    result = play(_two_rounds(reused_tokens), make_profile())
    assert jcts(result) == [SECOND_READY_S + (32 - reused_tokens) / 16]


def test_a_prompt_that_is_cached_to_the_end_computes_its_last_token() -> None:
    rounds = (ask(16, 4), ask(20, 1, reused_tokens=20))
    assert jcts(play(make_trace({"A": 16}, (0.0, single("A", *rounds))), make_profile())) == [
        FIRST_ROUND_S + 1 / 16
    ]


def test_reused_tokens_that_were_evicted_are_computed_again() -> None:
    # X takes 70 of 100 tokens: the context of 20 must go, the prefix of 16 may stay.
    result = play(_two_rounds(20, (69, 1)), make_profile(kv_budget_tokens=100))
    assert jcts(result)[0] == SECOND_READY_S + 32 / 16


def test_reused_tokens_that_were_evicted_are_loaded_from_host() -> None:
    result = play(_two_rounds(20, (69, 1)), make_profile(kv_budget_tokens=100, host_cache=True))
    assert jcts(result)[0] == SECOND_READY_S + 20 / 32 + (32 - 20) / 16


def test_a_prefix_and_a_context_on_host_are_loaded_one_after_the_other() -> None:
    result = play(_two_rounds(20, (90, 1)), make_profile(kv_budget_tokens=100, host_cache=True))
    assert jcts(result)[0] == SECOND_READY_S + 16 / 32 + 20 / 32 + (32 - 20) / 16


def test_policies_see_how_much_of_a_prompt_is_cached() -> None:
    _, entries = recorded(_two_rounds(20), "fcfs", make_profile())
    assert [event.waiting[0].cached_tokens for event, _ in entries] == [0, 16 + 20]


def test_an_older_context_does_not_stand_in_for_what_a_request_lost() -> None:
    # The second round of t00 reuses nothing of the first, whose 50 tokens have gone to host. Retracted
    # with 35 tokens generated and nothing kept, it has all of them to compute again.
    trace = make_trace(
        {"A": 0},
        (0.0, single("A", ask(10, 40), ask(10, 40))),
        (37.0, single("A", ask(10, 40))),
        (38.0, single("A", ask(10, 40))),
    )
    profile = stepping(140, admission="sglang", redo="keep", host_cache=True, swap_bytes_per_s=1e6)
    result, log = watched(trace, "fcfs", profile)
    assert log.preempted == [(73.0, "t00/a/1")]
    assert result.metrics["recomputed_tokens"] == 35


def test_a_host_copy_of_an_older_context_does_not_save_the_write_back_of_the_newer() -> None:
    # X evicts the 200 tokens of round 0 and, at 1400, the 125 of round 1, which repeats nothing of it. At
    # 1473 round 2, which repeats round 1, waits for that write-back (125 s) before its load (125 s).
    rounds = (ask(150, 50, tool_s=400.0), ask(100, 25, tool_s=1000.0), ask(130, 1, reused_tokens=125))
    trace = make_trace(
        {"A": 0, "X": 0},
        (0.0, single("A", *rounds)),
        (60.0, single("X", ask(300, 1))),
        (1400.0, single("X", ask(300, 1))),
    )
    result, log = watched(trace, "fcfs", stepping(310, host_cache=True))
    assert log.time_of("ready", "t00/a/2") == 49 + 400 + 24 + 1000
    assert jcts(result)[0] == 1400 + 125 + 125


def test_a_tool_wait_delays_the_next_round_and_the_stages_behind() -> None:
    stages = {
        "a": Stage("A", (ask(16, 1, tool_s=3.0), ask(16, 1, tool_s=2.0))),
        "b": Stage("A", (ask(16, 1, tool_s=0.5),), ("a",)),
    }
    result, log = watched(make_trace({"A": 0}, (0.0, stages)), "fcfs", make_profile())
    assert log.ready == [(0.0, "t00/a/0"), (4.0, "t00/a/1"), (7.0, "t00/b/0")]
    assert log.finished == [(1.0, "t00/a/0"), (5.0, "t00/a/1"), (8.0, "t00/b/0")]
    # Behind the last round the wait belongs to the stage, and so to the task.
    assert jcts(result) == [8.5]


def test_a_fork_starts_together_and_a_join_waits_for_the_last_branch() -> None:
    stages = {
        "a": Stage("A", (ask(16, 1),)),
        "b": Stage("A", (ask(16, 1),), ("a",)),
        "c": Stage("A", (ask(32, 5),), ("a",)),
        "d": Stage("A", (ask(16, 1),), ("b", "c")),
    }
    result, log = watched(make_trace({"A": 0}, (0.0, stages)), "fcfs", make_profile())
    assert log.ready == [(0.0, "t00/a/0"), (1.0, "t00/b/0"), (1.0, "t00/c/0"), (5.0, "t00/d/0")]
    assert log.finished[1:3] == [(4.0, "t00/b/0"), (5.0, "t00/c/0")]
    assert jcts(result) == [6.0]


# --- preemption -----------------------------------------------------------------------------------------


def _swap_then_back(event: Event) -> tuple[list[str], list[str]]:
    """Preempt the first task when the second comes, and resume it when that is done."""
    running = [request.id for request in event.running]
    if any(request.id.startswith("t01") for request in event.waiting):
        return [request.id for request in event.waiting if request.id.startswith("t01")], running
    return ([], []) if running else admit_all(event)


def _swapped(other_tokens: int, other: str = "A") -> Trace:
    """Return a request of nine tokens, of which five are generated when another comes at 2."""
    return make_trace(
        {"A": 0, "B": 0}, (0.0, single("A", ask(16, 9))), (2.0, single(other, ask(other_tokens, 1)))
    )


@pytest.mark.parametrize(
    ("redo", "end_s", "recomputed"),
    [
        ("decode", 3 + 16 / 16 + 8 * STEP_S, 5),
        ("prefill", 3 + 21 / 16 + 3 * STEP_S, 5),
        ("keep", 3 + 1 / 16 + 3 * STEP_S, 0),  # the last token is computed to yield the next
    ],
)
def test_what_a_preempted_request_does_again(redo: str, end_s: float, recomputed: int) -> None:
    # The other's prefill of 16 tokens lasts from 2 to 3.
    result = simulate(_swapped(16), scripted(_swap_then_back), make_profile(redo=redo), check=True)
    assert jcts(result) == [end_s, 3.0]
    assert result.metrics["preemptions"] == 1
    assert result.metrics["recomputed_tokens"] == recomputed


@pytest.mark.parametrize(
    ("host", "resume_s", "recomputed"), [(False, 21 / 16, 5), (True, 21 / 32 + 1 / 16, 0)]
)
def test_kept_kv_that_was_evicted_is_computed_again_or_loaded(
    *, host: bool, resume_s: float, recomputed: int
) -> None:
    profile = make_profile(kv_budget_tokens=100, redo="keep", host_cache=host)
    result = simulate(_swapped(96), scripted(_swap_then_back), profile, check=True)
    there_s = 2 + 96 / 16
    assert jcts(result) == [there_s + resume_s + 3 * STEP_S, there_s]
    assert result.metrics["recomputed_tokens"] == recomputed


@pytest.mark.parametrize(
    ("host", "resume_s", "recomputed"), [(False, 21 / 16, 5), (True, 17 / 32 + 21 / 32 + 1 / 16, 0)]
)
def test_kept_kv_leaves_with_its_prefix(*, host: bool, resume_s: float, recomputed: int) -> None:
    # The decision at 2 keeps B alone; that at 3 moves B's 17 tokens out before A's are loaded.
    result = simulate(
        _swapped(16, "B"), scripted(_swap_then_back), make_profile(redo="keep", host_cache=host), check=True
    )
    assert jcts(result) == [3 + resume_s + 3 * STEP_S, 3.0]
    assert result.metrics["recomputed_tokens"] == recomputed


@pytest.mark.parametrize(("leaves_idle", "loads"), [(False, 3), (True, 2)])
def test_an_idle_prefix_goes_at_once_or_stays_while_there_is_room(*, leaves_idle: bool, loads: int) -> None:
    trace = make_trace(
        {"A": 100, "B": 100},
        *[(100.0 * k, single(agent, ask(10, 2))) for k, agent in enumerate("ABA")],
    )
    policy = replace(scripted(admit_all), leaves_idle=leaves_idle)
    result = simulate(trace, policy, make_profile(), check=True)
    assert result.metrics["prefix_loads"] == loads
    assert jcts(result)[2] == 200.0 + (10 if leaves_idle else 110) / 16 + STEP_S


@pytest.mark.parametrize(("leaves_idle", "loads"), [(False, 4), (True, 3)])
def test_of_idle_prefixes_the_one_that_is_wanted_last_goes_first(*, leaves_idle: bool, loads: int) -> None:
    """A has been idle the longest, but the task of C needs it next; nobody needs B, which goes for C."""
    trace = make_trace(
        dict.fromkeys("ABC", 100),
        (0.0, single("A", ask(5, 5))),
        (100.0, single("B", ask(5, 5))),
        (200.0, chain(("C", ask(5, 100)), ("A", ask(5, 5)))),
    )
    policy = replace(scripted(admit_all), leaves_idle=leaves_idle)
    result = simulate(trace, policy, make_profile(kv_budget_tokens=260), check=True)
    assert result.metrics["prefix_loads"] == loads


def test_a_credit_is_stored_at_admission_and_cleared_at_preemption() -> None:
    def decide(event: Event) -> Decision:
        decision = make_decision(event, *_swap_then_back(event))
        return replace(decision, credits_ns=(5_000_000_000,) * len(decision.admit))

    trace = make_trace(
        {"A": 0, "B": 0},
        (0.0, single("A", ask(16, 9))),
        (2.0, single("B", ask(16, 9))),
        (4.0, single("A", ask(16, 9))),
    )
    _, entries = recorded(trace, JointPolicy("credits", decide), make_profile())
    seen = [
        ({r.id: r.credit_s for r in e.running}, {r.id: r.credit_s for r in e.waiting}) for e, _ in entries
    ]
    assert seen[:3] == [
        ({}, {"t00/a/0": 0.0}),
        ({"t00/a/0": 5.0}, {"t01/b/0": 0.0}),
        ({"t01/b/0": 5.0}, {"t00/a/0": 0.0, "t02/a/0": 0.0}),
    ]


# --- admission ------------------------------------------------------------------------------------------


def test_full_admission_reserves_the_whole_allowance() -> None:
    trace = make_trace({"A": 10}, *[(0.0, single("A", ask(10, 2, 40)))] * 3)
    _, log = watched(trace, "fcfs", stepping(10 + 50 + 50))
    assert log.admitted == [(0.0, "t00/a/0"), (0.0, "t01/a/0"), (1.0, "t02/a/0")]


def _over_committed(*inputs: int, arrivals: tuple[float, ...] = (0.0, 1.0, 2.0)) -> Trace:
    """Return requests that generate the 40 tokens that they may, of 10 input tokens unless told otherwise."""
    sizes = inputs or (10,) * len(arrivals)
    return make_trace(
        {"A": 0}, *[(when, single("A", ask(size, 40))) for when, size in zip(arrivals, sizes, strict=True)]
    )


def test_sglang_admission_takes_in_more_than_full_and_retracts() -> None:
    trace = _over_committed()
    full, full_log = watched(trace, "fcfs", stepping(132))
    # Full: 3 x 50 tokens never fit in 132; the third comes when the first is done.
    assert full_log.admitted[2] == (39.0, "t02/a/0")
    assert full.metrics["peak_batch"] == 2
    # SGLang: at 2 there are 25 tokens in use and 75 to come, of which the ratio of two steps counts.
    assert 51 <= 132 - 25 - (0.7 - 2 * (0.7 - 0.098) / 600) * 75
    result, log = watched(trace, "fcfs", stepping(132, admission="sglang"))
    assert log.admitted[2] == (2.0, "t02/a/0")
    assert result.metrics["peak_batch"] == 3
    # At 34 the 35 + 34 + 33 tokens generated fill the memory; the last comer has fewest and goes.
    assert log.preempted == [(34.0, "t02/a/0")]
    assert log.admitted[3] == (39.0, "t02/a/0")
    assert jcts(result) == [39.0, 40.0, 78.0]
    assert (result.metrics["preemptions"], result.metrics["recomputed_tokens"]) == (1, 33)


def test_a_retracted_request_keeps_its_tokens_where_prefills_redo() -> None:
    result, _ = watched(_over_committed(), "fcfs", stepping(132, admission="sglang", redo="prefill"))
    # Back at 39 its prefill gives token 34 of 40.
    assert jcts(result) == [39.0, 40.0, 45.0]


def test_retraction_takes_the_longest_input_among_those_with_fewest_tokens() -> None:
    trace = _over_committed(10, 10, 14, arrivals=(0.0, 1.0, 1.0))
    _, log = watched(trace, "fcfs", stepping(146, admission="sglang"))
    assert log.preempted == [(37.0, "t02/a/0")]
    trace = _over_committed(10, 14, 10, arrivals=(0.0, 1.0, 1.0))
    _, log = watched(trace, "fcfs", stepping(146, admission="sglang"))
    assert log.preempted == [(37.0, "t01/a/0")]


@pytest.mark.parametrize(("budget", "first"), [(110, 1), (111, 2)])
def test_sglang_admission_asks_for_one_token_more_than_the_need(budget: int, first: int) -> None:
    trace = make_trace({"A": 10}, *[(0.0, single("A", ask(10, 40)))] * 2)
    _, log = watched(trace, "fcfs", stepping(budget, admission="sglang"))
    assert len(log.prefills[0][1]) == first


def test_in_sglang_admission_a_full_batch_stays_shut_until_a_request_leaves() -> None:
    # At 2 the third does not fit (128 tokens instead of 132). At 10 the deeper stage of t00 is ready: it
    # is small and first in the queue, but nobody is tried before a request leaves at 39.
    early = {
        "s0": Stage("A", (ask(1, 1, tool_s=10.0),)),
        "s1": Stage("A", (ask(1, 1),), ("s0",)),
    }
    large = single("A", ask(10, 40))
    trace = make_trace({"A": 0}, (0.0, early), (0.0, large), (1.0, large), (2.0, large))
    for admission, when in (("sglang", 39.0), ("full", 10.0)):
        _, log = watched(trace, "spf", stepping(128, admission=admission))
        assert log.time_of("ready", "t00/s1/0") == 10.0
        assert log.time_of("admitted", "t00/s1/0") == when
        assert log.time_of("admitted", "t03/a/0") == 39.0


def test_the_ratio_falls_while_the_engine_decodes() -> None:
    # At 301 there are 312 tokens in use and 699 to come: 0.4 of them leave room for 400, 0.7 would not.
    trace = make_trace({"A": 0}, (0.0, single("A", ask(10, 1000))), (300.5, single("A", ask(300, 100))))
    _, log = watched(trace, "fcfs", stepping(1011, admission="sglang"))
    assert log.time_of("admitted", "t01/a/0") == 301.0


def test_the_ratio_starts_over_when_the_engine_is_idle() -> None:
    # After 1,000 steps the ratio is at its floor; by that the last request would fit at 2002.
    earlier = [(100.0 * k, single("A", ask(10, 101))) for k in range(10)]
    large = [(when, single("A", ask(10, 40))) for when in (2000.0, 2001.0, 2002.0)]
    _, log = watched(make_trace({"A": 0}, *earlier, *large), "fcfs", stepping(128, admission="sglang"))
    assert log.time_of("admitted", "t12/a/0") == 2039.0


def test_a_batch_that_was_full_on_an_empty_engine_opens_after_its_prefill() -> None:
    # Three at once: the pass on the empty engine counts allowances in full, so that the third does not
    # fit; then the first two count by the ratio (22 + 0.7 x 78 tokens), and it does.
    _, log = watched(_over_committed(arrivals=(0.0, 0.0, 0.0)), "fcfs", stepping(132, admission="sglang"))
    assert log.admitted[:3] == [(0.0, "t00/a/0"), (0.0, "t01/a/0"), (0.0, "t02/a/0")]


@pytest.mark.parametrize("swap_s", [4.0, 10.0])
def test_retraction_spares_the_last_decoding_request_and_leaves_room_for_those_that_load(
    swap_s: float,
) -> None:
    # From 2001 on C's prefix is loaded (until 2072 or later) while t03 decodes into the room that C's first
    # token needs. When that is all that is left, C goes back to the queue, and t03 runs to its end.
    trace = make_trace(
        {"A": 0, "C": 16, "X": 0, "Z": 0},
        (0.0, single("C", ask(1, 1))),
        (1.0, single("X", ask(100, 1))),
        (400.0, single("Z", ask(1, 1))),
        (2000.0, single("A", ask(20, 80))),
        (2000.5, single("C", ask(1, 1))),
    )
    profile = stepping(110, admission="sglang", host_cache=True, swap_bytes_per_s=1 / swap_s)
    result, log = watched(trace, scripted(admit_what_fits), profile)
    assert (2001.0, "t04/c/0") in log.admitted
    assert {name for _, name in log.preempted} == {"t04/c/0"}
    assert jcts(result)[3] == 2079.0


def test_recorded_decisions_of_a_queue_policy_are_feasible_under_the_ratio() -> None:
    arrivals = [(float(k), single("A", ask(10, 35))) for k in range(4)]
    _, entries = recorded(make_trace({"A": 0}, *arrivals), "fcfs", stepping(152, admission="sglang"))
    event, decision = entries[3]
    assert decision.admit == ("t03/a/0",)
    assert sum(r.reserve_tokens for r in (*event.running, *event.waiting)) <= event.budget_tokens


@pytest.mark.parametrize(
    "policy", ["topas-score", *(name for name in policy_names() if name.startswith("topas"))]
)
def test_what_outgrew_the_ratios_estimate_may_stay(policy: str) -> None:
    # At 33, when the fourth arrives, 129 tokens are in use and 21 to come: 0.67 of them are too many for
    # 132. No prefix set holds the three requests then, but that is no reason to throw all of them out.
    trace = _over_committed(arrivals=(0.0, 1.0, 2.0, 32.5))
    result, log = watched(trace, policy, stepping(132, admission="sglang"))
    assert not [name for when, name in log.preempted if when == 33.0]
    assert len(result.tasks) == 4


def _replace_all(event: Event) -> tuple[list[str], list[str]]:
    """Admit whatever fits the event's own budget; for the sake of B preempt all of A."""
    newcomers = [request.id for request in event.waiting if request.agent == "B"]
    running = [request.id for request in event.running] if newcomers else []
    admitted: list[str] = []
    for name in newcomers or [request.id for request in event.waiting]:
        if not violations(event, make_decision(event, [*admitted, name], running)):
            admitted.append(name)
    return admitted, running


def test_what_outgrew_the_estimate_gives_nobody_more_room_than_there_is() -> None:
    # As above, the requests of A count 142 tokens at 33, in a memory of 132. A policy that preempts them
    # all and fills what the event calls the budget must not overrun the memory with two prompts of 70.
    tasks = [(when, single("A", ask(10, 40))) for when in (0.0, 1.0, 2.0)]
    tasks += [(32.5, single("B", ask(70, 1)))] * 2
    trace = make_trace({"A": 0, "B": 0}, *tasks)
    _, entries = recorded(trace, scripted(_replace_all), stepping(132, admission="sglang"))
    assert max(event.budget_tokens for event, _ in entries) == 132


@pytest.mark.parametrize("policy", [*policy_names(), "topas-score"])
@pytest.mark.parametrize("admission", ["full", "sglang"])
def test_never_more_than_max_running_requests_run(policy: str, admission: str) -> None:
    trace = make_trace({"A": 10, "B": 10}, *[(k / 4, single("AB"[k % 2], ask(4, 6))) for k in range(9)])
    result = play(trace, stepping(1000, admission=admission, max_running=3), policy)
    assert result.metrics["peak_batch"] == 3


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "topas-paper", "topas"])
def test_k_caps_the_admissions_of_an_event_for_every_policy(policy: str) -> None:
    trace = make_trace({"A": 0}, *[(0.0, single("A", ask(4, 6)))] * 5)
    _, entries = recorded(trace, policy, stepping(1000), Params(K=2))
    assert [len(decision.admit) for _, decision in entries] == [2, 2, 1]


def test_the_order_of_a_queue_does_not_depend_on_requests_yet_to_come() -> None:
    # In SGLang's mode a pass that admits nobody shuts the batch. Whether a tiny request will arrive
    # later must not decide whether the pass takes place.
    def admissions(*later: int) -> list[tuple[float, str]]:
        trace = make_trace(
            {"A": 0},
            (0.0, single("A", ask(10, 100))),
            (1.0, single("A", ask(30, 30))),
            (60.0, single("A", ask(30, 30))),
            *[(500.0, single("A", ask(1, 1)))] * len(later),
        )
        log = watched(trace, "fcfs", stepping(130, admission="sglang"))[1]
        return [entry for entry in log.admitted if entry[0] < 500]

    assert admissions() == admissions(1)


# --- metrics --------------------------------------------------------------------------------------------


def test_metrics_by_hand() -> None:
    trace = make_trace(
        {"A": 5, "B": 5},
        (10.0, single("A", ask(4, 5))),
        (12.0, single("B", ask(4, 3))),
    )
    metrics = play(trace, stepping(100)).metrics
    # Two steps alone, two together; both complete at 14.
    assert {k: v for k, v in metrics.items() if not k.startswith("decision_ms")} == {
        "mean_jct_s": 3.0,
        "p50_jct_s": 3.0,
        "p99_jct_s": pytest.approx(3.98),
        "max_jct_s": 4.0,
        "makespan_s": 4.0,
        "first_task_s": 4.0,
        "requests_per_s": 0.5,
        "mean_batch": 1.5,
        "peak_batch": 2,
        "prefix_loads": 2,
        "preemptions": 0,
        "recomputed_tokens": 0,
        "decisions": 2,
    }


def test_decision_times_come_from_the_clock_that_is_passed_in() -> None:
    ticks = iter(range(100))
    trace = make_trace({"A": 0}, *[(float(k), single("A", ask(4, 1))) for k in range(3)])
    result = simulate(trace, scripted(admit_all), stepping(100), clock=lambda: next(ticks) / 1000)
    assert result.metrics["decision_ms_mean"] == pytest.approx(1.0)
    assert result.metrics["decision_ms_p99"] == pytest.approx(1.0)
    rule = simulate(trace, "fcfs", stepping(100)).metrics
    assert (rule["decisions"], rule["decision_ms_mean"]) == (
        3,
        0.0,
    )  # decided inside the engine, without a clock


def test_the_peak_counts_requests_that_end_with_their_prefill() -> None:
    trace = make_trace({"A": 0}, *[(0.0, single("A", ask(4, 1)))] * 3)
    assert play(trace, stepping(100)).metrics["peak_batch"] == 3


def test_chains_and_first_task_are_measured_from_arrivals() -> None:
    trace = make_trace(
        {"A": 0}, (5.0, chain(("A", ask(1, 3)), ("A", ask(1, 2)))), (6.0, single("A", ask(1, 1)))
    )
    metrics = play(trace, stepping(100)).metrics
    assert (metrics["first_task_s"], metrics["makespan_s"]) == (1.0, 3.0)
    assert metrics["mean_jct_s"] == (3.0 + 0.0) / 2
