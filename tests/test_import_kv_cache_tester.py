"""The kv-cache-tester importer, on a small session whose every number is worked out by hand."""

from __future__ import annotations

import copy
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from topas.errors import InputError
from topas.trace import Round
from topas.trace.format import read_trace, write_trace
from traces.importers import IMPORTERS, Recording, capped, replayed

Json = dict[str, Any]
MAIN, SUB = "claude-opus-4-5-20251101", "claude-haiku-4-5-20251001"
READ = IMPORTERS["kv-cache-tester"]


def plain(t: float, tokens: tuple[int, int], hash_ids: list[int], api: float, think: float) -> Json:
    inputs, out = tokens
    return {
        "t": t,
        "type": "n",
        "model": MAIN,
        "in": inputs,
        "out": out,
        "hash_ids": hash_ids,
        "input_types": ["text"],
        "stop": "tool_use",
        "api_time": api,
        "think_time": think,
    }


def subagent(name: str, end: float, duration_ms: int, *requests: Json) -> Json:
    return {
        "t": end,
        "type": "subagent",
        "agent_id": name,
        "duration_ms": duration_ms,
        "status": "completed",
        "system_tokens": 20,
        "tool_tokens": 30,
        "requests": [{**request, "model": SUB} for request in requests],
    }


SESSION: Json = {
    "id": "session-1",
    "models": [MAIN],
    "block_size": 10,
    "hash_id_scope": "local",
    "tool_tokens": 70,
    "system_tokens": 30,
    "requests": [
        plain(0.0, (125, 600), list(range(1, 13)), api=2.0, think=0.0),
        plain(5.0, (163, 40), list(range(1, 17)), api=1.0, think=3.0),
        # two sub-agents from 7 to 20 and from 7.5 to 30: they overlap
        subagent(
            "sub-1",
            20.0,
            13_000,
            plain(0.0, (62, 10), [101, 102, 103, 104, 105, 106], api=1.5, think=0.0),
            plain(4.0, (85, 12), [101, 102, 103, 104, 105, 106, 107, 108], api=8.0, think=2.5),
        ),
        subagent(
            "sub-2", 30.0, 22_500, plain(0.0, (55, 513), [101, 102, 103, 104, 105], api=20.5, think=0.0)
        ),
        plain(34.0, (210, 1), [*range(1, 17), 20, 21, 22, 23, 24], api=2.0, think=28.0),
        plain(40.0, (90, 0), [1, 2, 3, 4, 99, 98, 97, 96, 95], api=1.0, think=4.0),
    ],
}


def session(**changes: object) -> Json:
    return {**copy.deepcopy(SESSION), **changes}


def read(tmp_path: Path, *sessions: Json, allowed: int | None = None) -> Recording:
    paths = []
    for k, value in enumerate(sessions):
        paths.append(tmp_path / f"session{k}.json")
        paths[-1].write_text(json.dumps(value))
    return READ(paths, allowed)


def stages(recording: Recording, k: int = 0) -> dict[str, tuple[str, tuple[str, ...], tuple[Round, ...]]]:
    """Return agent, predecessors and rounds of every stage of a session."""
    found = recording.sessions[k]
    dag = found.workflow.dag
    return {
        name: (found.workflow.agents[v], tuple(dag.names[p] for p in dag.before[v]), found.rounds[v])
        for v, name in enumerate(dag.names)
    }


