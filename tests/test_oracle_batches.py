"""Batches in lockstep: below all that can be decided, equal to a recursion, and wrong ones are found out."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest
from support_bounds import WIDE, Drawn, reached
from support_constant import seeded
from support_exhaustive import least_mean_jct_s
from support_sim import Stage, ask, chain, largest_need, make_profile, make_trace, single

from oracle.bounds import batches
from oracle.bounds.batches import alone_s, batch_bound_s
from oracle.bounds.critical_path import earliest
from oracle.bounds.work import TaskWork, TraceWork, work_of
from topas.profile import Profile, load_profile
from traces.workloads import generate

Plant = Callable[[pytest.MonkeyPatch], None]
SHAPES = ("single", "chain", "fork", "join", "diamond", "join-4", "exits")


def alike(seed: object, most: int) -> Drawn:
    """Draw a few tasks that are all the same, at most ``most`` requests, most of them arriving together."""
    rng = seeded(f"batches {seed}")
    shape = WIDE[rng.choice([name for name in SHAPES if len(WIDE[name]) <= most])]
    count = rng.randint(1, most // len(shape))
    agents = {name: rng.choice([0, 3, 5, 9]) for name in "ABCDE"}
    own = rng.random() < 0.7
    names = rng.sample("ABCDE", len(shape)) if own else [rng.choice("AB") for _ in shape]
    spec = ask(rng.choice([0, 2, 5]), rng.choice([2, 4, 6]), rng.choice([6, 9]))
    stages = {v: Stage(a, [spec], after) for (v, after), a in zip(shape.items(), names, strict=True)}
    now_s, tasks = 0.0, []
    for _ in range(count):
        tasks.append((now_s, stages))
        now_s += rng.choice([0.0, 0.0, 0.0, 0.5, 4.0])
    trace = make_trace(agents, *tasks)
    admission = rng.choice(["full", "sglang"])
    profile = make_profile(
        kv_budget_tokens=largest_need(trace) + rng.choice([0, 6, 15, 40]) + (admission == "sglang"),
        swap_bytes_per_s=1e4,
        prefill_base_s=rng.choice([0.0, 0.3]),
        prefill_s_per_token=rng.choice([0.0, 1 / 16, 0.2]),
        decode_base_s=rng.choice([0.25, 1.0]),
        decode_s_per_seq=rng.choice([0.0, 0.05, 0.3]),
        decode_s_per_kv_token=rng.choice([0.0, 1 / 128]),
        max_running=rng.choice([2, 64, 64]),
        host_cache=rng.random() < 0.5,
        admission=admission,
    )
    return Drawn(trace, profile)


@lru_cache(maxsize=1024)
def least(seed: int, most: int) -> tuple[Drawn, float]:
    """Return a case and the least mean JCT that is known: of all decisions, if these can be tried."""
    case = alike(seed, most)
    best = reached(case, random.Random(seed), tries=3)  # noqa: S311  no secret
    try:
        return case, min(best, least_mean_jct_s(case.trace, case.profile, 400))
    except RuntimeError:
        return case, best


def bound_of(case: Drawn) -> float:
    work = work_of(case.trace, case.profile)
    found = batch_bound_s(work, time_limit_s=1.0)
    assert not isinstance(found, str), found
    return max(found[0], float(np.mean([alone_s(work, job) for job in work.jobs])))


def test_no_decisions_are_faster_and_often_some_are_as_fast() -> None:
    tight = 0
    for seed in range(120):
        case, best = least(seed, 5)
        value = bound_of(case)
        assert value <= best + 1e-6, seed
        tight += value > best * (1 - 1e-6)
    assert tight >= 30


def _more(name: str, factor: float) -> Plant:
    right = batches._least_sums_s

    def wrong(work: TraceWork, kinds: list[Any], *rest: Any, **more: Any) -> Any:  # noqa: ANN401  as the right one
        changed = [dataclasses.replace(kind, **{name: getattr(kind, name) * factor}) for kind in kinds]
        return right(work, changed, *rest, **more)

    return lambda patch: patch.setattr(batches, "_least_sums_s", wrong)


def _all(factor: float) -> Plant:
    right = batches._least_sums_s
    return lambda patch: patch.setattr(batches, "_least_sums_s", lambda *a, **kw: factor * right(*a, **kw))


def _smaller_batches(patch: pytest.MonkeyPatch) -> None:
    right = batches._batches
    patch.setattr(
        batches,
        "_batches",
        lambda *a: (b for b in right(*a) if sum(b) < 2 or sum(b) % 2),  # no pairs
    )


def _arrivals_ignored(patch: pytest.MonkeyPatch) -> None:
    right = batches._best_runs_s
    patch.setattr(batches, "_best_runs_s", lambda sums_s, arrivals: right(sums_s, [0.0] * len(arrivals)))


def _computed_each_alone(patch: pytest.MonkeyPatch) -> None:
    right = batches._least_sums_s

    def wrong(*args: Any, compute: bool) -> Any:  # noqa: ANN401, ARG001  as the right one
        return right(*args, compute=True)

    patch.setattr(batches, "_least_sums_s", wrong)


def one_after_the_other() -> tuple[Drawn, float]:
    """Return tasks that never meet: only the first computes the prefix, whose copy the host keeps."""
    trace = make_trace({"A": 10}, *[(100.0 * k, single("A", ask(0, 5))) for k in range(3)])
    case = Drawn(trace, make_profile(kv_budget_tokens=20, swap_bytes_per_s=1e4))
    return case, reached(case, seeded("apart"), tries=1)


PLANTS: dict[str, Plant] = {
    "one per cent": _all(1.01),
    "larger prefixes": _more("prefix", 1.5),
    "longer prefills": _more("prefill_s", 1.2),
    "no batches of two": _smaller_batches,
    "arrivals ignored": _arrivals_ignored,
    "each task computes the prefixes": _computed_each_alone,
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_wrong_bound_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [least(seed, 5) for seed in range(120)]
    cases.append(one_after_the_other())
    PLANTS[name](monkeypatch)
    assert any(bound_of(case) > best + 1e-6 for case, best in cases)


# --- a recursion from the definition ------------------------------------------------------------------


def lockstep_s(work: TraceWork) -> float:  # noqa: C901  the whole definition in one place
    """Return the least mean JCT of batches of requests by name, all there at once; slow, nothing shared."""
    profile, units, tasks = work.profile, work.jobs[0].units, len(work.jobs)
    steps = units[0].steps
    everything = frozenset(itertools.product(range(tasks), range(len(units))))

    def time_s(batch: frozenset[tuple[int, int]], done: frozenset[tuple[int, int]]) -> float:
        total_s = steps * profile.decode_base_s
        for agent in {units[k].agent for _, k in batch}:
            prefix = float(work.prefix[agent])
            total_s += steps * profile.decode_s_per_kv_token * prefix
            if all(units[k].agent != agent for _, k in done):
                total_s += profile.prefill_s_per_token * prefix
        for _, k in batch:
            per_step = profile.decode_s_per_seq + profile.decode_s_per_kv_token * units[k].context_tokens
            total_s += steps * per_step + units[k].prefill_s - profile.prefill_base_s
        return total_s

    def fits(batch: frozenset[tuple[int, int]]) -> bool:
        tokens = sum(units[k].need_tokens for _, k in batch)
        tokens += sum(float(work.prefix[a]) for a in {units[k].agent for _, k in batch})
        return tokens <= profile.kv_budget_tokens and len(batch) <= profile.max_running

    @cache
    def rest_s(done: frozenset[tuple[int, int]]) -> float:
        open_tasks = len({task for task, _ in everything - done})
        if not open_tasks:
            return 0.0
        ready = [
            (task, k) for task, k in everything - done if all((task, p) in done for p, _ in units[k].after)
        ]
        best = float("inf")
        for size in range(1, len(ready) + 1):
            for batch in map(frozenset, itertools.combinations(ready, size)):
                if fits(batch):
                    best = min(best, open_tasks * time_s(batch, done) + rest_s(done | batch))
        return best

    return rest_s(frozenset()) / tasks


def at_once(work: TraceWork) -> TraceWork:
    jobs = tuple(dataclasses.replace(job, arrival_s=0.0) for job in work.jobs)
    return dataclasses.replace(work, jobs=jobs)


def test_counts_give_what_batches_by_name_give() -> None:
    several = 0
    for seed in range(300, 420):
        case = alike(seed, 6)
        work = at_once(work_of(case.trace, case.profile))
        found = batch_bound_s(work, time_limit_s=1.0)
        assert not isinstance(found, str)
        value = batches._least_sums_s(
            work, *_exactly(work), work.jobs[0].units[0].steps, len(work.jobs), compute=True
        )[-1] / len(work.jobs)
        assert value == pytest.approx(lockstep_s(work), rel=1e-12), seed
        assert found[0] >= value * (1 - 1e-6)  # the best cut is no worse than none
        several += len(work.jobs) > 1
    assert several > 30


def _exactly(work: TraceWork) -> tuple[list[Any], Any]:
    counted = batches.counted_of(work, work.jobs[0].units, work.jobs[0], len(work.jobs), 1e9)
    assert counted is not None
    assert all(kind.size == 1 for kind in counted[0])
    return counted


def test_twins_together_are_never_above_each_by_itself() -> None:
    lower = 0
    for seed in range(500, 560):
        rng = seeded(seed)
        branches = rng.choice([2, 3, 4])
        names = "BCDE"[:branches]
        agents = {name: rng.choice([0, 4]) for name in "AJ"} | dict.fromkeys(names, rng.choice([0, 4, 8]))
        spec = ask(3, 4, 4)
        stages = {"a": Stage("A", [spec], ())}
        stages |= {name: Stage(name, [spec], ("a",)) for name in names}
        stages["j"] = Stage("J", [spec], tuple(names))
        trace = make_trace(agents, *[(0.0, stages)] * rng.choice([1, 2, 3]))
        profile = make_profile(
            kv_budget_tokens=largest_need(trace) + rng.choice([0, 10, 20, 40]),
            decode_s_per_seq=0.05,
            decode_s_per_kv_token=1 / 64,
        )
        work = work_of(trace, profile)
        units, job, tasks = work.jobs[0].units, work.jobs[0], len(work.jobs)
        sums = []
        for twins in (False, True):
            kinds = batches._twins_of(work, units, job, twins=twins)
            assert len(kinds) == (3 if twins else branches + 2)
            table = np.array(list(batches._batches(work, kinds, tasks)), dtype=np.int64)
            sums.append(batches._least_sums_s(work, kinds, table, 3, tasks, compute=True))
        assert np.all(sums[1] <= sums[0] * (1 + 1e-12)), seed
        lower += bool(sums[1][-1] < sums[0][-1] * (1 - 1e-9))
    assert lower > 0


# --- by hand ------------------------------------------------------------------------------------------


def by_hand(budget: int, **changes: object) -> Profile:
    """Return an engine whose prefills are free and whose steps take 1 s whatever the batch."""
    free = {"prefill_s_per_token": 0.0, "decode_s_per_seq": 0.0, "decode_s_per_kv_token": 0.0}
    return make_profile(kv_budget_tokens=budget, decode_base_s=1.0, **free, **changes)


def test_room_for_two_of_three_tasks() -> None:
    """Four steps a batch, two requests of 5 tokens at a time behind one prefix of 10: 4, 4 and 8 s."""
    trace = make_trace({"A": 10}, *[(0.0, single("A", ask(0, 5)))] * 3)
    found = batch_bound_s(work_of(trace, by_hand(20)), time_limit_s=1.0)
    assert found == (pytest.approx(16 / 3), "exact")


def test_tasks_that_arrive_far_apart_are_bounded_alone() -> None:
    """Two chains of two batches of 4 steps: 8 s each, were the second to come 100 s later."""
    stages = chain(("A", ask(0, 5)), ("B", ask(0, 5)))
    trace = make_trace({"A": 1, "B": 1}, (0.0, stages), (100.0, stages))
    found = batch_bound_s(work_of(trace, by_hand(6)), time_limit_s=1.0)
    assert found == (pytest.approx(8.0), "exact")


def test_many_tasks_are_cut_into_runs() -> None:
    """Never above the whole table, and for arrivals far apart just as good."""
    study = load_profile("study")
    burst = generate("chain-3", rate_per_s=1.0, tasks=20, seed=1)
    values = []
    for limit_s in (60.0, 0.005):
        found = batch_bound_s(work_of(burst, study), time_limit_s=limit_s)
        assert not isinstance(found, str)
        values.append(found)
    assert [how for _, how in values] == ["exact", "runs of at most 7"]
    assert 57.2 < values[1][0] < values[0][0]


def test_a_task_alone_takes_its_batches() -> None:
    """Three branches of one step each, two at a time on a slower step: more than two waves of the fastest."""
    spec = ask(0, 2)
    stages = {name: Stage(name, [spec], ()) for name in "ABC"}
    trace = make_trace(dict.fromkeys("ABC", 4), (0.0, stages))
    profile = make_profile(
        kv_budget_tokens=12,
        prefill_s_per_token=0.0,
        decode_base_s=1.0,
        decode_s_per_seq=0.5,
        decode_s_per_kv_token=0.0,
    )
    work = work_of(trace, profile)
    assert earliest(work, work.jobs[0]).job_s == pytest.approx(3.0)
    assert alone_s(work, work.jobs[0]) == pytest.approx(3.5)


def test_what_it_refuses() -> None:
    chain_3 = generate("chain-3", rate_per_s=1.0, tasks=400, seed=1)
    study = load_profile("study")
    assert batch_bound_s(work_of(chain_3, study), time_limit_s=0.0) == "too many states for the time limit"
    pieces = study.model_copy(update={"redo": "keep"})
    few = generate("chain-3", rate_per_s=1.0, tasks=4, seed=1)
    assert "pieces" in str(batch_bound_s(work_of(few, pieces), time_limit_s=60.0))
    mixed = make_trace(
        {"A": 1}, (0.0, single("A", ask(1, 3))), (0.0, chain(("A", ask(1, 3)), ("A", ask(1, 3))))
    )
    assert "one shape" in str(batch_bound_s(work_of(mixed, by_hand(30)), time_limit_s=1.0))
    instant = make_trace({"A": 1}, (0.0, single("A", ask(1, 1))))
    assert "decode" in str(batch_bound_s(work_of(instant, by_hand(30)), time_limit_s=1.0))


def test_a_job_without_batches_has_its_critical_path() -> None:
    job: TaskWork = work_of(make_trace({"A": 1}, (0.0, single("A", ask(1, 1)))), by_hand(30)).jobs[0]
    work = work_of(make_trace({"A": 1}, (0.0, single("A", ask(1, 1)))), by_hand(30))
    assert alone_s(work, job) == earliest(work, job).job_s
