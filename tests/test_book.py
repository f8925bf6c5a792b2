"""The book of requests and tasks: what it remembers, and for how long; the events made from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support_events import many

from topas.event import Event, Params
from topas.formats import event_json, event_of
from topas.online import tracker as tracker_module
from topas.online.search import select
from topas.online.sglang.book import Book, Entry, Phase
from topas.online.sglang.config import ServingConfig
from topas.online.sglang.facts import RequestFacts
from topas.online.tracker import Tracker
from topas.profile import load_profile
from topas.units import to_ns
from topas.workflow import StageProfile, Workflow, dag_of

PROFILE = load_profile("a100-80g-qwen2.5-32b")
KV = 1000
TTL_S = 100.0


def workflow(text: str, *, profiles: bool = True, name: str = "w") -> Workflow:
    """Return the workflow that ``"a b<a c<a,b*3"`` describes: stage, predecessors, rounds (agent = stage)."""
    after: dict[str, tuple[str, ...]] = {}
    rounds: dict[str, int] = {}
    for word in text.split():
        head, _, count = word.partition("*")
        stage, _, before = head.partition("<")
        after[stage] = tuple(before.split(",")) if before else ()
        rounds[stage] = int(count or 1)
    dag = dag_of(after)
    made = tuple(StageProfile(rounds[v], 100, 50) if profiles else None for v in dag.names)
    return Workflow(name, dag, dag.names, made)


def book(**config: Any) -> Book:  # noqa: ANN401
    """Return an empty book."""
    return Book(ServingConfig(task_ttl_s=TTL_S, **config), PROFILE, Params())


class Talk:
    """Requests of a book by short words."""

    def __init__(self, made: Book) -> None:
        self.book = made
        self.now_s = 0.0
        self.own = 0

    def ask(  # noqa: PLR0913  the facts of a request
        self,
        task: str | None = "t",
        stage: str | None = None,
        *,
        final: bool | None = None,
        dag: Workflow | None = None,
        name: str | None = None,
        agent: str | None = None,
        prefix: int = 0,
        length: int = 40,
        outputs: int = 20,
        ratio_free: bool = False,
    ) -> Entry:
        """Enter a request."""
        self.own += 1
        prompt = [*range(prefix), *(10_000 + 100 * self.own + k for k in range(length - prefix))]
        facts = RequestFacts(
            task=task,
            stage=stage,
            final=final,
            dag=dag,
            workflow=name,
            agent=agent,
            prefix_tokens=prefix or None,
        )
        return self.book.arrived(
            object(), facts, prompt, None, outputs, self.now_s, ratio_free=ratio_free  # type: ignore[arg-type]
        )  # fmt: skip

    def run(self, entry: Entry, seconds: float = 1.0) -> Entry:
        """Have a request start, run and complete."""
        self.book.started(entry, self.now_s)
        self.now_s += seconds
        self.book.left(entry, self.now_s, completed=True)
        return entry

    def event(self, **given: Any) -> Event:  # noqa: ANN401
        """Return the event of this instant."""
        sizes = {
            "kv_tokens": KV,
            "budget_tokens": KV,
            "page_tokens": 1,
            "new_token_ratio": 0.5,
            "resident": (),
        }
        return self.book.event(self.now_s, **{**sizes, **given})


@pytest.fixture
def talk() -> Talk:
    return Talk(book())


def totals(tracker: Tracker, agent: str, stage: str) -> list[int]:
    """Return the executions that a history knows, in nanoseconds."""
    found = tracker._histories.get((agent, stage))
    return [] if found is None else list(found._totals)


def plain(event: Event) -> dict[str, Any]:
    """Return an event as JSON, with each residual's samples in lowest terms."""
    value = event_json(event)
    for name, task in value["tasks"].items():
        for stage, residual in zip(event.tasks[name].dag.names, event.tasks[name].residuals, strict=True):
            task["stages"][stage]["residual_s"] = (residual.values_ns.tolist(), residual.probs.tolist())
    del value["samples"]
    return value


def is_empty(made: Book) -> bool:
    """Return whether nothing is remembered of any request or task."""
    return not (made.entries or made.jobs or made.tracker.tasks)


# ------------------------------------------------------------------------------------------- tasks of a DAG


def test_a_request_marks_what_must_have_come_before_as_complete(talk: Talk) -> None:
    dag = workflow("a b<a c<a d<b,c e")
    talk.run(talk.ask(stage="a", dag=dag, final=False), 2.0)
    live = talk.book.jobs[None, "t"].dag
    assert live is not None
    assert not any(live.finished)
    talk.ask(stage="d", dag=dag)
    done = {live.dag.names[k] for k, finished in enumerate(live.finished) if finished}
    assert done == {"a", "b", "c"}
    tracker = talk.book.tracker
    assert totals(tracker, "a", "a") == [to_ns(2.0)]
    assert totals(tracker, "b", "b") == totals(tracker, "c", "c") == []  # passed over: no sample


