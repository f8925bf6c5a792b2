"""Expected longest paths: exact where they can be, close where they are sampled (Eq. 5-6)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import NS, expected_path, make_event, many, shuffled
from support_events import events as random_events

from topas import progress
from topas.event import Params
from topas.formats import event_of
from topas.online.search import select
from topas.problem import compile_event
from topas.progress import EXACT_OUTCOMES, PathStore
from topas.residual import FINISHED, Residual
from topas.score import score_state
from topas.workflow import dag_of

After = Mapping[str, Sequence[str]]
Samples = Mapping[str, Sequence[int]]


def residual_of(samples: Sequence[int]) -> Residual:
    return Residual(samples) if any(samples) else FINISHED


def expected_ns(  # noqa: PLR0913  what L depends on
    after: After,
    samples: Samples,
    done: Mapping[str, int] | None = None,
    *,
    needed: Sequence[str] | None = None,
    seed: int = 0,
    scenarios: int = 256,
    store: PathStore | None = None,
) -> int:
    """Return the library's L; ``needed`` are the stages with ready requests, by default those of ``done``."""
    store, dag, done = store or PathStore(), dag_of(after), done or {}
    residuals = tuple(residual_of(samples[name]) for name in dag.names)
    work = sorted((dag.index[name], done.get(name, 0)) for name in (done if needed is None else needed))
    model = store.model(dag, residuals, tuple(work), scenarios, seed)
    assert model.path_ns == store.expected_ns(model, {})
    return store.expected_ns(model, {dag.index[name]: amount for name, amount in done.items()})


def mean_of_largest(branches: Sequence[Sequence[int]]) -> Fraction:
    """Return E[max] of independent branches: the product of their distribution functions."""
    total, below = Fraction(0), Fraction(0)
    sizes = math.prod(len(branch) for branch in branches)
    for value in sorted(set(itertools.chain.from_iterable(branches))):
        upto = Fraction(math.prod(sum(x <= value for x in branch) for branch in branches), sizes)
        total += value * (upto - below)
        below = upto
    return total


def wide(names: Sequence[str]) -> After:
    """Return a fork from ``root`` into these branches that joins in ``sink``."""
    return {"root": [], **{name: ["root"] for name in names}, "sink": list(names)}


def spread(seed: int, count: int, low: float = 1.0, high: float = 60.0) -> list[int]:
    """Return random samples in nanoseconds."""
    return [int(x * NS) for x in np.random.default_rng(seed).uniform(low, high, count)]


BRANCHES = [f"b{k}" for k in range(8)]


@st.composite
def dags(draw: st.DrawFn) -> tuple[After, Samples]:
    """Draw a DAG of up to 6 stages with up to 3 samples each; some stages have nothing left to do."""
    names = [f"s{k}" for k in range(draw(st.integers(1, 6)))]
    after = {name: [p for p in names[:k] if draw(st.booleans())] for k, name in enumerate(names)}
    values = st.lists(st.integers(0, 9), min_size=1, max_size=3)
    samples = {name: draw(st.one_of(values, values, st.just([0]))) for name in names}
    return after, samples


@many(200)
@given(dags(), st.data())
def test_l_equals_the_enumeration_of_outcomes_and_paths(
    case: tuple[After, Samples], data: st.DataObject
) -> None:
    """With cuts and without, with stages that take no time in the middle; rounded to a nanosecond once."""
    after, samples = case
    needed = data.draw(st.lists(st.sampled_from(sorted(after)), unique=True))
    done = {name: data.draw(st.integers(0, 10)) for name in needed}
    exact = expected_path(after, samples, done)
    assert abs(expected_ns(after, samples, done) - exact) <= Fraction(501, 1000)


@many(150)
@given(dags(), st.data())
def test_more_completions_never_lengthen_the_path(case: tuple[After, Samples], data: st.DataObject) -> None:
    after, samples = case
    less = {name: data.draw(st.integers(0, 6)) for name in after}
    more = {name: amount + data.draw(st.integers(0, 6)) for name, amount in less.items()}
    store = PathStore()
    assert expected_ns(after, samples, more, store=store) <= expected_ns(after, samples, less, store=store)


