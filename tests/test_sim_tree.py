"""The simulator's options for engines as they are: radix tree, costs of prefill, time outside the engine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_sim import PREFILL_S, STEP_S, Stage, ask, chain, make_profile, make_trace, single

from topas.policies import policy_names
from topas.profile import Profile
from topas.sim import simulate
from topas.trace import Round, Trace

SGLANG = {"admission": "sglang", "redo": "keep"}


def jcts(trace: Trace, profile: Profile, policy: str = "fcfs") -> list[float]:
    return [task.jct_s for task in simulate(trace, policy, profile, check=True).tasks]


def burst(count: int, prefix: int, spec: Round) -> Trace:
    return make_trace({"A": prefix}, *((0.0, single("A", spec)) for _ in range(count)))


def test_each_request_of_a_chain_spends_its_time_outside_the_engine() -> None:
    trace = make_trace({"A": 4}, (0.0, chain(("A", ask(2, 3)), ("A", ask(2, 3)), ("A", ask(2, 3)))))
    (inside_s,) = jcts(trace, make_profile())
    assert jcts(trace, make_profile(request_s=0.5)) == [inside_s + 3 * 0.5]


def test_in_a_tree_each_request_of_a_batch_computes_a_prefix_that_is_missing() -> None:
    trace = burst(3, 8, ask(2, 1))
    assert jcts(trace, make_profile())[0] == (8 + 3 * 2) * PREFILL_S
    assert jcts(trace, make_profile(prefix_sharing="tree"))[0] == 3 * (8 + 2) * PREFILL_S


def test_what_the_tree_has_is_computed_by_nobody() -> None:
    trace = make_trace({"A": 8}, (0.0, single("A", ask(2, 1))), (100.0, single("A", ask(2, 1))))
    assert jcts(trace, make_profile(prefix_sharing="tree")) == [10 * PREFILL_S, 2 * PREFILL_S]


def test_copies_of_a_prefix_take_room_until_the_batch_is_through() -> None:
    trace = burst(3, 100, ask(2, 9))
    room = make_profile(kv_budget_tokens=250, **SGLANG)
    shared = simulate(trace, "fcfs", room).metrics
    copied = simulate(trace, "fcfs", room.model_copy(update={"prefix_sharing": "tree"}), check=True).metrics
    assert (shared["peak_batch"], copied["peak_batch"]) == (3, 3)
    # two copies fit beside each other, the third request comes when one of them is gone
    cost = {"prefill_base_s": 10.0, "prefill_s_per_token": 0.0, "decode_base_s": 0.0}
    slow = room.model_copy(update=cost)
    assert jcts(trace, slow) == [10.0, 10.0, 10.0]
    assert jcts(trace, slow.model_copy(update={"prefix_sharing": "tree"})) == [20.0, 20.0, 20.0]


@pytest.mark.parametrize("policy", ["topas-paper", "topas"])
def test_a_joint_policy_sends_one_request_ahead_to_compute_a_missing_prefix(policy: str) -> None:
    trace = burst(3, 8, ask(2, 1))
    tree = make_profile(prefix_sharing="tree", prefill_base_s=1.0, **SGLANG)
    assert jcts(trace, tree, policy) == [1 + 10 * PREFILL_S, *[2 + (8 + 3 * 2) * PREFILL_S] * 2]


def test_in_a_tree_attention_reads_a_shared_prefix_for_each_request() -> None:
    trace = burst(2, 8, ask(2, 2))
    costs = {"prefill_s_per_token": 0.0, "decode_base_s": 0.0, "decode_s_per_kv_token": 1.0}
    assert jcts(trace, make_profile(**costs)) == [8 + 2 * 3, 8 + 2 * 3]
    assert jcts(trace, make_profile(prefix_sharing="tree", **costs)) == [2 * (8 + 3), 2 * (8 + 3)]


def test_a_prefill_batch_costs_what_its_make_up_costs() -> None:
    free = {"prefill_s_per_token": 0.0, "prefix_sharing": "tree"}
    warm = make_trace({"A": 8}, (0.0, single("A", ask(2, 1))), (100.0, single("A", ask(2, 1))))
    expected: Mapping[str, tuple[float, float]] = {
        "prefill_s_per_seq": (1.0, 1.0),
        "prefill_s_per_cached_token": (0.0, 8.0),
        "prefill_s_per_pair": (10.0**2, 10.0**2 - 8.0**2),
        "prefill_s_per_cached_pair": (0.0, 8.0**2),
    }
    for name, times in expected.items():
        assert tuple(jcts(warm, make_profile(**free, **{name: 1.0}))) == times, name


def test_a_request_of_known_length_reserves_all_of_it() -> None:
    trace = make_trace({"A": 0}, *((k * 0.01, single("A", ask(10, 100))) for k in range(2)))
    room = make_profile(kv_budget_tokens=200, **SGLANG)
    first, second = (task.completion_s for task in simulate(trace, "fcfs", room).tasks)
    assert second - first < 50 * STEP_S  # by the ratio both fit: they run side by side
    known = room.model_copy(update={"ignore_eos": True})
    first, second = (task.completion_s for task in simulate(trace, "fcfs", known, check=True).tasks)
    assert second - first > 99 * STEP_S  # one after the other


def test_requests_that_may_end_early_reserve_by_the_ratio_all_the_same() -> None:
    trace = make_trace({"A": 0}, *((k * 0.01, single("A", ask(10, 40, 90))) for k in range(3)))
    room = make_profile(kv_budget_tokens=200, **SGLANG)
    assert jcts(trace, room) == jcts(trace, room.model_copy(update={"ignore_eos": True}))


def test_lpm_lets_duplicates_of_a_missing_prefix_wait_behind_others() -> None:
    def begun(sharing: str) -> list[int]:
        stages = [single("A", ask(2, 1)), single("A", ask(2, 1)), single("B", ask(2, 1))]
        trace = make_trace({"A": 40, "B": 40}, *((0.0, stage) for stage in stages))
        profile = make_profile(max_running=2, prefill_base_s=1.0, prefix_sharing=sharing, **SGLANG)
        times = jcts(trace, profile, "lpm")
        return sorted(range(3), key=lambda k: (times[k], k))

    assert begun("batch") == [0, 1, 2]
    assert begun("tree") == [0, 2, 1]


def test_each_copy_of_a_prefix_that_is_being_computed_takes_room() -> None:
    # 60 + 14 | 60 + 15 | 60 + 15: the third copy would make 224 of 220 tokens
    stages = [single("A", ask(tokens, 1)) for tokens in (13, 14, 14)]
    trace = make_trace({"A": 60}, *((0.0, stage) for stage in stages))
    profile = make_profile(kv_budget_tokens=220, prefix_sharing="tree", prefill_base_s=1.0)
    result = simulate(trace, "fcfs", profile, check=True)
    assert [task.jct_s for task in result.tasks] == pytest.approx([10, 10, 12], rel=0.1)


PLAIN = ("prefill_s_per_seq", "prefill_s_per_cached_token", "prefill_s_per_pair", "prefill_s_per_cached_pair")


def test_a_profile_shows_details_only_where_it_uses_them() -> None:
    fields = Profile.model_fields
    assert all(fields[name].default == 0 for name in (*PLAIN, "request_s"))
    assert (fields["prefix_sharing"].default, fields["ignore_eos"].default) == ("batch", False)
    plain = make_profile().model_dump(mode="json")
    assert not plain.keys() & {*PLAIN, "request_s", "prefix_sharing", "ignore_eos"}
    measured = make_profile(request_s=0.5, prefix_sharing="tree")
    assert measured.model_dump(mode="json").items() - plain.items() == {
        ("request_s", 0.5),
        ("prefix_sharing", "tree"),
    }
    assert Profile(**measured.model_dump()) == measured


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 20),
            st.sampled_from("AB"),
            st.integers(0, 30),
            st.integers(1, 30),
            st.integers(0, 20),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(policy_names()),
    st.sampled_from(["full", "sglang"]),
    st.booleans(),
    st.booleans(),
)
def test_the_invariants_hold_with_all_options_on(
    drawn: list[tuple[float, str, int, int, int]],
    policy: str,
    admission: str,
    host: bool,  # noqa: FBT001  drawn
    ignore_eos: bool,  # noqa: FBT001  drawn
) -> None:
    tasks = []
    for at_s, agent, given_, out, more in sorted(drawn):
        rounds = (ask(given_, out, out + more), ask(given_ + out, out, reused_tokens=given_))
        tasks.append((at_s, {"v": Stage(agent, rounds)}))
    profile = make_profile(
        kv_budget_tokens=220,
        admission=admission,
        redo="keep",
        host_cache=host,
        prefix_sharing="tree",
        ignore_eos=ignore_eos,
        request_s=0.3,
        prefill_base_s=0.5,
        prefill_s_per_seq=0.1,
        prefill_s_per_cached_token=0.01,
        prefill_s_per_pair=0.001,
        decode_s_per_kv_token=0.001,
        max_running=4,
    )
    result = simulate(make_trace({"A": 60, "B": 40}, *tasks), policy, profile, check=True)
    assert len(result.tasks) == len(drawn)
    assert all(task.jct_s > 2 * 0.3 for task in result.tasks)
