"""Running studies: what is kept, skipped, run again and reported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from compare import study
from compare.source import Source
from compare.store import answer_path, find_out, key_of, read_answer
from compare.study import METRICS, REPRODUCIBLE, run_study, runs_of
from topas.errors import InputError
from topas.event import Params
from topas.policies.policy import Policy
from topas.profile import Profile, load_profile
from topas.sim import SimResult, simulate
from topas.trace import Trace
from traces.workloads import WorkloadOptions

STUDY = load_profile("study")
SOURCES = [Source("chain-3", 2, seed, 0.1, options=WorkloadOptions(output_tokens=20)) for seed in (1, 2)]
RUNS = runs_of(SOURCES, ("fcfs", "lpm"), STUDY, Params())


def keys(found: pd.DataFrame) -> list[str]:
    return list(found["key"])


def test_rows_come_in_the_order_of_the_runs_and_are_the_simulators(tmp_path: Path) -> None:
    outcome = run_study(RUNS, tmp_path)
    assert keys(outcome.runs) == [key_of(run) for run in RUNS]
    for (_, row), run in zip(outcome.runs.iterrows(), RUNS, strict=True):
        alone = simulate(run.source.trace(), run.policy, run.profile, params=run.params).metrics
        assert {name: row[name] for name in REPRODUCIBLE} == {name: alone[name] for name in REPRODUCIBLE}
    assert (outcome.failures, outcome.resumed, outcome.rejected) == ({}, 0, 0)


def test_the_tails_are_those_of_the_tasks_of_each_workflow_and_agent(tmp_path: Path) -> None:
    source = Source("metagpt-tl", 12, 1, 0.05)
    found = run_study(runs_of([source], ("lpm",), STUDY, Params()), tmp_path).tails
    trace = source.trace()
    done = {task.id: task.jct_s for task in simulate(trace, "lpm", STUDY).tasks}
    for _, row in found.iterrows():
        flow, name = row["by"] == "workflow", row["name"]
        served = [
            task for task in trace.tasks if name in ([task.workflow.name] if flow else task.workflow.agents)
        ]
        own = [done[task.id] for task in served]
        assert (row["tasks"], row["max_jct_s"]) == (len(own), max(own))
        assert row["p99_jct_s"] == pytest.approx(np.percentile(own, 99))
        assert row["mean_jct_s"] == pytest.approx(np.mean(own))
    names = {("workflow", task.workflow.name) for task in trace.tasks}
    names |= {("agent", agent) for task in trace.tasks for agent in task.workflow.agents}
    assert set(zip(found["by"], found["name"], strict=True)) == names


def test_an_answer_in_memory_is_the_one_on_disk(tmp_path: Path) -> None:
    done = find_out(RUNS, tmp_path)
    for run, played in done.results.items():
        assert read_answer(run, answer_path(run, tmp_path)) == played


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    one, two = run_study(RUNS, tmp_path / "1"), run_study(RUNS, tmp_path / "2", jobs=2)
    assert one.runs[[*REPRODUCIBLE]].equals(two.runs[[*REPRODUCIBLE]])
    assert one.tails.equals(two.tails)
    assert {path.name for path in (tmp_path / "1/cells").iterdir()} == {
        path.name for path in (tmp_path / "2/cells").iterdir()
    }


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_study(RUNS[:2], tmp_path)
    planted = answer_path(RUNS[0], tmp_path)
    stored = json.loads(planted.read_text())
    stored["answer"]["metrics"]["mean_jct_s"] = 12345.0
    planted.write_text(json.dumps(stored))
    ran = []

    def counted(trace: Trace, policy: Policy, profile: Profile, *, params: Params) -> SimResult:
        ran.append(policy.name)
        return simulate(trace, policy, profile, params=params)

    monkeypatch.setattr(study, "simulate", counted)
    again = run_study(RUNS, tmp_path)
    assert ran == ["fcfs", "lpm"]
    assert again.resumed == 2
    assert again.runs["mean_jct_s"][0] == 12345.0
    assert again.runs.loc[1].equals(first.runs.loc[1])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        lambda text: text.replace("topas-answer/1", "topas-answer/2"),
        lambda text: text.replace('"policy":"fcfs"', '"policy":"lpm"'),
        lambda text: text.replace('"mean_jct_s"', '"median_jct_s"'),
        lambda text: text.replace('"preemptions":0', '"preemptions":0.5'),
        lambda text: text.replace('"preemptions":0', '"preemptions":NaN'),
        lambda text: text.replace('"preemptions":0', '"preemptions":"0"'),
    ],
)
def test_a_kept_file_that_is_not_that_cells_whole_result_is_run_again(
    tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    (run,) = RUNS[:1]
    run_study([run], tmp_path)
    path = answer_path(run, tmp_path)
    whole = path.read_text()
    assert spoil(whole) != whole
    path.write_text(spoil(whole))
    outcome = run_study([run], tmp_path)
    assert (outcome.resumed, outcome.rejected) == (0, 1)
    assert read_answer(run, path).metrics.mean_jct_s == outcome.runs["mean_jct_s"][0]


def test_files_of_other_runs_do_not_matter(tmp_path: Path) -> None:
    run_study(RUNS[2:], tmp_path)
    outcome = run_study(RUNS[:2], tmp_path)
    assert keys(outcome.runs) == [key_of(run) for run in RUNS[:2]]
    assert outcome.resumed == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_run_is_told_in_one_line_and_loses_no_other(tmp_path: Path, jobs: int) -> None:
    missing = replace(RUNS[0], source=Source(str(tmp_path / "none.jsonl"), 1, sha256="0" * 64))
    outcome = run_study([RUNS[0], missing, *RUNS[1:]], tmp_path, jobs=jobs)
    assert keys(outcome.runs) == [key_of(run) for run in RUNS]
    ((failed, reason),) = outcome.failures.items()
    assert failed == missing
    assert "none.jsonl: cannot read" in reason
    assert "\n" not in reason
    assert not answer_path(missing, tmp_path).exists()


def test_an_unexpected_error_is_a_failure_with_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(trace: Trace, policy: Policy, profile: Profile, *, params: Params) -> SimResult:
        if policy.name == "lpm":
            raise RuntimeError("two\nlines")
        return simulate(trace, policy, profile, params=params)

    monkeypatch.setattr(study, "simulate", broken)
    outcome = run_study(RUNS[:2], tmp_path)
    assert outcome.failures == {RUNS[1]: "RuntimeError: two lines"}
    assert len(outcome.runs) == 1


@pytest.mark.parametrize("wrong", [{"mean_jct_s": float("nan")}, {"peak_batch": 1.5}, {"surprise": 1.0}])
def test_metrics_that_are_not_whole_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, float]
) -> None:
    half = SimpleNamespace(metrics={**dict.fromkeys(METRICS, 1), **wrong}, tasks=())
    monkeypatch.setattr(study, "simulate", lambda *_, **__: half)
    outcome = run_study(RUNS[:1], tmp_path)
    assert outcome.runs.empty
    assert next(iter(wrong)) in outcome.failures[RUNS[0]]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        run_study(RUNS, tmp_path / "file")


def test_the_bar_shows_only_on_a_terminal_or_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_study(RUNS[:1], tmp_path / "a")
    run_study(RUNS[:1], tmp_path / "b", progress=False)
    assert capsys.readouterr() == ("", "")
    run_study(RUNS[:1], tmp_path / "c", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "1/1" in err


DYING = """
import json, os, sys
from pathlib import Path
from compare import store, study
from test_study import RUNS

real, doomed = store.answer_and_keep, store.key_of(RUNS[1])
def do(item, path):
    if path.stem == doomed:
        os._exit(1)
    return real(item, path)
store.WORK = store.Work(do, store.read_answer)
outcome = study.run_study(RUNS, Path(sys.argv[1]), jobs=2)
failed = {store.key_of(run): why for run, why in outcome.failures.items()}
print(json.dumps([list(outcome.runs["key"]), failed]))
"""


def test_a_worker_that_dies_costs_only_what_was_not_written(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ran = subprocess.run(  # noqa: S603  our own interpreter and script
        [sys.executable, "-c", DYING, str(tmp_path)],
        cwd=request.path.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    done, failed = json.loads(ran.stdout)
    assert sorted([*done, *failed]) == sorted(key_of(run) for run in RUNS)
    assert key_of(RUNS[1]) in failed
    assert set(failed.values()) == {"not done: a worker process died (out of memory?)"}
    resumed = run_study(RUNS, tmp_path)
    assert resumed.resumed == len(done)
    assert len(resumed.runs) == len(RUNS)
