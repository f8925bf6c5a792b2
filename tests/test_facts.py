"""RequestFacts as they arrive: never an error, all or nothing, and what other systems call them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topas.client import extra_body
from topas.online.sglang.facts import (
    HEADERS,
    MAX_KEYS,
    MAX_LINE,
    MAX_PACKED,
    NO_FACTS,
    PACKED,
    RequestFacts,
    flat_params,
    pack_headers,
    read_facts,
)
from topas.wire import KEYS, MAX_BYTES

LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**4000, 10**4001)
    | st.floats()
    | st.text(st.characters(), max_size=30)
    | st.sampled_from(["{", '{"task":"t"}', "a", "\ud800", "\x00", "x" * 70_000])
)
KEY = st.text(max_size=10) | st.sampled_from(
    [*KEYS, *HEADERS, "topas", "nvext", "agent_context", "session_id", "gen_ai.agent.name", "after", "agent"]
)
JSON = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEY, inner, max_size=5))
PARAMS = JSON | st.fixed_dictionaries({"topas": JSON}) | st.dictionaries(KEY, JSON, max_size=8)


class Evil(dict[Any, Any]):
    """A value that fights back."""

    def _refuse(self, *_: object) -> Any:  # noqa: ANN401  whatever is asked
        raise SystemError

    __str__ = __repr__ = __iter__ = __len__ = __bool__ = __hash__ = __eq__ = get = items = values = _refuse


def nested(levels: int) -> Any:  # noqa: ANN401  a JSON value
    value: Any = {}
    for _ in range(levels):
        value = {"topas": value}
    return value


def check_answer(facts: RequestFacts, problem: str | None) -> None:
    """Check what holds of every answer."""
    if problem is not None:
        assert facts == NO_FACTS
        assert 0 < len(problem) <= MAX_LINE
        assert problem.isprintable()
    for name in (facts.workflow, facts.task, facts.stage, facts.agent):
        assert name is None or (type(name) is str and 0 < len(name) <= 200 and name.isprintable())
    assert facts.final in (None, True, False)
    assert facts.prefix_tokens is None or 0 <= facts.prefix_tokens <= 1_000_000


@given(PARAMS, st.none() | LEAF | LEAF.map(lambda v: f"{PACKED}{v}") | JSON)
def test_nothing_that_json_can_say_raises(params: object, routing_key: object) -> None:
    check_answer(*read_facts(params, routing_key))
    check_answer(*read_facts(flat_params(params), routing_key))


@pytest.mark.parametrize(
    "params",
    [
        nested(100_000),
        {"topas": nested(100_000)},
        {"topas": "[" * 60_000},
        {"topas": '{"a":' * 10_000},
        {"topas": "9" * 60_000},
        {"topas": '{"prefix_tokens": ' + "9" * 5000 + "}"},
        {"topas": '{"prefix_tokens": NaN}'},
        {"topas": '{"prefix_tokens": 1e400}'},
        {"topas": '{"task": "a", "task": "b"}'},
        {"topas": '{"task": "\\ud800"}'},
        {"topas": {"prefix_tokens": math.nan}},
        {"topas": {"task": "a\u202eb"}},
        {"topas": {1: 2}},
        {"topas": {("a",): 2}},
        {"topas": {"x" * 10**6: 2}},
        {"topas": {"task": "x" * 10**6}},
        {"topas": {"dag": {str(k): {} for k in range(10**5)}}},
        {"topas": {"dag": {"a": {"agent": "A", "after": ["a"] * 10**5}}}},
        {"topas": {"dag": {3: {}}}},
        {"topas": {"task": Evil()}},
        {"topas": Evil(task="t")},
        Evil(topas="t"),
        {"x-session-id": Evil()},
        {"nvext": {"agent_context": [1]}},
        {"nvext": 3},
        [],
        "topas",
        {"topas": []},
        {"topas": b"{}"},
    ],
    ids=lambda value: str(type(value)),
)
def test_wrong_facts_are_no_facts_and_say_why(params: object) -> None:
    facts, problem = read_facts(params, "a routing key does not help")
    assert facts == NO_FACTS
    assert problem is not None
    check_answer(facts, problem)


class Thorn(str):
    """A key that looks like ours until it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        """Refuse."""
        raise SystemError


