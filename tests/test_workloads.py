"""The workload generators: what the paper says of each, and what stays put when something is varied."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topas.errors import InputError
from topas.trace import Round, Trace
from topas.trace.format import parse_trace, trace_lines
from topas.workflow import StageProfile
from traces.arrivals import poisson_arrivals
from traces.workloads import WORKLOADS, WorkloadOptions, generate
from traces.workloads.lengths import length_tokens

VARIED = tuple(name for name in WORKLOADS if name != "figure-2")
FIXED_LENGTHS = ("chain-3", "dag-4", "dag-10-wide", "two-agent")
METAGPT = ("metagpt-sop", "metagpt-tl")


def make(
    name: str,
    tasks: int = 5,
    rate_per_s: float = 0.1,
    seed: int = 0,
    **options: Any,  # noqa: ANN401  options of every type
) -> Trace:
    return generate(name, rate_per_s=rate_per_s, tasks=tasks, seed=seed, options=WorkloadOptions(**options))


def edges(trace: Trace, workflow: str) -> dict[str, tuple[str, ...]]:
    dag = trace.workflows[workflow].dag
    return {name: tuple(dag.names[p] for p in dag.before[k]) for k, name in enumerate(dag.names)}


def requests(trace: Trace) -> list[Round]:
    return [spec for task in trace.tasks for rounds in task.rounds for spec in rounds]


def arrivals(trace: Trace) -> list[float]:
    return [task.arrival_s for task in trace.tasks]


def test_chain_3_is_a_chain_of_three_agents() -> None:
    trace = make("chain-3")
    assert edges(trace, "chain-3") == {"A": (), "B": ("A",), "C": ("B",)}
    assert dict(trace.agents) == {"A": 9000, "B": 9000, "C": 9000}
    assert trace.workflows["chain-3"].agents == ("A", "B", "C")


def test_dag_4_forks_and_joins() -> None:
    trace = make("dag-4")
    assert edges(trace, "dag-4") == {"A": (), "B": ("A",), "C": ("A",), "D": ("B", "C")}
    assert sorted(trace.agents) == ["A", "B", "C", "D"]


def test_dag_10_wide_has_eight_branches_between_root_and_join() -> None:
    trace = make("dag-10-wide")
    found = edges(trace, "dag-10-wide")
    assert len(found) == len(trace.agents) == 10
    assert found["A"] == ()
    assert found["J"] == tuple("BCDEFGHI")
    assert all(found[branch] == ("A",) for branch in "BCDEFGHI")


@pytest.mark.parametrize("name", FIXED_LENGTHS)
def test_synthetic_lengths_are_fixed(name: str) -> None:
    assert len(set(requests(make(name, tasks=20)))) == 1


def test_the_defaults_of_the_synthetic_workloads() -> None:
    assert set(requests(make("chain-3"))) == {Round(400, 500, 500)}
    assert make("chain-3").workflows["chain-3"].profiles == (StageProfile(1, 400, 500),) * 3


def test_metagpt_sop_is_a_pipeline_of_five_roles() -> None:
    trace = make("metagpt-sop")
    assert dict(trace.agents) == {
        "ProductManager": 4650,
        "Architect": 2000,
        "ProjectManager": 1150,
        "Engineer": 8000,
        "QaEngineer": 1500,
    }
    workflow = trace.workflows["metagpt-sop"]
    assert workflow.agents == ("ProductManager", "Architect", "ProjectManager", "Engineer", "QaEngineer")
    assert workflow.dag.before == ((), (0,), (1,), (2,), (3,))


def test_metagpt_tl_alternates_a_team_leader_with_four_specialists() -> None:
    trace = make("metagpt-tl")
    workflow = trace.workflows["metagpt-tl"]
    assert len(workflow.dag) == 9
    assert workflow.dag.before == ((), *((k,) for k in range(8)))
    assert workflow.agents[::2] == ("TeamLeader",) * 5
    assert workflow.agents[1::2] == ("ProductManager", "Architect", "ProjectManager", "Engineer")
    assert dict(trace.agents) == {
        "TeamLeader": 3750,
        "ProductManager": 4650,
        "Architect": 2000,
        "ProjectManager": 1150,
        "Engineer": 8000,
    }


@pytest.mark.parametrize("name", METAGPT)
def test_metagpt_calls_vary_and_their_inputs_grow_along_the_path(name: str) -> None:
    trace = make(name, tasks=200)
    first = [[task.rounds[k][0] for task in trace.tasks] for k in range(len(trace.tasks[0].rounds))]
    for stage in first:
        assert len({spec.output_tokens for spec in stage}) > 100
        assert len({spec.max_new_tokens for spec in stage}) == 1
    means = [fmean(spec.input_tokens for spec in stage) for stage in first]
    assert all(earlier < later for earlier, later in pairwise(means))


@pytest.mark.parametrize("name", METAGPT)
def test_an_engineer_works_in_rounds_that_repeat_the_conversation(name: str) -> None:
    trace = make(name, tasks=100)
    k = trace.workflows[name].agents.index("Engineer")
    assert {len(task.rounds[k]) for task in trace.tasks} == {2, 3}
    for task in trace.tasks:
        *earlier, last = task.rounds[k]
        assert last.tool_s == 0
        assert all(spec.tool_s == 2 for spec in earlier)
        assert task.rounds[k][0].reused_tokens == 0
        for before, after in pairwise(task.rounds[k]):
            assert after.reused_tokens == before.input_tokens + before.output_tokens
            assert after.input_tokens > after.reused_tokens


@pytest.mark.parametrize("name", METAGPT)
def test_a_metagpt_prefix_option_scales_all_roles(name: str) -> None:
    plain, scaled = make(name).agents, make(name, prefix_tokens=16000).agents
    assert scaled == {role: 2 * tokens for role, tokens in plain.items()}
    assert max(scaled.values()) == 16000


def test_metagpt_input_and_output_options_scale_all_stages() -> None:
    trace = make("metagpt-sop", input_tokens=2600, output_tokens=2400, input_sigma=0, output_sigma=0)
    assert [rounds[0].input_tokens for rounds in trace.tasks[0].rounds] == [600, 1100, 1600, 2100, 2600]
    assert [rounds[0].output_tokens for rounds in trace.tasks[0].rounds] == [1800, 2000, 1400, 2400, 1600]
    assert [rounds[0].max_new_tokens for rounds in trace.tasks[0].rounds] == [3600, 4000, 2800, 4800, 3200]


def test_two_agent_has_as_many_requests_for_each_agent() -> None:
    for order, expected in (("alternating", "ABABAB"), ("grouped", "AAABBB"), (None, "ABABAB")):
        trace = make("two-agent", tasks=3, order=order)
        assert "".join(task.workflow.agents[0] for task in trace.tasks) == expected
        assert all(len(task.workflow.dag) == 1 for task in trace.tasks)


def test_the_orders_of_two_agent_differ_in_nothing_else() -> None:
    alternating, grouped = (make("two-agent", order=order) for order in ("alternating", "grouped"))
    assert arrivals(alternating) == arrivals(grouped)
    assert requests(alternating) == requests(grouped) == [Round(430, 1146, 1146)] * 10
    assert dict(alternating.agents) == {"A": 6832, "B": 6832}


def test_figure_2_is_two_tasks_at_0_and_2_whatever_is_asked_for() -> None:
    for tasks, rate, seed in ((1, 1.0, 0), (50, 0.1, 7)):
        trace = make("figure-2", tasks=tasks, rate_per_s=rate, seed=seed)
        assert [(task.id, task.arrival_s) for task in trace.tasks] == [("t0", 0.0), ("t1", 2.0)]
        assert edges(trace, "figure-2") == {"A": (), "B": ("A",), "C": ("B",)}
        assert dict(trace.agents) == {"A": 1, "B": 1, "C": 1}
        assert set(requests(trace)) == {Round(4, 1, 1)}


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_a_valid_trace_and_repeats(name: str) -> None:
    lines = list(trace_lines(make(name, tasks=12, seed=3)))
    assert list(trace_lines(parse_trace(lines, name))) == lines
    assert list(trace_lines(make(name, tasks=12, seed=3))) == lines


@pytest.mark.parametrize("name", VARIED)
def test_another_seed_gives_another_trace(name: str) -> None:
    assert arrivals(make(name, seed=0)) != arrivals(make(name, seed=1))


@pytest.mark.parametrize("name", VARIED)
def test_task_ids_sort_as_their_numbers_do(name: str) -> None:
    ids = [task.id for task in make(name, tasks=101).tasks]
    assert ids == sorted(ids)
    assert ids[0] == "t000"


@pytest.mark.parametrize("name", VARIED)
def test_a_rate_only_stretches_the_arrivals(name: str) -> None:
    slow, fast = make(name, rate_per_s=0.1), make(name, rate_per_s=0.4)
    assert arrivals(slow) == pytest.approx([4 * time for time in arrivals(fast)])
    assert requests(slow) == requests(fast)


@pytest.mark.parametrize("name", VARIED)
def test_prefixes_leave_arrivals_and_lengths_alone(name: str) -> None:
    short, long = make(name, prefix_tokens=1000), make(name, prefix_tokens=20000)
    assert arrivals(short) == arrivals(long)
    assert requests(short) == requests(long)
    assert max(short.agents.values()) == 1000


@pytest.mark.parametrize("name", VARIED)
def test_more_tasks_leave_the_first_ones_as_they_were(name: str) -> None:
    few, many = make(name, tasks=4), make(name, tasks=9)
    assert arrivals(many)[: len(few.tasks)] == arrivals(few)
    same = zip(few.tasks, many.tasks, strict=False)
    assert all(a.rounds == b.rounds and a.workflow.name == b.workflow.name for a, b in same)


def test_a_longer_mean_lengthens_every_output() -> None:
    short, long = (requests(make("dag-4", output_tokens=mean, output_sigma=0.5)) for mean in (200, 400))
    assert all(a.output_tokens < b.output_tokens for a, b in zip(short, long, strict=True))


def test_gaps_are_exponential_with_the_mean_that_the_rate_says() -> None:
    times = poisson_arrivals(20_000, 0.25, seed=5)
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert min(gaps) > 0
    assert fmean(gaps) == pytest.approx(4, rel=0.03)
    assert fmean(gap**2 for gap in gaps) == pytest.approx(2 * 4**2, rel=0.06)  # E[X^2] = 2 / rate^2


@pytest.mark.parametrize("sigma", [0.25, 0.5, 1.0])
def test_a_spread_keeps_the_mean_output_although_the_allowance_clips_it(sigma: float) -> None:
    trace = make("chain-3", tasks=4000, output_tokens=500, output_sigma=sigma)
    outputs = [spec.output_tokens for spec in requests(trace)]
    assert {spec.max_new_tokens for spec in requests(trace)} == {1000}
    assert 1 <= min(outputs) < max(outputs) == 1000
    assert fmean(outputs) == pytest.approx(500, rel=0.02)


def test_a_spread_keeps_the_mean_input() -> None:
    trace = make("chain-3", tasks=4000, input_tokens=400, input_sigma=0.5)
    assert fmean(spec.input_tokens for spec in requests(trace)) == pytest.approx(400, rel=0.02)
    logs = [math.log(spec.input_tokens) for spec in requests(trace)]
    assert fmean((value - fmean(logs)) ** 2 for value in logs[:500]) == pytest.approx(0.25, rel=0.2)


def test_a_length_without_spread_is_its_mean() -> None:
    assert length_tokens(1.3, 400, 0.0) == 400
    assert length_tokens(1.3, 0, 0.5) == 0


@given(st.floats(-6, 6), st.integers(1, 10**6), st.floats(0.01, 2), st.integers(1, 1000), st.floats(0.01, 3))
def test_lengths_stay_within_the_cap_and_grow_with_the_draw(
    z: float, mean: int, sigma: float, room: int, step: float
) -> None:
    cap = mean + room
    assert 1 <= length_tokens(z, mean, sigma, cap) <= length_tokens(z + step, mean, sigma, cap) <= cap


@pytest.mark.parametrize("name", WORKLOADS)
def test_profiles_expect_what_stages_do_on_average(name: str) -> None:
    trace = make(name, tasks=400)
    for workflow in trace.workflows.values():
        mine = [task for task in trace.tasks if task.workflow is workflow]
        for k, profile in enumerate(workflow.profiles):
            assert profile is not None
            specs = [task.rounds[k] for task in mine]
            assert {spec.max_new_tokens for stage in specs for spec in stage} == {profile.max_new_tokens}
            assert abs(fmean(len(stage) for stage in specs) - profile.rounds) < 0.6
            whole = [stage for stage in specs if len(stage) == profile.rounds]
            mean = fmean(spec.input_tokens for stage in whole for spec in stage)
            assert mean == pytest.approx(profile.input_tokens, rel=0.05)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prefix_tokens": -1}, "prefix_tokens"),
        ({"input_tokens": -1}, "input_tokens"),
        ({"output_tokens": 0}, "output_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"prefix_tokens": 10**9}, "prefix_tokens"),
        ({"output_sigma": -0.1}, "output_sigma"),
        ({"input_sigma": 2.5}, "input_sigma"),
        ({"output_sigma": math.nan}, "output_sigma"),
        ({"order": "random"}, "order"),
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        WorkloadOptions(**options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("chain-9", {}, "workload"),
        ("chain-3", {"rate_per_s": 0.0}, "rate"),
        ("chain-3", {"rate_per_s": math.inf}, "rate"),
        ("chain-3", {"rate_per_s": math.nan}, "rate"),
        ("chain-3", {"tasks": 0}, "tasks"),
        ("two-agent", {"tasks": -1}, "tasks"),
        ("chain-3", {"seed": -1}, "seed"),
        ("figure-2", {"seed": -1}, "seed"),
        ("chain-3", {"order": "grouped"}, "order"),
        ("figure-2", {"prefix_tokens": 5}, "prefix_tokens"),
        ("chain-3", {"max_new_tokens": 499}, "max_new_tokens"),
        ("chain-3", {"max_new_tokens": 500, "output_sigma": 0.5}, "max_new_tokens"),
        ("metagpt-tl", {"max_new_tokens": 1000}, "max_new_tokens"),
    ],
)
def test_what_no_workload_can_do_is_refused(name: str, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        make(name, **changes)
    assert caught.value.field == field


def test_a_given_allowance_holds_for_every_request() -> None:
    trace = make("metagpt-tl", max_new_tokens=1300)
    assert {spec.max_new_tokens for spec in requests(trace)} == {1300}
    assert all(spec.output_tokens <= 1300 for spec in requests(trace))


def test_options_do_not_change_once_made() -> None:
    assert replace(WorkloadOptions(prefix_tokens=1), input_tokens=2).given() == [
        "prefix_tokens",
        "input_tokens",
    ]
