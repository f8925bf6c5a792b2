"""The parameters of the policies, each declared once: default, range, words, and where to tune it.

The event format, the configuration file, the command line, the tuning space and reports read these fields:
a new parameter is added here, and used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, cast, get_args, get_type_hints

from pydantic import Field

from topas.cost import FREE, Cost
from topas.schema import STRICT, Count, Real, Whole


@dataclass(frozen=True, slots=True)
class Tuned:
    """Where a parameter is looked for: from ``low`` to ``high``, or among ``choices`` that have no order."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How ``topas`` looks ahead: what it tries, how far it follows, and what it takes to leave a base rule.

    The base rule that does best by itself is followed. Requests are preempted each once, to make room for
    others. The cost of a rollout is the mean completion time, plus ``tail`` times the 8-norm of the ages at
    completion, plus ``drain`` times the time that all present work takes at the speed of its first half. A
    candidate that is worse than the best by ``race`` / sqrt(scenarios seen) is followed no further.
    """

    __pydantic_config__ = STRICT

    preempt: Annotated[
        Real,
        Field(
            ge=0,
            le=1,
            description="requests of an agent may be preempted that together generated at most"
            " this share of an expected output",
        ),
        Tuned(0.0, 1.0),
    ] = 0.5
    scenarios: Annotated[
        Whole,
        Field(ge=1, le=64, description="samples of unknown output lengths"),
        Tuned(1, 16, log=True),
    ] = 8
    horizon: Annotated[
        Whole,
        Field(ge=1, le=100_000, description="completions that a rollout follows"),
        Tuned(10, 1000, log=True),
    ] = 100
    tail: Annotated[
        Real,
        Field(ge=0, le=1e6, description="weight of late tasks beside the mean completion time"),
        Tuned(0.0, 4.0),
    ] = 1.0
    drain: Annotated[
        Real,
        Field(
            ge=0,
            le=1e6,
            description="weight of the time that all present work takes, for which later arrivals wait",
        ),
        Tuned(0.0, 2.0),
    ] = 0.6
    margin: Annotated[
        Real,
        Field(ge=0, lt=1, description="share by which a candidate must beat the best simple rule"),
        Tuned(0.0, 0.1),
    ] = 0.01
    race: Annotated[
        Real,
        Field(ge=0, le=1e6, description="how far behind a candidate is followed no further"),
        Tuned(0.0, 0.3),
    ] = 0.05


@dataclass(frozen=True, slots=True)
class SearchParams:
    """What an operator may choose, of the score, the search and, for ``topas`` alone, the lookahead."""

    __pydantic_config__ = STRICT

    beta: Annotated[
        Real,
        Field(ge=0, le=1e6, description="weight of prefix reuse, Eq. 11"),
        Tuned(0.0, 4.0),
    ] = 1.0
    rho: Annotated[
        Real,
        Field(ge=0, le=1e6, description="strength of aging, Eq. 12"),
        Tuned(0.0, 4.0),
    ] = 0.5
    M: Annotated[
        Whole,
        Field(ge=0, le=16, description="largest pool of agents whose prefix sets are all tried, at most 16"),
        Tuned(0, 10),  # beyond it the enumeration alone takes milliseconds a decision
    ] = 6
    K: Annotated[
        Count,
        Field(description="cap on admissions, and on preemptions, of one decision, 0 for none"),
        Tuned(choices=(0, 1, 2, 4, 8, 16, 32)),  # no order fits it, since 0 is no cap at all
    ] = 0
    age_factor: Annotated[
        Real,
        Field(ge=1e-3, le=1e3, description="the age scale, which is learnt, in mean services of a task"),
        Tuned(0.1, 10.0, log=True),
    ] = 1.0
    lookahead: Lookahead = Lookahead()

    @classmethod
    def of(cls, params: SearchParams) -> SearchParams:
        """Return what an operator could have chosen of these."""
        return cls(**{field.name: getattr(params, field.name) for field in fields(cls)})

    def on(self, params: Params) -> Params:
        """Return parameters with these in them; an age scale that is known already is scaled anew."""
        chosen = {field.name: getattr(self, field.name) for field in fields(SearchParams)}
        age_scale_s = params.age_scale_s * (self.age_factor / params.age_factor)
        return replace(params, **chosen, age_scale_s=age_scale_s)


@dataclass(frozen=True, slots=True)
class RunParams(SearchParams):
    """What is chosen, and what the run adds to it.

    ``age_scale_s`` is H_age of Eq. 12, of which ``age_factor`` is a part already. ``max_running`` caps the
    running batch (0: no cap). ``scenarios`` and ``seed`` fix the sampled expectation of Eq. 5 where it is not
    exact.
    """

    __pydantic_config__ = STRICT

    age_scale_s: Annotated[Real, Field(gt=0)] = 30.0
    max_running: Count = 0
    scenarios: Annotated[Whole, Field(ge=1, le=65536)] = 256
    seed: Count = 0


@dataclass(frozen=True, slots=True)
class Params(RunParams):
    """All that a policy is told beside the state: what is chosen, and what is known of the engine.

    ``cost`` is what its work takes. ``keeps_output``: a preempted request keeps what it has generated.
    ``host_cache``: a prefix that was let go is loaded from host memory rather than computed again.
    ``reads_shared_once``: a decode step reads a prefix once for all that use it (E24).
    """

    cost: Cost = FREE
    keeps_output: bool = False
    host_cache: bool = True
    reads_shared_once: bool = True


class Parameter(NamedTuple):
    """A parameter that may be chosen, as it is declared; those of the lookahead as ``lookahead.margin``."""

    name: str
    kind: type[int | float]
    default: int | float
    words: str
    tuned: Tuned


def _declared(owner: Any, prefix: str = "") -> Iterator[Parameter]:  # noqa: ANN401  a dataclass
    hints = get_type_hints(owner, include_extras=True)
    for field in fields(owner):
        hint: Any = hints[field.name]
        if is_dataclass(hint):
            yield from _declared(hint, f"{field.name}.")
            continue
        kind, *about = get_args(hint)
        words = next(one.description for one in about if getattr(one, "description", None))
        tuned = next(one for one in about if isinstance(one, Tuned))
        yield Parameter(f"{prefix}{field.name}", kind, cast("float", field.default), words, tuned)


PARAMETERS = {parameter.name: parameter for parameter in _declared(SearchParams)}
"""Everything that may be chosen, by name, the lookahead last."""


def values_of(params: SearchParams, names: Iterable[str] = PARAMETERS) -> dict[str, int | float]:
    """Return the values of parameters by name, of all if none are named."""
    return {name: attrgetter(name)(params) for name in names}


def with_values(params: SearchParams, changes: Mapping[str, int | float]) -> SearchParams:
    """Return parameters with some changed, by name."""
    ahead: dict[str, Any] = {name.rpartition(".")[2]: value for name, value in changes.items() if "." in name}
    own: dict[str, Any] = {name: value for name, value in changes.items() if "." not in name}
    return replace(params, **own, lookahead=replace(params.lookahead, **ahead))


def params_in_words(params: SearchParams) -> str:
    """Name the parameters of the score, and of the lookahead those that differ from the defaults."""
    values = values_of(params)
    changed = {name: value for name, value in values.items() if value != PARAMETERS[name].default}
    text = _named({name: value for name, value in values.items() if "." not in name})
    ahead = _named({name: value for name, value in changed.items() if "." in name})
    return f"{text}, lookahead: {ahead}" if ahead else text


def _named(values: Mapping[str, int | float]) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} {value}".replace("_", " ") for name, value in values.items())
