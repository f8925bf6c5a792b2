"""Load: an arrival rate as a share of what serving one prefix at a time could sustain."""

from __future__ import annotations

import math
from statistics import fmean

from topas.errors import InputError
from topas.profile import Profile
from topas.trace import Round, Trace
from traces.workloads import DEFAULT_OPTIONS, WorkloadOptions, generate


def one_prefix_rate_per_s(trace: Trace, profile: Profile) -> float:
    """Return the rate, in tasks a second, at which batches behind one resident prefix keep up.

    With ``l`` the agent's prefix, ``d`` the reservation, ``B`` the budget, a request with ``input``
    dynamic tokens (``reused`` of them still in memory) and ``output`` generated ones costs ::

        n    = max(1, min(max_running, floor((B - l) / d)))
        step = decode_base + n * decode_per_seq + decode_per_kv_token * (l + n * (input + output / 2))
        cost = (input - reused) * prefill_per_token + output * step / n

    seconds of the GPU, and the rate is 1 / (mean over tasks of the sum over their requests). Prefix
    setups, tool waits and the base time of a prefill batch are left out: it is a scale for loads, and
    no bound.

    Raises
    ------
    InputError
        if the engine serves these requests in no time at all.
    """
    cost_s = fmean(
        sum(
            _cost_s(spec, trace.agents[agent], profile)
            for agent, rounds in zip(task.workflow.agents, task.rounds, strict=True)
            for spec in rounds
        )
        for task in trace.tasks
    )
    if cost_s <= 0:
        raise InputError("the load has no rate: the profile serves these tasks in no time", field="load")
    return 1 / cost_s


def rate_for_load(  # noqa: PLR0913  a workload's own arguments, a load and a profile
    name: str,
    load: float,
    profile: Profile,
    tasks: int,
    seed: int,
    options: WorkloadOptions = DEFAULT_OPTIONS,
) -> float:
    """Return the arrival rate that gives a workload this load; lengths do not depend on the rate.

    Raises
    ------
    InputError
        if the load is not positive and finite, or the workload is wrong.
    """
    unit = generate(name, rate_per_s=1.0, tasks=tasks, seed=seed, options=options)
    return check_load(load) * one_prefix_rate_per_s(unit, profile)


def check_load(load: float) -> float:
    """Return a load that is positive and finite.

    Raises
    ------
    InputError
        if it is not.
    """
    if not (math.isfinite(load) and load > 0):
        raise InputError(f"expected a positive share of the one-prefix rate, found {load}", field="load")
    return load


def _cost_s(spec: Round, prefix_tokens: int, profile: Profile) -> float:
    fitting = (profile.kv_budget_tokens - prefix_tokens) // spec.reserve_tokens
    n = max(1, min(profile.max_running, fitting))
    kv_tokens = prefix_tokens + n * (spec.input_tokens + spec.output_tokens / 2)
    step_s = profile.decode_base_s + n * profile.decode_s_per_seq + profile.decode_s_per_kv_token * kv_tokens
    prefill_s = (spec.input_tokens - spec.reused_tokens) * profile.prefill_s_per_token
    return prefill_s + spec.output_tokens * step_s / n
