"""The simulator's invariants, numbered as in docs/model.md; each raises SimulationError with the numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from referee.job import Phase
from topas.decision import Decision
from topas.errors import SimulationError
from topas.event import Event
from topas.feasible import violations

if TYPE_CHECKING:
    from referee.engine import Engine


def _fail(engine: Engine, number: int, what: str) -> None:
    raise SimulationError(f"I{number} under {engine.policy.name} at {engine.now_s:.6f} s: {what}")


def check_decision(engine: Engine, event: Event, decision: Decision) -> None:
    """I1: a decision is feasible on the event it was made on."""
    wrong = violations(event, decision)
    if wrong:
        _fail(engine, 1, "; ".join(wrong))


def check_state(engine: Engine) -> None:
    """I2-I8: tokens and requests are conserved, and memory holds."""
    cache, running = engine.cache, engine.running
    users: dict[str, int] = {}
    held = leased = 0
    for node in cache.nodes():
        leased += node.tokens if node.users else 0
    for job in running.values():
        users[job.agent] = users.get(job.agent, 0) + 1
        held += job.held + engine.generated(job) - job.generated - job.shared
    if users != dict(cache.active):
        _fail(engine, 2, f"prefix users {dict(cache.active)} but running requests use {users}")
    prefixes = sum(engine.trace.agents[a] for a in users)
    if cache.used != leased + held:
        _fail(engine, 3, f"{cache.used} tokens in use, but nodes {leased} + requests {held}")
    if cache.used > cache.budget:
        _fail(engine, 4, f"{cache.used} tokens in use exceed the budget {cache.budget}")
    reserved = sum(job.request.reserve_tokens for job in running.values())
    if reserved != engine.reserved:
        _fail(engine, 5, f"reservations {engine.reserved}, but requests reserve {reserved}")
    if not engine.by_ratio and prefixes + reserved > cache.budget:
        _fail(engine, 5, f"prefixes {prefixes} + reservations {reserved} exceed {cache.budget}")
    if engine.waiting.keys() & running.keys() or engine.jobs.keys() != engine.waiting.keys() | running.keys():
        _fail(engine, 6, "a request is lost, or both waiting and running")
    _check_decoding(engine)


def _check_decoding(engine: Engine) -> None:
    """I7 and I8: what is counted of decoding requests is what they add up to."""
    decoding = [job for job in engine.running.values() if job.phase is Phase.DECODE]
    left = sum(job.round.max_new_tokens - engine.generated(job) for job in decoding)
    if len(decoding) != engine.decoding or left != engine.max_left:
        _fail(engine, 7, f"{engine.decoding} requests with {engine.max_left} tokens left decode, not {left}")
    fixed = sum(job.round.max_new_tokens - engine.generated(job) for job in decoding if job.fixed)
    if fixed != engine.fixed_left:
        _fail(engine, 7, f"requests of known length have {engine.fixed_left} tokens left, not {fixed}")
    attended = sum(
        engine.trace.agents[job.agent] + job.held + engine.generated(job) - job.generated for job in decoding
    )
    if attended != engine.attended:
        _fail(engine, 8, f"decoding requests attend to {engine.attended} tokens, not {attended}")
