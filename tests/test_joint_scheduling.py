"""Joint policies in an engine: nothing is lost, only what was chosen runs, what fails is served anyway."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import many
from support_live_engine import Clock, Counts, FakeEngine, Req, drain, tokens_of_family

from topas.decision import Decision
from topas.event import Event, Params
from topas.feasible import violations
from topas.online.policy import TOPAS_PAPER
from topas.online.rollout.policy import TOPAS
from topas.online.sglang import joint_scheduling
from topas.online.sglang.book import Book, Phase
from topas.online.sglang.config import ServingConfig
from topas.online.sglang.joint_scheduling import (
    FIRST_PAUSE_S,
    FORESIGHT_SHARE,
    LONGEST_PAUSE_S,
    JointScheduling,
)
from topas.policies import JointPolicy
from topas.profile import load_profile
from topas.score import decision_on

Decide = Callable[[Event], Decision]
PROFILE = load_profile("a100-80g-qwen2.5-32b").model_copy(update={"max_running": 8})


def scheduling(
    engine: FakeEngine,
    decide: Decide,
    *,
    max_running: int = 8,
    params: Params | None = None,
    leaves_idle: bool = False,
) -> JointScheduling:
    """Return the scheduling of an engine under a policy."""
    profile = PROFILE.model_copy(update={"max_running": max_running, "kv_budget_tokens": engine.kv_tokens})
    book = Book(ServingConfig(), profile, params or Params())
    policy = JointPolicy("test", decide, leaves_idle=leaves_idle)
    made = JointScheduling(engine, book, policy, Counts(), Clock())  # type: ignore[arg-type]
    engine.scheduling = made
    return made


def request(  # noqa: PLR0913  the facts of a request
    number: int,
    family: int = 1,
    *,
    prefix: int = 20,
    own: int = 10,
    outputs: int = 4,
    task: str | None = None,
    **more: Any,  # noqa: ANN401
) -> Req:
    """Return a request of a family, which is an agent with a declared prefix."""
    facts = {"task": task or f"t{number}", "agent": f"a{family}", "prefix_tokens": prefix, "final": True}
    prompt = tokens_of_family(family, prefix, number, own)
    return Req(f"q{number}", prompt, outputs, facts=facts | more.pop("facts", {}), **more)


def admit_all(event: Event) -> Decision:
    """Admit in order of arrival what fits."""
    admit: list[str] = []
    for r in sorted(event.waiting, key=lambda r: (r.arrival_s, r.id)):
        if not violations(event, decision_on(event, [*admit, r.id])):
            admit.append(r.id)
    return decision_on(event, admit)


def any_feasible(random: Random) -> Decide:
    """Return a policy that preempts and admits at random, and keeps an engine busy."""

    def decide(event: Event) -> Decision:
        preempt = [r.id for r in event.running if random.random() < 0.2]
        admit: list[str] = []
        order = random.sample(list(event.waiting), len(event.waiting))
        for r in order:
            busy = len(event.running) > len(preempt) or admit
            fits = not violations(event, decision_on(event, [*admit, r.id], preempt))
            if fits and (not busy or random.random() < 0.7):
                admit.append(r.id)
        decision = decision_on(event, admit, preempt)
        return decision if not violations(event, decision) and admit else decision_on(event, [])

    return decide


def chance(seed: int) -> Random:
    """Return a generator of a seed."""
    return Random(seed)  # noqa: S311  no secret


class Watch:
    """Checks of every step: the offer, the queue's order, locks, and what was released."""

    def __init__(self, engine: FakeEngine, made: JointScheduling) -> None:
        self.engine, self.made = engine, made
        self.decisions: list[tuple[Event, Decision]] = []
        self.fresh: list[tuple[Event, Decision]] = []
        decide = made.policy.decide

        def watched(event: Event) -> Decision:
            decision = decide(event)
            self.decisions.append((event, decision))
            self.fresh.append((event, decision))
            return decision

        made.policy = replace(made.policy, decide=watched)
        self.prefill = made.prefill
        made.prefill = self.watched_prefill  # type: ignore[method-assign]

    def watched_prefill(self, original: Callable[[], Any], batch: Any) -> Any:  # noqa: ANN401
        """Have one prefill batch chosen, and look at what happened."""
        engine, made, entries = self.engine, self.made, self.made.book.entries
        before = list(engine.waiting)
        self.fresh.clear()
        fallbacks = sum(n for key, n in made.metrics.counted.items() if key[0] == "fallbacks")  # type: ignore[attr-defined]
        answer = self.prefill(original, batch)
        failed = fallbacks < sum(n for key, n in made.metrics.counted.items() if key[0] == "fallbacks")  # type: ignore[attr-defined]
        new = [req for req in engine.waiting if all(req is not other for other in before)]
        back = [req for req in new if req.preempted_at == engine.steps]
        kept = [req for req in engine.waiting if all(req is not other for other in new)]
        assert kept == [req for req in before if req not in engine.taken], "the queue lost its order"
        assert engine.waiting[: len(back)] == back
        assert not set(engine.offered) & set(back)
        if made._chosen is not None and not failed:
            self.offer()
            if self.fresh:
                self.locks(*self.fresh[-1])
        for req in engine.waiting:
            entry = entries.get(id(req))
            assert entry is None or entry.phase is not Phase.RUNNING
        return answer

    def offer(self) -> None:
        """Assert that foreign and chosen requests are on offer, and of a cold prefix one at most."""
        engine, entries = self.engine, self.made.book.entries
        chosen = {name for _, decision in self.decisions for name in decision.admit}
        cold: dict[str, int] = {}
        for req in engine.taken:
            entry = entries.get(id(req))
            if entry is None:
                continue
            assert entry.id in chosen
            assert entry.phase is Phase.RUNNING
            prefix = entry.agent.prefix_tokens
            warm = prefix - prefix % engine.page_tokens
            if prefix and engine.on_gpu(entry.agent) < warm:
                cold[entry.agent.id] = cold.get(entry.agent.id, 0) + 1
        assert all(count == 1 for count in cold.values())

    def locks(self, event: Event, decision: Decision) -> None:
        """Assert that R' is locked as far as it is there, and that R_out is gone up to what others share.

        With ``leaves_idle`` R_out is not locked, and what this step needs no room for is still there.
        """
        engine, made = self.engine, self.made
        agents = {entry.agent.id: entry.agent for entry in made.book.entries.values()}
        there = {name: engine.on_gpu(agents[name]) for name in decision.resident}
        assert {name: pin.tokens for name, pin in made._pins.items()} == {k: n for k, n in there.items() if n}
        in_use = {e.agent.id for e in made.book.entries.values() if e.phase is not Phase.WAITING}
        for agent in made.book.prefixes:
            if agent.id in event.resident - set(decision.resident) - in_use:
                path = engine._found(tuple(agent.prefix.tolist()))
                if made.policy.leaves_idle:
                    whole = agent.prefix_tokens - agent.prefix_tokens % engine.page_tokens
                    was_idle = all(r.agent != agent.id for r in event.running)
                    assert len(path) == whole or engine.new or not was_idle
                    continue
                assert not path or engine.store[path].locks or engine._is_shared(path)