def test_a_session_becomes_a_fork_and_join_with_every_number_in_place(tmp_path: Path) -> None:
    recording = read(tmp_path, SESSION)
    main, sub = "main-opus-4-5-100", "sub-haiku-4-5-50"
    assert dict(recording.agents) == {main: 100, sub: 50}
    assert recording.sessions[0].workflow.name == "session-1"
    assert recording.sessions[0].workflow.profiles == (None,) * 4
    assert stages(recording) == {
        # input 125 - 100, allowance 1024 >= 600, think time 3 before the second request;
        # 12 common blocks are 120 tokens, 20 behind the prefix; sub-1 starts 7 - 6 = 1 s behind the answer
        "01-main": (main, (), (Round(25, 600, 1024, 3.0, 0), Round(63, 40, 512, 1.0, 20))),
        # starts at 7: last answer at 7 + 4 + 8 = 19; 6 common blocks less the prefix of 50
        "02-sub-1": (sub, ("01-main",), (Round(12, 10, 512, 2.5, 0), Round(35, 12, 512, 6.0, 10))),
        # starts at 7.5: last answer at 28, and the main agent is back at 34
        "03-sub-2": (sub, ("01-main",), (Round(5, 513, 1024, 6.0, 0),)),
        # the first round of a stage reuses nothing; the second has less than its prefix in common
        "04-main": (main, ("02-sub-1", "03-sub-2"), (Round(110, 1, 512, 4.0, 0), Round(0, 1, 512, 0.0, 0))),
    }
    assert recording.notes == (
        "1 of 7 requests: input below the agent's prefix, taken as no input",
        "1 of 7 requests: no output, taken as 1 token",
    )


def test_sub_agents_that_do_not_overlap_run_one_after_another(tmp_path: Path) -> None:
    changed = session()
    first, second = changed["requests"][2:4]
    changed["requests"][2:4] = [
        first,  # 7 to 20, last answer at 19
        {**second, "agent_id": "beside", "duration_ms": 20_000},  # 10 to 30
        {**second, "agent_id": "behind", "t": 32.0, "duration_ms": 12_000},  # 20 to 32, last answer at 40.5
        {**second, "agent_id": "last", "t": 33.0, "duration_ms": 1_000},  # 32 to 33
    ]
    found = stages(read(tmp_path, changed))
    assert {name: after for name, (_, after, _) in found.items()} == {
        "01-main": (),
        "02-sub-1": ("01-main",),
        "03-beside": ("01-main",),
        "04-behind": ("02-sub-1",),
        "05-last": ("03-beside", "04-behind"),
        "06-main": ("05-last",),
    }
    assert found["02-sub-1"][2][-1].tool_s == 1.0  # "behind" starts at 20
    assert found["04-behind"][2][-1].tool_s == 0.0  # its answer came after the start of "last"


def test_sub_agents_of_no_length_do_not_wait_for_each_other(tmp_path: Path) -> None:
    changed = session()
    for name, entry in zip(("x", "y"), changed["requests"][2:4], strict=True):
        entry |= {"agent_id": name, "t": 7.0, "duration_ms": 0}
    found = stages(read(tmp_path, changed))
    assert found["03-y"][1] == ("02-x",)
    assert found["02-x"][1] == ("01-main",)


def test_a_session_may_begin_and_end_with_sub_agents(tmp_path: Path) -> None:
    found = stages(read(tmp_path, session(requests=[SESSION["requests"][2], SESSION["requests"][3]])))
    assert {name: after for name, (_, after, _) in found.items()} == {"01-sub-1": (), "02-sub-2": ()}
    assert found["01-sub-1"][2][-1].tool_s == 0.0


def test_sub_agents_without_requests_are_passed_over(tmp_path: Path) -> None:
    changed = session()
    for entry in changed["requests"][2:4]:
        entry["requests"] = []
    found = stages(read(tmp_path, changed))
    assert list(found) == ["01-main"]
    rounds = found["01-main"][2]
    assert [spec.tool_s for spec in rounds] == [3.0, 28.0, 4.0, 0.0]
    assert rounds[2].reused_tokens == 60


def test_another_model_is_another_agent_and_another_stage(tmp_path: Path) -> None:
    changed = session(requests=SESSION["requests"][:2])
    changed["requests"] = [changed["requests"][0], {**changed["requests"][1], "model": "vendor/large"}]
    assert stages(read(tmp_path, changed)) == {
        "01-main": ("main-opus-4-5-100", (), (Round(25, 600, 1024, 3.0),)),
        "02-main": ("main-vendor/large-100", ("01-main",), (Round(63, 40, 512),)),
    }