def test_a_stage_that_still_has_a_request_is_not_passed_over(talk: Talk) -> None:
    dag = workflow("a b<a c<b")
    first = talk.ask(stage="a", dag=dag, final=False)
    talk.ask(stage="c", dag=dag)
    live = first.live
    assert [live.finished[live.dag.index[v]] for v in "abc"] == [False, True, False]
    talk.run(first)
    assert not live.finished[live.dag.index["a"]]


@pytest.mark.parametrize(
    ("final", "rounds", "complete"),
    [
        (True, 1, True),
        (True, 5, True),
        (False, 1, False),
        (False, 5, False),
        (None, 1, True),
        (None, 5, False),
    ],
)
def test_a_stage_ends_with_its_last_request_or_with_its_only_round(
    talk: Talk, *, final: bool | None, rounds: int, complete: bool
) -> None:
    dag = workflow(f"a*{rounds} b<a")
    live = talk.run(talk.ask(stage="a", dag=dag, final=final)).live
    assert live.finished[0] is complete


def test_without_rounds_a_stage_ends_when_the_client_says_so_or_its_successor_starts(talk: Talk) -> None:
    dag = workflow("a b<a", profiles=False)
    live = talk.run(talk.ask(stage="a", dag=dag), 3.0).live
    assert not live.finished[0]
    talk.ask(stage="b", dag=dag)
    assert live.finished[0]
    assert totals(talk.book.tracker, "a", "a") == [to_ns(3.0)]


def test_parallel_requests_of_a_stage_end_it_together(talk: Talk) -> None:
    dag = workflow("a b<a")
    one, two = (talk.ask(stage="a", dag=dag, final=True) for _ in range(2))
    talk.run(one)
    assert not one.live.finished[0]
    assert totals(talk.book.tracker, "a", "a") == []
    talk.run(two)
    assert one.live.finished[0]
    assert totals(talk.book.tracker, "a", "a") == [to_ns(2.0)]


def test_a_request_that_arrives_before_a_stage_has_ended_keeps_it_open(talk: Talk) -> None:
    dag = workflow("a b<a")
    one, two = (talk.ask(stage="a", dag=dag, final=k == 0) for k in range(2))
    talk.run(one)
    three = talk.ask(stage="a", dag=dag, final=False)
    talk.run(two)
    talk.run(three)
    assert three.live is one.live
    assert not one.live.finished[0]


def test_an_abort_of_a_parallel_request_lets_the_stage_end(talk: Talk) -> None:
    dag = workflow("a b<a")
    one, two = (talk.ask(stage="a", dag=dag, final=k == 0) for k in range(2))
    talk.run(one)
    talk.book.left(two, talk.now_s, completed=False)
    assert one.live.finished[0]


def test_a_stage_that_reopens_after_its_end_is_a_part_of_its_own(talk: Talk) -> None:
    dag = workflow("a b<a")
    first = talk.run(talk.ask(stage="a", dag=dag, final=True))
    again = talk.ask(stage="a", dag=dag, final=True)
    assert again.live is not first.live
    assert again.job is first.job
    assert again.live.dag.names == ("a",)
    talk.run(again)
    assert first.live.finished == [True, False]
    talk.run(talk.ask(stage="b", dag=dag, final=True))
    assert is_empty(talk.book)


def test_an_unknown_stage_of_a_known_dag_is_a_part_of_its_own(talk: Talk) -> None:
    dag = workflow("a b<a")
    known = talk.ask(stage="a", dag=dag)
    other = talk.ask(stage="zz", dag=dag, final=True)
    assert (known.live.dag.names, other.live.dag.names) == (("a", "b"), ("zz",))
    talk.run(other)
    assert (None, "t") in talk.book.jobs


def test_an_agent_without_a_stage_serves_the_first_open_stage_of_its_own(talk: Talk) -> None:
    dag = Workflow("w", dag_of({"a": (), "b": ("a",), "c": ("b",), "d": ()}), tuple("XYXZ"), (None,) * 4)
    stages = []
    for _ in range(2):
        entry = talk.run(talk.ask(agent="X", dag=dag, final=True))
        stages.append(entry.live.dag.names[entry.stage])
    assert stages == ["a", "c"]
    assert talk.run(talk.ask(agent="X", dag=dag, final=True)).live.dag.names == ("X",)


