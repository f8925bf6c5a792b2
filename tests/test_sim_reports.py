"""What users of serving engines ran into, replayed: each test's docstring names the public report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from support_sim import (
    Stage,
    WatchedEngine,
    ask,
    jcts,
    make_profile,
    make_trace,
    recorded,
    scripted,
    single,
    watched,
)
from support_sim import stepping as _stepping

from topas.cli import main
from topas.errors import InputError, SimulationError
from topas.event import Event
from topas.policies import JointPolicy, get_policy, policy_names
from topas.profile import Profile
from topas.sim import build, simulate
from topas.trace import Trace
from topas.trace.format import write_trace
from topas.workflow import StageProfile

POLICIES = [*policy_names(), "topas-score"]
QUEUE_POLICIES = [name for name in POLICIES if not name.startswith("topas")]
TOPAS_POLICIES = [name for name in POLICIES if name.startswith("topas")]


stepping = partial(_stepping, swap_bytes_per_s=1e9)
"""An engine like that, whose link is fast."""


# --- starvation -----------------------------------------------------------------------------------------

COLD_ARRIVAL_S = 5.0


def _cold_wait_s(policy: str, hot: int) -> tuple[float, float]:
    """Return how long a cold request waits among so many hot ones, and when the last of these arrives.

    Hot requests overlap, so that their prefix is always in use, but the engine keeps up with them. The
    prefixes of both agents with a request each exceed the memory.
    """
    tasks = [(0.46 * k, single("H", ask(10, 10))) for k in range(hot)]
    tasks.append((COLD_ARRIVAL_S, single("C", ask(10, 10))))
    trace = make_trace({"H": 40, "C": 40}, *sorted(tasks, key=lambda task: task[0]))
    profile = make_profile(
        kv_budget_tokens=80,
        prefill_s_per_token=1 / 64,
        decode_base_s=1 / 16,
        host_cache=True,
        swap_bytes_per_s=512.0,
    )
    _, log = watched(trace, policy, profile)
    admitted_s = next(when for when, name in log.admitted if name.endswith("/c/0"))
    return admitted_s - COLD_ARRIVAL_S, 0.46 * (hot - 1)


@pytest.mark.parametrize(
    "policy",
    ["topas", "topas-paper", "topas-no-reuse", "fcfs", "parrot-fcfs", "autellix-las", "hrrn", "kvflow"],
)
def test_a_cold_request_among_endless_hot_ones_waits_for_a_bounded_time(policy: str) -> None:
    """From SGLang #31954 (LPM starves cold requests): the wait does not grow with the hot stream."""
    wait_s, _ = _cold_wait_s(policy, 60)
    assert wait_s < 5.0
    assert _cold_wait_s(policy, 120)[0] == wait_s


@pytest.mark.parametrize("policy", ["lpm", "topas-no-aging", "topas-base"])
def test_without_aging_the_cold_request_waits_for_the_end_of_the_hot_stream(policy: str) -> None:
    """From SGLang #31954, shown as it is: LPM starves the cold request, and so does TOPAS without aging."""
    for hot in (60, 120):
        wait_s, last_s = _cold_wait_s(policy, hot)
        assert COLD_ARRIVAL_S + wait_s > last_s


# --- a head that does not fit ---------------------------------------------------------------------------


def _huge_head() -> Trace:
    """Return a long request, one that needs the whole engine, and a small one behind it."""
    return make_trace(
        {"A": 10},
        (0.0, single("A", ask(10, 40))),
        (1.0, single("A", ask(50, 40))),
        (2.0, single("A", ask(10, 10))),
    )


@pytest.mark.parametrize("policy", TOPAS_POLICIES)
def test_behind_a_huge_head_topas_admits_what_fits(policy: str) -> None:
    """From SGLang #38478 (a head that does not fit idles the GPU): the small request runs at once."""
    _, log = watched(_huge_head(), policy, stepping(100))
    assert log.time_of("admitted", "t02/a/0") == 2.0
    assert log.time_of("admitted", "t01/a/0") >= log.time_of("finished", "t00/a/0")


@pytest.mark.parametrize("policy", QUEUE_POLICIES)
def test_behind_a_huge_head_a_queue_stops_by_definition(policy: str) -> None:
    """From SGLang #38478, shown as it is: a queue policy admits from the head and stops there."""
    _, log = watched(_huge_head(), policy, stepping(100))
    assert log.time_of("admitted", "t01/a/0") == log.time_of("finished", "t00/a/0")
    assert log.time_of("admitted", "t02/a/0") >= log.time_of("admitted", "t01/a/0")


# --- a latched "batch full" -----------------------------------------------------------------------------


