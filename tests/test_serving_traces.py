"""Whole workloads under TOPAS inside a real SGLang: what was decided, and whether it was done."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support_chaos import (
    Clients,
    assert_nothing_left,
    lines_of,
    preemptions_of,
    probe,
    prompt_of,
    together,
    watched,
)
from support_server import SERVING, serving, serving_paths

from compare.live.api import ApiRequest, Reply
from compare.live.client import connect
from compare.live.facts import ToldFacts
from compare.live.player import Player
from compare.live.prompts import Prompts, Vocab
from compare.live.server import Server, server_environment
from topas.cli import main
from topas.client import extra_body
from topas.feasible import violations
from topas.formats import decision_json, event_of
from topas.policies import get_policy
from topas.policies.policy import JointPolicy
from topas.trace import Trace
from traces.workloads import WorkloadOptions, generate

pytestmark = SERVING

SMALL = WorkloadOptions(prefix_tokens=850, input_tokens=60, output_tokens=50)
TRACES = [
    generate("chain-3", rate_per_s=8, tasks=12, seed=1, options=SMALL),
    generate("dag-4", rate_per_s=5, tasks=10, seed=2, options=SMALL),
    generate(
        "metagpt-tl",
        rate_per_s=6,
        tasks=4,
        seed=3,
        options=WorkloadOptions(prefix_tokens=900, input_tokens=250, output_tokens=50),
    ),
]

Outputs = dict[tuple[int, ...], list[int]]


def _play(server: Server, trace: Trace, seed: int) -> Outputs:
    """Return what was generated for each prompt."""
    outputs: Outputs = {}

    async def go() -> None:
        async with connect(
            server.url, api="sglang", stop_token=10, timeout_s=90, clock=time.monotonic
        ) as client:

            async def send(request: ApiRequest) -> Reply:
                reply = await client.send(request)
                outputs[tuple(request.prompt)] = list(reply.answer.output_ids or ())
                return reply

            prompts = Prompts(trace.agents, seed, Vocab())
            player = Player(trace, prompts, ToldFacts("full", trace.agents, f"s{seed}"))
            result = await player.play(send)
            assert not result.failures

    asyncio.run(go())
    return outputs


def _residency_problems(line: dict[str, Any], *, leaves_idle: bool) -> list[str]:
    """Return where the radix tree is not what was decided."""
    kept, seen = set(line["decision"]["resident"]), line["engine"]
    problems = []
    for agent, tokens in seen["prefix_tokens"].items():
        there, pinned = seen["on_gpu_tokens"][agent], seen["pinned_tokens"].get(agent, 0)
        if agent not in kept:
            gone = there < tokens or not tokens
            right = pinned == 0 and gone != (leaves_idle and agent in line["event"]["resident"])
        elif agent in seen["in_prefill"]:  # its first request brings the prefix
            right = pinned == there
        else:
            right = pinned == there == tokens
        if not right:
            problems.append(f"{agent}: {there} of {tokens} there, {pinned} locked, kept: {agent in kept}")
    return problems


@pytest.mark.parametrize("name", ["topas", "topas-paper"])
def test_workloads_are_served_as_decided_and_with_the_tokens_of_fcfs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with watched(kv_tokens=3500) as (server, log):
        probe(server, "policy", policy=name)
        found = [_play(server, trace, seed) for seed, trace in enumerate(TRACES)]
        lines = lines_of(log)
        probe(server, "policy", policy="topas")
        assert_nothing_left(server, jobs=None)
    with serving("fcfs") as server:
        for seed, trace in enumerate(TRACES):
            assert _play(server, trace, seed) == found[seed]

    policy = get_policy(name)
    assert isinstance(policy, JointPolicy)
    for line in lines:
        event = event_of(line["event"])
        decision = policy.decide(event)
        assert decision_json(decision) == line["decision"]
        assert not violations(event, decision)
        assert not _residency_problems(line, leaves_idle=policy.leaves_idle)
        assert sum(line["engine"]["pinned_tokens"].values()) <= event.budget_tokens
    assert sum(preemptions_of(lines).values()) > 0 or name != "topas-paper"
    moved = [
        agent
        for line in lines
        for agent in line["event"]["resident"]
        if agent not in line["decision"]["resident"]
    ]
    assert len(set(moved)) >= 4
    for k in range(0, len(lines), max(len(lines) // 3, 1)):
        path = tmp_path / "event.json"
        path.write_text(json.dumps(lines[k]["event"]))
        assert main(["decide", str(path), "--policy", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == lines[k]["decision"]


def test_topas_base_serves_and_keeps_no_prefix_for_a_stage_to_come() -> None:
    """Its decisions are those of ``topas-paper`` without reuse and aging."""
    with watched(kv_tokens=3500) as (server, log):
        probe(server, "policy", policy="topas-base")
        found = _play(server, TRACES[0], 10)
        lines = lines_of(log)
        probe(server, "policy", policy="topas")
        assert_nothing_left(server, jobs=None)
    policy = get_policy("topas-base")
    assert isinstance(policy, JointPolicy)
    assert len(found) == 36
    assert len(lines) >= 12
    for line in lines:
        assert decision_json(policy.decide(event_of(line["event"]))) == line["decision"]
        assert not _residency_problems(line, leaves_idle=policy.leaves_idle)


CHAIN = {"first": (), "a": ("first",), "b": ("a",), "c": ("b",)}
ORDERS = {
    "parrot-fcfs": ["t1/b", "t2/a", "t3/c"],  # t1 came first
    "autellix-las": ["t3/c", "t2/a", "t1/b"],  # t1 was served most, t3 not at all
    "spf": ["t3/c", "t1/b", "t2/a"],  # the chain's end first
}


@pytest.mark.parametrize("policy", ORDERS)
def test_a_queue_policy_admits_in_its_order(policy: str) -> None:
    """Requests wait behind one that takes all memory; of those that wait only one fits at a time."""
    dag = {stage: {"agent": stage, "after": list(before)} for stage, before in CHAIN.items()}

    def facts(task: str, stage: str) -> Any:  # noqa: ANN401  JSON
        name = f"{policy}-{task}"
        return extra_body(task=name, workflow="chain", stage=stage, dag=dag)["custom_params"]

    async def play(clients: Clients) -> None:
        await clients.ask(prompt_of((policy, 1), 50), 60, f"{policy}/t1/first", facts("t1", "first"))
        await clients.ask(prompt_of((policy, 2), 50), 2, f"{policy}/t2/first", facts("t2", "first"))
        async with asyncio.TaskGroup() as group:
            whole = clients.ask(prompt_of((policy, 0), 100), 3390, f"{policy}/whole")
            group.create_task(whole)
            await asyncio.sleep(0.3)
            for place in ("t2/a", "t1/b", "t3/c"):
                task, stage = place.split("/")
                one = clients.ask(
                    prompt_of((policy, place), 1800), 3, f"{policy}/{place}", facts(task, stage)
                )
                group.create_task(one)
                await asyncio.sleep(0.1)
            await clients.abort(f"{policy}/whole")

    with watched(kv_tokens=3500) as (server, _):
        probe(server, "policy", policy=policy)
        clients = together(server, play)
        order = probe(server, "policy", policy="topas")["order"]
        assert_nothing_left(server, jobs=None)
    assert clients.answers[f"{policy}/whole"].reason == "abort"
    waited = [f"{policy}/{place}" for place in ORDERS[policy]]
    assert [rid for rid in order if rid in waited] == waited


ENGINE = """
import sglang, sys
if __name__ == "__main__":
    engine = sglang.Engine(
        model_path=sys.argv[1], schedule_policy="topas", load_format="dummy", device="cpu", dtype="float32",
        attention_backend="torch_native", max_total_tokens=2000, max_running_requests=4, random_seed=1,
        mem_fraction_static=0.05, page_size=1, disable_overlap_schedule=True, log_level="warning",
    )
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    facts = {"custom_params": {"topas": {"task": "t", "agent": "A", "final": True}}}
    answers = engine.generate(input_ids=[list(range(10, 90))] * 3, sampling_params=sampling | facts)
    print("tokens", [answer["output_ids"] for answer in answers])
    engine.shutdown()
"""


def test_an_engine_inside_a_program_schedules_with_topas(tmp_path: Path) -> None:
    paths = serving_paths()
    script = tmp_path / "program.py"
    script.write_text(ENGINE)
    run = subprocess.run(  # noqa: S603  our own command
        [str(paths.python), str(script), str(paths.model)],
        env=server_environment(os.environ, {}, tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    with serving("fcfs") as server:
        expected = server.generate(list(range(10, 90)), 8)["output_ids"]
    assert f"tokens {[expected] * 3}" in run.stdout
    assert "schedules: policy topas" in run.stderr + run.stdout
