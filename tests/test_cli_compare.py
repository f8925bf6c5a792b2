"""``topas compare`` from the command line to the files."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import support_cli

from topas.cli import main
from topas.policies import baseline_names, policy_names
from topas.trace.format import write_trace
from traces.workloads import generate

SMALL = ["--tasks", "2", "--output-tokens", "20", "--jobs", "1"]


def compare(folder: Path, *words: str) -> int:
    return main(["compare", *words, "-o", str(folder)])


def small(folder: Path, *words: str) -> int:
    return compare(folder, *words, *SMALL)


def rows(table: pd.DataFrame, *names: str) -> list[tuple[object, ...]]:
    """Return some columns row by row, with None for what is missing."""
    found = table[list(names)].astype(object)
    return list(found.where(found.notna(), None).itertuples(index=False, name=None))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    return support_cli.refused(capsys, "compare", *words)


def kept(folder: Path) -> dict[str, int]:
    """Return the finished cells of a folder with the times at which they were written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cells").glob("*.json")}


@pytest.fixture
def trace_file(tmp_path: Path) -> str:
    path = tmp_path / "recorded.jsonl"
    write_trace(generate("chain-3", rate_per_s=0.1, tasks=2, seed=1), path)
    return str(path)


def test_the_defaults_are_all_policies_two_loads_and_three_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert small(tmp_path, "chain-3") == 0
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert list(table["policy"].unique()) == policy_names()
    assert list(table["load"].unique()) == [0.5, 0.75]
    assert list(table["seed"].unique()) == [1, 2, 3]
    assert list(table["profile"].unique()) == ["study"]
    assert len(table) == len(policy_names()) * 2 * 3
    out, err = capsys.readouterr()
    assert err == ""
    assert "chain-3, profile study, average over: load 0.5" in out
    assert f"written: {tmp_path}/results.csv" in out


def test_rates_policies_seeds_and_the_engine_are_taken_as_given(tmp_path: Path) -> None:
    words = ["--rates", "0.05,0.2", "--policies", "topas,lpm", "--seeds", "7", "--host-cache", "off"]
    assert small(tmp_path, "chain-3", *words, "--beta", "0.25") == 0
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert rows(table, "rate_per_s", "policy", "seed", "load", "host_cache") == [
        (0.05, "topas", 7, None, False),
        (0.05, "lpm", 7, None, False),
        (0.2, "topas", 7, None, False),
        (0.2, "lpm", 7, None, False),
    ]
    assert (
        "- Parameters: beta 0.25, rho 0.5, M 6, K 0, age factor 1.0." in (tmp_path / "report.md").read_text()
    )


