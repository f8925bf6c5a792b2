"""``topas oracle trace``: a trace in, JSON or a table out, and what is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from topas.cli import main
from topas.profile import load_profile
from topas.sim import simulate
from topas.trace.format import write_trace
from traces.workloads import generate

pytest.importorskip("highspy")
pytest.importorskip("ortools")
Run = Callable[..., tuple[int, str, str]]
KEYS = ["trace", "tasks", "profile", "lower_bound_s", "bound", "bounds", "refused", "optimum"]
KEYS += ["best_known", "gap"]
FAST = ("--time-limit", "0.5", "--quiet")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> tuple[int, str, str]:
        status = main(["oracle", "trace", *map(str, words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def figure_2(tmp_path: Path) -> Path:
    path = tmp_path / "figure-2.jsonl"
    write_trace(generate("figure-2", rate_per_s=1.0, tasks=2, seed=1), path)
    return path


@pytest.fixture
def chain_3(tmp_path: Path) -> Path:
    path = tmp_path / "chain-3.jsonl"
    write_trace(generate("chain-3", rate_per_s=0.2, tasks=3, seed=1), path)
    return path


def test_the_optimum_of_figure_2(run: Run, figure_2: Path) -> None:
    status, out, err = run(figure_2, "--profile", "unit", "--time-limit", 20, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert list(found) == KEYS
    assert found["profile"] == "unit"
    assert (found["lower_bound_s"], found["bound"]) == (21.5, "cp-sat")
    assert found["optimum"] == {"status": "OPTIMAL", "mean_jct_s": 21.5}
    assert found["best_known"] == {"mean_jct_s": 21.5, "found_by": "cp-sat"}
    assert found["gap"] == 0.0
    assert {row["reason"] for row in found["refused"] if row["name"].startswith("slot")} == {
        "needs a decode step to take time (decode_base_s above 0)"
    }


def test_a_schedule_is_looked_for(run: Run, chain_3: Path) -> None:
    status, out, err = run(chain_3, "--profile", "study", "--improve", 1, "--json", *FAST)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert list(found) == KEYS
    names = [row["name"] for row in found["bounds"]]
    assert names[:3] == ["critical-path", "gpu-time", "kv-time"]
    assert found["lower_bound_s"] == max(row["mean_jct_s"] for row in found["bounds"])
    assert found["bound"] in names
    for row in found["bounds"]:
        assert list(row) == ["name", "mean_jct_s", "status", "solve_s"]
        assert math.isfinite(row["mean_jct_s"])
    assert not set(names) & {row["name"] for row in found["refused"]}
    assert found["optimum"] is None
    assert 0 < found["lower_bound_s"] <= found["best_known"]["mean_jct_s"]
    assert found["gap"] == found["best_known"]["mean_jct_s"] / found["lower_bound_s"] - 1
    trace = generate("chain-3", rate_per_s=0.2, tasks=3, seed=1)
    fcfs = simulate(trace, "fcfs", load_profile("study")).metrics["mean_jct_s"]
    assert found["best_known"]["mean_jct_s"] <= fcfs


def test_without_improve_only_bounds(run: Run, chain_3: Path) -> None:
    status, out, _ = run(chain_3, "--json", *FAST)
    assert status == 0
    found = json.loads(out)
    assert (found["best_known"], found["gap"], found["optimum"]) == (None, None, None)


def test_a_table_for_people(run: Run, figure_2: Path, chain_3: Path) -> None:
    status, out, err = run(figure_2, "--profile", "unit", "--quiet")
    assert (status, err) == (0, "")
    assert "2 tasks on unit, mean JCT of any schedule" in out
    assert "21.500 s  cp-sat" in out
    assert "OPTIMAL" in out
    assert "<- best" in out
    assert "0.00 % above the best bound" in out
    status, out, _ = run(chain_3, *FAST)
    assert status == 0
    assert "not applied: cp-sat" in out
    assert "\n  reached" not in out


def test_nothing_but_json_on_standard_output(chain_3: Path) -> None:
    """A fresh process: HiGHS prints a banner when it is first used."""
    words = [sys.executable, "-m", "topas.cli", "oracle", "trace", str(chain_3), "--json", *FAST]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603  our own command
    assert (done.returncode, done.stderr) == (0, "")
    assert list(json.loads(done.stdout)) == KEYS
    assert done.stdout.count("\n") == 1


def test_no_time_is_a_limit_too(run: Run, figure_2: Path) -> None:
    status, out, _ = run(figure_2, "--profile", "unit", "--time-limit", 0, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["optimum"] == {"status": "UNKNOWN", "mean_jct_s": None}
    assert 0 < found["lower_bound_s"] <= 21.5
    assert found["gap"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--time-limit", "-1"], "--time-limit: expected a finite number of seconds"),
        (["--time-limit", "inf"], "--time-limit: expected a finite number of seconds"),
        (["--improve", "nan"], "--improve: expected a finite number of seconds"),
        (["--improve", "-3"], "--improve: expected a finite number of seconds"),
        (["--profile", "nobody"], "no such profile or file"),
    ],
)
def test_bad_options(run: Run, chain_3: Path, words: list[str], said: str) -> None:
    status, out, err = run(chain_3, *words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_bad_files(run: Run, tmp_path: Path, chain_3: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    for path in (tmp_path / "none.jsonl", broken):
        status, out, err = run(path)
        assert (status, out) == (2, "")
        assert str(path) in err
        assert err.count("\n") == 1
    status, out, err = run(chain_3, "--profile", "unit")
    assert (status, out) == (2, "")
    assert "KV tokens" in err
    assert err.count("\n") == 1


def test_usage_errors_exit_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["x.jsonl", "--time-limit", "soon"], ["x.jsonl", "--nonsense"]):
        with pytest.raises(SystemExit) as caught:
            main(["oracle", "trace", *words])
        assert caught.value.code == 2
        assert capsys.readouterr().out == ""
