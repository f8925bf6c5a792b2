"""A run: one policy on one draw, kept under everything that its result depends on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter

from compare.cases import View
from compare.cell import METRICS
from compare.evaluation.draw import Draw, played
from compare.kept import Question, answer_and_keep, question_path, read_answer
from compare.pool import Done, Work, folder_for, run_all
from topas.errors import SimulationError
from topas.event import Params
from topas.policies import JointPolicy, get_policy
from topas.policies.policy import Policy
from topas.sim import simulate

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one draw; ``label`` is how tables call the policy, and changes nothing."""

    kind: ClassVar[TypeAdapter[dict[str, float]]] = TypeAdapter(dict[str, float])
    draw: Draw
    policy: str
    label: str
    params: Params = field(default_factory=Params)

    def content(self) -> dict[str, Any]:
        """Return all that the metrics depend on, besides the code that every key holds."""
        return {
            "draw": self.draw.content(),
            "policy": self.policy,
            "params": asdict(self.params),
            "evaluation": own_digest(),
        }

    def answer(self) -> dict[str, float]:
        """Simulate.

        Raises
        ------
        InputError, SimulationError
            as :func:`topas.sim.simulate` does, and if a metric is missing or not finite.
        """
        trace, engine = played(self.draw)
        policy = seen_through(get_policy(self.policy), self.draw.case.view)
        metrics = dict(simulate(trace, policy, engine, params=self.params).metrics)
        if set(metrics) != set(METRICS) or not all(math.isfinite(value) for value in metrics.values()):
            raise SimulationError(f"a metric is missing or not finite: {metrics}")
        return {name: float(value) for name, value in metrics.items()}

    def __str__(self) -> str:
        """One line for messages."""
        return f"{self.draw}, {self.label}"


def seen_through(policy: Policy, view: View | None) -> Policy:
    """Return a policy that decides on what ``view`` makes of each event; queue policies see none."""
    if view is None or not isinstance(policy, JointPolicy):
        return policy
    decide = policy.decide
    return replace(policy, decide=lambda event: decide(view(event)))


@cache
def own_digest() -> str:
    """Return the SHA-256 over the modules here that make traces and views: no other key holds them."""
    digest = hashlib.sha256()
    for path in (Path(__file__).parent / "draw.py", Path(__file__).parent.parent / "cases.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run_questions(
    questions: Sequence[Question], folder: Path, *, jobs: int, progress: bool | None
) -> Done[Any, Any]:
    """Answer what ``folder/runs`` does not hold yet and return all answers; one that fails stops no other.

    Raises
    ------
    InputError
        if the folder cannot be made or written.
    Interrupted
        on Ctrl-C; finished answers stay.
    """
    kept = folder_for(folder / "runs")
    paths = {question: question_path(question, kept) for question in dict.fromkeys(questions)}
    work: Work[Any, Any] = Work(answer_and_keep, read_answer)
    return run_all(paths, work, jobs=jobs, progress=progress, unit="run")
