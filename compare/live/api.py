"""What a replay asks of a server and gets back, whatever API the server speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from compare.live.stop_after import PARAM, PROCESSOR


class RequestError(Exception):
    """A request that did not do what the trace says: refused, aborted, timed out, of another length."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One LLM request: token ids, lengths in tokens, and ``custom_params`` for the scheduler.

    ``wants_ids`` asks for the ids that were generated.
    """

    prompt: Sequence[int]
    output_tokens: int
    max_new_tokens: int
    params: Mapping[str, Any] = field(default_factory=dict)
    wants_ids: bool = False


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What the server says of a request; None where it does not say."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    output_ids: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and the clock's reading at its first token, in seconds."""

    answer: ApiAnswer
    first_s: float


class Api(Protocol):
    """The two directions of an API, without the network."""

    @property
    def path(self) -> str:
        """Where requests are posted."""

    def body(self, request: ApiRequest) -> dict[str, Any]:
        """Return the JSON body of a streamed request."""

    def answer(self, events: Sequence[bytes]) -> ApiAnswer:
        """Return what the events of the stream said.

        Raises
        ------
        RequestError
            if the request failed, or the stream ended early.
        """


@dataclass(frozen=True, slots=True)
class Ending:
    """How generations are ended at the trace's length.

    With ``hidden``, by :mod:`compare.live.stop_after` and ``stop_token``; else ``max_tokens`` tells the
    true length.
    """

    hidden: bool = False
    stop_token: int = 10

    def of(self, request: ApiRequest) -> tuple[int, dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return a request's allowance, its sampling fields, ``custom_params`` and top-level fields."""
        params = dict(request.params)
        if request.output_tokens == request.max_new_tokens or not self.hidden:
            return request.output_tokens, {"ignore_eos": True}, params, {}
        params[PARAM] = {"output_tokens": request.output_tokens, "stop_token": self.stop_token}
        sampling = {"stop_token_ids": [self.stop_token]}
        return request.max_new_tokens, sampling, params, {"custom_logit_processor": PROCESSOR}


def message_of(value: object) -> str:
    """Return what a server's JSON says went wrong: the innermost message, or all of it."""
    if isinstance(value, dict):
        inner = value.get("error") or value.get("message")
        return message_of(inner) if inner else str(value)
    return str(value)
