"""The rivals hrrn and kvflow: their orders, steps to execution, and a cache that knows them, by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from referee.cache import KvCache
from support_sim import SHAPES, Stage, ask, chain, jcts, make_profile, make_trace, single, stepping, watched

from topas.event import Event, Request, TaskState
from topas.online.foresight import steps_to_execution
from topas.online.tracker import LiveTask, Tracker
from topas.policies import BASELINES, PAPER_BASELINES, PAPER_POLICIES, QueuePolicy, get_policy, policy_names
from topas.profile import load_profile
from topas.residual import Residual
from topas.sim import simulate
from topas.trace import Trace
from topas.workflow import Workflow, dag_of


def test_the_papers_policies_and_baselines_are_known_and_its_baselines_count() -> None:
    assert set(PAPER_BASELINES) < set(BASELINES) < set(policy_names())
    assert set(BASELINES) - set(PAPER_BASELINES) == {"hrrn", "kvflow"}
    assert set(PAPER_BASELINES) < set(PAPER_POLICIES) < set(policy_names())
    assert "topas" not in PAPER_POLICIES


# --- hrrn: highest response ratio next ------------------------------------------------------------------


def queue(*rows: tuple[str, float, int, int, int]) -> Event:
    """Return waiting requests of A, whose prefix has 100 tokens: (id, arrival, input, cached, passed)."""
    dag = dag_of({"a": ()})
    waiting = [
        Request(
            name,
            name,
            "a",
            "A",
            input_tokens + 1,
            1.0,
            arrival_s=arrival_s,
            input_tokens=input_tokens,
            cached_tokens=cached,
            passed_tokens=passed,
        )
        for name, arrival_s, input_tokens, cached, passed in rows
    ]
    tasks = {row[0]: TaskState(0.0, dag, (Residual([1]),)) for row in rows}
    return Event(10.0, 10_000, {"A": 100}, tasks, waiting, [])


def order(event: Event, policy: str) -> list[str]:
    return list(get_policy(policy).decide(event).admit)


def test_hrrn_goes_by_passed_tokens_over_missing_tokens() -> None:
    event = queue(
        ("half", 0.0, 100, 0, 100),  # 100 passed, 200 missing
        ("two", 1.0, 50, 0, 300),  # 300 passed, 150 missing
        ("four", 2.0, 50, 100, 200),  # 200 passed, 50 missing: the prefix is there
        ("none", 3.0, 1, 0, 0),  # the shortest, and nothing has passed it yet
        ("whole", 4.0, 50, 150, 0),  # all of it is there: no prefill to wait for
    )
    assert order(event, "hrrn") == ["whole", "four", "two", "half", "none"]


def test_equal_ratios_of_hrrn_go_by_arrival_and_then_by_name() -> None:
    event = queue(
        ("c", 2.0, 100, 0, 400), ("b", 2.0, 50, 0, 300), ("a", 3.0, 0, 50, 100), ("d", 1.0, 0, 0, 200)
    )
    assert order(event, "hrrn") == ["d", "b", "c", "a"]


def test_hrrn_lets_a_duplicate_wait_until_its_prefix_is_there() -> None:
    event = queue(("again", 0.0, 10, -1, 900), ("first", 1.0, 10, 0, 0))
    assert order(event, "hrrn") == ["first", "again"]


@pytest.mark.parametrize(("short_s", "winner"), [(2.5, "short"), (11.5, "long")])
def test_hrrn_counts_tokens_since_a_request_came(short_s: float, winner: str) -> None:
    # One request runs at a time: a first one until 9, a second one of 50 tokens until 19. What was
    # prefilled before `short` came gives it nothing, whatever its length.
    trace = make_trace(
        {"A": 0, "L": 0, "S": 0},
        (0.0, single("A", ask(5, 10))),
        (1.0, single("A", ask(50, 11))),
        *sorted(
            [(2.0, single("L", ask(20, 2))), (short_s, single("S", ask(5, 2)))], key=lambda task: task[0]
        ),
    )
    _, log = watched(trace, "hrrn", stepping(1000, max_running=1))
    (third,) = [name for when, name in log.admitted if when == 19.0]
    assert third == {"short": "t03/s/0", "long": "t02/l/0"}[winner]


# --- kvflow: steps to execution -------------------------------------------------------------------------


def arrived(after: Mapping[str, tuple[str, ...]], agents: Mapping[str, str] | None = None) -> LiveTask:
    """Return a task whose stages have agents of the same name in capitals, unless told otherwise."""
    dag = dag_of(after)
    named = tuple((agents or {}).get(stage, stage.upper()) for stage in dag.names)
    workflow = Workflow("w", dag, named, (None,) * len(dag))
    return Tracker(load_profile("study")).task_arrived("t", workflow, 0.0)


def finish(task: LiveTask, *stages: str) -> LiveTask:
    for stage in stages:
        task.finished[task.dag.index[stage]] = True
    return task


DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


@pytest.mark.parametrize(
    ("done", "steps"),
    [
        ("", {"A": 0, "B": 1, "C": 1, "D": 2}),
        ("a", {"B": 0, "C": 0, "D": 1}),
        ("ab", {"C": 0, "D": 1}),  # the join waits for the other branch
        ("abc", {"D": 0}),
        ("abcd", {}),
    ],
)
def test_steps_to_execution_on_a_diamond(done: str, steps: dict[str, int]) -> None:
    assert steps_to_execution([finish(arrived(DIAMOND), *done)]) == steps


def test_a_join_is_as_far_as_its_longest_arm() -> None:
    shape = {"a": (), "b": ("a",), "c": ("b",), "z": ("a", "c")}
    assert steps_to_execution([arrived(shape)]) == {"A": 0, "B": 1, "C": 2, "Z": 3}
    assert steps_to_execution([finish(arrived(shape), "a")]) == {"B": 0, "C": 1, "Z": 2}


def test_an_agent_counts_where_it_is_wanted_soonest() -> None:
    twice = arrived({"a": (), "b": ("a",), "c": ("b",)}, {"c": "A"})
    assert steps_to_execution([twice]) == {"A": 0, "B": 1}
    assert steps_to_execution([finish(twice, "a")]) == {"B": 0, "A": 1}
    other = finish(arrived(DIAMOND), "a", "b", "c")
    assert steps_to_execution([arrived(DIAMOND), other]) == {"A": 0, "B": 1, "C": 1, "D": 0}
    assert steps_to_execution([]) == {}


def test_its_order_is_first_come_first_served() -> None:
    event = queue(("late", 2.0, 10, 100, 500), ("early", 1.0, 90, 0, 0))
    assert order(event, "kvflow") == order(event, "fcfs") == ["early", "late"]
    kvflow = get_policy("kvflow")
    assert isinstance(kvflow, QueuePolicy)
    assert kvflow.foresight


# --- kvflow: what is evicted ----------------------------------------------------------------------------


def idle_cache(budget: int, *idle: str, host: bool = False, swap_s_per_token: float = 0.0) -> KvCache:
    """Return a cache in which prefixes of 20 tokens lie idle, the first the longest."""
    cache = KvCache(budget, dict.fromkeys("ABCDZ", 20), host=host, swap_s_per_token=swap_s_per_token)
    for agent in idle:
        cache.acquire(agent, 0.0)
        cache.release(agent)
    return cache


def evictions(cache: KvCache) -> list[str]:
    """Return the resident prefixes in the order in which they go as use grows."""
    gone = []
    while cache.leftover:
        before = set(cache.resident)
        cache.used = cache.budget - cache.leftover + 1
        cache.trim(0.0)
        gone += sorted(before - set(cache.resident)) or ["context"]
    return gone


def test_the_prefix_with_most_steps_to_execution_goes_first() -> None:
    known = idle_cache(200, *"ABCZ")
    known.steps = {"A": 0, "B": 2, "C": 1}
    assert evictions(known) == ["Z", "B", "C", "A"]  # nobody will ask for Z
    assert evictions(idle_cache(200, *"ABCZ")) == ["A", "B", "C", "Z"]  # without foresight: by age


def test_of_prefixes_equally_far_the_oldest_goes_first() -> None:
    cache = idle_cache(200, *"CAB")
    cache.steps = {"A": 1, "B": 1, "C": 1}
    assert evictions(cache) == ["C", "A", "B"]


def test_contexts_go_before_any_prefix() -> None:
    cache = idle_cache(200, *"AB")
    cache.leave_context("A", "t", 0, 10)
    cache.steps = {"A": 0, "B": 5}
    assert evictions(cache) == ["context", "B", "A"]


# --- kvflow: what is loaded ahead -----------------------------------------------------------------------


def cache_with_host_copy_of(agent: str, budget: int, *idle: str) -> KvCache:
    """Return a cache that holds some idle prefixes, and a copy of another on the host; a second a token."""
    cache = idle_cache(budget, agent, *idle, host=True, swap_s_per_token=1.0)
    cache.evict_prefix(agent, 0.0)
    assert agent not in cache.resident
    return cache


def test_a_prefix_one_step_away_is_loaded_over_the_link() -> None:
    cache = cache_with_host_copy_of("B", 100, "A")
    cache.steps = {"A": 0, "B": 1}
    loads = cache.loads
    cache.load_ahead(100.0)
    assert sorted(cache.resident) == ["A", "B"]
    assert cache.loads == loads + 1
    assert cache.acquire("B", 105.0) == (120.0, False)  # a request that comes meanwhile waits for the rest
    cache.load_ahead(130.0)
    assert cache.loads == loads + 1


@pytest.mark.parametrize("steps", [{"B": 0}, {"B": 2}, {}])
def test_no_other_prefix_is_loaded_ahead(steps: dict[str, int]) -> None:
    cache = cache_with_host_copy_of("B", 100, "A")
    cache.steps = {"A": 0, **steps}
    cache.load_ahead(100.0)
    assert cache.resident == ["A"]


def test_a_prefix_without_a_host_copy_is_not_loaded_ahead() -> None:
    cache = idle_cache(100, "A", host=True)
    cache.steps = {"A": 0, "B": 1}
    cache.load_ahead(0.0)
    assert cache.resident == ["A"]


def test_a_load_ahead_takes_the_room_of_what_is_wanted_later_only() -> None:
    for steps, resident in (
        ({"A": 0, "B": 1, "C": 2, "D": 3}, ["A", "B", "C"]),  # D is wanted last
        ({"A": 0, "B": 1, "C": 0, "D": 1}, ["A", "C", "D"]),  # all others are wanted as soon
    ):
        cache = cache_with_host_copy_of("B", 60, *"ACD")
        cache.steps = steps
        cache.load_ahead(100.0)
        assert sorted(cache.resident) == resident
        assert cache.used + cache.leftover == 60


STEPS = st.dictionaries(st.sampled_from("ABCDZ"), st.integers(0, 3))


@given(STEPS, st.sets(st.sampled_from("ABCDZ")), st.sets(st.sampled_from("ABCD")), st.integers(0, 60))
def test_a_load_ahead_never_evicts_what_is_needed_as_soon(
    steps: dict[str, int], there: set[str], contexts: set[str], used: int
) -> None:
    cache = idle_cache(160, *"ABCDZ", host=True, swap_s_per_token=1.0)
    for agent in sorted(set("ABCDZ") - there):
        cache.evict_prefix(agent, 0.0)
    for agent in sorted(contexts & there):
        cache.leave_context(agent, "t", 0, 15)
    cache.used, cache.steps = used, steps
    cache.trim(0.0)
    before = set(cache.resident)
    cache.load_ahead(1000.0)
    assert cache.used + cache.leftover <= cache.budget
    assert {agent for agent in before - set(cache.resident) if steps.get(agent, 9) <= 1} == set()
    assert all(steps.get(agent) == 1 for agent in set(cache.resident) - before)


def _before_the_pipeline() -> list[tuple[float, dict[str, Stage]]]:
    """Return a task of A and B that leaves their prefixes, and a huge one of X that sends both to host."""
    return [(0.0, chain(("A", ask(5, 2)), ("B", ask(5, 2)))), (500.0, single("X", ask(95, 1)))]


def _end_s(trace: Trace, policy: str, swap_bytes_per_s: float, *, host: bool = True) -> float:
    profile = stepping(100, host_cache=host, swap_bytes_per_s=swap_bytes_per_s)
    return jcts(simulate(trace, policy, profile, check=True))[-1]


def test_a_load_ahead_overlaps_with_decoding() -> None:
    # A is loaded until 1010, and decodes until 1049; B's prefix comes meanwhile, at a token a second.
    last = (1000.0, chain(("A", ask(5, 40)), ("B", ask(5, 2))))
    trace = make_trace({"A": 10, "B": 30, "X": 0}, *_before_the_pipeline(), last)
    assert _end_s(trace, "kvflow", 1.0) == 1000 + 10 + 39 + 1
    # First come, first served loads it when B asks: behind X's 96 tokens, which made room for A.
    assert _end_s(trace, "fcfs", 1.0) >= 1000 + 10 + 39 + 30 + 1
    # Without a host tier there is nothing to load: both compute.
    assert _end_s(trace, "kvflow", 1.0, host=False) == _end_s(trace, "fcfs", 1.0, host=False)


def test_room_that_is_freed_while_nobody_waits_is_used() -> None:
    # At 1001 Y holds 51 tokens and A 15, so that B's 40 do not fit into 100. They do when Y ends at 1004,
    # though no request waits then. A, loaded at 1001.1, joins at the step's end, 1002, until 1031.
    tasks = [(1000.0, single("Y", ask(50, 5))), (1001.0, chain(("A", ask(5, 30)), ("B", ask(5, 2))))]
    trace = make_trace({"A": 10, "B": 40, "X": 0, "Y": 0}, *_before_the_pipeline(), *tasks)
    assert _end_s(trace, "kvflow", 100.0) == 1032.0
    assert _end_s(trace, "fcfs", 100.0) >= 1032.0 + 0.4


def test_eviction_by_steps_keeps_what_the_pipeline_wants_next() -> None:
    # Z, never wanted again, was used last. When A needs room, age would throw B out, which comes next.
    trace = make_trace(
        {"A": 30, "B": 30, "Z": 30},
        (0.0, single("B", ask(1, 1))),
        (100.0, single("Z", ask(1, 1))),
        (200.0, chain(("A", ask(5, 5)), ("B", ask(5, 2)))),
    )
    profile = make_profile(kv_budget_tokens=70)
    loads = {name: simulate(trace, name, profile).metrics["prefix_loads"] for name in ("fcfs", "kvflow")}
    assert loads == {"fcfs": 4, "kvflow": 3}


@pytest.mark.parametrize("shape", SHAPES)
def test_kvflow_serves_every_shape_under_all_invariants(shape: str) -> None:
    stages = {
        name: Stage(name.upper(), (ask(5, 3), ask(8, 2, tool_s=0.5)), after)
        for name, after in SHAPES[shape].items()
    }
    agents = {name.upper(): 25 for name in SHAPES[shape]}
    trace = make_trace(agents, *[(0.75 * k, stages) for k in range(8)])
    for admission in ("full", "sglang"):
        profile = make_profile(kv_budget_tokens=80, host_cache=True, admission=admission)
        assert len(simulate(trace, "kvflow", profile, check=True).tasks) == 8
