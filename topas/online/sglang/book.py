"""Requests and tasks as the server learns of them: from facts where clients give some, else from prefixes.

The book turns requests into the shared library's terms and feeds the tracker; it knows neither SGLang nor
policies. Times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median
from typing import Any

import numpy as np

from topas.event import Event, Params, Request
from topas.online.sglang.config import ServingConfig
from topas.online.sglang.facts import RequestFacts
from topas.online.sglang.prefixes import Agent, PrefixBook, Tokens
from topas.online.tracker import LiveTask, Tracker
from topas.profile import Profile
from topas.units import to_ns, to_s
from topas.workflow import Dag, StageProfile, Workflow, ancestors, dag_of

PACE, MIN_PACE = 64, 8
"""Latest requests whose time per token is remembered, and the fewest that say something."""
KEPT_S = 1e5
"""A credit that no gain makes up for."""
MAX_SHOWN = 100
"""Longest part of a client's task name in an id of ours."""


class Phase(Enum):
    """Where a request is: in the queue, chosen to be admitted, or taken by the engine."""

    WAITING = "waiting"
    ADMITTED = "admitted"
    RUNNING = "running"


class Job:
    """A task: one tracked DAG, or a tracked single stage for each stage whose DAG is unknown."""

    __slots__ = ("active", "arrival_s", "attained_ns", "closing", "dag", "key", "name", "seen_s", "singles")

    def __init__(self, key: Hashable, name: str, now_s: float) -> None:
        self.key = key
        self.name = name
        self.arrival_s = now_s
        self.seen_s = now_s
        self.attained_ns = 0
        self.dag: LiveTask | None = None
        self.singles: dict[str, LiveTask] = {}
        self.active: dict[tuple[str, int], int] = {}
        self.closing: set[tuple[str, int]] = set()

    @property
    def lives(self) -> Iterator[LiveTask]:
        """Return the parts in progress."""
        if self.dag is not None and self.dag.left:
            yield self.dag
        yield from (live for live in self.singles.values() if live.left)


@dataclass(slots=True, eq=False)
class Entry:
    """A request in the engine; ``input_tokens`` is its whole prompt, prefix included.

    ``shared`` of them are its agent's prefix, ``output_tokens`` were generated so far. ``last`` says
    whether the client called it the stage's last one (None: it did not say). ``overtaken`` counts the
    requests of later tasks that began while it waited.
    """

    id: str
    req: Any
    job: Job
    live: LiveTask
    stage: int
    agent: Agent
    prompt: Tokens
    input_tokens: int
    max_new_tokens: int
    ratio_free: bool
    arrival_s: float
    profiled_ns: int
    last: bool | None
    phase: Phase = Phase.WAITING
    credit_ns: int = 0
    service_ns: int = 0
    start_s: float = -1.0
    output_tokens: int = 0
    overtaken: int = 0
    preemptions: int = 0
    prefix: Any = None
    shared: int = 0

    def shared_tokens(self) -> int:
        """Return how much of the prompt is the agent's prefix as it is known now."""
        if self.prefix is not self.agent.prefix:
            self.prefix = self.agent.prefix
            limit = min(len(self.prefix), len(self.prompt))
            differ = np.nonzero(self.prefix[:limit] != self.prompt[:limit])[0]
            self.shared = int(differ[0]) if differ.size else limit
        return self.shared


class TaskView:
    """What a queue policy may know of a task, over all its parts."""

    __slots__ = ("_job", "_live")

    def __init__(self, job: Job, live: LiveTask) -> None:
        self._job = job
        self._live = live

    @property
    def arrival_s(self) -> float:
        """Return the time of arrival."""
        return self._job.arrival_s

    @property
    def attained_s(self) -> float:
        """Return the LLM service received so far."""
        return to_s(self._job.attained_ns)

    @property
    def dag(self) -> Dag:
        """Return the precedence of the stages."""
        return self._live.dag


