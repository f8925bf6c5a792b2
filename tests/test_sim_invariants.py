"""The simulator's laws on random traces and engines, for every policy; and that its own checks work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from referee.engine import Engine
from support_sim import (
    Case,
    Entry,
    Stage,
    admit_all,
    admit_what_fits,
    ask,
    cases,
    largest_need,
    make_decision,
    make_profile,
    make_trace,
    played,
    recorded,
    rounds_of_stage,
    scripted,
    single,
)
from support_sim_audit import Audit, all_requests, least_completion_s

from topas.decision import Decision
from topas.engine.core import PAUSED, advance
from topas.engine.state import DECODE, DONE, WAITING, Setup, World
from topas.errors import SimulationError
from topas.event import Event, Params
from topas.formats import log_line
from topas.policies import JointPolicy, get_policy, policy_names
from topas.profile import Profile
from topas.score import score
from topas.sim import SimResult
from topas.sim.build import request_names, setup_of, world_of
from topas.sim.check import check_state
from topas.trace import Round, TaskSpec, Trace

POLICIES = [*policy_names(), "topas-score"]
WALL_CLOCK = ("decision_ms_mean", "decision_ms_p99")


def _examples(count: int) -> settings:
    """Return settings for a fixed set of ``count`` examples: the same at every run."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def _play(case: Case, policy: str) -> tuple[SimResult, list[Entry]]:
    return recorded(case.trace, policy, case.profile, case.params)


# --- laws -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@_examples(30)
@given(case=cases())
def test_recorded_decisions_are_feasible_causal_and_within_memory(policy: str, case: Case) -> None:
    _, entries = _play(case, policy)
    assert Audit(case.trace, case.profile).follow(entries).faults == []


@pytest.mark.parametrize("policy", POLICIES)
@_examples(15)
@given(case=cases())
def test_every_task_finishes_and_none_before_its_critical_path(policy: str, case: Case) -> None:
    result, _ = _play(case, policy)
    assert [task.id for task in result.tasks] == [task.id for task in case.trace.tasks]
    resumed = 0 if case.profile.redo == "decode" else int(result.metrics["preemptions"])
    for task, spec in zip(result.tasks, case.trace.tasks, strict=True):
        least_s = least_completion_s(case.trace, case.profile, spec, resumed)
        assert task.completion_s >= least_s - 1e-9 * max(least_s, 1)


@pytest.mark.parametrize("policy", POLICIES)
@_examples(15)
@given(case=cases())
def test_requests_and_tokens_are_conserved(policy: str, case: Case) -> None:
    engine = played(case, policy)
    log, known = engine.log, all_requests(case.trace)
    assert Counter(name for _, name in log.finished) == dict.fromkeys(known, 1)
    assert Counter(name for _, name in log.ready) == dict.fromkeys(known, 1)
    assert len(log.admitted) == len(known) + len(log.preempted)
    # A token of an output comes from a prefill or from a decode step; so does one that was thrown away.
    made = sum(len(batch) for _, batch in log.prefills) + engine.step_requests
    lost = engine.recomputed if case.profile.redo == "decode" else 0
    assert made == sum(request.round.output_tokens for request in known.values()) + lost
    # Nothing is held at the end: no slot, no reservation, no prefix in use.
    assert (engine.cache.used, engine.reserved, engine.decoding, engine.max_left) == (0, 0, 0, 0)
    assert not engine.cache.active
    assert not engine.tracker.tasks


@pytest.mark.parametrize("policy", POLICIES)
@_examples(10)
@given(case=cases())
def test_the_clock_never_runs_back(policy: str, case: Case) -> None:
    log = played(case, policy).log
    assert log.turns == sorted(log.turns)


@pytest.mark.parametrize("policy", POLICIES)
@_examples(10)
@given(case=cases())
def test_same_input_gives_the_same_metrics_and_the_same_bytes(policy: str, case: Case) -> None:
    (first, entries), (second, again) = _play(case, policy), _play(case, policy)
    assert first.tasks == second.tasks
    assert first.events == second.events
    assert {k: v for k, v in first.metrics.items() if k not in WALL_CLOCK} == {
        k: v for k, v in second.metrics.items() if k not in WALL_CLOCK
    }
    assert [log_line(*entry) for entry in entries] == [log_line(*entry) for entry in again]


