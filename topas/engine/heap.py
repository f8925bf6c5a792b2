"""One binary heap for everything that waits for its turn: events, decoding requests, the queue.

Entry 0 of a heap's array holds its size in ``what``; the smallest (key, tie, rank) stands at entry 1.
"""

from __future__ import annotations

import numpy as np

from topas.compiled import kernel

ITEM = np.dtype([("key", "f8"), ("tie", "f8"), ("rank", "i8"), ("what", "i8")])


@kernel
def comes_before(a, b):
    """Return whether entry a is to leave the heap before entry b."""
    if a.key != b.key:
        return a.key < b.key
    if a.tie != b.tie:
        return a.tie < b.tie
    return a.rank < b.rank


@kernel
def copy(heap, target, source):
    """Overwrite one entry by another."""
    heap[target].key = heap[source].key
    heap[target].tie = heap[source].tie
    heap[target].rank = heap[source].rank
    heap[target].what = heap[source].what


@kernel
def push(heap, key, tie, rank, what):
    """Add an entry. O(log n)."""
    heap[0].what += 1
    i = heap[0].what
    while i > 1:
        up = i >> 1
        other = heap[up]
        if other.key < key or (
            other.key == key and (other.tie < tie or (other.tie == tie and other.rank < rank))
        ):
            break
        copy(heap, i, up)
        i = up
    heap[i].key = key
    heap[i].tie = tie
    heap[i].rank = rank
    heap[i].what = what


@kernel
def pop(heap):
    """Take out the first entry; return its ``what``. O(log n)."""
    first = heap[1].what
    n = heap[0].what
    heap[0].what = n - 1
    last = heap[n]
    i = 1
    while True:
        child = 2 * i
        if child >= n:
            break
        if child + 1 < n and comes_before(heap[child + 1], heap[child]):
            child += 1
        if not comes_before(heap[child], last):
            break
        copy(heap, i, child)
        i = child
    copy(heap, i, n)
    return first
