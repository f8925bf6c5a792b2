"""Prompts, facts and endings of a replay's requests."""

from __future__ import annotations

import json
import pickle
import pickletools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_replay import told
from support_sim import Stage, ask, make_trace

from compare.live.api import ApiRequest, Ending
from compare.live.facts import ToldFacts
from compare.live.openai_api import OpenAiApi
from compare.live.prompts import Prompts, Vocab
from compare.live.sglang_api import SglangApi
from compare.live.stop_after import PARAM, PROCESSOR, stop_after
from topas.client import extra_body
from topas.errors import InputError
from topas.workflow import StageProfile

AGENTS = {"writer": 40, "critic": 25, "none": 0}


def _prompts(seed: int = 1, **vocab: int) -> Prompts:
    return Prompts(AGENTS, seed, Vocab(**vocab))


# --- prompts --------------------------------------------------------------------------------------------


@given(st.integers(0, 2**40), st.integers(0, 5000), st.integers(1, 3000), st.integers(0, 300))
def test_prompts_have_the_trace_s_lengths_and_ids_of_the_vocabulary(
    seed: int, low: int, width: int, size: int
) -> None:
    prompts = Prompts({"A": size}, seed, Vocab(low, low + width))
    whole = prompts.whole("A", prompts.dynamic(("t", "s", 0), size))
    assert len(prompts.prefix("A")) == size
    assert len(whole) == max(2 * size, 1)
    assert low <= whole.min()
    assert whole.max() <= low + width


def test_equal_seeds_give_equal_prompts_and_other_seeds_others() -> None:
    place = ("t", "s", 0)
    assert np.array_equal(_prompts().dynamic(place, 50), _prompts().dynamic(place, 50))
    assert not np.array_equal(_prompts().dynamic(place, 50), _prompts(2).dynamic(place, 50))
    assert np.array_equal(_prompts().prefix("writer"), _prompts().prefix("writer"))
    assert not np.array_equal(_prompts().prefix("writer"), _prompts(2).prefix("writer"))


@pytest.mark.parametrize("other", [("t2", "s", 0), ("t", "s2", 0), ("t", "s", 1), ("ts", "", 0)])
def test_each_round_of_each_stage_of_each_task_has_tokens_of_its_own(other: tuple[str, str, int]) -> None:
    assert not np.array_equal(_prompts().dynamic(("t", "s", 0), 50), _prompts().dynamic(other, 50))


def test_all_of_the_vocabulary_is_used() -> None:
    assert set(_prompts(low=3, high=9).dynamic(("t", "s", 0), 1000).tolist()) == set(range(3, 10))


@given(st.integers(0, 1000), st.integers(1, 30))
def test_no_two_agents_begin_with_the_same_token(seed: int, count: int) -> None:
    prompts = Prompts({f"a{k}": 3 for k in range(count)}, seed, Vocab(5, 5 + max(count - 1, 1)))
    assert len({int(prompts.prefix(f"a{k}")[0]) for k in range(count)}) == count


def test_more_agents_than_token_ids_are_refused() -> None:
    with pytest.raises(InputError, match="at least 3 token ids"):
        Prompts(AGENTS, 1, Vocab(4, 5))


@pytest.mark.parametrize(("low", "high"), [(-1, 5), (5, 5), (6, 5), (0, 2**31)])
def test_a_vocabulary_of_no_use_is_refused(low: int, high: int) -> None:
    with pytest.raises(InputError, match="LO below HI"):
        Vocab(low, high)


@given(st.integers(0, 30), st.integers(0, 30), st.lists(st.integers(2000, 3000), max_size=40))
def test_reused_tokens_repeat_the_context_and_nothing_else_does(
    reused: int, fresh: int, context: list[int]
) -> None:
    tokens = _prompts().dynamic(("t", "s", 1), reused + fresh, reused, context)
    again = min(reused, len(context))
    assert tokens[:again].tolist() == context[:again]
    assert all(10 <= token <= 1000 for token in tokens[again:])
    assert len(tokens) == reused + fresh


def test_a_prompt_of_no_tokens_gets_one() -> None:
    prompts = _prompts()
    assert len(prompts.whole("none", prompts.dynamic(("t", "s", 0), 0))) == 1
    assert len(prompts.whole("critic", prompts.dynamic(("t", "s", 0), 0))) == 25


# --- facts ----------------------------------------------------------------------------------------------

STAGES = {
    "draft": Stage("writer", (ask(5, 2, 4), ask(5, 2, 4)), (), StageProfile(2, 7, 4)),
    "review": Stage("critic", (ask(5, 2, 4),), ("draft",)),
}
TASK = make_trace(AGENTS, (0.0, STAGES)).tasks[0]


def test_full_facts_say_all_that_the_trace_says_beforehand() -> None:
    params = ToldFacts("full", AGENTS, "run1").params(TASK, 0, final=False)
    assert told(params) == {
        "workflow": "w0",
        "task": "run1:t00",
        "stage": "draft",
        "agent": "writer",
        "final": False,
        "prefix_tokens": 40,
        "dag": {
            "draft": {"agent": "writer", "after": [], "rounds": 2, "input_tokens": 7, "max_new_tokens": 4},
            "review": {"agent": "critic", "after": ["draft"]},
        },
    }


