"""The engine: one GPU that either prefills or decodes, a KV pool, and a policy at its door.

One turn of the loop is: take in what has happened, let the policy decide if anything changed, run the
prefill that is waiting, else a run of decode steps up to the next event, else wait. docs/model.md numbers
the rules and the invariants (:mod:`topas.sim.check`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from referee.cache import KvCache
from referee.check import check_decision, check_state
from referee.executed import executed
from referee.job import Job, Phase
from referee.ratio import NewTokenRatio
from referee.view import EngineView
from topas.cost import decode_s, decode_steps, prefill_s
from topas.decision import Decision
from topas.errors import SimulationError
from topas.event import Event, Params, Request
from topas.online.foresight import steps_to_execution
from topas.online.tracker import LiveTask, Tracker
from topas.policies import JointPolicy, Policy, QueuePolicy
from topas.profile import Profile
from topas.score import decision_on
from topas.sim.follow import entering_share
from topas.sim.result import Counters, SimResult, TaskResult, summarize
from topas.sim.schedule import Schedule
from topas.trace import TaskSpec, Trace
from topas.units import to_ns, to_s

Recorder = Callable[[Event, Decision], None]
IDLE_TURNS = 1000
"""Turns without a token, an admission or a step of time after which the run is broken off."""
FRUITLESS_PREEMPTIONS = 20_000
"""Preemptions in a row without a finished request after which the run is broken off (livelock)."""
REFRESH_PASSES = 32
"""Every so many passes over the queue SGLang looks up all that waits, which keeps their prefixes young."""


class Engine:
    """State of one run; see :func:`topas.sim.simulate`."""

    def __init__(  # noqa: PLR0913  the inputs of simulate
        self,
        trace: Trace,
        policy: Policy | Schedule,
        profile: Profile,
        params: Params,
        record: Recorder | None,
        clock: Callable[[], float],
        *,
        check: bool,
    ) -> None:
        self.trace, self.policy, self.profile = trace, policy, profile
        self.params, self.record, self.clock, self.check = params, record, clock, check
        self.planned = executed(policy) if isinstance(policy, Schedule) else None
        self.tracker = Tracker(profile, params)
        self.cache = KvCache(
            profile.kv_budget_tokens,
            trace.agents,
            host=profile.host_cache,
            swap_s_per_token=profile.swap_s_per_token,
        )
        self.ratio = NewTokenRatio()
        self.by_ratio = profile.admission == "sglang"
        self.in_tree = profile.prefix_sharing == "tree"
        self.cost = profile.cost
        self.computing: set[str] = set()
        self.followers: list[Job] = []
        self.attended = 0
        self.passes = 0
        self.ahead = isinstance(policy, QueuePolicy) and policy.foresight
        self.by_steps = self.ahead or (isinstance(policy, JointPolicy) and policy.leaves_idle)
        self.prefilled = 0
        self.now_s = 0.0
        self.step = 0
        self.jobs: dict[str, Job] = {}
        self.waiting: dict[str, Job] = {}
        self.running: dict[str, Job] = {}
        self.decoding = 0
        self.to_prefill: list[Job] = []
        self.finishing: list[tuple[int, int, Job]] = []
        self.reserved = 0
        self.max_left = 0
        self.fixed = self.fixed_left = 0
        self.changed = False
        self.full = False
        self.specs: dict[str, TaskSpec] = {}
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = 0
        self.results: dict[str, TaskResult] = {}
        self.arrived = 0
        self.smallest = profile.kv_budget_tokens
        self.requests = self.steps = self.step_requests = self.peak = self.preemptions = 0
        self.recomputed = self.events = self.fruitless = 0
        self.decision_s: list[float] = []

    # --- the loop -------------------------------------------------------------------------------------

    def run(self) -> SimResult:
        """Run to the end of the trace."""
        self._at(self.trace.tasks[0].arrival_s, self._arrive)
        idle = 0
        while self.heap or self.running or self.waiting:
            before = (self.now_s, self.step, len(self.running), self.requests)
            self._take_in()
            if self.changed:
                self._schedule()
            if self.check:
                check_state(self)
            if self.to_prefill:
                self._prefill()
            elif self.decoding:
                self._decode()
            elif self.heap:
                self.now_s = max(self.now_s, self.heap[0][0])
            elif self.waiting:
                raise SimulationError(
                    f"{self.policy.name} admits none of {len(self.waiting)} waiting requests "
                    f"to an idle engine at {self.now_s:.3f} s"
                )
            idle = idle + 1 if before == (self.now_s, self.step, len(self.running), self.requests) else 0
            if idle > IDLE_TURNS:
                raise SimulationError(f"no progress at {self.now_s:.3f} s under {self.policy.name}")
            if not self.running:
                self.ratio.reset()
        counters = Counters(
            requests=self.requests,
            steps=self.steps,
            step_requests=self.step_requests,
            peak_batch=self.peak,
            prefix_loads=self.cache.loads,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed,
            events=self.events,
            decision_s=self.decision_s,
        )
        tasks = tuple(self.results[spec.id] for spec in self.trace.tasks)
        return SimResult(
            trace=self.trace.name,
            policy=self.policy.name,
            profile=self.profile.name,
            tasks=tasks,
            metrics=summarize(tasks, counters),
            events=self.events,
        )

    def _at(self, time_s: float, what: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.heap, (time_s, self.serial, what))

    def _take_in(self) -> None:
        heap = self.heap
        while heap and heap[0][0] <= self.now_s:
            self.events += 1
            heapq.heappop(heap)[2]()

    # --- tasks ----------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        spec = self.trace.tasks[self.arrived]
        self.arrived += 1
        if self.arrived < len(self.trace.tasks):
            self._at(self.trace.tasks[self.arrived].arrival_s, self._arrive)
        self.specs[spec.id] = spec
        live = self.tracker.task_arrived(spec.id, spec.workflow, spec.arrival_s)
        for stage, before in enumerate(spec.workflow.dag.before):
            if not before:
                self._begin(live, stage)

    def _begin(self, live: LiveTask, stage: int) -> None:
        """Begin a stage whose predecessors are complete; one without rounds is passed over."""
        if self.specs[live.id].rounds[stage]:
            self._ready(live, stage, 0)
            return
        for other in self.tracker.stage_done(live, stage, record=False):
            self._begin(live, other)

    def _ready(self, live: LiveTask, stage: int, index: int) -> None:
        """Queue a round's request, after its way to the engine and back, where that takes time."""
        if self.profile.request_s:
            self._at(self.now_s + self.profile.request_s, lambda: self._queue(live, stage, index))
        else:
            self._queue(live, stage, index)

    def _queue(self, live: LiveTask, stage: int, index: int) -> None:
        """Put a round's request into the queue."""
        spec = self.specs[live.id].rounds[stage][index]
        profiled_ns = self.tracker.request_ready(live, stage, spec.input_tokens, spec.max_new_tokens)
        name = live.dag.names[stage]
        request = Request(
            id=f"{live.id}/{name}/{index}",
            task=live.id,
            stage=name,
            agent=live.workflow.agents[stage],
            reserve_tokens=spec.reserve_tokens,
            service_s=to_s(profiled_ns),
            arrival_s=self.now_s,
            input_tokens=spec.input_tokens,
            max_new_tokens=spec.max_new_tokens,
        )
        job = Job(request, live, stage, index, spec, profiled_ns)
        job.joined_at = self.prefilled
        job.fixed = self.profile.ignore_eos and spec.output_tokens == spec.max_new_tokens
        self.smallest = min(self.smallest, spec.reserve_tokens)
        self.jobs[request.id] = job
        self.waiting[request.id] = job
        self.changed = True

    def _finish(self, job: Job) -> None:
        """Take a finished request out of the engine; its context stays as an evictable leftover."""
        held = job.round.input_tokens + job.round.output_tokens
        self._leave_context(job, held)
        self._leave_engine(job)
        job.phase = Phase.DONE
        job.generated = job.round.output_tokens
        self.requests += 1
        self.events += 1
        self.fruitless = 0
        job.service_ns += to_ns(self.now_s - job.start_s)
        self.tracker.request_done(
            job.live,
            job.stage,
            job.service_ns,
            input_tokens=job.round.input_tokens,
            output_tokens=job.round.output_tokens,
            reused_tokens=max(job.round.input_tokens - job.prefill_tokens, 0),
        )
        self.changed = True
        del self.jobs[job.request.id]
        if job.round.tool_s > 0:
            self._at(self.now_s + job.round.tool_s, lambda: self._round_over(job))
        else:
            self._round_over(job)

    def _round_over(self, job: Job) -> None:
        live, stage = job.live, job.stage
        if job.round_index + 1 < len(self.specs[live.id].rounds[stage]):
            self._ready(live, stage, job.round_index + 1)
            return
        for other in self.tracker.stage_done(live, stage):
            self._begin(live, other)
        self.changed = True
        if not live.left:
            self.results[live.id] = TaskResult(live.id, live.arrival_s, self.now_s)
            del self.specs[live.id]

    # --- admission ------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Let the policy decide, if there is anything to decide; make room before and after."""
        self.changed = False
        if self.by_steps:
            self.cache.steps = steps_to_execution(self.tracker.tasks.values())
        self.cache.trim(self.now_s)
        if self.waiting:
            self._decide()
        if self.ahead:
            self.cache.load_ahead(self.now_s)
        self.cache.trim(self.now_s)

    def _decide(self) -> None:
        """Ask the policy and do what it says."""
        if isinstance(self.policy, QueuePolicy):
            self._admit_from_head(self.policy)
        elif isinstance(self.policy, JointPolicy):
            event = self._event()
            start = self.clock()
            decision = self.policy.decide(event)
            self.decision_s.append(self.clock() - start)
            check_decision(self, event, decision)
            if self.record:
                self.record(event, decision)
            self._carry_out(decision)
        elif self.planned:
            self._admit_planned(self.planned)

    def cached_tokens(self, request: Request) -> int:
        """Return how many tokens of a waiting request's prompt are on the GPU."""
        job = self.jobs[request.id]
        return self.cache.cached(job.agent, job.live.id, job.stage, self._reusable(job))

    def _admit_from_head(self, policy: QueuePolicy) -> None:
        """Admit in the policy's order; stop at the first request that does not fit (SGLang's rule).

        In SGLang's own admission mode a request that did not fit also latches the batch as full: nobody
        is tried again until a running request leaves.
        """
        if self.full or len(self.running) >= self.profile.max_running:
            return
        if not self.by_ratio and self._free() < self.smallest:
            return  # no request seen so far is that small
        event = self._event() if self.record else None
        start = self.clock()
        view = EngineView(self)
        order = sorted((job.request for job in self.waiting.values()), key=policy.rank(view))
        if self.in_tree:
            self._look_up(order, every=view.matched)
        admitted: list[str] = []
        for request in order[: self.params.K or None]:
            job = self.waiting[request.id]
            if not self.fits(job):
                self.full = self.by_ratio
                if self.in_tree:
                    self._touch(job)
                break
            self._admit(job, 0)
            admitted.append(request.id)
        self.decision_s.append(self.clock() - start)
        if self.record and event:
            self.record(event, decision_on(event, admitted))

    def _look_up(self, order: Sequence[Request], *, every: bool) -> None:
        """Keep the prefixes of waiting requests young, as SGLang's look-ups do (E24).

        A policy that orders by what is cached looks up the whole queue at ``every`` pass.
        """
        refresh = self.passes % REFRESH_PASSES == 0
        self.passes += 1
        if every:
            for job in self.waiting.values():
                self._touch(job)
        elif refresh:
            for request in reversed(order):
                self._touch(self.jobs[request.id])

    def _admit_planned(self, planned: Callable[[EngineView], Iterator[Request]]) -> None:
        """Admit what a plan says."""
        event = self._event() if self.record else None
        start = self.clock()
        admitted: list[str] = []
        for request in planned(EngineView(self)):
            job = self.waiting[request.id]
            if not self.fits(job):
                raise SimulationError(f"{self.policy.name} admits {request.id}, which does not fit")
            self._admit(job, 0)
            admitted.append(request.id)
        self.decision_s.append(self.clock() - start)
        if self.record and event:
            self.record(event, decision_on(event, admitted))

    def fits(self, job: Job) -> bool:
        """Return whether a request, with its prefix if that is idle, fits beside the running ones.

        SGLang's own mode asks for one token more than the need.
        """
        need = job.request.reserve_tokens + self.by_ratio
        if job.agent not in self.cache.active or job.agent in self.computing:
            need += self.trace.agents[job.agent]
        return need <= self._free() and len(self.running) < self.profile.max_running

    def _free(self) -> float:
        """Return the tokens not spoken for: Eq. 2, or SGLang's estimate with the new-token ratio."""
        if not self.by_ratio:
            prefixes = sum(self.trace.agents[a] for a in self.cache.active)
            copies = sum(job.copied for job in self.to_prefill)
            return self.profile.kv_budget_tokens - prefixes - copies - self.reserved
        free = self.profile.kv_budget_tokens - self.cache.used - self._entering_left() - self.fixed_left
        return free - self.ratio.value * (self.max_left - self.fixed_left)

    def _entering_left(self) -> int:
        """Return what admitted requests that do not decode yet may generate."""
        return sum(job.max_left for job in self.running.values() if job.phase is not Phase.DECODE)

    def _event(self) -> Event:
        """Return the event of this instant."""
        shares, fixed = self._shares(), self._fixed_share()
        return self.tracker.event(
            self.now_s,
            self.profile.kv_budget_tokens,
            self.trace.agents,
            self.cache.resident,
            [self._waiting_seen(job) for job in self.waiting.values()],
            [
                self._running_seen(job, fixed if job.fixed else shares[0], *shares[1:])
                for job in self.running.values()
            ],
        )

    def _shares(self) -> tuple[float, int, Fraction]:
        """Return how much of what it may still generate a decoding and an entering request reserves.

        For an entering one that is (least, share of the rest), see :func:`entering_share`.

        With full reservation that is all; else the ratio and all. Requests that have outgrown the ratio's
        estimate reserve what there is instead, so that keeping them stays feasible.
        """
        if not self.by_ratio:
            return 1.0, 0, Fraction(1)
        room = self.profile.kv_budget_tokens - self.cache.used
        entering = self._entering_left()
        least, share = entering_share(room, entering, len(self.running) - self.decoding)
        if entering > room:
            return 0.0, least, share
        left = room - entering - self.fixed_left
        others = self.max_left - self.fixed_left
        return max(min(self.ratio.value, left / max(others, 1)), 0.0), least, share

    def _fixed_share(self) -> float:
        """Return the share that a decoding request of known length reserves: all, or what there is."""
        room = self.profile.kv_budget_tokens - self.cache.used - self._entering_left()
        return min(max(room / max(self.fixed_left, 1), 0.0), 1.0)

    def _waiting_seen(self, job: Job) -> Request:
        """Return a waiting request as the policy sees it now."""
        service_s = self.tracker.service_s(job.live, job.stage, job.profiled_ns)
        cached = self.cached_tokens(job.request)
        prompt = job.round.input_tokens + job.generated
        passed = self.prefilled - job.joined_at if isinstance(self.policy, QueuePolicy) else 0
        facts = (service_s, cached, prompt, passed, job.preemptions)
        if job.facts != facts:
            job.facts = facts
            job.seen = replace(
                job.request,
                service_s=service_s,
                cached_tokens=cached,
                input_tokens=prompt,
                passed_tokens=passed,
                preemptions=job.preemptions,
            )
        return job.seen

    def _running_seen(self, job: Job, decoding: float, least: int, entering: Fraction) -> Request:
        """Return an admitted request as the policy sees it now."""
        generated = self.generated(job)
        left = job.round.max_new_tokens - generated
        if job.phase is Phase.DECODE:
            reserved = math.floor(decoding * left)
        else:
            reserved = least + math.floor(entering * (left - least))
        return replace(
            job.request,
            reserve_tokens=job.request.reserve_tokens - left + reserved,
            service_s=self.tracker.service_s(job.live, job.stage, job.profiled_ns),
            generated_tokens=generated,
            credit_s=to_s(job.credit_ns),
            preemptions=job.preemptions,
        )

    def generated(self, job: Job) -> int:
        """Return how many tokens a request has generated."""
        return job.generated + (self.step - job.join_step if job.phase is Phase.DECODE else 0)

    def _carry_out(self, decision: Decision) -> None:
        """Preempt, move idle prefixes off the GPU, admit in greedy order with credits."""
        for name in decision.preempt:
            self._preempt(self.running[name], keep=self.profile.redo == "keep")
        for agent in () if self.by_steps else self.cache.resident:
            if agent not in decision.resident and agent not in self.cache.active:
                self.cache.evict_prefix(agent, self.now_s)
        for name, credit_ns in zip(decision.admit, decision.credits_ns, strict=True):
            self._admit(self.waiting[name], credit_ns)

    def _reusable(self, job: Job) -> int:
        """Return how many leading dynamic tokens may be cached: its stage's context, or its own kept KV."""
        if job.kept:
            return job.round.input_tokens + job.generated
        return job.round.reused_tokens

    def _admit(self, job: Job, credit_ns: int) -> None:
        del self.waiting[job.request.id]
        self.running[job.request.id] = job
        job.credit_ns = credit_ns
        self.reserved += job.request.reserve_tokens
        ready_s, job.cold = self.cache.acquire(job.agent, self.now_s)
        follows = self.in_tree and job.agent in self.computing
        job.held = job.round.input_tokens + job.generated
        reused, there_s = 0, self.now_s
        job.node, job.shared = None, 0
        reusable = self._reusable(job)
        if reusable:
            job.node, there_s = self.cache.take_context(
                job.agent, job.live.id, job.stage, reusable, self.now_s
            )
            reused = job.shared = job.node.end
        self.cache.used += job.held - reused
        job.prefill_tokens = max(job.held - reused, 1)  # the last token is computed to yield the next
        self.recomputed += max(job.generated - max(reused - job.round.input_tokens, 0), 0)
        self.tracker.request_admitted(job.live, job.stage)
        wait_s = max(ready_s, there_s)
        if job.cold and self.in_tree and self.trace.agents[job.agent]:
            self.computing.add(job.agent)
        if follows and isinstance(self.policy, JointPolicy):
            job.phase = Phase.LOADING
            job.join_step = self.serial
            self.followers.append(job)
        elif follows:
            job.cold = True
            job.copied = self.trace.agents[job.agent]
            job.held += job.copied
            self.cache.used += job.copied
            job.phase = Phase.PREFILL
            self.to_prefill.append(job)
        elif wait_s > self.now_s:
            job.phase = Phase.LOADING
            stamp = job.join_step = self.serial
            self._at(wait_s, lambda: self._loaded(job, stamp))
        else:
            job.phase = Phase.PREFILL
            self.to_prefill.append(job)

    def _loaded(self, job: Job, stamp: int) -> None:
        if job.phase is Phase.LOADING and job.join_step == stamp:
            job.phase = Phase.PREFILL
            self.to_prefill.append(job)
            self.changed = True

    def _leave_context(self, job: Job, held: int) -> None:
        """Leave what a request added behind its path in the cache."""
        self.cache.used -= held - job.shared
        self.cache.leave_context(job.agent, job.live.id, job.stage, held - job.shared, job.node)

    def _touch(self, job: Job) -> None:
        self.cache.touch(job.agent, job.live.id, job.stage, self._reusable(job))

    def _leave_engine(self, job: Job) -> None:
        """Give back a request's slot, reservation and prefix."""
        del self.running[job.request.id]
        self.full = False
        self.reserved -= job.request.reserve_tokens
        self.cache.release(job.node or job.agent)
        if job.phase is Phase.DECODE:
            self.decoding -= 1
            done = self.step - job.join_step
            self.max_left -= job.max_left - done
            self.attended -= self.trace.agents[job.agent] + job.held + done
            if job.fixed:
                self.fixed -= 1
                self.fixed_left -= job.max_left - done
        elif job.phase is Phase.PREFILL:
            self.to_prefill = [other for other in self.to_prefill if other is not job]

    def _preempt(self, job: Job, *, keep: bool) -> None:
        """Put a running request back into the queue, its KV dropped or kept as an evictable leftover."""
        generated = self.generated(job)
        held = job.held + generated - job.generated
        job.kept = keep and job.phase is Phase.DECODE
        if job.kept:
            self._leave_context(job, held)
        else:
            self.cache.used -= held - job.shared
        self._leave_engine(job)
        if job.start_s >= 0:
            if self.profile.redo == "decode":
                job.service_ns = 0
            else:
                job.service_ns += to_ns(self.now_s - job.start_s)
        job.start_s = -1.0
        if self.profile.redo == "decode":
            self.recomputed += generated
            generated = 0
        job.generated = generated
        job.phase = Phase.WAITING
        job.credit_ns = 0
        job.held = job.copied = job.shared = 0
        job.node = None
        job.joined_at = self.prefilled
        job.preemptions += 1
        self.waiting[job.request.id] = job
        self.preemptions += 1
        self.fruitless += 1
        if self.fruitless > FRUITLESS_PREEMPTIONS:
            raise SimulationError(f"livelock at {self.now_s:.3f} s under {self.policy.name}")
        self.tracker.request_preempted(job.live, job.stage)

    # --- the GPU --------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """Run one prefill batch; it yields the first token of each of its requests."""
        batch, self.to_prefill = self.to_prefill, []
        followers, self.followers = self.followers, []
        self.computing.clear()
        prefill_s = self._prefill_s(batch)
        start_s = self.now_s
        if not self.decoding:
            self.full = False  # as in SGLang, where the latch goes with the empty batch that had it
        self.peak = max(self.peak, self.decoding + len(batch))
        self.now_s += prefill_s
        self.events += 1
        for job in batch:
            job.start_s = start_s
            job.cold = False
            job.held -= job.copied  # the tree keeps one copy
            self.cache.used -= job.copied
            job.copied = 0
            job.generated += 1
            job.held += 1
            self.cache.used += 1
            left = job.round.output_tokens - job.generated
            job.phase = Phase.DECODE
            job.join_step = self.step
            job.finish_step = self.step + left
            self.decoding += 1
            self.max_left += job.max_left
            self.attended += self.trace.agents[job.agent] + job.held
            if job.fixed:
                self.fixed += 1
                self.fixed_left += job.max_left
            if left:
                self.serial += 1
                heapq.heappush(self.finishing, (job.finish_step, self.serial, job))
            else:
                self._finish(job)
        for job in followers:
            self._loaded(job, job.join_step)
        if self.by_ratio:
            self.changed = True  # the new requests now count by the ratio alone

    def _prefill_s(self, batch: Sequence[Job]) -> float:
        """Return the time of a prefill batch (E3)."""
        agents = self.trace.agents
        new = [job.prefill_tokens + (agents[job.agent] if job.cold else 0) for job in batch]
        whole = [max(agents[job.agent] + job.held - job.copied, x) for job, x in zip(batch, new, strict=True)]
        computed, cached = sum(new), sum(whole) - sum(new)
        cached_pairs = sum((tokens - x) ** 2 for tokens, x in zip(whole, new, strict=True))
        new_pairs = sum(tokens**2 for tokens in whole) - cached_pairs
        self.prefilled += computed
        seconds: float = prefill_s.py_func(self.cost, len(batch), computed, cached, new_pairs, cached_pairs)
        return seconds

    def _decode(self) -> None:
        """Run equal decode steps until a request finishes, something happens, or memory matters."""
        finishing = self.finishing
        while finishing[0][2].finish_step != finishing[0][0] or finishing[0][2].phase is not Phase.DECODE:
            heapq.heappop(finishing)
        n = self.decoding
        most = finishing[0][0] - self.step
        if self.by_ratio:
            room = self._room() // n
            if room <= 0:
                self._retract()
                return
            most = min(most, room)
        kv = self.attended if self.in_tree else self.cache.used
        steps = most
        if self.heap:
            steps = decode_steps(self.cost, n, kv, self.heap[0][0] - self.now_s, most)
        self.now_s += decode_s.py_func(self.cost, n, kv, steps)
        self.step += steps
        self.steps += steps
        self.step_requests += steps * n
        self.events += 1
        self.cache.used += steps * n
        self.max_left -= steps * n
        self.fixed_left -= steps * self.fixed
        self.attended += steps * n
        self.ratio.decay(steps)
        while finishing and finishing[0][0] <= self.step:
            step, _, job = heapq.heappop(finishing)
            if job.phase is Phase.DECODE and job.finish_step == step:
                self._finish(job)

    def _room(self) -> int:
        """Return the KV tokens left to decode into: those entering need one each for their first token."""
        entering = len(self.running) - self.decoding
        return self.profile.kv_budget_tokens - self.cache.used - entering

    def _retract(self) -> None:
        """Take requests back until one more decode step fits: those that have generated least (SGLang).

        The last one that decodes stays; then those go back that entered last and have not begun.
        """
        order = sorted(
            (job for job in self.running.values() if job.phase is Phase.DECODE),
            key=lambda job: (-self.generated(job), job.round.input_tokens, job.request.id),
        )
        entering = [job for job in self.running.values() if job.phase is not Phase.DECODE]
        while len(order) > 1 or entering:
            self._preempt(order.pop() if len(order) > 1 else entering.pop(), keep=False)
            if len(order) <= self._room():
                break
        self.ratio.retracted(
            [self.generated(job) for job in order], [job.round.max_new_tokens for job in order]
        )
        self.changed = True