def test_a_stage_without_an_agent_takes_the_dags_one(talk: Talk) -> None:
    dag = Workflow("w", dag_of({"a": ()}), ("writer",), (None,))
    assert talk.ask(stage="a", dag=dag).agent.id == "writer"


def test_the_first_dag_of_a_task_counts(talk: Talk) -> None:
    first, second = workflow("a b<a"), workflow("a c<a")
    one = talk.ask(stage="a", dag=first)
    two = talk.ask(stage="c", dag=second)
    assert one.job is two.job
    assert one.job.dag is not None
    assert one.job.dag.workflow is first
    assert two.live is not one.live


def test_a_dag_may_come_later_than_the_first_request(talk: Talk) -> None:
    dag = workflow("a b<a")
    first = talk.ask(stage="a")
    talk.now_s = 5.0
    second = talk.ask(stage="b", dag=dag, final=True)
    assert (first.live.dag.names, second.live.dag.names) == (("a",), ("a", "b"))
    assert second.live.arrival_s == first.live.arrival_s == 0.0
    assert len({first.live.id, second.live.id}) == 2


def test_a_configured_workflow_needs_no_dag_in_the_request() -> None:
    stages = {
        "a": {"agent": "A", "input_tokens": 10, "max_new_tokens": 5},
        "b": {"agent": "B", "after": ["a"]},
    }
    made = Talk(book(workflows={"w": {"stages": stages}}, agents={"A": {"prefix_tokens": 30}}))
    entry = made.ask(stage="a", name="w")
    assert (entry.live.dag.names, entry.agent.id, entry.agent.prefix_tokens) == (("a", "b"), "A", 30)
    assert made.run(entry).live.finished == [True, False]


def test_the_same_task_name_in_two_workflows_is_two_tasks(talk: Talk) -> None:
    one, two = talk.ask(name="x"), talk.ask(name="y")
    assert one.job is not two.job


def test_a_task_name_that_is_used_again_later_is_a_new_task(talk: Talk) -> None:
    dag = workflow("a")
    first = talk.run(talk.ask(stage="a", dag=dag))
    assert is_empty(talk.book)
    talk.now_s = 50.0
    second = talk.ask(stage="a", dag=dag)
    assert second.job is not first.job
    assert second.live.id != first.live.id
    assert second.live.arrival_s == 50.0


# --------------------------------------------------------------------------------- tasks without DAG or name


def test_a_request_without_a_task_is_a_task_by_itself(talk: Talk) -> None:
    entries = [talk.ask(task=None) for _ in range(3)]
    assert len({entry.job.name for entry in entries}) == 3
    talk.run(entries[0])
    talk.book.left(entries[1], 9.0, completed=False)
    assert list(talk.book.jobs.values()) == [entries[2].job]
    talk.run(entries[2])
    assert is_empty(talk.book)


def test_a_session_goes_on_until_its_last_request(talk: Talk) -> None:
    lives = {talk.run(talk.ask(agent="x")).live.id for _ in range(3)}
    assert len(lives) == 1
    talk.run(talk.ask(agent="x", final=True))
    assert is_empty(talk.book)
    assert totals(talk.book.tracker, "x", "x") == [to_ns(4.0)]


def test_a_stage_without_name_and_agent_is_main(talk: Talk) -> None:
    assert talk.ask().live.dag.names == ("main",)


# ------------------------------------------------------------------------------------- overtaking and pace


def test_a_request_that_later_tasks_overtook_too_often_is_the_only_one_that_policies_see() -> None:
    talk = Talk(book(max_overtaken=3))
    talk.ask("old", outputs=3)
    late = talk.ask("late")
    for k in range(3):
        talk.now_s += 1.0
        assert len(talk.event().waiting) == 2
        talk.run(talk.ask(f"new{k}", final=True))
    assert {request.id for request in talk.event().waiting} == {"r00000001"}
    talk.run(next(iter(talk.book.entries.values())))
    assert {request.id for request in talk.event().waiting} == {late.id}


def test_a_request_that_was_overtaken_too_often_is_not_preempted_once_it_runs() -> None:
    talk = Talk(book(max_overtaken=1))
    late = talk.ask("late", outputs=300)
    talk.now_s = 1.0
    talk.run(talk.ask("new", final=True))
    talk.book.started(late, talk.now_s)
    for k in range(9):
        talk.ask(f"more{k}", outputs=900)
    decision = select(talk.event())
    assert decision.preempt == ()


def test_requests_of_the_same_or_an_earlier_task_overtake_nobody() -> None:
    talk = Talk(book(max_overtaken=1))
    first = talk.ask("first")
    talk.now_s = 1.0
    talk.ask("second")
    talk.run(first)
    talk.run(talk.ask("first"))
    assert talk.book.overdue() is None


