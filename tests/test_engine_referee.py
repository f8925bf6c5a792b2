"""The compiled engine agrees with the referee to the bit: every time, every counter, every recorded event."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from referee.engine import Engine
from support_sim import Case, Entry, admit_what_fits, cases, make_decision

from topas.engine.core import BLOCK, SKIP, STRICT
from topas.errors import SimulationError
from topas.event import Event
from topas.feasible import violations
from topas.formats import log_line
from topas.policies import JointPolicy, Policy, get_policy
from topas.sim import SimResult, simulate
from topas.sim.build import request_names
from topas.sim.schedule import Schedule

RULES = ("fcfs", "lpm", "parrot-fcfs", "autellix-las", "spf", "hrrn", "kvflow", "downstream-gate")


def _examples(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@st.composite
def worlds(draw: st.DrawFn) -> Case:
    """Draw a case on an engine with any of the details that measured profiles have."""
    case = draw(cases())
    profile = case.profile.model_copy(
        update={
            "prefix_sharing": draw(st.sampled_from(["batch", "tree"])),
            "request_s": draw(st.sampled_from([0.0, 0.25])),
            "ignore_eos": draw(st.booleans()),
            "prefill_s_per_seq": draw(st.sampled_from([0.0, 0.01])),
            "prefill_s_per_cached_token": draw(st.sampled_from([0.0, 0.003])),
            "prefill_s_per_pair": draw(st.sampled_from([0.0, 1e-4])),
            "prefill_s_per_cached_pair": draw(st.sampled_from([0.0, 1e-5])),
        }
    )
    return replace(case, profile=profile)


Outcome = tuple[SimResult, list[str]] | str


def _both(case: Case, policy: Policy | Schedule) -> tuple[Outcome, Outcome]:
    """Return what the compiled engine and the referee make of a case: result and log, or the error."""
    logs: tuple[list[Entry], list[Entry]] = ([], [])

    def outcome(play: Callable[[], SimResult], log: list[Entry]) -> Outcome:
        try:
            result = play()
        except SimulationError as error:
            return str(error)
        return _without_times(result), [log_line(*entry) for entry in log]

    return (
        outcome(
            lambda: simulate(
                case.trace, policy, case.profile, params=case.params, check=True,
                record=lambda *entry: logs[0].append(entry),
            ),
            logs[0],
        ),
        outcome(
            lambda: Engine(
                case.trace, policy, case.profile, case.params, lambda *entry: logs[1].append(entry),
                time.perf_counter, check=True,
            ).run(),
            logs[1],
        ),
    )  # fmt: skip


def _without_times(result: SimResult) -> SimResult:
    kept = {k: v for k, v in result.metrics.items() if not k.startswith("decision_ms")}
    return replace(result, metrics=kept)


@pytest.mark.parametrize("policy", RULES)
@_examples(25)
@given(case=worlds())
def test_rules_are_played_as_the_referee_plays_them(policy: str, case: Case) -> None:
    compiled, referee = _both(case, get_policy(policy))
    assert compiled == referee


@pytest.mark.parametrize("policy", RULES)
@_examples(8)
@given(case=worlds())
def test_recording_a_rule_changes_nothing(policy: str, case: Case) -> None:
    plain = simulate(case.trace, policy, case.profile, params=case.params)
    recorded = simulate(
        case.trace, policy, case.profile, params=case.params, record=lambda _event, _decision: None
    )
    assert _without_times(plain) == _without_times(recorded)


def _restless(seed: int, *, leaves_idle: bool) -> JointPolicy:
    """Return a policy that preempts and admits at random; what it decides follows from the event alone."""

    def decide(event: Event) -> tuple[list[str], list[str]]:
        draw = random.Random(f"{seed} {event.time_s} {len(event.waiting)}")  # noqa: S311
        dropped = sorted(r.id for r in event.running if draw.random() < 0.1)
        kept = replace(event, running=[r for r in event.running if r.id not in dropped])
        admitted, _ = admit_what_fits(kept)
        draw.shuffle(admitted)
        admitted = admitted[: draw.randint(0, len(admitted))]
        if violations(event, make_decision(event, admitted, dropped)) or not (
            admitted or len(dropped) < len(event.running)
        ):
            return admit_what_fits(event)
        return admitted, dropped

    return JointPolicy(
        "restless", lambda event: make_decision(event, *decide(event)), leaves_idle=leaves_idle
    )


@pytest.mark.parametrize("leaves_idle", [False, True])
@_examples(60)
@given(case=worlds(), seed=st.integers(0, 1000))
def test_random_decisions_are_carried_out_as_the_referee_does(
    leaves_idle: bool,  # noqa: FBT001
    case: Case,
    seed: int,
) -> None:
    compiled, referee = _both(case, _restless(seed, leaves_idle=leaves_idle))
    assert compiled == referee


@_examples(60)
@given(case=worlds(), draw=st.randoms(use_true_random=False))
def test_schedules_are_carried_out_as_the_referee_does(case: Case, draw: random.Random) -> None:
    names = list(request_names(case.trace))
    order = names.copy()
    if draw.random() < 0.7:
        draw.shuffle(order)
    mode = {name: draw.choice([SKIP, BLOCK, STRICT]) for name in names if draw.random() < 0.3}
    gate = {name: draw.choice(names) for name in names if draw.random() < 0.1}
    compiled, referee = _both(case, Schedule(tuple(order), mode, gate))
    assert compiled == referee


@_examples(15)
@given(case=worlds())
def test_the_papers_policy_is_carried_out_as_the_referee_does(case: Case) -> None:
    compiled, referee = _both(case, get_policy("topas-paper"))
    assert compiled == referee
