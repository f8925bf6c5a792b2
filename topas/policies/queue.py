"""Baselines: ways to order the queue (paper section V-A); their sort keys are :mod:`topas.engine.rules`."""

from __future__ import annotations

from topas.engine import rules
from topas.policies.policy import QueuePolicy

FCFS = QueuePolicy("fcfs", rules.FCFS)
"""First come, first served, by request."""
LPM = QueuePolicy("lpm", rules.LPM)
"""Longest prefix match: most prompt tokens in GPU memory first. No switch to FCFS on long queues."""
PARROT_FCFS = QueuePolicy("parrot-fcfs", rules.PARROT)
"""Earlier task first, then earlier request (Parrot's order as the paper runs it)."""
AUTELLIX_LAS = QueuePolicy("autellix-las", rules.LAS)
"""Least attained service: the task that has received least LLM service first (Autellix)."""
SPF = QueuePolicy("spf", rules.SPF)
"""Shortest path first: deeper stage first, FCFS within a depth; SRPT on equal-cost chains."""
DOWNSTREAM_GATE = QueuePolicy("downstream-gate", rules.GATE)
"""The paper's strawman (Figure 1): LPM, but exit stages first while their backlog has accumulated."""
HRRN = QueuePolicy("hrrn", rules.HRRN)
"""Highest response ratio next, SGLang's own: tokens prefilled by the engine since the request came, over
tokens of its prompt that are not in GPU memory (SGLang 0.5 ``SchedulePolicy._sort_by_hrrn``). As for LPM,
host copies do not count as cached, which SGLang's hierarchical cache would do: the stronger rival."""
KVFLOW = QueuePolicy("kvflow", rules.FCFS, foresight=True)
"""First come, first served, over a cache that evicts by steps to execution and loads what comes next
(KVFlow, arXiv 2507.07400, as published: its system is a fork of SGLang)."""
