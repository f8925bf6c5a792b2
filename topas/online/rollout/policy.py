"""The policy: propose, look ahead, decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from topas.decision import Decision
from topas.event import Event, Request, TaskState
from topas.online.rollout import kernel
from topas.online.rollout.situation import case_of, room_for
from topas.online.search import select, warm_up
from topas.policies.policy import JointPolicy
from topas.residual import Residual
from topas.score import decision_on
from topas.workflow import dag_of


def look_ahead(event: Event) -> Decision:
    """Return the decision whose rollouts cost least (docs/policy.md).

    Where the state must shrink, or no rule has work for an idle engine, the paper's search decides.
    """
    if not fits_as_it_is(event):
        return select(event)
    if not may_change(event):
        return decision_on(event, ())
    case = case_of(event)
    situation = case.situation
    scratch, candidates = room_for(case)
    choice = kernel.look_ahead(situation, scratch, candidates, case.out, case.lost)
    taken = candidates.taken[choice, : candidates.takes[choice]]
    if not len(taken) and not event.running:
        return select(event)
    runs, waits = situation.status == kernel.RUNNING, candidates.status[choice] == kernel.WAITING
    return decision_on(event, _ids(case.requests, taken), _ids(case.requests, np.flatnonzero(runs & waits)))


def fits_as_it_is(event: Event) -> bool:
    """Return whether all running requests may keep running."""
    most = event.params.max_running
    return event.tokens_in_use() <= event.budget_tokens and (not most or len(event.running) <= most)


def may_change(event: Event) -> bool:
    """Return whether any waiting request fits, or requests may be preempted: else there is no choice."""
    in_use = {request.agent for request in event.running}
    free = event.budget_tokens - event.tokens_in_use()
    most = event.params.max_running
    if not event.running or (
        (not most or len(event.running) < most)
        and any(
            r.reserve_tokens + (0 if r.agent in in_use else event.agents[r.agent]) <= free
            for r in event.waiting
        )
    ):
        return True
    # No output is expected to be longer than what is allowed.
    share, work, longest = event.params.lookahead.preempt, Counter[str](), Counter[str]()
    for request in event.running:
        work[request.agent] += request.generated_tokens
        longest[request.agent] = max(longest[request.agent], request.max_new_tokens)
    return any(longest[a] > 0 and work[a] <= share * longest[a] for a in in_use) and share > 0


def _ids(requests: Sequence[Request | None], nodes: Sequence[int] | np.ndarray) -> list[str]:
    return [request.id for node in nodes if (request := requests[node]) is not None]


def _warm_up() -> None:
    """Load the compiled code: decide a small event with a choice in it."""
    warm_up()
    dag = dag_of({"a": ()})
    tasks = {name: TaskState(0.0, dag, (Residual([1]),)) for name in ("t", "u")}
    waiting = [Request(name, name, "a", agent, 1, 1.0) for name, agent in (("t", "A"), ("u", "B"))]
    look_ahead(Event(0.0, 2, {"A": 1, "B": 1}, tasks, waiting, []))


TOPAS = JointPolicy("topas", look_ahead, _warm_up, leaves_idle=True)