@st.composite
def engines(draw: st.DrawFn) -> FakeEngine:
    """Draw an engine's sizes: tight ones, so that memory runs out and prompts come in chunks."""
    return FakeEngine(
        kv_tokens=draw(st.sampled_from([160, 240, 400])),
        page_tokens=draw(st.sampled_from([1, 4])),
        max_running=draw(st.sampled_from([2, 4, 8])),
        chunk_tokens=draw(st.sampled_from([16, 64, 1000])),
        ratio=draw(st.sampled_from([0.1, 0.5, 1.0])),
        overlap=draw(st.booleans()),
    )


def play(engine: FakeEngine, seed: int, count: int, each: Callable[[], None] = lambda: None) -> list[Req]:
    """Let requests arrive, be aborted and complete at random, until all are done; return them."""
    random = chance(seed)
    clock: Clock = engine.scheduling._clock
    made: list[Req] = []
    for number in range(count):
        if random.random() < 0.1:
            req = Req(f"HEALTH_CHECK_{number}", [7, 8], 1)
        elif random.random() < 0.15:
            req = Req(
                f"q{number}", tokens_of_family(9, 3, number, random.randint(2, 40)), random.randint(1, 6)
            )
        else:
            req = request(
                number,
                random.randint(1, 4),
                prefix=random.choice([0, 16, 21, 40]),
                own=random.randint(1, 30),
                outputs=random.randint(1, 12),
                max_new_tokens=random.choice([None, 12, 24]),
                task=f"t{random.randint(0, 5)}",
                facts={"final": random.choice([True, None])},
            )
        made.append(req)
        engine.add(req)
        for _ in range(random.choice([0, 0, 1, 3])):
            clock.now_s += random.random()
            engine.step()
            each()
        if random.random() < 0.1:
            engine.abort(random.choice(made))

    def tick() -> None:
        clock.now_s += 0.1
        each()

    drain(engine, 40 * (count + 10), tick)
    return made


