"""The order in which GreedyPack would have chosen the admissions of a state, and their credits."""

from __future__ import annotations

import numba
import numpy as np

from topas.online.greedy_pack import joint_gain_ns


@numba.njit(cache=True)
def put_in_order(best, p):
    """Put the admissions into greedy order, as GreedyPack would choose them, with their conditional gains."""
    count = best.counts[1]
    present = np.zeros(len(p.mask), dtype=np.int64)
    for q in range(len(p.running_agent)):
        if best.kept[q]:
            present[p.running_task[q]] = 1
    p.done[:] = 0
    p.mask[:] = 0
    p.joint[:] = 0
    gain = np.zeros(max(count, 1), dtype=np.int64)
    best.admitted[:count] = np.sort(best.admitted[:count])
    for i in range(count):
        k = best.admitted[i]
        gain[i] = joint_gain_ns(k, p.waiting_task[k], 0, p.done, p)
    for i in range(count):
        top, top_ratio, top_new = -1, -1.0, False
        for j in range(i, count):
            k = best.admitted[j]
            size = p.waiting_reserve[k]
            ratio = 0.0
            if gain[j] > 0:
                ratio = gain[j] / size if size > 0 else np.inf
            new = gain[j] > 0 or not present[p.waiting_task[k]]
            if top < 0 or ratio > top_ratio or (ratio == top_ratio and top_new and not new):
                top, top_ratio, top_new = j, ratio, new
        k, gained = best.admitted[top], gain[top]
        # The others stay in canonical order.
        best.admitted[i + 1 : top + 1] = best.admitted[i:top].copy()
        gain[i + 1 : top + 1] = gain[i:top].copy()
        best.admitted[i], gain[i] = k, gained
        best.gains[i] = gained
        t = p.waiting_task[k]
        present[t] = 1
        p.joint[t] += gained
        if p.work_stage[k] >= 0:
            p.done[p.part_at[t] + p.work_stage[k]] += p.work_ns[k]
        p.mask[t] |= 1 << p.work_bit[k] if p.memo_at[t] >= 0 else 0
        for j in range(i + 1, count):
            other = best.admitted[j]
            if p.waiting_task[other] == t:
                gain[j] = joint_gain_ns(other, t, p.mask[t], p.done, p) - p.joint[t]
