"""Rules: what a request has over others in the queue.

Smallest first; ties go to the earlier request, then its id.

Written once: the engine ranks by them in compiled code, the policies of the same names in Python
(``py_func``).
"""

from __future__ import annotations

import math

from topas.compiled import kernel

ASK, FCFS, LPM, PARROT, LAS, SPF, HRRN, GATE, PLAN = range(9)
"""Who decides: a policy outside the engine; one of the rules below; or a plan made ahead."""

GATE_BACKLOG = 4
"""Waiting exit-stage requests at which the downstream gate opens (the paper gives no number)."""
_FAR = float(1 << 40)


@kernel
def rank(rule, task_arrival_s, attained_s, depth, leaves_open, cached, prompt, passed):
    """Return the first sort key of a waiting request.

    ``depth`` is its stage's, ``cached`` counts the tokens of its ``prompt`` that are in GPU memory,
    ``passed`` those that the engine has prefilled since it joined the queue. ``leaves_open``: the
    downstream gate is open and the request is of an exit stage.
    """
    if rule == LPM:
        return -float(cached)
    if rule == PARROT:
        return task_arrival_s
    if rule == LAS:
        return attained_s
    if rule == SPF:
        return -float(depth)
    if rule == HRRN:
        if cached < 0:  # a duplicate, which waits until the prefix is there
            return math.inf
        missing = prompt - cached
        return -passed / missing if missing > 0 else -math.inf
    if rule == GATE:
        return -float(cached) - (_FAR if leaves_open else 0.0)
    return 0.0


@kernel
def looks_up(rule):
    """Return whether a rule asks what of each waiting prompt is cached."""
    return rule in (LPM, HRRN, GATE)
