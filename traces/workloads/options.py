"""What can be varied in a generated workload."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from topas.errors import InputError

MAX_OPTION_TOKENS = 10_000_000
MAX_SIGMA = 2.0
"""Beyond it a lognormal length has hardly a typical value: half of them are under a seventh of the mean."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths in tokens and their spread, all decided."""

    prefix_tokens: int
    input_tokens: int
    output_tokens: int
    max_new_tokens: int
    input_sigma: float = 0.0
    output_sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Lengths in tokens and their spread; None is the workload's own default.

    Parameters
    ----------
    prefix_tokens : static prefix of an agent.
    input_tokens, output_tokens : mean dynamic input and mean output of a request.
    input_sigma, output_sigma : sigma of the lognormal lengths around these means (0: fixed lengths).
    max_new_tokens : what the client allows; longer outputs are clipped to it.
    order : how the requests of ``two-agent`` arrive.

    In a workload whose agents differ (the MetaGPT ones) ``prefix_tokens``, ``input_tokens`` and
    ``output_tokens`` scale all of the role-specific numbers so that the largest becomes the given one.

    Raises
    ------
    InputError
        if a value is out of range.
    """

    prefix_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    output_sigma: float | None = None
    input_sigma: float | None = None
    max_new_tokens: int | None = None
    order: Literal["alternating", "grouped"] | None = None

    def __post_init__(self) -> None:
        """Refuse what no workload can use."""
        for name in ("prefix_tokens", "input_tokens", "output_tokens", "max_new_tokens"):
            least = 0 if name in ("prefix_tokens", "input_tokens") else 1
            value = getattr(self, name)
            if value is not None and not least <= value <= MAX_OPTION_TOKENS:
                expected = f"expected {least} to {MAX_OPTION_TOKENS} tokens, found {value}"
                raise InputError(expected, field=name)
        for name in ("output_sigma", "input_sigma"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and 0 <= value <= MAX_SIGMA):
                raise InputError(f"expected 0 to {MAX_SIGMA:g}, found {value}", field=name)
        if self.order not in (None, "alternating", "grouped"):
            raise InputError(f"expected alternating or grouped, found {self.order!r}", field="order")

    def lengths(self, prefix_tokens: int, input_tokens: int, output_tokens: int) -> Lengths:
        """Return the lengths of a workload with these defaults, fixed ones unless a sigma is given.

        The default allowance is the output length, or twice its mean where outputs vary.
        """
        output = output_tokens if self.output_tokens is None else self.output_tokens
        sigma = self.output_sigma or 0.0
        return Lengths(
            prefix_tokens if self.prefix_tokens is None else self.prefix_tokens,
            input_tokens if self.input_tokens is None else self.input_tokens,
            output,
            self.max_new_tokens or (2 * output if sigma else output),
            self.input_sigma or 0.0,
            sigma,
        )

    def given(self) -> list[str]:
        """Return the names of the options that were set."""
        return [item.name for item in fields(self) if getattr(self, item.name) is not None]


DEFAULT_OPTIONS = WorkloadOptions()
