"""Replays: order and times on a clock that jumps, bodies and failures over a real socket."""

from __future__ import annotations

import itertools
import json
import math
import re
import socket
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support_constant import seeded, tiny_engine, tiny_trace
from support_replay import FakeServer, Script, output_of, told
from support_sim import Stage, ask, make_trace, single

from compare.live.api import RequestError
from compare.live.client import TELLS_LENGTHS, ApiName, events_of
from compare.live.openai_api import OpenAiApi
from compare.live.outcome import Failure, ReplayResult, metrics_of
from compare.live.player import TELLS_NO_IDS, replay
from compare.live.prompts import Prompts, Vocab
from compare.live.sglang_api import SglangApi
from topas.errors import InputError
from topas.sim import TaskResult, simulate
from topas.trace import Trace

FORK = {
    "a": Stage("A", (ask(4, 2, 2, tool_s=0.5),)),
    "b": Stage("B", (ask(5, 2, 2, tool_s=1.0), ask(6, 2, 2, tool_s=0.25)), ("a",)),
    "c": Stage("C", (ask(7, 6, 8),), ("a",)),
    "d": Stage("D", (ask(8, 2, 2),), ("b", "c")),
}
AGENTS = dict.fromkeys("ABCD", 3)


# --- times ----------------------------------------------------------------------------------------------


def test_stages_wait_for_all_predecessors_rounds_and_tools() -> None:
    script = Script(make_trace(AGENTS, (2.0, FORK)), lambda r: float(r.output_tokens))
    result = script.play()
    starts = [(told(r.params)["stage"], told(r.params)["final"], at) for at, r in script.sent]
    assert starts == [
        ("a", True, 2.0),
        ("b", False, 4.5),
        ("c", True, 4.5),
        ("b", True, 7.5),
        ("d", True, 10.5),
    ]
    assert result.tasks == (TaskResult("t00", 2.0, 12.5),)
    assert [r.ttft_s for r in result.requests] == [r.output_tokens / 4 for r in result.requests]


def test_the_wait_behind_the_last_round_counts() -> None:
    trace = make_trace({"A": 0}, (0.0, single("A", ask(1, 1, 1, tool_s=3.0))))
    assert Script(trace).play().tasks[0].completion_s == 4.0


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_jcts_are_the_simulator_s_where_a_request_takes_a_constant_time(seed: int) -> None:
    rng = seeded(seed)
    trace = tiny_trace(rng, most=8)
    # the engine takes in between two steps, so all happens at whole seconds here
    trace = replace(trace, tasks=tuple(replace(t, arrival_s=math.ceil(t.arrival_s)) for t in trace.tasks))
    profile = tiny_engine(rng, trace, "parallel")
    # room for everything at once: then a request takes its decode steps, whoever else runs
    roomy = profile.model_copy(
        update={"kv_budget_tokens": 10_000, "max_running": 100, "swap_bytes_per_s": 1e12, "host_cache": False}
    )
    expected = simulate(trace, "fcfs", roomy, check=True)
    found = Script(trace, lambda r: _steps_s(r.output_tokens)).play()
    assert [t.id for t in found.tasks] == [t.id for t in expected.tasks]
    for mine, other in zip(found.tasks, expected.tasks, strict=True):
        assert mine.arrival_s == other.arrival_s
        assert mine.completion_s == pytest.approx(other.completion_s, abs=1e-6)
    for name in ("mean_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "first_task_s", "requests_per_s"):
        assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-5, abs=1e-6)


def _steps_s(output_tokens: int) -> float:
    """Return the time on an engine whose prefill, which yields a token, takes none and a step one second."""
    return output_tokens - 1.0


def test_speed_moves_arrivals_and_nothing_else() -> None:
    trace = make_trace(AGENTS, (0.0, FORK), (6.0, FORK))
    slow, fast = Script(trace).play(), Script(trace).play(speed=4.0)
    assert [t.arrival_s for t in fast.tasks] == [0.0, 1.5]
    assert [t.jct_s for t in fast.tasks] == [t.jct_s for t in slow.tasks]


def test_a_wide_fork_is_sent_all_at_once() -> None:
    stages = {"a": Stage("A", (ask(1, 1, 1),))}
    stages |= {f"w{k}": Stage("B", (ask(1, 1, 1),), ("a",)) for k in range(60)}
    stages["z"] = Stage("A", (ask(1, 1, 1),), tuple(f"w{k}" for k in range(60)))
    script = Script(make_trace({"A": 2, "B": 2}, (0.0, stages)))
    result = script.play(level="names")
    assert result.tasks[0].jct_s == 3.0
    assert [at for at, _ in script.sent].count(1.0) == 60


