"""Events that the tests of the oracle share."""

from __future__ import annotations

from support_events import make_event

from topas.event import Event
from topas.formats import event_of


def paying_event() -> Event:
    return event_of(
        make_event(
            budget=200,
            agents="A=50 B=40",
            tasks={"t": "a=5 b<a=3", "u": "a=9"},
            waiting=["r1 t.a A 10 5", "r2 u.a B 20 9"],
            resident="A",
            swap_s_per_token=0.01,
        )
    )


def squeezed(budget: int, cap: int = 0) -> Event:
    """Return an event whose budget shrank below the two requests that run."""
    raw = make_event(
        budget=budget,
        agents="A=100",
        tasks={"t": "a=5 b=3"},
        waiting=[],
        running=["r0 t.a A 50 5 credit=2", "r1 t.b A 50 3 credit=1"],
        resident="A",
        K=cap,
    )
    return event_of(raw)
