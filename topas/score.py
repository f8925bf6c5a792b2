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
    admitted, dropped = list(admit), set(preempt)
    kept = [k for k in range(len(problem.running)) if k not in dropped]
    after = {int(problem.waiting_agent[k]) for k in admitted} | {int(problem.running_agent[k]) for k in kept}
    before = {a for a in range(len(problem.agents)) if problem.resident[a]}
    moved_ns = sum(int(problem.swap_ns[a]) for a in after ^ before)
    delayed = {int(problem.waiting_task[k]) for k in admitted if int(problem.waiting_agent[k]) not in before}
    return Terms(
        admit_ns=sum(gain for _, gain in task_gains(problem, admitted)),
        move_ns=moved_ns * len(delayed),
        redo_ns=sum(int(problem.redo_ns[k]) for k in dropped),
        revoke_ns=sum(int(problem.revoke_ns[k]) for k in dropped),
        reuse_ns=sum(int(problem.reuse_ns[a]) for a in after),
    )


def task_gains(problem: Problem, admitted: Iterable[int]) -> list[tuple[int, int]]:
    """Return (task, aged gain in ns) of each task with an admission; gains are joint over its requests."""
    by_task: dict[int, list[int]] = {}
    for k in admitted:
        by_task.setdefault(int(problem.waiting_task[k]), []).append(k)
    return [(t, joint_gain_ns(problem, t, requests)) for t, requests in by_task.items()]


def joint_gain_ns(problem: Problem, task: int, requests: Iterable[int]) -> int:
    """Return ``g_i (L_i - L_i(H))`` for the set H of a task's waiting requests, in nanoseconds."""
    done = np.zeros(max(int(problem.part_at[task + 1] - problem.part_at[task]), 1), dtype=np.int64)
    for k in requests:
        if problem.work_stage[k] >= 0:
            done[problem.work_stage[k]] += problem.work_ns[k]
    model = problem.models[task]
    if model is None:
        return 0
    stages = {stage: int(done[place]) for stage, place in model.part.items()}
    left = problem.store.expected_ns(model, stages)
    return int(np.rint(problem.age[task] * float(problem.path_ns[task] - left)))


def conditional_gains_ns(problem: Problem, admitted: Iterable[int]) -> tuple[int, ...]:
    """Return each admission's aged gain given the earlier ones of its task (Eq. 6-7): the credits."""
    sofar: dict[int, tuple[list[int], int]] = {}
    gains = []
    for k in admitted:
        task = int(problem.waiting_task[k])
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