# --- what is sent ---------------------------------------------------------------------------------------


def test_agents_share_their_prefix_and_nothing_else() -> None:
    agents = {"A": 30, "B": 20}
    tasks = [
        (float(k), {"a": Stage("A", (ask(9, 2, 2),)), "b": Stage("B", (ask(9, 2, 2),), ("a",))})
        for k in range(3)
    ]
    script = Script(make_trace(agents, *tasks))
    script.play(seed=3)
    prefixes = Prompts(agents, 3, Vocab())
    heads: dict[str, set[tuple[int, ...]]] = {}
    tails = set()
    for _, request in script.sent:
        agent = told(request.params)["agent"]
        size = told(request.params)["prefix_tokens"]
        assert size == agents[agent]
        assert len(request.prompt) == size + 9
        assert list(request.prompt[:size]) == prefixes.prefix(agent).tolist()
        heads.setdefault(agent, set()).add(tuple(request.prompt[:size]))
        tails.add(tuple(request.prompt[size:]))
    assert [len(found) for found in heads.values()] == [1, 1]
    assert len(tails) == 6


TALK = single(
    "A",
    ask(5, 3, 4),
    ask(12, 2, 2, reused_tokens=8),
    ask(20, 1, 1, reused_tokens=4),
    ask(40, 1, 1, reused_tokens=30),
)


def test_a_round_reuses_input_and_real_output_of_the_one_before() -> None:
    script = Script(make_trace({"A": 2}, (0.0, TALK)))
    script.play()
    first, second, third, fourth = (list(request.prompt) for _, request in script.sent)
    assert second[: 2 + 8] == first + output_of(first, 3)
    assert third[:6] == second[:6]
    assert third[6] != second[6] or third[6:14] != second[6:14]
    assert fourth[: 2 + 21] == third + output_of(third, 1)
    assert all(token <= 1000 for token in fourth[23:])  # nothing is left to repeat
    assert [request.wants_ids for _, request in script.sent] == [True, True, True, False]


def test_without_ids_only_the_input_is_repeated_and_that_is_said_once() -> None:
    script = Script(make_trace({"A": 2}, (0.0, TALK), (0.0, TALK)), ids=False)
    result = script.play()
    first, second = (list(r.prompt) for r in script.by_place()["r:t00", "a"][:2])
    assert second[:7] == first
    assert script.told == [TELLS_NO_IDS]
    assert result.notes == (TELLS_NO_IDS,)


@pytest.mark.parametrize("level", ["full", "names", "none"])
def test_facts_never_change_prompts(level: Any) -> None:  # noqa: ANN401  a literal
    trace = make_trace(AGENTS, (0.0, FORK), (1.0, FORK))
    plain, told_ = Script(trace), Script(trace)
    plain.play(level="none")
    told_.play(level=level)
    assert [r.prompt for _, r in plain.sent] == [r.prompt for _, r in told_.sent]


def test_runs_of_one_trace_have_task_names_of_their_own() -> None:
    script = Script(make_trace({"A": 2}, (0.0, single("A", ask(3, 1, 1)))))
    names = set()
    for run in ("x", "y"):
        script.play(run=run)
        names |= {told(request.params)["task"] for _, request in script.sent}
    assert names == {"x:t00", "y:t00"}


def test_a_trace_of_empty_prompts_still_sends_a_token() -> None:
    script = Script(make_trace({"A": 0}, (0.0, single("A", ask(0, 1, 1), ask(0, 1, 1)))))
    script.play()
    assert [len(request.prompt) for _, request in script.sent] == [1, 1]


# --- over a socket --------------------------------------------------------------------------------------


def _served(server: FakeServer, trace: Trace, **more: Any) -> ReplayResult:  # noqa: ANN401  options of replay
    with server.serve():
        return replay(trace, server.url, **more)


QUICK = make_trace(
    AGENTS, (0.0, single("A", ask(5, 3, 6), ask(9, 2, 2, reused_tokens=8))), (0.0, single("B", ask(4, 1, 1)))
)