def test_sessions_share_an_agent_of_the_same_model_system_and_tools(tmp_path: Path) -> None:
    twin = session(id="session-2")
    other = session(id="session-3", system_tokens=31, tool_tokens=69)
    recording = read(tmp_path, SESSION, twin, other)
    assert dict(recording.agents) == {
        "sub-haiku-4-5-50": 50,
        "main-opus-4-5-100": 100,
        "main-opus-4-5-100-2": 100,
    }
    mains = [stages(recording, k)["01-main"][0] for k in range(3)]
    assert mains == ["main-opus-4-5-100", "main-opus-4-5-100", "main-opus-4-5-100-2"]


def test_an_agent_that_is_main_anywhere_is_named_so(tmp_path: Path) -> None:
    changed = session(system_tokens=20, tool_tokens=30)
    for entry in changed["requests"]:
        entry["model"] = SUB
    assert list(read(tmp_path, changed).agents) == ["main-haiku-4-5-50"]


def test_an_allowance_can_be_given(tmp_path: Path) -> None:
    recording = read(tmp_path, SESSION, allowed=513)
    specs = [spec for _, _, rounds in stages(recording).values() for spec in rounds]
    assert sorted({spec.max_new_tokens for spec in specs}) == [513, 600]
    assert "1 of 7 requests: output above the allowance, which is raised to it" in recording.notes


def test_waits_can_be_cut_and_the_cuts_are_counted(tmp_path: Path) -> None:
    recording = read(tmp_path, SESSION)
    waits = [spec.tool_s for rounds in recording.sessions[0].rounds for spec in rounds]
    most = max(waits) / 2
    cut = capped(recording, most)
    assert [spec.tool_s for rounds in cut.sessions[0].rounds for spec in rounds] == [
        min(wait, most) for wait in waits
    ]
    assert cut.notes == (
        *recording.notes,
        f"{sum(wait > most for wait in waits)} waits were cut to {most:g} s",
    )
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="max_wait_s"):
            capped(recording, wrong)


def test_tasks_go_round_the_sessions_in_a_seeded_order(tmp_path: Path) -> None:
    recording = read(tmp_path, *(session(id=f"s{k}") for k in range(5)))
    trace = replayed(recording, rate_per_s=0.5, tasks=12, seed=1)
    order = [task.workflow.name for task in trace.tasks]
    assert sorted(order[:5]) == [f"s{k}" for k in range(5)]
    assert order[5:] == order[:5] + order[:2]
    assert [task.id for task in trace.tasks][:2] == ["t00", "t01"]
    assert all(earlier.arrival_s < later.arrival_s for earlier, later in pairwise(trace.tasks))
    others = [replayed(recording, rate_per_s=0.5, tasks=12, seed=seed) for seed in (2, 3, 4)]
    assert any([task.workflow.name for task in other.tasks] != order for other in others)


def test_a_trace_keeps_only_what_its_tasks_use(tmp_path: Path) -> None:
    other = session(id="session-2", tool_tokens=71, requests=SESSION["requests"][:1])
    trace = replayed(read(tmp_path, SESSION, other), rate_per_s=1.0, tasks=1, seed=0)
    assert len(trace.workflows) == 1
    assert set(trace.agents) == set(trace.tasks[0].workflow.agents)


REQUIRED = [
    "id",
    "block_size",
    "system_tokens",
    "tool_tokens",
    "requests",
    *(
        f"requests.0.{name}"
        for name in ("t", "type", "model", "in", "out", "hash_ids", "api_time", "think_time")
    ),
    *(
        f"requests.2.{name}"
        for name in ("t", "agent_id", "duration_ms", "system_tokens", "tool_tokens", "requests")
    ),
    *(
        f"requests.2.requests.1.{name}"
        for name in ("t", "type", "in", "out", "hash_ids", "api_time", "think_time")
    ),
]


def change(value: Json, path: str, *new: object) -> None:
    """Put a new value at a dotted path, or take away what is there."""
    *parents, last = path.split(".")
    target: Any = value
    for key in parents:
        target = target[int(key) if key.isdigit() else key]
    if new:
        target[last] = new[0]
    else:
        del target[last]


def reason(tmp_path: Path, value: Json, field: str) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, value)
    assert str(caught.value).startswith(f"{tmp_path / 'session0.json'}: {field}: ")
    assert "\n" not in str(caught.value)
    return caught.value.expected


