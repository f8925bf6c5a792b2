"""Builders for the simulator's tests: tiny traces and profiles, scripted policies, random cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from referee.engine import Engine
from referee.job import Job

from topas.decision import Decision, Terms
from topas.event import Event, Params
from topas.feasible import violations
from topas.policies import JointPolicy, Policy, get_policy
from topas.profile import Profile
from topas.sim import SimResult, simulate
from topas.trace import Round, TaskSpec, Trace
from topas.workflow import StageProfile, Workflow, dag_of

PREFILL_S = 1 / 16
"""Prefill of a token on the plain profile: a binary fraction, so that hand-computed times are exact."""
STEP_S = 1 / 4
"""A decode step on the plain profile, whatever the batch."""
LOAD_S = 1 / 32
"""Time to move one token over the host link on the plain profile."""


def make_profile(**changes: Any) -> Profile:  # noqa: ANN401  a profile's fields
    """Return the plain profile with changes: 1,000 tokens, no base times, no host copies."""
    plain: dict[str, Any] = {
        "name": "plain",
        "kv_budget_tokens": 1000,
        "kv_bytes_per_token": 1,
        "swap_bytes_per_s": 1 / LOAD_S,
        "prefill_base_s": 0.0,
        "prefill_s_per_token": PREFILL_S,
        "decode_base_s": STEP_S,
        "decode_s_per_seq": 0.0,
        "decode_s_per_kv_token": 0.0,
        "max_running": 64,
        "host_cache": False,
    }
    return Profile(**(plain | changes))


def stepping(budget: int, **changes: object) -> Profile:
    """Return an engine whose prefills take no time and whose decode steps take a second."""
    plain: dict[str, object] = {
        "kv_budget_tokens": budget,
        "prefill_s_per_token": 0.0,
        "decode_base_s": 1.0,
        "swap_bytes_per_s": 1.0,
    }
    return make_profile(**(plain | changes))


def ask(
    input_tokens: int,
    output_tokens: int,
    max_new_tokens: int | None = None,
    *,
    tool_s: float = 0.0,
    reused_tokens: int = 0,
) -> Round:
    """Return a round that may generate what it generates, unless told otherwise."""
    allowed = output_tokens if max_new_tokens is None else max_new_tokens
    return Round(input_tokens, output_tokens, allowed, tool_s, reused_tokens)


@dataclass(frozen=True)
class Stage:
    """A stage of a task: its agent, its rounds, the stages before it, and what is known beforehand."""

    agent: str
    rounds: Sequence[Round]
    after: Sequence[str] = ()
    profile: StageProfile | None = None


def make_trace(
    agents: Mapping[str, int], *tasks: tuple[float, Mapping[str, Stage]], name: str = "tiny"
) -> Trace:
    """Return a trace of tasks ``t00``, ``t01``, ... given as (arrival, stages) in order of arrival."""
    workflows: dict[Any, Workflow] = {}
    specs = []
    for k, (arrival_s, stages) in enumerate(tasks):
        shape = tuple((v, s.agent, tuple(s.after), s.profile) for v, s in stages.items())
        if shape not in workflows:
            dag = dag_of({v: tuple(s.after) for v, s in stages.items()})
            ordered = [stages[v] for v in dag.names]
            workflows[shape] = Workflow(
                f"w{len(workflows)}",
                dag,
                tuple(s.agent for s in ordered),
                tuple(s.profile for s in ordered),
            )
        workflow = workflows[shape]
        rounds = tuple(tuple(stages[v].rounds) for v in workflow.dag.names)
        specs.append(TaskSpec(f"t{k:02d}", workflow, arrival_s, rounds))
    return Trace(name, dict(agents), {w.name: w for w in workflows.values()}, tuple(specs))


def single(agent: str, *rounds: Round) -> dict[str, Stage]:
    """Return the stages of a task with one stage, named after its agent in lower case."""
    return {agent.lower(): Stage(agent, rounds)}


def chain(*stages: tuple[str, Round]) -> dict[str, Stage]:
    """Return the stages ``s0`` -> ``s1`` -> ... given as (agent, its one request)."""
    return {
        f"s{k}": Stage(agent, (spec,), (f"s{k - 1}",) if k else ()) for k, (agent, spec) in enumerate(stages)
    }


Entry = tuple[Event, Decision]


def recorded(
    trace: Trace, policy: str | Policy, profile: Profile, params: Params | None = None
) -> tuple[SimResult, list[Entry]]:
    """Return a checked run's result, and every decision with its event."""
    entries: list[Entry] = []
    result = simulate(
        trace,
        policy,
        profile,
        params=params,
        record=lambda event, decision: entries.append((event, decision)),
        check=True,
    )
    return result, entries


