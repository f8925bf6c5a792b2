"""What a schedule costs: the engine itself, started again and again from the same trace."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topas.compiled import allocating_kernel
from topas.engine.core import BLOCK, FINISHED, advance
from topas.engine.state import Setup, World
from topas.profile import Profile
from topas.sim.build import request_names, setup_of, world_of
from topas.sim.schedule import GATE, MODE, ORDER, RANK, Schedule
from topas.trace import Trace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Bench(NamedTuple):
    """An engine that obeys ``setup.plan``, a world to play in, and the same before the first arrival."""

    setup: Setup
    world: World
    fresh: World


def bench_of(trace: Trace, profile: Profile) -> Bench:
    """Return what schedules of a trace are played on; at first, all in order and nobody overtakes."""
    names = request_names(trace)
    return Bench(
        setup_of(profile, Schedule(names), names),
        world_of(trace, profile, names),
        world_of(trace, profile, names),
    )


@allocating_kernel
def play(bench):
    """Play the plan; return the sum of all JCTs in seconds, or infinity if it comes to a standstill.

    The world then says when each request was admitted and done, and when each task was.
    """
    world, fresh = bench.world, bench.fresh
    world.tasks[:] = fresh.tasks
    world.stages[:] = fresh.stages
    world.requests[:] = fresh.requests
    used = world.now[0].nodes
    world.nodes[:used] = fresh.nodes[:used]
    world.lists[:] = fresh.lists
    world.events[:2] = fresh.events[:2]
    world.finishing[0].what = 0
    world.now[:] = fresh.now
    if advance(bench.setup, world, 0) != FINISHED:
        return math.inf
    total_s = 0.0
    for t in range(len(world.tasks)):
        total_s += world.tasks[t].done_s - world.tasks[t].arrival_s
    return total_s


def plan_with(order: Ints, mode: int = BLOCK) -> Ints:
    """Return the plan that goes through the requests in an order, all in one mode, no gates."""
    plan = np.empty((4, len(order)), np.int64)
    plan[ORDER], plan[MODE], plan[GATE] = order, mode, -1
    plan[RANK, order] = np.arange(len(order))
    return plan


def schedule_of(plan: Ints, names: tuple[str, ...]) -> Schedule:
    """Return a plan as a schedule of named requests."""
    return Schedule(
        tuple(names[r] for r in plan[ORDER]),
        {names[r]: int(mode) for r, mode in enumerate(plan[MODE]) if mode != BLOCK},
        {names[r]: names[gate] for r, gate in enumerate(plan[GATE]) if gate >= 0},
    )
