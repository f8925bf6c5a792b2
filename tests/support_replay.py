"""A clock that jumps, for exact times; and a fake LLM server in this process, for the network."""

from __future__ import annotations

import asyncio
import json
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from compare.live.api import ApiAnswer, ApiRequest, Reply
from compare.live.facts import Level, ToldFacts
from compare.live.outcome import ReplayResult
from compare.live.player import Player
from compare.live.prompts import Prompts, Vocab
from topas.trace import Trace

Result = TypeVar("Result")


class _Jumping(selectors.SelectSelector):
    """Lets time pass at once where a loop would wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is left that could happen"
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on whose clock sleeping is exact and takes no time."""

    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        """Return its clock, s."""
        return self.jumping.now_s


def run_jumping(main: Callable[[Callable[[], float]], Coroutine[Any, Any, Result]]) -> Result:
    """Run ``main``, given the clock, on a jumping loop."""
    loop = JumpingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(loop.time))


def output_of(prompt: Sequence[int], count: int) -> list[int]:
    """Return what the fakes generate: a function of the prompt, as greedy decoding is."""
    first = sum((k + 1) * token for k, token in enumerate(prompt))
    return [2000 + (first + 7 * k) % 900 for k in range(count)]


@dataclass
class Script:
    """Plays a trace through a fake engine that takes ``seconds(request)``; keeps what was sent, and when."""

    trace: Trace
    seconds: Callable[[ApiRequest], float] = lambda _: 1.0
    ids: bool = True
    sent: list[tuple[float, ApiRequest]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def play(
        self, *, seed: int = 0, level: Level = "full", run: str = "r", speed: float = 1.0
    ) -> ReplayResult:
        """Play the trace anew."""
        self.sent.clear()

        async def main(clock: Callable[[], float]) -> ReplayResult:
            async def send(request: ApiRequest) -> Reply:
                self.sent.append((clock(), request))
                first_s = clock() + self.seconds(request) / 4
                await asyncio.sleep(self.seconds(request))
                count = request.output_tokens
                ids = output_of(request.prompt, count) if self.ids else None
                return Reply(ApiAnswer(len(request.prompt), count, 1, ids), first_s)

            prompts = Prompts(self.trace.agents, seed, Vocab())
            facts = ToldFacts(level, self.trace.agents, run)
            player = Player(self.trace, prompts, facts, speed=speed, clock=clock, tell=self.told.append)
            return await player.play(send)

        return run_jumping(main)

    def by_place(self) -> dict[tuple[str, str], list[ApiRequest]]:
        """Return the requests of each task and stage in the order they were sent."""
        found: dict[tuple[str, str], list[ApiRequest]] = {}
        for _, request in self.sent:
            facts = told(request.params)
            found.setdefault((facts["task"], facts["stage"]), []).append(request)
        return found


def told(params: Any) -> dict[str, Any]:  # noqa: ANN401  a request's custom_params
    """Return the facts in ``custom_params``, which travel as JSON text if they are nested."""
    facts = params["topas"]
    return json.loads(facts) if isinstance(facts, str) else facts


Fault = Callable[[dict[str, Any]], str | None]


@dataclass
class FakeServer:
    """SGLang or a plain OpenAI-compatible server: caches prefixes by token, fails where it is told to.

    ``fault(body)`` names what goes wrong: refuse, error, abort, cut, drop, hang, short, garbage.
    """

    sglang: bool = True
    processor: bool = True
    models: bool = True
    ids: bool = True
    cache_report: bool = True
    seconds: float = 0.0
    pause_s: float = 0.0
    fault: Fault = lambda _: None
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    known: list[list[int]] = field(default_factory=list)
    broken_off: int = 0
    url: str = ""
    waiting: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def serve(self) -> Iterator[FakeServer]:
        """Serve from a thread on a free port."""
        started, loop = threading.Event(), asyncio.new_event_loop()
        stop = asyncio.Event()

        async def main() -> None:
            app = web.Application(client_max_size=2**30)
            app.router.add_get("/server_info", self._info)
            app.router.add_get("/v1/models", self._models)
            app.router.add_post("/generate", self._post)
            app.router.add_post("/v1/completions", self._post)
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            started.set()
            await stop.wait()
            await runner.cleanup()

        def target() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(main())

        thread = threading.Thread(target=target)
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(10)

    async def _info(self, _: web.Request) -> web.Response:
        if not self.sglang:
            raise web.HTTPNotFound
        info = {"schedule_policy": "lpm", "enable_custom_logit_processor": self.processor}
        return web.json_response(info)

    async def _models(self, _: web.Request) -> web.Response:
        if not self.models:
            return web.Response(text="<html>no such thing</html>")
        return web.json_response({"data": [{"id": "tiny"}]})

    async def _post(self, http: web.Request) -> web.StreamResponse:
        raw = await http.read()
        self.bodies.append(raw)
        self.paths.append(http.path)
        body = json.loads(raw)
        fault = self.fault(body)
        if fault == "refuse":
            return web.json_response({"error": {"message": "no room\nfor this"}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        try:
            self.waiting.set()
            await asyncio.sleep(3600 if fault == "hang" else self.seconds)
        except asyncio.CancelledError:
            self.broken_off += 1
            raise
        for event in self._events(http.path, body, fault):
            await response.write(b"data: " + event + b"\n\n")
            await asyncio.sleep(self.pause_s)
        if fault == "drop" and http.transport:
            http.transport.close()
        return response

    def _events(self, path: str, body: dict[str, Any], fault: str | None) -> Iterator[bytes]:
        native = path == "/generate"
        sampling = body["sampling_params"] if native else body
        prompt = body["input_ids" if native else "prompt"]
        count = sampling["max_new_tokens" if native else "max_tokens"]
        if "custom_logit_processor" in body:
            count = sampling["custom_params"]["topas_replay"]["output_tokens"]
        ids = output_of(prompt, count - (fault == "short"))
        cached = self._cached(prompt)
        self.known.append([*prompt, *ids])
        if fault == "error":
            yield json.dumps({"error": {"message": "out of memory", "code": 500}}).encode()
        elif fault == "garbage":
            end = {"type": "stop"}
            yield json.dumps(
                {
                    "meta_info": {"finish_reason": end},
                    "choices": [{"finish_reason": "stop"}],
                    "usage": {"total": 1},
                }
            ).encode()
        elif native:
            yield from self._native(ids, prompt, cached, fault)
        else:
            yield from self._openai(ids, prompt, cached, fault, with_ids="return_token_ids" in body)
        yield b"[DONE]"

    def _native(self, ids: list[int], prompt: list[int], cached: int, fault: str | None) -> Iterator[bytes]:
        def event(part: list[int], reason: dict[str, str] | None) -> bytes:
            meta = {"prompt_tokens": len(prompt), "completion_tokens": len(part), "cached_tokens": cached}
            return json.dumps({"output_ids": part, "meta_info": meta | {"finish_reason": reason}}).encode()

        yield event(ids[:1], None)
        if fault == "abort":
            yield event(ids[:1], {"type": "abort", "message": "queue is full"})
        elif fault not in ("cut", "drop"):
            yield event(ids, {"type": "length"})

    def _openai(
        self, ids: list[int], prompt: list[int], cached: int, fault: str | None, *, with_ids: bool
    ) -> Iterator[bytes]:
        for k, token in enumerate(ids):
            last = k == len(ids) - 1
            if last and fault in ("cut", "drop"):
                return
            reason = ("abort" if fault == "abort" else "length") if last else None
            more = {"token_ids": [token]} if with_ids and self.ids else {}
            yield json.dumps({"choices": [{"text": "x", "finish_reason": reason, **more}]}).encode()
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        if self.cache_report:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        yield json.dumps({"choices": [], "usage": usage}).encode()

    def _cached(self, prompt: list[int]) -> int:
        """Return how many leading tokens of a prompt stood in an earlier context; the last one never."""
        most = 0
        for other in self.known:
            same = next(
                (k for k, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b), len(other)
            )
            most = max(most, min(same, len(prompt) - 1))
        return most
