"""The trace format: what is written is read back, and every wrong file is refused with its place."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topas.cli import main
from topas.errors import InputError
from topas.trace import Round, TaskSpec, Trace
from topas.trace.format import parse_trace, read_trace, trace_lines, write_trace
from topas.workflow import StageProfile, Workflow, dag_of

Json = dict[str, Any]
Lines = list[Json]
Change = Callable[[Lines], None]

HEADER: Json = {
    "format": "topas-trace/1",
    "name": "tiny",
    "agents": {"A": {"prefix_tokens": 9000}, "B": {"prefix_tokens": 0}},
    "workflows": {
        "W": {
            "stages": {
                "a": {
                    "agent": "A",
                    "after": [],
                    "profile": {"rounds": 2, "input_tokens": 400, "max_new_tokens": 500},
                },
                "b": {"agent": "B", "after": ["a"]},
            }
        }
    },
}
TASK: Json = {
    "task": "t0",
    "workflow": "W",
    "arrival_s": 0.5,
    "stages": {
        "a": {
            "rounds": [
                {"input_tokens": 400, "output_tokens": 30, "max_new_tokens": 500, "tool_s": 1.5},
                {"input_tokens": 600, "output_tokens": 500, "max_new_tokens": 500, "reused_tokens": 430},
            ]
        },
        "b": {"rounds": [{"input_tokens": 0, "output_tokens": 1, "max_new_tokens": 1}]},
    },
}
ROUND = "stages.a.rounds.0"
PROFILE = "workflows.W.stages.a.profile"


def tiny() -> Lines:
    later = {**TASK, "task": "t1", "arrival_s": 2}
    return [copy.deepcopy(line) for line in (HEADER, TASK, later)]


def encoded(lines: Lines) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def parsed(data: bytes) -> Trace:
    return parse_trace(data.splitlines(keepends=True), "tiny.jsonl")


def at(line: Json, path: str) -> tuple[Any, str | int]:
    """Return the container and the key that a dotted path leads to."""
    *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
    container: Any = line
    for key in parents:
        container = container[key]
    return container, last


def value_at(line: Json, path: str) -> Any:  # noqa: ANN401  any JSON value
    parent, key = at(line, path)
    return parent[key]


def refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, line: int, field: str | None
) -> str:
    """Check a file on the command line; return the reason, which has to name file, line and field."""
    path = tmp_path / "bad.jsonl"
    path.write_bytes(data)
    assert main(["check", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    place = f"topas: {path}:{line}: " + (f"{field}: " if field else "")
    assert captured.err.startswith(place)
    return captured.err.removeprefix(place).strip()


def test_a_trace_is_read_as_it_stands() -> None:
    trace = parsed(encoded(tiny()))
    assert trace.name == "tiny"
    assert dict(trace.agents) == {"A": 9000, "B": 0}
    workflow = trace.workflows["W"]
    assert workflow.dag.names == ("a", "b")
    assert workflow.dag.before == ((), (0,))
    assert workflow.agents == ("A", "B")
    assert workflow.profiles == (StageProfile(2, 400, 500), None)
    assert [(task.id, task.arrival_s, task.workflow) for task in trace.tasks] == [
        ("t0", 0.5, workflow),
        ("t1", 2.0, workflow),
    ]
    assert trace.tasks[0].rounds == (
        (Round(400, 30, 500, 1.5), Round(600, 500, 500, 0.0, 430)),
        (Round(0, 1, 1),),
    )


def test_the_order_of_stages_in_a_task_does_not_matter() -> None:
    lines = tiny()
    lines[1]["stages"] = dict(reversed(lines[1]["stages"].items()))
    assert parsed(encoded(lines)).tasks[0].rounds == parsed(encoded(tiny())).tasks[0].rounds


def test_writing_gives_compact_lines_that_leave_out_zeros(tmp_path: Path) -> None:
    write_trace(parsed(encoded(tiny())), tmp_path / "t.jsonl")
    lines = (tmp_path / "t.jsonl").read_bytes().split(b"\n")
    assert len(lines) == 4
    assert lines[3] == b""
    assert json.loads(lines[0]) == HEADER
    assert json.loads(lines[1]) == TASK
    assert b" " not in lines[0]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("old")
    trace = parsed(encoded(tiny()))
    bad = TaskSpec("t2", trace.workflows["W"], float("nan"), trace.tasks[0].rounds)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_trace(Trace("x", trace.agents, trace.workflows, (*trace.tasks, bad)), path)
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["t.jsonl"]


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    inputs = draw(st.integers(0, 10**9))
    output = draw(st.integers(1, 10**9))
    return Round(
        inputs,
        output,
        draw(st.integers(output, 10**9)),
        draw(st.floats(0, 1e9)),
        draw(st.integers(0, inputs)),
    )


@st.composite
def workflows(draw: st.DrawFn, name: str, agents: list[str]) -> Workflow:
    stages = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    after = {
        s: draw(st.lists(st.sampled_from(stages[:k]), unique=True)) if k else [] for k, s in enumerate(stages)
    }
    dag = dag_of(after)
    tokens = st.integers(1, 10**9)
    profiles = st.none() | st.builds(StageProfile, tokens, tokens, tokens)
    return Workflow(
        name,
        dag,
        tuple(draw(st.sampled_from(agents)) for _ in dag.names),
        tuple(draw(profiles) for _ in dag.names),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    agents = draw(st.dictionaries(names, st.integers(0, 10**9), min_size=1, max_size=4))
    known = {
        name: draw(workflows(name, sorted(agents)))
        for name in draw(st.lists(names, min_size=1, max_size=3, unique=True))
    }
    ids = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    arrivals = sorted(draw(st.lists(st.floats(0, 1e9), min_size=len(ids), max_size=len(ids))))
    tasks = []
    for task, arrival_s in zip(ids, arrivals, strict=True):
        workflow = known[draw(st.sampled_from(sorted(known)))]
        drawn = tuple(tuple(draw(st.lists(rounds(), min_size=1, max_size=3))) for _ in workflow.dag.names)
        tasks.append(TaskSpec(task, workflow, arrival_s, drawn))
    return Trace(draw(names), agents, known, tuple(tasks))


def shape(workflow: Workflow) -> tuple[object, ...]:
    return workflow.name, workflow.dag.names, workflow.dag.before, workflow.agents, workflow.profiles


@given(traces())
def test_what_is_written_is_read_back(trace: Trace) -> None:
    lines = list(trace_lines(trace))
    again = parse_trace(lines, "memory")
    assert (again.name, dict(again.agents)) == (trace.name, dict(trace.agents))
    assert {n: shape(w) for n, w in again.workflows.items()} == {
        n: shape(w) for n, w in trace.workflows.items()
    }
    assert [(t.id, t.workflow.name, t.arrival_s, t.rounds) for t in again.tasks] == [
        (t.id, t.workflow.name, t.arrival_s, t.rounds) for t in trace.tasks
    ]
    assert list(trace_lines(again)) == lines


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    lines = tiny()
    lines[1]["task"] = "t\u2028\u0085\x0b0"
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join(json.dumps(line, ensure_ascii=False).encode() for line in lines))
    assert [task.id for task in read_trace(path).tasks] == ["t\u2028\u0085\x0b0", "t1"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_one_empty_line_may_stand_at_the_end(end: bytes) -> None:
    assert len(parsed(encoded(tiny()) + end).tasks) == 2


# --- refusals: (line, dotted path in that line), then what is done to it

FIELDS = [
    (1, "format"),
    (1, "name"),
    (1, "agents"),
    (1, "agents.A.prefix_tokens"),
    (1, "workflows"),
    (1, "workflows.W.stages"),
    (1, "workflows.W.stages.a.agent"),
    (1, "workflows.W.stages.b.after"),
    (1, f"{PROFILE}.rounds"),
    (1, f"{PROFILE}.input_tokens"),
    (1, f"{PROFILE}.max_new_tokens"),
    (2, "task"),
    (2, "workflow"),
    (2, "arrival_s"),
    (2, "stages"),
    (2, "stages.a.rounds"),
    (2, f"{ROUND}.input_tokens"),
    (2, f"{ROUND}.output_tokens"),
    (2, f"{ROUND}.max_new_tokens"),
]
OPTIONAL = [(1, PROFILE), (2, f"{ROUND}.tool_s"), (2, "stages.a.rounds.1.reused_tokens")]
NUMBERS = [
    (line, path) for line, path in FIELDS + OPTIONAL if path.endswith(("_tokens", "_s", "profile.rounds"))
]
WRONG: tuple[object, ...] = (None, True, "5x", [7], {"x": {}})
WRONG_TYPES: list[tuple[int, str, object]] = [
    (line, path, wrong)
    for line, path in FIELDS + OPTIONAL
    for wrong in WRONG
    if not (path == PROFILE and wrong is None)  # says that the profile is unknown
    and not isinstance(value_at(tiny()[line - 1], path), type(wrong))
]
OBJECTS = [
    (1, ""),
    (1, "agents.A"),
    (1, "workflows.W"),
    (1, "workflows.W.stages.b"),
    (1, PROFILE),
    (2, ""),
    (2, "stages.b"),
    (2, ROUND),
]


@pytest.mark.parametrize(("line", "path"), FIELDS)
def test_a_missing_field_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: int, path: str
) -> None:
    lines = tiny()
    parent, key = at(lines[line - 1], path)
    del parent[key]
    if path == "format":  # then nothing tells that this is a trace
        with pytest.raises(InputError, match=r"^tiny.jsonl:1: format: field required$"):
            parsed(encoded(lines))
        return
    assert refused(capsys, tmp_path, encoded(lines), line, path) == "field required"


@pytest.mark.parametrize(("line", "path", "wrong"), WRONG_TYPES)
def test_a_field_of_the_wrong_type_is_refused(line: int, path: str, wrong: object) -> None:
    lines = tiny()
    parent, key = at(lines[line - 1], path)
    parent[key] = wrong
    with pytest.raises(InputError, match="input should be") as caught:
        parsed(encoded(lines))
    assert (caught.value.source, caught.value.line, caught.value.field) == ("tiny.jsonl", line, path)


@pytest.mark.parametrize(("line", "path"), NUMBERS)
@pytest.mark.parametrize("wrong", [-1, "1", 1e300, 10**30])
def test_a_number_out_of_range_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: int, path: str, wrong: object
) -> None:
    lines = tiny()
    parent, key = at(lines[line - 1], path)
    parent[key] = wrong
    assert "input should be" in refused(capsys, tmp_path, encoded(lines), line, path)


@pytest.mark.parametrize(("line", "path"), NUMBERS)
@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: int, path: str, wrong: str
) -> None:
    lines = tiny()
    parent, key = at(lines[line - 1], path)
    parent[key] = "HERE"
    data = encoded(lines).replace(b'"HERE"', wrong.encode(), 1)
    assert "input should be a" in refused(capsys, tmp_path, data, line, path)


@pytest.mark.parametrize(("line", "path"), OBJECTS)
def test_an_unknown_field_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: int, path: str
) -> None:
    lines = tiny()
    target = value_at(lines[line - 1], path) if path else lines[line - 1]
    target["surprise"] = 1
    field = f"{path}.surprise".lstrip(".")
    assert refused(capsys, tmp_path, encoded(lines), line, field) == "extra inputs are not permitted"


def set_field(line: int, path: str, value: object) -> Change:
    def change(lines: Lines) -> None:
        parent, key = at(lines[line - 1], path)
        parent[key] = value

    return change


def without(line: int, path: str) -> Change:
    def change(lines: Lines) -> None:
        parent, key = at(lines[line - 1], path)
        del parent[key]

    return change


AFTER = "workflows.W.stages.a.after"
REFUSALS: dict[str, tuple[Change, int, str, str]] = {
    "unknown version": (set_field(1, "format", "topas-trace/2"), 1, "format", "topas-trace/1"),
    "empty name": (set_field(1, "name", ""), 1, "name", "at least 1 character"),
    "long name": (set_field(1, "name", "x" * 201), 1, "name", "at most 200 characters"),
    "empty agent name": (set_field(1, "agents", {"": {"prefix_tokens": 1}}), 1, "agents.", "at least 1"),
    "unknown agent": (
        set_field(1, "workflows.W.stages.b.agent", "Z"),
        1,
        "workflows.W.stages.b.agent",
        "unknown agent 'Z'",
    ),
    "no stage": (set_field(1, "workflows.W.stages", {}), 1, "workflows.W.stages", "at least one stage"),
    "unknown predecessor": (set_field(1, AFTER, ["z"]), 1, AFTER, "unknown stage 'z'"),
    "predecessor named twice": (
        set_field(1, "workflows.W.stages.b.after", ["a", "a"]),
        1,
        "workflows.W.stages.b.after",
        "named twice",
    ),
    "cycle": (set_field(1, AFTER, ["b"]), 1, "workflows.W.stages", "cycle: "),
    "stage after itself": (set_field(1, AFTER, ["a"]), 1, "workflows.W.stages", "cycle: 'a' -> 'a'"),
    "no rounds expected": (set_field(1, f"{PROFILE}.rounds", 0), 1, f"{PROFILE}.rounds", "greater"),
    "unknown workflow": (set_field(3, "workflow", "Z"), 3, "workflow", "unknown workflow 'Z'"),
    "id is a number": (set_field(2, "task", 7), 2, "task", "valid string"),
    "duplicate task": (set_field(3, "task", "t0"), 3, "task", "'t0' stands twice"),
    "arrival before the last": (set_field(3, "arrival_s", 0.25), 3, "arrival_s", "arrival out of order"),
    "missing stage": (without(3, "stages.b"), 3, "stages.b", "missing"),
    "unknown stage": (set_field(2, "stages.z", TASK["stages"]["b"]), 2, "stages.z", "unknown stage"),
    "no round": (set_field(2, "stages.a.rounds", []), 2, "stages.a.rounds", "at least 1 item"),
    "no output": (set_field(2, f"{ROUND}.output_tokens", 0), 2, f"{ROUND}.output_tokens", "greater"),
    "half a token": (set_field(2, f"{ROUND}.input_tokens", 1.5), 2, f"{ROUND}.input_tokens", "integer"),
    "output above the allowance": (
        set_field(2, f"{ROUND}.max_new_tokens", 29),
        2,
        f"{ROUND}.max_new_tokens",
        "at least output_tokens (30)",
    ),
    "reuse above the input": (
        set_field(2, f"{ROUND}.reused_tokens", 401),
        2,
        f"{ROUND}.reused_tokens",
        "at most input_tokens (400)",
    ),
}


@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
def test_a_wrong_value_is_refused_with_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, case: tuple[Change, int, str, str]
) -> None:
    change, line, field, reason = case
    lines = tiny()
    change(lines)
    assert reason in refused(capsys, tmp_path, encoded(lines), line, field)


GOOD = encoded(tiny())
FILES = {
    "empty file": (b"", 1, "empty file"),
    "header only": (encoded([HEADER]), 2, "at least one task"),
    "empty first line": (b"\n" + GOOD, 1, "empty line"),
    "empty line between": (GOOD.replace(b"\n", b"\n\n", 2), 2, "empty line"),
    "blank line between": (GOOD.replace(b"\n", b"\n \t\n", 1), 2, "empty line"),
    "two empty lines at the end": (GOOD + b"\n\n", 4, "empty line"),
    "last line cut": (GOOD[:-20], 3, "expected JSON"),
    "not UTF-8": (GOOD.replace(b"t1", b"t\xff"), 3, "UTF-8"),
    "header not UTF-8": (GOOD.replace(b"tiny", b"t\xff"), 1, "UTF-8"),
    "another encoding": (json.dumps(HEADER).encode("utf-16") + b"\n", 1, "UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD, 1, "expected JSON"),
    "long line": (GOOD[:-1] + b" " * (8 * 1024 * 1024) + b"\n", 3, "at most 8388608 bytes"),
    "deep nesting": (encoded([HEADER]) + b"[" * 100_000 + b"\n", 2, "nested less deeply"),
    "a list": (encoded([HEADER]) + b"[]\n", 2, "valid dictionary"),
    "key twice": (GOOD.replace(b'"task": "t1"', b'"task": "t1", "task": "t2"'), 3, "stands twice"),
    "lone surrogate": (GOOD.replace(b'"t1"', b'"\\ud800"'), 3, "valid string"),
}


@pytest.mark.parametrize(("data", "line", "reason"), FILES.values(), ids=FILES)
def test_a_broken_file_is_refused_with_its_line(tmp_path: Path, data: bytes, line: int, reason: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=re.escape(reason)) as caught:
        read_trace(path)
    assert (caught.value.source, caught.value.line) == (str(path), line)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_trace(tmp_path / name)
