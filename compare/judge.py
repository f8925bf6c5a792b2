"""One event: the decision that was made on it beside the best that could have been."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import TypeAdapter

from compare.store import canonical
from oracle.event import gap, solve_event
from oracle.result import EventResult, Status
from oracle.verify import OracleError
from topas.decision import Decision
from topas.errors import InputError
from topas.event import Event
from topas.feasible import violations
from topas.formats import event_json, event_of
from topas.policies import get_policy
from topas.score import decision_on


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one event came to.

    ``agents`` are those with waiting or running requests; ``enumerated`` if all their sets are packed
    (at most M). ``made`` is the decision that was judged, ``best`` the solver's, both scored by the shared
    library under the event's own parameters. ``bound_ns`` is a proved upper bound on the score.
    ``beside_kept`` if the solver preempts at an agent whose prefix stays, which Algorithm 1 never does.
    """

    time_s: float
    waiting: int
    running: int
    agents: int
    enumerated: bool
    status: Status
    made: Decision
    best: Decision | None
    bound_ns: int | None
    beside_kept: bool
    solve_s: float

    @property
    def gap(self) -> float | None:
        """Return the share of the optimum that is lost; None if the optimum is not proved."""
        if self.status != Status.OPTIMAL or self.best is None:
            return None
        return gap(self.best.terms.score_ns, self.made.terms.score_ns)

    @property
    def gap_at_most(self) -> float | None:
        """Return the share of the bound that is lost, where the optimum is not proved but bounded."""
        if self.status != Status.FEASIBLE or self.bound_ns is None:
            return None
        return gap(self.bound_ns, self.made.terms.score_ns)


@dataclass(frozen=True, slots=True)
class EventCase:
    """An event to judge; equal ones in several files are solved once.

    ``packed`` is the event's JSON, compressed. ``recorded`` is the decision to judge; without one,
    ``policy`` decides.
    """

    kept: ClassVar[str] = "events"
    kind: ClassVar[TypeAdapter[Any]] = TypeAdapter(Verdict)
    packed: bytes
    sha256: str
    recorded: Decision | None
    policy: str
    time_limit_s: float

    @classmethod
    def of(cls, event: Event, recorded: Decision | None, policy: str, time_limit_s: float) -> EventCase:
        """Pack an event."""
        text = canonical(event_json(event)).encode()
        digest = hashlib.sha256(text).hexdigest()
        return cls(zlib.compress(text), digest, recorded, policy, time_limit_s)

    @property
    def event(self) -> Event:
        """The event."""
        return event_of(json.loads(zlib.decompress(self.packed)))

    def content(self) -> dict[str, Any]:
        """Return all that the verdict depends on."""
        made = self.recorded
        return {
            "event": self.sha256,
            "decided_by": self.policy if made is None else {"admit": made.admit, "preempt": made.preempt},
            "time_limit_s": self.time_limit_s,
        }

    def answer(self) -> Verdict:
        """Solve the event and judge the decision.

        Raises
        ------
        InputError
            if the decision breaks a rule although a valid one exists.
        OracleError
            if the decision is better than what was proved to be possible.
        """
        event = self.event
        made = get_policy(self.policy).decide(event) if self.recorded is None else self.recorded
        return verdict_on(event, made, solve_event(event, time_limit_s=self.time_limit_s))


def verdict_on(event: Event, made: Decision, result: EventResult) -> Verdict:
    """Judge a decision by a solver's result; raises as :meth:`EventCase.answer` does."""
    problems = violations(event, made)
    runs = made.admit or len(made.preempt) < len(event.running)
    if result.status == Status.INFEASIBLE and not problems:
        raise OracleError("proved that no decision exists, yet the one to judge is feasible")
    if result.status != Status.INFEASIBLE:
        if problems:
            raise InputError(f"the decision to judge is not feasible: {problems[0]}")
        if not runs and result.decision is not None and result.decision.resident:
            raise InputError("the decision to judge leaves nothing running, where something could")
    agents = {request.agent for request in (*event.waiting, *event.running)}
    scored = decision_on(event, made.admit, made.preempt)
    score_ns = scored.terms.score_ns
    if result.bound_ns is not None and score_ns > result.bound_ns:
        raise OracleError(f"a decision scores {score_ns} ns, above the proved bound of {result.bound_ns} ns")
    return Verdict(
        time_s=event.time_s,
        waiting=len(event.waiting),
        running=len(event.running),
        agents=len(agents),
        enumerated=len(agents) <= event.params.M,
        status=result.status,
        made=scored,
        best=result.decision,
        bound_ns=result.bound_ns,
        beside_kept=result.decision is not None and _beside_kept(event, result.decision),
        solve_s=result.solve_s,
    )


def _beside_kept(event: Event, decision: Decision) -> bool:
    dropped = {request.agent for request in event.running if request.id in decision.preempt}
    return not dropped.isdisjoint(decision.resident)
