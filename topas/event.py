"""A scheduling event: all that a policy may know at one instant (paper section III)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from topas.params import Params
from topas.residual import Residual
from topas.workflow import Dag

__all__ = ["Event", "Outlook", "Params", "Request", "TaskState"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What past executions say about an agent-stage pair, in tokens and requests.

    A request of it has ``input_tokens`` behind the prefix, and may generate ``max_new_tokens``. ``outputs``
    are output lengths seen, ``counts`` the numbers of requests of finished executions, both in increasing
    order; before any was seen, the profiled ones. A request that is not the first of its execution finds
    ``reused_tokens`` of its input in memory.
    """

    agent: str
    input_tokens: int
    max_new_tokens: int
    outputs: tuple[int, ...]
    counts: tuple[int, ...]
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A ready or running LLM request.

    ``reserve_tokens`` is d_r of Eq. 2, ``service_s`` the expected service of one request of its
    agent-stage pair. Only a running request has ``generated_tokens`` (y_r) and ``credit_s`` (lambda_r).
    ``cached_tokens`` of its prompt, prefix and dynamic part together, are in GPU memory now.
    ``input_tokens`` are its dynamic suffix, ``max_new_tokens`` what the client allows it (0: not known).
    ``passed_tokens`` were prefilled in the engine since it joined the queue. ``preemptions`` counts how often
    it was preempted.
    """

    id: str
    task: str
    stage: str
    agent: str
    reserve_tokens: int
    service_s: float
    arrival_s: float = 0.0
    cached_tokens: int = 0
    generated_tokens: int = 0
    credit_s: float = 0.0
    input_tokens: int = 0
    max_new_tokens: int = 0
    passed_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class TaskState:
    """A task in progress: residual ``k`` belongs to stage ``k`` of ``dag``.

    ``attained_s`` is the LLM service that the task has received so far. Where more is known of its stages,
    ``outlooks`` has one for each, and ``requests`` how many requests of each are complete.
    """

    arrival_s: float
    dag: Dag
    residuals: tuple[Residual, ...]
    attained_s: float = 0.0
    outlooks: tuple[Outlook, ...] = ()
    requests: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """What a policy decides on: GPU state, ready and running requests, the tasks behind them.

    ``agents`` maps each agent to its prefix in tokens; ``resident`` are the agents whose prefix is on
    the GPU; ``reuse_counts`` is n_a of Eq. 11. ``waiting`` and ``running`` have no order of meaning.
    """

    time_s: float
    budget_tokens: int
    agents: Mapping[str, int]
    tasks: Mapping[str, TaskState]
    waiting: Sequence[Request]
    running: Sequence[Request]
    resident: frozenset[str] = frozenset()
    reuse_counts: Mapping[str, int] = field(default_factory=dict)
    params: Params = field(default_factory=Params)

    def tokens_in_use(self) -> int:
        """Return what the running requests reserve, with the prefixes that they use (Eq. 2)."""
        prefixes = sum(self.agents[a] for a in {request.agent for request in self.running})
        return prefixes + sum(request.reserve_tokens for request in self.running)

    def cached(self, request: Request) -> int:
        """Return how many tokens of a request's prompt are in GPU memory."""
        return request.cached_tokens

    def passed(self, request: Request) -> int:
        """Return how many tokens the engine has prefilled since the request joined the queue."""
        return request.passed_tokens

    def prompt(self, request: Request) -> int:
        """Return the length of a request's prompt, prefix included."""
        return self.agents[request.agent] + request.input_tokens
