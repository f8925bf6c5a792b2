"""From the engine to a policy: the tracker is told what happened, and an event shows what may be known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from topas.decision import Decision
from topas.engine import state
from topas.engine.core import entering_left, members
from topas.engine.state import QUEUE, RUN, Setup, World
from topas.event import Event, Params, Request
from topas.online.tracker import LiveTask, Tracker
from topas.profile import Profile
from topas.residual import IntArray
from topas.sim.build import agent_names
from topas.trace import Trace
from topas.units import to_s


class Follower:
    """What policies are told of one run."""

    def __init__(self, trace: Trace, names: Sequence[str], profile: Profile, params: Params) -> None:
        self.trace, self.names, self.profile = trace, names, profile
        self.number = {name: k for k, name in enumerate(names)}
        self.tracker = Tracker(profile, params)
        self.agents = agent_names(trace)
        self.live: dict[int, LiveTask] = {}
        self.requests: dict[int, tuple[Request, LiveTask, int, int]] = {}
        self.seen: dict[int, tuple[tuple[float | int, ...], Request]] = {}
        self._room = np.empty(len(names), np.int64)

    def follow(self, world: World) -> list[int]:
        """Tell the tracker what the log says, and clear it; return the requests that were admitted."""
        now, tracker = world.now[0], self.tracker
        admitted = []
        for kind, who, time_s, service_ns, reused in world.log[: now["logged"]].tolist():
            if kind == state.ARRIVED:
                spec = self.trace.tasks[who]
                self.live[who] = tracker.task_arrived(spec.id, spec.workflow, spec.arrival_s)
            elif kind == state.READY:
                self._ready(world, who, time_s)
            elif kind in (state.STAGE_OVER, state.STAGE_PASSED):
                self._stage_over(world, who, record=kind == state.STAGE_OVER)
            else:
                request, live, stage, _ = self.requests[who]
                if kind == state.ADMITTED:
                    tracker.request_admitted(live, stage)
                    admitted.append(who)
                elif kind == state.PREEMPTED:
                    tracker.request_preempted(live, stage)
                else:
                    row = world.requests[who]
                    tracker.request_done(
                        live,
                        stage,
                        service_ns,
                        input_tokens=request.input_tokens,
                        output_tokens=int(row["output"]),
                        reused_tokens=reused,
                    )
                    del self.requests[who]
                    self.seen.pop(who, None)
        now["logged"] = 0
        return admitted

    def _stage_over(self, world: World, number: int, *, record: bool) -> None:
        row = world.stages[number]
        task = int(row["task"])
        live = self.live[task]
        self.tracker.stage_done(live, number - int(world.tasks[task]["first_stage"]), record=record)
        if not live.left:
            del self.live[task]

    def _ready(self, world: World, number: int, time_s: float) -> None:
        row = world.requests[number]
        stage = world.stages[row["stage"]]
        task = int(stage["task"])
        live, place = self.live[task], int(row["stage"]) - int(world.tasks[task]["first_stage"])
        inputs, most = int(row["input"]), int(row["most"])
        profiled_ns = self.tracker.request_ready(live, place, inputs, most)
        request = Request(
            id=self.names[number],
            task=live.id,
            stage=live.dag.names[place],
            agent=live.workflow.agents[place],
            reserve_tokens=inputs + most,
            service_s=to_s(profiled_ns),
            arrival_s=time_s,
            input_tokens=inputs,
            max_new_tokens=most,
        )
        self.requests[number] = (request, live, place, profiled_ns)

    def event(self, setup: Setup, world: World, *, passed: bool) -> Event:
        """Return the event of this instant; with ``passed`` it says what has passed each waiting request."""
        now = world.now[0]
        waiting, running = self._members(world, QUEUE), self._members(world, RUN)
        there = np.flatnonzero(world.nodes["ready_s"][: len(self.agents)] >= 0)
        return self.tracker.event(
            float(now["now_s"]),
            setup.budget,
            self.trace.agents,
            [self.agents[a] for a in there.tolist()],
            self._waiting(world, waiting, int(now["prefilled"]) if passed else -1),
            self._running(setup, world, running),
        )

    def _members(self, world: World, which: int) -> IntArray:
        return self._room[: members(world, world.requests, which, self._room)].copy()

    def _waiting(self, world: World, numbers: IntArray, prefilled: int) -> list[Request]:
        """Return waiting requests as the policy sees them now."""
        rows = world.requests[numbers]
        prompts = (rows["input"] + rows["generated"]).tolist()
        passed = (prefilled - rows["joined_at"] if prefilled >= 0 else np.zeros(len(rows), np.int64)).tolist()
        found = []
        for number, cached, prompt, behind, back in zip(
            numbers.tolist(),
            rows["cached"].tolist(),
            prompts,
            passed,
            rows["preemptions"].tolist(),
            strict=True,
        ):
            request, live, stage, profiled_ns = self.requests[number]
            facts = (self.tracker.service_s(live, stage, profiled_ns), cached, prompt, behind, back)
            known = self.seen.get(number)
            if known is None or known[0] != facts:
                known = self.seen[number] = (
                    facts,
                    replace(
                        request,
                        service_s=facts[0],
                        cached_tokens=cached,
                        input_tokens=prompt,
                        passed_tokens=behind,
                        preemptions=back,
                    ),
                )
            found.append(known[1])
        return found

    def _running(self, setup: Setup, world: World, numbers: IntArray) -> list[Request]:
        """Return admitted requests as the policy sees them now."""
        decoding, least, entering, fixed = shares(setup, world)
        step = int(world.now[0]["step"])
        rows = world.requests[numbers]
        decodes = rows["phase"] == state.DECODE
        generated = rows["generated"] + np.where(decodes, step - rows["join_step"], 0)
        found = []
        for number, decode, made, most, known, credit_ns, back in zip(
            numbers.tolist(),
            decodes.tolist(),
            generated.tolist(),
            rows["most"].tolist(),
            rows["fixed"].tolist(),
            rows["credit_ns"].tolist(),
            rows["preemptions"].tolist(),
            strict=True,
        ):
            request, live, stage, profiled_ns = self.requests[number]
            left = most - made
            if decode:
                reserved = math.floor((fixed if known else decoding) * left)
            else:
                reserved = least + math.floor(entering * (left - least))
            found.append(
                replace(
                    request,
                    reserve_tokens=request.reserve_tokens - left + reserved,
                    service_s=self.tracker.service_s(live, stage, profiled_ns),
                    generated_tokens=made,
                    credit_s=to_s(credit_ns),
                    preemptions=back,
                )
            )
        return found

    def orders(self, world: World, decision: Decision) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return a decision in numbers: preempted, prefixes outside R' as they came, admitted, credits."""
        there = np.flatnonzero(world.nodes["ready_s"][: len(self.agents)] >= 0)
        there = there[np.argsort(world.nodes["since"][there])]
        idle = [a for a in there.tolist() if self.agents[a] not in decision.resident]
        numbers = (
            [self.number[name] for name in decision.preempt],
            idle,
            [self.number[name] for name in decision.admit],
            decision.credits_ns,
        )
        preempted, idle_agents, admitted, credits_ns = (np.array(part, dtype=np.int64) for part in numbers)
        return preempted, idle_agents, admitted, credits_ns


