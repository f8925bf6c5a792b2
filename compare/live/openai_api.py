"""The OpenAI-compatible API, ``/v1/completions``, as SGLang and vLLM serve it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compare.live.api import ApiAnswer, ApiRequest, Ending, RequestError, message_of


@dataclass(frozen=True, slots=True)
class OpenAiApi:
    """Completions of token ids, streamed token by token with the usage at the end."""

    model: str
    ending: Ending
    path: str = "/v1/completions"

    def body(self, request: ApiRequest) -> dict[str, Any]:
        """Return the JSON body."""
        allowed, sampling, params, top = self.ending.of(request)
        body = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": allowed,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
            **top,
        }
        if request.wants_ids:
            body["return_token_ids"] = True
        if params:
            body["custom_params"] = params
        return body

    def answer(self, events: Sequence[bytes]) -> ApiAnswer:
        """Read the usage, and why the stream ended; ids stand in all events."""
        usage, finish = None, None
        for event in reversed(events):  # both stand at the end
            value = json.loads(event)
            if "error" in value:
                raise RequestError(message_of(value))
            usage = usage or value.get("usage")
            finish = next((c["finish_reason"] for c in value["choices"] if c["finish_reason"]), None)
            if finish:
                break
        if not usage or not finish:
            raise RequestError("the stream ended before the request")
        if finish == "abort":
            raise RequestError("aborted")
        details = usage.get("prompt_tokens_details") or {}
        return ApiAnswer(
            usage["prompt_tokens"],
            usage["completion_tokens"],
            details.get("cached_tokens"),
            _ids(events, usage),
        )


def _ids(events: Sequence[bytes], usage: dict[str, Any]) -> list[int] | None:
    """Return the generated ids if the server sends them, else None."""
    if not any(b'"token_ids"' in event for event in events[:1]):
        return None
    ids: list[int] = []
    for event in events:
        for choice in json.loads(event)["choices"]:
            ids += choice.get("token_ids") or ()
    return ids if len(ids) == usage["completion_tokens"] else None
