"""SGLang's native API, ``/generate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compare.live.api import ApiAnswer, ApiRequest, Ending, RequestError, message_of

FIRST_AND_LAST = 1_000_000_000
"""Tokens between two events of a stream: the first token is always sent at once, the rest with the end."""


@dataclass(frozen=True, slots=True)
class SglangApi:
    """Streams of two events: parsing and sending each token costs both sides several times as much."""

    ending: Ending
    path: str = "/generate"

    def body(self, request: ApiRequest) -> dict[str, Any]:
        """Return the JSON body."""
        allowed, sampling, params, top = self.ending.of(request)
        sampling = {
            "temperature": 0,
            "max_new_tokens": allowed,
            "stream_interval": FIRST_AND_LAST,
            **sampling,
        }
        if params:
            sampling["custom_params"] = params
        return {"input_ids": request.prompt, "stream": True, "sampling_params": sampling, **top}

    def answer(self, events: Sequence[bytes]) -> ApiAnswer:
        """Read the last event; its ids are all of them, or, by a server's option, those not sent before."""
        last = json.loads(events[-1]) if events else {}
        if "error" in last:
            raise RequestError(message_of(last))
        meta = last.get("meta_info", {})
        reason = meta.get("finish_reason")
        if not reason:
            raise RequestError("the stream ended before the request")
        if reason["type"] == "abort":
            raise RequestError(f"aborted: {reason.get('message', 'no reason given')}")
        ids, count = last.get("output_ids"), meta["completion_tokens"]
        if ids is not None and len(ids) != count:
            ids = [token for event in events for token in json.loads(event)["output_ids"]]
        return ApiAnswer(meta["prompt_tokens"], count, meta.get("cached_tokens"), ids)
