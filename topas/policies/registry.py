"""The one list of policies. Entries name objects, so that listing them imports nothing.

Packages above this one add theirs through the entry point group ``topas.policies``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from topas.errors import InputError
from topas.policies.policy import Policy

_REGISTRY = {
    "fcfs": "topas.policies.queue:FCFS",
    "lpm": "topas.policies.queue:LPM",
    "parrot-fcfs": "topas.policies.queue:PARROT_FCFS",
    "autellix-las": "topas.policies.queue:AUTELLIX_LAS",
    "spf": "topas.policies.queue:SPF",
    "hrrn": "topas.policies.queue:HRRN",
    "kvflow": "topas.policies.queue:KVFLOW",
    "downstream-gate": "topas.policies.queue:DOWNSTREAM_GATE",
    "topas": "topas.online.rollout.policy:TOPAS",
    "topas-paper": "topas.online.policy:TOPAS_PAPER",
    "topas-base": "topas.online.policy:TOPAS_BASE",
    "topas-no-reuse": "topas.online.policy:TOPAS_NO_REUSE",
    "topas-no-aging": "topas.online.policy:TOPAS_NO_AGING",
}

GROUP = "topas.policies"

PAPER_BASELINES = ("fcfs", "lpm", "parrot-fcfs", "autellix-las", "spf")
"""The paper's five baselines: its figures, and their reproduction, count reductions against these."""

BASELINES = (*PAPER_BASELINES, "hrrn", "kvflow")
"""All baselines, against which reductions are counted; the gate, a strawman, does not count."""

PAPER_POLICIES = (
    *PAPER_BASELINES,
    "downstream-gate",
    "topas-paper",
    "topas-base",
    "topas-no-reuse",
    "topas-no-aging",
)
"""What the paper's figures show: its baselines, its strawman, Algorithm 1 and the ablations."""


def policy_names(*, on_request: bool = False) -> list[str]:
    """Return the names of the policies, baselines first.

    ``on_request``: also those of other packages, which run only where they are named: they may be slow, and
    need libraries that this one does not (``topas-exact``: those of the extra ``topas[oracle]``).
    """
    return [*_REGISTRY, *_contributed()] if on_request else list(_REGISTRY)


def baseline_names() -> list[str]:
    """Return the names of the baselines that count, the paper's five first."""
    return list(BASELINES)


def get_policy(name: str) -> Policy:
    """Return a policy by name.

    Raises
    ------
    InputError
        if there is none, listing those there are.
    """
    known = {**_REGISTRY, **_contributed()}
    target = known.get(name)
    if target is None:
        raise InputError(f"unknown policy {name!r}; known: {', '.join(known)}")
    module, _, attribute = target.partition(":")
    policy: Policy = getattr(importlib.import_module(module), attribute)
    return policy


@cache
def _contributed() -> Mapping[str, str]:
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}
