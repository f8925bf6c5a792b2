"""Tasks with too many subsets to list: their gain as a number under cuts.

For the aged gain G of one task and any set H of its ready requests,

    ``G(X) <= G(H) + sum over r in X - H of slope(r, H)``    for every set X,

with equality at X = H. G never falls as requests are added, so ``G(X) <= G(X + H)``; and a completion
takes at most ``min(D_r, what H leaves of Z)`` off any path of any outcome, so the longest path, and its
mean, fall by at most the sum of the means of these. ``slope`` is g_i times that mean, widened for the
three roundings (of two L and of the product, at most ``g_i + 1`` ns together) and for the doubles.

A model that knows G only from the cuts of some sets overestimates it. Where its solution X has a claimed
gain above G(X), the cut of X (grown by requests that add nothing) removes that claim. There are finitely
many sets, so this ends, with the optimum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from topas.problem import Problem

Gains = Callable[[int, tuple[int, ...]], int]
"""The aged joint gain of a task's requests, in ns: :func:`topas.score.joint_gain_ns`, remembered."""

MOST_PAIRS = 400
"""Up to so many pairs of requests, the first cuts include every set that lacks just one pair."""


@dataclass(frozen=True, slots=True)
class Cut:
    """``gain <= constant_ns + sum of slope_ns[r] over admitted r``."""

    constant_ns: int
    slope_ns: dict[int, int]


def cut_at(problem: Problem, task: int, requests: Sequence[int], inside: frozenset[int], gains: Gains) -> Cut:
    """Return the cut of one set of a task's requests, first grown by all that add nothing to it."""
    constant_ns = gains(task, tuple(sorted(inside)))
    for k in requests:
        if k not in inside and gains(task, tuple(sorted(inside | {k}))) == constant_ns:
            inside |= {k}
    outside = [k for k in requests if k not in inside]
    return Cut(constant_ns, {k: _slope_ns(problem, task, k, inside) for k in outside})


def first_cuts(problem: Problem, task: int, requests: Sequence[int], gains: Gains) -> list[Cut]:
    """Return the cuts to begin with: nothing, all, and all without one or two requests."""
    everything = frozenset(requests)
    pairs = list(itertools.combinations(requests, 2))
    lacking = [(), *((k,) for k in requests), *(pairs if len(pairs) <= MOST_PAIRS else ())]
    sets = [frozenset[int](), *(everything.difference(some) for some in lacking)]
    return [cut_at(problem, task, requests, inside, gains) for inside in dict.fromkeys(sets)]


def _slope_ns(problem: Problem, task: int, k: int, inside: frozenset[int]) -> int:
    """Return the most that request k can add to any set that holds ``inside``, in ns, rounded up."""
    tables, place = problem.tables, int(problem.tables.waiting["stage"][k])
    mean_ns = 0.0
    if place >= 0:
        z_ns, weights, _ = problem.store.outcomes(problem.models[task])
        work = tables.waiting["work_ns"]
        done = sum(int(work[r]) for r in inside if tables.waiting["stage"][r] == place)
        fall = np.minimum(np.maximum(z_ns[:, place] - done, 0), int(work[k]))
        mean_ns = float(weights @ fall)
    return math.ceil(float(tables.tasks["age"][task]) * (mean_ns + 1) * (1 + 1e-9)) + 1
