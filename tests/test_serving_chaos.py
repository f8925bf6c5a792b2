"""TOPAS inside a real SGLang under disorderly clients: nothing is lost, nobody starves, no memory leaks.

Larger campaigns: ``python tests/test_serving_chaos.py KINDS SEEDS TASKS``, as in ``plain,all 1,2,3 200``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections import Counter
from typing import Any

import pytest
from support_chaos import (
    KINDS,
    KV_TOKENS,
    TTL_S,
    Campaign,
    Clients,
    assert_nothing_left,
    counter,
    lines_of,
    preemptions_of,
    probe,
    prompt_of,
    references,
    together,
    watched,
)
from support_server import SERVING, serving

from compare.live.server import Server

pytestmark = SERVING

MOST_PREEMPTIONS = 20
"""Of one request: far above what is seen (5), far below a preemption at every event."""


def _facts(task: str, agent: str, *, final: bool = True) -> dict[str, Any]:
    return {"topas": json.dumps({"task": task, "agent": agent, "final": final})}


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("plain", "topas"), ("plain", "topas-paper"), ("write-back", "topas"), ("all", "topas-paper")],
)
def test_disorder_is_survived(kind: str, policy: str) -> None:
    expected = references()
    with watched(kv_tokens=KV_TOKENS, **KINDS[kind]) as (server, log):
        probe(server, "policy", policy=policy)
        began = counter(server, "topas_fallbacks_total")
        campaign = Campaign(seed=1, size=40)
        clients = together(server, campaign.play)
        assert not campaign.problems(clients, expected)
        reasons = Counter(clients.answers[rid].reason for rid in campaign.aborted)
        assert reasons["abort"] > 0
        assert_nothing_left(server, jobs=None)
        assert counter(server, "topas_fallbacks_total") == began
        preemptions = preemptions_of(lines_of(log))
        assert max(preemptions.values(), default=0) <= MOST_PREEMPTIONS
        assert preemptions or policy != "topas-paper"
        time.sleep(TTL_S + 0.2)
        probe(server)  # time passes at events only
        assert_nothing_left(server)
        probe(server, "policy", policy="topas")


def test_two_hundred_clients_at_once_are_all_served() -> None:
    prefixes = {agent: prompt_of(agent, 600) for agent in "KLM"}
    asked = [(agent, prefixes[agent] + prompt_of(k, 20)) for k, agent in enumerate("KLM" * 67)]

    async def play(clients: Clients) -> None:
        async with asyncio.TaskGroup() as group:
            for k, (agent, prompt) in enumerate(asked[:200]):
                group.create_task(clients.ask(prompt, 4, f"m{k}", _facts(f"m{k}", agent)))

    with watched(kv_tokens=KV_TOKENS) as (server, _):
        clients = together(server, play)
        assert_nothing_left(server)
    with serving("fcfs") as server:
        for k in range(0, 200, 25):
            assert clients.answers[f"m{k}"].ids == server.generate(asked[k][1], 4)["output_ids"]
    assert {(answer.status, len(answer.ids)) for answer in clients.answers.values()} == {(200, 4)}
    assert len(clients.answers) == 200


def test_what_sglang_retracts_is_finished() -> None:
    """Requests that may stop early are let in beyond what they may need, so memory runs out."""
    asked = [prompt_of(("retract", k), 60) for k in range(10)]
    tokens = 620

    async def play(clients: Clients) -> None:
        async with asyncio.TaskGroup() as group:
            for k, prompt in enumerate(asked):
                one = clients.ask(prompt, tokens, f"x{k}", _facts(f"x{k}", f"X{k % 2}"), ignore_eos=False)
                group.create_task(one)

    with watched(kv_tokens=KV_TOKENS) as (server, _):
        before = counter(server, "topas_retractions_total")
        clients = together(server, play)
        retracted = counter(server, "topas_retractions_total") - before
        assert_nothing_left(server)
    assert retracted > 0
    with serving("fcfs") as server:
        for k in range(0, 10, 3):
            alone = server.generate(asked[k], tokens, sampling_params={"ignore_eos": False})
            assert clients.answers[f"x{k}"].ids == alone["output_ids"]


def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    async def play(clients: Clients) -> None:
        await clients.ask(prompt_of(1, KV_TOKENS + 10), 5, "long")
        await clients.ask(prompt_of(2, KV_TOKENS - 100), 5000, "hungry", _facts("hungry", "N"))

    with watched(kv_tokens=KV_TOKENS) as (server, _):
        clients = together(server, play)
        assert_nothing_left(server)
    long, hungry = clients.answers["long"], clients.answers["hungry"]
    assert (long.status, long.ids) == (400, [])
    assert "longer than" in long.message or "exceed" in long.message
    assert hungry.status in (200, 400)  # SGLang cuts what it may generate to what there is room for
    assert len(hungry.ids) < 100


async def _hot(clients: Clients, name: str, prefix: list[int]) -> None:
    """Ask again and again."""
    for count in itertools.count():
        rid = f"{name}-{count}"
        await clients.ask([*prefix, *prompt_of(rid, 20)], 30, rid, _facts(rid, "hot"))


def test_endless_hot_arrivals_do_not_starve_a_cold_request_nor_one_that_fits_only_alone() -> None:
    """Beside an agent that fills the memory for ever."""
    rid, prefix = "cold", prompt_of("hot", 900)

    async def play(clients: Clients) -> None:
        hot = [asyncio.create_task(_hot(clients, f"{rid}-hot{k}", prefix)) for k in range(12)]
        await asyncio.sleep(1)
        await clients.ask(prompt_of(rid, 900), 20, rid, _facts(rid, "cold"))
        await clients.ask(prompt_of("huge", 3000), 400, "huge", _facts("huge", "cold"))
        for one in hot:
            one.cancel()
        await asyncio.gather(*hot, return_exceptions=True)

    with watched(kv_tokens=KV_TOKENS) as (server, _):
        clients = together(server, play, 90)
        assert_nothing_left(server)
    assert {clients.answers[name].reason for name in (rid, "huge")} == {"length"}
    assert clients.answers[rid].wait_s < 20
    assert clients.answers["huge"].wait_s < 40


def test_behind_a_huge_head_a_small_request_is_served() -> None:
    """The first runs long; the second fits beside nothing; the third fits beside the first."""

    async def play(clients: Clients) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(clients.ask(prompt_of("u", 100), 500, "first", _facts("u1", "U1")))
            await asyncio.sleep(0.3)
            group.create_task(clients.ask(prompt_of("v", 2900), 500, "huge", _facts("u2", "U2")))
            await asyncio.sleep(0.1)
            group.create_task(clients.ask(prompt_of("w", 50), 5, "small", _facts("u3", "U3")))

    with watched(kv_tokens=KV_TOKENS) as (server, _):
        answers = together(server, play).answers
        assert_nothing_left(server)
    assert {answer.reason for answer in answers.values()} == {"length"}
    assert answers["small"].end_s < max(answers["first"].end_s, answers["huge"].end_s)


def test_a_flush_forgets_no_agent_and_serves_on() -> None:
    prompt = prompt_of("flush", 400)
    with watched(kv_tokens=KV_TOKENS) as (server, _):

        def ask(k: int) -> dict[str, Any]:
            facts = {"custom_params": _facts(f"f{k}", "F", final=False)}
            return server.generate(prompt + prompt_of(k, 10), 5, sampling_params=facts)

        first, again = ask(0), ask(1)
        assert again["meta_info"]["cached_tokens"] >= 400
        server.flush()
        state = probe(server)
        assert (state["prefixes"]["F"], state["on_gpu"]["F"], state["free"]) == (400, 0, state["total"])
        later = ask(0)
        assert later["meta_info"]["cached_tokens"] == 0
        assert later["output_ids"] == first["output_ids"]
        assert_nothing_left(server, jobs=None)


def _campaign(kind: str, seeds: list[int], size: int) -> None:
    expected = references()
    with watched(kv_tokens=KV_TOKENS, **KINDS[kind]) as (server, log):
        for seed in seeds:
            began = time.monotonic()
            campaign = Campaign(seed, size)
            clients = together(server, campaign.play, 600)
            print(kind, seed, f"{time.monotonic() - began:.1f} s", _summary(campaign, clients, server))  # noqa: T201
            print("  preempted most", max(preemptions_of(lines_of(log)).values(), default=0))  # noqa: T201
            problems = campaign.problems(clients, expected)
            assert not problems, problems[:10]
            assert_nothing_left(server, jobs=None)
        time.sleep(TTL_S + 0.2)
        probe(server)
        assert_nothing_left(server)


def _summary(campaign: Campaign, clients: Clients, server: Server) -> dict[str, float]:
    answers = [answer for rid, answer in clients.answers.items() if rid not in campaign.left]
    names = ("decisions", "preemptions", "fallbacks", "retractions", "expired_tasks")
    return {
        "requests": len(campaign.sent),
        "hung up": len(campaign.left),
        **Counter(answer.reason for answer in answers),
        "longest wait": round(max(answer.wait_s for answer in answers), 2),
        **{name: counter(server, f"topas_{name}_total") for name in names},
    }


if __name__ == "__main__":
    for each in sys.argv[1].split(","):
        _campaign(each, [int(seed) for seed in sys.argv[2].split(",")], int(sys.argv[3]))