def nothing_is_left(engine: FakeEngine, made: list[Req]) -> None:
    """Assert that all requests are done, all locks given up and nothing is remembered of them."""
    assert {id(req) for req in engine.done} == {id(req) for req in made}
    assert len(engine.done) == len(made)
    book = engine.scheduling.book
    assert book.entries == {}
    assert engine.pins == 0
    assert all(page.locks == 0 for page in engine.store.values())
    assert not any(job.active for job in book.jobs.values())
    book.expire(1e9)
    assert (book.jobs, book.tracker.tasks) == ({}, {})


def finish_alone(made: list[Req]) -> None:
    """Assert that requests generated what they had to, whatever came between."""
    for req in made:
        if type(req.finished_reason).__name__ == "FINISH_LENGTH":
            assert len(req.output_ids) == req.outputs


@many(16)
@given(engines(), st.integers(0, 10**6), st.sampled_from([TOPAS, TOPAS_PAPER]))
def test_topas_serves_every_request(engine: FakeEngine, seed: int, policy: JointPolicy) -> None:
    made = scheduling(engine, policy.decide, max_running=engine.max_running, leaves_idle=policy.leaves_idle)
    Watch(engine, made)
    requests = play(engine, seed, 14)
    nothing_is_left(engine, requests)
    finish_alone(requests)
    assert not [key for key in made.metrics.counted if key[0] == "fallbacks"]  # type: ignore[attr-defined]


@many(40)
@given(engines(), st.integers(0, 10**6), st.booleans())
def test_any_feasible_policy_loses_nothing(engine: FakeEngine, seed: int, leaves_idle: bool) -> None:  # noqa: FBT001
    decide = any_feasible(chance(seed))
    made = scheduling(engine, decide, max_running=engine.max_running, leaves_idle=leaves_idle)
    Watch(engine, made)
    requests = play(engine, seed, 12)
    nothing_is_left(engine, requests)
    finish_alone(requests)


def broken(kind: str, random: Random) -> Decide:
    """Return a policy that fails now and then, in one way."""
    sound = any_feasible(random)

    def decide(event: Event) -> Decision:
        decision = sound(event)
        if random.random() < 0.5:
            return decision
        if kind == "raises":
            raise RuntimeError("a policy's own fault")
        if kind == "unknown":
            return replace(decision, admit=("nobody",), credits_ns=(0,))
        if kind == "idle":
            return decision_on(event, [])
        if kind == "greedy":
            return decision_on(event, [r.id for r in event.waiting])
        return replace(decision, credits_ns=())

    return decide


@many(40)
@given(
    engines(), st.integers(0, 10**6), st.sampled_from(["raises", "unknown", "idle", "greedy", "no credits"])
)
def test_a_policy_that_fails_loses_nothing(engine: FakeEngine, seed: int, kind: str) -> None:
    made = scheduling(engine, broken(kind, chance(seed)), max_running=engine.max_running)
    Watch(engine, made)
    requests = play(engine, seed, 12)
    nothing_is_left(engine, requests)
    finish_alone(requests)


@many(20)
@given(engines(), st.integers(0, 10**6), st.sampled_from(["pin", "on_gpu", "release", "unpin"]))
def test_an_engine_call_that_fails_loses_nothing(engine: FakeEngine, seed: int, name: str) -> None:
    made = scheduling(engine, any_feasible(chance(seed)), max_running=engine.max_running)
    random, sound = chance(seed), getattr(engine, name)

    def failing(*args: object) -> object:
        if name != "unpin" and random.random() < 0.3:
            raise RuntimeError(name)
        return sound(*args)

    setattr(engine, name, failing)
    requests = play(engine, seed, 12)
    setattr(engine, name, sound)
    made.changed = True
    engine.step()
    nothing_is_left(engine, requests)
    finish_alone(requests)


# ------------------------------------------------------------------------------------------- single steps


