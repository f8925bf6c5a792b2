"""A server on the network: finding out what it is, and posting requests to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from compare.live.api import Api, ApiRequest, Ending, Reply, RequestError, message_of
from compare.live.openai_api import OpenAiApi
from compare.live.sglang_api import SglangApi
from topas.errors import InputError

ApiName = Literal["auto", "openai", "sglang"]
KEEP_ALIVE_S = 2.0
"""Idle connections are closed earlier than servers do (5 s): a request that meets the close would fail."""
PROBE_S = 30.0
"""How long a server may take to say what it is."""
HTTP_OK = 200
SHOWN = 300
"""Longest part of a server's refusal that is shown."""

TELLS_LENGTHS = (
    "the server knows true output lengths: start SGLang with --enable-custom-logit-processor to hide them"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What speaks at a URL: its API, its scheduling policy if it tells, and whether lengths stay hidden."""

    url: str
    api: Api
    policy: str | None = None
    hides_lengths: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """A session with a server; ``clock`` gives seconds."""

    session: aiohttp.ClientSession
    server: Endpoint
    timeout_s: float
    clock: Callable[[], float] = field(repr=False)

    async def send(self, request: ApiRequest) -> Reply:
        """Post a request and read its stream to the end; nothing is parsed before.

        Raises
        ------
        RequestError
            if the server refuses or aborts it, breaks off, or takes longer than ``timeout_s``.
        """
        api, first_s = self.server.api, None
        body = json.dumps(api.body(request), separators=(",", ":")).encode()
        pieces: list[bytes] = []
        try:
            async with self.session.post(self.server.url + api.path, data=body) as response:
                if response.status != HTTP_OK:
                    raise RequestError(f"refused with {response.status}: {await _shown(response)}")
                async for piece in response.content.iter_any():
                    if first_s is None and b"data:" in piece:
                        first_s = self.clock()
                    pieces.append(piece)
        except TimeoutError:
            raise RequestError(f"timed out after {self.timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise RequestError(f"connection failed: {error or type(error).__name__}") from None
        try:
            answer = api.answer(events_of(b"".join(pieces)))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise RequestError(f"not understood: {type(error).__name__}: {error}") from None
        return Reply(answer, self.clock() if first_s is None else first_s)


def events_of(stream: bytes) -> list[bytes]:
    """Return the data of a stream of server-sent events, without the closing ``[DONE]``."""
    lines = (line for line in stream.splitlines() if line.startswith(b"data:"))
    return [data for line in lines if (data := line[5:].strip()) != b"[DONE]"]


@asynccontextmanager
async def connect(
    url: str, *, api: ApiName, stop_token: int, timeout_s: float, clock: Callable[[], float]
) -> AsyncIterator[Client]:
    """Open a session with the server at ``url``: any number of connections, all closed at the end.

    Parameters
    ----------
    api : which API to speak; ``auto`` takes SGLang's own where there is one.
    stop_token : the id that ends a generation whose length is hidden.
    timeout_s : limit of each request.

    Raises
    ------
    InputError
        if nothing answers there, or not with that API.
    """
    address = url.rstrip("/").removesuffix("/v1")
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise InputError(f"expected http://HOST:PORT, found {url!r}", field="url")
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"Content-Type": "application/json"},
    ) as session:
        server = await _probe(session, address, api, stop_token)
        yield Client(session, server, timeout_s, clock)


async def _probe(session: aiohttp.ClientSession, url: str, api: ApiName, stop_token: int) -> Endpoint:
    """Find out what serves there."""
    info = await _get(session, url, "/server_info") or await _get(session, url, "/get_server_info") or {}
    policy = info.get("schedule_policy")
    if policy is None and api == "sglang":
        raise InputError("expected an SGLang server, which answers at /server_info", source=url)
    # speculative decoding asks the processor for several tokens at once, which it does not count
    hidden = bool(info.get("enable_custom_logit_processor")) and not info.get("speculative_algorithm")
    ending = Ending(hidden=hidden, stop_token=stop_token)
    label = None if policy is None else str(policy)
    if policy is not None and api != "openai":
        return Endpoint(url, SglangApi(ending), label, hidden)
    models = (await _get(session, url, "/v1/models") or {}).get("data")
    if not models:
        raise InputError("expected a server that lists its model at /v1/models", source=url)
    return Endpoint(url, OpenAiApi(str(models[0]["id"]), ending), label, hidden)


async def _get(session: aiohttp.ClientSession, url: str, path: str) -> dict[str, Any] | None:
    """Return the JSON object at a path, or None if there is none."""
    try:
        async with session.get(url + path, timeout=aiohttp.ClientTimeout(total=PROBE_S)) as response:
            value = json.loads(await response.read()) if response.status == HTTP_OK else None
    except (TimeoutError, aiohttp.ClientError) as error:
        raise InputError(f"cannot reach the server: {error or type(error).__name__}", source=url) from None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def _shown(response: aiohttp.ClientResponse) -> str:
    text = await response.text(errors="replace")
    with suppress(ValueError):
        text = message_of(json.loads(text))
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
