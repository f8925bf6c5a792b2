"""Cells: what they depend on, their keys, and the traces behind them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from compare import cell as cell_module
from compare.cell import Cell, Fixed, Generated, Points, TraceFile, canonical, cells_of, sources_of
from topas.errors import InputError
from topas.event import Params
from topas.profile import load_profile
from topas.trace.format import trace_lines, write_trace
from traces.load import rate_for_load
from traces.workloads import WorkloadOptions, generate

STUDY = load_profile("study")
SOURCE = Generated("chain-3", 0.1, 3, 1, WorkloadOptions(output_tokens=50))
CELL = Cell(SOURCE, "lpm", STUDY, Params())
POINTS = Points((0.05, 0.1), loads=False, seeds=(1, 2), tasks=3, options=WorkloadOptions())


def test_the_key_is_the_hash_of_cell_version_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_module, "version", lambda _: "1.2.3")
    monkeypatch.setattr(cell_module, "code_digest", lambda: "digest")
    options = dict.fromkeys(
        ["prefix_tokens", "input_tokens", "output_sigma", "input_sigma", "max_new_tokens", "order"]
    )
    trace = {
        "kind": "Generated",
        "workload": "chain-3",
        "rate_per_s": 0.1,
        "tasks": 3,
        "seed": 1,
        "options": {**options, "output_tokens": 50},
        "load": None,
    }
    params = TypeAdapter(Params).dump_python(Params(), mode="json")
    assert {"beta", "rho", "M", "K", "seed"} < params.keys()
    profile = json.loads(STUDY.model_dump_json())
    content = {"trace": trace, "policy": "lpm", "profile": profile, "params": params}
    identity = {"cell": content, "version": "1.2.3", "code": "digest"}
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    assert CELL.key() == hashlib.sha256(text.encode()).hexdigest()


def test_a_change_of_the_code_alone_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CELL.key()
    monkeypatch.setattr(cell_module, "code_digest", lambda: "other")
    assert CELL.key() != before


def test_equal_cells_have_equal_keys() -> None:
    source = Generated("chain-3", 0.1, 3, 1, WorkloadOptions(output_tokens=50))
    assert Cell(source, "lpm", load_profile("study"), Params()).key() == CELL.key()


@pytest.mark.parametrize(
    "other",
    [
        replace(CELL, policy="fcfs"),
        replace(CELL, source=replace(SOURCE, workload="dag-4")),
        replace(CELL, source=replace(SOURCE, rate_per_s=0.2)),
        replace(CELL, source=replace(SOURCE, load=0.5)),
        replace(CELL, source=replace(SOURCE, tasks=4)),
        replace(CELL, source=replace(SOURCE, seed=2)),
        replace(CELL, source=replace(SOURCE, options=WorkloadOptions(output_tokens=51))),
        replace(CELL, source=TraceFile("chain-3", "0" * 64, 3)),
        replace(CELL, profile=STUDY.model_copy(update={"host_cache": False})),
        replace(CELL, profile=STUDY.model_copy(update={"kv_budget_tokens": 36001})),
        replace(CELL, params=Params(beta=0.5)),
    ],
    ids=str,
)
def test_whatever_a_result_depends_on_changes_the_key(other: Cell) -> None:
    assert other.key() != CELL.key()


def test_a_new_version_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CELL.key()
    monkeypatch.setattr(cell_module, "version", lambda _: "999")
    assert CELL.key() != before


def test_another_digest_of_the_trace_file_changes_the_key() -> None:
    old, new = (replace(CELL, source=TraceFile("a.jsonl", digit * 64, 3)) for digit in "01")
    assert old.key() != new.key()


def test_canonical_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical({"x": float("nan")})


def test_every_policy_gets_the_same_trace() -> None:
    cells = cells_of(sources_of("dag-4", POINTS, STUDY), ("fcfs", "lpm", "topas"), STUDY, Params())
    assert len(cells) == 2 * 2 * 3
    assert [cell.policy for cell in cells[:3]] == ["fcfs", "lpm", "topas"]
    traces: dict[tuple[float | None, int | None], set[bytes]] = {}
    for cell in cells:
        drawn = (cell.source.rate_per_s, cell.source.seed)
        traces.setdefault(drawn, set()).add(b"".join(trace_lines(cell.source.trace())))
    assert [len(texts) for texts in traces.values()] == [1] * 4
    assert len(set.union(*traces.values())) == 4


def test_rates_are_used_as_given() -> None:
    found = [(one.rate_per_s, one.seed, one.load) for one in sources_of("chain-3", POINTS, STUDY)]
    assert found == [(0.05, 1, None), (0.05, 2, None), (0.1, 1, None), (0.1, 2, None)]


def test_a_load_becomes_the_rate_of_each_seeds_own_lengths() -> None:
    options = WorkloadOptions(output_sigma=0.5)
    points = Points((0.5,), loads=True, seeds=(1, 2), tasks=3, options=options)
    found = sources_of("chain-3", points, STUDY)
    assert [one.rate_per_s for one in found] == [
        rate_for_load("chain-3", 0.5, STUDY, 3, seed, options) for seed in (1, 2)
    ]
    assert [one.load for one in found] == [0.5, 0.5]
    assert found[0].rate_per_s != found[1].rate_per_s


def test_a_fixed_workload_is_one_trace_without_rate_or_seed() -> None:
    (source,) = sources_of("figure-2", POINTS, STUDY)
    assert source == Fixed("figure-2", 2)
    assert (source.rate_per_s, source.seed, source.load) == (None, None, None)
    assert len(source.trace().tasks) == 2


def test_a_fixed_workload_takes_no_options() -> None:
    points = replace(POINTS, options=WorkloadOptions(prefix_tokens=5))
    with pytest.raises(InputError, match="fixed"):
        sources_of("figure-2", points, STUDY)


def test_a_trace_file_is_used_as_it_is(tmp_path: Path) -> None:
    trace = generate("chain-3", rate_per_s=0.1, tasks=3, seed=1)
    path = tmp_path / "t.jsonl"
    write_trace(trace, path)
    source = TraceFile.of(str(path))
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.tasks == 3
    assert list(trace_lines(source.trace())) == list(trace_lines(trace))


def test_a_trace_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(generate("chain-3", rate_per_s=0.1, tasks=3, seed=1), path)
    source = TraceFile.of(str(path))
    write_trace(generate("chain-3", rate_per_s=0.1, tasks=3, seed=2), path)
    with pytest.raises(InputError, match="changed"):
        source.trace()


def test_a_wrong_trace_file_is_refused_when_it_is_planned_with(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("{}\n")
    with pytest.raises(InputError, match=r"t\.jsonl:1"):
        TraceFile.of(str(path))


def test_a_cell_says_what_it_is() -> None:
    assert str(CELL) == "chain-3, 0.1 tasks/s, seed 1, lpm"
    assert str(replace(CELL, source=replace(SOURCE, load=0.5))) == "chain-3, load 0.5, seed 1, lpm"
    assert str(replace(CELL, source=TraceFile("a.jsonl", "0" * 64, 3))) == "a.jsonl, lpm"