@pytest.mark.parametrize("api", ["sglang", "openai"])
def test_both_apis_say_the_same(api: ApiName) -> None:
    server = FakeServer()
    result = _served(server, QUICK, api=api)
    assert not result.failures
    assert result.policy == "lpm"
    assert set(server.paths) == {"/generate" if api == "sglang" else "/v1/completions"}
    assert [t.id for t in result.tasks] == ["t00", "t01"]
    # the second round finds prefix, input and all but nothing of the output of the first
    talk = [r for r in result.requests if r.task == "t00"]
    assert [(r.prompt_tokens, r.cached_tokens, r.output_tokens) for r in talk] == [(8, 0, 3), (12, 11, 2)]
    assert all(0 < r.ttft_s <= r.end_s - r.start_s for r in result.requests)
    metrics = result.metrics
    assert (metrics["requests"], metrics["prompt_tokens"], metrics["cached_tokens"]) == (3, 27, 11)
    assert (metrics["output_tokens"], metrics["failed_tasks"]) == (6, 0)


@pytest.mark.parametrize("api", ["sglang", "openai"])
def test_the_first_token_is_timed_when_it_comes_and_not_later(api: ApiName) -> None:
    trace = make_trace({"A": 2}, (0.0, single("A", ask(3, 3, 3))))
    readings = itertools.count()
    result = _served(FakeServer(pause_s=0.05), trace, api=api, clock=lambda: float(next(readings)))
    (request,) = result.requests
    assert (request.ttft_s, request.end_s - request.start_s) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("sglang", "api", "path"),
    [(True, "auto", "/generate"), (False, "auto", "/v1/completions"), (True, "openai", "/v1/completions")],
)
def test_auto_speaks_sglang_s_own_api_where_there_is_one(sglang: bool, api: ApiName, path: str) -> None:  # noqa: FBT001
    server = FakeServer(sglang=sglang)
    result = _served(server, QUICK, api=api)
    assert set(server.paths) == {path}
    assert result.api == path
    assert result.policy == ("lpm" if sglang else None)


@pytest.mark.parametrize("api", ["sglang", "openai"])
def test_equal_seeds_send_equal_bytes(api: ApiName) -> None:
    sent = []
    for seed in (5, 5, 6):
        server = FakeServer()
        assert not _served(server, _mixed(), seed=seed, api=api).failures
        sent.append(sorted(server.bodies))
    assert sent[0] == sent[1]
    assert sent[0] != sent[2]


def _mixed() -> Trace:
    """Return a fork, and a stage of several rounds that repeat their context."""
    fork = {
        "a": Stage("A", (ask(4, 2, 3),)),
        "b": Stage("B", (ask(5, 2, 2), ask(6, 2, 4)), ("a",)),
        "c": Stage("C", (ask(7, 6, 8),), ("a",)),
        "d": Stage("D", (ask(8, 2, 2),), ("b", "c")),
    }
    return make_trace(AGENTS, (0.0, fork), (0.01, TALK))


def test_a_server_without_processor_is_told_the_length_and_the_user_that_it_is() -> None:
    server, told_ = FakeServer(processor=False), []
    result = _served(server, QUICK, tell=told_.append)
    assert told_ == [TELLS_LENGTHS]
    assert result.notes == (TELLS_LENGTHS,)
    assert not result.failures
    first = json.loads(server.bodies[0])
    assert first["sampling_params"]["max_new_tokens"] in (1, 3)
    assert all("custom_logit_processor" not in json.loads(body) for body in server.bodies)


def test_nothing_is_said_where_no_length_is_to_be_hidden() -> None:
    told_: list[str] = []
    trace = make_trace({"A": 2}, (0.0, single("A", ask(3, 4, 4))))
    assert not _served(FakeServer(processor=False), trace, tell=told_.append).failures
    assert told_ == []


def test_without_a_cache_report_cached_tokens_are_unknown() -> None:
    result = _served(FakeServer(sglang=False, cache_report=False), QUICK)
    assert result.metrics["cached_tokens"] is None
    assert result.metrics["prompt_tokens"] == 27


def test_openai_servers_without_ids_are_noted() -> None:
    result = _served(FakeServer(sglang=False, ids=False), QUICK)
    assert result.notes == (TELLS_LENGTHS, TELLS_NO_IDS)
    assert not result.failures


# --- failures -------------------------------------------------------------------------------------------

FAULTS = {
    "refuse": "refused with 400.*no room for this",
    "error": "out of memory",
    "abort": "aborted",
    "cut": "ended before the request",
    "drop": "connection failed|ended before the request",
    "hang": "timed out after 0.3 s",
    "short": "generated . tokens instead of .",
    "garbage": "not understood: KeyError",
}


