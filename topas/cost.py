"""What the engine's work takes: every term of a profile, written once (docs/model.md, E3 to E5, E10, E26).

The functions are kernels; ``py_func`` of each is the same in plain Python, equal to the last bit: a call from
Python need not hand over a ``Cost``, which takes 20 us.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from topas.compiled import kernel


class Cost(NamedTuple):
    """Times in seconds: constants of prefill batches, decode steps, the host link and the way to the engine.

    A prefill batch of n requests that computes x tokens behind y cached ones takes

    ``prefill_base_s + x prefill_s_per_token + n prefill_s_per_seq + y prefill_s_per_cached_token
    + p prefill_s_per_pair + c prefill_s_per_cached_pair``

    where p sums (x + y)^2 - y^2 over its requests and c sums y^2. A decode step of n requests that attend
    to k tokens takes ``decode_base_s + n decode_s_per_seq + k decode_s_per_kv_token``. Moving a token of KV
    over the host link takes ``swap_s_per_token``. ``request_s`` passes outside the engine for each request.
    """

    prefill_base_s: float = 0.0
    prefill_s_per_token: float = 0.0
    prefill_s_per_seq: float = 0.0
    prefill_s_per_cached_token: float = 0.0
    prefill_s_per_pair: float = 0.0
    prefill_s_per_cached_pair: float = 0.0
    decode_base_s: float = 0.0
    decode_s_per_seq: float = 0.0
    decode_s_per_kv_token: float = 0.0
    swap_s_per_token: float = 0.0
    request_s: float = 0.0

    def scaled(self, factor: float) -> Cost:
        """Return the cost on an engine on which everything takes ``factor`` times as long."""
        return Cost(*(factor * value for value in self))

    @property
    def decode_s_per_token(self) -> float:
        """Return T_decode of Eq. 9: one decode step of a request that runs alone."""
        return self.decode_base_s + self.decode_s_per_seq

    def service_s(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """Return the service of one request that runs alone: prefill and decode, KV reads aside.

        ``input_tokens`` are computed behind ``cached_tokens``; D_r of paper section IV-B before any was seen.
        """
        both = pairs.py_func(input_tokens, cached_tokens)
        prefill: float = prefill_s.py_func(self, 1, input_tokens, cached_tokens, *both)
        return prefill + output_tokens * self.decode_s_per_token


FREE = Cost()
"""Of an engine of which nothing is known."""


@kernel
def pairs(new: int, cached: int) -> tuple[int, int]:
    """Return what one request adds to a batch's pairs: (x + y)^2 - y^2 and y^2."""
    return (new + cached) * (new + cached) - cached * cached, cached * cached


@kernel
def prefill_s(  # noqa: PLR0913  the terms of the formula
    cost: Cost, requests: int, new: int, cached: int, new_pairs: int, cached_pairs: int
) -> float:
    """Return the time of a prefill batch; see :class:`Cost`."""
    return (
        cost.prefill_base_s
        + new * cost.prefill_s_per_token
        + requests * cost.prefill_s_per_seq
        + cached * cost.prefill_s_per_cached_token
        + new_pairs * cost.prefill_s_per_pair
        + cached_pairs * cost.prefill_s_per_cached_pair
    )


@kernel
def decode_s(cost: Cost, requests: int, kv_tokens: int, steps: int) -> float:
    """Return the time of a run of decode steps in closed form.

    With n requests over k tokens at the start, step j of a run takes ``base + n per_seq + (k + j n) per_kv``;
    so q steps take ``q c + per_kv n q (q - 1) / 2`` with ``c = base + n per_seq + k per_kv``.
    """
    first = cost.decode_base_s + requests * cost.decode_s_per_seq + kv_tokens * cost.decode_s_per_kv_token
    return steps * first + cost.decode_s_per_kv_token * requests * (steps * (steps - 1) / 2)


@kernel
def decode_steps(cost: Cost, requests: int, kv_tokens: int, wait_s: float, most: int) -> int:
    """Return the fewest steps, from 1 to ``most``, that take at least ``wait_s``; ``most`` if none do."""
    if decode_s(cost, requests, kv_tokens, most) < wait_s:
        return most
    first = decode_s(cost, requests, kv_tokens, 1)
    growth = cost.decode_s_per_kv_token * requests
    guess = 1.0
    if growth > 0:
        slope = first - growth / 2
        guess = (math.sqrt(slope * slope + 2 * growth * max(wait_s, 0.0)) - slope) / growth
    elif first > 0:
        guess = wait_s / first
    steps = int(min(max(math.ceil(min(guess, float(most))), 1), most))
    while steps > 1 and decode_s(cost, requests, kv_tokens, steps - 1) >= wait_s:
        steps -= 1
    while steps < most and decode_s(cost, requests, kv_tokens, steps) < wait_s:
        steps += 1
    return steps


@kernel
def move_s(cost: Cost, tokens: int) -> float:
    """Return the time to move KV tokens over the host link (mu / B_swap of Eq. 8)."""
    return tokens * cost.swap_s_per_token
