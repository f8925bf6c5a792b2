"""Names under which the older pages still know :mod:`compare.page` and :mod:`compare.comparison`."""

from __future__ import annotations

from collections.abc import Sequence

from compare.cell import Cell
from compare.comparison import sources_in_words
from compare.page import markdown_table, number, percent
from compare.stats import Change

__all__ = [
    "JCT", "markdown_table", "number", "percent", "trace_in_words", "with_interval",
]  # fmt: skip

JCT = {"mean_jct_s": "mean JCT", "p99_jct_s": "p99 JCT"}


def with_interval(centre: float, change: Change) -> str:
    """Return a change with the interval of its paired one: ``-15.2 % [-17.0, -13.1]``."""
    low, high = change.paired.low, change.paired.high
    if low is None or high is None:
        return percent(centre)
    return f"{percent(centre)} [{percent(low).removesuffix(' %')}, {percent(high).removesuffix(' %')}]"


def trace_in_words(cells: Sequence[Cell]) -> str:
    """Say in words what the traces of one workload are."""
    return sources_in_words([cell.source for cell in cells])
