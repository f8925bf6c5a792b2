"""Lists that run through records by their fields ``before`` and ``behind``. All O(1).

``lists[k]`` holds first and last of list k, -1 where it is empty.
"""

from __future__ import annotations

from topas.compiled import kernel


@kernel
def append(lists, k, records, i):
    """Put a record at the end."""
    last = lists[k, 1]
    records[i].before = last
    records[i].behind = -1
    if last >= 0:
        records[last].behind = i
    else:
        lists[k, 0] = i
    lists[k, 1] = i


@kernel
def insert_behind(lists, k, records, i, other):
    """Put a record right behind another one of the list."""
    behind = records[other].behind
    records[i].before = other
    records[i].behind = behind
    records[other].behind = i
    if behind >= 0:
        records[behind].before = i
    else:
        lists[k, 1] = i


@kernel
def unlink(lists, k, records, i):
    """Take a record out."""
    before, behind = records[i].before, records[i].behind
    if before >= 0:
        records[before].behind = behind
    else:
        lists[k, 0] = behind
    if behind >= 0:
        records[behind].before = before
    else:
        lists[k, 1] = before
