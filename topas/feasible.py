"""Is a decision carried out within its event? Eq. 2, the caps, and plain bookkeeping.

Written from the definition alone: it shares no code with the search or the score, so that it can check
both.
"""

from __future__ import annotations

from topas.decision import Decision
from topas.event import Event


def violations(event: Event, decision: Decision) -> list[str]:
    """Return what is wrong with a decision, one line each; an empty list means it is feasible.

    A decision with nothing to preempt or admit is judged like any other, so an event whose running
    requests alone exceed the budget has no feasible decision that keeps them all.
    """
    waiting = {request.id: request for request in event.waiting}
    running = {request.id: request for request in event.running}
    found = []
    for name, ids, known in (("admit", decision.admit, waiting), ("preempt", decision.preempt, running)):
        found += [f"{name}: {i} is named twice" for i in sorted({i for i in ids if ids.count(i) > 1})]
        found += [f"{name}: {i} is not among the event's requests" for i in ids if i not in known]
    if found:
        return found
    chosen = [running[i] for i in running if i not in decision.preempt]
    chosen += [waiting[i] for i in decision.admit]
    agents = {request.agent for request in chosen}
    if len(set(decision.resident)) != len(decision.resident):
        found.append("resident: an agent is named twice")
    for agent in sorted(set(decision.resident) - agents):
        found.append(f"resident: {agent} is idle")
    for agent in sorted(agents - set(decision.resident)):
        found.append(f"resident: {agent} is missing")
    tokens = sum(event.agents[a] for a in agents) + sum(request.reserve_tokens for request in chosen)
    if tokens > event.budget_tokens:
        found.append(f"budget: {tokens} tokens exceed {event.budget_tokens}")
    cap, most = event.params.K, event.params.max_running
    if cap and len(decision.admit) > cap:
        found.append(f"admit: {len(decision.admit)} requests exceed K = {cap}")
    if cap and len(decision.preempt) > cap:
        found.append(f"preempt: {len(decision.preempt)} requests exceed K = {cap}")
    if most and len(chosen) > most:
        found.append(f"running: {len(chosen)} requests exceed the batch limit {most}")
    return found