def test_only_chosen_requests_are_offered_in_the_policys_order() -> None:
    engine = FakeEngine()
    made = scheduling(engine, lambda event: decision_on(event, [event.waiting[3].id, event.waiting[1].id]))
    queue = [request(k, family=k + 1) for k in range(5)]
    for req in queue:
        engine.add(req)
    engine.step()
    assert engine.offered == [queue[3], queue[1]]
    assert engine.taken == [queue[3], queue[1]]
    assert engine.waiting == [queue[0], queue[2], queue[4]]
    assert {e.id for e in made.book.entries.values() if e.phase is Phase.RUNNING} == {
        "r00000004",
        "r00000002",
    }


def test_one_request_of_a_cold_prefix_goes_first_and_the_others_follow_when_it_is_there() -> None:
    engine = FakeEngine(overlap=False)
    scheduling(engine, admit_all)
    queue = [request(k) for k in range(3)] + [request(3, family=2)]
    for req in queue:
        engine.add(req)
    engine.step()
    assert engine.taken == [queue[0], queue[3]]
    engine.step()
    assert engine.taken == [queue[1], queue[2]]


def test_followers_wait_while_the_leaders_result_is_on_its_way() -> None:
    engine = FakeEngine(overlap=True)
    scheduling(engine, admit_all)
    for number in range(3):
        engine.add(request(number, outputs=9))
    taken = []
    for _ in range(3):
        engine.step()
        taken.append(len(engine.taken))
    assert taken == [1, 0, 2]


@pytest.mark.parametrize("page", [1, 8, 64])
def test_a_prefix_that_ends_within_a_page_is_resident_when_its_whole_pages_are(page: int) -> None:
    engine = FakeEngine(kv_tokens=640, page_tokens=page, overlap=False)
    made = scheduling(engine, admit_all)
    watch = Watch(engine, made)
    engine.add(request(0, prefix=21, own=60))
    engine.step()
    for number in range(1, 4):
        engine.add(request(number, prefix=21, own=60))
    engine.step()
    assert len(engine.taken) == 3
    assert "a1" in watch.decisions[-1][0].resident


def test_a_request_without_a_prefix_has_no_leader() -> None:
    engine = FakeEngine()
    scheduling(engine, admit_all)
    for number in range(3):
        engine.add(request(number, prefix=0))
    engine.step()
    assert len(engine.taken) == 3


def test_health_checks_pass_whatever_the_policy_chose() -> None:
    engine = FakeEngine()
    nobody = request(0)
    running = request(1, family=2, outputs=50)
    chosen: list[list[str]] = [["r00000001"], [], [], []]
    made = scheduling(engine, lambda event: decision_on(event, chosen.pop(0)))
    engine.add(running)
    engine.step()
    engine.add(nobody)
    check = Req("HEALTH_CHECK_1", [5], 1)
    engine.add(check)
    engine.step()
    assert engine.offered == [check]
    assert engine.waiting == [nobody]
    assert len(made.book.entries) == 2


@pytest.mark.parametrize("name", ["input_embeds", "multimodal_inputs", "session"])
def test_requests_of_other_kinds_are_foreign(name: str) -> None:
    engine = FakeEngine()
    made = scheduling(engine, admit_all)
    req = request(0)
    setattr(req, name, object())
    engine.add(req)
    engine.step()
    assert engine.taken == [req]
    assert made.book.entries == {}


def test_foreign_requests_take_their_need_from_the_budget() -> None:
    engine = FakeEngine(kv_tokens=400)
    seen: list[Event] = []

    def decide(event: Event) -> Decision:
        seen.append(event)
        return admit_all(event)

    scheduling(engine, decide)
    engine.add(Req("HEALTH_CHECK_1", [5] * 30, 20))
    engine.add(request(0))
    engine.step()
    assert seen[0].budget_tokens == 400 - 1 - (30 + 20 + 1)


def test_an_unchanged_step_asks_neither_the_policy_nor_the_engine() -> None:
    engine = FakeEngine(overlap=False)
    asked: list[Event] = []

    def decide(event: Event) -> Decision:
        asked.append(event)
        return decision_on(event, [event.waiting[0].id] if not event.running else [])

    scheduling(engine, decide)
    engine.add(request(0, outputs=20))
    engine.add(request(1, family=2, outputs=20))
    engine.step()  # one is taken, which is a change
    engine.step()
    asked.clear()
    engine.snapshots = 0
    for _ in range(10):
        engine.step()
        assert engine.offered == []
    assert asked == []
    assert engine.snapshots == 0
    engine.add(request(2, family=3))
    engine.step()
    assert (len(asked), engine.snapshots) == (1, 1)
    engine.abort(engine.waiting[-1])
    engine.step()
    assert len(asked) == 2


