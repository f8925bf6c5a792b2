"""Starting schedules that batch: the tasks in cohorts, each stage of a cohort before the next.

With room for many requests of one prefix and for few of several, good schedules of a loaded engine take
tasks together and walk through their stages agent by agent. How many to take at a time is searched for.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from oracle.evaluate import Ints
from topas.engine.state import World

SIZES = (1, 2, 3, 5, 8, 10, 15, 20, 30, 60)
"""Equal cohorts to begin with."""
HEAT = 0.01
"""Temperature at the beginning, as a share of the value; it falls linearly to zero."""

Cuts = tuple[int, ...]
"""Where a cohort ends, as indices of tasks in order of arrival."""


def cohort_order(world: World, cuts: Sequence[int]) -> Ints:
    """Return the requests by cohort, stage, round and task."""
    stage = world.requests["stage"]
    task = world.stages["task"][stage]
    cohort = np.searchsorted(np.array(cuts, dtype=np.int64), np.arange(len(world.tasks)), side="right")[task]
    place = stage - world.tasks["first_stage"][task]
    round_index = np.arange(len(stage)) - world.stages["first"][stage]
    return np.lexsort((task, round_index, place, cohort)).astype(np.int64)


def equal_cohorts(tasks: int) -> list[Cuts]:
    """Return the cuts into cohorts of equal size, for some sizes."""
    return sorted({tuple(range(size, tasks, size)) for size in (*SIZES, tasks)})


def anneal_cohorts(
    start: Cuts,
    tasks: int,
    value: Callable[[Cuts], float],
    spent: Callable[[], float],
    rng: random.Random,
) -> tuple[float, Cuts]:
    """Return the least value found from a start and its cuts; stops when ``spent`` reaches 1."""
    best = now = (value(start), start)
    while (done := spent()) < 1:
        heat = max(HEAT * now[0] * (1 - done), 1e-12)
        cuts = _changed(now[1], tasks, rng)
        new = (value(cuts), cuts)
        if new[0] <= now[0] or rng.random() < math.exp((now[0] - new[0]) / heat):
            now = new
            best = min(best, now)
    return best


def _changed(cuts: Cuts, tasks: int, rng: random.Random) -> Cuts:
    """Move, add or drop a cut, or move all cuts from one on."""
    choice = rng.random()
    kept = set(cuts)
    if cuts and choice < 0.6:  # noqa: PLR2004  shares of the moves
        old = rng.choice(cuts)
        kept = kept - {old} | {old + rng.choice((-3, -2, -1, 1, 2, 3))}
    elif not cuts or choice < 0.75:  # noqa: PLR2004
        kept |= {rng.randrange(1, max(tasks, 2))}
    elif choice < 0.9:  # noqa: PLR2004
        kept -= {rng.choice(cuts)}
    else:
        begin, by = rng.choice(cuts), rng.choice((-2, -1, 1, 2))
        kept = {cut if cut < begin else cut + by for cut in cuts}
    return tuple(sorted(cut for cut in kept if 0 < cut < tasks))
