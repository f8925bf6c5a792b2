"""The score of a post-decision state, term by term (paper Eq. 3, 7-13).

This is the one judge: search, exact models, simulator and server all use these numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from topas.decision import Decision, Terms
from topas.event import Event
from topas.problem import Problem, compile_event


def score(event: Event, admit: Iterable[str], preempt: Iterable[str]) -> Terms:
    """Score admitting and preempting these request ids; R' is the set of agents left in Q' (Eq. 2).

    Raises
    ------
    KeyError
        if an id is not waiting or not running, respectively.
    """
    return decision_on(event, admit, preempt).terms


def score_state(problem: Problem, admit: Iterable[int], preempt: Iterable[int]) -> Terms:
    """Score a state given by indices of waiting requests to admit and running ones to preempt.

    The admission term sums, over tasks, ``g_i (L_i before - L_i after its admissions)``, each rounded
    to a nanosecond: it does not depend on the order (Eq. 7 telescopes).
    """
    agents, waiting, running = problem.tables[:3]
    admitted, dropped = list(admit), sorted(set(preempt))
    after, before = np.zeros(len(agents), dtype=bool), agents["resident"] > 0
    after[waiting["agent"][admitted]] = True
    after[np.delete(running["agent"], dropped)] = True
    delayed = {int(waiting["task"][k]) for k in admitted if not before[waiting["agent"][k]]}
    return Terms(
        admit_ns=sum(gain for _, gain in task_gains(problem, admitted)),
        move_ns=int(agents["swap_ns"][after != before].sum()) * len(delayed),
        redo_ns=int(running["redo_ns"][dropped].sum()),
        revoke_ns=int(running["revoke_ns"][dropped].sum()),
        reuse_ns=int(agents["reuse_ns"][after].sum()),
    )


def task_gains(problem: Problem, admitted: Iterable[int]) -> list[tuple[int, int]]:
    """Return (task, aged gain in ns) of each task with an admission; gains are joint over its requests."""
    by_task: dict[int, list[int]] = {}
    for k in admitted:
        by_task.setdefault(int(problem.tables.waiting["task"][k]), []).append(k)
    return [(t, joint_gain_ns(problem, t, requests)) for t, requests in by_task.items()]


def joint_gain_ns(problem: Problem, task: int, requests: Iterable[int]) -> int:
    """Return ``g_i (L_i - L_i(H))`` for the set H of a task's waiting requests, in nanoseconds."""
    model = problem.models[task]
    if model is None:
        return 0
    places = [0] * len(model.part)
    for k in requests:
        work = problem.tables.waiting[k]
        if work["stage"] >= 0:
            places[work["stage"]] += int(work["work_ns"])
    left_ns = problem.store.expected_ns(model, dict(zip(model.part, places, strict=True)))
    return int(np.rint(problem.tables.tasks[task]["age"] * float(model.path_ns - left_ns)))


def conditional_gains_ns(problem: Problem, admitted: Iterable[int]) -> tuple[int, ...]:
    """Return each admission's aged gain given the earlier ones of its task (Eq. 6-7): the credits."""
    sofar: dict[int, tuple[list[int], int]] = {}
    gains = []
    for k in admitted:
        task = int(problem.tables.waiting["task"][k])
        requests, gain = sofar.get(task, ([], 0))
        joint = joint_gain_ns(problem, task, [*requests, k])
        gains.append(joint - gain)
        sofar[task] = ([*requests, k], joint)
    return tuple(gains)


def decision_on(event: Event, admit: Iterable[str], preempt: Iterable[str] = ()) -> Decision:
    """Return the decision to admit and preempt these request ids, scored, with its credits.

    Raises
    ------
    KeyError
        if an id is not waiting or not running, respectively.
    """
    chosen = tuple(admit)
    names = frozenset(chosen)
    # No term depends on the waiting requests of a task of which none is admitted.
    tasks = {request.task for request in event.waiting if request.id in names}
    problem = compile_event(replace(event, waiting=[r for r in event.waiting if r.task in tasks]))
    waiting = {r.id: k for k, r in enumerate(problem.waiting)}
    running = {r.id: k for k, r in enumerate(problem.running)}
    admitted = [waiting[i] for i in chosen]
    return decision_of(
        problem, admitted, [running[i] for i in preempt], conditional_gains_ns(problem, admitted)
    )


def decision_of(
    problem: Problem, admit: list[int], preempt: list[int], credits_ns: tuple[int, ...]
) -> Decision:
    """Return the decision for a state given by indices, scored; ``credits_ns`` as in :class:`Decision`."""
    dropped = set(preempt)
    agents = {problem.waiting[k].agent for k in admit}
    agents |= {r.agent for k, r in enumerate(problem.running) if k not in dropped}
    return Decision(
        resident=tuple(sorted(agents)),
        admit=tuple(problem.waiting[k].id for k in admit),
        preempt=tuple(sorted(problem.running[k].id for k in preempt)),
        terms=score_state(problem, admit, preempt),
        credits_ns=credits_ns,
    )