def test_results_are_those_of_topas_workload_and_topas_simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert small(tmp_path, "chain-3", "--loads", "0.5", "--seeds", "3", "--policies", "topas") == 0
    trace = str(tmp_path / "t.jsonl")
    words = ["--load", "0.5", "--profile", "study", "--tasks", "2", "--output-tokens", "20", "--seed", "3"]
    assert main(["workload", "chain-3", *words, "-o", trace]) == 0
    capsys.readouterr()
    assert main(["simulate", trace, "--policy", "topas", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    (row,) = pd.read_parquet(tmp_path / "results.parquet").to_dict("records")
    shared = {name: value for name, value in alone.items() if not name.startswith("decision_ms")}
    assert {name: row[name] for name in shared} == shared


def test_a_trace_file_is_one_cell_a_policy(
    tmp_path: Path, trace_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, trace_file, "--policies", "fcfs,topas") == 0
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert rows(table, "workload", "policy", "load", "rate_per_s", "seed", "tasks") == [
        (trace_file, "fcfs", None, None, None, 2),
        (trace_file, "topas", None, None, None, 2),
    ]
    assert capsys.readouterr().err == ""


def test_options_without_effect_on_a_trace_file_are_told(
    tmp_path: Path, trace_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--loads", "0.5", "--seeds", "1", "--tasks", "9", "--prefix-tokens", "5"]
    assert compare(tmp_path, trace_file, "--policies", "fcfs", *words) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line
        == f"topas: --loads, --seeds, --tasks, --prefix-tokens: of no effect on {trace_file}, used as it is"
    )


def test_figure_2_is_a_workload_without_rates(tmp_path: Path) -> None:
    assert compare(tmp_path, "figure-2", "--profile", "unit", "--policies", "lpm,spf") == 0
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert rows(table, "policy", "tasks", "rate_per_s") == [("lpm", 2, None), ("spf", 2, None)]


def test_json_is_one_object_on_stdout_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert small(tmp_path, "chain-3", "--seeds", "1", "--loads", "0.5", "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert out.count("\n") == 1
    assert found["policies"] == policy_names()
    assert found["baselines"] == baseline_names()
    assert (found["cells"], found["resumed"], found["failed"]) == (len(policy_names()), 0, [])
    averages = [
        row for row in found["summary"] if row["scope"] == "average" and row["metric"] == "mean_jct_s"
    ]
    assert [row["policy"] for row in averages] == policy_names()
    assert all(row["best_baseline"] in baseline_names() for row in averages)
    assert f"{tmp_path}/results.csv" in found["files"]


def test_the_command_in_the_report_makes_the_same_results(tmp_path: Path) -> None:
    words = ["--seeds", "2", "--input-sigma", "0.5", "--redo", "keep", "--K", "3", "--order", "grouped"]
    assert small(tmp_path / "a", "two-agent", *words) == 0
    page = (tmp_path / "a/report.md").read_text()
    command = shlex.split(page.split("```")[1].removeprefix("sh\n"))
    assert command[:3] == ["topas", "compare", "two-agent"]
    command[-1] = str(tmp_path / "b")
    assert main(command[1:]) == 0
    for name in ("results.csv", "results.parquet", "summary.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_second_run_skips_what_is_done_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["chain-3", "--loads", "0.5", "--seeds", "1,2"]
    assert small(tmp_path, *words, "--policies", "fcfs") == 0
    before = kept(tmp_path)
    assert len(before) == 2
    capsys.readouterr()
    assert small(tmp_path, *words, "--policies", "fcfs,lpm") == 0
    assert "topas: 2 of 4 cells were done before" in capsys.readouterr().err
    after = kept(tmp_path)
    assert len(after) == 4
    assert {name: after[name] for name in before} == before


def test_only_the_cells_of_this_command_are_reported(tmp_path: Path) -> None:
    assert small(tmp_path, "chain-3", "--policies", "fcfs") == 0
    assert small(tmp_path, "dag-4", "--policies", "lpm", "--seeds", "1", "--loads", "0.5") == 0
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert rows(table, "workload", "policy") == [("dag-4", "lpm")]
    assert len(kept(tmp_path)) == 7


def test_plot_draws_the_figure(tmp_path: Path) -> None:
    words = ["--policies", "fcfs,topas", "--seeds", "1", "--plot"]
    assert small(tmp_path, "chain-3", *words) == 0
    assert (tmp_path / "figure.png").stat().st_size > 1000
    assert (tmp_path / "figure.svg").stat().st_size > 1000


def test_quiet_says_nothing_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["chain-3", "--policies", "fcfs", "--seeds", "1"]
    assert small(tmp_path, *words) == 0
    assert small(tmp_path, *words, "--quiet", "--progress") == 0
    assert capsys.readouterr().err == ""


def test_progress_shows_the_bar_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert small(tmp_path, "chain-3", "--policies", "fcfs", "--seeds", "1", "--progress") == 0
    assert "2/2" in capsys.readouterr().err


# Seed 2 draws an input that the budget of 36,000 tokens cannot hold, seed 1 does not.
HALF = ["--input-tokens", "18000", "--input-sigma", "0.3", "--seeds", "1,2", "--loads", "0.5"]


def test_a_failed_cell_is_told_in_one_line_and_the_others_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert small(tmp_path, "chain-3", *HALF, "--policies", "fcfs,lpm") == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()
    for line, policy in zip(lines, ("fcfs", "lpm"), strict=True):
        assert line.startswith(f"topas: failed: chain-3, load 0.5, seed 2, {policy}: ")
    assert all("needs 42929 KV tokens" in line for line in lines)
    assert "written:" in out
    table = pd.read_parquet(tmp_path / "results.parquet")
    assert rows(table, "seed", "policy") == [(1, "fcfs"), (1, "lpm")]
    assert "## Failed cells" in (tmp_path / "report.md").read_text()


def test_the_same_failure_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert small(tmp_path, "chain-3", *HALF, "--policies", "fcfs", "--json") == 1
    (failed,) = json.loads(capsys.readouterr().out)["failed"]
    assert failed["cell"] == "chain-3, load 0.5, seed 2, fcfs"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["dag-5"], "dag-5: no such trace file, nor a workload: chain-3, dag-4,"),
        (["chain-3", "--policies", "fcfs,fifo"], "unknown policy 'fifo'; known: fcfs, lpm,"),
        (["chain-3", "chain-3"], "named twice"),
        (["chain-3", "--profile", "nothing"], "no such profile"),
        (["chain-3", "--tasks", "0"], "expected at least one task"),
        (["chain-3", "--prefix-tokens", "-1"], "prefix_tokens: expected 0 to"),
        (["chain-3", "--prefix-tokens", "40000"], "needs 40900 KV tokens"),
        (["chain-3", "--order", "grouped"], "only two-agent has an order"),
        (["figure-2", "--output-sigma", "0.5"], "fixed"),
        (["chain-3", "--jobs", "0"], "--jobs: expected at least 1 process"),
        (["chain-3", "--beta", "-1"], "--beta"),
        (["figure-2", "--profile", "unit", "--plot"], "--plot: needs a workload with arrival rates"),
        (["chain-3", "--loads", "0.5", "--rates", "1"], "not allowed with"),
        (["chain-3", "--loads", "0.5,half"], "expected numbers with commas between, found '0.5,half'"),
        (["chain-3", "--loads", "0.5,0"], "expected positive numbers"),
        (["chain-3", "--rates", "nan"], "expected positive numbers"),
        (["chain-3", "--seeds", "-1"], "expected no negative number"),
        (["chain-3", "--seeds", "1,1"], "found one twice in '1,1'"),
        (["chain-3", "--seeds", ""], "expected numbers"),
        (["chain-3", "--policies", "lpm,lpm"], "found one twice"),
        (["chain-3", "--engine", "vllm"], "invalid choice"),
    ],
)
def test_bad_input_is_refused_with_status_2_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert told in refused(capsys, *words, "-o", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_wrong_trace_file_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text("{}\n")
    assert "wrong.jsonl:1" in refused(capsys, str(path), "-o", str(tmp_path / "out"))


@pytest.mark.parametrize(
    "library", ["jinja2", "joblib", "matplotlib", "pandas", "pyarrow", "scipy", "tabulate", "tqdm"]
)
def test_a_missing_library_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(("compare.", f"{library}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    told = refused(capsys, "chain-3", "--plot", "-o", str(tmp_path / "out"))
    assert told == f"topas: {library} is not installed: pip install 'topas[compare]'"


def test_another_missing_module_is_no_matter_of_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("compare.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "compare.study", None)
    with pytest.raises(ModuleNotFoundError, match=r"compare\.study"):
        compare(tmp_path, "chain-3")


STOPPED = """
import sys, time
from compare import store
from topas.cli import main

real = store.answer_and_keep
def do(run, path):
    if run.policy == "topas":
        (path.parent.parent / f"begun-{path.stem}").touch()
        time.sleep(600)
    return real(run, path)
store.WORK = store.Work(do, store.read_answer)
sys.exit(main(sys.argv[1:]))
"""
"""The command with a policy that never ends, so that it is stopped in the middle of the run."""

GRID = ["chain-3", "--policies", "fcfs,lpm,topas", "--loads", "0.5", "--seeds", "1,2"]


@pytest.mark.parametrize(("sent", "jobs"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGKILL, 2)])
def test_a_stopped_run_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sent: signal.Signals, jobs: int
) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    words = [*GRID, "--tasks", "2", "--output-tokens", "20"]
    with subprocess.Popen(  # noqa: S603  our own interpreter and script
        [sys.executable, "-c", STOPPED, "compare", *words, "--jobs", str(jobs), "-o", str(stopped)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        # Every worker is in a cell that does not end: none is still starting when the signal comes.
        while len(list(stopped.glob("begun-*"))) < jobs:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, sent)  # as a terminal does: to the workers as well
        out, err = process.communicate(timeout=60)
    before = kept(stopped)
    assert 2 <= len(before) <= 4
    if sent == signal.SIGINT:
        assert process.returncode == 130
        told = f"topas: interrupted: {len(before)} of 6 cells are kept in {stopped}/cells"
        assert err.splitlines() == [f"{told}; the same command goes on from there"]
        assert out == ""
    assert not (stopped / "results.csv").exists()

    assert compare(stopped, *words, "--jobs", "1") == 0
    assert f"{len(before)} of 6 cells were done before" in capsys.readouterr().err
    assert {name: kept(stopped)[name] for name in before} == before
    assert compare(whole, *words, "--jobs", "1") == 0
    for name in ("results.csv", "results.parquet", "summary.csv"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
