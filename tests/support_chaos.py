"""Disorderly clients of a real server, and what must be true of it when they are gone."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from support_server import HICACHE_ARGS, HICACHE_ENV, serving

from compare.live.server import Server

PROBE = str(Path(__file__).parent / "serving_probe")
STRICT = {
    "PYTHONPATH": PROBE,
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}
"""SGLang checks its memory at every step, and the probe can be asked."""

CHUNKED = ("--chunked-prefill-size", "64")
WRITE_THROUGH = tuple("write_through" if arg == "write_back" else arg for arg in HICACHE_ARGS)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"args": CHUNKED},
    "overlap": {"overlap": True},
    "write-back": {"args": HICACHE_ARGS, "env": HICACHE_ENV},
    "write-through": {"args": WRITE_THROUGH, "env": HICACHE_ENV},
    "all": {"args": (*CHUNKED, *WRITE_THROUGH), "env": HICACHE_ENV, "overlap": True},
}
"""What servers differ in: how SGLang prefills, schedules and caches."""

KV_TOKENS = 3500


def prompt_of(seed: object, tokens: int) -> list[int]:
    """Return token ids that belong to a seed."""
    return random.Random(str(seed)).choices(range(10, 1000), k=tokens)  # noqa: S311  no secret


@dataclass
class Answer:
    """What became of a request; times in seconds on the monotonic clock."""

    rid: str
    status: int
    ids: list[int]
    reason: str
    message: str
    start_s: float
    end_s: float
    cached_tokens: int = 0

    @property
    def wait_s(self) -> float:
        """Return the seconds from sending to the end."""
        return self.end_s - self.start_s


@dataclass
class Clients:
    """Sends requests of /generate; ``answers`` by rid, of all that were not given up."""

    session: aiohttp.ClientSession
    url: str
    answers: dict[str, Answer] = field(default_factory=dict)

    async def ask(
        self,
        prompt: Sequence[int],
        tokens: int,
        rid: str,
        params: object = None,
        *,
        ignore_eos: bool = True,
        **body: object,
    ) -> Answer:
        """Send a request and keep the answer."""
        sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": ignore_eos}
        if params is not None:
            sampling["custom_params"] = params
        data = {"input_ids": list(prompt), "rid": rid, "sampling_params": sampling, **body}
        start_s = time.monotonic()
        async with self.session.post(f"{self.url}/generate", json=data) as response:
            text = await response.read()
            value = {} if "stream" in body else json.loads(text)
            answer = answer_of(rid, response.status, value, start_s)
        self.answers[rid] = answer
        return answer

    async def leave(
        self, prompt: Sequence[int], tokens: int, rid: str, params: object, after_s: float
    ) -> None:
        """Begin to read a stream, and hang up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ask(prompt, tokens, rid, params, stream=True), after_s)

    async def abort(self, rid: str) -> None:
        """Have the server abort all requests whose ids begin so."""
        async with self.session.post(f"{self.url}/abort_request", json={"rid": rid}) as response:
            await response.read()


def answer_of(rid: str, status: int, value: Any, start_s: float) -> Answer:  # noqa: ANN401  JSON
    """Read an answer of /generate."""
    meta = value.get("meta_info", {})
    reason = meta.get("finish_reason") or {}
    message = reason.get("message") or str(value.get("error", ""))
    return Answer(
        rid,
        status,
        value.get("output_ids") or [],
        reason.get("type", "error"),
        message,
        start_s,
        time.monotonic(),
        meta.get("cached_tokens", 0),
    )


@asynccontextmanager
async def clients_of(server: Server, limit_s: float) -> Any:  # noqa: ANN401  an iterator of Clients
    """Give any number of connections; a request that takes longer than ``limit_s`` fails."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=limit_s),
    ) as session:
        yield Clients(session, server.url)


def together(server: Server, play: Callable[[Clients], Awaitable[None]], limit_s: float = 90.0) -> Clients:
    """Run ``play``; no request, and not the whole of it, may take longer than ``limit_s``."""

    async def main() -> Clients:
        async with clients_of(server, limit_s) as clients, asyncio.timeout(limit_s):
            await play(clients)
        return clients

    return asyncio.run(main())


# --- looking inside ---------------------------------------------------------------------------------------


def probe(server: Server, op: str = "state", **more: object) -> dict[str, Any]:
    """Have the probe obey, and return what it found."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        command = json.dumps({"op": op, "out": str(out), **more})
        server.generate([11, 12, 13], 1, sampling_params={"custom_params": {"probe": command}})
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def counter(server: Server, name: str, **labels: str) -> float:
    """Return a counter of /metrics, summed over the labels that are not given."""
    return sum(
        sample.value
        for sample in server.metrics().get(name, ())
        if labels.items() <= dict(sample.labels).items()
    )


