"""Scheduling policies by name.

A policy is a pure function of an event; all memory lives in the event. There are two kinds: a
:class:`QueuePolicy` orders the queue and leaves admission to the engine, as SGLang's own policies do; a
:class:`JointPolicy` chooses resident prefixes, admissions and preemptions itself.
"""

from topas.policies.policy import JointPolicy, Policy, QueuePolicy, QueueView
from topas.policies.registry import (
    BASELINES,
    PAPER_BASELINES,
    PAPER_POLICIES,
    baseline_names,
    get_policy,
    policy_names,
)

__all__ = [
    "BASELINES",
    "PAPER_BASELINES",
    "PAPER_POLICIES",
    "JointPolicy",
    "Policy",
    "QueuePolicy",
    "QueueView",
    "baseline_names",
    "get_policy",
    "policy_names",
]
