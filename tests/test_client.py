"""What a client sends: the shape, and that it is refused here where the server would refuse it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topas.client import Task, extra_body
from topas.errors import InputError
from topas.online.sglang.facts import flat_params, read_facts
from topas.wire import MAX_EDGES, MAX_STAGES
from topas.workflow import StageProfile, dag_of

CHAIN: dict[str, Any] = {
    "plan": {"agent": "planner", "after": []},
    "write": {"agent": "writer", "after": ["plan"]},
}


def depth(value: object) -> int:
    """Return how deeply objects and lists are nested."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def test_flat_facts_are_sent_as_an_object() -> None:
    body = extra_body(task="t", workflow="w", stage="s", agent="a", prefix_tokens=900)
    facts = {"workflow": "w", "task": "t", "stage": "s", "agent": "a", "final": True, "prefix_tokens": 900}
    assert body == {"custom_params": {"topas": facts}}


def test_what_is_not_said_is_not_sent() -> None:
    assert extra_body(task="t", final=None) == {"custom_params": {"topas": {"task": "t"}}}


def test_a_dag_makes_it_a_json_text_because_the_server_carries_one_level_of_nesting() -> None:
    body = extra_body(task="t", dag=CHAIN)
    assert depth(body["custom_params"]) == 1
    assert json.loads(body["custom_params"]["topas"]) == {"task": "t", "final": True, "dag": CHAIN}