def assert_nothing_left(server: Server, *, jobs: int | None = 0) -> dict[str, Any]:
    """Check that an idle server has all its memory, and TOPAS no request, no lock, and ``jobs`` tasks."""
    end = time.monotonic() + 20
    state = probe(server)
    while (state["running"] or state["waiting"]) and time.monotonic() < end:
        time.sleep(0.05)
        state = probe(server)
    assert (state["running"], state["waiting"]) == (0, 0), state
    assert state["sanity"] == "ok", state
    assert state["free"] + state["evictable"] == state["total"], state
    assert state["protected"] == 0, state
    assert state["rows"] == state["all_rows"], state
    if "entries" in state:
        assert state["entries"] == 0, state
        assert state["pins"] == {}, state
        assert not state["falls_back"], state
        if jobs is not None:
            assert (state["jobs"], state["tracked"]) == (jobs, jobs), state
    assert probe(server, "evict")["free"] == state["total"]
    return state


# --- servers and their decisions ----------------------------------------------------------------------------

TTL_S = 5.0
"""After so long without a request a task is forgotten."""

_FOLDER = tempfile.TemporaryDirectory(prefix="topas-chaos-")


@contextmanager
def watched(
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    policy: str = "topas",
    **kind: Any,  # noqa: ANN401
) -> Iterator[tuple[Server, Path]]:
    """Give a server with all checks, the probe, and a log of the decisions that are made meanwhile."""
    name = "-".join([policy, *args, *(f"{key}{value}" for key, value in sorted(kind.items()))])
    folder = Path(_FOLDER.name, name.replace("/", "_"))
    folder.mkdir(exist_ok=True)
    config, log = folder / "topas.yaml", folder / "log.jsonl"
    config.write_text(
        f"format: topas-serving/1\ncheck: true\ntask_ttl_s: {TTL_S}\n"
        f"decision_log: {{path: {json.dumps(str(log))}, max_mb: 500}}\n"
    )
    with serving(policy, args, {**STRICT, "TOPAS_CONFIG": str(config), **(env or {})}, **kind) as server:
        log.write_text("")
        yield server, log


