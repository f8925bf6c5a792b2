"""A request inside the simulated engine."""

from __future__ import annotations

from enum import Enum

from referee.cache import Node
from topas.event import Request
from topas.online.tracker import LiveTask
from topas.trace import Round


class Phase(Enum):
    """Where a request is: in the queue, or admitted and waiting for KV, for its prefill, or decoding."""

    WAITING = "waiting"
    LOADING = "loading"
    PREFILL = "prefill"
    DECODE = "decode"
    DONE = "done"


class Job:
    """One request from the moment it is ready until it is finished.

    ``request`` are its lasting facts, ``seen`` how a policy last saw it in the queue, by
    its passing ``facts``.
    ``generated`` is exact except while decoding, where it lags: the engine counts decode steps once for
    the whole batch (see ``Engine.generated``). ``held`` are its dynamic KV tokens, lagging alike;
    ``copied`` of them are a copy of the prefix, until its prefill is done. ``cold``: its prefill computes
    the prefix. ``fixed``: the engine knows that it will use up its allowance. ``joined_at``: tokens that the
    engine had prefilled when it joined the queue.
    """

    __slots__ = (
        "agent", "cold", "copied", "credit_ns", "facts", "finish_step", "fixed", "generated", "held",
        "join_step", "joined_at", "kept", "live", "node", "phase", "preemptions", "prefill_tokens",
        "profiled_ns", "request", "round", "round_index", "seen", "service_ns", "shared", "stage",
        "start_s",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913  a record with that many facts
        self, request: Request, live: LiveTask, stage: int, round_index: int, spec: Round, profiled_ns: int
    ) -> None:
        self.request = request
        self.seen = request
        self.facts: tuple[float, int, int, int, int] | None = None
        self.live = live
        self.stage = stage
        self.agent = request.agent
        self.round_index = round_index
        self.round = spec
        self.profiled_ns = profiled_ns
        self.phase = Phase.WAITING
        self.generated = 0
        self.held = 0
        self.kept = False
        self.node: Node | None = None
        self.shared = 0
        self.prefill_tokens = 0
        self.cold = False
        self.copied = 0
        self.fixed = False
        self.credit_ns = 0
        self.service_ns = 0
        self.start_s = -1.0
        self.join_step = 0
        self.joined_at = 0
        self.preemptions = 0
        self.finish_step = 0

    @property
    def max_left(self) -> int:
        """Return how many tokens it may still generate, counted when it last changed phase."""
        return self.round.max_new_tokens - self.generated
