"""``topas-score``: the state of the best score, near enough, as a policy."""

from __future__ import annotations

from topas.decision import Decision
from topas.event import Event
from topas.online.near.columns import MOST_AGENTS, MOST_VALUE
from topas.online.near.order import put_in_order
from topas.online.near.sets import near_search
from topas.online.search import (
    Best,
    Input,
    compile_search,
    decision_from,
    search,
    small_event,
    warm_up,
)
from topas.policies.policy import JointPolicy
from topas.problem import Problem, compile_event
from topas.residual import IntArray

NODES = 2000
LOOKS = 1 << 20
"""The branch and bound of one event has so many nodes at most, and looks at so many columns."""


def scale_of(problem: Problem) -> int:
    """Return the scale of values (see :mod:`topas.online.near.columns`); 0 if scores are too large."""
    swap_ns = int(problem.swap_ns.sum()) * (len(problem.tasks) + 1)
    gain_ns = float((problem.age * problem.path_ns).sum())
    sums = (problem.reuse_ns, problem.redo_ns, problem.revoke_ns)
    most = gain_ns + swap_ns + sum(int(array.sum()) for array in sums) + 1
    count = len(problem.waiting) + len(problem.running) + 2
    scale = 1 << count.bit_length()
    if most * scale < MOST_VALUE / 2:
        return scale
    return 1 if most < MOST_VALUE / 2 else 0


def improve(problem: Problem, active: IntArray, data: Input, best: Best) -> bool:
    """Search, leaving the best state in ``best``; return whether no state can be better."""
    scale = scale_of(problem)
    if not scale or active.sum() > MOST_AGENTS:
        return False
    sure, _ = near_search(active, scale, data, best, NODES, LOOKS)
    return bool(sure)


def select_near(event: Event) -> Decision:
    """Return the decision of the best score that is found; same input, same output.

    Where it is not proved best, the paper's search (:mod:`topas.online.search`) is run too, and the better
    state of the two is taken; so the score is never below that of ``topas-paper``.
    """
    problem = compile_event(event)
    active, data, best, scratch = compile_search(problem)
    if not improve(problem, active, data, best):
        search(active, event.params.M, data, best, scratch)
    if best.counts[0]:
        put_in_order(best, data)
    return decision_from(problem, best)


def _warm_up() -> None:
    """Compile both searches, or load them compiled from the cache: a minute once, milliseconds afterwards."""
    warm_up()
    select_near(small_event())


TOPAS_SCORE = JointPolicy("topas-score", select_near, _warm_up)
