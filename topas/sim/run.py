"""Playing a trace: the entry to the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable

from topas.errors import InputError
from topas.event import Params
from topas.policies import JointPolicy, Planned, Policy, get_policy
from topas.profile import Profile
from topas.sim.engine import Engine, Recorder
from topas.sim.result import SimResult
from topas.trace import Trace


def simulate(  # noqa: PLR0913  the run's independent inputs
    trace: Trace,
    policy: str | Policy | Planned,
    profile: Profile,
    *,
    params: Params | None = None,
    record: Recorder | None = None,
    clock: Callable[[], float] = time.perf_counter,
    check: bool = False,
) -> SimResult:
    """Play a trace under a policy.

    Parameters
    ----------
    params : parameters of score and search; the engine's constants in them come from the profile.
    record : called with every decision and the event it was made on.
    clock : for the decision times only; nothing else depends on it.
    check : verify every invariant after every turn (slow).

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
    return Engine(trace, chosen, profile, params or Params(), record, clock, check=check).run()


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
