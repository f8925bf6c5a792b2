"""Batches by windows, with arrivals: below all that can be decided, and wrong ones are found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support_sim import ask, chain, make_trace, single
from test_oracle_batches import by_hand, least

from oracle.bounds import windows
from oracle.bounds.windows import window_bound_s
from oracle.bounds.work import work_of
from topas.profile import load_profile
from topas.sim import simulate
from traces.workloads import generate

Plant = Callable[[pytest.MonkeyPatch], None]
FAR = 1e6


def far() -> float:
    return FAR


def bound_of(case: Any, known_s: float = FAR) -> float:  # noqa: ANN401  a drawn case
    found = window_bound_s(work_of(case.trace, case.profile), lambda: known_s, time_limit_s=5.0)
    assert not isinstance(found, str), found
    return found[0]


def test_no_decisions_are_faster_and_the_bound_is_no_empty_one() -> None:
    near = 0
    for seed in range(120):
        case, best = least(seed, 5)
        value = bound_of(case)
        assert value <= best + 1e-6, seed
        near += value > 0.8 * best
    assert near >= 40


def test_a_known_schedule_only_cuts_the_search_short() -> None:
    for seed in range(120):
        case, best = least(seed, 5)
        value = bound_of(case)
        assert bound_of(case, best) == pytest.approx(min(value, best), rel=1e-9, abs=1e-9), seed


def _argument(place: int, change: Callable[[Any], Any]) -> Plant:
    """Change an argument of the compiled search, counted from the last."""
    right = windows._search

    def wrong(*args: Any) -> float:  # noqa: ANN401  as the right one
        changed = list(args)
        changed[place] = change(changed[place])
        return float(right(*changed))

    return lambda patch: patch.setattr(windows, "_search", wrong)


PLANTS: dict[str, Plant] = {
    "longer windows": _argument(-7, lambda window_s: 1.1 * window_s),
    "longer prefills": _argument(-9, lambda prefill_s: 1.5 * prefill_s + 0.1),
    "costs of requests": _argument(-8, lambda later_s: 2.0 * later_s + 0.2),
    "later arrivals": _argument(-6, lambda arrivals_s: arrivals_s + 2.5),
    "later completions": _argument(-5, lambda floors_s: 1.05 * floors_s + 0.05),
    "less memory": _argument(-10, lambda budget: 0.8 * budget),
    "what is still to come": _argument(-4, lambda floors_from_s: 3.0 * floors_from_s + 5.0),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_wrong_bound_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [least(seed, 5) for seed in range(120)]
    PLANTS[name](monkeypatch)

    def wrong(case: Any, best: float) -> bool:  # noqa: ANN401  a drawn case
        found = window_bound_s(work_of(case.trace, case.profile), lambda: 1.5 * best, time_limit_s=5.0)
        return isinstance(found, str) or found[0] > best + 1e-6

    assert any(wrong(case, best) for case, best in cases)


@pytest.mark.parametrize("width", [0.15, 1.0, 20.0])
def test_wider_buckets_only_lower_the_bound(width: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "BUCKET_SHARES", (1e-3,))
    cases = [case for case, _ in (least(seed, 5) for seed in range(60))]
    fine = [bound_of(case) for case in cases]
    monkeypatch.setattr(windows, "BUCKET_SHARES", (width,))
    for case, value in zip(cases, fine, strict=True):
        assert bound_of(case) <= value + 1e-9


# --- by hand ------------------------------------------------------------------------------------------


def test_three_that_come_one_by_one_with_room_for_two() -> None:
    """Four steps of 1 s a window. The first two may begin in one, the third in the next: 4, 4 and 8 s.

    They come at 0, 1 and 2 s, and none is faster than 4 s: completions at 4, 5 and 8 s at the earliest.
    """
    tasks = [(float(k), single("A", ask(0, 5))) for k in range(3)]
    work = work_of(make_trace({"A": 10}, *tasks), by_hand(20))
    found = window_bound_s(work, far, time_limit_s=1.0)
    assert found == (pytest.approx((4 + 4 + 6) / 3), "labels merged within 0.15 windows")


def test_a_task_that_begins_just_before_the_end_of_a_window() -> None:
    """Two chains; the second task begins in the first one's window, just before its end.

    Steps take 1 s and 1 s a request, four of them a request. The second begins with the first's last step at
    6 s; their completions are at 21 and 27 s.
    """
    stages = chain(("A", ask(0, 5)), ("A", ask(0, 5)))
    trace = make_trace({"A": 0}, (0.0, stages), (5.9, stages))
    profile = by_hand(20).model_copy(update={"decode_s_per_seq": 1.0})
    played = simulate(trace, "fcfs", profile)
    assert [task.completion_s for task in played.tasks] == [21.0, 27.0]
    found = window_bound_s(work_of(trace, profile), far, time_limit_s=1.0)
    assert not isinstance(found, str)
    assert 18.0 < found[0] <= (21.0 + 27.0 - 5.9) / 2


def test_a_window_waits_for_those_that_begin_in_it() -> None:
    """The second comes at 100 s: a window with it does not end before."""
    stages = chain(("A", ask(0, 5)), ("B", ask(0, 5)))
    trace = make_trace({"A": 1, "B": 1}, (0.0, stages), (100.0, stages))
    found = window_bound_s(work_of(trace, by_hand(6)), far, time_limit_s=1.0)
    assert not isinstance(found, str)
    assert found[0] == pytest.approx(8.0)


@pytest.mark.parametrize(("workload", "rate"), [("dag-4", 0.16), ("dag-10-wide", 0.05), ("chain-3", 0.3)])
def test_it_is_below_the_policies_and_above_the_critical_path(workload: str, rate: float) -> None:
    study = load_profile("study")
    trace = generate(workload, rate_per_s=rate, tasks=12, seed=1)
    names = ("lpm", "spf", "topas-paper", "topas")
    least_s = min(float(simulate(trace, name, study).metrics["mean_jct_s"]) for name in names)
    found = window_bound_s(work_of(trace, study), lambda: least_s, time_limit_s=10.0)
    assert not isinstance(found, str)
    assert 57.2 < found[0] < least_s


def test_what_it_refuses() -> None:
    study = load_profile("study")
    few = generate("chain-3", rate_per_s=1.0, tasks=4, seed=1)
    pieces = study.model_copy(update={"redo": "keep"})
    assert "pieces" in str(window_bound_s(work_of(few, pieces), far, time_limit_s=1.0))
    instant = study.model_copy(update={"decode_base_s": 0.0, "decode_s_per_kv_token": 0.0})
    assert "decode step" in str(window_bound_s(work_of(few, instant), far, time_limit_s=1.0))
    many = generate("dag-10-wide", rate_per_s=1.0, tasks=300, seed=1)
    assert "too many" in str(window_bound_s(work_of(many, study), far, time_limit_s=1.0))
    assert "too many" in str(window_bound_s(work_of(few, study), far, time_limit_s=0.0))
