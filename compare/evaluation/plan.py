"""The plan of the evaluation as a data model: workloads, seeds, targets, guard, variants and cases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from compare.cases import CASES
from topas.params import Lookahead
from topas.policies import baseline_names, policy_names
from topas.schema import Strict, validate
from topas.sections import read_sections
from traces.workloads import WORKLOADS

PLAN = Path(__file__).parent.parent / "evaluation.toml"
"""The plan that was fixed before tuning."""


def _known(what: str, names: list[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise PydanticCustomError(
                "unknown", "Expected one of {names}", {"what": what, "names": ", ".join(names)}
            )
        return name

    return AfterValidator(check)


def _once(values: list[object]) -> list[object]:
    if len(set(map(str, values))) < len(values):
        raise PydanticCustomError("twice", "Expected each value once")
    return values


Workload = Annotated[str, _known("workload", sorted(WORKLOADS))]
Policy = Annotated[str, _known("policy", policy_names(on_request=True))]
Baseline = Annotated[str, _known("baseline", baseline_names())]
CaseName = Annotated[str, _known("case", list(CASES))]
Sigma = Annotated[float, Field(ge=0, le=2)]
Load = Annotated[float, Field(gt=0, le=100)]
Tokens = Annotated[int, Field(ge=0, le=10_000_000)]
Seed = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Loads = Annotated[list[Load], Field(min_length=1), AfterValidator(_once)]
Sigmas = Annotated[list[Sigma], Field(min_length=1), AfterValidator(_once)]
Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_once)]
Workloads = Annotated[list[Workload], Field(min_length=1), AfterValidator(_once)]


class SeedSets(Strict):
    """Seeds that were seen while developing and tuning, and those kept for the results."""

    development: Seeds
    held_out: Seeds

    @model_validator(mode="after")
    def _apart(self) -> SeedSets:
        if set(self.development) & set(self.held_out):
            raise PydanticCustomError("seen", "Expected held-out seeds that development never drew")
        return self


class WorkloadRow(Strict):
    """A workload of the grid; without sigmas it draws the outputs that are its own."""

    name: Workload
    output_sigma: Sigmas | None = None

    @property
    def sigmas(self) -> list[float | None]:
        """Return the sigmas to run; None for outputs of its own."""
        return [None] if self.output_sigma is None else [*self.output_sigma]


class Main(Strict):
    """The grid: every workload and sigma at every prefix length and load."""

    prefix_tokens: Annotated[list[Tokens], Field(min_length=1), AfterValidator(_once)]
    workloads: Annotated[list[WorkloadRow], Field(min_length=1)]


class Target(Strict):
    """Changes that are aimed at, in percent, averaged over the loads; without sigma: outputs of its own."""

    workload: Workload
    prefix_tokens: Tokens
    output_sigma: Sigma | None = None
    mean: float
    p99: float


class Guard(Strict):
    """By how many percent mean and p99 JCT may exceed the best baseline's, in any cell."""

    mean: Annotated[float, Field(ge=0)]
    p99: Annotated[float, Field(ge=0)]


class Sessions(Strict):
    """The engine that recorded sessions are played on."""

    profile: str


class Variant(Strict):
    """A policy under a name, with some of the lookahead's parameters changed."""

    name: Annotated[str, Field(min_length=1)]
    policy: Policy = "topas"
    lookahead: Lookahead = Lookahead()


class Ablation(Strict):
    """Variants beside the whole policy, which is the first."""

    workloads: Workloads
    prefix_tokens: Tokens
    output_sigma: Sigmas
    loads: Loads
    variants: Annotated[list[Variant], Field(min_length=1)]

    @model_validator(mode="after")
    def _named_once(self) -> Ablation:
        _once([variant.name for variant in self.variants])
        return self


class Robustness(Strict):
    """Cases, each on these workloads and loads unless it brings its own."""

    workloads: Workloads
    prefix_tokens: Tokens
    output_sigma: Sigma
    loads: Loads
    seeds: Seeds
    cases: Annotated[list[CaseName], Field(min_length=1), AfterValidator(_once)]


class BoundPart(Strict):
    """Traces that are put beside their lower bounds and the best schedules known."""

    workloads: Annotated[list[WorkloadRow], Field(min_length=1)]
    prefix_tokens: Tokens
    loads: Loads
    seed: Seed
    tasks: Count


class EvaluationPlan(Strict):
    """The whole file; ``policies`` are compared with ``baselines``, the first has targets and guard."""

    format: Literal["topas-evaluation/1"]
    profile: str
    host_cache: bool
    loads: Loads
    tasks: Count
    baselines: Annotated[list[Baseline], Field(min_length=1), AfterValidator(_once)]
    policies: Annotated[list[Policy], Field(min_length=1), AfterValidator(_once)]
    seeds: SeedSets
    main: Main
    targets: list[Target]
    guard: Guard
    sessions: Sessions
    ablation: Ablation
    robustness: Robustness
    bound: BoundPart

    @model_validator(mode="after")
    def _targets_are_run(self) -> EvaluationPlan:
        run = {
            (row.name, prefix, sigma)
            for row in self.main.workloads
            for prefix in self.main.prefix_tokens
            for sigma in row.sigmas
        }
        for target in self.targets:
            if (target.workload, target.prefix_tokens, target.output_sigma) not in run:
                raise PydanticCustomError(
                    "not_run",
                    "Expected targets of what part main runs, not of {name}",
                    {"name": target.workload},
                )
        return self


def load_plan(path: Path = PLAN) -> EvaluationPlan:
    """Read a plan.

    Raises
    ------
    InputError
        if the file cannot be read, is no TOML, or a field of it is wrong.
    """
    return validate(EvaluationPlan, read_sections(str(path)), source=str(path))
