"""The benchmark (compare.bench): what it measures on, and what it writes. No times are asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compare import bench
from topas.feasible import violations
from topas.online.search import select


def test_the_large_event_is_what_it_says_and_can_be_decided() -> None:
    event = bench.large_event(600, 10, seed=1)
    assert len(event.waiting) == 600
    assert len({request.agent for request in event.waiting}) == len(event.agents) == 10
    decision = select(event)
    assert decision.admit
    assert violations(event, decision) == []
    assert select(bench.large_event(600, 10, seed=1)) == decision


def test_a_figure_is_met_on_its_better_side() -> None:
    assert bench.Figure("time", 1.0, "ms", 2.0).met
    assert not bench.Figure("time", 3.0, "ms", 2.0).met
    assert bench.Figure("rate", 3.0, "1/s", 2.0, smaller=False).met
    assert not bench.Figure("rate", 1.0, "1/s", 2.0, smaller=False).met


def test_the_near_exact_search_is_measured_by_size_and_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "NEAR_EXACT", ((12, 3, 0.5), (20, 4, 1.0)))
    found = bench.near_exact(1, seeds=[1, 2])
    assert [one.unit for one in found] == ["ms", "x"] * 4
    assert [one.aim for one in found if one.unit == "ms"] == [0.5, 0.5, 1.0, 1.0]
    assert sum("K = 8" in one.name for one in found) == 4
    assert all(one.value > 0 for one in found)


def test_the_figures_are_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "figures", lambda repeats: [bench.Figure("time", 1.5 * repeats, "ms", 2.0)])
    path = tmp_path / "new" / "bench.json"
    assert bench.main(["--repeats", "2", "-o", str(path)]) == 0
    assert json.loads(path.read_text()) == [{"name": "time", "value": 3.0, "unit": "ms", "aim": 2.0}]
    printed = capsys.readouterr().out
    assert "3.00" in printed
    assert "no" in printed