def jcts(result: SimResult) -> list[float]:
    """Return the completion times (not the durations) of all tasks in order of arrival."""
    return [task.completion_s for task in result.tasks]


def make_decision(event: Event, admit: Iterable[str] = (), preempt: Iterable[str] = ()) -> Decision:
    """Return the decision that admits and preempts these requests, with no credits."""
    admit, preempt = tuple(admit), tuple(preempt)
    agents = {r.agent for r in event.running if r.id not in preempt}
    agents |= {r.agent for r in event.waiting if r.id in admit}
    return Decision(tuple(sorted(agents)), admit, preempt, Terms(), (0,) * len(admit))


Choice = Callable[[Event], tuple[Sequence[str], Sequence[str]]]


def scripted(choose: Choice, name: str = "scripted") -> JointPolicy:
    """Return a joint policy that admits and preempts what ``choose`` names."""
    return JointPolicy(name, lambda event: make_decision(event, *choose(event)))


def admit_all(event: Event) -> tuple[list[str], list[str]]:
    """Admit all that wait, in order of their ids."""
    return sorted(request.id for request in event.waiting), []


def admit_what_fits(event: Event) -> tuple[list[str], list[str]]:
    """Admit, in order of their ids, all that fit."""
    admitted: list[str] = []
    for name in sorted(request.id for request in event.waiting):
        if not violations(event, make_decision(event, [*admitted, name])):
            admitted.append(name)
    return admitted, []


@dataclass
class Log:
    """What a :class:`WatchedEngine` did: (time, request) of every change of a request's state."""

    ready: list[tuple[float, str]] = field(default_factory=list)
    admitted: list[tuple[float, str]] = field(default_factory=list)
    preempted: list[tuple[float, str]] = field(default_factory=list)
    finished: list[tuple[float, str]] = field(default_factory=list)
    prefills: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)

    def time_of(self, what: str, request: str) -> float:
        """Return the first time of an action (``admitted``, ...) on a request."""
        return next(when for when, name in getattr(self, what) if name == request)