def test_more_completions_never_lengthen_a_sampled_path() -> None:
    after = wide(BRANCHES)
    samples = {"root": [0], "sink": [NS]} | {name: spread(k, 40) for k, name in enumerate(BRANCHES)}
    store, done = PathStore(), dict.fromkeys(BRANCHES, 0)
    before = expected_ns(after, samples, done, store=store)
    random = np.random.default_rng(5)
    for _ in range(60):
        done[BRANCHES[random.integers(8)]] += int(random.integers(5 * NS))
        now = expected_ns(after, samples, done, store=store)
        assert now <= before
        before = now


@pytest.mark.parametrize("ready", [0, 2])
def test_a_chain_is_exact_for_any_number_of_outcomes(ready: int) -> None:
    """The mean of a chain is the sum of means: six stages of 1,001 samples, 1e18 joint outcomes."""
    names = [f"s{k}" for k in range(6)]
    after = {name: names[max(k - 1, 0) : k] for k, name in enumerate(names)}
    samples = {name: [0] if k < ready else spread(k, 1001) for k, name in enumerate(names)}
    done = 17 * NS
    left = sum(Fraction(sum(samples[name]), len(samples[name])) for name in names[ready + 1 :])
    left += Fraction(sum(max(x - done, 0) for x in samples[names[ready]]), 1001)
    assert abs(expected_ns(after, samples, {names[ready]: done}) - left) <= Fraction(501, 1000)


def test_parts_between_cuts_are_exact_one_by_one() -> None:
    """Two diamonds in a row: 60 x 60 outcomes each are listed, though together they are 13 million."""
    after = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"], "f": ["d"], "g": ["e", "f"]}
    samples = {name: spread(k, 60) for k, name in enumerate("abcdefg")}
    samples["a"] = [0]
    exact = mean_of_largest([samples["b"], samples["c"]]) + mean_of_largest([samples["e"], samples["f"]])
    exact += sum(Fraction(sum(samples[name]), 60) for name in "dg")
    for needed in ("bc", "b"):
        assert abs(expected_ns(after, samples, needed=needed) - exact) <= 1


def test_as_many_outcomes_as_allowed_are_still_exact() -> None:
    side = math.isqrt(EXACT_OUTCOMES)
    samples = {"a": spread(1, side), "b": spread(2, side)}
    exact = mean_of_largest(list(samples.values()))
    assert abs(expected_ns({"a": [], "b": []}, samples) - exact) <= Fraction(501, 1000)


@pytest.mark.parametrize(
    ("scenarios", "typical", "worst"),
    [(Params().scenarios, 0.008, 0.02), (1024, 0.004, 0.01), (4096, 0.0015, 0.005)],
)
def test_scenarios_are_close_to_the_exact_expectation(scenarios: int, typical: float, worst: float) -> None:
    """Eight parallel branches of 40 samples, 6e12 outcomes, each a fresh draw: the error as a share of L."""
    errors = []
    for case in range(6):
        samples = {"root": [0], "sink": [0]}
        for k, name in enumerate(BRANCHES):
            high = 60.0 if case % 2 else 20.0 + 10.0 * k
            samples[name] = spread(100 * case + k, 40, 1.0, high)
        for done in ({}, {"b0": 20 * NS, "b7": 35 * NS}):
            left = [[max(x - done.get(name, 0), 0) for x in samples[name]] for name in BRANCHES]
            exact = mean_of_largest(left)
            for seed in range(8):
                found = expected_ns(
                    wide(BRANCHES), samples, done, needed=BRANCHES, seed=seed, scenarios=scenarios
                )
                errors.append(float(found / exact - 1))
    assert math.sqrt(sum(x * x for x in errors) / len(errors)) <= typical
    assert max(map(abs, errors)) <= worst


def test_scenarios_hit_the_exact_expectation_on_average() -> None:
    samples = {"root": [0], "sink": [5 * NS]}
    samples |= {name: spread(k, 40, 1.0, 90.0) for k, name in enumerate(BRANCHES)}
    exact = mean_of_largest([samples[name] for name in BRANCHES]) + 5 * NS
    errors = [
        float(expected_ns(wide(BRANCHES), samples, needed=BRANCHES, seed=seed) / exact - 1)
        for seed in range(64)
    ]
    assert abs(sum(errors) / len(errors)) <= 0.001
    assert min(errors) < 0 < max(errors)