def test_what_is_not_foreseen_is_no_facts_too() -> None:
    facts, problem = read_facts({Thorn("topas"): {}})
    assert (facts, problem) == (NO_FACTS, "cannot be read: SystemError")


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"taks": "t"}, f"topas.taks: unknown key; known are {', '.join(KEYS)}"),
        ({"task": "t", "final": "yes"}, "topas.final: expected true or false, found 'yes'"),
        ({"task": "t", "stage": "a" * 201}, "topas.stage: expected 1 to 200 characters, found 201"),
        ("{", "topas: expected JSON: Expecting property name enclosed in double quotes at line 1 column 2"),
        ([], "topas: expected an object or its JSON text, found a list"),
        (" " * (MAX_BYTES + 1), "topas: expected at most 65536 bytes, found 65537"),
    ],
)
def test_the_line_names_the_field_and_what_was_expected(said: object, problem: str) -> None:
    assert read_facts({"topas": said})[1] == problem


def test_no_facts_are_no_problem() -> None:
    for nothing in (None, {}, {"topas": None}, {"thinking_budget": 3, "__req__": object()}, {"nvext": {}}):
        assert read_facts(nothing) == (NO_FACTS, None)
        assert read_facts(nothing, "") == (NO_FACTS, None)


def test_null_says_nothing() -> None:
    assert read_facts({"topas": {"task": "t", "stage": None, "dag": None}}) == (RequestFacts(task="t"), None)


def test_the_agent_is_the_stages_one_if_only_the_stage_is_said() -> None:
    dag = {"a": {"agent": "A"}, "b": {"agent": "B", "after": ["a"]}}
    facts, _ = read_facts({"topas": {"task": "t", "stage": "b", "dag": dag}})
    assert facts.agent == "B"


def test_equal_dags_are_built_once() -> None:
    dag = {"a": {"agent": "A", "after": []}, "b": {"agent": "B", "after": ["a"]}}
    one, _ = read_facts(extra_body(task="1", workflow="w", dag=dag)["custom_params"])
    two, _ = read_facts({"topas": {"task": "2", "workflow": "w", "dag": dag}})
    other, _ = read_facts(extra_body(task="1", workflow="v", dag=dag)["custom_params"])
    assert one.dag is two.dag is not None
    assert other.dag is not None
    assert other.dag is not one.dag
    assert other.dag.dag is one.dag.dag


def test_our_own_facts_hide_those_of_others() -> None:
    params = {"topas": {"agent": "A"}, "gen_ai.conversation.id": "c", "x-session-id": "s"}
    assert read_facts(params, "key") == (RequestFacts(agent="A"), None)


@pytest.mark.parametrize(
    ("params", "facts"),
    [
        (
            {"gen_ai.conversation.id": "c", "gen_ai.agent.name": "A", "gen_ai.operation.name": "review"},
            RequestFacts(task="c", agent="A", stage="review"),
        ),
        ({"gen_ai.workflow.name": "w", "GEN_AI.Conversation.Id": "c"}, RequestFacts(workflow="w", task="c")),
        ({"gen_ai.conversation.id": "c", "gen_ai.operation.name": "chat"}, RequestFacts(task="c")),
        (
            {"nvext": {"agent_context": {"session_type_id": "w", "session_id": "s", "trajectory_id": "s:1"}}},
            RequestFacts(workflow="w", task="s:1"),
        ),
        (
            {
                "nvext": {
                    "agent_context": {"session_id": "s", "parent_session_id": "p", "session_final": True}
                }
            },
            RequestFacts(task="s", final=True),
        ),
        ({"nvext": {"agent_hints": {"osl": 1024, "priority": 5}}}, NO_FACTS),
        ({"X-Dynamo-Session-ID": "s", "X-Dynamo-Session-Final": "TRUE"}, RequestFacts(task="s", final=True)),
        ({"x-dynamo-session-id": "s", "x-dynamo-session-final": False}, RequestFacts(task="s", final=False)),
        ({"x-dynamo-session-id": "s", "x-dynamo-parent-session-id": "p"}, RequestFacts(task="s")),
        ({"X-Session-ID": "s"}, RequestFacts(task="s")),
        ({"x-claude-code-session-id": "s"}, RequestFacts(task="s")),
        (
            {
                "x-claude-code-session-id": "s",
                "x-claude-code-agent-id": "a1",
                "x-claude-code-agent-type": "Explore",
            },
            RequestFacts(task="a1", agent="Explore"),
        ),
        (
            {"x-session-id": "s", "x-dynamo-session-id": "d", "gen_ai.conversation.id": "c"},
            RequestFacts(task="c"),
        ),
    ],
)
def test_names_of_other_systems_are_understood(params: dict[str, Any], facts: RequestFacts) -> None:
    assert read_facts(params) == (facts, None)
    assert read_facts(flat_params(params)) == (facts, None)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (
            {"gen_ai.agent.name": 5, "gen_ai.conversation.id": "c"},
            "gen_ai.agent.name: expected a string, found 5",
        ),
        ({"x-session-id": "s" * 201}, "x-session-id: expected 1 to 200 characters, found 201"),
        (
            {"x-dynamo-session-final": "maybe"},
            "x-dynamo-session-final: expected true or false, found 'maybe'",
        ),
        (
            {"nvext": '{"agent_context":{"session_id":7}}'},
            "nvext.agent_context.session_id: expected a string, found 7",
        ),
        (
            dict.fromkeys(map(str, range(MAX_KEYS + 1)), 1),
            "custom_params: expected at most 64 keys, found 65",
        ),
    ],
)
def test_wrong_values_under_names_of_others_are_told_by_that_name(
    params: dict[str, Any], problem: str
) -> None:
    assert read_facts(params) == (NO_FACTS, problem)