def test_without_a_profile_times_are_scaled_to_those_of_the_latest_requests(talk: Talk) -> None:
    given = talk.event().params
    for _ in range(8):
        entry = talk.ask()
        entry.output_tokens = 20
        talk.run(entry, 20 * 3 * given.cost.decode_s_per_token)
    assert talk.event().params.cost == pytest.approx(given.cost.scaled(3))


def test_with_a_profile_times_are_the_profiles() -> None:
    talk = Talk(book(profile="study"))
    given = talk.event().params
    for _ in range(8):
        entry = talk.ask()
        entry.output_tokens = 1
        talk.run(entry, 7.0)
    assert talk.event().params.cost == given.cost


# ------------------------------------------------------------------------------------------------ forgetting


def test_a_silent_session_counts_as_complete_after_its_time(talk: Talk) -> None:
    talk.run(talk.ask(agent="x"), 7.0)
    assert talk.book.expire(7.0 + TTL_S) == 0
    assert talk.book.expire(7.1 + TTL_S) == 1
    assert is_empty(talk.book)
    assert totals(talk.book.tracker, "x", "x") == [to_ns(7.0)]


def test_a_task_that_stopped_half_way_leaves_no_trace(talk: Talk) -> None:
    dag = workflow("a b<a")
    talk.run(talk.ask(stage="a", dag=dag, final=False), 7.0)
    assert talk.book.expire(200.0) == 1
    assert is_empty(talk.book)
    assert totals(talk.book.tracker, "a", "a") == totals(talk.book.tracker, "b", "b") == []


def test_a_task_with_a_request_does_not_expire(talk: Talk) -> None:
    entry = talk.ask()
    assert talk.book.expire(1e6) == 0
    talk.now_s = 1e6
    talk.run(entry)
    assert talk.book.expire(1e6 + TTL_S) == 0
    assert talk.book.expire(1e6 + TTL_S + 2) == 1


def test_an_aborted_last_request_forgets_its_task(talk: Talk) -> None:
    talk.run(talk.ask())
    talk.book.left(talk.ask(final=True), 1.0, completed=False)
    assert is_empty(talk.book)
    talk.book.left(talk.ask(final=False), 1.0, completed=False)
    assert not is_empty(talk.book)


def test_tasks_are_bounded_and_idle_ones_go_by_their_last_request() -> None:
    made = Talk(book(max_tasks=3))
    busy = made.ask("busy")
    for name in "abc":
        made.run(made.ask(name))
    made.run(made.ask("b"))
    made.ask("d")
    assert {key[1] for key in made.book.jobs} == {"busy", "b", "d"}  # type: ignore[index]
    assert len(made.book.tracker.tasks) == 3
    assert busy.live.id in made.book.tracker.tasks


def test_tasks_with_requests_are_never_forgotten_for_others() -> None:
    made = Talk(book(max_tasks=2))
    entries = [made.ask(f"t{k}") for k in range(5)]
    assert len(made.book.jobs) == 5
    for entry in entries:
        made.run(entry)
    made.ask("new")
    assert len(made.book.jobs) == 5  # one went for the new one


def test_histories_are_bounded(monkeypatch: pytest.MonkeyPatch, talk: Talk) -> None:
    monkeypatch.setattr(tracker_module, "MAX_HISTORIES", 5)
    for k in range(20):
        talk.run(talk.ask(f"t{k}", stage=f"s{k}", final=True))
    names = [stage for _, stage in talk.book.tracker._histories]
    assert names == [f"s{k}" for k in range(15, 20)]
    assert is_empty(talk.book)


def test_a_running_stage_outlives_its_forgotten_history(monkeypatch: pytest.MonkeyPatch, talk: Talk) -> None:
    monkeypatch.setattr(tracker_module, "MAX_HISTORIES", 2)
    old = talk.ask("old", stage="s")
    for k in range(4):
        talk.run(talk.ask(f"t{k}", stage=f"s{k}", final=True))
    assert select(talk.event()).admit == (old.id,)
    talk.run(old)


# ------------------------------------------------------------------------------------------------ the tracker