def shares(setup: Setup, world: World) -> tuple[float, int, Fraction, float]:
    """Return how much of what it may still generate a decoding, an entering and a fixed request reserves.

    For an entering one that is (least, share of the rest), see :func:`entering_share`.

    With full reservation that is all; else the ratio and all. Requests that have outgrown the ratio's
    estimate reserve what there is instead, so that keeping them stays feasible.
    """
    now = world.now[0]
    if not setup.by_ratio:
        return 1.0, 0, Fraction(1), 1.0
    room = setup.budget - int(now["used"])
    entering = int(entering_left(world))
    fixed_left, max_left = int(now["fixed_left"]), int(now["max_left"])
    fixed = min(max((room - entering) / max(fixed_left, 1), 0.0), 1.0)
    least, share = entering_share(room, entering, int(now["running"] - now["decoding"]))
    if entering > room:
        return 0.0, least, share, fixed
    left = room - entering - fixed_left
    others = max_left - fixed_left
    return max(min(float(now["ratio"]), left / max(others, 1)), 0.0), least, share, fixed


def entering_share(room: int, left: int, count: int) -> tuple[int, Fraction]:
    """Return what ``count`` admitted requests reserve that do not decode yet: (least, share of the rest).

    Together they may generate ``left`` tokens and there is room for ``room``. Each reserves
    ``least + floor(share * (its own - least))``, together at most the room, and at least its first token
    where there is one for each: else a small request could be let in upon tokens that these are due next.
    """
    if left <= room:
        return 0, Fraction(1)
    if room < count:
        return 0, Fraction(max(room, 0), left)
    return 1, Fraction(room - count, left - count)
