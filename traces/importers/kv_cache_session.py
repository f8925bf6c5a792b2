"""The session files of kv-cache-tester: what of them is read.

A file is one coding-agent session: the prefix of its main agent (``system_tokens``, ``tool_tokens``) and
its ``requests`` in order, plain ones (``n``: not streamed, ``s``: streamed) and sub-agents that nest
requests of their own. Times are seconds; ``t`` of a request is its start (in a sub-agent: from the
sub-agent's start), ``t`` of a sub-agent is its end. Fields that are not used are not checked.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import Field

from topas.errors import InputError
from topas.files import read_file
from topas.schema import Count, Strict, parse_json, validate
from topas.trace import Moment

ShortName = Annotated[str, Field(max_length=100)]


class Record(Strict, extra="ignore"):
    """An object of someone else's format: strict in what is read, open to more."""


class PlainRequest(Record):
    """One request; ``in`` counts the prefix, ``hash_ids`` name its whole blocks from the start."""

    t: Moment
    type: Literal["n", "s"]
    model: ShortName
    in_: Annotated[Count, Field(alias="in")]
    out: Count
    hash_ids: list[int]
    api_time: Moment
    think_time: Moment

    @property
    def end_s(self) -> float:
        """Return when the answer was complete."""
        return self.t + self.api_time


class SubAgent(Record):
    """A sub-agent that the main agent started and waited for."""

    t: Moment
    type: Literal["subagent"]
    agent_id: ShortName
    duration_ms: Annotated[float, Field(ge=0, le=1e12)]
    system_tokens: Count
    tool_tokens: Count
    requests: list[PlainRequest]

    @property
    def start_s(self) -> float:
        """Return when it started."""
        return self.t - self.duration_ms / 1000


class SessionHead(Record):
    """The session around its requests, which are checked one by one."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    block_size: Annotated[int, Field(ge=1, le=1_000_000)]
    system_tokens: Count
    tool_tokens: Count
    requests: Annotated[list[dict[str, Any]], Field(min_length=1)]


Entry = PlainRequest | SubAgent


def read_session(path: str | os.PathLike[str]) -> tuple[SessionHead, list[Entry]]:
    """Read a session file of any size and check it.

    Raises
    ------
    InputError
        naming file and field of the first fault.
    """
    source = str(path)
    value = parse_json(read_file(path), source=source, max_bytes=None)
    head = validate(SessionHead, value, source=source)
    return head, [_entry(raw, k, source) for k, raw in enumerate(head.requests)]


def _entry(raw: dict[str, Any], k: int, source: str) -> Entry:
    kind = raw.get("type")
    if kind not in ("n", "s", "subagent"):
        expected = f"expected 'n', 's' or 'subagent', found {kind!r:.60}"
        raise InputError(expected, source=source, field=f"requests.{k}.type")
    try:
        return validate(SubAgent, raw) if kind == "subagent" else validate(PlainRequest, raw)
    except InputError as error:
        raise InputError(error.expected, source=source, field=f"requests.{k}.{error.field}") from None
