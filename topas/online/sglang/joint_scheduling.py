"""Joint policies in a live engine: which prefixes stay, which requests run.

One event goes: bring the book in line with the engine, take the snapshot, let the policy decide, preempt,
pin the prefixes of R', release those of R_out or leave them to SGLang's eviction, and offer the admitted
requests to SGLang in order. Until the next event SGLang is offered nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from topas.decision import Decision
from topas.event import Event
from topas.feasible import violations
from topas.online.foresight import LATE, steps_to_execution
from topas.online.sglang.book import Book, Entry, Phase
from topas.online.sglang.engine import Pin, SGLangEngine
from topas.online.sglang.log import DecisionWriter
from topas.online.sglang.metrics import ServerMetrics
from topas.online.sglang.prefixes import Agent
from topas.online.sglang.scheduling import Scheduling
from topas.policies.policy import JointPolicy

FRUITLESS_OFFERS = 3
"""Offers in a row that an idle engine refuses before all locks go and everything is offered to it."""

FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
"""After a failed event the next one waits, twice as long with every failure in a row: what fails each time
would else preempt each time."""

FORESIGHT_SHARE = 0.005
"""Largest share of the time that goes into steps to execution. They take time with the number of tasks, and
a server may know thousands that are between two requests."""


class Stalled(RuntimeError):  # noqa: N818  it says what happened
    """A decision would leave an idle engine idle although requests wait."""


class JointScheduling(Scheduling):
    """Carries out a joint policy's decisions.

    ``_chosen`` are the requests on offer, in order; None while the engine serves first come, first served
    because the last event failed. ``_resident`` are the agents that may have a prefix in GPU memory,
    ``_pins`` the locks on those that shall stay there. ``_back`` are the requests preempted in this step,
    which must not run again in it.
    """

    def __init__(  # noqa: PLR0913  its parts
        self,
        engine: SGLangEngine,
        book: Book,
        policy: JointPolicy,
        metrics: ServerMetrics,
        clock: Callable[[], float],
        log: DecisionWriter | None = None,
    ) -> None:
        super().__init__(engine, book, metrics, clock)
        self.policy = policy
        self._log = log
        self._chosen: list[Any] | None = []
        self._resident: dict[str, Agent] = {}
        self._pins: dict[str, Pin] = {}
        self._fruitless = 0
        self._back: set[int] = set()
        self._failures = 0
        self._retry_s = 0.0
        self._steps: dict[str, int] = {}
        self._next_steps_s = 0.0

    # --- one scheduling step --------------------------------------------------------------------------

    def prefill(self, original: Callable[[], Any], batch: Any) -> Any:  # noqa: ANN401
        """Offer SGLang what was chosen; decide anew first if something changed."""
        engine = self.engine
        self._back.clear()
        idle = self._chosen == [] and engine.waiting and not batch.reqs and engine.chunked is None
        if (self.changed or idle) and self.now_s() >= self._retry_s:
            self.changed = False
            batch.batch_is_full = False  # SGLang clears this only when a request leaves
            self.guard("event", lambda: self._event(batch), self._failed)
        if self._chosen is None and not self._back:
            answer = original()
            self.guard("book", lambda: self._note(answer), lambda: None)
            return answer
        if self._chosen is None:  # what failed, failed after it had preempted: all others are on offer
            self.changed = True
            answer = self._offered(original, self._all_but_preempted(), batch)
            self._chosen = None
            return answer
        offer = self.guard("offer", self._offer, self._all_but_preempted)
        if not offer and engine.chunked is None and not engine.has_grammars:
            self.changed |= bool(engine.waiting) and not batch.reqs  # the book may have missed something
            return None, batch
        return self._offered(original, offer, batch)

    def _offered(self, original: Callable[[], Any], offer: list[Any], batch: Any) -> Any:  # noqa: ANN401
        """Let SGLang choose from the offer alone, then put its queue together again."""
        engine = self.engine
        whole = engine.waiting
        known = {id(req) for req in whole}
        offer = [req for req in offer if id(req) in known]
        engine.waiting = list(offer)
        answer = None
        try:
            answer = original()
        finally:
            left = engine.waiting
            still = {id(req) for req in left}
            taken = {id(req) for req in offer} - still
            new = [req for req in left if id(req) not in known]  # a grammar is ready, for instance
            engine.waiting = [req for req in whole if id(req) not in taken] + new
        self.guard("book", lambda: self._taken(offer, taken, idle=not batch.reqs), lambda: None)
        return answer

    def _taken(self, offer: list[Any], taken: set[int], *, idle: bool) -> None:
        now_s = self.now_s()
        for req in offer:
            if id(req) in taken:
                entry = self.entry(req)
                if entry is not None:
                    self.book.started(entry, now_s)
        self._chosen = [req for req in self._chosen or () if id(req) not in taken]
        if taken:
            self._fruitless = 0
            self.changed = True  # their prefixes are being loaded or computed, and reservations shrink
        elif offer and idle and self.engine.chunked is None:
            self._fruitless += 1
            if self._fruitless >= FRUITLESS_OFFERS:
                self._fruitless = 0
                self.metrics.count("fallbacks", reason="refused")
                self.report("refused", "an idle engine refuses what was chosen; first come, first served")
                self._fall_back()

    def _note(self, answer: Any) -> None:  # noqa: ANN401
        """While first come, first served: note what SGLang took by itself."""
        if self.started_by_engine(answer):
            self.changed = True

    # --- one event ------------------------------------------------------------------------------------

    def _event(self, batch: Any) -> None:  # noqa: ANN401
        started_s = self._clock()
        engine, book = self.engine, self.book
        running = engine.running(batch)
        self.reconcile(running)
        self._chosen = [req for req in engine.waiting if self._may_be_offered(req)]
        entries = list(book.entries.values())
        for entry in entries:  # also those that the engine took by itself brought their prefixes
            if entry.phase is not Phase.WAITING and entry.agent.prefix_tokens:
                self._resident[entry.agent.id] = entry.agent
        if not any(entry.phase is Phase.WAITING for entry in entries):
            self._keep({entry.agent.id: entry.agent for entry in entries if entry.phase is not Phase.WAITING})
            self._show()
            return
        foreign = sum(
            len(req.origin_input_ids) + req.sampling_params.max_new_tokens + engine.page_tokens
            for req in [*running, *engine.waiting]
            if self.entry(req) is None
        )
        kv_tokens = engine.kv_tokens - engine.page_tokens  # SGLang wants more free than it needs
        event = book.event(
            self.now_s(),
            kv_tokens,
            max(kv_tokens - foreign, 0),
            engine.page_tokens,
            engine.new_token_ratio,
            [name for name, agent in self._resident.items() if self._is_resident(agent)],
        )
        chosen_s = self._clock()
        decision = self.policy.decide(event)
        self.metrics.time("decision_seconds", self._clock() - chosen_s)
        wrong = violations(event, decision)
        if wrong:
            raise Stalled("; ".join(wrong))
        if not decision.admit and not running and not self._chosen:
            raise Stalled(f"nothing of {len(event.waiting)} waiting requests admitted to an idle engine")
        if book.overdue() is not None:
            self.metrics.count("overdue")
        self._carry_out(event, decision, batch)
        self._show()
        self._failures = 0
        self.metrics.count("decisions")
        self.metrics.time("event_seconds", self._clock() - started_s)
        if self._log is not None:
            self._write(event, decision)

    def _is_resident(self, agent: Agent) -> bool:
        """Return whether a prefix is in GPU memory as far as it fills whole pages: no others are cached."""
        whole_pages = agent.prefix_tokens - agent.prefix_tokens % self.engine.page_tokens
        return agent.prefix_tokens > 0 and self.engine.on_gpu(agent) >= whole_pages

    def _carry_out(self, event: Event, decision: Decision, batch: Any) -> None:  # noqa: ANN401
        book, now_s = self.book, self.now_s()
        by_id = {entry.id: entry for entry in book.entries.values()}
        self._preempt([by_id[name] for name in decision.preempt], batch, now_s)
        for name, credit_ns in zip(decision.admit, decision.credits_ns, strict=True):
            book.admitted(by_id[name], credit_ns)
        agents = {entry.agent.id: entry.agent for entry in by_id.values()}
        self._keep({name: agents[name] for name in decision.resident})
        released = self._release(event, decision)
        earlier = [req for req in self._chosen or () if self._may_be_offered(req)]
        self._chosen = earlier + [by_id[name].req for name in decision.admit]
        self.metrics.count("prefix_moves", len(set(decision.resident) - event.resident), direction="in")
        self.metrics.count("prefix_moves", released, direction="out")
        self.metrics.count("preemptions", len(decision.preempt))

    def _show(self) -> None:
        """Bring the gauges up to date."""
        show, entries = self.metrics.show, self.book.entries.values()
        show("resident_agents", len(self.book.agents_served()))
        show("pinned_tokens", sum(pin.tokens for pin in self._pins.values()))
        show("held_requests", sum(e.phase is Phase.WAITING for e in entries))
        show("tasks", len(self.book.jobs))
        show("agents", sum(1 for _ in self.book.prefixes))

    def _may_be_offered(self, req: Any) -> bool:  # noqa: ANN401
        entry = self.entry(req)
        return entry is None or entry.phase is Phase.ADMITTED

    def _preempt(self, entries: list[Entry], batch: Any, now_s: float) -> None:  # noqa: ANN401
        running = [entry for entry in entries if entry.phase is Phase.RUNNING]
        self._back = {id(req) for req in self.engine.preempt([entry.req for entry in running], batch)}
        for entry in entries:
            if entry.phase is Phase.ADMITTED or id(entry.req) in self._back:
                entry.output_tokens = len(entry.req.output_ids)
                self.book.put_back(entry, now_s)

    def _keep(self, agents: dict[str, Agent]) -> None:
        """Pin the prefixes of R' as far as they are there, and no others."""
        for name, agent in agents.items():
            if agent.prefix_tokens:
                self._resident[name] = agent
                self._pin(agent)
        for name in self._pins.keys() - agents.keys():
            self.engine.unpin(self._pins.pop(name))

    def _pin(self, agent: Agent) -> None:
        pin = self.engine.pin(agent, self._pins.get(agent.id))
        if pin is None:
            self._pins.pop(agent.id, None)
        else:
            self._pins[agent.id] = pin

    def _release(self, event: Event, decision: Decision) -> int:
        """Move the prefixes of R_out off the GPU, or leave them there; return how many were moved."""
        idle = sorted(self._resident.keys() - set(decision.resident) - self.book.agents_served())
        if self.policy.leaves_idle:
            self._leave(idle, event)
            return 0
        return sum(self.engine.release(self._resident.pop(name)) > 0 for name in idle)

    def _leave(self, idle: list[str], event: Event) -> None:
        """Leave idle prefixes to SGLang, which evicts what was used least recently: use the next wanted last.

        All of them come behind the contexts of finished requests so.
        """
        if len(idle) > 1:
            self._update_steps()
        for name in sorted(idle, key=lambda name: (self._steps.get(name, LATE), name), reverse=True):
            if name in event.resident:
                self.engine.touch(self._resident[name])
            else:
                del self._resident[name]  # SGLang has needed its room

    def _update_steps(self) -> None:
        """Bring the steps to execution of all agents up to date, if they are old for the time that takes."""
        now_s = self.now_s()
        if now_s >= self._next_steps_s:
            self._steps = steps_to_execution(self.book.tracker.tasks.values())
            took_s = self.now_s() - now_s
            self._next_steps_s = now_s + took_s / FORESIGHT_SHARE

    # --- the offer ------------------------------------------------------------------------------------

    def _offer(self) -> list[Any]:
        """Return the chosen requests that SGLang shall be offered now.

        Of a prefix that is not in memory one request goes first: it computes or loads the prefix for the
        others, where a batch of all of them would compute it once for each.
        """
        self._chosen = [req for req in self._chosen or () if self._may_be_offered(req)]
        offer: list[Any] = []
        resident: dict[str, bool] = {}
        for req in self._chosen:
            entry = self.entry(req)
            if entry is None or not entry.agent.prefix_tokens:
                offer.append(req)
                continue
            agent = entry.agent
            if agent.id not in resident:
                resident[agent.id] = self._is_resident(agent)
                if resident[agent.id]:
                    self._pin(agent)
                elif not self._has_leader(agent):
                    offer.append(req)
                    continue
            if resident[agent.id]:
                offer.append(req)
        return offer

    def _all_but_preempted(self) -> list[Any]:
        return [req for req in self.engine.waiting if id(req) not in self._back]

    def _has_leader(self, agent: Agent) -> bool:
        """Return whether a request of the agent is in its prefill."""
        return any(
            entry.agent is agent and entry.phase is Phase.RUNNING and not entry.req.output_ids
            for entry in self.book.entries.values()
        )

    # --- when it goes wrong ---------------------------------------------------------------------------

    def _failed(self) -> None:
        """Leave the engine to itself for a while."""
        self._retry_s = self.now_s() + min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
        self._failures = min(self._failures + 1, 60)
        self.changed = True
        self._fall_back()

    def _fall_back(self) -> None:
        """Serve first come, first served until the next event: no locks, everything on offer."""
        self._chosen = None
        pins, self._pins = self._pins, {}
        for pin in pins.values():
            self.guard("unlock", partial(self.engine.unpin, pin), lambda: None)

    def reset(self) -> None:
        """Forget the locks: the tree they were in is gone."""
        super().reset()
        self._pins.clear()
        self._resident.clear()

    # --- the log --------------------------------------------------------------------------------------

    def _write(self, event: Event, decision: Decision) -> None:
        log = self._log
        assert log is not None  # noqa: S101  the caller has looked
        observed = None
        if self.book.config.check:
            entries = self.book.entries.values()
            agents = {agent.id: agent for agent in self.book.prefixes}
            observed = {
                "on_gpu_tokens": {name: self.engine.on_gpu(agent) for name, agent in sorted(agents.items())},
                "prefix_tokens": {name: agent.prefix_tokens for name, agent in sorted(agents.items())},
                "pinned_tokens": {name: pin.tokens for name, pin in sorted(self._pins.items())},
                "in_prefill": sorted(
                    {e.agent.id for e in entries if e.phase is Phase.RUNNING and not e.req.output_ids}
                    | {e.agent.id for e in entries if e.phase is Phase.ADMITTED}
                ),
                "free_tokens": self.engine.free_tokens,
            }
        log.write(event, decision, observed)