@pytest.mark.parametrize("admission", ["full", "sglang"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_free_slot_goes_to_a_waiter_at_once(policy: str, admission: str) -> None:
    """From SGLang #35537, #22518 (a latched "batch full" flag): who waits is admitted when a slot is free."""
    trace = make_trace({"A": 10}, *[(0.0, single("A", ask(5, 4)))] * 7)
    _, log = watched(trace, policy, stepping(1000, admission=admission, max_running=2))
    finishes = [when for when, _ in log.finished]
    assert [when for when, _ in log.admitted] == [0.0, 0.0, *finishes[:-2]]
    assert len(finishes) == 7


@pytest.mark.parametrize("admission", ["full", "sglang"])
@pytest.mark.parametrize("policy", POLICIES)
def test_free_memory_goes_to_a_waiter_at_once(policy: str, admission: str) -> None:
    """From SGLang #35537, #22518: the same where memory, not slots, is short."""
    trace = make_trace({"A": 10}, *[(0.0, single("A", ask(20, 4)))] * 5)
    _, log = watched(trace, policy, stepping(10 + 2 * 24 + 8, admission=admission))
    finishes = [when for when, _ in log.finished]
    assert [when for when, _ in log.admitted] == [0.0, 0.0, *finishes[:-2]]
    assert len(finishes) == 5


# --- retraction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("redo", ["decode", "prefill", "keep"])
@pytest.mark.parametrize("policy", ["fcfs", "lpm", "spf", "topas-paper", "topas"])
def test_under_tight_memory_requests_keep_finishing(policy: str, redo: str) -> None:
    """From SGLang #38019, #26248 (retraction livelock, throughput collapse).

    Requests are retracted, but between two completions there is a bounded number of decisions, and the
    whole takes little longer than with full reservations, which never retract.
    """
    trace = make_trace({"A": 10}, *[(float(k), single("A", ask(10, 40))) for k in range(20)])
    result, log = watched(trace, policy, stepping(150, admission="sglang", redo=redo))
    assert log.preempted
    finishes = [0.0, *(when for when, _ in log.finished)]
    assert len(finishes) == 21
    late = [when for when in log.decisions if when > 20.0]  # behind the last arrival
    for before, after in pairwise(finishes):
        assert sum(before < when <= after for when in late) <= 6
    assert max(Counter(name for _, name in log.preempted).values()) <= 5
    full = simulate(trace, policy, stepping(150), check=True)
    assert result.metrics["makespan_s"] <= 1.5 * full.metrics["makespan_s"]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "topas-paper", "topas"])
