"""The event format refuses what is wrong with one line, and gives back what it wrote."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import Raw, events, make_event, many

from topas.cli import main
from topas.cost import Cost
from topas.decision import Decision, Terms
from topas.errors import InputError
from topas.event import Event, Params, TaskState
from topas.formats import decision_json, decision_of_json, event_json, event_of, log_line, read_event

Place = tuple[str | int, ...]
Refused = Callable[[str | bytes], str]

BASE = make_event(
    budget=1000,
    agents="A=100 B=50",
    tasks={"t": "@1/2 a=2|10 b<a=4", "u": "a=3"},
    waiting=["r1 t.a A 50 5 arrival=2 cached=100", "r2 u.a B 50 5"],
    running=["r0 u.a B 20 5 generated=12 credit=1.5"],
    resident="B",
    reuse={"A": 1},
    time=12.5,
    max_running=8,
    scenarios=64,
    seed=3,
)
BASE["samples"] = {"s": [4.0, 5.0, 5.0]}
BASE["tasks"]["t"]["stages"]["b"]["residual_s"] = "s"

OPTIONAL = {"samples", "attained_s", "arrival_s", "cached_tokens", "max_running", "scenarios", "seed"}
NAMED = {
    ("agents",),
    ("tasks",),
    ("samples",),
    ("reuse_counts",),
    ("tasks", "t", "stages"),
    ("tasks", "u", "stages"),
}
"""Objects whose keys are names that the file chose."""


def places(value: Any, here: Place = ()) -> Iterator[Place]:  # noqa: ANN401  any JSON value
    """Return the place of every value in a JSON value, outer ones first."""
    if here:
        yield here
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(entry, (*here, key))


def at(value: Any, place: Place) -> Any:  # noqa: ANN401  any JSON value
    """Return what stands at a place."""
    for key in place:
        value = value[key]
    return value


def changed(place: Place, new: object, raw: Raw = BASE) -> Raw:
    """Return an event with another value at one place."""
    value = copy.deepcopy(raw)
    at(value, place[:-1])[place[-1]] = new
    return value


def dotted(place: Place) -> str:
    return ".".join(map(str, place))


def leaves(kind: type | tuple[type, ...]) -> list[Place]:
    """Return the places of all values of some type."""
    return [p for p in places(BASE) if isinstance(at(BASE, p), kind) and not isinstance(at(BASE, p), bool)]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that runs the command on bad text and returns its line behind the file's name."""
    path = tmp_path / "event.json"

    def run(text: str | bytes) -> str:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        assert main(["decide", str(path), "--policy", "topas", "--json"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.endswith("\n")
        assert captured.err.count("\n") == 1
        start = f"topas: {path}: "
        assert captured.err.startswith(start)
        assert len(captured.err) < 800 + len(start)
        return captured.err.removeprefix(start)

    return run


def test_the_base_of_these_tests_is_a_good_event() -> None:
    event = event_of(BASE)
    assert event.tasks["t"].residuals[1].samples_ns.tolist() == [4 * 10**9, 5 * 10**9, 5 * 10**9]
    assert (event.waiting[0].arrival_s, event.waiting[0].cached_tokens) == (2.0, 100)


# ------------------------------------------------------------------------------------------ wrong fields


def test_every_missing_field_is_named(refused: Refused) -> None:
    for place in places(BASE):
        if not isinstance(place[-1], str) or place[:-1] in NAMED:
            continue
        value = copy.deepcopy(BASE)
        del at(value, place[:-1])[place[-1]]
        if place == ("samples",):
            assert refused(json.dumps(value)).startswith("tasks.t.stages.b.residual_s: ")
        elif place[-1] not in OPTIONAL or (place[0] == "tasks" and place[-1] == "arrival_s"):
            assert refused(json.dumps(value)) == f"{dotted(place)}: field required\n"
        else:
            event_of(value)


def test_optional_fields_have_their_defaults() -> None:
    """A request arrives with its task unless told; its cached prompt is its prefix if that is resident."""
    value = copy.deepcopy(BASE)
    for request in value["waiting"]:
        request.pop("arrival_s", None)
        request.pop("cached_tokens", None)
    del value["tasks"]["t"]["attained_s"]
    for name in ("max_running", "scenarios", "seed"):
        del value["params"][name]
    event = event_of(value)
    assert [(r.id, r.arrival_s, r.cached_tokens) for r in event.waiting] == [("r1", 1.0, 0), ("r2", 0.0, 50)]
    assert event.tasks["t"].attained_s == 0.0
    assert (event.params.max_running, event.params.scenarios, event.params.seed) == (0, 256, 0)


@pytest.mark.parametrize("wrong", [-1, -0.5, "1", True, [1], {"x": 1}])
def test_every_number_is_checked(wrong: object, refused: Refused) -> None:
    for place in leaves((int, float)):
        assert refused(json.dumps(changed(place, wrong))).startswith(f"{dotted(place)}: ")


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_every_number_is_finite(wrong: str, refused: Refused) -> None:
    """Three of these are constants that JSON does not know, but Python's reader does."""
    for place in leaves((int, float)):
        line = refused(json.dumps(changed(place, "HERE")).replace('"HERE"', wrong))
        assert line.startswith(f"{dotted(place)}: ")


def test_a_count_is_a_whole_number(refused: Refused) -> None:
    for place in leaves(int):
        assert refused(json.dumps(changed(place, 1.5))).startswith(f"{dotted(place)}: ")


@pytest.mark.parametrize("wrong", [7, None, True])
def test_every_other_value_has_its_type(wrong: object, refused: Refused) -> None:
    for place in leaves((str, list, dict)):
        assert refused(json.dumps(changed(place, wrong))).startswith(f"{dotted(place)}: ")


def test_an_unknown_field_is_refused(refused: Refused) -> None:
    for place in [(), *(p for p in leaves(dict) if p not in NAMED)]:
        text = json.dumps(changed((*place, "surplus"), 1))
        assert refused(text) == f"{dotted((*place, 'surplus'))}: extra inputs are not permitted\n"


def test_a_waiting_request_has_generated_nothing(refused: Refused) -> None:
    text = json.dumps(changed(("waiting", 0, "generated_tokens"), 5))
    assert refused(text).startswith("waiting.0.generated_tokens: ")


@pytest.mark.parametrize("version", ["topas-event/2", "topas-event", "topas-trace/1", "topas-decision/1", ""])
def test_an_unknown_format_is_refused(version: str, refused: Refused) -> None:
    assert refused(json.dumps(changed(("format",), version))).startswith("format: ")


# ---------------------------------------------------------------------------------------- wrong references


@pytest.mark.parametrize(
    ("place", "wrong", "field", "word"),
    [
        (("resident",), ["B", "X"], "resident.1", "agent 'X'"),
        (("resident",), ["B", "B"], "resident", "twice"),
        (("reuse_counts",), {"X": 1}, "reuse_counts.X", "agent 'X'"),
        (("waiting", 0, "agent"), "X", "waiting.0.agent", "agent 'X'"),
        (("waiting", 1, "task"), "x", "waiting.1.task", "task 'x'"),
        (("waiting", 0, "stage"), "c", "waiting.0.stage", "stage 'c'"),
        (("running", 0, "agent"), "X", "running.0.agent", "agent 'X'"),
        (("running", 0, "agent"), "A", "running.0.agent", "'A' is not resident"),
        (("running", 0, "task"), "x", "running.0.task", "task 'x'"),
        (("running", 0, "stage"), "b", "running.0.stage", "stage 'b'"),
        (("waiting", 1, "id"), "r1", "waiting.1.id", "'r1' is used twice"),
        (("running", 0, "id"), "r1", "running.0.id", "'r1' is used twice"),
        (("tasks", "t", "stages", "b", "after"), ["x"], "tasks.t.stages.b.after", "stage 'x'"),
        (("tasks", "t", "stages", "b", "after"), ["a", "a"], "tasks.t.stages.b.after", "twice"),
        (("tasks", "t", "stages", "a", "after"), ["b"], "tasks.t.stages", "cycle: "),
        (("tasks", "t", "stages", "a", "after"), ["a"], "tasks.t.stages", "cycle: 'a' -> 'a'"),
        (("tasks", "t", "stages", "a", "residual_s"), "q", "tasks.t.stages.a.residual_s", "'q'"),
        (("tasks", "t", "stages", "a", "residual_s"), [], "tasks.t.stages.a.residual_s", "at least 1"),
        (("samples", "s"), [], "samples.s", "at least 1"),
        (("tasks", "t", "stages"), {}, "tasks.t.stages", "at least one stage"),
        (("agents",), {}, "resident.0", "agent 'B'"),
        (("tasks",), {}, "waiting.0.task", "task 't'"),
        (("waiting", 0, "id"), "", "waiting.0.id", "at least 1"),
        (("waiting", 0, "id"), "x" * 501, "waiting.0.id", "at most 500"),
        (("agents", "x" * 201), {"prefix_tokens": 1}, f"agents.{'x' * 201}", "at most 200"),
        (("waiting", 0, "id"), "\ud800", "waiting.0.id", "unicode"),
        (("params", "M"), 17, "params.M", "16"),
        (("params", "age_scale_s"), 0, "params.age_scale_s", "greater than 0"),
        (("params", "scenarios"), 0, "params.scenarios", "1"),
        (("params", "beta"), 1e7, "params.beta", "1000000"),
    ],
)
def test_what_refers_to_nothing_or_is_out_of_range_is_refused(
    place: Place, wrong: object, field: str, word: str, refused: Refused
) -> None:
    line = refused(json.dumps(changed(place, wrong)))
    assert line.startswith(f"{field}: ")
    assert word in line


@pytest.mark.parametrize("size", [10**9 + 1, 2**63, 10**30, 10**400], ids=["1e9", "2^63", "1e30", "1e400"])
def test_a_count_beyond_all_measure_is_refused_or_does_no_harm(
    size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, and no answer from numbers that wrapped around."""
    path = tmp_path / "event.json"
    for place in leaves(int):
        path.write_text(json.dumps(changed(place, size)))
        status = main(["decide", str(path), "--json"])
        captured = capsys.readouterr()
        if status == 2:
            assert captured.out == ""
            assert captured.err.startswith(f"topas: {path}: ")
            assert captured.err.count("\n") == 1
        else:
            assert status == 0
            assert place in (("params", "K"), ("params", "max_running"), ("params", "seed"))
            assert json.loads(captured.out)["admit"] == decision_json(_topas(BASE))["admit"]


def _topas(raw: Raw) -> Decision:
    from topas.online.search import select  # noqa: PLC0415  compiled code, not needed to check a format

    return select(event_of(raw))


@pytest.mark.parametrize("size", [1.1e6, 1e300, 10**400], ids=["1.1e6", "1e300", "1e400"])
def test_a_duration_beyond_all_measure_is_refused(size: float, refused: Refused) -> None:
    for place in leaves(float):
        if place[-1] in ("service_s", "credit_s") or "residual_s" in place or "samples" in place:
            assert refused(json.dumps(changed(place, size))).startswith(f"{dotted(place)}: ")


@pytest.mark.parametrize("name", ["swap_s_per_token", "decode_s_per_token"])
def test_a_cost_beyond_all_measure_is_refused(name: str, refused: Refused) -> None:
    line = refused(json.dumps(changed(("params", name), 1e7)))
    assert "1e+06 s" in line


@pytest.mark.parametrize(
    "params", [{"age_scale_s": 5e-324}, {"rho": 1e6, "age_scale_s": 1e-300}], ids=["infinite", "too large"]
)
def test_an_age_that_leaves_the_range_of_numbers_is_refused(
    params: dict[str, float], refused: Refused
) -> None:
    """A path of a million seconds times g must stay within 64 bits of nanoseconds, whatever rho and H_age."""
    for left_s in (1e6, 0.0):
        value = make_event(
            budget=10, agents="A=1", tasks={"t": f"a={left_s}"}, waiting=["r t.a A 1 1000000"], time=1.0
        )
        value["params"] |= params
        if left_s or params["age_scale_s"] == 5e-324:
            assert refused(json.dumps(value)).startswith(("tasks.t", "params"))


def test_a_path_that_leaves_the_range_of_numbers_is_refused(refused: Refused) -> None:
    """Ten thousand stages of eleven days each: 10^19 ns do not fit 64 bits."""
    value = copy.deepcopy(BASE)
    names = ["a", *(f"s{k}" for k in range(1, 10_000))]
    value["tasks"]["t"]["stages"] = {
        name: {"after": [before] if before else [], "residual_s": [1e6]}
        for before, name in zip(["", *names], names, strict=False)
    }
    assert refused(json.dumps(value)).startswith("tasks.t")


# ------------------------------------------------------------------------------------------- wrong files


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "JSON"),
        (" \n", "JSON"),
        ("{", "JSON"),
        (json.dumps(BASE)[:-1], "JSON"),
        (json.dumps(BASE)[:300], "JSON"),
        (json.dumps(BASE) + json.dumps(BASE), "JSON"),
        ("[]", "dictionary"),
        ("null", "dictionary"),
        ('"topas-event/1"', "dictionary"),
        ("12", "dictionary"),
        ("[" * 100_000, "nested"),
        ("9" * 5000, "digits"),
        (b"\xff\xfe\x00", "UTF-8"),
        (json.dumps(BASE).replace('"time_s"', '"time_s": 1.0, "time_s"', 1), "'time_s' stands twice"),
        (json.dumps(BASE).replace('"B": {', '"A": {', 1), "'A' stands twice"),
        (json.dumps(BASE) + " " * (10 * 2**20), "at most 8388608 bytes, found 10"),
        ('"' + "x" * (10 * 2**20) + '"', "at most 8388608 bytes, found 10"),
    ],
    ids=lambda value: str(value[:12]),
)
def test_a_file_that_is_no_event_is_refused(text: str | bytes, word: str, refused: Refused) -> None:
    assert word in refused(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        assert main(["decide", str(path), "--json"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"topas: {path}: cannot read")
        assert captured.err.count("\n") == 1


def test_an_error_of_a_line_in_a_log_names_the_line() -> None:
    with pytest.raises(InputError) as caught:
        event_of(changed(("time_s",), -1), source="log.jsonl", line=7)
    assert str(caught.value).startswith("log.jsonl:7: time_s: ")
    with pytest.raises(InputError) as caught:
        event_of(changed(("waiting", 0, "agent"), "X"), source="log.jsonl", line=7)
    assert str(caught.value).startswith("log.jsonl:7: waiting.0.agent: ")


# -------------------------------------------------------------------------------------------- round trip


def same_task(one: TaskState, other: TaskState) -> bool:
    """Return whether two tasks are equal, their residuals by content."""
    return (
        (one.arrival_s, one.attained_s) == (other.arrival_s, other.attained_s)
        and one.dag is other.dag
        and [r.samples_ns.tolist() for r in one.residuals] == [r.samples_ns.tolist() for r in other.residuals]
    )


def assert_same(one: Event, other: Event) -> None:
    for field in fields(Event):
        if field.name != "tasks":
            assert getattr(one, field.name) == getattr(other, field.name)
    assert set(one.tasks) == set(other.tasks)
    assert all(same_task(one.tasks[name], other.tasks[name]) for name in one.tasks)


@many(120)
@given(events())
def test_an_event_comes_back_equal(raw: Raw) -> None:
    event = event_of(raw)
    text = json.dumps(event_json(event))
    again = event_of(json.loads(text))
    assert_same(again, event)
    assert json.dumps(event_json(again)) == text


def test_every_term_of_an_engines_cost_and_its_rules_come_back() -> None:
    cost = Cost(*(1e-3 / (k + 3) for k in range(len(Cost._fields))))
    params = Params(cost=cost, keeps_output=True, host_cache=False, reads_shared_once=False)
    written = event_json(replace(event_of(BASE), params=params))
    assert set(written["params"]["costs"]) >= {*Cost._fields} - {"swap_s_per_token"}
    assert event_of(json.loads(json.dumps(written))).params == params


def test_an_event_that_knows_two_times_knows_no_others() -> None:
    params = event_of(BASE).params
    own = BASE["params"]
    assert params.cost == Cost(
        decode_base_s=own["decode_s_per_token"], swap_s_per_token=own["swap_s_per_token"]
    )
    assert "costs" not in event_json(event_of(BASE))["params"]


def test_costs_of_another_speed_than_the_score_are_scaled_to_its_decode_step(refused: Refused) -> None:
    costs = {"decode_base_s": 0.03, "decode_s_per_seq": 0.01, "prefill_s_per_token": 0.004, "request_s": 1.0}
    raw = changed(("params",), BASE["params"] | {"decode_s_per_token": 0.08, "costs": costs})
    cost = event_of(raw).params.cost
    swap_s = BASE["params"]["swap_s_per_token"]
    assert cost == pytest.approx(Cost(**costs).scaled(2)._replace(swap_s_per_token=swap_s))
    raw["params"]["costs"] = {"prefill_s_per_token": 0.004}
    assert refused(json.dumps(raw)).startswith("params.decode_s_per_token: expected 0, ")
    raw["params"] |= {"decode_s_per_token": 0.0, "costs": costs}
    assert refused(json.dumps(raw)).startswith("params.decode_s_per_token: expected 0.04, ")


@many(80)
@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=5))
def test_any_nanoseconds_survive_the_seconds_in_a_file(samples_ns: list[int]) -> None:
    raw = copy.deepcopy(BASE)
    raw["samples"]["s"] = [x / 1e9 for x in samples_ns]
    event = event_of(raw)
    assert event.tasks["t"].residuals[1].samples_ns.tolist() == sorted(samples_ns)
    again = event_of(json.loads(json.dumps(event_json(event))))
    assert again.tasks["t"].residuals[1].samples_ns.tolist() == sorted(samples_ns)


def test_samples_that_stages_share_are_written_once() -> None:
    shared = "1|2|3|4"
    raw = make_event(
        budget=10,
        agents="A=1",
        tasks={"t": f"a={shared} b=9 c={shared}", "u": f"a=4|3|2|1 b=7|{shared}"},
        waiting=["r t.a A 1 1", "s u.a A 1 1"],
    )
    event = event_of(raw)
    written = event_json(event)
    assert sorted(written["samples"].values()) == [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0, 7.0]]
    stages = {name: task["stages"] for name, task in written["tasks"].items()}
    name = stages["t"]["a"]["residual_s"]
    assert name == stages["t"]["c"]["residual_s"] == stages["u"]["a"]["residual_s"]
    assert stages["t"]["b"]["residual_s"] == [9.0]
    assert stages["u"]["b"]["residual_s"] != name
    # Read again, they are one object, so that path evaluations are shared.
    again = event_of(written).tasks
    assert again["t"].residuals[0] is again["t"].residuals[2]
    assert again["u"].residuals[0] is again["t"].residuals[0]


def test_a_sample_table_may_hold_more_than_is_used() -> None:
    raw = copy.deepcopy(BASE)
    raw["samples"]["unused"] = [1.0]
    assert_same(event_of(raw), event_of(BASE))


def test_a_decision_comes_back_equal() -> None:
    decision = Decision(("A", "B"), ("r2", "r1"), ("r0",), Terms(5_000_000_001, 4, 3, 2, 1))
    value = json.loads(json.dumps(decision_json(decision)))
    assert decision_of_json(value) == decision
    assert value["score_s"] == 4.999999993
    with pytest.raises(InputError, match="admit"):
        decision_of_json({k: v for k, v in value.items() if k != "admit"})


def test_a_log_line_holds_event_and_decision(tmp_path: Path) -> None:
    event = event_of(BASE)
    line = log_line(event, _topas(BASE))
    assert "\n" not in line
    entry = json.loads(line)
    assert_same(event_of(entry["event"]), event)
    assert decision_of_json(entry["decision"]).admit == _topas(BASE).admit
    path = tmp_path / "one.json"
    path.write_text(json.dumps(entry["event"]))
    assert_same(read_event(path), event)


def test_many_tasks_together_stay_within_the_range_of_numbers(refused: Refused) -> None:
    """92 tasks of 1e8 s each would leave 64 bits of nanoseconds; their sum is bounded as well."""
    stages = {f"s{k}": {"after": [], "residual_s": [1e6]} for k in range(90)}
    value = copy.deepcopy(BASE)
    value["tasks"] |= {f"big{k}": {"arrival_s": value["time_s"], "stages": stages} for k in range(50)}
    assert refused(json.dumps(value)).startswith("tasks.big")
