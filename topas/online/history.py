"""What past executions say about an agent-stage pair: F and the mean request service (paper IV-B)."""

from __future__ import annotations

from collections import deque

import numpy as np

from topas.event import Outlook
from topas.residual import Residual, outlived
from topas.workflow import StageProfile

WINDOW = 256
"""Executions, and requests, remembered per agent-stage pair: recent ones describe the present load best,
and memory in a long-running server stays bounded."""


class StageHistory:
    """Total LLM service of finished executions of one agent-stage pair, in nanoseconds.

    Before the first execution has finished, F is a point mass at ``profiled_ns``. The mean service per
    request D counts the latest finished requests, also those of executions that still go on.
    """

    __slots__ = (
        "_counts", "_inputs", "_outlook", "_outputs", "_requests", "_requests_ns", "_residuals", "_reused",
        "_totals", "profiled_ns",
    )  # fmt: skip

    def __init__(self, profiled_ns: int | None) -> None:
        self.profiled_ns = profiled_ns
        self._totals: deque[int] = deque(maxlen=WINDOW)
        self._requests: deque[int] = deque(maxlen=WINDOW)
        self._requests_ns = 0
        self._residuals: dict[tuple[int, int], Residual] = {}
        self._inputs: deque[int] = deque(maxlen=WINDOW)
        self._outputs: deque[int] = deque(maxlen=WINDOW)
        self._counts: deque[int] = deque(maxlen=WINDOW)
        self._reused: deque[int] = deque(maxlen=WINDOW)
        self._outlook: Outlook | None = None

    def request_done(
        self, service_ns: int, input_tokens: int, output_tokens: int, reused_tokens: int | None = None
    ) -> None:
        """Record one finished request: its service, its dynamic input and what it generated.

        ``reused_tokens`` of the input were the context of an earlier request of the same execution; None
        if it was the first one.
        """
        if reused_tokens is not None:
            self._reused.append(reused_tokens)
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        self._outlook = None
        if len(self._requests) == WINDOW:
            self._requests_ns -= self._requests[0]
        self._requests.append(service_ns)
        self._requests_ns += service_ns

    def stage_done(self, total_ns: int, requests: int) -> None:
        """Record the total service of a finished execution, and how many requests it had."""
        self._totals.append(total_ns)
        self._residuals.clear()
        self._counts.append(requests)
        self._outlook = None

    def outlook(self, agent: str, profile: StageProfile | None) -> Outlook | None:
        """Return what is expected of a request; None where nothing was seen or profiled."""
        if self._outlook is None:
            counts = tuple(sorted(self._counts)) or (profile.rounds if profile else 1,)
            if self._outputs:
                most = max(*self._outputs, profile.max_new_tokens if profile else 0)
                mean = sum(self._inputs) // len(self._inputs)
                reused = sum(self._reused) // len(self._reused) if self._reused else 0
                self._outlook = Outlook(agent, mean, most, tuple(sorted(self._outputs)), counts, reused)
            elif profile is not None:
                new = profile.max_new_tokens
                self._outlook = Outlook(agent, profile.input_tokens, new, (new,), counts)
        return self._outlook

    def request_ns(self, profiled_ns: int) -> int:
        """Return D: the mean service per request seen, or ``profiled_ns`` before any."""
        return self._requests_ns // len(self._requests) if self._requests else profiled_ns

    def residual(self, elapsed_ns: int, unknown_ns: int) -> Residual:
        """Return the residual of an unfinished stage with ``elapsed_ns`` of service recorded (Eq. 4).

        ``unknown_ns`` stands for the profiled total where no profile exists. The same history gives the
        same object, which lets path evaluations be shared.
        """
        profiled = self.profiled_ns if self.profiled_ns is not None else unknown_ns
        key = (elapsed_ns, 0 if self._totals else profiled)
        found = self._residuals.get(key)
        if found is None:
            samples = np.array(self._totals or [profiled], dtype=np.int64)
            if elapsed_ns and elapsed_ns >= samples.max():
                return outlived(max(self.request_ns(profiled), 1))
            found = Residual(samples[samples > elapsed_ns] - elapsed_ns if elapsed_ns else samples)
            self._residuals[key] = found
        return found
