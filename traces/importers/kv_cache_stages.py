"""The structure of a kv-cache-tester session: which stages, by which agent, after which, how far apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from traces.importers.kv_cache_session import Entry, PlainRequest, SessionHead, SubAgent


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """What makes two requests belong to one agent."""

    model: str
    system_tokens: int
    tool_tokens: int

    @property
    def prefix_tokens(self) -> int:
        """Return the static prefix."""
        return self.system_tokens + self.tool_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """A stage as recorded: requests of one agent, the stages before it, its first start and last end."""

    name: str
    agent: Identity
    is_main: bool
    after: tuple[str, ...]
    requests: tuple[PlainRequest, ...]
    start_s: float
    end_s: float


def pieces_of(head: SessionHead, entries: Iterable[Entry]) -> list[Piece]:
    """Return the stages of a session, predecessors first.

    A run of plain requests of one model is one stage. Consecutive sub-agents are a fork behind the stage
    before, and the stage behind waits for all of them. Sub-agents without a request are passed over.
    """
    pieces: list[Piece] = []
    frontier: tuple[str, ...] = ()
    served = (entry for entry in entries if isinstance(entry, PlainRequest) or entry.requests)
    for _, group in groupby(served, key=lambda entry: isinstance(entry, SubAgent)):
        members = list(group)
        forks = [entry for entry in members if isinstance(entry, SubAgent)]
        if forks:
            frontier = _add_fork(pieces, forks, frontier)
        else:
            run = [entry for entry in members if isinstance(entry, PlainRequest)]
            frontier = _add_chain(pieces, run, head, frontier, offset_s=0.0)
    return pieces


def waits_s(pieces: Sequence[Piece]) -> dict[str, float]:
    """Return the recorded wait behind each stage, in seconds to the millisecond.

    A stage that starts at ``s`` behind stages that ended at ``e1``, ``e2``, ... was kept waiting for
    ``s - max(e)``; a stage passes on the shortest such wait of the stages behind it, none if negative.
    """
    ends = {piece.name: piece.end_s for piece in pieces}
    found: dict[str, float] = {}
    for piece in pieces:
        if piece.after:
            wait_s = max(0.0, piece.start_s - max(ends[name] for name in piece.after))
            for name in piece.after:
                found[name] = min(found.get(name, wait_s), wait_s)
    return {piece.name: round(found.get(piece.name, 0.0), 3) for piece in pieces}


def _add_chain(
    pieces: list[Piece],
    requests: Sequence[PlainRequest],
    owner: SessionHead | SubAgent,
    after: tuple[str, ...],
    offset_s: float,
) -> tuple[str, ...]:
    """Append one stage for each run of a model; return the last one, which the next has to wait for."""
    label = owner.agent_id if isinstance(owner, SubAgent) else "main"
    for model, run in groupby(requests, key=lambda request: request.model):
        members = tuple(run)
        name = f"{len(pieces) + 1:02d}-{label}"
        agent = Identity(model, owner.system_tokens, owner.tool_tokens)
        start_s, end_s = offset_s + members[0].t, offset_s + members[-1].end_s
        is_main = isinstance(owner, SessionHead)
        pieces.append(Piece(name, agent, is_main, after, members, start_s, end_s))
        after = (name,)
    return after


def _add_fork(pieces: list[Piece], group: Sequence[SubAgent], after: tuple[str, ...]) -> tuple[str, ...]:
    """Append sub-agents that ran together; return those that no other of them waited for.

    One that started at or after the end of another comes behind it, of which only the direct
    precedences are kept.
    """
    order = sorted(group, key=lambda agent: (agent.start_s, agent.t))
    earlier = [{j for j in range(k) if order[j].t <= order[k].start_s} for k in range(len(order))]
    last: list[str] = []
    for k, agent in enumerate(order):
        direct = sorted(j for j in earlier[k] if not any(j in earlier[i] for i in earlier[k]))
        before = tuple(last[j] for j in direct) or after
        last.extend(_add_chain(pieces, agent.requests, agent, before, agent.start_s))
    return tuple(last[k] for k in range(len(order)) if not any(k in found for found in earlier))