@pytest.mark.parametrize("policy", POLICIES)
@_examples(10)
@given(case=cases())
def test_recording_and_checking_change_nothing(policy: str, case: Case) -> None:
    bare = Engine(
        case.trace, get_policy(policy), case.profile, case.params, None, time.perf_counter, check=False
    ).run()
    assert bare.tasks == _play(case, policy)[0].tasks


@pytest.mark.parametrize("policy", [name for name in POLICIES if not name.startswith("topas-")])
@_examples(10)
@given(case=cases())
def test_recorded_terms_are_the_shared_librarys_score(policy: str, case: Case) -> None:
    for event, decision in _play(case, policy)[1]:
        assert decision.terms == score(event, decision.admit, decision.preempt)


# --- the future -----------------------------------------------------------------------------------------


class _Future:
    """Draws a trace that agrees with a case's up to the last of its entries, and not beyond.

    Free to change: tasks that have not arrived, requests that are not ready, and of the others the
    output length beyond what is generated, under the same allowance, and the tool wait behind them.
    """

    def __init__(self, draw: st.DrawFn, case: Case, entries: Sequence[Entry]) -> None:
        self.draw, self.case = draw, case
        self.event = event = entries[-1][0]
        self.waiting = {request.id for request in event.waiting}
        self.running = {request.id: request.generated_tokens for request in event.running}
        self.seen = {request.id for past, _ in entries for request in past.waiting}
        self.admissions = Counter(name for _, decision in entries[:-1] for name in decision.admit)

    def trace(self) -> Trace:
        """Draw the whole trace."""
        tasks = [
            replace(task, rounds=tuple(self._stage(task, k) for k in range(len(task.rounds))))
            for task in self.case.trace.tasks
            if task.arrival_s <= self.event.time_s
        ]
        for k in range(self.draw(st.integers(0, 3))):
            model = self.draw(st.sampled_from(self.case.trace.tasks)).workflow
            rounds = tuple(self._new_rounds(agent) for agent in model.agents)
            if self.draw(st.booleans()):
                rounds = ((Round(0, 1, 1),),) * len(model.agents)
            later_s = (k + 1) * self.draw(st.sampled_from([0.01, 1.0]))
            tasks.append(TaskSpec(f"n{k}", model, self.event.time_s + later_s, rounds))
        return replace(self.case.trace, tasks=tuple(sorted(tasks, key=lambda task: task.arrival_s)))

    def _stage(self, task: TaskSpec, stage: int) -> tuple[Round, ...]:
        agent, rounds = task.workflow.agents[stage], task.rounds[stage]
        names = [f"{task.id}/{task.workflow.dag.names[stage]}/{k}" for k in range(len(rounds))]
        count = sum(name in self.seen for name in names)
        if not count:
            return self._new_rounds(agent)
        past = tuple(map(self._begun, names[:count], rounds[:count]))
        last = names[count - 1]
        if last in self.waiting or last in self.running:
            return past + self._new_rounds(agent)[: self.draw(st.integers(0, 2))]
        # The last round seen is over, and so may its stage be: its number of rounds is no future.
        left = len(rounds) - count
        return past + (self._new_rounds(agent, left)[:left] if left else ())

    def _begun(self, name: str, spec: Round) -> Round:
        """Change what a request that is ready, but not finished, will still do."""
        if name not in self.running and name not in self.waiting:
            return spec
        once = name in self.running and self.admissions[name] == 1
        # An attempt before may have generated more than is seen now.
        least = self.running[name] + 1 if once else spec.output_tokens
        return replace(
            spec,
            output_tokens=self.draw(st.integers(least, spec.max_new_tokens)),
            tool_s=self.draw(st.sampled_from([0.0, 0.25, 2.0])),
        )

    def _new_rounds(self, agent: str, least: int = 1) -> tuple[Round, ...]:
        """Draw rounds that the engine can serve."""
        rounds = self.draw(rounds_of_stage())
        rounds += rounds[:1] * (least - len(rounds))
        limit = self.case.profile.kv_budget_tokens - (self.case.profile.admission == "sglang")
        prefix = self.case.trace.agents[agent]
        return tuple(r if prefix + r.reserve_tokens <= limit else Round(0, 1, 1) for r in rounds)