def test_a_forgotten_task_stays_out_of_the_age_scale() -> None:
    tracker = Tracker(PROFILE)
    dag = workflow("a b<a", profiles=False)
    one, two = (tracker.task_arrived(name, dag, 0.0) for name in ("one", "two"))
    for live, seconds in ((one, 4), (two, 6)):
        tracker.request_ready(live, 0, 10, 10)
        tracker.request_admitted(live, 0)
        tracker.request_done(live, 0, to_ns(seconds))
        tracker.stage_done(live, 0)
    before = tracker.age_scale_s
    tracker.forget(one)
    tracker.forget(one)
    assert tracker.tasks == {"two": two}
    assert tracker.age_scale_s == before
    assert tracker.stage_done(two, 1) == []
    assert tracker.age_scale_s == 6.0
    assert totals(tracker, "a", "a") == [to_ns(4), to_ns(6)]


def test_a_stage_without_a_record_is_finished_all_the_same() -> None:
    tracker = Tracker(PROFILE)
    live = tracker.task_arrived("t", workflow("a b<a c<a"), 0.0)
    before = tracker.state(live)
    assert [live.dag.names[k] for k in tracker.stage_done(live, 0, record=False)] == ["b", "c"]
    after = tracker.state(live)
    assert not before.residuals[0].finished
    assert after.residuals[0].finished
    assert totals(tracker, "a", "a") == []


# ------------------------------------------------------------------------------------------------ service


def test_service_is_the_time_run_over_all_preemptions(talk: Talk) -> None:
    entry = talk.ask(agent="x", final=True)
    for start_s, stop_s in ((1.0, 3.5), (4.0, 4.25)):
        talk.book.admitted(entry, 5)
        talk.book.started(entry, start_s)
        talk.book.put_back(entry, stop_s)
        assert (entry.phase, entry.credit_ns) == (Phase.WAITING, 0)
    talk.book.put_back(entry, 4.5)  # it waits already
    talk.book.admitted(entry, 5)
    talk.book.put_back(entry, 9.0)  # chosen, but never taken: no service
    talk.book.started(entry, 10.0)
    talk.book.left(entry, 12.0, completed=True)
    assert entry.service_ns == to_ns(2.5 + 0.25 + 2.0)
    assert totals(talk.book.tracker, "x", "x") == [entry.service_ns]
    assert entry.live.running == [0]
    talk.book.left(entry, 20.0, completed=True)  # told twice
    assert entry.job.attained_ns == to_ns(4.75)


def test_a_request_may_complete_before_it_was_seen_to_run(talk: Talk) -> None:
    entry = talk.ask(final=True)
    talk.book.left(entry, 3.0, completed=True)
    assert entry.live.running == [0]
    assert is_empty(talk.book)


# ------------------------------------------------------------------------------------------------ events


def test_a_waiting_request_reserves_its_whole_need_and_a_running_one_the_engines_share(talk: Talk) -> None:
    kinds = [
        talk.ask(f"t{k}", agent="x", prefix=16, length=50, outputs=21, ratio_free=k == 2) for k in range(4)
    ]
    talk.book.admitted(kinds[3], 0)
    for entry in kinds[1:3]:
        talk.book.started(entry, 0.0)
        entry.output_tokens = 5
    event = talk.event(page_tokens=4)
    need = {r.id: r.reserve_tokens for r in (*event.waiting, *event.running)}
    assert need[kinds[0].id] == need[kinds[3].id] == 34 + 4 + 21
    assert need[kinds[1].id] == 34 + 5 + 4 + 8
    assert need[kinds[2].id] == 34 + 5 + 4 + 16
    assert {r.id for r in event.running} == {entry.id for entry in kinds[1:]}
    assert {r.id: r.generated_tokens for r in event.running}[kinds[1].id] == 5


def test_no_request_reserves_more_than_fits_alone(talk: Talk) -> None:
    entry = talk.ask(agent="x", prefix=16, length=50, outputs=5000)
    event = talk.event()
    assert event.waiting[0].reserve_tokens == KV - 16
    assert select(event).admit == (entry.id,)


def test_a_prefix_that_leaves_no_room_gives_an_event_that_can_be_read(talk: Talk) -> None:
    talk.book.started(talk.ask("t0", agent="x", prefix=50, length=52), 0.0)
    talk.ask("t1", agent="x", prefix=50, length=52)
    event = talk.event(kv_tokens=48, budget_tokens=48)
    assert plain(event_of(event_json(event))) == plain(event)
    assert [r.reserve_tokens for r in (*event.waiting, *event.running)] == [0, 0]


def test_a_prompt_that_parts_from_its_agents_prefix_counts_the_rest_as_its_own(talk: Talk) -> None:
    short = talk.ask("t0", agent="x", prefix=20, length=60, outputs=10)
    assert short.shared_tokens() == 20
    longer = [*range(20), *range(500, 540)]
    for k in range(9):
        facts = RequestFacts(task=f"u{k}", agent="x", prefix_tokens=20)
        talk.book.arrived(object(), facts, longer, None, 10, 0.0)  # type: ignore[arg-type]
    short.agent.prefix = longer_prefix = short.agent.prefix[:12]
    assert short.shared_tokens() == 12
    assert short.prefix is longer_prefix
    event = talk.event()
    assert {r.id: r.reserve_tokens for r in event.waiting}[short.id] == 60 - 12 + 1 + 10