def test_a_task_says_the_same_of_itself_with_every_request() -> None:
    task = Task("report-1", workflow="report", dag=CHAIN)
    first, _ = read_facts(task.call("plan", final=False)["custom_params"])
    second, _ = read_facts(task.call("write", "writer", prefix_tokens=40)["custom_params"])
    assert (first.task, first.workflow, first.stage, first.final) == ("report-1", "report", "plan", False)
    assert (second.task, second.workflow, second.stage, second.final) == ("report-1", "report", "write", True)
    assert second.prefix_tokens == 40
    assert first.dag is second.dag is not None


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({"task": None}, "topas.task: expected the name of the task"),
        ({"task": ""}, "topas.task: expected 1 to 200 characters, found 0"),
        ({"task": "x" * 201}, "topas.task: expected 1 to 200 characters, found 201"),
        ({"task": "a\nb"}, r"topas.task: expected printable characters, found 'a\nb'"),
        ({"task": 3}, "topas.task: expected a string, found 3"),
        ({"agent": b"x"}, "topas.agent: expected a string, found something else"),
        ({"final": 1}, "topas.final: expected true or false, found 1"),
        ({"prefix_tokens": -1}, "topas.prefix_tokens: expected an integer from 0 to 1000000, found -1"),
        ({"prefix_tokens": True}, "topas.prefix_tokens: expected an integer from 0 to 1000000, found True"),
        (
            {"prefix_tokens": 10**50},
            "topas.prefix_tokens: expected an integer from 0 to 1000000, found a huge number",
        ),
        ({"dag": []}, "topas.dag: expected an object, found a list"),
        ({"dag": {}}, "topas.dag: expected 1 to 64 stages, found 0"),
        ({"dag": {"a": "A"}}, "topas.dag.a: expected an object, found 'A'"),
        ({"dag": {"a": {"after": []}}}, "topas.dag.a.agent: expected a string, found None"),
        (
            {"dag": {"a": {"agent": "A", "after": "b"}}},
            "topas.dag.a.after: expected a list of stages, found 'b'",
        ),
        ({"dag": {"a": {"agent": "A", "after": ["b"]}}}, "topas.dag.a.after: unknown stage 'b'"),
        (
            {"dag": {"a": {"agent": "A"}, "b": {"agent": "B", "after": ["a", "a"]}}},
            "topas.dag.b.after: a predecessor is named twice",
        ),
        (
            {"dag": {"a": {"agent": "A", "speed": 3}}},
            "topas.dag.a.speed: unknown key; known are agent, after, rounds, input_tokens, max_new_tokens",
        ),
        (
            {"dag": {"a": {"agent": "A", "max_new_tokens": 5}}},
            "topas.dag.a.input_tokens: expected with max_new_tokens",
        ),
        (
            {"dag": {"a": {"agent": "A", "rounds": 0, "input_tokens": 1, "max_new_tokens": 1}}},
            "topas.dag.a.rounds: expected an integer from 1 to 1000, found 0",
        ),
        (
            {"dag": {"a": {"agent": "A", "rounds": 1000, "input_tokens": 10_000, "max_new_tokens": 1}}},
            "topas.dag: expected at most 10000000 tokens in all, found 10001000",
        ),
        ({"stage": "read", "dag": CHAIN}, "topas.stage: expected a stage of the DAG, found 'read'"),
        (
            {"stage": "plan", "agent": "writer", "dag": CHAIN},
            "topas.agent: expected the stage's agent 'planner', found 'writer'",
        ),
    ],
)
def test_a_wrong_fact_is_refused_with_its_field(facts: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refusal:
        extra_body(**({"task": "t"} | facts))
    assert str(refusal.value) == line


def test_a_cycle_is_refused_and_shown() -> None:
    dag = {"a": {"agent": "A", "after": ["b"]}, "b": {"agent": "A", "after": ["a"]}}
    with pytest.raises(InputError, match=r"^topas.dag: stages form a cycle: 'a' -> 'b' -> 'a'$"):
        extra_body(task="t", dag=dag)


def test_a_dag_may_have_so_many_stages_and_edges_and_no_more() -> None:
    def wide(stages: int, edges: int) -> dict[str, Any]:
        return {
            f"s{k}": {"agent": "A", "after": [f"s{j}" for j in range(min(k, edges // stages + 1))]}
            for k in range(stages)
        }

    assert extra_body(task="t", dag=wide(MAX_STAGES, MAX_EDGES // 2))
    with pytest.raises(InputError, match="expected 1 to 64 stages, found 65"):
        extra_body(task="t", dag=wide(MAX_STAGES + 1, 65))
    with pytest.raises(InputError, match="expected at most 512 edges"):
        extra_body(task="t", dag=wide(MAX_STAGES, MAX_EDGES + 200))


def test_more_than_64_kib_are_refused() -> None:
    long = [f"{k:02}" + "x" * 198 for k in range(MAX_STAGES)]
    dag = {v: {"agent": v, "after": long[max(k - 8, 0) : k]} for k, v in enumerate(long)}
    with pytest.raises(InputError, match="expected at most 65536 bytes of JSON"):
        extra_body(task="t", dag=dag)


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@st.composite
def dags(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an acyclic DAG, its stages in any order, some with a profile."""
    names = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    dag: dict[str, Any] = {}
    for k, name in enumerate(names):
        before = draw(st.lists(st.sampled_from(names[:k]), unique=True)) if k else []
        dag[name] = {"agent": draw(NAMES), "after": before}
        if draw(st.booleans()):
            dag[name] |= {
                "input_tokens": draw(st.integers(0, 1000)),
                "max_new_tokens": draw(st.integers(1, 1000)),
            }
            if draw(st.booleans()):
                dag[name]["rounds"] = draw(st.integers(1, 10))
    return {name: dag[name] for name in draw(st.permutations(names))}


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the arguments of a call that is right."""
    call: dict[str, Any] = {
        "task": draw(NAMES),
        "workflow": draw(st.none() | NAMES),
        "stage": draw(st.none() | NAMES),
        "agent": draw(st.none() | NAMES),
        "final": draw(st.none() | st.booleans()),
        "prefix_tokens": draw(st.none() | st.integers(0, 1_000_000)),
    }
    if draw(st.booleans()):
        dag = draw(dags())
        stage = draw(st.none() | st.sampled_from(sorted(dag)))
        agent = draw(st.sampled_from([None, dag[stage]["agent"]])) if stage else draw(st.none() | NAMES)
        call |= {"dag": dag, "stage": stage, "agent": agent}
    return call


@given(calls(), st.sampled_from(["as sent", "flat", "text"]))
def test_the_server_reads_what_the_client_said(call: dict[str, Any], form: str) -> None:
    params: Any = json.loads(json.dumps(extra_body(**call)))["custom_params"]
    if form == "flat":
        inner = params["topas"]
        params = flat_params({"topas": json.loads(inner) if isinstance(inner, str) else inner})
    elif form == "text" and isinstance(params["topas"], dict):
        params = {"topas": json.dumps(params["topas"])}
    facts, problem = read_facts(params, "another task")
    assert problem is None
    for key in ("task", "workflow", "stage", "final", "prefix_tokens"):
        assert getattr(facts, key) == call[key]
    dag = call.get("dag")
    if dag is None:
        assert facts.dag is None
        assert facts.agent == call["agent"]
        return
    assert facts.agent == call["agent"] or facts.agent == dag[call["stage"]]["agent"]
    built = facts.dag
    assert built is not None
    assert built.name == (call["workflow"] or "")
    assert built.dag is dag_of({name: stage["after"] for name, stage in dag.items()})
    for name, agent, profile in zip(built.dag.names, built.agents, built.profiles, strict=True):
        stage = dag[name]
        assert agent == stage["agent"]
        known = (
            StageProfile(stage.get("rounds", 1), stage["input_tokens"], stage["max_new_tokens"])
            if ("input_tokens" in stage)
            else None
        )
        assert profile == known


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.sampled_from("abcd"), max_size=3), min_size=1))
def test_client_and_library_refuse_the_same_dags(after: dict[str, list[str]]) -> None:
    def refused(build: Any) -> bool:  # noqa: ANN401  a function of no arguments
        try:
            build()
        except InputError:
            return True
        return False

    dag = {name: {"agent": "A", "after": before} for name, before in after.items()}
    assert refused(lambda: extra_body(task="t", dag=dag)) == refused(lambda: dag_of(after))


def test_the_client_needs_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import topas.client; "
        "found = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(found - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "['topas']"