def test_scenarios_of_a_stage_have_its_own_distribution() -> None:
    """A Latin hypercube margin: each of 32 samples stands for exactly 8 of 256 scenarios."""
    samples = spread(3, 32)
    drawn = Residual(samples).scenarios("b", 256, 9)
    assert sorted(drawn.tolist()) == sorted(samples * 8)


def test_scenarios_of_a_stage_do_not_depend_on_the_other_stages() -> None:
    one, two = Residual(spread(3, 40)), Residual(spread(3, 40))
    assert one.scenarios("b", 256, 9).tolist() == two.scenarios("b", 256, 9).tolist()
    assert one.scenarios("b", 256, 9).tolist() != one.scenarios("c", 256, 9).tolist()
    assert one.scenarios("b", 256, 9).tolist() != one.scenarios("b", 256, 8).tolist()
    # Hence a ninth branch that is never the longest changes nothing at all.
    samples = {"root": [0], "sink": [0]} | {name: spread(k, 40, 5.0) for k, name in enumerate(BRANCHES)}
    more = samples | {"a9": [1, 2, 3]}
    assert expected_ns(wide(BRANCHES), samples, needed=BRANCHES) == expected_ns(
        wide(["a9", *BRANCHES]), more, needed=BRANCHES
    )


def test_equal_inputs_give_equal_bits_in_any_store() -> None:
    samples = {"root": [0], "sink": [0]} | {name: spread(k, 40) for k, name in enumerate(BRANCHES)}
    shared = PathStore()
    for k in range(50):
        expected_ns({"x": [], "y": []}, {"x": spread(k, 30), "y": spread(k + 1, 30)}, store=shared)
    values = {expected_ns(wide(BRANCHES), samples, needed=BRANCHES, store=store) for store in (shared, None)}
    assert len(values) == 1


def test_a_finished_task_has_no_path() -> None:
    assert expected_ns({"a": [], "b": ["a"]}, {"a": [0], "b": [0]}, {"b": 5}) == 0


def test_work_on_one_of_two_equal_branches_gains_nothing_and_on_both_all_of_it() -> None:
    after, samples = wide(["b", "c"]), {"root": [0], "b": [7], "c": [7], "sink": [2]}
    assert expected_ns(after, samples) == 9
    assert expected_ns(after, samples, {"b": 5}) == 9
    assert expected_ns(after, samples, {"b": 5, "c": 5}) == 4


# ------------------------------------------------------------------------------------- the store as cache


@many(40)
@given(st.lists(random_events(), min_size=2, max_size=3), st.integers(0, 9))
def test_a_full_store_never_changes_a_decision(raws: list[dict], seed: int) -> None:
    """A store that holds nothing, one that is emptied before every event, and one that has seen it all."""
    kept = [select(event_of(raw)) for raw in raws]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "STORE_CELLS", -1)
        emptied = [select(event_of(shuffled(raw, seed))) for raw in raws]
    assert emptied == kept
    assert [select(event_of(raw)) for raw in raws] == kept


def test_a_compiled_event_outlives_a_full_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds a compiled event gets the same scores after the store was full and began anew."""
    raw = make_event(budget=9, agents="A=0", tasks={"t": "a=5|8 b=6"}, waiting=["r t.a A 1 4"])
    problem = compile_event(event_of(raw))
    before = score_state(problem, [0], [])
    assert before.admit_ns == NS  # (6 + 8) / 2 - 6
    monkeypatch.setattr(progress, "STORE_CELLS", -1)
    other = make_event(budget=9, agents="A=0", tasks={"t": "a=3"}, waiting=["r t.a A 1 1"])
    compile_event(event_of(other))
    assert score_state(problem, [0], []) == before


def test_the_store_says_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 x 30 outcomes of two stages are 1,800 cells."""
    store = PathStore()
    expected_ns({"x": [], "y": []}, {"x": spread(1, 30), "y": spread(2, 30)}, store=store)
    assert not store.full
    monkeypatch.setattr(progress, "STORE_CELLS", 1800)
    assert not store.full
    monkeypatch.setattr(progress, "STORE_CELLS", 1799)
    assert store.full
