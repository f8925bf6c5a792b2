"""Seconds at the borders, integer nanoseconds where equality matters."""

from __future__ import annotations

NS_PER_S = 1_000_000_000


def to_ns(seconds: float) -> int:
    """Round seconds to integer nanoseconds (half to even)."""
    return round(seconds * NS_PER_S)


def to_s(nanoseconds: int) -> float:
    """Convert integer nanoseconds to seconds."""
    return nanoseconds / NS_PER_S