def test_the_budget_is_never_below_what_runs(talk: Talk) -> None:
    for k in range(3):
        talk.book.started(talk.ask(f"t{k}", agent="x", prefix=16, length=50, outputs=100), 0.0)
    event = talk.event(budget_tokens=10)
    assert event.budget_tokens == 16 + 3 * (34 + 1 + 50)
    assert talk.event(budget_tokens=700).budget_tokens == 700


def test_cached_is_the_prefix_where_it_is_resident(talk: Talk) -> None:
    talk.ask("t0", agent="x", prefix=16)
    talk.ask("t1", agent="y", prefix=20)
    talk.ask("t2", agent="z")
    event = talk.event(resident=["x", "z", "never heard of"])
    assert {r.agent: r.cached_tokens for r in event.waiting} == {"x": 16, "y": 0, "z": 0}
    assert event.resident == {"x", "z"}
    assert dict(event.agents) == {"x": 16, "y": 20, "z": 0}


def test_a_resident_agent_without_requests_is_still_told_of(talk: Talk) -> None:
    talk.run(talk.ask("t0", agent="x", prefix=16, final=True))
    talk.ask("t1", agent="y", prefix=20)
    event = talk.event(resident=["x"])
    assert (event.resident, dict(event.agents)) == ({"x"}, {"x": 16, "y": 20})


def test_agents_of_running_requests_are_resident(talk: Talk) -> None:
    talk.book.started(talk.ask("t0", agent="x", prefix=16), 0.0)
    talk.book.admitted(talk.ask("t1", agent="y", prefix=20), 0)
    assert talk.event().resident == {"x", "y"}


def test_reuse_counts_only_agents_that_are_known(talk: Talk) -> None:
    dag = workflow("a b<a c<a")
    talk.book.started(talk.ask("t0", stage="a", dag=dag), 0.0)
    assert talk.event().reuse_counts == {}
    talk.ask("t1", stage="b", dag=dag, prefix=16)
    assert talk.event().reuse_counts == {"b": 1}


def test_names_as_long_as_clients_may_choose_give_an_event_that_can_be_read(talk: Talk) -> None:
    long = "n" * 200
    for prefix in (40, 60):
        talk.own += 100
        prompt = [*range(prefix * 1000, prefix * 1000 + prefix), *range(5)]
        facts = RequestFacts(workflow=long, task=long, stage=long, agent=long, prefix_tokens=prefix)
        talk.book.arrived(object(), facts, prompt, None, 10, 0.0)  # type: ignore[arg-type]
    event = talk.event()
    assert len({r.agent for r in event.waiting}) == 2
    assert event_of(event_json(event)).agents == event.agents


def test_a_queue_policys_view_counts_the_whole_request(talk: Talk) -> None:
    entry = talk.ask(stage="a", dag=workflow("a"), length=40, outputs=20)
    request = talk.book.request_of(entry)
    assert (request.id, request.task, request.stage) == (entry.id, entry.live.id, "a")
    assert (request.reserve_tokens, request.arrival_s) == (60, 0.0)
    assert request.service_s > 0


# --------------------------------------------------------------------- any sequence, against a plain model

STAGES = "a b<a c<a d<b,c*2"


@dataclass
class ModelJob:
    """A task in plain words: per part the stages that are done and the service each received."""

    key: Hashable
    has_dag: bool
    seen_s: float
    done: set[tuple[str, int]] = field(default_factory=set)
    served: Counter[tuple[str, int]] = field(default_factory=Counter)
    number: Counter[str] = field(default_factory=Counter)
    closing: set[tuple[str, int]] = field(default_factory=set)
    dag_lives: bool = False
    attained_ns: int = 0

    def open_single(self, stage: str) -> int | None:
        """Return the number of the part that a stage has on its own, if it is in progress."""
        number = self.number[stage]
        return number if number and (stage, number) not in self.done else None


@dataclass
class ModelEntry:
    """A request in plain words."""

    entry: Entry
    job: ModelJob
    place: tuple[str, int]
    last: bool | None
    phase: str = "waiting"
    since_s: float = 0.0
    service_ns: int = 0


