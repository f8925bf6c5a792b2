"""The configuration that simulator and server both read, with comments that say where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from compare.tuning.space import Value
from topas.params import PARAMETERS, SearchParams, values_of


def config_text(params: SearchParams, base: SearchParams, comments: Sequence[str]) -> str:
    """Return a ``topas-serving/1`` file in YAML with all parameters; those that differ say what they were.

    Parameters
    ----------
    comments : lines that stand first.
    """
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    lines += ["format: topas-serving/1", "params:"]
    values, before = values_of(params), values_of(base)
    section = ""
    for name in PARAMETERS:
        own, _, last = name.rpartition(".")
        if own != section:
            lines.append(f"  {own}:")
            section = own
        line = f"{'    ' if own else '  '}{last}: {scalar(values[name])}"
        lines.append(line if values[name] == before[name] else f"{line}  # was {scalar(before[name])}")
    return "\n".join(lines) + "\n"


def scalar(value: Value) -> str:
    """Return a number as every YAML reader takes it: never with an exponent, which some read as a text."""
    return str(value) if isinstance(value, int) else f"{Decimal(repr(value)):f}"
