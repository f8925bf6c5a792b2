"""An auditor of recorded decisions: it knows trace and profile, and shares no code with the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from support_sim import Entry

from topas.event import Event
from topas.feasible import violations
from topas.profile import Profile
from topas.trace import Round, TaskSpec, Trace


@dataclass(frozen=True)
class Known:
    """A request of the trace; ``behind`` are the requests that must be over before it is ready."""

    id: str
    task: TaskSpec
    agent: str
    round: Round
    behind: tuple[str, ...]


def all_requests(trace: Trace) -> dict[str, Known]:
    """Return every request of a trace by the id that it must have."""
    found = {}
    for task in trace.tasks:
        dag = task.workflow.dag
        for stage, rounds in enumerate(task.rounds):
            before = tuple(f"{task.id}/{dag.names[p]}/{len(task.rounds[p]) - 1}" for p in dag.before[stage])
            for index, spec in enumerate(rounds):
                name = f"{task.id}/{dag.names[stage]}/{index}"
                found[name] = Known(name, task, task.workflow.agents[stage], spec, before)
                before = (name,)
    return found


@dataclass
class Audit:
    """The state that the recorded decisions add up to, and all that contradicts it."""

    trace: Trace
    profile: Profile
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start before the first event."""
        self.known = all_requests(self.trace)
        self.time_s = 0.0
        self.waiting: set[str] = set()
        self.running: set[str] = set()
        self.finished: set[str] = set()
        self.last_seen_s: dict[str, float] = {}

    def fault(self, event: Event, what: str) -> None:
        """Note a contradiction."""
        self.faults.append(f"{event.time_s:.6f}: {what}")

    def follow(self, entries: Sequence[Entry]) -> Audit:
        """Check every entry in turn; then what runs must be the last there is."""
        for entry in entries:
            self.entry(*entry)
        self.finished |= self.running
        for name in sorted(self.waiting | (self.known.keys() - self.finished)):
            self.faults.append(f"end: {name} never ran")
        return self

    def entry(self, *entry: *Entry) -> None:
        """Check one event against the state before, and move on by its decision."""
        event, decision = entry
        if event.time_s < self.time_s:
            self.fault(event, f"the clock ran back from {self.time_s}")
        self.time_s = event.time_s
        self._partition(event)
        self._memory(event)
        wrong = violations(event, decision)
        if wrong:
            self.fault(event, f"infeasible: {wrong}")
        self.waiting = {r.id for r in event.waiting} - set(decision.admit) | set(decision.preempt)
        self.running = {r.id for r in event.running} - set(decision.preempt) | set(decision.admit)
        for name in self.running:
            self.last_seen_s[name] = event.time_s

    def _partition(self, event: Event) -> None:
        """Check how the requests have moved since the decision before."""
        waiting, running = {r.id for r in event.waiting}, {r.id for r in event.running}
        self._names(event, waiting, running)
        for name in running - self.running:
            self.fault(event, f"{name} runs without having been admitted")
        retracted = self.running & waiting
        if retracted and self.profile.admission == "full":
            self.fault(event, f"{retracted} went back to the queue")
        for name in self.waiting - waiting:
            self.fault(event, f"{name} vanished from the queue")
        for name in running & self.running:
            self.last_seen_s[name] = event.time_s
        self.finished |= self.running - running - waiting
        for name in (waiting | running) & self.finished:
            self.fault(event, f"{name} is back after it finished")
        for name in sorted(waiting - self.waiting - retracted):
            self._newcomer(event, name)

    def _names(self, event: Event, waiting: set[str], running: set[str]) -> None:
        """Check that every request stands on one side, once, with the facts of the trace."""
        if len(waiting) + len(running) != len(event.waiting) + len(event.running) or waiting & running:
            self.fault(event, "a request is named twice")
        if set(event.tasks) != {r.task for r in (*event.waiting, *event.running)}:
            self.fault(event, "tasks are not those with a request")
        for request in (*event.waiting, *event.running):
            known = self.known[request.id]
            if request.agent != known.agent or not known.task.arrival_s <= request.arrival_s <= event.time_s:
                self.fault(event, f"{request.id} has a wrong agent or arrival")
            if self.profile.admission == "full" and request.reserve_tokens != known.round.reserve_tokens:
                self.fault(event, f"{request.id} reserves {request.reserve_tokens}")

    def _newcomer(self, event: Event, name: str) -> None:
        """Check that a new request's task has arrived, and that all it waits for is over."""
        known = self.known[name]
        if known.task.arrival_s > event.time_s:
            self.fault(event, f"{name} came before its task")
        for other in known.behind:
            if other not in self.finished:
                self.fault(event, f"{name} is ready before {other} has finished")
            elif event.time_s < self.last_seen_s[other] + self.known[other].round.tool_s:
                self.fault(event, f"{name} is ready before the tool wait behind {other}")

    def _memory(self, event: Event) -> None:
        budget = self.profile.kv_budget_tokens
        if event.budget_tokens != budget:
            self.fault(event, f"budget {event.budget_tokens}")
        if len(event.running) > self.profile.max_running:
            self.fault(event, f"{len(event.running)} requests run")
        agents = {r.agent for r in event.running}
        if not agents <= event.resident:
            self.fault(event, "a running request's prefix is not resident")
        held = 0
        for request in event.running:
            spec = self.known[request.id].round
            held += spec.input_tokens + request.generated_tokens
            if not 0 <= request.generated_tokens < spec.output_tokens:
                self.fault(event, f"{request.id} generated {request.generated_tokens} and is not finished")
        resident = sum(self.trace.agents[a] for a in event.resident)
        if resident + held > budget:
            self.fault(event, f"resident prefixes {resident} and requests {held} exceed {budget}")
        reserved = sum(self.known[r.id].round.reserve_tokens for r in event.running)
        prefixes = sum(self.trace.agents[a] for a in agents)
        if self.profile.admission == "full" and prefixes + reserved > budget:
            self.fault(event, f"prefixes {prefixes} and reservations {reserved} exceed {budget}")


def least_completion_s(trace: Trace, profile: Profile, task: TaskSpec, resumed: int) -> float:
    """Return a time before which a task cannot be complete, whatever the policy.

    It is the longest path over its stages, each request alone on the engine: a prefill of what cannot be
    in memory, a decode step for every token but the first, and the tool waits. A request that resumes
    gets a token from its new prefill instead of a step; there are at most ``resumed`` of them.
    """
    dag = task.workflow.dag
    done: list[float] = []
    for stage, rounds in enumerate(task.rounds):
        prefix = trace.agents[task.workflow.agents[stage]]
        time_s = max((done[p] for p in dag.before[stage]), default=task.arrival_s)
        for spec in rounds:
            time_s += profile.prefill_base_s
            time_s += max(spec.input_tokens - spec.reused_tokens, 1) * profile.prefill_s_per_token
            for k in range(1, spec.output_tokens - resumed):
                kv_tokens = prefix + spec.input_tokens + k
                time_s += profile.decode_base_s + profile.decode_s_per_seq
                time_s += kv_tokens * profile.decode_s_per_kv_token
            time_s += spec.tool_s
        done.append(time_s)
    return max(done)
