"""The paper's Algorithm 1 and its ablations as policies (section V-C)."""

from __future__ import annotations

from dataclasses import replace

from topas.decision import Decision
from topas.event import Event
from topas.online.search import select, warm_up
from topas.policies.policy import JointPolicy


def _without(*, reuse: bool, aging: bool) -> JointPolicy:
    """Return TOPAS without future reuse (beta = 0) and/or aging (rho = 0)."""

    def decide(event: Event) -> Decision:
        params = event.params
        params = replace(params, beta=0.0 if reuse else params.beta, rho=0.0 if aging else params.rho)
        return select(replace(event, params=params))

    name = {(True, True): "topas-base", (True, False): "topas-no-reuse", (False, True): "topas-no-aging"}
    return JointPolicy(name[reuse, aging], decide, warm_up)


TOPAS_PAPER = JointPolicy("topas-paper", select, warm_up)
TOPAS_BASE = _without(reuse=True, aging=True)
TOPAS_NO_REUSE = _without(reuse=True, aging=False)
TOPAS_NO_AGING = _without(reuse=False, aging=True)
