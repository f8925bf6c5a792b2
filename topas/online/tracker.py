"""Run-time tracking: task progress, service history, credits and the age scale, and the event they make.

Simulator and server tell a tracker what happened; it tells a policy what may be known. Times are passed
in; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from topas.event import Event, Outlook, Params, Request, TaskState
from topas.online.history import StageHistory
from topas.profile import Profile
from topas.residual import FINISHED, Residual
from topas.units import to_ns, to_s
from topas.workflow import Dag, Workflow

UNKNOWN_TOKENS = 256
"""Expected input and output of a request of a stage of which nothing at all is known."""
UNKNOWN_S = 1.0
"""Expected service of a stage of which nothing at all is known, as long as nothing is known of any."""

MAX_HISTORIES = 1024
"""Agent-stage pairs remembered: in a server their names come from clients. The oldest are forgotten."""


class LiveTask:
    """A task that has arrived and not finished."""

    __slots__ = (
        "arrival_s", "attained_ns", "cached_state", "dag", "elapsed_ns", "finished", "histories", "id",
        "left", "missing", "requests", "running", "workflow",
    )  # fmt: skip

    def __init__(
        self, name: str, workflow: Workflow, arrival_s: float, histories: list[StageHistory]
    ) -> None:
        size = len(workflow.dag)
        self.id = name
        self.workflow = workflow
        self.dag: Dag = workflow.dag
        self.arrival_s = arrival_s
        self.attained_ns = 0
        self.left = size
        self.histories = histories
        self.elapsed_ns = [0] * size
        self.finished = [False] * size
        self.missing = [len(before) for before in workflow.dag.before]
        self.running = [0] * size
        self.requests = [0] * size
        self.cached_state: tuple[int, TaskState] | None = None

    @property
    def attained_s(self) -> float:
        """Return the LLM service received so far."""
        return to_s(self.attained_ns)


class Tracker:
    """All memory between events; ``tasks`` are those in progress, by id."""

    def __init__(self, profile: Profile, params: Params | None = None) -> None:
        self._profile = profile
        self._params = replace(
            params or Params(),
            cost=profile.cost,
            max_running=profile.max_running,
            keeps_output=profile.redo != "decode",
            host_cache=profile.host_cache,
            reads_shared_once=profile.prefix_sharing == "batch",
        )
        self.tasks: dict[str, LiveTask] = {}
        self._histories: dict[tuple[str, str], StageHistory] = {}
        self._version = 0
        self._unknown = (-1, 0)  # the version at which the mean profiled total was taken, and that mean
        self._finished_tasks = 0
        self._finished_ns = 0
        self._first: list[StageHistory] = []

    def task_arrived(self, name: str, workflow: Workflow, time_s: float) -> LiveTask:
        """Begin to follow a task."""
        histories = [self._history(workflow, k) for k in range(len(workflow.dag))]
        task = LiveTask(name, workflow, time_s, histories)
        self.tasks[name] = task
        if not self._first:
            self._first = histories
        return task

    def request_ready(self, task: LiveTask, stage: int, input_tokens: int, max_new_tokens: int) -> int:
        """Return the profiled service of a new request, which also serves a stage without a profile."""
        profiled = to_ns(self._profile.expected_service_s(input_tokens, max_new_tokens))
        history = task.histories[stage]
        if history.profiled_ns is None:
            history.profiled_ns = profiled
            self._version += 1
        return profiled

    def request_admitted(self, task: LiveTask, stage: int) -> None:
        """Count a request as running."""
        task.running[stage] += 1

    def request_preempted(self, task: LiveTask, stage: int) -> None:
        """Count a running request as waiting again."""
        task.running[stage] -= 1

    def request_done(  # noqa: PLR0913  what is learnt of a request
        self,
        task: LiveTask,
        stage: int,
        service_ns: int,
        *,
        input_tokens: int = 0,
        output_tokens: int = 1,
        reused_tokens: int = 0,
    ) -> None:
        """Record a finished request's service and lengths in the stage's history."""
        reused = reused_tokens if task.requests[stage] else None
        task.running[stage] -= 1
        task.requests[stage] += 1
        task.elapsed_ns[stage] += service_ns
        task.attained_ns += service_ns
        task.histories[stage].request_done(service_ns, input_tokens, output_tokens, reused)
        self._version += 1

    def forget(self, task: LiveTask) -> None:
        """Drop a task that will never finish; the services of its finished stages stay recorded."""
        self.tasks.pop(task.id, None)

    def stage_done(self, task: LiveTask, stage: int, *, record: bool = True) -> list[int]:
        """Finish a stage; return the stages that are ready now. Forgets the task after its last stage.

        Without ``record`` its service says nothing about other executions: a stage that was passed over.
        """
        task.finished[stage] = True
        if record:
            task.histories[stage].stage_done(task.elapsed_ns[stage], task.requests[stage])
        self._version += 1
        task.left -= 1
        ready = []
        for other in task.dag.after[stage]:
            task.missing[other] -= 1
            if not task.missing[other]:
                ready.append(other)
        if not task.left:
            self._finished_tasks += 1
            self._finished_ns += task.attained_ns
            del self.tasks[task.id]
        return ready

    @property
    def age_scale_s(self) -> float:
        """Return H_age: ``age_factor`` times the mean total service of finished tasks.

        Before any has finished, the first task's profiled total stands for the mean.
        """
        if self._finished_tasks:
            mean_ns = self._finished_ns // self._finished_tasks
        else:
            unknown = self._unknown_ns()
            mean_ns = sum(unknown if h.profiled_ns is None else h.profiled_ns for h in self._first)
        return max(self._params.age_factor * to_s(mean_ns), 1e-9)

    def service_s(self, task: LiveTask, stage: int, profiled_ns: int) -> float:
        """Return D_r, the expected service of one request of a stage."""
        return to_s(task.histories[stage].request_ns(profiled_ns))

    def state(self, task: LiveTask) -> TaskState:
        """Return a task as a policy sees it."""
        cached = task.cached_state
        if cached is not None and cached[0] == self._version:
            return cached[1]
        if self._unknown[0] != self._version:
            self._unknown = (self._version, self._unknown_ns())
        unknown = self._unknown[1]
        residuals: list[Residual] = [
            FINISHED if done else history.residual(elapsed, unknown)
            for done, history, elapsed in zip(task.finished, task.histories, task.elapsed_ns, strict=True)
        ]
        state = TaskState(
            task.arrival_s,
            task.dag,
            tuple(residuals),
            task.attained_s,
            tuple(self._outlook(task, k) for k in range(len(task.dag))),
            tuple(task.requests),
        )
        task.cached_state = (self._version, state)
        return state

    def _outlook(self, task: LiveTask, stage: int) -> Outlook:
        agent = task.workflow.agents[stage]
        known = task.histories[stage].outlook(agent, task.workflow.profiles[stage])
        return known or Outlook(agent, UNKNOWN_TOKENS, UNKNOWN_TOKENS, (UNKNOWN_TOKENS,), (1,))

    def reuse_counts(self, tasks: Iterable[LiveTask]) -> dict[str, int]:
        """Return n_a (Eq. 11) over tasks with running requests.

        A stage counts if it is not ready and its only unfinished predecessor has a running request.
        """
        counts: dict[str, int] = {}
        for task in tasks:
            for stage, running in enumerate(task.running):
                if running:
                    for other in task.dag.after[stage]:
                        if task.missing[other] == 1:
                            agent = task.workflow.agents[other]
                            counts[agent] = counts.get(agent, 0) + 1
        return counts

    def event(  # noqa: PLR0913  an event has that many independent parts
        self,
        time_s: float,
        budget_tokens: int,
        agents: Mapping[str, int],
        resident: Iterable[str],
        waiting: list[Request],
        running: list[Request],
    ) -> Event:
        """Return the event of this instant; ``tasks`` holds those with a request."""
        names = dict.fromkeys(request.task for request in (*waiting, *running))
        active = dict.fromkeys(request.task for request in running)
        return Event(
            time_s=time_s,
            budget_tokens=budget_tokens,
            agents=agents,
            tasks={name: self.state(self.tasks[name]) for name in names},
            waiting=waiting,
            running=running,
            resident=frozenset(resident),
            reuse_counts=self.reuse_counts(self.tasks[name] for name in active),
            params=replace(self._params, age_scale_s=self.age_scale_s),
        )

    def _history(self, workflow: Workflow, stage: int) -> StageHistory:
        key = (workflow.agents[stage], workflow.dag.names[stage])
        found = self._histories.get(key)
        if found is None:
            found = StageHistory(self._profiled_ns(workflow, stage))
            if len(self._histories) >= MAX_HISTORIES:
                del self._histories[next(iter(self._histories))]
            self._histories[key] = found
            self._unknown = (-1, 0)
        return found

    def _profiled_ns(self, workflow: Workflow, stage: int) -> int | None:
        profile = workflow.profiles[stage]
        if profile is None:
            return None
        request_s = self._profile.expected_service_s(profile.input_tokens, profile.max_new_tokens)
        return to_ns(profile.rounds * request_s)

    def _unknown_ns(self) -> int:
        known = [h.profiled_ns for h in self._histories.values() if h.profiled_ns is not None]
        return sum(known) // len(known) if known else to_ns(UNKNOWN_S)
