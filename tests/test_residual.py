"""Residual service: the empirical distribution and its conditioning (Eq. 4)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import NS, many

from topas.online.history import StageHistory
from topas.residual import FINISHED, Residual, residual_of_seconds

DURATIONS = st.lists(st.integers(0, 50), min_size=1, max_size=12)


def outcomes(residual: Residual) -> dict[int, Fraction]:
    """Return value -> probability."""
    return {
        int(value): Fraction(float(prob)).limit_denominator(1000)
        for value, prob in zip(residual.values_ns, residual.probs, strict=True)
    }


def conditioned(totals: list[int], elapsed: int, mean_request: int) -> Residual:
    """Return the residual of a started stage after executions with these totals."""
    history = StageHistory(None)
    for total in totals:
        history.stage_done(total, 1)
    history.request_done(mean_request, 1, 1)
    return history.residual(elapsed, 1)


def test_conditioning_by_hand() -> None:
    """X in {10, 20, 30} and e = 15: 20 and 30 exceed it, 5 and 15 are left, equally likely."""
    assert outcomes(conditioned([10, 20, 30], 15, 99)) == {5: Fraction(1, 2), 15: Fraction(1, 2)}


def test_a_sample_must_exceed_what_has_been_served() -> None:
    """X > e is strict: of {10, 20} and e = 10, only 20 is possible."""
    assert outcomes(conditioned([10, 20], 10, 99)) == {10: Fraction(1)}


def test_repeated_samples_keep_their_weight() -> None:
    assert outcomes(conditioned([4, 9, 9, 12], 5, 99)) == {4: Fraction(2, 3), 7: Fraction(1, 3)}


def test_a_stage_that_outlived_all_samples_expects_one_more_request() -> None:
    assert outcomes(conditioned([10, 20, 30], 30, 7)) == {7: Fraction(1)}
    assert outcomes(conditioned([10, 20, 30], 45, 7)) == {7: Fraction(1)}


def test_one_more_request_takes_some_time() -> None:
    """An unfinished stage never has nothing left: Eq. 4 conditions on X > e."""
    left = conditioned([10], 10, 0)
    assert outcomes(left) == {1: Fraction(1)}
    assert not left.finished


@many(100)
@given(DURATIONS, st.integers(1, 60))
def test_conditioning_is_the_definition(samples: list[int], elapsed: int) -> None:
    left = [x - elapsed for x in samples if x > elapsed] or [7]
    assert outcomes(conditioned(samples, elapsed, 7)) == {
        value: Fraction(left.count(value), len(left)) for value in left
    }


@many(100)
@given(DURATIONS)
def test_a_residual_is_the_empirical_distribution(samples: list[int]) -> None:
    residual = Residual(samples)
    assert outcomes(residual) == {x: Fraction(samples.count(x), len(samples)) for x in samples}
    assert residual.values_ns.tolist() == sorted(set(samples))
    assert residual.mean_ns == pytest.approx(sum(samples) / len(samples))
    assert residual.finished == (max(samples) == 0)


@pytest.mark.parametrize("samples", [[], [-1], [3, -2]])
def test_no_samples_or_a_negative_one_is_refused(samples: list[int]) -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Residual(samples)


def test_equal_samples_in_seconds_are_one_object() -> None:
    assert residual_of_seconds((1.5, 0.1)) is residual_of_seconds((1.5, 0.1))
    assert residual_of_seconds((1.5, 0.1)).values_ns.tolist() == [NS // 10, 3 * NS // 2]
    assert residual_of_seconds((0.0, 0.0)) is FINISHED
    assert FINISHED.finished
