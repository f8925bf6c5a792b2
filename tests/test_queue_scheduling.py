"""Queue policies in an engine: its queue stands in the policy's order, and services are counted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_events import many
from support_live_engine import Clock, Counts, FakeEngine, Req, drain

from topas.engine.rules import FCFS
from topas.event import Params
from topas.online.sglang.book import Book
from topas.online.sglang.config import ServingConfig
from topas.online.sglang.queue_scheduling import QueueScheduling
from topas.policies import QueuePolicy, QueueView, get_policy
from topas.profile import load_profile

NAMES = ("parrot-fcfs", "autellix-las", "spf")
CHAIN = {v: {"agent": v, "after": [w] if w else []} for v, w in (("a", ""), ("b", "a"), ("c", "b"))}
FORK = {"a": {"agent": "a"}, "d": {"agent": "d", "after": ["a"]}}


def scheduling(engine: FakeEngine, policy: str | QueuePolicy) -> QueueScheduling:
    """Return the scheduling of an engine under a policy."""
    found = get_policy(policy) if isinstance(policy, str) else policy
    assert isinstance(found, QueuePolicy)
    book = Book(ServingConfig(), load_profile("study"), Params())
    made = QueueScheduling(engine, book, found, Counts(), Clock())  # type: ignore[arg-type]
    engine.scheduling = made
    return made


class Server:
    """A full engine whose queue grows request by request, a second apart."""

    def __init__(self, policy: str | QueuePolicy, **sizes: Any) -> None:  # noqa: ANN401
        self.engine = FakeEngine(**{"max_running": 1, "overlap": False, "kv_tokens": 4000} | sizes)
        self.made = scheduling(self.engine, policy)
        self.clock: Clock = self.made._clock  # type: ignore[assignment]
        self.number = 0

    def ask(self, task: str, stage: str = "a", outputs: int = 3, **facts: Any) -> Req:  # noqa: ANN401
        """Have a request arrive."""
        self.number += 1
        prompt = [self.number * 100 + k for k in range(10)]
        req = Req(f"q{self.number}", prompt, outputs, facts={"task": task, "stage": stage, **facts})
        self.clock.now_s += 1.0
        self.engine.add(req)
        return req

    def step(self, count: int = 1) -> None:
        """Let a second pass with each step."""
        for _ in range(count):
            self.clock.now_s += 1.0
            self.engine.step()

    def order(self) -> list[str]:
        """Return the queue by names."""
        return [req.rid for req in self.engine.waiting]


def test_earlier_tasks_go_first_under_parrot() -> None:
    server = Server("parrot-fcfs")
    server.ask("busy", outputs=50)
    server.step()
    for task in ("t1", "t2", "t3", "t2", "t1"):
        server.ask(task)
    server.step()
    assert server.order() == ["q2", "q6", "q3", "q5", "q4"]


def test_deeper_stages_go_first_under_spf() -> None:
    server = Server("spf")
    server.ask("busy", outputs=50)
    server.step()
    server.ask("t1", "a", dag=CHAIN)
    server.ask("t2", "d", dag=FORK)
    server.ask("t3", "c", dag=CHAIN)
    server.ask("t4", "x")
    server.ask("t5", "b", dag=CHAIN)
    server.step()
    assert server.order() == ["q4", "q3", "q6", "q2", "q5"]


def test_least_attained_service_counts_over_a_session() -> None:
    server = Server("autellix-las")
    for task, outputs in (("long", 9), ("short", 2), ("long", 9)):
        server.ask(task, outputs=outputs)
        server.step(15)
    jobs = {job.name.partition("#")[0]: job.attained_ns / 1e9 for job in server.made.book.jobs.values()}
    # a second a step: the prefill's step begins the service, each later output takes one
    assert jobs == {"long": 2 * 8.0, "short": 1.0}
    server.ask("busy", outputs=50)
    server.step()
    for task in ("long", "short", "new"):
        server.ask(task)
    server.step()
    assert server.order() == ["q7", "q6", "q5"]


def test_service_begins_with_the_engines_choice_not_with_the_next_change() -> None:
    server = Server("autellix-las")
    server.ask("t", outputs=30)
    server.step(40)
    (job,) = server.made.book.jobs.values()
    assert job.attained_ns == 29 * 10**9


def test_foreign_requests_go_first() -> None:
    server = Server("parrot-fcfs")
    server.ask("busy", outputs=50)
    server.step()
    server.ask("t1")
    server.engine.add(Req("HEALTH_CHECK_1", [1], 1))
    server.ask("t2")
    server.engine.add(Req("HEALTH_CHECK_2", [1], 1))
    server.step()
    assert server.order() == ["HEALTH_CHECK_1", "HEALTH_CHECK_2", "q2", "q3"]


def test_an_unchanged_queue_is_not_ordered_again() -> None:
    calls: list[int] = []

    class Counting(QueuePolicy):
        def rank(self, view: QueueView) -> Callable[[Any], tuple[float | str, ...]]:
            calls.append(len(view.waiting))
            return super().rank(view)

    server = Server(Counting("counting", FCFS))
    server.ask("t1", outputs=20)
    server.ask("t2")
    server.step()
    calls.clear()
    server.engine.snapshots = 0
    server.step(10)
    assert (calls, server.engine.snapshots) == ([], 0)
    server.ask("t3")
    server.step()
    assert calls == [2]
    server.engine.abort(server.engine.waiting[0])
    server.step()
    assert calls == [2, 1]


def test_a_rule_that_fails_leaves_the_queue_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(QueuePolicy):
        def rank(self, _: QueueView) -> Callable[[Any], tuple[float | str, ...]]:
            raise KeyError("x")

    server = Server(Broken("broken", FCFS))
    for number in range(3):
        server.ask(f"t{number}")
        server.step()
    drain(server.engine, 100)
    assert [req.rid for req in server.engine.done] == ["q1", "q2", "q3"]
    counted: dict[tuple[str, ...], float] = server.made.metrics.counted  # type: ignore[attr-defined]
    assert counted["fallbacks", "order"] > 1
    assert len(caplog.records) == 1


@many(30)
@given(st.sampled_from(NAMES), st.integers(0, 10**6))
def test_the_queue_stands_in_the_policys_order_and_nothing_is_lost(name: str, seed: int) -> None:
    random = Random(seed)  # noqa: S311  no secret
    server = Server(name, max_running=2, kv_tokens=200, overlap=random.random() < 0.5)
    policy, made = server.made.policy, []
    order = server.made._order

    def checked(batch: Any) -> None:  # noqa: ANN401
        before = {req.rid for req in server.engine.waiting}
        order(batch)
        entries = [server.made.entry(req) for req in server.engine.waiting]
        ours = [entry for entry in entries if entry is not None]
        assert entries[: len(entries) - len(ours)] == [None] * (len(entries) - len(ours))
        assert {req.rid for req in server.engine.waiting} == before
        keys = []
        for entry in ours:  # the rules once more, in plain words
            live = entry.live
            depth = live.dag.depth[entry.stage]
            first = {
                "parrot-fcfs": entry.job.arrival_s,
                "autellix-las": entry.job.attained_ns,
                "spf": -depth,
            }[policy.name]
            keys.append((first, entry.arrival_s, entry.id))
        assert keys == sorted(keys)

    server.made._order = checked  # type: ignore[method-assign]
    for number in range(12):
        if random.random() < 0.2:
            req = Req(f"HEALTH_CHECK_{number}", [number], 1)
            server.engine.add(req)
        else:
            dag = random.choice([CHAIN, FORK, None])
            more = {} if dag is None else {"dag": dag}
            task = f"t{random.randint(0, 4)}{'d' if dag else ''}{len(dag or ())}"
            req = server.ask(task, random.choice(["a", "b" if dag is not FORK else "d"]), **more)
        made.append(req)
        server.step(random.choice([0, 1, 3]))
        if random.random() < 0.1:
            server.engine.abort(random.choice(made))
    drain(server.engine, 500)
    assert {req.rid for req in server.engine.done} == {req.rid for req in made}
    assert server.made.book.entries == {}
    assert not [key for key in server.made.metrics.counted if key[0] == "fallbacks"]  # type: ignore[attr-defined]
