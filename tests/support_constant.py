"""Tiny random traces on engines where a request takes a constant time."""

from __future__ import annotations

import random

from support_sim import SHAPES, Stage, ask, largest_need, make_profile, make_trace

from topas.profile import Profile
from topas.trace import Round, Trace

ENGINES = ("serial", "prefill", "parallel")


def seeded(seed: object) -> random.Random:
    """Return a generator that draws the same each time."""
    return random.Random(str(seed))  # noqa: S311  no secret


def tiny_trace(rng: random.Random, most: int = 4) -> Trace:
    """Draw a trace of two to ``most`` requests."""
    names = "ABC"[: rng.randint(1, 3)]
    agents = {name: rng.choice([0, 2, 5, 9]) for name in names}
    left, now_s, tasks = rng.randint(2, most), 0.0, []
    while left > 0:
        shape = SHAPES[rng.choice([s for s in SHAPES if len(SHAPES[s]) <= left])]
        stages = {v: Stage(rng.choice(names), [_round(rng)], after) for v, after in shape.items()}
        left -= len(shape)
        if left > 0 and rng.random() < 0.15:
            v = rng.choice(list(shape))
            first = stages[v].rounds[0]
            context = first.input_tokens + first.output_tokens
            again = Round(context + 2, 2, 4, 0.0, rng.choice([0, context]))
            stages[v] = Stage(stages[v].agent, [first, again], stages[v].after)
            left -= 1
        now_s += rng.choice([0, 0, 0.5, 1, 2, 3])
        tasks.append((now_s, stages))
    return make_trace(agents, *tasks)


def _round(rng: random.Random) -> Round:
    tool_s = rng.choice([0.0, 0.0, 0.0, 1.0])
    return ask(rng.randint(0, 5), rng.choice([1, 2, 4, 6]), rng.choice([6, 8]), tool_s=tool_s)


def tiny_engine(rng: random.Random, trace: Trace, kind: str) -> Profile:
    """Draw an engine of a kind of :data:`ENGINES` that can serve each request of a trace."""
    budget = largest_need(trace) + rng.choice([1, 3, 8, 20])
    if kind == "serial":
        return make_profile(
            kv_budget_tokens=budget,
            prefill_base_s=rng.choice([0.0, 0.25]),
            prefill_s_per_token=rng.choice([0.0, 0.25, 0.5]),
            decode_base_s=rng.choice([0.0, 0.5]),
            decode_s_per_seq=rng.choice([0.0, 0.25]),
            decode_s_per_kv_token=rng.choice([0.0, 1 / 64]),
            max_running=1,
            swap_bytes_per_s=rng.choice([1.0, 8.0]),
            host_cache=rng.random() < 0.3,
            admission=rng.choice(["full", "sglang"]),
        )
    if kind == "prefill":
        return make_profile(
            kv_budget_tokens=budget,
            prefill_s_per_token=rng.choice([0.25, 0.5]),
            decode_base_s=0.0,
            max_running=rng.choice([2, 8]),
        )
    return make_profile(
        kv_budget_tokens=budget,
        prefill_s_per_token=0.0,
        decode_base_s=1.0,
        max_running=rng.choice([2, 3, 8]),
        swap_bytes_per_s=rng.choice([1.0, 8.0]),
        host_cache=rng.random() < 0.3,
    )
