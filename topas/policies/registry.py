"""The one list of policies. Entries name objects, so that listing them imports nothing."""

from __future__ import annotations

import importlib

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
    "topas-score": "topas.online.near.policy:TOPAS_SCORE",
    "topas-base": "topas.online.policy:TOPAS_BASE",
    "topas-no-reuse": "topas.online.policy:TOPAS_NO_REUSE",
    "topas-no-aging": "topas.online.policy:TOPAS_NO_AGING",
    "topas-exact": "oracle.policy:TOPAS_EXACT",
}

ON_REQUEST = frozenset({"topas-exact"})
"""Policies that run only where they are named: they are slow and need the extra ``topas[oracle]``."""

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
    """Return the names of the policies, baselines first; ``on_request``: also those of ON_REQUEST."""
    return [name for name in _REGISTRY if on_request or name not in ON_REQUEST]


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
    target = _REGISTRY.get(name)
    if target is None:
        raise InputError(f"unknown policy {name!r}; known: {', '.join(_REGISTRY)}")
    module, _, attribute = target.partition(":")
    policy: Policy = getattr(importlib.import_module(module), attribute)
    return policy
