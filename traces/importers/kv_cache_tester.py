"""Importer of kv-cache-tester sessions: a coding agent, its sub-agents, its tool waits.

A session becomes a task with a workflow of its own.

- Agents. An agent is a triple of model, system tokens and tool tokens. Sessions that agree on all three
  share the agent: block hashes are local to a session, so equal sizes are the best evidence of an equal
  prompt that the files hold.
- Stages. A run of plain requests of one model is a stage with a round for each; consecutive sub-agents
  fork from the stage before and join at the stage behind. A sub-agent that started when another of its
  group had ended comes after it instead. A sub-agent that ran beside the main agent stands where it
  ended. Sub-agents without a request are left out.
- Tool waits. Inside a stage, the recorded think time of the next request. Behind a stage, the time from
  the last answer among the predecessors of a stage behind it to that stage's first request.
- Lengths. Input is what exceeds the prefix; output at least 1 token. What the client allowed was not
  recorded: it is taken as the smallest power of two that holds the output, and at least 512, unless an
  allowance is given. It tells a policy which outputs are long, more than a client would.
- Reuse. Tokens in the leading blocks that a request shares with the one before it in the same stage,
  behind the prefix. The first round of a stage has none, since the trace format knows only a stage's own
  context: a main agent that resumes behind its sub-agents really finds its earlier context again, so
  reuse is undercounted there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from topas.errors import InputError
from topas.trace import Round
from topas.workflow import StageSpec, workflow_of
from traces.importers.kv_cache_session import PlainRequest, read_session
from traces.importers.kv_cache_stages import Identity, Piece, pieces_of, waits_s
from traces.importers.recording import Recording, Session

LEAST_ALLOWANCE_TOKENS = 512


def import_kv_cache_tester(
    paths: Sequence[str | os.PathLike[str]], max_new_tokens: int | None = None
) -> Recording:
    """Read session files.

    Parameters
    ----------
    paths : the files, one session each.
    max_new_tokens : what the client allowed; a longer output has an allowance of its own length. None: a
        power of two, see above.

    Raises
    ------
    InputError
        naming file and field, if a file is no such session, is empty, or holds one that was read before.
    """
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InputError(f"expected at least 1 token, found {max_new_tokens}", field="max_new_tokens")
    found: dict[str, tuple[list[Piece], int]] = {}
    for path in paths:
        head, entries = read_session(path)
        if head.id in found:
            raise InputError(f"the session {head.id!r} was read before", source=str(path), field="id")
        pieces = pieces_of(head, entries)
        if not pieces:
            raise InputError("expected at least one request", source=str(path), field="requests")
        found[head.id] = pieces, head.block_size
    everything = [piece for pieces, _ in found.values() for piece in pieces]
    names = agent_names(everything)
    sessions = tuple(
        _session(name, pieces, names, block_size, max_new_tokens)
        for name, (pieces, block_size) in found.items()
    )
    agents = {name: identity.prefix_tokens for identity, name in names.items()}
    return Recording("kv-cache-tester", agents, sessions, _notes(everything, max_new_tokens))


def agent_names(pieces: Sequence[Piece]) -> dict[Identity, str]:
    """Name each agent by role, model and prefix, as in ``main-opus-4-5-16799``; numbered where equal."""
    mains = {piece.agent for piece in pieces if piece.is_main}
    names: dict[Identity, str] = {}
    for agent in sorted({piece.agent for piece in pieces}):
        model = re.sub(r"^claude-|-\d{8}$", "", agent.model)
        base = f"{'main' if agent in mains else 'sub'}-{model}-{agent.prefix_tokens}"
        taken = set(names.values())
        suffixes = (f"{base}-{k}" for k in range(2, len(pieces) + 2))
        names[agent] = base if base not in taken else next(s for s in suffixes if s not in taken)
    return names


def rounds_of(
    piece: Piece, block_size: int, wait_s: float, max_new_tokens: int | None = None
) -> tuple[Round, ...]:
    """Return the rounds of a stage; ``wait_s`` is the wait behind its last one."""
    prefix = piece.agent.prefix_tokens
    previous: PlainRequest | None = None
    rounds = []
    for k, request in enumerate(piece.requests):
        following = piece.requests[k + 1 : k + 2]
        input_tokens = max(0, request.in_ - prefix)
        kept = _shared_tokens(previous, request, block_size) - prefix
        rounds.append(
            Round(
                input_tokens,
                max(1, request.out),
                _allowance(request.out, max_new_tokens),
                following[0].think_time if following else wait_s,
                min(max(0, kept), input_tokens),
            )
        )
        previous = request
    return tuple(rounds)


def _session(
    name: str, pieces: Sequence[Piece], names: dict[Identity, str], block_size: int, allowed: int | None
) -> Session:
    workflow = workflow_of(name, [StageSpec(one.name, names[one.agent], tuple(one.after)) for one in pieces])
    waits = waits_s(pieces)
    by_name = {piece.name: piece for piece in pieces}
    rounds = tuple(
        rounds_of(by_name[stage], block_size, waits[stage], allowed) for stage in workflow.dag.names
    )
    return Session(workflow, rounds)


def _shared_tokens(previous: PlainRequest | None, request: PlainRequest, block_size: int) -> int:
    """Return how many leading tokens of the prompt stood in the previous one, by whole blocks."""
    if previous is None:
        return 0
    blocks = 0
    for mine, theirs in zip(request.hash_ids, previous.hash_ids, strict=False):
        if mine != theirs:
            break
        blocks += 1
    return min(blocks * block_size, previous.in_)


def _allowance(output: int, allowed: int | None) -> int:
    if allowed is not None:
        return max(allowed, output)
    return max(LEAST_ALLOWANCE_TOKENS, 1 << max(0, output - 1).bit_length())


def _notes(pieces: Sequence[Piece], allowed: int | None) -> tuple[str, ...]:
    requests = [(piece.agent.prefix_tokens, request) for piece in pieces for request in piece.requests]
    counts = {
        "input below the agent's prefix, taken as no input": sum(r.in_ < p for p, r in requests),
        "no output, taken as 1 token": sum(r.out == 0 for _, r in requests),
        "output above the allowance, which is raised to it": sum(
            allowed is not None and r.out > allowed for _, r in requests
        ),
    }
    return tuple(f"{count} of {len(requests)} requests: {text}" for text, count in counts.items() if count)