def lines_of(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a decision log."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def preemptions_of(lines: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return how often each request was preempted that was so at all."""
    found: dict[str, int] = {}
    for line in lines:
        for name in line["decision"]["preempt"]:
            found[name] = found.get(name, 0) + 1
    return found


# --- a campaign of disorder ---------------------------------------------------------------------------------

LONGEST = 60
"""Most tokens that a request of a campaign generates."""

PREFIXES = {agent: prompt_of(agent, tokens) for agent, tokens in {"A": 900, "B": 700, "C": 500}.items()}
PROMPTS = [
    (agent, prefix + prompt_of((agent, k), 10 + 30 * k))
    for agent, prefix in PREFIXES.items()
    for k in range(4)
]
DAG = {
    "plan": {"agent": "A"},
    "left": {"agent": "B", "after": ["plan"]},
    "right": {"agent": "C", "after": ["plan"]},
}
"""The workflow of a campaign's honest tasks."""

HOSTILE: tuple[object, ...] = (
    {"topas": "{"},
    {"topas": "[" * 5000 + "]" * 5000},
    {"topas": '{"task": NaN}'},
    {"topas": {"task": 3}},
    {"topas": {"task": "x" * 5000}},
    {"topas": {"task": "t", "agent": "\u0000"}},
    {"topas": {"task": "t", "prefix_tokens": -1}},
    {"topas": {"task": "t", "prefix_tokens": 999_999, "agent": "A"}},
    {"topas": {"task": "t", "final": "yes"}},
    {"topas": {"unknown": 1}},
    {"topas": [1, 2]},
    {"topas": 1.5},
    {"topas": json.dumps({"task": "c", "stage": "a", "dag": {"a": {"agent": "A", "after": ["a"]}}})},
    {"topas": json.dumps({"task": "c", "stage": "a", "dag": {"a": {"agent": "A", "after": ["b"]}}})},
    {"topas": json.dumps({"task": "h", "dag": {f"s{k}": {"agent": "A"} for k in range(100)}})},
    {"topas": json.dumps({"task": "w" * 200, "agent": "a" * 200, "stage": "s" * 200, "workflow": "w" * 200})},
    {"topas": {"task": "w" * 200, "agent": "a" * 200, "stage": "s" * 199, "prefix_tokens": 0}},
    {"nvext": '{"agent_context": 7}'},
    {"gen_ai.conversation.id": 12, "gen_ai.agent.name": None},
    {f"key{k}": k for k in range(200)},
    {},
)
"""``custom_params`` that say nothing, or too much, or wrong things."""


def references() -> list[list[int]]:
    """Return what each prompt of a campaign generates, undisturbed and without TOPAS."""
    with serving("fcfs") as server:
        return [server.generate(prompt, LONGEST)["output_ids"] for _, prompt in PROMPTS]


@dataclass
class Campaign:
    """Random clients; ``sent`` are the requests by rid: prompt and tokens; ``left`` those hung up on."""

    seed: int
    size: int
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)

    async def play(self, clients: Clients) -> None:
        """Run ``size`` tasks with up to three stages, some 30 at a time."""
        rng = random.Random(self.seed)  # noqa: S311  no secret
        gate = asyncio.Semaphore(30)

        async def task(k: int, mine: random.Random) -> None:
            async with gate:
                await self._task(clients, k, mine)

        async with asyncio.TaskGroup() as group:
            for k in range(self.size):
                group.create_task(task(k, random.Random(rng.random())))  # noqa: S311  no secret

    async def _task(self, clients: Clients, k: int, rng: random.Random) -> None:
        stages = ["plan", "left", "right"]
        if rng.random() < 0.15:
            stages.reverse()
        if rng.random() < 0.2:
            stages = stages[: rng.randrange(1, 3)]  # it stops half-way
        if rng.random() < 0.1:
            stages += stages  # each stage is final twice
        name = f"task{k if rng.random() < 0.85 else rng.randrange(k + 1)}"
        manner = rng.choice(("full", "full", "full", "names", "none", "hostile", "other"))
        await asyncio.sleep(rng.expovariate(3))
        while stages:
            at_once, stages = (stages[:2], stages[2:]) if rng.random() < 0.3 else (stages[:1], stages[1:])
            async with asyncio.TaskGroup() as group:
                for stage in at_once:
                    rid = f"c{self.seed}-{len(self.sent)}-"
                    agent = DAG[stage]["agent"]
                    mine = [j for j, (owner, _) in enumerate(PROMPTS) if owner == agent or manner == "other"]
                    request = rng.choice(mine), rng.choice((1, 2, 10, 30, LONGEST))
                    self.sent[rid] = request
                    params = self._params(rng, manner, name, stage)
                    group.create_task(self._one(clients, rid, request, params, random.Random(rng.random())))  # noqa: S311  no secret

    @staticmethod
    def _params(rng: random.Random, manner: str, name: str, stage: str) -> object:
        if manner == "none":
            return None
        if manner == "hostile":
            return rng.choice(HOSTILE)
        facts: dict[str, object] = {"task": name, "stage": stage, "agent": DAG[stage]["agent"]}
        if rng.random() < 0.8:
            facts["final"] = rng.random() < 0.9
        if manner != "names":
            facts |= {"workflow": "chaos", "dag": DAG}
            if rng.random() < 0.5:
                facts["prefix_tokens"] = len(PREFIXES[str(DAG[stage]["agent"])])
        return {"topas": json.dumps(facts)}

    async def _one(
        self, clients: Clients, rid: str, request: tuple[int, int], params: object, rng: random.Random
    ) -> None:
        prompt, tokens = PROMPTS[request[0]][1], request[1]
        fate = rng.random()
        if fate < 0.1:
            self.left.add(rid)
            await clients.leave(prompt, tokens, rid, params, rng.expovariate(2))
            return
        if fate < 0.3:
            self.aborted.add(rid)
            async with asyncio.TaskGroup() as group:
                group.create_task(clients.ask(prompt, tokens, rid, params))
                await asyncio.sleep(rng.expovariate(2))
                await clients.abort(rid)
            return
        await clients.ask(prompt, tokens, rid, params)

    def problems(self, clients: Clients, expected: Sequence[Sequence[int]]) -> list[str]:
        """Return what is wrong with the answers."""
        found = []
        for rid, (prompt, tokens) in self.sent.items():
            if rid in self.left:
                continue
            answer = clients.answers.get(rid)
            if answer is None:
                found.append(f"{rid}: no answer")
            elif answer.reason == "length" and answer.ids == expected[prompt][:tokens]:
                continue
            elif answer.reason != "abort" or rid not in self.aborted:
                found.append(f"{rid}: {answer.status} {answer.reason} {answer.message} {answer.ids[:5]}")
            elif answer.ids != expected[prompt][: len(answer.ids)]:
                found.append(f"{rid}: aborted, with wrong tokens")
        return found
