"""Prometheus metrics beside SGLang's own.

``prometheus_client`` must not be imported before SGLang has set up its multi-process directory, so it is
imported where the metrics are made, inside the scheduler's process.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

BUCKETS_S = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)


class ServerMetrics(Protocol):
    """What is counted."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def show(self, name: str, value: float) -> None:
        """Set a gauge."""

    def time(self, name: str, seconds: float) -> None:
        """Add an observation to a histogram."""


class NoMetrics:
    """Counts nothing: the server runs without ``--enable-metrics``."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Do nothing."""

    def show(self, name: str, value: float) -> None:
        """Do nothing."""

    def time(self, name: str, seconds: float) -> None:
        """Do nothing."""


COUNTERS = {
    "decisions": ("scheduling decisions made", ()),
    "fallbacks": ("events served first come, first served because TOPAS could not decide", ("reason",)),
    "prefix_moves": ("prefixes made resident (in) or released (out) by decisions", ("direction",)),
    "preemptions": ("requests preempted by decisions", ()),
    "overdue": ("decisions made for one request alone that was overtaken too often", ()),
    "retractions": ("requests that SGLang took back for lack of KV memory", ()),
    "requests": ("requests by what the client said of them: facts, none, or wrong facts", ("facts",)),
    "expired_tasks": ("tasks forgotten because nothing was heard of them", ()),
}
GAUGES = {
    "resident_agents": "agents whose prefix the last decision keeps resident",
    "pinned_tokens": "prefix tokens locked in GPU memory",
    "held_requests": "waiting requests that the last decision holds back",
    "tasks": "tasks in progress",
    "agents": "agents known",
}
HISTOGRAMS = {
    "decision_seconds": "time to choose the next state",
    "event_seconds": "time of a whole scheduling event: snapshot, choice, and carrying it out",
}


class PrometheusMetrics:
    """The same names with the prefix ``topas_`` in SGLang's ``/metrics``."""

    def __init__(self, model_name: str, info: dict[str, str]) -> None:
        from prometheus_client import Counter, Gauge, Histogram  # noqa: PLC0415  see the module's docstring

        base = {"model_name": model_name}
        names = tuple(base)
        self._base = base
        self._shown: dict[str, float] = {}
        self._counters: dict[str, Any] = {
            name: Counter(f"topas_{name}", text, (*names, *labels))
            for name, (text, labels) in COUNTERS.items()
        }
        self._gauges: dict[str, Any] = {
            name: Gauge(f"topas_{name}", text, names, multiprocess_mode="mostrecent").labels(**base)
            for name, text in GAUGES.items()
        }
        self._histograms: dict[str, Any] = {
            name: Histogram(f"topas_{name}", text, names, buckets=BUCKETS_S).labels(**base)
            for name, text in HISTOGRAMS.items()
        }
        for name, (_, labels) in COUNTERS.items():
            if not labels:
                self._counters[name] = self._counters[name].labels(**base)
        marker = Gauge(
            "topas_info", "1: TOPAS schedules here", (*names, *info), multiprocess_mode="mostrecent"
        )
        marker.labels(**base, **info).set(1)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        (counter.labels(**self._base, **labels) if labels else counter).inc(amount)

    def show(self, name: str, value: float) -> None:
        """Set a gauge."""
        if self._shown.get(name) != value:  # writing into the shared file costs more than all else here
            self._shown[name] = value
            self._gauges[name].set(value)

    def time(self, name: str, seconds: float) -> None:
        """Add an observation to a histogram."""
        self._histograms[name].observe(seconds)


def metrics_for(scheduler: Any, info: dict[str, str]) -> ServerMetrics:  # noqa: ANN401
    """Return Prometheus metrics where the server exports any."""
    if not scheduler.server_args.enable_metrics or "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return NoMetrics()
    from sglang.srt.runtime_context import get_serving  # noqa: PLC0415  known once SGLang has started

    return PrometheusMetrics(str(get_serving().served_model_name), info)
