"""One timed request to a server: when its tokens came, and what the server says of its prefill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from compare.live.api import ApiRequest, RequestError, message_of
from compare.live.client import HTTP_OK, Client
from topas.errors import InputError


@dataclass(frozen=True, slots=True)
class Timed:
    """A finished request; all times in seconds on the client's clock but for ``prefill``.

    ``marks`` are (tokens so far, when they were there), the first one at the first token. ``prefill`` is
    start and end of the prefill batch on the server's clock, None where the server does not tell;
    requests of one batch have the same start. ``host_tokens`` of the prompt were loaded from host memory.
    """

    prompt_tokens: int
    cached_tokens: int | None
    host_tokens: int
    start_s: float
    end_s: float
    marks: tuple[tuple[int, float], ...]
    prefill: tuple[float, float] | None

    @property
    def elapsed_s(self) -> float:
        """Return how long the client waited."""
        return self.end_s - self.start_s

    @property
    def ttft_s(self) -> float:
        """Return how long the client waited for the first token."""
        return self.marks[0][1] - self.start_s


class Probe(Protocol):
    """What measures: posts a prompt and generates exactly ``new_tokens``."""

    async def ask(self, prompt: Sequence[int], new_tokens: int, every: int) -> Timed:
        """Return the timed request; a mark comes at the first token and about ``every`` further ones.

        Raises
        ------
        RequestError
            if it failed.
        """


class ServerProbe:
    """Asks a live server through a client of the replay."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.native = client.server.api.path == "/generate"

    async def ask(self, prompt: Sequence[int], new_tokens: int, every: int) -> Timed:
        """Return the timed request."""
        client = self.client
        body = client.server.api.body(ApiRequest(list(prompt), new_tokens, new_tokens))
        if self.native:
            body["sampling_params"]["stream_interval"] = every
        data = json.dumps(body, separators=(",", ":")).encode()
        start_s = client.clock()
        try:
            pieces = await self._stream(data)
        except TimeoutError:
            raise RequestError(f"timed out after {client.timeout_s:g} s") from None
        except aiohttp.ClientError as error:
            raise RequestError(f"connection failed: {error or type(error).__name__}") from None
        try:
            return _timed([(at_s, json.loads(text)) for at_s, text in _events(pieces)], start_s)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RequestError(f"not understood: {type(error).__name__}: {error}") from None

    async def _stream(self, data: bytes) -> list[tuple[float, bytes]]:
        client = self.client
        async with client.session.post(client.server.url + client.server.api.path, data=data) as response:
            if response.status != HTTP_OK:
                raise RequestError(f"refused with {response.status}: {(await response.text())[:300]}")
            return [(client.clock(), piece) async for piece in response.content.iter_any()]

    async def flush(self) -> None:
        """Empty the prefix cache where the server can."""
        async with self.client.session.post(self.client.server.url + "/flush_cache"):
            pass

    async def text(self, path: str) -> str | None:
        """Return what stands at a path, None if nothing does.

        Raises
        ------
        InputError
            if the server cannot be reached.
        """
        url = self.client.server.url
        try:
            async with self.client.session.get(url + path) as response:
                return await response.text() if response.status == HTTP_OK else None
        except aiohttp.ClientError as error:
            raise InputError(
                f"cannot reach the server: {error or type(error).__name__}", source=url
            ) from None


def _events(pieces: Sequence[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Return the server-sent events, each with the time at which it was complete."""
    found: list[tuple[float, bytes]] = []
    rest = b""
    for at_s, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        texts = (line[5:].strip() for line in lines if line.startswith(b"data:"))
        found.extend((at_s, text) for text in texts if text != b"[DONE]")
    return found


def _timed(events: Sequence[tuple[float, dict[str, Any]]], start_s: float) -> Timed:
    end_s, last = events[-1]
    for _, event in events:
        if "error" in event:
            raise RequestError(message_of(event))
    if "meta_info" in last:
        meta = last["meta_info"]
        if (meta.get("finish_reason") or {}).get("type") != "length":
            raise RequestError(f"ended early: {meta.get('finish_reason')}")
        marks = [(int(event["meta_info"]["completion_tokens"]), at_s) for at_s, event in events]
        entry, finished = meta.get("forward_entry_time"), meta.get("prefill_finished_time")
        prefill = (float(entry), float(finished)) if entry and finished else None
        host = (meta.get("cached_tokens_details") or {}).get("host") or 0
        return Timed(
            meta["prompt_tokens"], meta.get("cached_tokens"), host, start_s, end_s, _growing(marks), prefill
        )
    usage = next(event["usage"] for _, event in reversed(events) if event.get("usage"))
    total = usage["completion_tokens"]
    marks = [(1 + k, at_s) for k, (at_s, _) in enumerate(e for e in events if e[1].get("choices"))]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    kept = _growing([(min(count, total), at_s) for count, at_s in marks])
    return Timed(usage["prompt_tokens"], cached, 0, start_s, end_s, kept, None)


def _growing(marks: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Drop marks that tell no new token."""
    found: list[tuple[int, float]] = []
    for count, at_s in marks:
        if count > (found[-1][0] if found else 0):
            found.append((count, at_s))
    if not found:
        raise RequestError("no token came")
    return tuple(found)
