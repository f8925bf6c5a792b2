"""Playing a trace: the entry to the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from topas.decision import Decision
from topas.engine import core
from topas.engine.state import Setup, World
from topas.errors import InputError, SimulationError
from topas.event import Event, Params
from topas.policies import JointPolicy, Policy, QueuePolicy, get_policy
from topas.profile import Profile
from topas.score import decision_on
from topas.sim.build import grown, request_names, setup_of, world_of
from topas.sim.check import check_decision, check_state
from topas.sim.follow import Follower
from topas.sim.result import SimResult, result_of
from topas.sim.schedule import Schedule
from topas.trace import Trace

Recorder = Callable[[Event, Decision], None]
Progress = Callable[[int, int], None]
"""Called now and then with the number of finished tasks and of all."""
TURNS = 100_000
"""Turns of the engine between two signs of progress."""


def simulate(  # noqa: PLR0913  the run's independent inputs
    trace: Trace,
    policy: str | Policy | Schedule,
    profile: Profile,
    *,
    params: Params | None = None,
    record: Recorder | None = None,
    clock: Callable[[], float] = time.perf_counter,
    check: bool = False,
    progress: Progress | None = None,
) -> SimResult:
    """Play a trace under a policy, or carry out a schedule.

    Parameters
    ----------
    params : parameters of score and search; the engine's constants in them come from the profile.
    record : called with every decision and the event it was made on.
    clock : for the times of joint policies' decisions only; nothing else depends on it.
    check : verify every invariant after every turn (slow).
    progress : called as tasks finish.

    Raises
    ------
    InputError
        if a request can never fit the profile's KV budget.
    SimulationError
        if the policy decides against the rules or the run stops making progress.
    """
    chosen = get_policy(policy) if isinstance(policy, str) else policy
    refuse_unservable(trace, profile)
    if isinstance(chosen, JointPolicy):
        chosen.prepare()
    return _Run(trace, chosen, profile, params or Params(), record, clock).play(
        check=check, progress=progress
    )


class _Run:
    """One run: the engine, and whoever is asked and told."""

    def __init__(  # noqa: PLR0913  the inputs of simulate
        self,
        trace: Trace,
        policy: Policy | Schedule,
        profile: Profile,
        params: Params,
        record: Recorder | None,
        clock: Callable[[], float],
    ) -> None:
        self.trace, self.policy, self.profile = trace, policy, profile
        self.record, self.clock = record, clock
        names = request_names(trace)
        told = record is not None or isinstance(policy, JointPolicy)
        self.setup: Setup = setup_of(
            profile, policy, names, most_changes=params.K, asks=record is not None, logs=told
        )
        self.world: World = world_of(trace, profile, names, logs=told)
        self.follower = Follower(trace, names, profile, params)
        self.decision_s: list[float] = []
        self.event: Event | None = None

    def play(self, *, check: bool, progress: Progress | None) -> SimResult:
        """Run to the end of the trace."""
        turns = 1 if check else TURNS if progress else 0
        while True:
            why = core.advance(self.setup, self.world, turns)
            if why == core.DECIDE:
                self._decide()
            elif why == core.TOOK:
                self._record_taken()
            elif why == core.FULL:
                self._follow()
                self.world = grown(self.world)
            elif why == core.FINISHED:
                return result_of(self.trace, self.policy.name, self.profile.name, self.world, self.decision_s)
            elif why != core.PAUSED:
                self._break_off(why)
            if check:
                check_state(self.policy.name, self.setup, self.world)
            if progress and why != core.TOOK:
                progress(len(self.trace.tasks) - int(self.world.now[0]["unfinished"]), len(self.trace.tasks))

    def _follow(self) -> list[int]:
        return self.follower.follow(self.world) if self.setup.logs else []

    def _decide(self) -> None:
        """Make the event; a joint policy decides on it now, a rule of the engine next."""
        self._follow()
        event = self.follower.event(self.setup, self.world, passed=isinstance(self.policy, QueuePolicy))
        if not isinstance(self.policy, JointPolicy):
            self.event = event
            return
        start = self.clock()
        decision = self.policy.decide(event)
        self.decision_s.append(self.clock() - start)
        check_decision(self.policy.name, event, decision)
        if self.record:
            self.record(event, decision)
        orders = self.follower.orders(self.world, decision)
        if self.setup.by_steps:
            orders = (orders[0], orders[1][:0], *orders[2:])  # idle prefixes stay until their room is needed
        core.carry_out(self.setup, self.world, *orders)

    def _record_taken(self) -> None:
        """Record what a rule decided."""
        admitted = self._follow()
        if self.record and self.event:
            names = [self.follower.names[k] for k in admitted]
            self.record(self.event, decision_on(self.event, names))

    def _break_off(self, why: int) -> NoReturn:
        now, name = self.world.now[0], self.policy.name
        at = f"at {now['now_s']:.3f} s"
        if why == core.STUCK:
            raise SimulationError(
                f"{name} admits none of {now['waiting']} waiting requests to an idle engine {at}"
            )
        raise SimulationError(f"{'livelock' if why == core.LIVELOCK else 'no progress'} {at} under {name}")


def refuse_unservable(trace: Trace, profile: Profile) -> None:
    """Raise InputError for the first request whose prefix and reservation exceed the whole KV budget."""
    for task in trace.tasks:
        for stage, rounds in enumerate(task.rounds):
            prefix = trace.agents[task.workflow.agents[stage]]
            for index, spec in enumerate(rounds):
                need = prefix + spec.reserve_tokens + (profile.admission == "sglang")
                if need > profile.kv_budget_tokens:
                    raise InputError(
                        f"needs {need} KV tokens (prefix {prefix}, input {spec.input_tokens}, "
                        f"max_new {spec.max_new_tokens}); "
                        f"profile {profile.name} has {profile.kv_budget_tokens}",
                        source=trace.name,
                        field=f"tasks.{task.id}.stages.{task.workflow.dag.names[stage]}.rounds.{index}",
                    )
