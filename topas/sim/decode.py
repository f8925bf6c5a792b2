"""Runs of equal decode steps in closed form.

With n requests over k0 KV tokens at the start, step j of a run takes
``base + n * per_seq + (k0 + j n) * per_kv``; so q steps take
``T(q) = q c + per_kv n q (q - 1) / 2`` with ``c = base + n * per_seq + k0 * per_kv``.
"""

from __future__ import annotations

import math

from topas.profile import Profile


def run_s(profile: Profile, requests: int, kv_tokens: int, steps: int) -> float:
    """Return T(steps), the time of a run of decode steps."""
    first = (
        profile.decode_base_s
        + requests * profile.decode_s_per_seq
        + kv_tokens * profile.decode_s_per_kv_token
    )
    return steps * first + profile.decode_s_per_kv_token * requests * (steps * (steps - 1) / 2)


def steps_until(profile: Profile, requests: int, kv_tokens: int, wait_s: float, most: int) -> int:
    """Return the fewest steps, from 1 to ``most``, that take at least ``wait_s``; ``most`` if none do."""
    if run_s(profile, requests, kv_tokens, most) < wait_s:
        return most
    first = run_s(profile, requests, kv_tokens, 1)
    growth = profile.decode_s_per_kv_token * requests
    if growth > 0:
        slope = first - growth / 2
        guess = (math.sqrt(slope * slope + 2 * growth * max(wait_s, 0.0)) - slope) / growth
    else:
        guess = wait_s / first if first > 0 else 1.0
    steps = min(max(math.ceil(guess), 1), most)
    while steps > 1 and run_s(profile, requests, kv_tokens, steps - 1) >= wait_s:
        steps -= 1
    while steps < most and run_s(profile, requests, kv_tokens, steps) < wait_s:
        steps += 1
    return steps
