"""What is tuned: the parameters of each policy, their ranges, and how values become parameters.

A parameter is named as in the configuration file: ``beta``, ``lookahead.margin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from topas.errors import InputError
from topas.online.sglang.config import SearchParams

Value = int | float
Space = Mapping[str, BaseDistribution]

DIGITS = 4
"""Significant digits of a real parameter: what runs is what the file says, without an exponent."""

RANGES: Space = {
    "beta": FloatDistribution(0.0, 4.0),
    "rho": FloatDistribution(0.0, 4.0),
    "M": IntDistribution(0, 10),
    # No order fits K, since 0 is no cap at all.
    "K": CategoricalDistribution((0, 1, 2, 4, 8, 16, 32)),
    "age_factor": FloatDistribution(0.1, 10.0, log=True),
    "lookahead.preempt": FloatDistribution(0.0, 1.0),
    "lookahead.scenarios": IntDistribution(1, 16, log=True),
    "lookahead.horizon": IntDistribution(10, 1000, log=True),
    "lookahead.tail": FloatDistribution(0.0, 4.0),
    "lookahead.drain": FloatDistribution(0.0, 2.0),
    "lookahead.margin": FloatDistribution(0.0, 0.1),
    "lookahead.race": FloatDistribution(0.0, 0.3),
}
"""Where each parameter is looked for; beyond M = 10 the enumeration alone takes milliseconds a decision."""

_SCORE = ("beta", "rho", "M", "K", "age_factor")

TUNED: Mapping[str, tuple[str, ...]] = {
    "topas": (*(name for name in RANGES if name.startswith("lookahead.")), "K"),
    "topas-paper": _SCORE,
    "topas-score": _SCORE,
    "topas-base": ("M", "K"),
    "topas-no-reuse": ("rho", "M", "K", "age_factor"),
    "topas-no-aging": ("beta", "M", "K"),
}
"""The parameters that change what a policy does."""


def space_of(policy: str, names: Sequence[str] | None, base: SearchParams) -> dict[str, BaseDistribution]:
    """Return the ranges to search for a policy, wide enough to contain the values of ``base``.

    Parameters
    ----------
    names : parameters to tune, all of the policy's if None; those of the lookahead also without its name.

    Raises
    ------
    InputError
        if the policy has no parameters, or a name is none of them.
    """
    own = TUNED.get(policy)
    if own is None:
        raise InputError(f"{policy} has no parameters; known: {', '.join(TUNED)}", field="--policy")
    short = {name.rpartition(".")[2]: name for name in own}
    chosen = []
    for name in own if names is None else names:
        known = name if name in own else short.get(name)
        if known is None:
            raise InputError(
                f"{policy} has no parameter {name!r}; it has {', '.join(own)}", field="--parameters"
            )
        if known in chosen:
            raise InputError(f"{known} is named twice", field="--parameters")
        chosen.append(known)
    values = values_of(base, chosen)
    return {name: _widened(RANGES[name], values[name]) for name in chosen}


def _widened(given: BaseDistribution, value: Value) -> BaseDistribution:
    if isinstance(given, CategoricalDistribution):
        return CategoricalDistribution(tuple(sorted({*given.choices, value}, key=float)))  # type: ignore[arg-type]
    if isinstance(given, FloatDistribution):
        return FloatDistribution(min(given.low, value), max(given.high, value), log=given.log)
    if isinstance(given, IntDistribution):
        return IntDistribution(min(given.low, int(value)), max(given.high, int(value)), log=given.log)
    raise TypeError(type(given))


def values_of(params: SearchParams, names: Sequence[str]) -> dict[str, Value]:
    """Return some parameters' values by name."""
    values = {}
    for name in names:
        section, _, last = name.rpartition(".")
        values[name] = getattr(params.lookahead if section else params, last)
    return values


def with_values(params: SearchParams, values: Mapping[str, Value]) -> SearchParams:
    """Return parameters with some changed; real ones are rounded to :data:`DIGITS` significant digits."""
    changed: dict[str, Any] = params.model_dump()
    for name, value in values.items():
        section, _, last = name.rpartition(".")
        place = changed[section] if section else changed
        place[last] = float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
    changed["lookahead"] = type(params.lookahead)(**changed["lookahead"])
    return SearchParams(**changed)


def in_words(name: str, given: BaseDistribution) -> str:
    """Return a range as it stands in a report: ``0.1 to 10, logarithmic``."""
    if isinstance(given, CategoricalDistribution):
        return "one of " + ", ".join(str(choice) for choice in given.choices)
    if isinstance(given, FloatDistribution | IntDistribution):
        return f"{given.low:g} to {given.high:g}" + (", logarithmic" if given.log else "")
    raise TypeError(name)
