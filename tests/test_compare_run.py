"""Running cells: what is kept, skipped, run again and reported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from compare import run as run_module
from compare.cell import METRICS, Cell, Generated, TraceFile, cells_of
from compare.run import Failure, Outcome, read_result, run_cells
from topas.errors import InputError
from topas.event import Params
from topas.profile import Profile, load_profile
from topas.sim import SimResult, simulate
from topas.trace import Trace
from traces.workloads import WorkloadOptions

STUDY = load_profile("study")
SOURCES = [Generated("chain-3", 0.1, 2, seed, WorkloadOptions(output_tokens=20)) for seed in (1, 2)]
CELLS = cells_of(SOURCES, ("fcfs", "lpm"), STUDY, Params())
REPRODUCIBLE = [name for name in METRICS if not name.startswith("decision_ms")]


def path_of(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.key()}.json"


def reproducible(outcome: Outcome) -> list[dict[str, float]]:
    return [{name: one.metrics[name] for name in REPRODUCIBLE} for one in outcome.results]


def test_results_come_in_the_order_of_the_cells_and_are_the_simulators(tmp_path: Path) -> None:
    outcome = run_cells(CELLS, tmp_path)
    assert [one.cell for one in outcome.results] == list(CELLS)
    expected = [
        simulate(cell.source.trace(), cell.policy, cell.profile, params=cell.params).metrics for cell in CELLS
    ]
    assert reproducible(outcome) == [{name: one[name] for name in REPRODUCIBLE} for one in expected]
    assert (outcome.failures, outcome.resumed, outcome.rejected) == ((), 0, 0)


def test_a_result_in_memory_is_the_one_on_disk(tmp_path: Path) -> None:
    for one in run_cells(CELLS, tmp_path).results:
        assert read_result(one.cell, path_of(tmp_path, one.cell)) == one


def test_two_processes_give_what_one_gives(tmp_path: Path) -> None:
    one, two = run_cells(CELLS, tmp_path / "1"), run_cells(CELLS, tmp_path / "2", jobs=2)
    assert reproducible(one) == reproducible(two)
    assert {path.name for path in (tmp_path / "1/cells").iterdir()} == {
        path.name for path in (tmp_path / "2/cells").iterdir()
    }


def test_a_finished_cell_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_cells(CELLS[:2], tmp_path)
    planted = path_of(tmp_path, CELLS[0])
    stored = json.loads(planted.read_text())
    planted.write_text(json.dumps({**stored, "metrics": {**stored["metrics"], "mean_jct_s": 12345.0}}))
    ran = []

    def counted(trace: Trace, policy: str, profile: Profile, *, params: Params) -> SimResult:
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
def test_a_kept_file_that_is_not_that_cells_whole_result_is_run_again(
    tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    (cell,) = CELLS[:1]
    run_cells([cell], tmp_path)
    path = path_of(tmp_path, cell)
    whole = path.read_text()
    assert spoil(whole) != whole
    path.write_text(spoil(whole))
    outcome = run_cells([cell], tmp_path)
    assert (outcome.resumed, outcome.rejected) == (0, 1)
    assert read_result(cell, path) == outcome.results[0]


def test_files_of_other_cells_do_not_matter(tmp_path: Path) -> None:
    run_cells(CELLS[2:], tmp_path)
    outcome = run_cells(CELLS[:2], tmp_path)
    assert [one.cell for one in outcome.results] == list(CELLS[:2])
    assert outcome.resumed == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_cell_is_told_in_one_line_and_loses_no_other(tmp_path: Path, jobs: int) -> None:
    missing = replace(CELLS[0], source=TraceFile(str(tmp_path / "none.jsonl"), "0" * 64, 1))
    outcome = run_cells([CELLS[0], missing, *CELLS[1:]], tmp_path, jobs=jobs)
    assert [one.cell for one in outcome.results] == list(CELLS)
    (failure,) = outcome.failures
    assert failure.cell == missing
    assert "none.jsonl: cannot read" in failure.reason
    assert "\n" not in failure.reason
    assert not path_of(tmp_path, missing).exists()


def test_an_unexpected_error_is_a_failure_with_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(trace: Trace, policy: str, profile: Profile, *, params: Params) -> SimResult:
        if policy == "lpm":
            raise RuntimeError("two\nlines")
        return simulate(trace, policy, profile, params=params)

    monkeypatch.setattr(run_module, "simulate", broken)
    outcome = run_cells(CELLS[:2], tmp_path)
    assert outcome.failures == (Failure(CELLS[1], "RuntimeError: two lines"),)
    assert len(outcome.results) == 1


@pytest.mark.parametrize("wrong", [{"mean_jct_s": float("nan")}, {"peak_batch": 1.5}, {"surprise": 1}])
def test_metrics_that_are_not_whole_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, float]
) -> None:
    half = SimpleNamespace(metrics={**dict.fromkeys(METRICS, 1), **wrong})
    monkeypatch.setattr(run_module, "simulate", lambda *_, **__: half)
    outcome = run_cells(CELLS[:1], tmp_path)
    assert outcome.results == ()
    assert "missing or not finite" in outcome.failures[0].reason


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        run_cells(CELLS, tmp_path / "file")


def test_the_bar_shows_only_on_a_terminal_or_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cells(CELLS[:1], tmp_path / "a")
    run_cells(CELLS[:1], tmp_path / "b", progress=False)
    assert capsys.readouterr() == ("", "")
    run_cells(CELLS[:1], tmp_path / "c", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "1/1" in err


DYING = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace
import compare.run as run
from test_compare_run import CELLS

real = run.attempt
doomed = CELLS[1].key()
def attempt(cell, path):
    if cell.key() == doomed:
        os._exit(1)
    return real(cell, path)
run.attempt = attempt
outcome = run.run_cells(CELLS, Path(sys.argv[1]), jobs=2)
done = [one.cell.key() for one in outcome.results]
print(json.dumps([done, {one.cell.key(): one.reason for one in outcome.failures}]))
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
    assert sorted([*done, *failed]) == sorted(cell.key() for cell in CELLS)
    assert CELLS[1].key() in failed
    assert set(failed.values()) == {"not done: a worker process died (out of memory?)"}
    resumed = run_cells(CELLS, tmp_path)
    assert resumed.resumed == len(done)
    assert len(resumed.results) == len(CELLS)
