"""What is tuned on what: all that a study depends on."""

from __future__ import annotations

import hashlib
import random
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from optuna.distributions import distribution_to_json

from compare.source import Source
from compare.store import canonical, code_digest
from compare.study import Run
from compare.tuning.loss import Weights
from compare.tuning.space import Space
from topas.event import Params
from topas.params import SearchParams
from topas.profile import Profile


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """What is tuned on what.

    ``base`` holds the values of trial 0, and those of parameters outside of ``space``. ``prune`` is the
    p-value of the Wilcoxon test below which a trial is given up (0: never).
    """

    policy: str
    base: SearchParams
    space: Space
    train: tuple[Source, ...]
    profile: Profile
    baselines: tuple[str, ...]
    weights: Weights
    seed: int
    prune: float

    def digests(self) -> dict[str, str]:
        """Return a digest of each thing that a study depends on, by the words that name it."""
        contents: dict[str, Any] = {
            "another policy": self.policy,
            "other parameters, ranges or starting values": {
                "ranges": {name: distribution_to_json(one) for name, one in self.space.items()},
                "base": asdict(self.base),
            },
            "other training traces": [source.content() for source in self.train],
            "another engine profile": self.profile.model_dump(mode="json"),
            "other baselines or weights": [*self.baselines, self.weights.mean, self.weights.p99],
            "another seed": self.seed,
            "another --prune": self.prune,
            "another version of the code": [version("topas"), code_digest()],
        }
        return {
            words: hashlib.sha256(canonical(value).encode()).hexdigest() for words, value in contents.items()
        }

    def runs(self, params: SearchParams) -> tuple[Run, ...]:
        """Return the training runs of some parameters, in an order that mixes loads, seeds and workloads.

        The order is the same for all trials: after so many cells they are compared on the same traces.
        """
        order = list(self.train)
        random.Random(self.seed).shuffle(order)  # noqa: S311  no secret
        return tuple(Run(source, self.policy, self.profile, params.on(Params())) for source in order)
