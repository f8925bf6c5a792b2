"""Table I of the paper in the simulator (compare.table1)."""

from __future__ import annotations

import pytest

from compare.table1 import BOUNDS, PAPER, PROFILE, SEED, TOLERANCE, Point, at, errors, fit, play, rounded
from topas.profile import load_profile
from traces.workloads.two_agent import INPUT_TOKENS, OUTPUT_TOKENS, PREFIX_TOKENS, RATE_PER_S


def test_the_a100_profile_plays_table_1_within_the_tolerances() -> None:
    rows = play(load_profile(PROFILE), {}, 1.0 / RATE_PER_S, SEED)
    assert [(row.requests, row.order) for row in rows] == [
        (requests, order) for requests in PAPER for order in ("grouped", "alternating")
    ]
    for row, row_errors in zip(rows, errors(rows), strict=True):
        for error, most in zip(row_errors, TOLERANCE, strict=True):
            assert abs(error) <= most, (row, row_errors)


def test_at_most_five_constants_are_fitted_each_inside_its_physical_range() -> None:
    profile = load_profile(PROFILE)
    fitted = {
        "prefix_tokens": PREFIX_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "kv_budget_tokens": profile.kv_budget_tokens,
        "decode_s_per_seq": profile.decode_s_per_seq,
        "gap_s": 1.0 / RATE_PER_S,
    }
    assert fitted.keys() == BOUNDS.keys()
    for name, value in fitted.items():
        low, high = BOUNDS[name]
        assert low <= value <= high


def test_the_constants_that_are_not_fitted_follow_from_the_hardware() -> None:
    profile = load_profile(PROFILE)
    weights_bytes, hbm_bytes_per_s, flops = 65.5e9, 2.04e12, 312e12
    assert profile.decode_base_s == pytest.approx(weights_bytes / (0.8 * hbm_bytes_per_s), rel=0.01)
    assert profile.decode_s_per_kv_token == pytest.approx(262144 / hbm_bytes_per_s, rel=0.01)
    assert profile.prefill_s_per_token == pytest.approx(2 * 32.5e9 / (0.6 * flops), rel=0.01)
    # Weights and KV together fit the memory that SGLang takes by default on such a card.
    assert 0.80 < (weights_bytes + profile.kv_budget_tokens * 262144) / 85.9e9 < 0.90
    assert INPUT_TOKENS == 430


def test_the_fit_is_reproducible_and_works_on_the_numbers_that_are_written_down() -> None:
    base = load_profile(PROFILE)
    first = fit(base, [SEED], generations=1, population=1, steps=2)
    assert first == fit(base, [SEED], generations=1, population=1, steps=2)
    point = first[0]
    assert rounded(point) == point
    rough = Point(*(value + 1e-7 for value in (7000.0, 1000.0, 21000.0, 0.001, 5.0)))
    assert at(base, rough) == at(base, Point(7000.0, 1000.0, 21000.0, 0.001, 5.0))
