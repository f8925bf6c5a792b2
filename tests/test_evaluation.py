"""The evaluation (compare.evaluation): plan, statistics, guard, targets, cases, and a small run of it."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

from compare import cases
from compare.bound import BoundCase, Bounded, Bounds, BoundValue
from compare.evaluation import parts, tables
from compare.evaluation.command import main
from compare.evaluation.plan import PLAN, EvaluationPlan, Guard, Target, load_plan
from compare.source import Source
from compare.source import trace_of as trace_of_source
from compare.study import METRICS, Metrics, Played, Run, outcome_of, seen_through
from topas.decision import Decision, Terms
from topas.errors import InputError
from topas.event import Event, Params
from topas.policies import BASELINES, get_policy
from topas.policies.policy import JointPolicy
from topas.profile import load_profile
from topas.sim import simulate
from topas.trace import Trace
from topas.trace.format import write_trace
from traces import transforms
from traces.load import one_prefix_rate_per_s
from traces.workloads import WorkloadOptions, generate

STUDY = load_profile("study")


def trace_of(workload: str = "dag-4", tasks: int = 8, seed: int = 3, rate: float = 0.1) -> Trace:
    options = WorkloadOptions(output_sigma=None if workload.startswith("metagpt") else 0.5)
    return generate(workload, rate_per_s=rate, tasks=tasks, seed=seed, options=options)


def draw(workload: str = "chain-3", sigma: float | None = 0.0, seed: int = 101, load: float = 0.5) -> Source:
    options = WorkloadOptions(prefix_tokens=12000, output_sigma=sigma)
    return Source(workload, 5, seed, load=load, options=options)


def metrics(mean_s: float, p99: float = 2.0) -> Metrics:
    return Metrics(**{**dict.fromkeys(METRICS, 1), "mean_jct_s": mean_s, "p99_jct_s": p99 * mean_s})


def outcome(values: Mapping[str, list[float]], load: float = 0.5, p99: float = 2.0) -> pd.DataFrame:
    """Results by hand: mean JCT of each policy seed by seed; p99 is so many times as long."""
    played = {
        Run(draw(seed=seed, load=load), policy, STUDY): Played(metrics(value, p99), ())
        for policy, own in values.items()
        for seed, value in enumerate(own, start=101)
    }
    return outcome_of(played, played, {}).runs


def found_in(*parts_of: pd.DataFrame, baselines: Sequence[str] = ("fcfs", "lpm")) -> pd.DataFrame:
    return tables.found_in(pd.concat(parts_of), baselines)


def of(table: pd.DataFrame, metric: str = "mean_jct_s") -> pd.Series:
    (row,) = (row for _, row in table[table["metric"] == metric].iterrows())
    return row


# --- the plan ---------------------------------------------------------------------------------------------


def test_the_plan_is_complete_and_its_grid_has_the_size_that_it_says() -> None:
    plan = load_plan()
    assert tuple(plan.baselines) == BASELINES
    assert plan.policies == ["topas", "topas-paper"]
    assert not set(plan.seeds.development) & set(plan.seeds.held_out)
    assert plan.seeds.held_out == [201, 202, 203, 204, 205]
    runs = parts.main_runs(plan)
    by_workload = Counter(run.source.workload for run in runs)
    each = 3 * 4 * 5 * 9  # prefixes, loads, seeds, policies
    assert by_workload == {
        **dict.fromkeys(("chain-3", "dag-4", "dag-10-wide"), 2 * each),
        **dict.fromkeys(("metagpt-sop", "metagpt-tl"), each),
    }
    assert len(set(runs)) == len(runs)
    assert {run.profile.host_cache for run in runs} == {True}
    assert {run.source.tasks for run in runs} == {100}


def test_no_part_draws_a_seed_of_the_development() -> None:
    plan = load_plan()
    runs = [*parts.main_runs(plan), *parts.ablation_runs(plan), *parts.robustness_runs(plan)]
    drawn = {run.source.seed for run in runs} | {plan.bound.seed}
    assert drawn <= set(plan.seeds.held_out)
    assert drawn.isdisjoint(plan.seeds.development)


def test_each_target_is_of_something_that_is_run_and_none_is_doubled() -> None:
    plan = load_plan()
    places = [(one.workload, one.prefix_tokens, one.output_sigma) for one in plan.targets]
    run = {
        (one.source.workload, one.source.options.prefix_tokens, one.source.options.output_sigma)
        for one in parts.main_runs(plan)
    }
    assert len(set(places)) == len(places) == 8
    assert set(places) <= run
    assert all(one.mean < 0 and one.p99 < 0 for one in plan.targets)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("held_out = [201", "held_out = [3", "seeds"),
        ('name = "dag-4"', 'name = "dag-5"', "workloads"),
        ("lookahead = { preempt = 0.0 }", "lookahead = { preemt = 0.0 }", "preemt"),
        ('"deaths"', '"death"', "cases"),
        ("tasks = 100", "tasks = 0", "tasks"),
        ("tasks = 100", "tasks = ", ".toml:12: expected TOML"),
        (
            "prefix_tokens = 12000\noutput_sigma = 0.0\nmean",
            "prefix_tokens = 9000\noutput_sigma = 0.0\nmean",
            "targets",
        ),
    ],
)
def test_a_wrong_plan_is_refused_in_one_line(tmp_path: Path, old: str, new: str, field: str) -> None:
    text = PLAN.read_text()
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_plan(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert field in message


def test_variants_change_only_the_lookahead_that_they_name() -> None:
    plan = load_plan()
    found = {run.label: run for run in parts.ablation_runs(plan)}
    assert found["topas"].params == Params()
    calm = found["no preemption"]
    assert calm.policy == "topas"
    assert calm.params == replace(Params(), lookahead=replace(Params().lookahead, preempt=0.0))
    assert found["topas-score"].policy == "topas-score"
    assert len({run.source.options.output_sigma for run in parts.ablation_runs(plan)}) == 3


# --- statistics -------------------------------------------------------------------------------------------


def test_the_best_baseline_is_that_of_the_least_mean_and_the_change_is_the_ratio_of_means() -> None:
    found = found_in(outcome({"fcfs": [10.0, 30.0], "lpm": [20.0, 18.0], "topas": [8.0, 20.0]}))
    mean = of(tables.by_cell(found))
    assert mean["best_baseline"] == "lpm"
    assert mean["change"] == pytest.approx(28 / 38 - 1)
    own = found[found["metric"] == "mean_jct_s"]
    assert dict(zip(own["seed"], own["difference"], strict=True)) == pytest.approx(
        {101: -12 / 19, 102: 2 / 19}
    )
    # Student's t of two differences: the quantile with one degree of freedom is tan(0.475 pi)
    half = math.tan(0.475 * math.pi) * (14 / 19) / 2
    assert (mean["low"], mean["high"]) == pytest.approx((mean["change"] - half, mean["change"] + half))


def test_each_metric_has_its_own_best_baseline() -> None:
    rival = outcome({"lpm": [11.0]}, p99=1.5)
    found = tables.by_cell(found_in(outcome({"fcfs": [10.0], "topas": [9.0]}), rival))
    assert (of(found)["best_baseline"], of(found, "p99_jct_s")["best_baseline"]) == ("fcfs", "lpm")
    assert of(found, "p99_jct_s")["change"] == pytest.approx(18 / 16.5 - 1)


def test_a_policy_that_misses_a_seed_is_left_out() -> None:
    found = found_in(outcome({"fcfs": [10.0, 30.0], "lpm": [1.0], "topas": [8.0, 20.0]}))
    assert set(found["best_baseline"]) == {"fcfs"}
    assert found_in(outcome({"fcfs": [10.0, 30.0], "topas": [8.0]})).empty


def test_the_average_over_the_loads_gives_each_load_one_voice() -> None:
    light = outcome({"fcfs": [10.0, 10.0], "topas": [9.0, 8.0]}, 0.5)
    heavy = outcome({"fcfs": [1000.0, 1000.0], "topas": [500.0, 500.0]}, 1.0)
    mean = of(tables.over_loads(found_in(light, heavy)))
    assert mean["loads"] == [0.5, 1.0]
    assert mean["change"] == pytest.approx((-0.15 - 0.5) / 2)
    assert fmean([mean["low"], mean["high"]]) == pytest.approx(mean["change"])


def test_targets_say_by_how_much_they_are_missed_and_need_every_load() -> None:
    light = outcome({"fcfs": [10.0], "topas": [6.0]}, 0.5)
    heavy = outcome({"fcfs": [10.0], "topas": [7.0]}, 1.0)
    target = Target(workload="chain-3", prefix_tokens=12000, output_sigma=0.0, mean=-34.0, p99=-40.0)
    other = target.model_copy(update={"output_sigma": 0.5})
    means = tables.over_loads(found_in(light, heavy))
    mean, p99, *missing = tables.against_targets(means, [target, other], [0.5, 1.0], "topas").to_dict(
        "records"
    )
    assert (mean["met"], p99["met"]) == (True, False)
    assert (mean["missed_by"], p99["missed_by"]) == pytest.approx((-1.0, 5.0))
    assert [(math.isnan(one["found"]), one["met"]) for one in missing] == [(True, False)] * 2
    half = tables.over_loads(found_in(light))
    assert tables.against_targets(half, [target], [0.5, 1.0], "topas")["found"].isna().all()


def test_the_guard_names_what_exceeds_it_the_worst_first_and_whether_that_is_chance() -> None:
    guard = Guard(mean=1.0, p99=3.0)
    kept = outcome({"fcfs": [100.0, 100.0], "topas": [100.8, 101.1]}, 0.25)
    surely = outcome({"fcfs": [100.0, 102.0], "topas": [102.0, 104.0]}, 0.5)
    chance = outcome({"fcfs": [100.0, 100.0], "topas": [90.0, 120.0]}, 1.0)
    cells = tables.by_cell(found_in(kept, surely, chance))
    broken = tables.breaches(cells, guard, "topas")
    assert list(zip(broken["load"], broken["metric"], strict=True)) == [
        (1.0, "mean_jct_s"),
        (1.0, "p99_jct_s"),
        (0.5, "mean_jct_s"),
    ]
    assert list(broken["interval_excludes_zero"]) == [False, False, True]
    assert tables.breaches(cells, guard, "topas-paper").empty
    alone = tables.by_cell(found_in(outcome({"fcfs": [100.0], "topas": [120.0]})))
    assert tables.breaches(alone, guard, "topas")["interval_excludes_zero"].isna().all()


# --- transforms -------------------------------------------------------------------------------------------


def test_retimed_gives_the_trace_that_the_generator_makes_at_that_rate() -> None:
    found = transforms.retimed(trace_of(rate=1.0), 0.1, 3).tasks
    assert [(t.arrival_s, t.rounds) for t in found] == [
        (t.arrival_s, t.rounds) for t in trace_of(rate=0.1).tasks
    ]


def test_bursts_keep_rate_and_tasks_and_arrive_together() -> None:
    trace = trace_of("chain-3", tasks=2000)
    found = transforms.in_bursts(trace, 0.5, 1, 10)
    arrivals = [task.arrival_s for task in found.tasks]
    assert [task.rounds for task in found.tasks] == [task.rounds for task in trace.tasks]
    assert set(Counter(arrivals).values()) == {10}
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(2000 / 0.5, rel=0.25)
    with pytest.raises(InputError):
        transforms.in_bursts(trace, 0.5, 1, 0)
    with pytest.raises(InputError, match="2000 arrivals, found 1"):
        transforms.with_arrivals(trace, [1.0])


@pytest.mark.parametrize("workload", ["dag-4", "metagpt-tl"])
def test_wrong_profiles_change_what_is_believed_and_nothing_that_happens(workload: str) -> None:
    trace = trace_of(workload)
    for changed in (
        transforms.scaled_profiles(trace, 4.0),
        transforms.noisy_profiles(trace, 1.0, 1),
        transforms.without_profiles(trace),
    ):
        before, after = trace.tasks[0].workflow, changed.tasks[0].workflow
        assert after.profiles != before.profiles
        assert changed.workflows[before.name] is after
        assert [(t.rounds, t.arrival_s) for t in changed.tasks] == [
            (t.rounds, t.arrival_s) for t in trace.tasks
        ]
        told, known = (simulate(one, "spf", STUDY).metrics["mean_jct_s"] for one in (changed, trace))
        assert told == known
    scaled = transforms.scaled_profiles(trace, 0.25).tasks[0].workflow.profiles
    for small, profile in zip(scaled, trace.tasks[0].workflow.profiles, strict=True):
        assert small is not None
        assert profile is not None
        assert small.max_new_tokens == round(profile.max_new_tokens / 4)
        assert small.rounds == profile.rounds


def test_noise_has_mean_1_and_differs_between_stages_and_seeds() -> None:
    trace = trace_of("dag-10-wide", tasks=1)
    drawn = [
        profile.max_new_tokens / 1000
        for seed in range(200)
        for profile in transforms.noisy_profiles(trace, 1.0, seed).tasks[0].workflow.profiles
        if profile is not None
    ]
    assert fmean(drawn) == pytest.approx(1.0, abs=0.15)
    assert len(set(drawn[:10])) > 5
    assert drawn[:10] != drawn[10:20]


def test_tasks_die_with_their_first_stages_done_and_their_workflow_whole() -> None:
    trace = trace_of("dag-10-wide", tasks=60)
    found = transforms.dying(trace, 0.5, 1)
    cut = 0
    for before, after in zip(trace.tasks, found.tasks, strict=True):
        kept = [k for k, rounds in enumerate(after.rounds) if rounds]
        assert kept == list(range(len(kept)))
        assert kept
        assert after.rounds[: len(kept)] == before.rounds[: len(kept)]
        assert after.workflow is before.workflow
        cut += len(kept) < 10
    assert 15 < cut < 45
    assert all(
        before.rounds == after.rounds
        for before, after in zip(trace.tasks, transforms.dying(trace, 0.0, 1).tasks, strict=True)
    )


@pytest.mark.parametrize("policy", ["fcfs", "kvflow", "topas-paper", "topas"])
def test_dying_tasks_end_and_no_stage_that_they_lost_is_served(policy: str) -> None:
    trace = transforms.dying(trace_of("dag-4", tasks=10), 1.0, 2)
    result = simulate(trace, policy, STUDY, check=True)
    assert len(result.tasks) == 10
    rounds = [spec for task in trace.tasks for stage in task.rounds for spec in stage]
    whole = [spec for task in trace_of("dag-4", tasks=10).tasks for stage in task.rounds for spec in stage]
    assert len(rounds) < len(whole)
    makespan, served = result.metrics["makespan_s"], result.metrics["requests_per_s"]
    assert served * makespan == pytest.approx(len(rounds), rel=1e-6)


def test_merged_tasks_come_in_turn_and_share_no_agent() -> None:
    found = transforms.merged("mixed", {"a": trace_of("chain-3", 3), "b": trace_of("dag-4", 2)})
    assert [task.id.split(".")[0] for task in found.tasks] == ["a", "b", "a", "b", "a"]
    assert set(found.agents) == {"a.A", "a.B", "a.C", "b.A", "b.B", "b.C", "b.D"}
    assert len({task.id for task in found.tasks}) == 5
    for task in found.tasks:
        assert found.workflows[task.workflow.name] is task.workflow
        assert set(task.workflow.agents) <= set(found.agents)


# --- what a policy sees -----------------------------------------------------------------------------------


def events_of(workload: str, *, tasks: int = 6) -> list[Event]:
    found: list[Event] = []
    simulate(trace_of(workload, tasks), "topas-paper", STUDY, record=lambda event, _: found.append(event))
    return found


def test_an_unknown_dag_leaves_every_request_a_task_of_its_own() -> None:
    for event in events_of("dag-4"):
        seen = cases.without_dags(event)
        assert [r.id for r in seen.waiting] == [r.id for r in event.waiting]
        assert [r.id for r in seen.running] == [r.id for r in event.running]
        assert not seen.reuse_counts
        for before, after in zip(
            (*event.waiting, *event.running), (*seen.waiting, *seen.running), strict=True
        ):
            whole, alone = event.tasks[before.task], seen.tasks[after.task]
            k = whole.dag.index[before.stage]
            assert alone.dag.names == (before.stage,)
            assert alone.residuals == (whole.residuals[k],)
            assert alone.outlooks == (whole.outlooks[k],)
            assert alone.arrival_s == whole.arrival_s
            assert replace(after, task=before.task) == before


def test_of_tasks_of_one_stage_the_dag_was_never_needed() -> None:
    trace = generate("two-agent", rate_per_s=0.2, tasks=8, seed=1)
    policy = get_policy("topas")
    blind = seen_through(policy, cases.without_dags)
    assert simulate(trace, blind, STUDY).tasks == simulate(trace, policy, STUDY).tasks


def test_scaled_costs_scale_every_time_and_nothing_else() -> None:
    event = events_of("chain-3")[-1]
    seen = cases.scaled_costs(event, 2.0)
    assert seen.params.cost == tuple(2 * term for term in event.params.cost)
    assert seen.params.cost != event.params.cost
    assert cases.scaled_costs(seen, 0.5) == event


def test_a_view_stands_between_event_and_joint_policy_and_leaves_queue_policies_alone() -> None:
    seen: list[Event] = []

    def decide(event: Event) -> Decision:
        seen.append(event)
        return Decision((), (), (), Terms())

    event = events_of("dag-4")[0]
    policy = seen_through(JointPolicy("spy", decide), cases.without_dags)
    assert isinstance(policy, JointPolicy)
    policy.decide(event)
    assert seen == [cases.without_dags(event)]
    assert seen_through(get_policy("fcfs"), cases.without_dags) is get_policy("fcfs")


@pytest.mark.parametrize("name", [name for name in cases.CASES if name != "crowd"])
def test_every_case_is_playable_at_its_load_and_the_same_each_time(name: str) -> None:
    case = cases.CASES[name]
    for workload in case.workloads or ("chain-3", "metagpt-tl"):
        options = WorkloadOptions(prefix_tokens=12000, output_sigma=0.5)
        source, engine = Source(workload, 6, 101, options=options, case=name).at_load(0.5, STUDY)
        trace, again = source.trace(), source.trace()
        assert len(trace.tasks) == 6
        assert [task.arrival_s for task in trace.tasks] == sorted(task.arrival_s for task in trace.tasks)
        assert [(t.id, t.arrival_s, t.rounds) for t in again.tasks] == [
            (t.id, t.arrival_s, t.rounds) for t in trace.tasks
        ]
        assert Run(source, "lpm", engine).answer().metrics.mean_jct_s > 0
        assert engine.host_cache == (name != "no-host-tier")
        assert (engine.kv_budget_tokens < STUDY.kv_budget_tokens) == (name == "tiny-memory")


def test_the_case_in_which_nothing_is_changed_is_the_generated_trace_at_that_load() -> None:
    options = WorkloadOptions(prefix_tokens=12000, output_sigma=0.5)
    source, _ = Source("dag-4", 6, 101, options=options).at_load(0.5, STUDY)
    unit = generate("dag-4", rate_per_s=1.0, tasks=6, seed=101, options=options)
    rate = 0.5 * one_prefix_rate_per_s(unit, STUDY)
    expected = generate("dag-4", rate_per_s=rate, tasks=6, seed=101, options=options)
    found = source.trace().tasks
    assert [(t.arrival_s, t.rounds) for t in found] == [(t.arrival_s, t.rounds) for t in expected.tasks]


def test_tiny_memory_holds_one_prefix_and_two_requests_but_not_three() -> None:
    source, engine = replace(draw(), tasks=6, case="tiny-memory").at_load(1.0, STUDY)
    assert engine.kv_budget_tokens == 12000 + 2 * (400 + 500)
    assert Run(source, "fcfs", engine).answer().metrics.peak_batch == 2


def test_most_stages_of_one_agent_are_its_own() -> None:
    workflow = cases.one_agent(2, 1.0, 1, 12000, 0.5).tasks[0].workflow
    assert Counter(workflow.agents)["busy"] / len(workflow.agents) == 0.8


def test_the_crowd_is_all_there_at_once_and_a_thousand() -> None:
    runs = [run for run in parts.robustness_runs(load_plan()) if run.source.case == "crowd"]
    trace = replace(runs[0].source, tasks=20).trace()
    assert {run.source.tasks for run in runs} == {1000}
    assert {task.arrival_s for task in trace.tasks} == {0.0}


def test_baselines_that_order_by_the_dag_are_left_out_where_it_is_unknown() -> None:
    runs = parts.robustness_runs(load_plan())
    blind = {run.policy for run in runs if run.source.case == "unknown-dag"}
    assert blind == {*BASELINES, "topas", "topas-paper"} - {"spf", "kvflow"}


# --- the command ------------------------------------------------------------------------------------------


def small_plan(tmp_path: Path) -> Path:
    """Write the plan with few tasks, seeds, loads and variants, and check that it is one."""
    text = PLAN.read_text()
    for old, new in (
        ("tasks = 100", "tasks = 4"),
        ("held_out = [201, 202, 203, 204, 205]", "held_out = [201, 202]"),
        ("seeds = [201, 202, 203]", "seeds = [201]"),
        ("loads = [0.25, 0.5, 0.75, 1.0]", "loads = [0.5, 1.0]"),
        ("loads = [0.5, 1.0]\n\n# The first", "loads = [1.0]\n\n# The first"),
        ("prefix_tokens = [4000, 8000, 12000]", "prefix_tokens = [12000]"),
        ('workloads = ["chain-3", "dag-4", "dag-10-wide", "metagpt-tl"]', 'workloads = ["chain-3"]'),
        ('workloads = ["chain-3", "dag-10-wide", "metagpt-tl"]', 'workloads = ["chain-3"]'),
        ('  "crowd",\n', ""),
    ):
        assert old in text, old
        text = text.replace(old, new)
    head, *rows = text.split("[[bound.workloads]]")
    text = head + "[[bound.workloads]]" + rows[0].replace("0.0, 0.5", "0.0")
    path = tmp_path / "small.toml"
    path.write_text(text)
    assert isinstance(load_plan(path), EvaluationPlan)
    return path


def test_the_parts_run_are_kept_and_leave_their_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = str(small_plan(tmp_path)), tmp_path / "out"
    sessions = tmp_path / "mine.jsonl"
    write_trace(trace_of("metagpt-tl", 3), sessions)
    given = ["--plan", plan, "-o", str(out), "--jobs", "1", "--sessions", str(sessions)]
    for part in ("main", "sessions", "ablation", "robustness"):
        given += ["--part", part]
    assert main(given) == 0
    page = (out / "report.md").read_text()
    assert page in capsys.readouterr().out
    for title in ("## Targets of `topas`", "## Guard of `topas`", "## Averages", "## Every setting"):
        assert title in page
    assert (out / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((out / "results.json").read_text())
    assert len(document["targets"]) == 16
    assert len(document["cells"]) == 8 * 2 * 2 * 3  # workloads and sigmas, loads, policies, metrics
    for cell in document["cells"]:
        assert cell["change"] == pytest.approx(cell["value_s"] / cell["best_baseline_s"] - 1)
    rows = list(csv.DictReader((out / "runs.csv").read_text().splitlines()))
    assert len(rows) == 8 * 2 * 2 * 9
    assert "decision_ms_mean" not in rows[0]
    assert "`mine`" in (out / "sessions" / "report.md").read_text()
    assert "no preemption" in (out / "ablation" / "report.md").read_text()
    worst = (out / "robustness" / "report.md").read_text()
    assert all(case.about in worst for name, case in cases.CASES.items() if name != "crowd")
    before = {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()}
    assert main(given) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "cells").iterdir()} == before
    assert (out / "report.md").read_text() == page


def test_sessions_without_files_and_doubled_names_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(small_plan(tmp_path))
    assert main(["--plan", plan, "-o", str(tmp_path / "out"), "--part", "sessions"]) == 2
    assert "--sessions" in capsys.readouterr().err
    paths = [tmp_path / "a" / "s.jsonl", tmp_path / "b" / "s.jsonl"]
    for path in paths:
        path.parent.mkdir()
        write_trace(trace_of("chain-3", 2), path)
    given = ["--plan", plan, "-o", str(tmp_path / "out"), "--part", "sessions", "--sessions"]
    assert main([*given, *map(str, paths)]) == 2
    assert "has this name already" in capsys.readouterr().err


def test_sessions_keep_their_tasks_and_each_seed_draws_other_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    trace = trace_of("metagpt-tl", 4)
    write_trace(trace, path)
    draws = [run.source for run in parts.session_runs(load_plan(), [str(path)]) if run.policy == "fcfs"]
    assert {(draw.load, draw.seed) for draw in draws} == {
        (load, seed) for load in (0.25, 0.5, 0.75, 1.0) for seed in load_plan().seeds.held_out
    }
    played = [draw.trace() for draw in draws]
    assert all([t.rounds for t in one.tasks] == [t.rounds for t in trace.tasks] for one in played)
    assert len({one.tasks[0].arrival_s for one in played}) == len(draws)
    same_seed = [one for one, draw in zip(played, draws, strict=True) if draw.seed == draws[0].seed]
    light, heavy = same_seed[0], same_seed[-1]
    assert light.tasks[-1].arrival_s == pytest.approx(4 * heavy.tasks[-1].arrival_s)
    path.write_text(path.read_text() + "\n")
    with pytest.raises(InputError, match="changed"):
        draws[0].trace()


def test_bounds_stand_below_what_was_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    given = ["--plan", str(small_plan(tmp_path)), "-o", str(out), "--jobs", "1", "--part", "bound"]
    assert main([*given, "--bound-time", "1", "--improve", "0.3"]) == 0
    assert "best known" in capsys.readouterr().out
    document = json.loads((out / "bound" / "results.json").read_text())
    rows = document["traces"]
    assert [row["load"] for row in rows] == [0.5, 1.0]
    for row in rows:
        assert 0 < row["bound_s"] <= row["best_known_s"] * (1 + 1e-9)
        played = (row["topas_s"], row["topas-paper_s"], row["best_baseline_s"])
        assert row["best_known_s"] <= min(played)
    (reach,) = document["averages"]
    assert (reach["workload"], reach["outputs"], reach["target"]) == ("chain-3", "fixed", -0.38)
    assert reach["bound"] <= reach["best known"] <= min(reach["topas"], 0.0)
    left = [row["bound_s"] / row["best_baseline_s"] - 1 for row in rows]
    assert reach["bound"] == pytest.approx(sum(left) / 2)


def test_bounds_are_of_the_very_traces_of_the_grid() -> None:
    traces = parts.bounded_traces(load_plan(), 1.0, 1.0)
    grid = {(run.source, run.profile) for run in parts.main_runs(load_plan())}
    for one in traces:
        ((source, profile),) = {(run.source, run.profile) for run in one.runs}
        assert (source, profile) in grid
        assert profile == one.bound.profile == one.improve.profile
        assert source == one.bound.source == one.improve.source
        trace = generate(
            source.workload,
            rate_per_s=source.rate_per_s,
            tasks=source.tasks,
            seed=source.seed,
            options=replace(source.options, output_sigma=source.options.output_sigma or None),
        )
        assert repr(trace) == repr(trace_of_source(source))


def test_an_average_says_nothing_of_an_item_that_failed() -> None:
    traces, answers = [], {}
    for load, bound_s in ((0.5, 60.0), (1.0, None)):
        source = draw(load=load)
        runs = [Run(source, policy, STUDY) for policy in ("spf", "topas")]
        trace = Bounded(tuple(runs), BoundCase(source, STUDY, 1.0), None)
        traces.append(trace)
        answers |= {run: Played(metrics(s), ()) for run, s in zip(runs, (100.0, 90.0), strict=True)}
        if bound_s:
            answers[trace.bound] = Bounds((), BoundValue("", bound_s, "", 0.0), ())
    (found,) = tables.reaches(tables.bound_rows(traces, answers, ["spf"]), []).to_dict("records")
    assert found["target"] is None
    assert (found["best known"], found["topas"]) == pytest.approx((-0.1, -0.1))
    assert math.isnan(found["bound"])