def test_a_batch_that_was_full_is_tried_again_after_a_change() -> None:
    engine = FakeEngine()
    scheduling(engine, admit_all)
    engine.add(request(0, outputs=30))
    engine.step()
    engine.step()
    engine.batch.batch_is_full = True  # something else did not fit
    engine.add(small := request(1, family=2))
    engine.step()
    assert engine.taken == [small]


def test_a_preempted_request_runs_again_only_in_a_later_step() -> None:
    engine = FakeEngine()
    made = scheduling(engine, admit_all)
    first = request(0, outputs=30)
    engine.add(first)
    for _ in range(5):
        engine.step()
    out = len(first.output_ids)
    assert out > 0
    made.policy = JointPolicy("swap", lambda e: decision_on(e, [e.waiting[0].id], [e.running[0].id]))
    second = request(1, family=2)
    engine.add(second)
    engine.step()
    assert (engine.taken, engine.waiting) == ([second], [first])
    assert len(first.output_ids) == out  # the result that was on its way is lost
    assert made.metrics.counted["preemptions",] == 1  # type: ignore[attr-defined]
    entry = made.book.entries[id(first)]
    assert (entry.phase, entry.output_tokens, entry.credit_ns) == (Phase.WAITING, out, 0)
    made.policy = JointPolicy("all", admit_all)
    drain(engine, 100)
    assert len(first.output_ids) == 30


@pytest.mark.parametrize("what", ["pin", "write"])
def test_what_fails_after_a_preemption_does_not_run_the_preempted_in_that_step(what: str) -> None:
    engine = FakeEngine()
    made = scheduling(engine, admit_all)
    first = request(0, outputs=30)
    engine.add(first)
    for _ in range(4):
        engine.step()

    def fails(*_: object) -> Any:  # noqa: ANN401
        raise RuntimeError(what)

    if what == "pin":
        engine.pin = fails  # type: ignore[method-assign]
    else:
        made._log, made._write = object(), fails  # type: ignore[assignment]
    made.policy = JointPolicy("swap", lambda e: decision_on(e, [e.waiting[0].id], [e.running[0].id]))
    engine.add(request(1, family=2))
    engine.step()  # the engine asserts that the preempted one does not run
    assert engine.taken == [engine.new[0]] != [first]
    assert made.metrics.counted["fallbacks", "event"] == 1  # type: ignore[attr-defined]
    assert first in engine.waiting


def test_a_request_that_is_finishing_is_not_preempted() -> None:
    engine = FakeEngine()
    made = scheduling(engine, admit_all)
    first = request(0, outputs=30)
    engine.add(first)
    for _ in range(4):
        engine.step()
    engine.abort(first)
    made.policy = JointPolicy("swap", lambda e: decision_on(e, [e.waiting[0].id], [e.running[0].id]))
    engine.add(request(1, family=2))
    engine.step()
    assert made.book.entries.get(id(first)) is None or made.book.entries[id(first)].phase is Phase.RUNNING
    drain(engine, 100)
    assert [req.rid for req in engine.done] == ["q0", "q1"]


def test_finished_requests_that_still_stand_in_the_batch_are_not_running() -> None:
    engine = FakeEngine(overlap=False)
    seen: list[Event] = []

    def decide(event: Event) -> Decision:
        seen.append(event)
        return admit_all(event)

    made = scheduling(engine, decide)
    first = request(0, outputs=2)
    engine.add(first)
    while not first.finished():
        engine.step()
    assert first in engine.batch.reqs
    engine.add(request(1))
    engine.step()
    assert seen[-1].running == []
    assert made.metrics.counted.get(("fallbacks", "event")) is None  # type: ignore[attr-defined]
    assert engine.taken[0].rid == "q1"


# ------------------------------------------------------------------------------------------ when it fails


def wait(made: JointScheduling, seconds: float = LONGEST_PAUSE_S) -> None:
    """Let time pass, as long as the pause after a failure may be."""
    made._clock.now_s += seconds  # type: ignore[attr-defined]


