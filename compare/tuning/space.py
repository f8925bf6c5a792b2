"""What is tuned: the parameters of each policy, their ranges, and how values become parameters.

A parameter is named as in the configuration file: ``beta``, ``lookahead.margin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from topas.errors import InputError
from topas.params import PARAMETERS, Parameter, SearchParams, values_of

Value = int | float
Space = Mapping[str, BaseDistribution]

DIGITS = 4
"""Significant digits of a real parameter: what runs is what the file says, without an exponent."""


def _distribution(parameter: Parameter) -> BaseDistribution:
    tuned = parameter.tuned
    if tuned.choices:
        return CategoricalDistribution(tuned.choices)
    if parameter.kind is int:
        return IntDistribution(int(tuned.low), int(tuned.high), log=tuned.log)
    return FloatDistribution(tuned.low, tuned.high, log=tuned.log)


RANGES: Space = {name: _distribution(parameter) for name, parameter in PARAMETERS.items()}
"""Where each parameter is looked for."""

_SCORE = tuple(name for name in RANGES if not name.startswith("lookahead."))

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


def rounded(values: Mapping[str, Value]) -> dict[str, Value]:
    """Round real parameters to :data:`DIGITS` significant digits."""
    return {
        name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for name, value in values.items()
    }


def in_words(name: str, given: BaseDistribution) -> str:
    """Return a range as it stands in a report: ``0.1 to 10, logarithmic``."""
    if isinstance(given, CategoricalDistribution):
        return "one of " + ", ".join(str(choice) for choice in given.choices)
    if isinstance(given, FloatDistribution | IntDistribution):
        return f"{given.low:g} to {given.high:g}" + (", logarithmic" if given.log else "")
    raise TypeError(name)
