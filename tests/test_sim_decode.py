"""Runs of decode steps in closed form, SGLang's ratio, and a whole simulation against one token at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from referee.ratio import DECAY, FLOOR, INITIAL, NewTokenRatio
from support_sim import ask, chain, jcts, make_profile, make_trace

from topas.cost import decode_s, decode_steps
from topas.profile import Profile
from topas.sim import simulate
from topas.sim.follow import entering_share
from topas.trace import Round, Trace

fixed = settings(max_examples=200, deadline=None, derandomize=True, database=None)

COST = st.floats(0, 10, allow_subnormal=False)
ENGINES = st.builds(
    lambda base, seq, kv: make_profile(decode_base_s=base, decode_s_per_seq=seq, decode_s_per_kv_token=kv),
    COST,
    st.floats(0, 0.1, allow_subnormal=False),
    st.one_of(st.just(0.0), st.floats(1e-9, 0.01)),
)


def _step_s(profile: Profile, requests: int, kv_tokens: int) -> float:
    """Return the time of one decode step (design section 6)."""
    return (
        profile.decode_base_s
        + requests * profile.decode_s_per_seq
        + kv_tokens * profile.decode_s_per_kv_token
    )


# --- closed form ----------------------------------------------------------------------------------------


@fixed
@given(profile=ENGINES, n=st.integers(1, 300), kv=st.integers(0, 10**6), steps=st.integers(0, 400))
def test_a_run_takes_the_sum_of_its_steps(profile: Profile, n: int, kv: int, steps: int) -> None:
    walked = math.fsum(_step_s(profile, n, kv + j * n) for j in range(steps))
    assert decode_s(profile.cost, n, kv, steps) == pytest.approx(walked, rel=1e-12, abs=1e-12)


@fixed
@given(profile=ENGINES, n=st.integers(1, 300), kv=st.integers(0, 10**6), cut=st.integers(0, 200))
def test_a_run_cut_in_two_takes_as_long(profile: Profile, n: int, kv: int, cut: int) -> None:
    parts = decode_s(profile.cost, n, kv, cut) + decode_s(profile.cost, n, kv + cut * n, 200 - cut)
    assert decode_s(profile.cost, n, kv, 200) == pytest.approx(parts, rel=1e-12, abs=1e-12)


@settings(fixed, max_examples=500)
@given(
    profile=ENGINES,
    n=st.integers(1, 300),
    kv=st.integers(0, 10**6),
    share=st.floats(0, 1.2),
    most=st.integers(1, 10**6),
)
@example(profile=make_profile(decode_base_s=0.0), n=1, kv=0, share=0.5, most=10**6)
@example(profile=make_profile(decode_base_s=0.0, decode_s_per_kv_token=1e-9), n=1, kv=0, share=1.0, most=9)
def test_steps_until_is_the_fewest_steps_that_cover_the_wait(
    profile: Profile, n: int, kv: int, share: float, most: int
) -> None:
    wait_s = share * decode_s(profile.cost, n, kv, most)
    steps = decode_steps(profile.cost, n, kv, wait_s, most)
    assert 1 <= steps <= most
    assert decode_s(profile.cost, n, kv, steps) >= wait_s or steps == most
    assert steps == 1 or decode_s(profile.cost, n, kv, steps - 1) < wait_s


@fixed
@given(profile=ENGINES, n=st.integers(1, 50), kv=st.integers(0, 10**4), walked=st.integers(1, 60))
def test_steps_until_agrees_with_walking(profile: Profile, n: int, kv: int, walked: int) -> None:
    # Aim half-way into the last step, so that rounding cannot decide.
    before = math.fsum(_step_s(profile, n, kv + j * n) for j in range(walked - 1))
    last = _step_s(profile, n, kv + (walked - 1) * n)
    if last < 1e-9 * before or last == 0:
        return
    assert decode_steps(profile.cost, n, kv, before + last / 2, 60) == walked


@settings(fixed, max_examples=500)
@given(profile=ENGINES, n=st.integers(1, 50), kv=st.integers(0, 10**4), walked=st.integers(1, 2000))
def test_a_wait_of_exactly_so_many_steps_takes_no_more(
    profile: Profile, n: int, kv: int, walked: int
) -> None:
    wait_s = decode_s(profile.cost, n, kv, walked)
    if decode_s(profile.cost, n, kv, walked - 1) < wait_s:
        assert decode_steps(profile.cost, n, kv, wait_s, 10**6) == walked


# --- the new-token ratio --------------------------------------------------------------------------------


def test_the_ratio_falls_from_seven_tenths_to_its_floor_in_600_steps() -> None:
    ratio = NewTokenRatio()
    assert ratio.value == INITIAL == 0.7
    ratio.decay(300)
    assert ratio.value == pytest.approx((0.7 + 0.098) / 2)
    ratio.decay(300)
    assert ratio.value == pytest.approx(FLOOR) == pytest.approx(0.098)
    ratio.decay(1)
    assert ratio.value == FLOOR
    ratio.reset()
    assert ratio.value == 0.7


@fixed
@given(runs=st.lists(st.integers(0, 300), max_size=8))
def test_the_ratio_decays_by_runs_as_step_by_step(runs: list[int]) -> None:
    by_runs, by_steps = NewTokenRatio(), NewTokenRatio()
    for steps in runs:
        by_runs.decay(steps)
        for _ in range(steps):
            by_steps.decay(1)
    assert by_runs.value == pytest.approx(by_steps.value, abs=1e-12)
    assert by_runs.value == pytest.approx(max(0.7 - DECAY * sum(runs), FLOOR), abs=1e-12)


ENTERING = st.lists(st.integers(1, 400), min_size=1, max_size=8)


@given(ENTERING, st.integers(0, 1500))
@example([1, 100], 2)
def test_what_entering_requests_reserve_fits_and_holds_their_first_tokens(left: list[int], room: int) -> None:
    least, share = entering_share(room, sum(left), len(left))
    reserved = [least + math.floor(share * (own - least)) for own in left]
    assert all(0 <= kept <= own for kept, own in zip(reserved, left, strict=True))
    assert sum(reserved) <= room
    if room >= len(left):
        assert min(reserved) >= 1
    if room >= sum(left):
        assert reserved == left


@pytest.mark.parametrize(
    ("generated", "max_new", "share"),
    [([10, 30], [99, 100], (40 + 2 * 20) / 200), ([5], [9], 1.0), ([0], [199], 20 / 200)],
)
def test_a_retraction_sets_the_ratio_from_those_that_stay(
    generated: list[int], max_new: list[int], share: float
) -> None:
    ratio = NewTokenRatio()
    ratio.retracted(generated, max_new)
    assert ratio.value == pytest.approx(share)


# --- a whole simulation, one token at a time ------------------------------------------------------------


@dataclass
class _Request:
    task: int
    stage: int
    agent: str
    spec: Round
    since_s: float
    serial: int
    generated: int = 0


class _Walker:
    """FCFS with full reservation on chains of single requests, no host, nothing reused: the naive way.

    Every decode step is walked. Leftovers (idle prefixes, finished contexts) are evicted one by one as
    soon as a token has no place, the least recently used first, a prefix after what is behind it.
    """

    def __init__(self, trace: Trace, profile: Profile) -> None:
        self.trace, self.profile = trace, profile
        self.now_s = 0.0
        self.queue: list[_Request] = []
        self.running: list[_Request] = []
        self.leftovers: list[tuple[str, int, int]] = []  # (agent, serial or -1 for the prefix, tokens)
        self.arrivals = list(enumerate(trace.tasks))
        self.done_s = [0.0] * len(trace.tasks)
        self.serial = self.loads = 0

    def play(self) -> list[float]:
        while self.arrivals or self.queue or self.running:
            self.arrive()
            admitted, cold = self.admit()
            if admitted:
                self.prefill(admitted, cold)
            elif self.running:
                self.step()
            else:
                self.now_s = max(self.now_s, self.arrivals[0][1].arrival_s)
        return self.done_s

    def arrive(self) -> None:
        while self.arrivals and self.arrivals[0][1].arrival_s <= self.now_s:
            self.enqueue(self.arrivals.pop(0)[0], 0)

    def enqueue(self, task: int, stage: int) -> None:
        spec = self.trace.tasks[task]
        self.serial += 1
        agent = spec.workflow.agents[stage]
        self.queue.append(_Request(task, stage, agent, spec.rounds[stage][0], self.now_s, self.serial))

    def active(self) -> set[str]:
        return {request.agent for request in self.running}

    def held(self) -> int:
        prefixes = sum(self.trace.agents[a] for a in self.active())
        return prefixes + sum(r.spec.input_tokens + r.generated for r in self.running)

    def admit(self) -> tuple[list[_Request], list[str]]:
        admitted: list[_Request] = []
        cold: list[str] = []
        self.queue.sort(key=lambda r: (r.since_s, f"t{r.task:02d}/s{r.stage}/0"))
        while self.queue and len(self.running) < self.profile.max_running:
            head = self.queue[0]
            prefixes = sum(self.trace.agents[a] for a in self.active() | {head.agent})
            if (
                prefixes + sum(r.spec.reserve_tokens for r in [*self.running, head])
                > self.profile.kv_budget_tokens
            ):
                break
            if head.agent not in self.active():
                kept = [item for item in self.leftovers if item[:2] == (head.agent, -1)]
                if kept:
                    self.leftovers.remove(kept[0])
                else:
                    cold.append(head.agent)
                    self.loads += 1
            self.queue.pop(0)
            self.running.append(head)
            admitted.append(head)
        self.evict()
        return admitted, cold

    def evict(self) -> None:
        while (
            self.leftovers and self.held() + sum(x[2] for x in self.leftovers) > self.profile.kv_budget_tokens
        ):
            agent, serial, _ = self.leftovers[0]
            behind = [x for x in self.leftovers if x[0] == agent and x[1] >= 0]
            self.leftovers.remove(behind[0] if serial < 0 and behind else self.leftovers[0])

    def prefill(self, admitted: list[_Request], cold: list[str]) -> None:
        tokens = sum(max(r.spec.input_tokens, 1) for r in admitted) + sum(self.trace.agents[a] for a in cold)
        self.now_s += self.profile.prefill_base_s + tokens * self.profile.prefill_s_per_token
        self.give_token(admitted)

    def step(self) -> None:
        self.now_s += _step_s(self.profile, len(self.running), self.held())
        self.give_token(list(self.running))

    def give_token(self, requests: list[_Request]) -> None:
        for request in requests:
            request.generated += 1
        self.evict()
        for request in [r for r in requests if r.generated == r.spec.output_tokens]:
            self.running.remove(request)
            size = request.spec.input_tokens + request.generated
            self.leftovers.append((request.agent, request.serial, size))
            if request.agent not in self.active():
                self.leftovers.append((request.agent, -1, self.trace.agents[request.agent]))
            if request.stage + 1 < len(self.trace.tasks[request.task].rounds):
                self.enqueue(request.task, request.stage + 1)
            else:
                self.done_s[request.task] = self.now_s


def fractions(most: int, part: int) -> st.SearchStrategy[float]:
    """Return binary fractions, whose sums are exact in any order: no tie is decided by rounding."""
    return st.integers(0, most).map(lambda k: k / part)


@st.composite
def _chains(draw: st.DrawFn, agents: str) -> tuple[Trace, Profile]:
    prefixes = {agent: draw(st.integers(1, 30)) for agent in agents}
    tasks = []
    for arrival_s in sorted(draw(st.lists(fractions(640, 64), min_size=1, max_size=5))):
        stages = draw(
            st.lists(
                st.tuples(
                    st.sampled_from(agents),
                    st.builds(ask, st.integers(0, 20), st.integers(1, 25)),
                ),
                min_size=1,
                max_size=3,
            )
        )
        tasks.append((arrival_s, chain(*stages)))
    trace = make_trace(prefixes, *tasks)
    profile = make_profile(
        kv_budget_tokens=max(prefixes.values()) + 45 + draw(st.integers(0, 80)),
        prefill_base_s=draw(fractions(16, 16)),
        prefill_s_per_token=draw(fractions(16, 64)),
        decode_base_s=draw(fractions(64, 64)),
        decode_s_per_seq=draw(fractions(16, 256)),
        decode_s_per_kv_token=draw(fractions(8, 4096)),
        max_running=draw(st.sampled_from([1, 2, 64])),
    )
    return trace, profile


@pytest.mark.parametrize("agents", ["A", "AB"])
@settings(fixed, max_examples=150)
@given(data=st.data())
def test_a_simulation_equals_one_token_at_a_time(agents: str, data: st.DataObject) -> None:
    trace, profile = data.draw(_chains(agents))
    walker = _Walker(trace, profile)
    walked = walker.play()
    result = simulate(trace, "fcfs", profile, check=True)
    assert jcts(result) == pytest.approx(walked, rel=1e-9)
    assert result.metrics["prefix_loads"] == walker.loads


def test_engine_and_walker_agree_with_a_hand_computed_pair() -> None:
    # Two requests by hand: both walk the same first steps, then one is alone.
    profile = make_profile(decode_s_per_seq=1 / 8, decode_s_per_kv_token=1 / 64)
    trace = make_trace({"A": 10}, (0.0, chain(("A", ask(4, 2)))), (0.0, chain(("A", ask(4, 4)))))
    # Prefill of 10 + 4 + 4 tokens at 1/16 s; then 10 + 5 + 5 tokens in use; then 10 + 6, 10 + 7.
    first_s = 18 / 16 + (1 / 4 + 2 / 8 + 20 / 64)
    second_s = first_s + (1 / 4 + 1 / 8 + 16 / 64) + (1 / 4 + 1 / 8 + 17 / 64)
    assert _Walker(trace, profile).play() == [first_s, second_s]
    assert jcts(simulate(trace, "fcfs", profile, check=True)) == [first_s, second_s]
