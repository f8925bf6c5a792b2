"""Scheduling policies by name.

A policy is a pure function of an event; all memory lives in the event. There are two kinds: a
:class:`QueuePolicy` orders the queue and leaves admission to the engine, as SGLang's own policies do; a
:class:`JointPolicy` chooses resident prefixes, admissions and preemptions itself. :class:`Planned` is no
policy in this sense: it carries out a schedule that was made with the whole trace known.
"""

from topas.policies.policy import Door, JointPolicy, Planned, Policy, QueuePolicy, QueueView
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
    "Door",
    "JointPolicy",
    "Planned",
    "Policy",
    "QueuePolicy",
    "QueueView",
    "baseline_names",
    "get_policy",
    "policy_names",
]
