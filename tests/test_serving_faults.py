"""What fails in TOPAS fails no request, and what cannot work stops a server's start in one line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support_chaos import (
    KINDS,
    KV_TOKENS,
    PROMPTS,
    Clients,
    assert_nothing_left,
    counter,
    probe,
    references,
    together,
    watched,
)
from support_server import SERVING, serving_paths

from compare.live.server import Server, ServerError, start_server

pytestmark = SERVING

TOKENS = (30, 12, 50)

FAULTS: list[dict[str, int]] = [
    {"event": 2},
    {"carry_out": 2},
    {"carry_out+": 2},
    {"put_back+": 1},
    {"keep": 2, "admit": 7},
    {"keep+": 2, "give_up": 3},
    {"offer": 3, "taken": 2},
    {"arrived": 3, "released": 3},
    {"enter": 2, "leave": 3, "snapshot": 4},
    {"pin": 2, "touch": 2},
]
"""What raises, and every how often; with a +, behind its work."""

EACH = (
    "event", "offer", "taken", "arrived", "released", "reconcile", "carry_out", "carry_out+", "keep", "keep+",
    "put_back", "put_back+", "give_up", "give_up+", "show", "pin", "touch", "release", "release+",
    "preempt", "snapshot", "enter", "enter+", "leave", "leave+", "admit", "admit+",
)  # fmt: skip


async def _burst(clients: Clients, run: object) -> None:
    """Ask for three agents that do not fit together, in two waves, with some aborts."""

    async def one(k: int) -> None:
        agent, prompt = PROMPTS[k % len(PROMPTS)]
        await asyncio.sleep(0.02 * k)
        facts = {"topas": {"task": f"{run}-{k}", "agent": agent, "final": True}}
        await clients.ask(prompt, TOKENS[k % 3], f"{run}-{k}-", facts)

    async with asyncio.TaskGroup() as group:
        for k in range(24):
            group.create_task(one(k))
        await asyncio.sleep(0.3)
        for k in (5, 9, 14, 20):
            await clients.abort(f"{run}-{k}-")


def _check_faults(
    server: Server, every: dict[str, int], expected: list[list[int]], run: object
) -> dict[str, int]:
    """Serve with failures planted, and again without."""
    before = counter(server, "topas_fallbacks_total")
    lines = server.log.read_text().count("failed, serving goes on")
    probe(server, "fail", every=every)
    clients = together(server, lambda clients: _burst(clients, run), 30)
    raised: dict[str, int] = probe(server, "fail", every={})["raised_before"]
    assert len(clients.answers) == 24
    for k in range(24):
        answer = clients.answers[f"{run}-{k}-"]
        right = expected[k % len(PROMPTS)][: TOKENS[k % 3]]
        assert answer.reason == "length" or (answer.reason == "abort" and k in (5, 9, 14, 20)), answer
        assert answer.ids == right[: len(answer.ids)], (k, answer.ids, right)
        assert answer.reason == "abort" or len(answer.ids) == len(right)
    counted = counter(server, "topas_fallbacks_total") - before
    assert counted >= max(raised.values(), default=0)
    new = server.log.read_text().count("failed, serving goes on") - lines
    assert new <= len(every) + 1, f"{new} lines of {counted} failures"

    before, decided = counter(server, "topas_fallbacks_total"), counter(server, "topas_decisions_total")
    again = together(server, lambda clients: _burst(clients, f"{run}+"), 30)
    assert len(again.answers) == 24
    assert counter(server, "topas_fallbacks_total") == before
    assert counter(server, "topas_decisions_total") >= decided + 5
    assert_nothing_left(server)
    return raised


def test_whatever_fails_requests_are_served_and_it_is_counted_and_told_once() -> None:
    expected = references()
    with watched(kv_tokens=KV_TOKENS, **KINDS["all"]) as (server, _):
        for run, every in enumerate(FAULTS):
            raised = _check_faults(server, every, expected, f"f{run}")
            assert raised, f"nothing of {every} was reached"


# --- starts that are refused ------------------------------------------------------------------------------

CONFIG = "format: topas-serving/1\ntask_ttl_s: soon\n"
SITE = """
import topas.online.sglang.compat as compat
compat.SUPPORTED = ("0.0.1",)
"""


def test_what_cannot_work_refuses_the_start_in_one_line(tmp_path: Path) -> None:
    """All start at once, each with one thing wrong; the last one is without TOPAS, and serves."""
    paths = serving_paths()
    (tmp_path / "topas.yaml").write_text(CONFIG)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    other = {"PYTHONPATH": str(tmp_path)}
    starts: dict[str, tuple[str, list[str], dict[str, str]]] = {
        "config": ("topas", [], {"TOPAS_CONFIG": str(tmp_path / "topas.yaml")}),
        "option": ("autellix-las", ["--disable-radix-cache"], {}),
        "version": ("topas", [], other),
        "policy": ("kvflow", [], {}),
        "fcfs": ("fcfs", [], other),
    }
    servers = {
        name: start_server(
            python=paths.python, model=paths.model, policy=policy, log=tmp_path / name, args=args, env=env
        )
        for name, (policy, args, env) in starts.items()
    }
    told: dict[str, str] = {}
    try:
        for name in ("version", "config", "option", "policy"):
            with pytest.raises(ServerError, match="before it was ready"):
                servers[name].wait_ready()
            told[name] = servers[name].log.read_text()
        servers["fcfs"].wait_ready()
        assert len(servers["fcfs"].generate([1, 2, 3], 4)["output_ids"]) == 4
        told["fcfs"] = servers["fcfs"].log.read_text()
    finally:
        for server in servers.values():
            server.stop()
    (line,) = {line for line in told["config"].splitlines() if "topas.yaml: task_ttl_s: " in line}
    assert line.startswith("topas: ")
    assert "--schedule-policy topas does not work with --disable-radix-cache" in told["option"]
    assert "topas was tested with 0.0.1" in told["version"]
    assert "topas: kvflow runs in the simulator only" in told["policy"].splitlines()
    assert "topas was tested with 0.0.1" in told["fcfs"]  # said, and served without


def _campaign(kind: str) -> None:
    expected = references()
    with watched(kv_tokens=KV_TOKENS, **KINDS[kind]) as (server, _):
        for each in EACH:
            for every in (1, 2, 5):
                raised = _check_faults(server, {each: every}, expected, f"{each}{every}")
                print(kind, each, every, raised, flush=True)  # noqa: T201


if __name__ == "__main__":
    for kind in sys.argv[1].split(","):
        _campaign(kind)