@pytest.mark.parametrize("path", REQUIRED)
def test_a_missing_field_is_refused(tmp_path: Path, path: str) -> None:
    value = session()
    change(value, path)
    assert reason(tmp_path, value, path) in {"field required", "expected 'n', 's' or 'subagent', found None"}


@pytest.mark.parametrize("path", REQUIRED)
@pytest.mark.parametrize("wrong", [True, {"x": 1}])
def test_a_field_of_the_wrong_type_is_refused(tmp_path: Path, path: str, wrong: object) -> None:
    value = session()
    change(value, path, wrong)
    reason(tmp_path, value, path)


NUMERIC = [
    path
    for path in REQUIRED
    if path.rpartition(".")[2] not in {"id", "requests", "type", "model", "hash_ids", "agent_id"}
]


@pytest.mark.parametrize("path", NUMERIC)
def test_a_negative_number_is_refused(tmp_path: Path, path: str) -> None:
    value = session()
    change(value, path, -1)
    assert "greater than or equal to" in reason(tmp_path, value, path)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("block_size", 0),
        ("id", ""),
        ("requests", []),
        ("requests.0.type", "x"),
        ("requests.2.requests.0.type", "subagent"),
        ("requests.0.in", 1.5),
        ("requests.0.t", 1e300),
    ],
)
def test_a_wrong_value_is_refused(tmp_path: Path, path: str, wrong: object) -> None:
    value = session()
    change(value, path, wrong)
    reason(tmp_path, value, path)


def test_a_session_that_never_asked_anything_is_refused(tmp_path: Path) -> None:
    value = session(requests=[{**SESSION["requests"][2], "requests": []}])
    assert reason(tmp_path, value, "requests") == "expected at least one request"


def test_a_session_read_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"session1.json: id: the session 'session-1' was read before"):
        read(tmp_path, SESSION, SESSION)


def test_an_allowance_below_one_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_new_tokens"):
        read(tmp_path, SESSION, allowed=0)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"id":', b"\xff\xff", b'{"id": NaN}'])
def test_a_file_that_is_no_session_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        READ([path], None)
    assert caught.value.source == str(path)


def test_a_session_longer_than_our_own_lines_is_read(tmp_path: Path) -> None:
    value = session(padding="x" * (9 * 1024 * 1024))
    assert len(read(tmp_path, value).sessions) == 1


@pytest.mark.skipif(
    "TOPAS_KV_CACHE_TESTER_DIR" not in os.environ,
    reason="TOPAS_KV_CACHE_TESTER_DIR names no recorded sessions",
)
def test_recorded_sessions_become_a_valid_trace(tmp_path: Path) -> None:
    paths = sorted(Path(os.environ["TOPAS_KV_CACHE_TESTER_DIR"]).glob("*.json"))
    recording = READ(paths, None)
    trace = replayed(recording, rate_per_s=0.01, tasks=2 * len(paths), seed=0)
    write_trace(trace, tmp_path / "t.jsonl")
    assert len(read_trace(tmp_path / "t.jsonl").tasks) == 2 * len(paths)
    for path, found in zip(paths, recording.sessions, strict=True):
        raw = json.loads(path.read_text())
        own = [entry for entry in raw["requests"] if entry["type"] != "subagent"]
        nested = [entry for sub in raw["requests"] if sub["type"] == "subagent" for entry in sub["requests"]]
        specs = [spec for rounds in found.rounds for spec in rounds]
        assert len(specs) == len(own) + len(nested)
        assert sum(spec.output_tokens for spec in specs) == sum(max(1, r["out"]) for r in own + nested)
        contexts = [
            recording.agents[agent] + spec.input_tokens
            for agent, rounds in zip(found.workflow.agents, found.rounds, strict=True)
            for spec in rounds
        ]
        assert max(contexts) >= max(r["in"] for r in own + nested)
        for rounds in found.rounds:
            for earlier, later in pairwise(rounds):
                assert later.reused_tokens <= earlier.input_tokens
