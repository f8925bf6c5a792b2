"""``topas compare --engine sglang``: order, keeping, figures and report of runs on real servers."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
import support_cli
from support_server import serving_paths

from compare.live.live_report import LiveComparison, at_speed, markdown, screen, write_live
from compare.live.outcome import RequestResult, metrics_of
from compare.live.player import ReplayResult
from compare.live.server import Sample
from compare.live.side_by_side import (
    LiveRow,
    LiveRun,
    Servers,
    fewest_computed,
    hash_of,
    play_all,
    renamed,
    row_of,
    runs_of,
    write_config,
)
from compare.live.sizes import SIZES, SYNTHETIC, size_of
from compare.pool import Done
from compare.source import Source
from compare.store import answer_path, keep
from topas.cli import main
from topas.event import Params
from topas.online.sglang.config import load_config
from topas.params import SearchParams
from topas.profile import Profile, load_profile
from topas.sim import simulate
from topas.sim.result import Tail, TaskResult
from traces.workloads import WorkloadOptions, generate

PROFILE = load_profile("study").model_copy(update={"kv_budget_tokens": 4000, "max_running": 8})
SETTINGS = Servers(4000, 8, PROFILE, Params(beta=0.5))
SHORT = WorkloadOptions(prefix_tokens=200, input_tokens=20, output_tokens=8)
SOURCES = tuple(Source(name, 3, 1, 4.0, options=SHORT) for name in ("chain-3", "dag-4"))
POLICIES = ("fcfs", "lpm", "topas")
RUNS = runs_of(SOURCES, POLICIES, 3, SETTINGS)


def row(mean_jct_s: float, *, decisions: int | None = None) -> LiveRow:
    return LiveRow(
        mean_jct_s=mean_jct_s,
        p50_jct_s=mean_jct_s,
        p99_jct_s=2 * mean_jct_s,
        max_jct_s=3 * mean_jct_s,
        makespan_s=10.0,
        requests_per_s=1.0,
        mean_ttft_s=0.1,
        p99_ttft_s=0.2,
        cached_tokens=100,
        computed_tokens=50,
        recomputed_tokens=10,
        preemptions=0,
        decisions=decisions,
        decision_ms_mean=None if decisions is None else 0.5,
        decision_ms_p99=None if decisions is None else 1.0,
        event_ms_mean=None if decisions is None else 0.7,
        event_ms_p99=None if decisions is None else 3.0,
        event_share=None if decisions is None else 0.01,
        fallbacks=None if decisions is None else 0,
        busy_s=8.0,
        expected_s=4.0,
        tails=(Tail("agent", "A", 3, mean_jct_s, 2 * mean_jct_s, 3 * mean_jct_s),),
    )


# --- the order of runs ------------------------------------------------------------------------------------


def test_every_repeat_plays_every_policy_on_every_trace_once() -> None:
    for repeat in (1, 2, 3):
        assert Counter((run.source, run.policy) for run in RUNS if run.repeat == repeat) == Counter(
            (source, policy) for source in SOURCES for policy in POLICIES
        )
    assert [run.repeat for run in RUNS] == sorted(run.repeat for run in RUNS)


def test_over_as_many_repeats_as_policies_each_comes_first_second_and_last_on_each_trace() -> None:
    for source in SOURCES:
        places = [
            [run.policy for run in RUNS if run.repeat == repeat and run.source == source]
            for repeat in (1, 2, 3)
        ]
        assert all(set(column) == set(POLICIES) for column in zip(*places, strict=True))


def test_runs_have_numbers_of_their_own_that_any_process_finds_again() -> None:
    assert len({hash_of(run) for run in RUNS}) == len(RUNS)
    assert hash_of(RUNS[0]) == hash_of(LiveRun(RUNS[0].source, RUNS[0].policy, 1, SETTINGS))


# --- what a server is given -------------------------------------------------------------------------------


def test_renaming_changes_the_names_and_nothing_that_happens() -> None:
    trace = generate("metagpt-tl", rate_per_s=0.5, tasks=3, seed=1)
    other = renamed(trace, "~7")
    assert set(other.agents) == {f"{agent}~7" for agent in trace.agents}
    assert {v for t in other.tasks for v in t.workflow.dag.names} == {
        f"{v}~7" for t in trace.tasks for v in t.workflow.dag.names
    }
    one, two = (simulate(t, "topas", load_profile("study")) for t in (trace, other))
    assert one.tasks == two.tasks


def test_a_server_reads_the_profile_and_the_parameters(tmp_path: Path) -> None:
    path = write_config(SETTINGS, tmp_path)
    config = load_config(str(path))
    assert load_profile(str(config.profile)) == PROFILE
    assert config.params.on(Params()) == SETTINGS.params
    assert set(tomllib.loads(path.read_text())["params"]) == {field.name for field in fields(SearchParams)}


# --- figures ----------------------------------------------------------------------------------------------


def samples(**values: float) -> dict[str, list[Sample]]:
    """Return a server's metrics: counters, and a histogram of events in seconds."""
    found = {
        "sglang:realtime_tokens_total": [
            Sample({"mode": "prefill_compute"}, values["computed"]),
            Sample({"mode": "decode"}, 1e6),
        ],
        "topas_preemptions_total": [Sample({}, values["preempted"])],
        "topas_decisions_total": [Sample({}, values["decisions"])],
        "topas_fallbacks_total": [
            Sample({"reason": "event"}, values["fallbacks"]),
            Sample({"reason": "offer"}, values["fallbacks"]),
        ],
    }
    for name, scale in (("topas_event_seconds", 1.0), ("topas_decision_seconds", 0.5)):
        found[f"{name}_sum"] = [Sample({}, scale * values["seconds"])]
        found[f"{name}_count"] = [Sample({}, values["decisions"])]
        found[f"{name}_bucket"] = [
            Sample({"le": le}, values["decisions"] * share)
            for le, share in (("0.001", 0.5), ("0.003", 0.99), ("+Inf", 1.0))
        ]
    return found