class Book:
    """All requests in the engine and the tasks behind them."""

    def __init__(self, config: ServingConfig, profile: Profile, params: Params) -> None:
        self.config = config
        self.tracker = Tracker(profile, params)
        self.prefixes = PrefixBook(config.max_agents)
        self.entries: dict[int, Entry] = {}
        self.jobs: dict[Hashable, Job] = {}
        self.serial = 0
        self._token_s: deque[float] = deque(maxlen=PACE)

    # --- what happened --------------------------------------------------------------------------------

    def arrived(  # noqa: PLR0913  the facts of a request
        self,
        req: Any,  # noqa: ANN401  the engine's object
        facts: RequestFacts,
        prompt: Tokens,
        salt: Hashable,
        max_new_tokens: int,
        now_s: float,
        *,
        ratio_free: bool = False,
    ) -> Entry:
        """Enter a request that joined the queue."""
        self.serial += 1
        job = self._job(facts, now_s)
        workflow = None if job.dag is None else job.dag.workflow
        stage_name = self._stage_name(job, facts)
        name = facts.agent
        if name is None and workflow is not None and stage_name in workflow.dag.index:
            name = workflow.agents[workflow.dag.index[stage_name]]
        configured = self.config.agents.get(name) if name is not None else None
        declared = facts.prefix_tokens
        if configured is not None and configured.prefix_tokens is not None:
            declared = configured.prefix_tokens
        agent = self.prefixes.place(name, salt, job.name, prompt, declared, keep=self._agents_in_use())
        live, stage = self._part(job, stage_name, agent)
        dynamic = max(len(prompt) - agent.prefix_tokens, 0)
        profiled_ns = self.tracker.request_ready(live, stage, dynamic, max_new_tokens)
        entry = Entry(
            id=f"r{self.serial:08d}",
            req=req,
            job=job,
            live=live,
            stage=stage,
            agent=agent,
            prompt=np.array(prompt, dtype=np.int32),
            input_tokens=len(prompt),
            max_new_tokens=max_new_tokens,
            ratio_free=ratio_free,
            arrival_s=now_s,
            profiled_ns=profiled_ns,
            last=True if facts.task is None else facts.final,
        )
        self.entries[id(req)] = entry
        key = (live.id, stage)
        job.active[key] = job.active.get(key, 0) + 1
        job.closing.discard(key)
        job.seen_s = now_s
        return entry

    def admitted(self, entry: Entry, credit_ns: int) -> None:
        """Note that a policy chose a waiting request."""
        entry.phase = Phase.ADMITTED
        entry.credit_ns = credit_ns
        self.tracker.request_admitted(entry.live, entry.stage)

    def started(self, entry: Entry, now_s: float) -> None:
        """Note that the engine took a request into a batch."""
        if entry.phase is Phase.WAITING:  # it was not chosen: a queue policy, or first come, first served
            self.admitted(entry, 0)
        entry.phase = Phase.RUNNING
        entry.start_s = now_s
        for other in self.entries.values():
            if other.phase is Phase.WAITING and other.job.arrival_s < entry.job.arrival_s:
                other.overtaken += 1

    def put_back(self, entry: Entry, now_s: float) -> None:
        """Note that a chosen or running request waits again: preempted, or retracted by the engine."""
        if entry.phase is Phase.WAITING:
            return
        self._stop(entry, now_s)
        entry.phase = Phase.WAITING
        entry.credit_ns = 0
        entry.preemptions += 1
        self.tracker.request_preempted(entry.live, entry.stage)

    def left(self, entry: Entry, now_s: float, *, completed: bool) -> None:
        """Take out a request that is complete, or was aborted."""
        if self.entries.pop(id(entry.req), None) is None:
            return
        self._stop(entry, now_s)
        job, key = entry.job, (entry.live.id, entry.stage)
        job.seen_s = now_s
        job.active[key] -= 1
        if not job.active[key]:
            del job.active[key]
        if completed:
            if entry.phase is Phase.WAITING:
                self.tracker.request_admitted(entry.live, entry.stage)
            self.tracker.request_done(
                entry.live,
                entry.stage,
                entry.service_ns,
                input_tokens=entry.input_tokens - entry.shared_tokens(),
                output_tokens=max(entry.output_tokens, 1),
            )
            job.attained_ns += entry.service_ns
            if entry.service_ns and entry.output_tokens:
                self._token_s.append(to_s(entry.service_ns) / entry.output_tokens)
            if self._is_last(entry):
                job.closing.add(key)
        elif entry.phase is not Phase.WAITING:
            self.tracker.request_preempted(entry.live, entry.stage)
        if key in job.closing and key not in job.active:
            job.closing.discard(key)
            self._close(job, entry.live, entry.stage)
        if not completed and entry.last and not job.active:
            self._forget(job)

    def expire(self, now_s: float) -> int:
        """Forget tasks that have had no request for ``task_ttl_s``; return how many.

        Where all open stages have received service the task counts as complete: that is how the end of a
        session looks whose client does not say which request is the last. One that stopped half-way
        leaves no trace.
        """
        old = [
            job
            for job in self.jobs.values()
            if not job.active and now_s - job.seen_s > self.config.task_ttl_s
        ]
        for job in old:
            for live in list(job.lives):
                still_open = [k for k, done in enumerate(live.finished) if not done]
                if all(live.elapsed_ns[k] for k in still_open):
                    for stage in still_open:
                        self.tracker.stage_done(live, stage)
            self._forget(job)
        return len(old)

    def overdue(self) -> Entry | None:
        """Return the waiting request that was overtaken too often, the earliest of them.

        While there is one, policies see no other waiting request: the engine drains until it fits. No score
        bounds the wait of a request whose gain is small and whose need is large.
        """
        limit = self.config.max_overtaken
        late = [e for e in self.entries.values() if e.phase is Phase.WAITING and e.overtaken >= limit]
        return min(late, key=lambda entry: (entry.job.arrival_s, entry.id), default=None)

    # --- what a policy sees ---------------------------------------------------------------------------

    def agents_served(self) -> set[str]:
        """Return the agents whose prefix admitted requests use."""
        return {entry.agent.id for entry in self.entries.values() if entry.phase is not Phase.WAITING}

    def event(  # noqa: PLR0913  what the engine knows
        self,
        now_s: float,
        kv_tokens: int,
        budget_tokens: int,
        page_tokens: int,
        new_token_ratio: float,
        resident: Iterable[str],
    ) -> Event:
        """Return the event of this instant.

        A waiting request reserves its whole need, a running one what it holds and the engine's share of
        what it may still generate, each a page more (the engine rounds up to pages). None reserves more
        than fits ``kv_tokens`` alone: the engine lets such a request run alone, so nobody starves. The
        budget, what others leave of these, is never below what runs: keeping everything is feasible.
        """
        waiting: list[Request] = []
        running: list[Request] = []
        overdue = self.overdue()
        agents = {entry.agent.id: entry.agent.prefix_tokens for entry in self.entries.values()}
        in_use = self.agents_served()
        there = in_use | set(resident)
        known = {agent.id: agent.prefix_tokens for agent in self.prefixes if agent.id in there} | agents
        there &= known.keys()
        for entry in self.entries.values():
            waits = entry.phase is Phase.WAITING
            if waits and overdue is not None and entry is not overdue:
                continue
            agent, own = entry.agent.id, entry.input_tokens - entry.shared_tokens()
            left = max(entry.max_new_tokens - entry.output_tokens, 0)
            if entry.phase is Phase.RUNNING and not entry.ratio_free:
                left = int(new_token_ratio * left)
            need = own + entry.output_tokens + page_tokens + left
            request = Request(
                id=entry.id,
                task=entry.live.id,
                stage=entry.live.dag.names[entry.stage],
                agent=agent,
                reserve_tokens=min(need, max(kv_tokens - agents[agent], 0)),
                service_s=self.tracker.service_s(entry.live, entry.stage, entry.profiled_ns),
                arrival_s=entry.arrival_s,
                cached_tokens=agents[agent] if waits and agent in there else 0,
                generated_tokens=0 if waits else entry.output_tokens,
                credit_s=0.0 if waits else self._credit_s(entry),
                input_tokens=own,
                max_new_tokens=entry.max_new_tokens,
                preemptions=self._preemptions(entry),
            )
            (waiting if waits else running).append(request)
        needed = sum(agents[a] for a in in_use) + sum(request.reserve_tokens for request in running)
        event = self.tracker.event(now_s, max(budget_tokens, needed), known, there, waiting, running)
        counts = {agent: count for agent, count in event.reuse_counts.items() if agent in known}
        return replace(event, reuse_counts=counts, params=self._paced(event.params))

    def _paced(self, params: Params) -> Params:
        """Return the parameters with times as they are seen here, if no profile says what they are.

        The default profile's times then all count by the ratio of the median time per generated token of
        the latest requests to its own.
        """
        if self.config.profile is not None or len(self._token_s) < MIN_PACE:
            return params
        return replace(
            params, cost=params.cost.scaled(median(self._token_s) / params.cost.decode_s_per_token)
        )

    def _credit_s(self, entry: Entry) -> float:
        """Return the credit of a running request; one that waited too long is not worth preempting again."""
        return KEPT_S if entry.overtaken >= self.config.max_overtaken else to_s(entry.credit_ns)

    def _preemptions(self, entry: Entry) -> int:
        """Return how often a request was preempted; one that waited too long counts as if it was."""
        return max(entry.preemptions, int(entry.overtaken >= self.config.max_overtaken))

    def request_of(self, entry: Entry) -> Request:
        """Return a request's lasting facts, for queue policies."""
        return Request(
            id=entry.id,
            task=entry.live.id,
            stage=entry.live.dag.names[entry.stage],
            agent=entry.agent.id,
            reserve_tokens=entry.input_tokens + entry.max_new_tokens,
            service_s=to_s(entry.profiled_ns),
            arrival_s=entry.arrival_s,
        )

    # --- tasks ----------------------------------------------------------------------------------------

    def _job(self, facts: RequestFacts, now_s: float) -> Job:
        key: Hashable = (facts.workflow, facts.task) if facts.task is not None else self.serial
        job = self.jobs.get(key)
        if job is None:
            if len(self.jobs) >= self.config.max_tasks:
                self._make_room()
            shown = "request" if facts.task is None else facts.task[:MAX_SHOWN]
            job = self.jobs[key] = Job(key, f"{shown}#{self.serial}", now_s)
        if job.dag is None:
            workflow = facts.dag or self.config.workflow(facts.workflow)
            if workflow is not None:
                job.dag = self.tracker.task_arrived(job.name, workflow, job.arrival_s)
        return job

    def _stage_name(self, job: Job, facts: RequestFacts) -> str:
        """Return the stage that a request belongs to: as the client says, else the agent's own one."""
        if facts.stage is not None:
            return facts.stage
        if job.dag is not None and facts.agent is not None:
            live = job.dag
            mine = [k for k, agent in enumerate(live.workflow.agents) if agent == facts.agent]
            open_ones = [k for k in mine if not live.finished[k]]
            if open_ones:
                return live.dag.names[open_ones[0]]
        return facts.agent or "main"

    def _part(self, job: Job, stage_name: str, agent: Agent) -> tuple[LiveTask, int]:
        """Return the tracked part and stage of a request; what must have come before is complete."""
        live = job.dag
        if live is not None and live.left and stage_name in live.dag.index:
            stage = live.dag.index[stage_name]
            if not live.finished[stage]:
                for before in sorted(ancestors(live.dag, stage)):
                    if not live.finished[before] and (live.id, before) not in job.active:
                        self.tracker.stage_done(live, before, record=live.elapsed_ns[before] > 0)
                return live, stage
        single = job.singles.get(stage_name)
        if single is None or not single.left:
            workflow = Workflow("", dag_of({stage_name: ()}), (agent.id,), (None,))
            single = self.tracker.task_arrived(f"{job.name}/{self.serial}", workflow, job.arrival_s)
            job.singles[stage_name] = single
        return single, 0

    def _is_last(self, entry: Entry) -> bool:
        if entry.last is not None:
            return entry.last
        profile: StageProfile | None = entry.live.workflow.profiles[entry.stage]
        return profile is not None and profile.rounds == 1

    def _close(self, job: Job, live: LiveTask, stage: int) -> None:
        if live.left and not live.finished[stage]:
            self.tracker.stage_done(live, stage)
        if live is not job.dag and not live.left:
            job.singles = {name: other for name, other in job.singles.items() if other is not live}
        if not job.active and not any(job.lives):
            self._forget(job)

    def _forget(self, job: Job) -> None:
        for live in list(job.lives):
            self.tracker.forget(live)
        self.jobs.pop(job.key, None)

    def _make_room(self) -> None:
        """Forget the idle task that was heard of least recently."""
        idle = min(
            (job for job in self.jobs.values() if not job.active), key=lambda job: job.seen_s, default=None
        )
        if idle is not None:
            self._forget(idle)

    def _agents_in_use(self) -> set[str]:
        return {entry.agent.id for entry in self.entries.values()}

    @staticmethod
    def _stop(entry: Entry, now_s: float) -> None:
        if entry.phase is Phase.RUNNING and entry.start_s >= 0:
            entry.service_ns += to_ns(max(now_s - entry.start_s, 0.0))
        entry.start_s = -1.0
