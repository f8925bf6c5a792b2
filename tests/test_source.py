"""Sources and runs: what they depend on, their keys, and the traces behind them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from compare import store
from compare.source import Points, Source, sources_of, trace_file
from compare.store import canonical, key_of
from compare.study import Run, runs_of
from topas.errors import InputError
from topas.event import Params
from topas.profile import load_profile
from topas.trace.format import trace_lines, write_trace
from traces.load import rate_for_load
from traces.workloads import WorkloadOptions, generate

STUDY = load_profile("study")
SOURCE = Source("chain-3", 3, 1, 0.1, options=WorkloadOptions(output_tokens=50))
RUN = Run(SOURCE, "lpm", STUDY, Params())
POINTS = Points((0.05, 0.1), loads=False, seeds=(1, 2), tasks=3, options=WorkloadOptions())


def test_the_key_is_the_hash_of_run_version_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "version", lambda _: "1.2.3")
    monkeypatch.setattr(store, "code_digest", lambda: "digest")
    options = dict.fromkeys(
        ["prefix_tokens", "input_tokens", "output_sigma", "input_sigma", "max_new_tokens", "order"]
    )
    trace = {
        "workload": "chain-3",
        "rate_per_s": 0.1,
        "tasks": 3,
        "seed": 1,
        "options": {**options, "output_tokens": 50},
        "load": None,
        "case": "as-it-is",
        "sha256": None,
    }
    params = TypeAdapter(Params).dump_python(Params(), mode="json")
    assert {"beta", "rho", "M", "K", "seed"} < params.keys()
    profile = json.loads(STUDY.model_dump_json())
    content = {"trace": trace, "policy": "lpm", "profile": profile, "params": params}
    identity = {"run": content, "version": "1.2.3", "code": "digest"}
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    assert key_of(RUN) == hashlib.sha256(text.encode()).hexdigest()


def test_a_change_of_the_code_alone_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(RUN)
    monkeypatch.setattr(store, "code_digest", lambda: "other")
    assert key_of(RUN) != before


def test_equal_cells_have_equal_keys() -> None:
    source = Source("chain-3", 3, 1, 0.1, options=WorkloadOptions(output_tokens=50))
    assert key_of(Run(source, "lpm", load_profile("study"), Params())) == key_of(RUN)


@pytest.mark.parametrize(
    "other",
    [
        replace(RUN, policy="fcfs"),
        replace(RUN, source=replace(SOURCE, workload="dag-4")),
        replace(RUN, source=replace(SOURCE, rate_per_s=0.2)),
        replace(RUN, source=replace(SOURCE, load=0.5)),
        replace(RUN, source=replace(SOURCE, tasks=4)),
        replace(RUN, source=replace(SOURCE, seed=2)),
        replace(RUN, source=replace(SOURCE, options=WorkloadOptions(output_tokens=51))),
        replace(RUN, source=replace(SOURCE, sha256="0" * 64)),
        replace(RUN, source=replace(SOURCE, case="deaths")),
        replace(RUN, profile=STUDY.model_copy(update={"host_cache": False})),
        replace(RUN, profile=STUDY.model_copy(update={"kv_budget_tokens": 36001})),
        replace(RUN, params=Params(beta=0.5)),
    ],
    ids=str,
)
def test_whatever_a_result_depends_on_changes_the_key(other: Run) -> None:
    assert key_of(other) != key_of(RUN)


def test_a_new_version_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(RUN)
    monkeypatch.setattr(store, "version", lambda _: "999")
    assert key_of(RUN) != before


def test_another_digest_of_the_trace_file_changes_the_key() -> None:
    old, new = (replace(RUN, source=Source("a.jsonl", 3, sha256=digit * 64)) for digit in "01")
    assert key_of(old) != key_of(new)


def test_what_tables_call_a_policy_changes_no_key() -> None:
    named = replace(RUN, label="no margin")
    assert (key_of(named), named) == (key_of(RUN), RUN)
    assert (named.name, RUN.name) == ("no margin", "lpm")


def test_canonical_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical({"x": float("nan")})


def test_every_policy_gets_the_same_trace() -> None:
    runs = runs_of(sources_of("dag-4", POINTS, STUDY), ("fcfs", "lpm", "topas"), STUDY, Params())
    assert len(runs) == 2 * 2 * 3
    assert [run.policy for run in runs[:3]] == ["fcfs", "lpm", "topas"]
    traces: dict[tuple[float | None, int | None], set[bytes]] = {}
    for run in runs:
        drawn = (run.source.rate_per_s, run.source.seed)
        traces.setdefault(drawn, set()).add(b"".join(trace_lines(run.source.trace())))
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
    assert source == Source("figure-2", 2)
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
    source = trace_file(str(path))
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.tasks == 3
    assert list(trace_lines(source.trace())) == list(trace_lines(trace))


def test_a_trace_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_trace(generate("chain-3", rate_per_s=0.1, tasks=3, seed=1), path)
    source = trace_file(str(path))
    write_trace(generate("chain-3", rate_per_s=0.1, tasks=3, seed=2), path)
    with pytest.raises(InputError, match="changed"):
        source.trace()


def test_a_wrong_trace_file_is_refused_when_it_is_planned_with(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("{}\n")
    with pytest.raises(InputError, match=r"t\.jsonl:1"):
        trace_file(str(path))


def test_a_run_says_what_it_is() -> None:
    assert str(RUN) == "chain-3, 0.1 tasks/s, seed 1, lpm"
    assert str(replace(RUN, source=replace(SOURCE, load=0.5))) == "chain-3, load 0.5, seed 1, lpm"
    assert str(replace(RUN, source=Source("a.jsonl", 3, sha256="0" * 64))) == "a.jsonl, lpm"
