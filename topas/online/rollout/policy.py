"""The policy: propose, look ahead, decide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topas.decision import Decision
from topas.event import Event
from topas.online.rollout import kernel
from topas.online.rollout.situation import Settings, case_of, room_for
from topas.online.search import select
from topas.policies.policy import JointPolicy
from topas.score import decision_on


def decide_with(event: Event, settings: Settings) -> Decision:
    """Return the best candidate's decision.

    Where the state must shrink, or no rule has work for an idle engine, the paper's search decides.
    """
    if not fits_as_it_is(event):
        return select(event)
    case = case_of(event, settings)
    situation = case.situation
    scratch, candidates = room_for(situation)
    choice = kernel.look_ahead(situation, scratch, candidates, case.out, case.lost)
    taken = candidates.taken[choice, : candidates.count[choice]]
    dropped = np.flatnonzero(
        (situation.status == kernel.RUNNING) & (candidates.status[choice] == kernel.WAITING)
    )
    if not len(taken) and not event.running:
        return select(event)
    return decision_on(event, [_id(case.requests, k) for k in taken], [_id(case.requests, k) for k in dropped])


def fits_as_it_is(event: Event) -> bool:
    """Return whether all running requests may keep running."""
    agents = {request.agent for request in event.running}
    tokens = sum(event.agents[a] for a in agents) + sum(r.reserve_tokens for r in event.running)
    most = event.params.max_running
    return tokens <= event.budget_tokens and (not most or len(event.running) <= most)


def _id(requests, node) -> str:
    request = requests[node]
    assert request is not None
    return request.id


def rollout(**changes) -> JointPolicy:
    settings = replace(Settings(), **changes)
    return JointPolicy("rollout", lambda event: decide_with(event, settings))
