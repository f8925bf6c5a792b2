"""The seam between an engine and a policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from topas.decision import Decision
from topas.engine import rules
from topas.event import Event, Request
from topas.score import decision_on
from topas.workflow import Dag

Key = Callable[[Request], tuple[float | str, ...]]


class TaskFacts(Protocol):
    """What a queue policy may know of a task."""

    @property
    def arrival_s(self) -> float:
        """Time of arrival."""

    @property
    def attained_s(self) -> float:
        """LLM service received so far."""

    @property
    def dag(self) -> Dag:
        """Precedence of its stages."""


class QueueView(Protocol):
    """What a queue policy orders by; an :class:`~topas.event.Event` is one."""

    @property
    def waiting(self) -> Collection[Request]:
        """Ready requests."""

    @property
    def tasks(self) -> Mapping[str, TaskFacts]:
        """Tasks of these requests, by id."""

    def cached(self, request: Request) -> int:
        """Return how many tokens of the request's prompt are in GPU memory."""

    def passed(self, request: Request) -> int:
        """Return how many tokens the engine has prefilled since the request joined the queue."""

    def prompt(self, request: Request) -> int:
        """Return the length of the request's prompt, prefix included."""


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Orders the queue; the engine admits from its head and stops at the first that does not fit.

    ``rule`` is one of :mod:`topas.engine.rules`. With ``foresight`` the engine evicts by steps to execution
    and loads ahead (:func:`topas.engine.tree.load_ahead`).
    """

    name: str
    rule: int
    foresight: bool = False

    def rank(self, view: QueueView) -> Key:
        """Return, for the queue at hand, the sort key of a request: smallest first."""
        rule, tasks = self.rule, view.tasks
        looks = rules.looks_up.py_func(rule)
        backlog = sum(_leaves(view, r) for r in view.waiting) if rule == rules.GATE else 0
        gate_open = backlog >= rules.GATE_BACKLOG

        def key(r: Request) -> tuple[float | str, ...]:
            task = tasks[r.task]
            first: float = rules.rank.py_func(
                rule,
                task.arrival_s,
                task.attained_s,
                task.dag.depth[task.dag.index[r.stage]],
                gate_open and _leaves(view, r),
                view.cached(r) if looks else 0,
                view.prompt(r) if rule == rules.HRRN else 0,
                view.passed(r) if rule == rules.HRRN else 0,
            )
            return (first, r.arrival_s, r.id)

        return key

    def decide(self, event: Event) -> Decision:
        """Return what admission from the head does under the reservation of Eq. 2."""
        order = sorted(event.waiting, key=self.rank(event))
        return decision_on(event, [request.id for request in admit_from_head(event, order)])


@dataclass(frozen=True, slots=True)
class JointPolicy:
    """Chooses the whole post-decision state.

    ``prepare`` does what would otherwise delay the first decision, such as loading compiled code. A prefix
    outside R' that nobody uses goes at once (Eq. 2: none is idle); with ``leaves_idle`` it stays until its
    room is needed, and what is wanted last goes first (see :mod:`topas.online.foresight`).
    """

    name: str
    decide: Callable[[Event], Decision]
    prepare: Callable[[], None] = lambda: None
    leaves_idle: bool = False


Policy = QueuePolicy | JointPolicy


def admit_from_head(event: Event, order: Iterable[Request]) -> list[Request]:
    """Admit in this order until one does not fit: SGLang's rule with the full reservation d_r.

    A prefix without running requests is evictable, so only the agents of Q' count (Eq. 2).
    """
    agents = {request.agent for request in event.running}
    tokens = event.tokens_in_use()
    room = event.params.max_running or len(event.waiting) + len(event.running)
    if event.params.K:
        room = min(room, len(event.running) + event.params.K)
    admitted: list[Request] = []
    for request in order:
        tokens += request.reserve_tokens
        if request.agent not in agents:
            tokens += event.agents[request.agent]
        if tokens > event.budget_tokens or len(event.running) + len(admitted) >= room:
            break
        agents.add(request.agent)
        admitted.append(request)
    return admitted


def _leaves(view: QueueView, request: Request) -> bool:
    """Return whether a request is of an exit stage."""
    dag = view.tasks[request.task].dag
    return not dag.after[dag.index[request.stage]]