def test_throughput_recovers_after_a_burst_of_retractions(policy: str) -> None:
    """From SGLang #26248 (throughput collapse): a lone request long after the burst is as fast as ever."""
    burst = [(float(k), single("A", ask(10, 40))) for k in range(20)]
    trace = make_trace(
        {"A": 10}, *burst, (1000.0, single("A", ask(10, 40))), (1001.0, single("A", ask(10, 40)))
    )
    result, log = watched(trace, policy, stepping(150, admission="sglang"))
    assert log.preempted
    assert jcts(result)[-2:] == [1039.0, 1040.0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_retracted_request_resumes_before_a_later_peer(policy: str) -> None:
    """From vLLM #41951 (a preempted request loses its place): its arrival still counts.

    The third request is retracted at 34, the fourth has waited since 30. Both are equal but for arrival.
    """
    arrivals = (0.0, 1.0, 2.0, 30.5)
    trace = make_trace({"A": 0}, *[(when, single("A", ask(10, 40))) for when in arrivals])
    _, log = watched(trace, policy, stepping(132, admission="sglang"))
    assert (34.0, "t02/a/0") in log.preempted
    resumed_s = [when for when, name in log.admitted if name == "t02/a/0"][1]
    assert resumed_s <= log.time_of("admitted", "t03/a/0")
    assert [name for _, name in log.admitted[3:]][:2] == ["t02/a/0", "t03/a/0"]


# --- requests that can never fit ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("admission", "most"), [("full", 60), ("sglang", 59)])
def test_a_request_that_can_never_fit_is_refused_at_entry(policy: str, admission: str, most: int) -> None:
    """From vLLM #52530 (a request that can never fit is retried for ever): a clear error, a tight limit."""
    profile = make_profile(kv_budget_tokens=60, admission=admission)
    fits = make_trace({"A": 20}, (0.0, single("A", ask(10, 5, most - 30))))
    assert len(simulate(fits, policy, profile, check=True).tasks) == 1
    wide = make_trace({"A": 20}, (0.0, single("A", ask(1, 1), ask(10, 5, most - 29))))
    with pytest.raises(InputError) as error:
        simulate(wide, policy, profile)
    text = str(error.value)
    assert "tasks.t00.stages.a.rounds.1" in text
    assert f"prefix 20, input 10, max_new {most - 29}" in text
    assert "60" in text


def test_the_command_refuses_it_with_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From vLLM #52530, at the command line."""
    path = tmp_path / "wide.jsonl"
    write_trace(make_trace({"A": 36_000}, (0.0, single("A", ask(1, 1)))), path)
    assert main(["simulate", str(path), "--profile", "study", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("topas: ")
    assert err.count("\n") == 1
    assert "needs 36002 KV tokens" in err


# --- ping-pong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swap_bytes_per_s", [16.0, 4096.0, 1e9])
@pytest.mark.parametrize("policy", TOPAS_POLICIES)
def test_equal_contenders_do_not_swap(policy: str, swap_bytes_per_s: float) -> None:
    """From vLLM #54530, #25538 (equal-priority ping-pong): equal score is no reason to preempt.

    Two equal tasks of thirty rounds contend for a memory that holds one of their prefixes.
    """
    known = StageProfile(rounds=40, input_tokens=10, max_new_tokens=10)
    talk = [ask(10, 10, tool_s=0.25)] * 30
    trace = make_trace(
        {"A": 40, "B": 40},
        (0.0, {"a": Stage("A", talk, profile=known)}),
        (0.0, {"b": Stage("B", talk, profile=known)}),
    )
    profile = stepping(60, host_cache=True, swap_bytes_per_s=swap_bytes_per_s)
    result, log = watched(trace, policy, profile)
    assert log.preempted == []
    # They take turns: neither waits for the other's last round.
    assert max(jcts(result)) - min(jcts(result)) < 0.05 * max(jcts(result))


@pytest.mark.parametrize("policy", [name for name in TOPAS_POLICIES if name != "topas-score"])
def test_an_equal_newcomer_does_not_take_a_running_requests_place(policy: str) -> None:
    """From vLLM #54530, #25538: who runs stays, however often an equal arrives.

    The optimum of the paper's score does preempt here: what waits ages, stored credit does not. The greedy
    search does not see it.
    """
    tasks = [(0.25 * k, single("AB"[k % 2], ask(10, 10))) for k in range(12)]
    trace = make_trace({"A": 40, "B": 40}, *tasks)
    _, log = watched(trace, policy, make_profile(kv_budget_tokens=60, host_cache=True))
    assert log.preempted == []


def _leave_and_come_back() -> Trace:
    """Return two short equals of A, together at 0, and one long request of B at 1: one runs at a time."""
    return make_trace(
        {"A": 0, "B": 0},
        (0.0, single("A", ask(10, 40))),
        (0.0, single("A", ask(10, 40))),
        (1.0, single("B", ask(10, 10))),
    )


@pytest.mark.parametrize("policy", TOPAS_POLICIES)
def test_a_preempted_request_resumes_before_an_unstarted_equal(policy: str) -> None:
    """From vLLM #41951 (a preempted request loses its place): TOPAS resumes the earlier of two equals."""
    topas = get_policy(policy)

    def choose(event: Event) -> tuple[Sequence[str], Sequence[str]]:
        if any(request.id == "t02/b/0" for request in event.waiting):
            return ["t02/b/0"], [request.id for request in event.running]
        decision = topas.decide(event)
        return decision.admit, decision.preempt

    _, log = watched(_leave_and_come_back(), scripted(choose), stepping(1000, max_running=1))
    assert [name for _, name in log.admitted] == ["t00/a/0", "t02/b/0", "t00/a/0", "t01/a/0"]


@pytest.mark.parametrize("admission", ["full", "sglang"])
@pytest.mark.parametrize("policy", TOPAS_POLICIES)
def test_no_decision_both_admits_and_preempts_a_request(policy: str, admission: str) -> None:
    """From vLLM #23347 (victim already scheduled in this step): the two lists never share a request."""
    stages = {
        "a": Stage("A", (ask(10, 10),)),
        "b": Stage("B", (ask(10, 30),), ("a",)),
        "c": Stage("C", (ask(10, 5),), ("a",)),
        "d": Stage("D", (ask(10, 20),), ("b", "c")),
    }
    trace = make_trace(dict.fromkeys("ABCD", 30), *[(1.5 * k, stages) for k in range(12)])
    profile = make_profile(kv_budget_tokens=130, admission=admission, swap_bytes_per_s=1e4, host_cache=True)
    _, entries = recorded(trace, policy, profile)
    assert policy == "topas" or any(decision.preempt for _, decision in entries)
    for event, decision in entries:
        waiting, running = {r.id for r in event.waiting}, {r.id for r in event.running}
        assert set(decision.admit) <= waiting
        assert set(decision.preempt) <= running
        assert not set(decision.admit) & set(decision.preempt)
        assert len({*decision.admit, *decision.preempt}) == len(decision.admit) + len(decision.preempt)


# --- prefixes in transit, locks -------------------------------------------------------------------------


@pytest.mark.parametrize("admission", ["full", "sglang"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_prefix_in_transit_holds_nobody_up(policy: str, admission: str) -> None:
    """From vLLM #45388 (a load parked behind the head): others come and go while a prefix is loaded."""
    small = single("Y", ask(10, 10))
    trace = make_trace(
        {"A": 64, "X": 0, "Y": 0},
        (0.0, single("A", ask(16, 2))),
        (10.0, single("X", ask(150, 1))),
        (1000.0, single("A", ask(16, 2))),
        *[(1000.0 + k, small) for k in range(1, 6)],
    )
    # The load takes 64 x 2 s, and who lets nothing lie idle moves X's 151 tokens out before it; every Y is
    # served meanwhile.
    profile = stepping(200, admission=admission, host_cache=True, swap_bytes_per_s=0.5)
    result, log = watched(trace, policy, profile)
    assert log.time_of("admitted", "t02/a/0") == 1000.0
    known = get_policy(policy)
    moves_out = isinstance(known, JointPolicy) and not known.leaves_idle
    assert jcts(result)[2] == 1000.0 + (302.0 if moves_out else 0.0) + 128.0 + 1.0
    assert max(jcts(result)[3:]) <= 1000.0 + 5 + 10


@pytest.mark.parametrize("admission", ["full", "sglang"])
@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_stays_locked_at_the_end(policy: str, admission: str) -> None:
    """From SGLang PR #20049 (a lock never freed): tokens in use return to zero, and so do prefix users."""
    stages = {"a": Stage("A", (ask(10, 20),)), "b": Stage("B", (ask(10, 20),), ("a",))}
    trace = make_trace({"A": 30, "B": 30}, *[(float(k), stages) for k in range(10)])
    engine = WatchedEngine(trace, policy, stepping(150, admission=admission, host_cache=True))
    engine.run()
    assert (engine.cache.used, engine.reserved, engine.decoding, engine.max_left) == (0, 0, 0, 0)
    assert not engine.cache.active


# --- watchdogs ------------------------------------------------------------------------------------------


def test_a_policy_that_admits_nobody_is_named() -> None:
    """From inference-sim #963 (173,622 failed allocations for one request): no idle spinning."""
    trace = make_trace({"A": 10}, (0.0, single("A", ask(5, 5))), (3.0, single("A", ask(5, 5))))
    with pytest.raises(SimulationError, match=r"^sloth admits none of 2 waiting requests .* at 3\.000 s"):
        simulate(trace, scripted(lambda _: ([], []), "sloth"), make_profile(), check=True)


def _swap_always(event: Event) -> tuple[list[str], list[str]]:
    """Preempt what runs and admit another, at every event."""
    running = [request.id for request in event.running]
    return [min(request.id for request in event.waiting)], running


@pytest.mark.parametrize(
    "profile",
    [stepping(1200, admission="sglang", max_running=1), stepping(560, host_cache=True, max_running=1)],
    ids=["each prefill is an event", "each load is an event"],
)
def test_a_policy_that_preempts_for_ever_is_stopped(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From inference-sim #963, vLLM #25538: preemptions without end that finish no request are a livelock."""
    monkeypatch.setattr(build, "FRUITLESS_PREEMPTIONS", 300)
    tasks = [(when, single(agent, ask(5, 500))) for when, agent in ((0.0, "A"), (2.5, "B"), (5.5, "A"))]
    trace = make_trace({"A": 40, "B": 40}, *tasks)
    with pytest.raises(SimulationError, match=r"^livelock at .* under restless$"):
        simulate(trace, scripted(_swap_always, "restless"), profile, check=True)


def test_a_policy_that_preempts_at_a_few_events_gets_through() -> None:
    """The same policy on an engine whose events are arrivals and completions only."""
    tasks = [(when, single(agent, ask(5, 500))) for when, agent in ((0.0, "A"), (2.5, "B"), (5.5, "A"))]
    trace = make_trace({"A": 40, "B": 40}, *tasks)
    result = simulate(trace, scripted(_swap_always, "restless"), stepping(560, max_running=1), check=True)
    assert len(result.tasks) == 3
    assert result.metrics["preemptions"] == 2
