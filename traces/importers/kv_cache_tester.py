"""Importer of kv-cache-tester sessions: a coding agent, its sub-agents, its tool waits.

A session becomes a task with a workflow of its own.

- Agents. An agent is a triple of model, system tokens and tool tokens. Sessions that agree on all three
  share the agent: block hashes are local to a session, so equal sizes are the best evidence of an equal
  prompt that the files hold.
- Stages. A run of plain requests of one model is a stage with a round for each; consecutive sub-agents
  fork from the stage before and join at the stage behind. A sub-agent that started when another of its
  group had ended comes after it instead. Sub-agents without a request are left out.
- Tool waits. Inside a stage, the recorded think time of the next request. Behind a stage, the recorded
  time from the last end among the predecessors of a following stage to that stage's start; if several
  follow, the shortest.
- Lengths. Input is what exceeds the prefix; output at least 1 token. What the client allowed was not
  recorded: it is taken as the smallest power of two that holds the output, and at least 512, unless an
  allowance is given. Note that this lets a policy guess at the length of the few long outputs.
- Reuse. Tokens in the leading blocks that a request shares with the one before it in the same stage,
  behind the prefix. The first round of a stage has none, since the trace format knows only a stage's own
  context: a main agent that resumes behind its sub-agents really finds its earlier context again, so
  reuse is undercounted there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from topas.errors import InputError
from topas.trace import Round
from topas.workflow import Workflow, dag_of
from traces.importers.kv_cache_session import Entry, PlainRequest, SessionHead, SubAgent, read_session
from traces.importers.sessions import Recording, Session

LEAST_ALLOWANCE_TOKENS = 512


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
    """A stage to be: requests of one agent, the stages before it, and when it was recorded."""

    name: str
    agent: Identity
    role: str
    after: tuple[str, ...]
    requests: tuple[PlainRequest, ...]
    start_s: float
    end_s: float


def import_sessions(
    paths: Sequence[str | os.PathLike[str]], max_new_tokens: int | None = None
) -> Recording:
    """Read session files.

    Parameters
    ----------
    paths : the files, one session each.
    max_new_tokens : allowance of every request that generated no more; None: a power of two.

    Raises
    ------
    InputError
        naming file and field, if a file is no such session or two files hold the same one.
    """
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InputError(f"expected at least 1 token, found {max_new_tokens}", field="max_new_tokens")
    found: dict[str, list[Piece]] = {}
    blocks: dict[str, int] = {}
    for path in paths:
        head, entries = read_session(path)
        if head.id in found:
            raise InputError(f"the session {head.id!r} was read before", source=str(path), field="id")
        found[head.id] = _pieces(head, entries)
        blocks[head.id] = head.block_size
        if not found[head.id]:
            raise InputError("expected at least one request", source=str(path), field="requests")
    pieces = [piece for session in found.values() for piece in session]
    names = _agent_names(pieces)
    sessions = tuple(
        _session(name, session, names, blocks[name], max_new_tokens) for name, session in found.items()
    )
    agents = {name: identity.prefix_tokens for identity, name in names.items()}
    return Recording("kv-cache-tester", agents, sessions, _notes(pieces, max_new_tokens))