@pytest.mark.parametrize("policy", POLICIES)
@_examples(20)
@given(data=st.data())
def test_no_policy_sees_the_future(policy: str, data: st.DataObject) -> None:
    case = data.draw(cases())
    _, entries = _play(case, policy)
    count = data.draw(st.integers(1, len(entries)))
    draw: st.DrawFn = data.draw  # type: ignore[assignment]
    other = _Future(draw, case, entries[:count]).trace()
    assert largest_need(other) <= case.profile.kv_budget_tokens
    _, again = recorded(other, policy, case.profile, case.params)
    assert [log_line(*entry) for entry in entries[:count]] == [log_line(*entry) for entry in again[:count]]


# --- planted faults: the engine's own checks ------------------------------------------------------------

Corrupt = Callable[[Setup, World], Setup]


def _change_record(records: str, number: int, field: str, by: int) -> Corrupt:
    """Return what adds ``by`` to a field of one record."""

    def corrupt(setup: Setup, world: World) -> Setup:
        getattr(world, records)[field][number] += by
        return setup

    return corrupt


def _shrink(spare: int) -> Corrupt:
    """Return what makes the budget ``spare`` tokens larger than what is in use."""
    return lambda setup, world: setup._replace(budget=int(world.now["used"][0]) + spare)


PLANTED = {
    "I2: a prefix has no user": (2, _change_record("nodes", 0, "users", -2)),
    "I2: a prefix has one user too many": (2, _change_record("nodes", 0, "users", 1)),
    "I3: a token leaks": (3, _change_record("now", 0, "used", 1)),
    "I4: more in use than there is": (4, _shrink(-1)),
    "I5: a reservation too many": (5, _change_record("now", 0, "reserved", 1)),
    "I5: a prefix in use too many": (5, _change_record("now", 0, "prefixes", 1)),
    "I5: reservations beyond the budget": (5, _shrink(1)),
    "I6: a request is lost": (6, _change_record("requests", 2, "phase", DONE - WAITING)),
    "I6: a running request waits": (6, _change_record("requests", 0, "phase", WAITING - DECODE)),
    "I6: the queue is longer": (6, _change_record("now", 0, "waiting", 1)),
    "I7: a decoding request too many": (7, _change_record("now", 0, "decoding", 1)),
    "I7: a token to come too many": (7, _change_record("now", 0, "max_left", 1)),
    "I8: a token attended to too many": (8, _change_record("now", 0, "attended", 1)),
    "I9: a leftover that is not there": (9, _change_record("now", 0, "leftover", 1)),
}


def _busy() -> tuple[Setup, World]:
    """Return an engine with three equal requests, of which two decode and one waits."""
    trace = make_trace({"A": 10}, *[(0.0, single("A", ask(4, 4)))] * 3)
    profile = make_profile(kv_budget_tokens=10 + 8 + 8)
    names = request_names(trace)
    setup, world = setup_of(profile, get_policy("fcfs"), names), world_of(trace, profile, names)
    while world.now["decoding"][0] < 2:
        assert advance(setup, world, 1) == PAUSED
    return setup, world


@pytest.mark.parametrize("name", PLANTED)
def test_checks_catch_a_planted_fault(name: str) -> None:
    number, corrupt = PLANTED[name]
    setup, world = _busy()
    with pytest.raises(SimulationError, match=rf"^I{number} under fcfs at "):
        check_state("fcfs", corrupt(setup, world), world)


def test_checks_pass_without_a_planted_fault() -> None:
    check_state("fcfs", *_busy())


def _invented(event: Event) -> Decision:
    return replace(make_decision(event), admit=("t99/a/0",), credits_ns=(0,))


def _twice(event: Event) -> Decision:
    name = event.waiting[0].id
    return make_decision(event, [name, name])


def _both_ways(event: Event) -> Decision:
    names = [request.id for request in event.running]
    return make_decision(event, names, names) if names else make_decision(event, *admit_all(event))


def _too_much(event: Event) -> Decision:
    return make_decision(event, [request.id for request in event.waiting])


def _idle_prefix(event: Event) -> Decision:
    return replace(make_decision(event), resident=("A",))


