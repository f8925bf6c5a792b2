"""A scheduling event: all that a policy may know at one instant (paper section III)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from topas.residual import Residual
from topas.workflow import Dag


@dataclass(frozen=True, slots=True)
class Costs:
    """What the engine's steps take, for policies that look ahead; units and formulas as in a profile.

    ``keeps`` says whether a preempted request keeps what it has generated, ``host`` whether a prefix that
    was let go is loaded from host memory rather than computed again.
    """

    prefill_base_s: float = 0.0
    prefill_s_per_token: float = 0.0
    decode_base_s: float = 0.0
    decode_s_per_seq: float = 0.0
    decode_s_per_kv_token: float = 0.0
    keeps: bool = False
    host: bool = True


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How ``topas`` looks ahead: what it tries, how far it follows, and what it takes to leave a base rule.

    Requests of an agent that together have generated at most the share ``preempt`` of one expected output
    may be preempted, each once, to make room for others. Unknown output lengths are sampled in
    ``scenarios``. The base rule that does best by itself is followed. A rollout ends after ``horizon``
    completions; its cost is the mean completion time, plus ``tail`` times the 8-norm of the ages at
    completion, plus ``drain`` times the time that all present work takes at the speed of its first half, for
    which later arrivals wait. A candidate must be better than the rule's own decision by the share
    ``margin``; one that is worse than the best by ``race`` / sqrt(scenarios seen) is followed no further.
    """

    preempt: float = 0.5
    scenarios: int = 8
    horizon: int = 100
    tail: float = 1.0
    drain: float = 0.6
    margin: float = 0.01
    race: float = 0.05


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters of the score and of the search.

    ``beta`` weighs reuse (Eq. 11), ``rho`` aging (Eq. 12) over the scale H_age = ``age_scale_s``.
    ``M`` is the largest agent pool whose prefix sets are all enumerated, ``K`` caps the admissions and,
    separately, the preemptions of one event (0: no cap). ``max_running`` caps the running batch
    (0: no cap). ``scenarios`` and ``seed`` fix the sampled expectation of Eq. 5 where it is not exact.
    ``costs`` are the engine's; None where they are not known. ``lookahead`` is for ``topas`` alone.
    ``age_factor`` scales the learnt age scale: H_age is that many times the mean service of a task.
    """

    beta: float = 1.0
    rho: float = 0.5
    age_scale_s: float = 30.0
    M: int = 6
    K: int = 0
    swap_s_per_token: float = 0.0
    decode_s_per_token: float = 0.0
    max_running: int = 0
    scenarios: int = 256
    seed: int = 0
    costs: Costs | None = None
    lookahead: Lookahead = Lookahead()
    age_factor: float = 1.0


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
