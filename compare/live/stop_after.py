"""Ending a generation at a given length that the scheduler does not see.

A trace knows how many tokens each request generates. Sent as ``max_tokens``, the number would tell a
scheduler what no scheduler knows. So the request carries the client's real allowance, and a custom logit
processor, which SGLang runs in its sampler (``--enable-custom-logit-processor``), forces a stop token
when the number is reached, and forbids all stop tokens before.
"""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

PARAM = "topas_replay"
"""Key of ``custom_params`` under which a request's own length travels."""


def stop_after(logits: Any, params: list[dict[str, Any]]) -> Any:  # noqa: ANN401  tensors of the server
    """Force each request's stop token at its length; this code runs inside the server."""
    stops, last = set(), []
    for row, given in enumerate(params):
        request, mine = given["__req__"], given["topas_replay"]
        stops |= {mine["stop_token"], *(request.eos_token_ids or ())}
        # under the overlap schedule output_ids lags by a step, the KV allocated for this one does not
        kv = getattr(request, "kv", None)
        held = kv.kv_allocated_len - len(request.origin_input_ids) if kv else 0
        if max(held, len(request.output_ids)) + 1 >= mine["output_tokens"]:
            last.append((row, mine["stop_token"]))
    tokenizer = params[0]["__req__"].tokenizer
    if tokenizer is not None:
        more = getattr(tokenizer, "additional_stop_token_ids", None) or ()
        stops |= {tokenizer.eos_token_id, *more} - {None}
    for token in stops:  # one by one: indexing with a list would wait for the GPU
        logits[:, token] = float("-inf")
    for row, token in last:
        logits[row] = float("-inf")
        logits[row, token] = 0.0
    return logits


class _Source:
    """Pickles as a call of :func:`eval`, so that the server gets text and no bytecode.

    Bytecode, which SGLang's own ``to_str`` sends, loads only on the Python version that wrote it, and a
    reference to this module only where this package is installed.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, (self.text,)


def _serialized() -> str:
    """Return :func:`stop_after` as SGLang takes it: a pickled factory of the processor, in hexadecimal."""
    code = "from __future__ import annotations\n" + inspect.getsource(stop_after)
    text = f"(lambda space: exec({code!r}, space) or (lambda: space['stop_after']))({{'Any': object}})"
    return json.dumps({"callable": pickle.dumps(_Source(text), protocol=4).hex()})


PROCESSOR = _serialized()