@pytest.mark.parametrize("decide", [_invented, _twice, _both_ways, _too_much, _idle_prefix])
def test_checks_catch_an_illegal_decision_even_when_checking_is_off(
    decide: Callable[[Event], Decision],
) -> None:
    trace = make_trace({"A": 10}, (0.0, single("A", ask(4, 4))), (0.5, single("A", ask(4, 20))))
    policy = JointPolicy("rogue", decide)
    engine = Engine(
        trace, policy, make_profile(kv_budget_tokens=34), Params(), None, time.perf_counter, check=False
    )
    if decide is _too_much:
        engine = Engine(
            make_trace({"A": 10}, *[(0.0, single("A", ask(4, 20)))] * 2),
            policy,
            make_profile(kv_budget_tokens=34),
            Params(),
            None,
            time.perf_counter,
            check=False,
        )
    with pytest.raises(SimulationError, match=r"^I1 under rogue at "):
        engine.run()


# --- planted faults: the tests' own auditor -------------------------------------------------------------


def _history() -> tuple[Trace, Profile, list[Entry]]:
    """Return a run in which requests wait for memory, for predecessors and for a tool."""
    rounds = (ask(4, 4, tool_s=2.0), ask(10, 4, reused_tokens=8))
    stages = {"a": Stage("A", rounds), "b": Stage("B", (ask(4, 4),), ("a",))}
    trace = make_trace({"A": 10, "B": 10}, (0.0, stages), (0.25, stages), (0.5, stages))
    profile = make_profile(kv_budget_tokens=42)
    return trace, profile, recorded(trace, scripted(admit_what_fits), profile)[1]


Tamper = Callable[[list[Entry]], None]


def _change(event: Event, **changes: object) -> Event:
    return replace(event, **changes)  # type: ignore[arg-type]


def _back_in_time(entries: list[Entry]) -> None:
    event, decision = entries[-1]
    entries[-1] = (_change(event, time_s=0.1), decision)


def _admit_in_secret(entries: list[Entry]) -> None:
    event, _ = entries[0]
    entries[0] = (event, make_decision(event))


def _forget_the_queue(entries: list[Entry]) -> None:
    k = next(k for k, (event, _) in enumerate(entries) if len(event.waiting) > 1)
    event, _ = entries[k]
    short = _change(
        event, waiting=event.waiting[1:], tasks={r.task: 0 for r in (*event.waiting[1:], *event.running)}
    )
    entries[k] = (short, make_decision(short))


def _too_early(entries: list[Entry]) -> None:
    """Let the second round come at once instead of after its tool wait."""
    k = next(k for k, (event, _) in enumerate(entries) if any(r.id == "t00/a/1" for r in event.waiting))
    event, decision = entries[k]
    entries[k] = (_change(event, time_s=entries[k - 1][0].time_s), decision)


def _too_big(entries: list[Entry]) -> None:
    k = next(k for k, (event, decision) in enumerate(entries) if len(decision.admit) < len(event.waiting))
    entries[k] = (entries[k][0], make_decision(entries[k][0], *admit_all(entries[k][0])))


def _stop_short(entries: list[Entry]) -> None:
    entries.pop()


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (_back_in_time, "the clock ran back"),
        (_admit_in_secret, "runs without having been admitted"),
        (_forget_the_queue, "vanished from the queue"),
        (_too_early, "is ready before the tool wait"),
        (_too_big, "infeasible"),
        (_stop_short, "never ran"),
    ],
)
def test_the_auditor_catches_a_tampered_history(tamper: Tamper, words: str) -> None:
    trace, profile, entries = _history()
    assert Audit(trace, profile).follow(entries).faults == []
    tamper(entries)
    faults = Audit(trace, profile).follow(entries).faults
    assert any(words in fault for fault in faults), faults


def test_the_auditor_catches_a_stage_ahead_of_its_predecessor() -> None:
    trace, profile, entries = _history()
    audit = Audit(trace, profile)
    audit.known = {
        name: replace(known, behind=("t00/b/0",) if name == "t00/a/1" else known.behind)
        for name, known in audit.known.items()
    }
    assert any("is ready before t00/b/0" in fault for fault in audit.follow(entries).faults)