def test_a_client_of_its_own_would_send_the_same_facts() -> None:
    params = ToldFacts("full", AGENTS, "run1").params(TASK, 1, final=True)
    assert extra_body(**told(params)) == {"custom_params": params}


def test_names_tell_neither_dag_nor_prefix_and_none_tells_nothing() -> None:
    params = ToldFacts("names", AGENTS, "run1").params(TASK, 1, final=True)
    assert told(params) == {
        "workflow": "w0",
        "task": "run1:t00",
        "stage": "review",
        "agent": "critic",
        "final": True,
    }
    assert ToldFacts("none", AGENTS, "run1").params(TASK, 1, final=True) == {}


def test_a_fact_that_the_server_would_refuse_is_refused_with_its_task() -> None:
    with pytest.raises(InputError, match=r"facts of task 't00'.*topas\.task"):
        ToldFacts("names", AGENTS, "r" * 200).check(TASK)
    ToldFacts("none", AGENTS, "r" * 200).check(TASK)


# --- endings --------------------------------------------------------------------------------------------

HIDDEN = Ending(hidden=True, stop_token=77)
SHORT = ApiRequest([1, 2], 3, 9, {"topas": {"task": "t"}}, wants_ids=True)
EXACT = ApiRequest([1, 2], 9, 9)


def test_a_hidden_length_stands_in_the_processor_s_own_parameter_only() -> None:
    body = SglangApi(HIDDEN).body(SHORT)
    sampling = body["sampling_params"]
    assert sampling["max_new_tokens"] == 9
    assert sampling["stop_token_ids"] == [77]
    assert "ignore_eos" not in sampling
    assert sampling["custom_params"] == {
        "topas": {"task": "t"},
        PARAM: {"output_tokens": 3, "stop_token": 77},
    }
    assert body["custom_logit_processor"] == PROCESSOR
    openai = OpenAiApi("m", HIDDEN).body(SHORT)
    assert openai["max_tokens"] == 9
    assert openai["custom_params"] == sampling["custom_params"]
    assert openai["return_token_ids"]


@pytest.mark.parametrize(("ending", "request_"), [(Ending(), SHORT), (HIDDEN, EXACT), (Ending(), EXACT)])
def test_otherwise_max_tokens_is_the_length_whatever_is_generated(
    ending: Ending, request_: ApiRequest
) -> None:
    sampling = SglangApi(ending).body(request_)["sampling_params"]
    openai = OpenAiApi("m", ending).body(request_)
    assert sampling["max_new_tokens"] == openai["max_tokens"] == request_.output_tokens
    assert sampling["ignore_eos"]
    assert openai["ignore_eos"]
    for part in (sampling, openai):
        assert "stop_token_ids" not in part
        assert PARAM not in part.get("custom_params", {})
        assert "custom_logit_processor" not in part


def _held(output: int, kv_tokens: int | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401  a request's fields
    """Return what the sampler knows of a request with a prompt of ten tokens."""
    fields: dict[str, Any] = {"eos_token_ids": {0}, "tokenizer": None} | more
    request = SimpleNamespace(origin_input_ids=[5] * 10, output_ids=[6] * output, **fields)
    if kv_tokens is not None:
        request.kv = SimpleNamespace(kv_allocated_len=kv_tokens)
    return {"__req__": request, PARAM: {"output_tokens": 3, "stop_token": 1}}


def _chosen(*params: dict[str, Any]) -> list[int]:
    """Return the greedy tokens where the stop tokens 1 and 0 are likeliest, then 2, then 3."""
    logits = np.tile(np.array([9.0, 8.0, 7.0, 6.0]), (len(params), 1))
    found: list[int] = stop_after(logits, list(params)).argmax(axis=1).tolist()
    return found


def test_the_stop_token_comes_at_the_length_and_no_other_stop_token_before() -> None:
    assert _chosen(_held(0), _held(1), _held(2), _held(5)) == [2, 2, 1, 1]


def test_kv_that_is_allocated_counts_where_results_lag_behind() -> None:
    assert _chosen(_held(0, 10), _held(0, 11), _held(1, 12), _held(2, 12)) == [2, 2, 1, 1]


def test_a_part_of_a_prompt_ends_nothing() -> None:
    assert _chosen(_held(0, 4)) == [2]


def test_stop_tokens_of_the_tokenizer_are_forbidden_too() -> None:
    tokenizer = SimpleNamespace(eos_token_id=2, additional_stop_token_ids=None)
    assert _chosen(_held(0, tokenizer=tokenizer, eos_token_ids=None)) == [0]
    tokenizer = SimpleNamespace(eos_token_id=None, additional_stop_token_ids={0, 2})
    assert _chosen(_held(0, tokenizer=tokenizer, eos_token_ids=None)) == [3]


def test_the_server_needs_nothing_but_python_to_load_the_processor() -> None:
    payload = bytes.fromhex(json.loads(PROCESSOR)["callable"])
    words = [arg for op, arg, _ in pickletools.genops(payload) if "UNICODE" in op.name]
    assert words[:2] == ["builtins", "eval"]
    assert not any("compare" in word or "import topas" in word for word in words)
    processor = pickle.loads(payload)()  # noqa: S301  our own
    logits = np.tile(np.array([9.0, 8.0, 7.0, 6.0]), (2, 1))
    assert processor(logits, [_held(1), _held(2)]).argmax(axis=1).tolist() == [2, 1]
