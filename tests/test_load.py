"""Load as a share of the one-prefix-at-a-time rate."""

from __future__ import annotations

import math

import pytest

from topas.errors import InputError
from topas.profile import Profile, load_profile
from topas.trace import Round, TaskSpec, Trace
from topas.workflow import Workflow, dag_of
from traces.load import one_prefix_rate_per_s, rate_for_load
from traces.workloads import WORKLOADS, WorkloadOptions, generate

PROFILE = Profile(
    kv_budget_tokens=1000,
    kv_bytes_per_token=1,
    swap_bytes_per_s=1.0,
    prefill_base_s=5.0,
    prefill_s_per_token=0.01,
    decode_base_s=0.1,
    decode_s_per_seq=0.02,
    decode_s_per_kv_token=0.001,
    max_running=8,
)


def trace_of(*tasks: tuple[Round, ...], prefix_tokens: int = 100) -> Trace:
    workflow = Workflow("W", dag_of({"a": ()}), ("A",), (None,))
    specs = (TaskSpec(f"t{k}", workflow, 0.0, (rounds,)) for k, rounds in enumerate(tasks))
    return Trace("x", {"A": prefix_tokens}, {"W": workflow}, tuple(specs))


def test_the_rate_is_that_of_full_batches_behind_one_prefix() -> None:
    n = (1000 - 100) // (50 + 200)
    step_s = 0.1 + n * 0.02 + 0.001 * (100 + n * (50 + 100 / 2))
    assert n == 3
    assert step_s == pytest.approx(0.56)
    rate = one_prefix_rate_per_s(trace_of((Round(50, 100, 200),)), PROFILE)
    assert rate == pytest.approx(1 / (50 * 0.01 + 100 * step_s / n))


def test_the_batch_is_capped_by_the_profile() -> None:
    assert (1000 - 100) // (1 + 1) > PROFILE.max_running == 8
    step_s = 0.1 + 8 * 0.02 + 0.001 * (100 + 8 * 1.5)
    rate = one_prefix_rate_per_s(trace_of((Round(1, 1, 1),)), PROFILE)
    assert rate == pytest.approx(1 / (0.01 + step_s / 8))


def test_a_request_that_does_not_fit_counts_as_running_alone() -> None:
    step_s = 0.1 + 0.02 + 0.001 * (5000 + 10 + 5)
    rate = one_prefix_rate_per_s(trace_of((Round(10, 10, 10),), prefix_tokens=5000), PROFILE)
    assert rate == pytest.approx(1 / (0.1 + 10 * step_s))


def test_reused_tokens_are_not_computed_again() -> None:
    full = 1 / one_prefix_rate_per_s(trace_of((Round(50, 100, 200),)), PROFILE)
    reusing = 1 / one_prefix_rate_per_s(trace_of((Round(50, 100, 200, reused_tokens=30),)), PROFILE)
    assert full - reusing == pytest.approx(30 * 0.01)


def test_the_rate_counts_tasks_and_not_requests() -> None:
    spec = Round(50, 100, 200)
    one, two = trace_of((spec,)), trace_of((spec, spec), (spec, spec, spec, spec))
    assert one_prefix_rate_per_s(two, PROFILE) == pytest.approx(one_prefix_rate_per_s(one, PROFILE) / 3)


def test_tool_waits_do_not_lower_the_rate() -> None:
    quick, slow = trace_of((Round(50, 100, 200),)), trace_of((Round(50, 100, 200, tool_s=60.0),))
    assert one_prefix_rate_per_s(quick, PROFILE) == one_prefix_rate_per_s(slow, PROFILE)


def test_figure_2_can_serve_one_task_in_twelve_units() -> None:
    trace = generate("figure-2", rate_per_s=1.0, tasks=2, seed=0)
    assert one_prefix_rate_per_s(trace, load_profile("unit")) == pytest.approx(1 / 12)


def test_an_engine_that_takes_no_time_has_no_rate() -> None:
    free = {
        "prefill_s_per_token": 0.0,
        "decode_base_s": 0.0,
        "decode_s_per_seq": 0.0,
        "decode_s_per_kv_token": 0.0,
    }
    with pytest.raises(InputError, match="in no time"):
        one_prefix_rate_per_s(trace_of((Round(1, 1, 1),)), PROFILE.model_copy(update=free))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_load_is_a_share_of_the_rate(name: str) -> None:
    profile = load_profile("study")
    unit = generate(name, rate_per_s=1.0, tasks=30, seed=2)
    full = one_prefix_rate_per_s(unit, profile)
    assert rate_for_load(name, 1.0, profile, 30, 2) == pytest.approx(full)
    assert rate_for_load(name, 0.25, profile, tasks=30, seed=2) == pytest.approx(full / 4)


def test_a_load_depends_on_the_lengths() -> None:
    profile = load_profile("study")
    short, long = (
        rate_for_load("chain-3", 0.5, profile, 10, 0, WorkloadOptions(output_tokens=tokens))
        for tokens in (250, 500)
    )
    assert short > 2 * long


@pytest.mark.parametrize("load", [0.0, -1.0, math.inf, math.nan])
def test_a_load_that_is_not_positive_is_refused(load: float) -> None:
    with pytest.raises(InputError) as caught:
        rate_for_load("chain-3", load, PROFILE, 1, 0)
    assert caught.value.field == "load"