TRACE = generate("chain-3", rate_per_s=1.0, tasks=2, seed=1, options=SHORT)


def replayed() -> ReplayResult:
    tasks = (TaskResult("t0", 0.0, 4.0), TaskResult("t1", 1.0, 5.0))
    requests = (RequestResult("t0", "A", 0, "A", 0.0, 0.25, 1.0, 220, 200, 8),)
    return ReplayResult("chain-3", "", "", "topas", tasks, requests, (), metrics_of(tasks, requests, ()), ())


def test_counters_count_from_the_start_of_the_run() -> None:
    before = samples(computed=1000, preempted=3, decisions=100, fallbacks=1, seconds=1.0)
    after = samples(computed=2000, preempted=5, decisions=300, fallbacks=2, seconds=1.5)
    after["sglang:num_retracted_requests_total"] = [Sample({}, 4.0)]
    found = row_of(TRACE, replayed(), before, after)
    assert (found.mean_jct_s, found.makespan_s, found.mean_ttft_s) == (4.0, 5.0, 0.25)
    assert (found.computed_tokens, found.preemptions, found.decisions) == (1000, 2 + 4, 200)
    assert found.recomputed_tokens == 1000 - (3 * 200 + 2 * 3 * 20)
    assert found.event_ms_mean == pytest.approx(1e3 * 0.5 / 200)
    assert found.decision_ms_mean == pytest.approx(1e3 * 0.25 / 200)
    assert found.event_ms_p99 == 3.0
    assert found.event_share == pytest.approx(0.5 / 5.0)
    assert (found.cached_tokens, found.fallbacks) == (200, 2)


def test_a_policy_of_sglangs_own_has_no_decision_times() -> None:
    found = row_of(TRACE, replayed(), {}, {})
    assert (found.decisions, found.event_ms_mean, found.event_share, found.fallbacks) == (None,) * 4
    assert (found.computed_tokens, found.recomputed_tokens, found.preemptions) == (None, None, 0)


def test_the_speed_is_one_where_the_server_computes_as_long_as_the_profile_says() -> None:
    profile = PROFILE.model_copy(
        update={
            "prefill_base_s": 0.01,
            "prefill_s_per_token": 0.001,
            "prefill_s_per_cached_token": 0.0001,
            "decode_base_s": 0.1,
            "decode_s_per_seq": 0.01,
            "decode_s_per_kv_token": 1e-5,
        }
    )
    after = samples(computed=30, preempted=0, decisions=10, fallbacks=0, seconds=0.5)
    after["sglang:cuda_graph_passes_total"] = [
        Sample({"mode": "prefill_none"}, 2.0),
        Sample({"mode": "decode_none"}, 7.0),
    ]
    # one request of 220 tokens, 200 of them cached, that generates 8
    expected_s = 2 * 0.01 + 30 * 0.001 + 200 * 0.0001 + 7 * (0.1 + 0.01)
    expected_s += sum(220 + k for k in range(1, 8)) * 1e-5
    stages = {"run_batch": expected_s - 1.0, "process_batch_result": 1.5, "idle": 50.0}
    after["sglang:scheduler_stage_seconds_total"] = [
        Sample({"category": stage, "forward_overlap": "none"}, seconds) for stage, seconds in stages.items()
    ]
    found = row_of(TRACE, replayed(), {}, after, profile)
    assert found.expected_s == pytest.approx(expected_s)
    assert found.busy_s == pytest.approx(expected_s)  # without 0.5 s of scheduling events
    assert found.speed == pytest.approx(1.0)
    assert row_of(TRACE, replayed(), {}, {}, profile).speed is None