class Books(RuleBasedStateMachine):
    """Arrivals, starts, put-backs, completions, aborts and silence in any order."""

    @initialize()
    def begin(self) -> None:
        """Begin with nothing."""
        self.dag = workflow(STAGES)
        self.book = book(max_tasks=6)
        self.talk = Talk(self.book)
        self.model: list[ModelEntry] = []
        self.jobs: dict[Hashable, ModelJob] = {}
        self.samples: Counter[str] = Counter()
        self.numbers = 0

    # what the model does

    def before(self, stage: str) -> set[str]:
        """Return all stages that come before one."""
        direct = {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"b", "c"}}[stage]
        return direct.union(*(self.before(other) for other in direct))  # type: ignore[no-any-return]

    def busy(self, job: ModelJob, place: tuple[str, int] | None = None) -> bool:
        """Return whether a task, or a part of it, has requests."""
        return any(m.job is job and place in (None, m.place) for m in self.model)

    def finish(self, job: ModelJob, place: tuple[str, int], *, record: bool = True) -> None:
        """Finish a stage."""
        job.done.add(place)
        if record:
            self.samples[place[0]] += 1
        if place[1] == 0 and len([1 for _, number in job.done if number == 0]) == len(self.dag.dag):
            job.dag_lives = False

    def is_over(self, job: ModelJob) -> bool:
        """Return whether all parts of a task are complete."""
        singles = [s for s in job.number if job.open_single(s) is not None]
        return not job.dag_lives and not singles

    def forget(self, job: ModelJob) -> None:
        """Drop a task."""
        if self.jobs.get(job.key) is job:
            del self.jobs[job.key]

    # rules

    @rule(
        task=st.sampled_from(["t0", "t1", "t2", None]),
        stage=st.sampled_from(["a", "b", "c", "d", "x"]),
        final=st.sampled_from([True, False, None]),
        dag=st.booleans(),
        prefix=st.sampled_from([0, 16, 30]),
        outputs=st.sampled_from([1, 20, 2000]),
    )
    def arrive(  # noqa: PLR0913
        self, *, task: str | None, stage: str, final: bool | None, dag: bool, prefix: int, outputs: int
    ) -> None:
        """Have a request arrive."""
        entry = self.talk.ask(
            task,
            stage,
            final=final,
            dag=self.dag if dag else None,
            agent=stage,
            prefix=prefix,
            outputs=outputs,
        )
        self.numbers += 1
        key: Hashable = self.numbers if task is None else task
        job = self.jobs.get(key)
        if job is None:
            idle = [j for j in self.jobs.values() if not self.busy(j)]
            if len(self.jobs) >= 6 and idle:
                self.forget(min(idle, key=lambda j: j.seen_s))
            job = self.jobs[key] = ModelJob(key, has_dag=False, seen_s=0.0)
        if dag and not job.has_dag:
            job.has_dag = job.dag_lives = True
        place = (stage, 0)
        if job.dag_lives and stage != "x" and place not in job.done:
            for other in sorted(self.before(stage)):
                spot = (other, 0)
                if spot not in job.done and not self.busy(job, spot):
                    self.finish(job, spot, record=job.served[spot] > 0)
        else:
            number = job.open_single(stage)
            if number is None:
                job.number[stage] += 1
                number = job.number[stage]
            place = (stage, number)
        job.closing.discard(place)  # it goes on
        job.seen_s = self.talk.now_s
        self.model.append(ModelEntry(entry, job, place, True if task is None else final))

    def pick(self, data: st.DataObject, *phases: str) -> ModelEntry:
        """Draw a request in one of some phases."""
        return data.draw(st.sampled_from([m for m in self.model if m.phase in phases]))

    def some(self, *phases: str) -> bool:
        """Return whether there is one."""
        return any(m.phase in phases for m in self.model)

    @rule(seconds=st.sampled_from([0.25, 1.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.talk.now_s += seconds

    @precondition(lambda self: self.some("waiting"))
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """Choose a request."""
        found = self.pick(data, "waiting")
        self.book.admitted(found.entry, 7)
        found.phase = "admitted"

    @precondition(lambda self: self.some("waiting", "admitted"))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Take one."""
        found = self.pick(data, "waiting", "admitted")
        self.book.started(found.entry, self.talk.now_s)
        found.phase, found.since_s = "running", self.talk.now_s

    def stop(self, found: ModelEntry) -> None:
        """Add up what a request has run."""
        if found.phase == "running":
            found.service_ns += to_ns(self.talk.now_s - found.since_s)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """Preempt a request, or retract it."""
        found = self.pick(data, "waiting", "admitted", "running")
        self.book.put_back(found.entry, self.talk.now_s)
        self.stop(found)
        found.phase = "waiting"

    @precondition(lambda self: self.model)
    @rule(data=st.data(), completed=st.sampled_from([True, True, False]))
    def leave(self, data: st.DataObject, *, completed: bool) -> None:
        """Complete or abort a request."""
        self.end(self.pick(data, "waiting", "admitted", "running"), completed=completed)

    def end(self, found: ModelEntry, *, completed: bool) -> None:
        """End one."""
        job, place = found.job, found.place
        self.book.left(found.entry, self.talk.now_s, completed=completed)
        self.stop(found)
        self.model.remove(found)
        job.seen_s = self.talk.now_s
        if completed:
            job.served[place] += found.service_ns
            job.attained_ns += found.service_ns
            last = found.last
            if last is None:
                last = place[1] == 0 and place[0] in "abc"
            if last:
                job.closing.add(place)
        if not self.busy(job, place) and place in job.closing:
            job.closing.discard(place)
            self.finish(job, place)
            if self.is_over(job) and not self.busy(job):
                self.forget(job)
        if not completed and found.last and not self.busy(job):
            self.forget(job)

    @rule()
    def expire(self) -> None:
        """Forget silent tasks."""
        self.book.expire(self.talk.now_s)
        for job in list(self.jobs.values()):
            if not self.busy(job) and self.talk.now_s - job.seen_s > TTL_S:
                self.silence(job)

    def silence(self, job: ModelJob) -> None:
        """Forget a task; its open parts count where every open stage of them was served."""
        if job.dag_lives:
            left = [(s, 0) for s in "abcd" if (s, 0) not in job.done]
            if all(job.served[place] for place in left):
                for place in left:
                    self.finish(job, place)
        for stage in list(job.number):
            number = job.open_single(stage)
            if number is not None and job.served[stage, number]:
                self.finish(job, (stage, number))
        self.forget(job)

    @rule(ratio=st.sampled_from([0.0, 0.3, 1.0]), page=st.sampled_from([1, 16]), data=st.data())
    def look(self, ratio: float, page: int, data: st.DataObject) -> None:
        """Make an event: it can be read back, keeping all is feasible, and it decides the same."""
        resident = data.draw(st.sets(st.sampled_from(["a", "b", "x", "zz"])))
        event = self.talk.event(new_token_ratio=ratio, page_tokens=page, resident=resident)
        again = event_of(event_json(event))
        assert plain(again) == plain(event)
        agents = {r.agent for r in event.running}
        needed = sum(event.agents[a] for a in agents) + sum(r.reserve_tokens for r in event.running)
        assert needed <= event.budget_tokens
        assert all(
            0 < r.reserve_tokens <= KV - event.agents[r.agent] for r in (*event.waiting, *event.running)
        )
        assert set(event.reuse_counts) <= set(event.agents)
        assert agents <= event.resident <= set(event.agents)
        if event.waiting:
            decision = select(event)
            assert select(again) == decision
            assert event.running or decision.admit, "an idle engine stays idle"

    # what must hold

    @invariant()
    def the_book_agrees(self) -> None:
        """Compare the book with the model."""
        if not hasattr(self, "book"):
            return
        for found in self.model:
            entry = found.entry
            assert self.book.entries[id(entry.req)] is entry
            assert (entry.phase.value, entry.service_ns) == (found.phase, found.service_ns)
            assert entry.live.id in self.book.tracker.tasks
            assert not entry.live.finished[entry.stage]
            assert entry.job.attained_ns == found.job.attained_ns
        assert len(self.book.entries) == len(self.model)
        names = {key if isinstance(key, int) else key[1] for key in self.book.jobs}  # type: ignore[index]
        assert names == set(self.jobs)
        lives = {live.id for job in self.book.jobs.values() for live in job.lives}
        assert set(self.book.tracker.tasks) == lives
        for live in self.book.tracker.tasks.values():
            count = Counter(
                m.entry.stage for m in self.model if m.entry.live is live and m.phase != "waiting"
            )
            assert live.running == [count[k] for k in range(len(live.dag))]
        recorded: Counter[str] = Counter()
        for (_, stage), history in self.book.tracker._histories.items():
            recorded[stage] += len(history._totals)
        assert recorded == +self.samples

    def teardown(self) -> None:
        """End all: nothing stays."""
        if not hasattr(self, "book"):
            return
        for found in list(self.model):
            self.end(found, completed=found.phase == "running")
        self.book.expire(self.talk.now_s + TTL_S + 1)
        assert is_empty(self.book)


def test_any_sequence_is_booked_as_a_plain_model_says() -> None:
    run_state_machine_as_test(Books, settings=settings(many(80), stateful_step_count=25))  # type: ignore[no-untyped-call]
