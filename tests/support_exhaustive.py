"""The least mean JCT of a tiny trace over everything that any policy could decide in the real engine.

A depth-first search over choices: at each decision, every feasible set of preemptions and every feasible
sequence of admissions (their order decides whose prefix the link loads first), each with idle prefixes
left alone (as under a queue policy) or moved off the GPU (as under a joint policy). A branch is played by
replaying its choices. It is cut where its tasks cannot be faster than the best found, and where the engine
has been in the same state at no greater cost: neither changes the minimum.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from referee.engine import Engine
from referee.job import Job, Phase
from support_sim import make_decision

from topas.errors import SimulationError
from topas.event import Params
from topas.feasible import violations
from topas.policies import get_policy
from topas.profile import Profile
from topas.sim import simulate
from topas.trace import Round, TaskSpec, Trace

MOST_RUNS = 200_000


@dataclass(frozen=True)
class Choice:
    """One decision; ``tidy`` moves idle prefixes off the GPU."""

    preempt: tuple[str, ...]
    admit: tuple[str, ...]
    tidy: bool


class _MoreError(Exception):
    """The engine has come to a decision that no choice is given for."""


class ChoiceEngine(Engine):
    """An engine whose decisions are a list of choices; stops at the first one missing."""

    def __init__(self, trace: Trace, profile: Profile, choices: list[Choice]) -> None:
        super().__init__(trace, get_policy("fcfs"), profile, Params(), None, time.perf_counter, check=False)
        self.choices = choices
        self.taken = 0

    def _schedule(self) -> None:
        self.changed = False
        self.cache.trim(self.now_s)
        if not self.waiting:
            return
        if self.taken == len(self.choices):
            raise _MoreError
        choice = self.choices[self.taken]
        self.taken += 1
        for name in choice.preempt:
            self._preempt(self.running[name], keep=self.profile.redo == "keep")
        if choice.tidy:
            coming = {self.waiting[name].agent for name in choice.admit}
            for agent in self.cache.resident:
                if agent not in coming and agent not in self.cache.active:
                    self.cache.evict_prefix(agent, self.now_s)
        for name in choice.admit:
            self._admit(self.waiting[name], 0)
        self.cache.trim(self.now_s)

    def options(self) -> Iterator[Choice]:
        """Yield all that is feasible now."""
        event = self._event()
        idle = any(agent not in self.cache.active for agent in self.cache.resident)
        for preempt in reversed(list(_subsets(sorted(self.running)))):
            for chosen in _subsets(sorted(self.waiting)):
                if violations(event, make_decision(event, chosen, preempt)):
                    continue
                for admit in itertools.permutations(chosen):
                    for tidy in (False, True) if idle or preempt else (False,):
                        yield Choice(preempt, admit, tidy)

    def floor_s(self) -> float:
        """Return what the sum of JCTs cannot be less than: as if every task were alone from now on."""
        total_s = sum(result.jct_s for result in self.results.values())
        left = {(job.live.id, job.stage): self._left_s(job) for job in self.jobs.values()}
        for live in self.tracker.tasks.values():
            spec = self.specs[live.id]
            lengths = [
                left.get((live.id, v), 0.0) if not live.missing[v] else alone_s(rounds, self.profile)
                for v, rounds in enumerate(spec.rounds)
            ]
            total_s += self.now_s - live.arrival_s + _longest_s(spec, lengths)
        for spec in self.trace.tasks[self.arrived :]:
            total_s += _longest_s(spec, [alone_s(rounds, self.profile) for rounds in spec.rounds])
        return total_s

    def _left_s(self, job: Job) -> float:
        """Return the least time that a request and the rounds behind it still take."""
        later = self.specs[job.live.id].rounds[job.stage][job.round_index + 1 :]
        rest_s = job.round.tool_s + alone_s(later, self.profile)
        if job.phase is not Phase.DECODE and self.profile.redo == "decode":
            return alone_s((job.round,), self.profile) + alone_s(later, self.profile)
        entering = job.phase is not Phase.DECODE
        steps = job.round.output_tokens - self.generated(job) - entering
        return max(steps, 0) * self.profile.decode_s_per_token + rest_s

    def state(self) -> tuple[object, ...]:
        """Return all that the future depends on."""
        cache = self.cache
        jobs = [
            (
                job.request.id, job.phase, self.generated(job), job.held, job.kept, job.cold,
                job.prefill_tokens, job.finish_step - self.step,
            )
            for job in sorted(self.jobs.values(), key=lambda job: job.request.id)
        ]  # fmt: skip
        due = [
            (time_s, [c.cell_contents.request.id for c in what.__closure__ or () if _is_job(c.cell_contents)])
            if getattr(what, "__closure__", None)
            else (time_s, [])
            for time_s, _, what in sorted(self.heap, key=lambda item: item[:2])
        ]
        finishing = [job.request.id for _, _, job in sorted(self.finishing, key=lambda item: item[:2])]
        return (
            self.now_s, self.arrived, repr(jobs), repr(due), repr(finishing),
            tuple(job.request.id for job in self.to_prefill), cache.picture(), self.ratio.value,
            tuple((live.id, tuple(live.finished)) for live in self.tracker.tasks.values()),
        )  # fmt: skip


def _is_job(value: object) -> bool:
    return isinstance(value, Job)


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(names), -1, -1):
        yield from itertools.combinations(names, size)


def alone_s(rounds: Sequence[Round], profile: Profile) -> float:
    """Return how long rounds take alone, their prefix there and all reused that can be."""
    total_s = 0.0
    for spec in rounds:
        new = max(spec.input_tokens - spec.reused_tokens, 1)
        total_s += profile.prefill_base_s + new * profile.prefill_s_per_token
        total_s += (spec.output_tokens - 1) * profile.decode_s_per_token + spec.tool_s
    return total_s


def _longest_s(spec: TaskSpec, lengths: Sequence[float]) -> float:
    finish: list[float] = []
    for v, length in enumerate(lengths):
        before = [finish[p] for p in spec.workflow.dag.before[v]]
        finish.append(max(before, default=0.0) + length)
    return max(finish)


def least_mean_jct_s(trace: Trace, profile: Profile, most_runs: int = MOST_RUNS) -> float:
    """Return the minimum; raises RuntimeError where it takes more than ``most_runs`` replays."""
    best_s = math.inf
    for policy in ("fcfs", "lpm", "parrot-fcfs", "spf"):  # what they do is among the choices
        best_s = min(best_s, sum(task.jct_s for task in simulate(trace, policy, profile).tasks))
    seen: dict[tuple[object, ...], float] = {}
    stack: list[list[Choice]] = [[]]
    runs = 0
    while stack:
        choices = stack.pop()
        runs += 1
        if runs > most_runs:
            raise RuntimeError("too large to be searched through")
        engine = ChoiceEngine(trace, profile, choices)
        try:
            result = engine.run()
        except SimulationError:
            continue  # an idle engine was given nothing to do, or nothing ever ends
        except _MoreError:
            done_s = sum(task.jct_s for task in engine.results.values())
            state = engine.state()
            if engine.floor_s() >= best_s - 1e-9 or seen.get(state, math.inf) <= done_s:
                continue
            seen[state] = done_s
            stack.extend([*choices, choice] for choice in reversed(list(engine.options())))
            continue
        best_s = min(best_s, sum(task.jct_s for task in result.tasks))
    return best_s / len(trace.tasks)