def test_an_engine_at_half_the_speed_takes_twice_the_time() -> None:
    trace = generate("chain-3", rate_per_s=1000.0, tasks=4, seed=1, options=SHORT)
    slow = at_speed(SETTINGS, 0.5).profile
    times = [simulate(trace, "fcfs", profile).metrics["mean_jct_s"] for profile in (PROFILE, slow)]
    assert times[1] == pytest.approx(2 * times[0], rel=1e-2)


def test_a_p99_beyond_the_last_bound_is_unknown() -> None:
    after = samples(computed=1, preempted=0, decisions=10, fallbacks=0, seconds=100.0)
    for sample_list in (after["topas_event_seconds_bucket"],):
        sample_list[1] = Sample({"le": "0.003"}, 9.0)
    assert row_of(TRACE, replayed(), {}, after).event_ms_p99 is None


def test_the_fewest_tokens_are_each_prefix_once_and_what_is_new() -> None:
    trace = generate("metagpt-tl", rate_per_s=1.0, tasks=4, seed=2)
    new = sum(r.input_tokens - r.reused_tokens for t in trace.tasks for rounds in t.rounds for r in rounds)
    assert fewest_computed(trace) == sum(trace.agents.values()) + new


# --- keeping ----------------------------------------------------------------------------------------------


def test_what_is_kept_is_not_played_again_and_needs_no_server(tmp_path: Path) -> None:
    played = {run: row(1.0 + k) for k, run in enumerate(RUNS)}
    (tmp_path / "live").mkdir()
    for run, found in played.items():
        keep(run, found, answer_path(run, tmp_path))
    again = play_all(RUNS, tmp_path, serving_paths_of_nothing())
    assert (again.results, again.failures, again.resumed) == (played, {}, len(RUNS))


def serving_paths_of_nothing() -> object:
    from compare.live.server import ServerPaths  # noqa: PLC0415  only here

    return ServerPaths(Path("/no/python"), Path("/no/model"))


# --- the report -------------------------------------------------------------------------------------------


def made_up(run: LiveRun) -> LiveRow:
    base = {"fcfs": 4.0, "lpm": 5.0, "topas": 3.0}[run.policy]
    return row(base + 0.1 * run.repeat, decisions=5 if run.policy == "topas" else None)


def guess(_: Source, policy: str, settings: Servers) -> Mapping[str, float]:
    value = {"fcfs": 4.2, "lpm": 5.2, "topas": 3.52}[policy]
    value *= settings.profile.decode_base_s / PROFILE.decode_base_s
    return dict.fromkeys(
        ("mean_jct_s", "p50_jct_s", "p99_jct_s", "max_jct_s", "makespan_s", "requests_per_s", "preemptions"),
        value,
    )


def comparison(played: Done[LiveRun, LiveRow] | None = None) -> LiveComparison:
    played = played or Done({run: made_up(run) for run in RUNS}, {}, 0, 0)
    return LiveComparison.of("topas compare ...", "2 CPUs", ("fcfs", "lpm"), RUNS, played, guess)


def test_means_changes_and_predictions_are_those_of_the_rows() -> None:
    table = comparison().summary
    (one,) = table.query("workload == 'dag-4' and metric == 'mean_jct_s' and policy == 'topas'").to_dict(
        "records"
    )
    assert one["mean"] == pytest.approx(3.2)
    assert (one["runs"], one["best_baseline"]) == (3, "fcfs")
    assert one["change"] == pytest.approx(3.2 / 4.2 - 1)
    # every pair is a second apart, so that the interval has no width
    assert (one["change_low"], one["change_high"]) == pytest.approx((one["change"], one["change"]))
    assert one["error"] == pytest.approx(3.52 / 3.2 - 1)
    assert one["paced_error"] == pytest.approx(2 * 3.52 / 3.2 - 1)  # the machine had half its speed
    assert one["low"] == pytest.approx(3.2 - 4.30265 * 0.1 / 3**0.5, rel=1e-4)


