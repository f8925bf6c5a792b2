"""Running cells: what is kept, skipped, run again and reported."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from compare import run as run_module
from compare.cell import METRICS, Cell, Generated, TraceFile, cells_of
from compare.run import Failure, read_result, run_cells
from topas.errors import InputError
from topas.event import Params
from topas.profile import load_profile
from topas.sim import simulate
from traces.workloads import WorkloadOptions

STUDY = load_profile("study")
SOURCES = [Generated("chain-3", 0.1, 2, seed, WorkloadOptions(output_tokens=20)) for seed in (1, 2)]
CELLS = cells_of(SOURCES, ("fcfs", "lpm"), STUDY, Params())
REPRODUCIBLE = [name for name in METRICS if not name.startswith("decision_ms")]


def path_of(folder, cell):
    return folder / "cells" / f"{cell.key()}.json"


def reproducible(outcome):
    return [{name: one.metrics[name] for name in REPRODUCIBLE} for one in outcome.results]


def test_results_come_in_the_order_of_the_cells_and_are_the_simulators(tmp_path):
    outcome = run_cells(CELLS, tmp_path)
    assert [one.cell for one in outcome.results] == list(CELLS)
    expected = [
        simulate(cell.source.trace(), cell.policy, cell.profile, params=cell.params).metrics for cell in CELLS
    ]
    assert reproducible(outcome) == [{name: one[name] for name in REPRODUCIBLE} for one in expected]
    assert (outcome.failures, outcome.resumed, outcome.rejected) == ((), 0, 0)


def test_a_result_in_memory_is_the_one_on_disk(tmp_path):
    for one in run_cells(CELLS, tmp_path).results:
        assert read_result(one.cell, path_of(tmp_path, one.cell)) == one


def test_two_processes_give_what_one_gives(tmp_path):
    one, two = run_cells(CELLS, tmp_path / "1"), run_cells(CELLS, tmp_path / "2", jobs=2)
    assert reproducible(one) == reproducible(two)
    assert {path.name for path in (tmp_path / "1/cells").iterdir()} == {
        path.name for path in (tmp_path / "2/cells").iterdir()
    }


def test_a_finished_cell_is_not_run_again(tmp_path, monkeypatch):
    first = run_cells(CELLS[:2], tmp_path)
    planted = path_of(tmp_path, CELLS[0])
    stored = json.loads(planted.read_text())
    planted.write_text(json.dumps({**stored, "metrics": {**stored["metrics"], "mean_jct_s": 12345.0}}))
    ran = []

    def counted(trace, policy, profile, *, params):
        ran.append(policy)
        return simulate(trace, policy, profile, params=params)

    monkeypatch.setattr(run_module, "simulate", counted)
    again = run_cells(CELLS, tmp_path)
    assert ran == ["fcfs", "lpm"]
    assert again.resumed == 2
    assert again.results[0].metrics["mean_jct_s"] == 12345.0
    assert again.results[1] == first.results[1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        lambda text: text.replace("topas-cell/1", "topas-cell/2"),
        lambda text: text.replace('"policy":"fcfs"', '"policy":"lpm"'),
        lambda text: text.replace('"mean_jct_s"', '"median_jct_s"'),
        lambda text: text.replace('"preemptions":0', '"preemptions":0.5'),
        lambda text: text.replace('"preemptions":0', '"preemptions":NaN'),
        lambda text: text.replace('"preemptions":0', '"preemptions":"0"'),
    ],
)
def test_a_kept_file_that_is_not_that_cells_whole_result_is_run_again(tmp_path, spoil):
    (cell,) = CELLS[:1]
    run_cells([cell], tmp_path)
    path = path_of(tmp_path, cell)
    whole = path.read_text()
    assert spoil(whole) != whole
    path.write_text(spoil(whole))
    outcome = run_cells([cell], tmp_path)
    assert (outcome.resumed, outcome.rejected) == (0, 1)
    assert read_result(cell, path) == outcome.results[0]


def test_files_of_other_cells_do_not_matter(tmp_path):
    run_cells(CELLS[2:], tmp_path)
    outcome = run_cells(CELLS[:2], tmp_path)
    assert [one.cell for one in outcome.results] == list(CELLS[:2])
    assert outcome.resumed == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_cell_is_told_in_one_line_and_loses_no_other(tmp_path, jobs):
    missing = replace(CELLS[0], source=TraceFile(str(tmp_path / "none.jsonl"), "0" * 64, 1))
    outcome = run_cells([CELLS[0], missing, *CELLS[1:]], tmp_path, jobs=jobs)
    assert [one.cell for one in outcome.results] == list(CELLS)
    (failure,) = outcome.failures
    assert failure.cell == missing
    assert "none.jsonl: cannot read" in failure.reason
    assert "\n" not in failure.reason
    assert not path_of(tmp_path, missing).exists()


def test_an_unexpected_error_is_a_failure_with_its_type(tmp_path, monkeypatch):
    def broken(_trace, policy, _profile, *, params):
        if policy == "lpm":
            raise RuntimeError("two\nlines")
        return simulate(_trace, policy, _profile, params=params)

    monkeypatch.setattr(run_module, "simulate", broken)
    outcome = run_cells(CELLS[:2], tmp_path)
    assert outcome.failures == (Failure(CELLS[1], "RuntimeError: two lines"),)
    assert len(outcome.results) == 1


@pytest.mark.parametrize("wrong", [{"mean_jct_s": float("nan")}, {"peak_batch": 1.5}, {"surprise": 1}])
def test_metrics_that_are_not_whole_are_a_failure(tmp_path, monkeypatch, wrong):
    class Half:
        metrics = {**dict.fromkeys(METRICS, 1), **wrong}

    monkeypatch.setattr(run_module, "simulate", lambda *_, **__: Half())
    outcome = run_cells(CELLS[:1], tmp_path)
    assert outcome.results == ()
    assert "missing or not finite" in outcome.failures[0].reason


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        run_cells(CELLS, tmp_path / "file")


def test_the_bar_shows_only_on_a_terminal_or_when_asked_for(tmp_path, capsys):
    run_cells(CELLS[:1], tmp_path / "a")
    run_cells(CELLS[:1], tmp_path / "b", progress=False)
    assert capsys.readouterr() == ("", "")
    run_cells(CELLS[:1], tmp_path / "c", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "1/1" in err


DYING = """
import os, sys
from pathlib import Path
import compare.run as run
from test_compare_run import CELLS

real = run.attempt
def attempt(cell, path):
    done = real(cell, path)
    if cell.policy == "lpm" and cell.source.seed == 1:
        os._exit(1)
    return done
run.attempt = attempt
cells = [cell for cell in CELLS if not (cell.policy == "lpm" and cell.source.seed == 2)]
outcome = run.run_cells(cells, Path(sys.argv[1]), jobs=2)
print(len(outcome.results) + len(outcome.failures), [failure.reason for failure in outcome.failures])
"""


def test_a_worker_that_dies_costs_only_what_was_not_written(tmp_path, request):
    done = subprocess.run(  # noqa: S603  our own interpreter and script
        [sys.executable, "-c", DYING, str(tmp_path)],
        cwd=request.path.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("3 ")
    assert all(reason in ("not done: a worker process died (out of memory?)") for reason in done.stdout[3:-2].split("', '"))
    resumed = run_cells(CELLS, tmp_path)
    assert resumed.resumed >= 1
    assert len(resumed.results) == len(CELLS)