class WatchedEngine(Engine):
    """An engine that keeps a log, and whose leftovers are looked after as well."""

    def __init__(
        self, trace: Trace, policy: str | Policy, profile: Profile, params: Params | None = None
    ) -> None:
        chosen = get_policy(policy) if isinstance(policy, str) else policy
        self.log = Log()
        super().__init__(trace, chosen, profile, params or Params(), None, time.perf_counter, check=True)

    def _take_in(self) -> None:
        self.log.turns.append(self.now_s)
        super()._take_in()

    def _schedule(self) -> None:
        if self.waiting:
            self.log.decisions.append(self.now_s)
        super()._schedule()
        assert self.cache.used + self.cache.leftover <= self.cache.budget

    def _ready(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        before = set(self.jobs)
        super()._ready(*args, **kwargs)
        self.log.ready += [(self.now_s, name) for name in self.jobs if name not in before]

    def _admit(self, job: Job, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.log.admitted.append((self.now_s, job.request.id))
        super()._admit(job, *args, **kwargs)

    def _preempt(self, job: Job, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.log.preempted.append((self.now_s, job.request.id))
        super()._preempt(job, *args, **kwargs)

    def _finish(self, job: Job, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.log.finished.append((self.now_s, job.request.id))
        super()._finish(job, *args, **kwargs)

    def _prefill(self) -> None:
        self.log.prefills.append((self.now_s, tuple(job.request.id for job in self.to_prefill)))
        super()._prefill()


def watched(
    trace: Trace, policy: str | Policy, profile: Profile, params: Params | None = None
) -> tuple[SimResult, Log]:
    """Return a checked run's result and the log of what the engine did."""
    engine = WatchedEngine(trace, policy, profile, params)
    return engine.run(), engine.log


# --- random cases -------------------------------------------------------------------------------------

SHAPES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "single": {"a": ()},
    "chain": {"a": (), "b": ("a",), "c": ("b",)},
    "fork": {"a": (), "b": ("a",), "c": ("a",)},
    "join": {"a": (), "b": (), "c": ("a", "b")},
    "diamond": {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")},
}
_TIMES = st.integers(0, 256).map(lambda k: k / 64)
_SECONDS = st.one_of(_TIMES, st.floats(0, 4, allow_subnormal=False))
_COSTS = st.sampled_from([0.0, 1 / 64, 0.01, 1 / 8, 0.3])


@st.composite
def rounds_of_stage(draw: st.DrawFn) -> tuple[Round, ...]:
    """Draw one to three ReAct rounds; a later one may repeat the context before it, or a part of it."""
    rounds: list[Round] = []
    context = 0
    for _ in range(draw(st.sampled_from([1, 1, 2, 3]))):
        new = draw(st.integers(0, 20))
        repeats = bool(rounds) and draw(st.booleans())
        input_tokens = context + new if repeats else new
        reused = draw(st.sampled_from([context, context // 2])) if repeats else 0
        output = draw(st.integers(1, 12))
        allowed = output + draw(st.sampled_from([0, 0, 3, 20]))
        tool_s = draw(st.sampled_from([0.0, 0.0, 0.5, 3.0]))
        rounds.append(Round(input_tokens, output, allowed, tool_s, reused))
        context = input_tokens + output
    return tuple(rounds)


@st.composite
def traces(draw: st.DrawFn, shapes: Sequence[str] = tuple(SHAPES)) -> Trace:
    """Draw a trace of one to six tasks over one to four agents."""
    names = "ABCD"[: draw(st.integers(1, 4))]
    agents = {name: draw(st.sampled_from([0, 5, 20, 40])) for name in names}
    profile = draw(st.sampled_from([None, StageProfile(1, 10, 10), StageProfile(2, 15, 8)]))
    tasks = []
    for arrival_s in sorted(draw(st.lists(_SECONDS, min_size=1, max_size=6))):
        shape = SHAPES[draw(st.sampled_from(list(shapes)))]
        tasks.append(
            (
                arrival_s,
                {
                    stage: Stage(draw(st.sampled_from(names)), draw(rounds_of_stage()), after, profile)
                    for stage, after in shape.items()
                },
            )
        )
    return make_trace(agents, *tasks, name="random")


def largest_need(trace: Trace) -> int:
    """Return the most KV tokens that one request of a trace needs: its prefix and its reservation."""
    return max(
        trace.agents[agent] + spec.reserve_tokens
        for task in trace.tasks
        for agent, rounds in zip(task.workflow.agents, task.rounds, strict=True)
        for spec in rounds
    )


@st.composite
def profiles(draw: st.DrawFn, least_budget: int) -> Profile:
    """Draw an engine that can serve any one request of ``least_budget`` tokens, hardly or with ease."""
    admission = draw(st.sampled_from(["full", "sglang"]))
    # SGLang's rule wants one token more than the need.
    slack = draw(st.sampled_from([0, 3, 20, 60, 400])) + (admission == "sglang")
    return Profile(
        name="random",
        kv_budget_tokens=least_budget + slack,
        kv_bytes_per_token=2,
        swap_bytes_per_s=draw(st.sampled_from([8.0, 64.0, 1e4])),
        prefill_base_s=draw(_COSTS),
        prefill_s_per_token=draw(_COSTS),
        decode_base_s=draw(_COSTS),
        decode_s_per_seq=draw(_COSTS),
        decode_s_per_kv_token=draw(st.sampled_from([0.0, 1 / 1024, 0.003])),
        max_running=draw(st.sampled_from([1, 2, 3, 256])),
        host_cache=draw(st.booleans()),
        admission=admission,
        redo=draw(st.sampled_from(["decode", "prefill", "keep"])),
    )


@dataclass(frozen=True)
class Case:
    """A trace, an engine and parameters that can play it."""

    trace: Trace
    profile: Profile
    params: Params


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case."""
    trace = draw(traces())
    params = Params(
        beta=draw(st.sampled_from([0.0, 1.0])),
        rho=draw(st.sampled_from([0.0, 0.5])),
        M=draw(st.sampled_from([0, 2, 6])),
        K=draw(st.sampled_from([0, 0, 1, 2])),
    )
    return Case(trace, draw(profiles(largest_need(trace))), params)


def played(case: Case, policy: str | Policy) -> WatchedEngine:
    """Return the engine that has played a case to its end."""
    engine = WatchedEngine(case.trace, policy, case.profile, case.params)
    engine.run()
    return engine