def test_a_plain_routing_key_names_the_task_if_nothing_else_does() -> None:
    assert read_facts(None, "user-7") == (RequestFacts(task="user-7"), None)
    assert read_facts({"gen_ai.agent.name": "A"}, "user-7") == (RequestFacts(task="user-7", agent="A"), None)
    assert read_facts({"x-session-id": "s"}, "user-7" * 100) == (RequestFacts(task="s"), None)
    assert read_facts(None, "user-7" * 100)[1] == "routing key: expected 1 to 200 characters, found 600"


def test_known_headers_are_packed_and_read_in_any_case() -> None:
    packed = pack_headers({"X-Dynamo-Session-ID": " s ", "x-dynamo-session-FINAL": "1", "Cookie": "secret"})
    assert packed is not None
    assert "secret" not in packed
    assert read_facts(None, packed) == (RequestFacts(task="s", final=True), None)
    assert read_facts({"gen_ai.agent.name": "A"}, packed) == (
        RequestFacts(task="s", agent="A", final=True),
        None,
    )


def test_a_wrong_value_that_a_better_one_hides_does_not_matter() -> None:
    packed = pack_headers({"x-dynamo-session-id": "s", "x-session-id": "t" * 300})
    assert read_facts({"gen_ai.conversation.id": "c", "x-session-id": 3}, packed) == (
        RequestFacts(task="c"),
        None,
    )
    assert read_facts(None, packed) == (RequestFacts(task="s"), None)


def test_a_dag_as_an_object_is_bounded_like_its_text() -> None:
    long = [f"{k:02}" + "x" * 198 for k in range(64)]
    dag = {v: {"agent": v, "after": long[max(k - 8, 0) : k]} for k, v in enumerate(long)}
    assert read_facts({"topas": {"dag": dag}})[1] == "topas.dag: expected at most 65536 bytes of JSON"
    assert read_facts(flat_params({"topas": {"dag": dag}}))[1] is not None


def test_headers_that_are_not_known_or_empty_pack_to_nothing() -> None:
    assert pack_headers({}) is None
    assert pack_headers({"authorization": "x", "x-smg-routing-key": "k", "x-session-id": "  "}) is None


@given(st.dictionaries(st.sampled_from(HEADERS), st.text(st.characters(), max_size=300), min_size=1))
def test_packed_headers_are_bounded_and_say_what_the_headers_say(headers: dict[str, str]) -> None:
    packed = pack_headers(headers)
    direct = read_facts({name: value.strip() or None for name, value in headers.items()})
    if packed is None:
        assert direct == (NO_FACTS, None)
        return
    assert len(packed) <= MAX_PACKED
    assert packed.isascii()
    facts, problem = read_facts(None, packed)
    assert (problem is None) == (direct[1] is None)
    assert facts == direct[0]


@pytest.mark.parametrize(
    "inner",
    [
        '{"workflow":"w"}',
        '{"dag":{}}',
        '{"prefix_tokens":1}',
        '{"topas":{"task":"t"}}',
        '{"task":3}',
        "[]",
        "",
        '{"task":"' + "t" * MAX_PACKED + '"}',
    ],
)
def test_a_forged_packed_key_says_nothing_else(inner: str) -> None:
    facts, problem = read_facts(None, PACKED + inner)
    assert facts == NO_FACTS
    assert problem is not None
    assert problem.startswith("routing key")


def test_flat_params_leaves_flat_ones_alone_and_flattens_the_rest() -> None:
    flat = {"topas": {"task": "t"}, "list": [1, 2], "n": None}
    assert flat_params(flat) is flat
    deep = {"topas": {"task": "t", "dag": {"a": {"agent": "A"}}}, "lists": [[1]], "n": 3}
    assert flat_params(deep) == {
        "topas": '{"task":"t","dag":{"a":{"agent":"A"}}}',
        "lists": "[[1]]",
        "n": 3,
    }
    assert flat_params({"a": nested(100_000)}) == {"a": None}
    assert flat_params(None) is None
