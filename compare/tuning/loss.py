r"""What tuning minimises: JCT against the best baseline of the same trace, on a logarithmic scale.

loss = w_mean ln(mean JCT / best baseline's mean JCT) + w_p99 ln(p99 JCT / best baseline's p99 JCT)

The best baseline is sought for each metric on each trace. The logarithm makes a factor count the same
whether tasks take seconds or hours; 0 is as good as the best baseline, and negative is better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from compare.source import Source
from compare.study import Metrics, Played, Run
from topas.errors import InputError


@dataclass(frozen=True, slots=True)
class Weights:
    """How much the logarithms of mean and p99 JCT count."""

    mean: float = 1.0
    p99: float = 1.0


@dataclass(frozen=True, slots=True)
class Reference:
    """The best baselines of one trace, by metric: seconds."""

    mean_jct_s: float
    p99_jct_s: float


def references_of(baselines: Mapping[Run, Played]) -> dict[Source, Reference]:
    """Return the references of traces, from what all baselines came to on them.

    Raises
    ------
    InputError
        if a time is 0: nothing is a fraction of it.
    """
    found: dict[Source, Reference] = {}
    for run, played in baselines.items():
        mean, p99 = played.metrics.mean_jct_s, played.metrics.p99_jct_s
        known = found.get(run.source, Reference(mean, p99))
        found[run.source] = Reference(min(known.mean_jct_s, mean), min(known.p99_jct_s, p99))
    for source, reference in found.items():
        if not (reference.mean_jct_s > 0 and reference.p99_jct_s > 0):
            raise InputError(f"the best JCT on {source} is 0: nothing to compare with")
    return found


def loss_of(metrics: Metrics, reference: Reference, weights: Weights) -> float:
    """Return the loss of one run."""
    mean = math.log(metrics.mean_jct_s / reference.mean_jct_s)
    p99 = math.log(metrics.p99_jct_s / reference.p99_jct_s)
    return weights.mean * mean + weights.p99 * p99