def fallbacks(made: JointScheduling) -> dict[tuple[str, ...], float]:
    """Return the fallbacks by reason."""
    return {key: n for key, n in made.metrics.counted.items() if key[0] == "fallbacks"}  # type: ignore[attr-defined]


def test_failures_are_counted_each_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()

    def decide(_: Event) -> Decision:
        raise ZeroDivisionError("no")

    made = scheduling(engine, decide)
    with caplog.at_level(logging.WARNING, "topas"):
        for number in range(4):
            wait(made)
            engine.add(request(number, family=number + 1))
            engine.step()
            assert len(engine.taken) == 1
    assert fallbacks(made) == {("fallbacks", "event"): 4.0}
    assert len([r for r in caplog.records if r.name == "topas"]) == 1
    assert engine.pins == 0


def test_a_decision_that_leaves_an_idle_engine_idle_falls_back() -> None:
    engine = FakeEngine()
    made = scheduling(engine, lambda event: decision_on(event, []))
    engine.add(request(0))
    engine.step()
    assert len(engine.taken) == 1
    assert fallbacks(made) == {("fallbacks", "event"): 1.0}
    assert made.metrics.counted.get(("decisions",)) is None  # type: ignore[attr-defined]


def test_nothing_of_an_infeasible_decision_is_carried_out() -> None:
    engine = FakeEngine(kv_tokens=200)
    made = scheduling(engine, admit_all)
    first = request(0, outputs=30)
    engine.add(first)
    for _ in range(4):
        engine.step()
    made.policy = JointPolicy(
        "greedy", lambda e: decision_on(e, [r.id for r in e.waiting], [r.id for r in e.running])
    )
    for number in range(1, 5):
        engine.add(request(number, family=number + 1, own=40))
    engine.step()
    assert first in engine.batch.reqs
    assert made._chosen is None
    assert fallbacks(made) == {("fallbacks", "event"): 1.0}
    assert all(entry.phase is not Phase.ADMITTED for entry in made.book.entries.values())


def test_after_a_failure_the_policy_is_asked_again() -> None:
    engine = FakeEngine()
    answers: list[Decide] = [lambda event: decision_on(event, []), admit_all, admit_all, admit_all]

    def decide(event: Event) -> Decision:
        return answers.pop(0)(event)

    made = scheduling(engine, decide)
    engine.add(request(0, outputs=20))
    engine.step()
    wait(made)
    engine.add(request(1, family=2, outputs=20))
    engine.step()
    assert made._chosen is not None
    assert len(made.book.entries) == 2
    assert all(entry.phase is Phase.RUNNING for entry in made.book.entries.values())


def test_a_prefix_that_came_while_first_come_first_served_is_released_like_others() -> None:
    engine = FakeEngine()
    made = scheduling(engine, lambda event: decision_on(event, []))
    first = request(0, outputs=30)
    engine.add(first)
    for _ in range(4):
        engine.step()
    assert fallbacks(made) == {("fallbacks", "event"): 1.0}
    agent = made.book.entries[id(first)].agent
    assert engine.on_gpu(agent) == 20
    wait(made)
    made.policy = JointPolicy("swap", lambda e: decision_on(e, [e.waiting[0].id], [e.running[0].id]))
    engine.add(request(1, family=2))
    engine.step()
    assert engine.on_gpu(agent) == 0


@pytest.mark.parametrize("leaves_idle", [True, False])
def test_idle_prefixes_stay_and_the_one_that_is_wanted_last_goes_first(*, leaves_idle: bool) -> None:
    """Families 1 and 2 are idle, 1 the longer; the task of 3 needs 1 next, so 2 makes room for 3.

    Who lets nothing lie idle has moved both out by then.
    """
    engine = FakeEngine(kv_tokens=300, overlap=False)
    scheduling(engine, admit_all, leaves_idle=leaves_idle)

    def held() -> list[int]:
        agents = {agent.id: agent for agent in engine.scheduling.book.prefixes}
        return [engine.on_gpu(agents[f"a{family}"]) for family in (1, 2, 3)]

    for family in (1, 2):
        engine.add(request(family, family, prefix=80, own=4, outputs=2))
        drain(engine, 20)
    facts = {"dag": {"s": {"agent": "a3"}, "t": {"agent": "a1", "after": ["s"]}}, "stage": "s"}
    engine.add(request(3, 3, prefix=80, own=10, outputs=100, facts=facts))
    drain(engine, 200)
    first, second, third = held()
    assert third == 80
    assert (first, second < 80) == ((80, True) if leaves_idle else (0, True))


