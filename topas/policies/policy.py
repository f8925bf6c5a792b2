"""The two seams between an engine and a policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from topas.decision import Decision
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

    ``rank`` gives, for the queue at hand, the sort key of a request: smallest first. With ``foresight``
    the engine evicts by steps to execution and loads ahead (see :mod:`topas.online.foresight`).
    """

    name: str
    rank: Callable[[QueueView], Key]
    foresight: bool = False

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


class Door(QueueView, Protocol):
    """The queue, and what is behind it: what a plan is carried out with."""

    @property
    def running(self) -> Collection[str]:
        """Ids of admitted, unfinished requests."""

    @property
    def in_use(self) -> Collection[str]:
        """Agents whose prefix admitted requests use."""

    def fits(self, request: Request) -> bool:
        """Return whether a waiting request could be admitted now."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Carries out a plan made ahead of a run, which may hold requests back; only in the simulator.

    ``begin`` starts one run. What it returns is called at every decision and yields the waiting requests
    to admit; each must fit when it is yielded, and is admitted before the next one is asked for.
    """

    name: str
    begin: Callable[[], Callable[[Door], Iterator[Request]]]


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