def test_the_page_and_the_tables_hold_every_policy_and_its_error(tmp_path: Path) -> None:
    files = write_live(comparison(), tmp_path)
    assert {path.name for path in files} == {
        "live.csv", "live.parquet", "summary.csv", "tails.csv", "report.md",
    }  # fmt: skip
    assert len(pd.read_parquet(tmp_path / "live.parquet")) == len(RUNS)
    page = (tmp_path / "report.md").read_text()
    for words in (
        "topas compare ...",
        "2 CPUs",
        "18 of 18 runs",
        "3.52 (+10.0 %)",
        "| `topas`",
        "1.00 %",
        "6.4 / 9.9",
    ):
        assert words.strip("| `") in page
    assert "+10.0 %" in screen(comparison())


def test_a_policy_that_misses_a_run_has_no_mean() -> None:
    rows = {run: made_up(run) for run in RUNS}
    lost = next(run for run in RUNS if run.policy == "lpm")
    del rows[lost]
    found = comparison(Done(rows, {lost: "died"}, 0, 0))
    table = found.summary
    kept = table[(table["workload"] == lost.source.workload) & (table["metric"] == "mean_jct_s")]
    assert list(kept["policy"]) == ["fcfs", "topas"]
    assert "## Failed runs" in markdown(found)
    assert "died" in markdown(found)


# --- the command ------------------------------------------------------------------------------------------


def test_lengths_that_are_given_replace_the_small_ones() -> None:
    assert size_of("chain-3", WorkloadOptions(), None) == SYNTHETIC
    assert size_of("metagpt-tl", WorkloadOptions(), None) == SIZES["metagpt-tl"]
    changed = size_of("dag-4", WorkloadOptions(prefix_tokens=500), 7)
    assert (changed.options.prefix_tokens, changed.options.input_tokens, changed.tasks) == (500, 64, 7)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--engine", "sglang", "--policies", "topas,topas-exact"], "topas-exact runs in the simulator only"),
        (["--engine", "sglang", "--policies", "lpm,kvflow"], "kvflow runs in the simulator only"),
        (["--engine", "sglang", "--jobs", "2"], "--jobs: has no meaning with --engine sglang"),
        (["--engine", "sglang", "--repeats", "0"], "--repeats: expected a positive number, found 0"),
        (["--engine", "sglang", "--kv-tokens", "500"], "needs"),
        (["--repeats", "2"], "--repeats: needs --engine sglang"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_server_starts(
    words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["compare", "chain-3", "--profile", "study", "-o", str(tmp_path / "out"), *words]
    assert error in support_cli.refused(capsys, *given)


@pytest.mark.slow
@pytest.mark.serving
@pytest.mark.xdist_group("serving")
def test_two_real_servers_are_compared_and_the_command_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = serving_paths()
    monkeypatch.setenv("TOPAS_SERVING", str(paths.python.parent.parent))
    profile = tmp_path / "cpu.json"
    profile.write_text(
        Profile(
            name="cpu",
            kv_budget_tokens=2000,
            kv_bytes_per_token=512,
            swap_bytes_per_s=1e8,
            prefill_base_s=0.004,
            prefill_s_per_token=1e-5,
            decode_base_s=0.003,
            decode_s_per_seq=0.0003,
            max_running=4,
            host_cache=False,
            admission="sglang",
            redo="keep",
        ).model_dump_json()
    )
    words = ["compare", "chain-3", "--engine", "sglang", "--policies", "fcfs,topas", "--repeats", "1"]
    words += ["--rates", "5", "--tasks", "3", "--prefix-tokens", "300", "--output-tokens", "8", "--json"]
    words += ["--profile", str(profile), "-o", str(tmp_path / "out"), "--quiet"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["runs"], first["resumed"], first["failed"]) == (2, 0, [])
    found = pd.read_parquet(tmp_path / "out" / "live.parquet")
    assert list(found["policy"]) == ["fcfs", "topas"]
    assert found["cached_tokens"][0] >= 300
    assert found["computed_tokens"].min() >= 3 * 300 + 9 * 64  # type: ignore[operator]
    topas = found.loc[1]
    assert topas["decisions"] >= 9
    assert 0 < topas["decision_ms_mean"] <= topas["event_ms_mean"]
    assert topas["fallbacks"] == 0
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["resumed"] == 2