def test_looking_for_what_is_wanted_next_takes_a_small_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server may know thousands of tasks: at a second each time, 200 seconds pass before the next."""
    engine = FakeEngine(kv_tokens=400, overlap=False)
    made = scheduling(engine, admit_all, leaves_idle=True)
    clock: Clock = made._clock  # type: ignore[assignment]
    looked: list[float] = []

    def slow(_: object) -> dict[str, int]:
        looked.append(made.now_s())
        clock.now_s += 1.0
        return {}

    monkeypatch.setattr(joint_scheduling, "steps_to_execution", slow)
    for number in range(100):
        engine.add(request(number, number % 3 + 1, outputs=2))
        drain(engine, 20)
        clock.now_s += 10.0
    assert len(looked) >= 4
    assert all(later - earlier >= 1.0 / FORESIGHT_SHARE for earlier, later in pairwise(looked))


def test_after_failures_in_a_row_the_next_event_waits_longer_and_longer() -> None:
    engine = FakeEngine()
    asked: list[float] = []
    sound = False

    def decide(event: Event) -> Decision:
        asked.append(made.now_s())
        if not sound:
            raise RuntimeError
        return admit_all(event)

    made = scheduling(engine, decide)
    engine.add(request(0, outputs=10_000, max_new_tokens=100))

    def steps(count: int) -> None:
        """Step every millisecond; there is always a request to decide on."""
        for _ in range(count):
            wait(made, 0.001)
            if not engine.waiting:
                engine.add(request(len(made.book.entries), own=1, prefix=0, outputs=1))
            engine.step()

    steps(700)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32], abs=0.0015)
    wait(made)
    sound = True
    steps(2)
    sound = False
    asked.clear()
    steps(30)
    assert asked[-1] - asked[0] == pytest.approx(FIRST_PAUSE_S, abs=0.0015)  # counted from the start again


def test_a_lock_that_cannot_be_given_up_does_not_stop_the_engine() -> None:
    engine = FakeEngine(overlap=False)
    made = scheduling(engine, admit_all)
    engine.add(request(0, outputs=30))
    engine.step()
    engine.step()
    assert made._pins

    def fails(*_: object) -> None:
        raise RuntimeError

    engine.unpin = fails  # type: ignore[method-assign]
    made.policy = JointPolicy("none", lambda e: decision_on(e, [], [r.id for r in e.running] * 2))
    engine.add(late := request(1, family=2))
    made.prefill(engine.original, engine.batch)
    assert engine.taken == [late]
    assert fallbacks(made) == {("fallbacks", "event"): 1, ("fallbacks", "unlock"): 1}


def test_what_an_idle_engine_refuses_is_served_first_come_first_served() -> None:
    engine = FakeEngine(kv_tokens=400)
    made = scheduling(engine, lambda event: decision_on(event, [event.waiting[-1].id]))
    engine.add(request(0))
    engine.add(big := request(1, family=2, own=200, outputs=4, max_new_tokens=400))
    steps = 0
    while not engine.taken:
        engine.step()
        steps += 1
        assert steps < 10
    assert fallbacks(made) == {("fallbacks", "refused"): 1.0}
    assert engine.taken[0].rid == "q0"
    engine.abort(big)
    made.policy = JointPolicy("all", admit_all)
    drain(engine, 50)


def test_a_prefix_of_almost_all_memory_is_served() -> None:
    engine = FakeEngine(kv_tokens=128, page_tokens=16)
    made = scheduling(engine, TOPAS_PAPER.decide)
    for number in range(3):
        engine.add(request(number, prefix=100, own=5, outputs=4))
    drain(engine, 60)
    assert len(engine.done) == 3
    assert fallbacks(made) == {}


def test_the_queue_is_whole_when_the_engines_own_choice_fails() -> None:
    engine = FakeEngine()
    scheduling(engine, lambda event: decision_on(event, [event.waiting[1].id]))
    queue = [request(k, family=k + 1) for k in range(3)]
    for req in queue:
        engine.add(req)
    engine.fail = OSError("out of memory")
    with pytest.raises(OSError, match="out of memory"):
        engine.step()
    assert engine.offered == [queue[1]]
    assert engine.waiting == queue


def test_a_request_that_left_the_queue_unnoticed_is_not_offered() -> None:
    engine = FakeEngine()
    scheduling(engine, lambda event: decision_on(event, [r.id for r in event.waiting]))
    queue = [request(k) for k in range(3)]
    for req in queue:
        engine.add(req)
    engine.step()
    assert engine.taken == [queue[0]]
    engine.step()  # what was taken is a change; the others wait for their leader
    engine.waiting.remove(queue[1])
    engine.step()
    assert engine.taken == [queue[2]]


def test_a_request_whose_grammar_becomes_ready_meanwhile_stays() -> None:
    engine = FakeEngine(max_running=1)
    scheduling(engine, admit_all)
    engine.add(request(0, outputs=12))
    engine.step()
    waits, late = request(1, family=2), request(2, family=3)
    engine.add(waits)
    engine.grammars, engine.has_grammars = [late], True
    engine.step()
    assert engine.waiting == [waits, late]
    drain(engine, 60)
    assert late in engine.done


def test_a_flush_forgets_the_locks() -> None:
    engine = FakeEngine()
    made = scheduling(engine, admit_all)
    engine.add(request(0))
    drain(engine, 30)
    made.changed = True
    engine.flush()
    assert (made._pins, made._resident) == ({}, {})
    engine.add(request(1))
    drain(engine, 30)


def test_a_retracted_request_waits_again_with_what_it_generated() -> None:
    engine = FakeEngine(kv_tokens=120, ratio=0.1, overlap=False)
    made = scheduling(engine, admit_all)
    for number in range(3):
        engine.add(request(number, family=number + 1, prefix=0, own=20, outputs=30))
    drain(engine, 400)
    assert made.metrics.counted["retractions",] > 0  # type: ignore[attr-defined]
    assert all(len(req.output_ids) == 30 for req in engine.done)


def test_a_retraction_is_booked_at_once_and_what_was_not_told_with_the_next_event() -> None:
    engine = FakeEngine(overlap=False)
    made = scheduling(engine, lambda event: decision_on(event, [r.id for r in event.waiting]))
    told, untold = request(0, family=1, outputs=30), request(1, family=2, outputs=30)
    for req in (told, untold):
        engine.add(req)
    engine.step()
    engine.step()
    entries = made.book.entries
    wait(made, 3.0)
    engine._retract(told)
    assert (entries[id(told)].phase, entries[id(told)].service_ns) == (Phase.WAITING, 3 * 10**9)
    assert made.metrics.counted["retractions",] == 1  # type: ignore[attr-defined]
    engine.batch.reqs.remove(untold)
    engine.waiting.append(untold)
    assert entries[id(untold)].phase is Phase.RUNNING
    made.reconcile(engine.running(engine.batch))
    assert (entries[id(untold)].phase, entries[id(untold)].service_ns) == (Phase.WAITING, 3 * 10**9)


@pytest.mark.parametrize("aborted", [False, True])
def test_only_what_was_not_aborted_counts_as_an_execution(*, aborted: bool) -> None:
    engine = FakeEngine()
    made = scheduling(engine, admit_all)
    engine.add(req := request(0, outputs=10))
    for _ in range(5):
        wait(made, 1.0)
        engine.step()
    if aborted:
        engine.abort(req)
    drain(engine, 50, lambda: wait(made, 1.0))
    (history,) = made.book.tracker._histories.values()
    assert len(history._totals) == (not aborted)
    assert all(total > 0 for total in history._totals)


def test_wrong_facts_are_counted_and_the_request_is_served() -> None:
    engine = FakeEngine()
    made = scheduling(engine, admit_all)
    engine.add(Req("q", [1, 2, 3], 2, facts={"task": 7}))
    engine.add(Req("q2", [1, 2, 3], 2))
    engine.add(request(3))
    engine.step()
    counted = made.metrics.counted  # type: ignore[attr-defined]
    assert [counted["requests", kind] for kind in ("wrong", "none", "given")] == [1, 1, 1]
    assert len(engine.taken) == 3


def test_an_arrival_that_the_book_cannot_take_is_served_like_a_foreign_one() -> None:
    engine = FakeEngine()
    made = scheduling(engine, lambda event: decision_on(event, []))
    made.book.arrived = None  # type: ignore[assignment, method-assign]
    engine.add(request(0))
    engine.step()
    assert len(engine.taken) == 1
    assert fallbacks(made) == {("fallbacks", "arrival"): 1.0}
    drain(engine, 20)
