"""The figures' studies (compare.figures)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compare import figures
from topas.policies import PAPER_BASELINES, PAPER_POLICIES


def test_the_grid_crosses_host_tier_prefix_and_spread_with_the_papers_policies() -> None:
    studies = {study.name: study for study in figures.studies()}
    grid = {name for name in studies if name.startswith("figure-3")}
    assert grid == {
        f"figure-3-{tier}-{prefix}k-sigma{sigma}"
        for tier in ("host", "nohost")
        for prefix in (4, 8, 12)
        for sigma in ("0", "0.5")
    }
    for name in grid:
        study = studies[name]
        assert study.workloads == ("chain-3", "dag-4", "dag-10-wide")
        assert study.profile.host_cache is name.startswith("figure-3-host")
    runs = studies["figure-3-host-12k-sigma0"].runs()
    assert {run.policy for run in runs} == set(PAPER_POLICIES)
    assert len(runs) == 3 * 4 * 3 * 10


def test_the_papers_operating_points_are_there() -> None:
    studies = {study.name: study for study in figures.studies()}
    assert studies["figure-1"].at == (0.15,)
    assert max(studies["figure-4-sop"].at) == 0.15
    assert studies["figure-5"].at == (0.0175,)


def test_a_study_runs_and_writes_its_report_figure_and_overview(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = figures.Study(
        "small", "a small one", ("chain-3",), figures.studies()[0].profile, (0.1,), loads=False
    )
    small = replace(small, tasks=3, seeds=(1,))
    monkeypatch.setattr(figures, "studies", lambda: [small])
    assert figures.main(["-o", str(tmp_path), "--jobs", "1"]) == 0
    assert {"results.csv", "report.md", "figure.png"} <= {
        path.name for path in (tmp_path / "small").iterdir()
    }
    overview = (tmp_path / "overview.md").read_text()
    assert overview.strip() == capsys.readouterr().out.strip()
    assert "a small one" in overview
    heads = [head.strip() for head in overview.splitlines()[0].strip("|").split("|")]
    assert heads[3:] == ["topas-paper", "topas-base", "downstream-gate"]
    page = (tmp_path / "small/report.md").read_text()
    marked = [name for name in PAPER_POLICIES if f"`{name}` (baseline)" in page]
    assert marked == list(PAPER_BASELINES)
    assert "hrrn" not in page