@pytest.mark.parametrize("api", ["sglang", "openai"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_request_fails_its_task_and_no_other(fault: str, api: ApiName) -> None:
    def of(body: dict[str, Any]) -> str | None:
        params = body.get("custom_params") or body["sampling_params"]["custom_params"]
        facts = told(params)
        return fault if (facts["task"], facts["stage"]) == ("r0:t00", "b") else None

    stages = {
        "a": Stage("A", (ask(3, 2, 2),)),
        "b": Stage("B", (ask(3, 2, 2),), ("a",)),
        "c": Stage("C", (ask(3, 2, 2),), ("b",)),
    }
    trace = make_trace(AGENTS, (0.0, stages), (0.0, stages))
    result = _served(FakeServer(fault=of), trace, api=api, timeout_s=0.3 if fault == "hang" else 30.0)
    assert [task.id for task in result.tasks] == ["t01"]
    assert [(f.task, f.stage, f.round) for f in result.failures] == [("t00", "b", 0)]
    (failure,) = result.failures
    assert re.search(FAULTS[fault], failure.reason), failure.reason
    assert result.metrics["failed_tasks"] == 1
    assert {(r.task, r.stage) for r in result.requests} == {
        ("t00", "a"),
        ("t01", "a"),
        ("t01", "b"),
        ("t01", "c"),
    }


def test_other_requests_of_a_failed_task_are_broken_off() -> None:
    stages = {"a": Stage("A", (ask(3, 1, 1),)), "b": Stage("B", (ask(4, 1, 1),))}
    server = FakeServer(fault=lambda b: "hang" if len(b["input_ids"]) == 6 else "refuse", seconds=0.05)
    result = _served(server, make_trace(AGENTS, (0.0, stages)))
    assert [f.stage for f in result.failures] == ["b"]
    assert server.broken_off == 1


def test_metrics_of_a_replay_in_which_all_failed_are_unknown() -> None:
    metrics = metrics_of([], [], [Failure("t", "s", 0, "why"), Failure("t", "r", 0, "why")])
    assert metrics["failed_tasks"] == 1
    assert metrics["requests"] == 0
    assert metrics["mean_jct_s"] is metrics["mean_ttft_s"] is metrics["makespan_s"] is None


def test_a_server_that_does_not_answer_is_bad_input() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(InputError, match="cannot reach the server"):
            replay(QUICK, url)


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host", "http://", ""])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="expected http://HOST:PORT"):
        replay(QUICK, url)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"speed": 0.0}, "speed above 0"),
        ({"speed": float("nan")}, "speed above 0"),
        ({"timeout_s": -1.0}, "timeout above 0"),
        ({"run": "x" * 200}, "facts of task"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_is_sent(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replay(QUICK, "http://127.0.0.1:1", **more)


def test_sglang_s_api_is_refused_where_there_is_none() -> None:
    with pytest.raises(InputError, match="expected an SGLang server"):
        _served(FakeServer(sglang=False), QUICK, api="sglang")


def test_what_is_no_llm_server_is_refused() -> None:
    with pytest.raises(InputError, match="lists its model at /v1/models"):
        _served(FakeServer(sglang=False, models=False), QUICK)


# --- streams --------------------------------------------------------------------------------------------


def test_streams_are_read_however_they_are_cut_into_lines() -> None:
    stream = b': ping\n\ndata: {"a":1}\r\n\r\ndata:{"b":2}\n\nevent: end\ndata: [DONE]\n\n'
    assert events_of(stream) == [b'{"a":1}', b'{"b":2}']


def test_ids_that_come_in_parts_are_put_together() -> None:
    def event(ids: list[int], count: int, reason: str | None) -> bytes:
        meta = {"prompt_tokens": 1, "completion_tokens": count, "finish_reason": reason and {"type": reason}}
        return json.dumps({"output_ids": ids, "meta_info": meta}).encode()

    api = SglangApi(ending=None)  # type: ignore[arg-type]
    parts = [event([1], 1, None), event([2, 3], 3, "length")]
    assert api.answer(parts).output_ids == [1, 2, 3]
    assert api.answer([event([1], 1, None), event([1, 2, 3], 3, "stop")]).output_ids == [1, 2, 3]


@pytest.mark.parametrize("api", [SglangApi(ending=None), OpenAiApi("m", ending=None)])  # type: ignore[arg-type]
def test_an_empty_stream_is_a_failed_request(api: Any) -> None:  # noqa: ANN401  one of both
    with pytest.raises(RequestError, match="ended before"):
        api.answer([])
