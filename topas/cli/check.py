"""``topas check``: validates a trace or an event."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from topas.errors import InputError
from topas.files import read_file
from topas.formats import read_event
from topas.schema import MAX_BYTES, parse_json
from topas.trace.format import FORMAT, read_trace
from topas.trace.summary import in_words, summary

EPILOG = """\
examples:
  topas check trace.jsonl
  topas check event.json --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = "Validate a trace or an event; the first fault is named with file, line and field."
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", metavar="F", help="a topas-trace/1 or topas-event/1 file")
    parser.add_argument("--json", action="store_true", help="print one JSON object about the file")


def run(args: argparse.Namespace) -> int:
    """Check the file and say what it holds."""
    kind = format_of(args.file)
    if kind.startswith("topas-trace/"):
        trace = read_trace(args.file)
        counts = {"file": args.file, "format": kind, **summary(trace)}
        text = in_words(counts)
    elif kind.startswith("topas-event/"):
        counts = {"file": args.file, "format": kind, **_event_summary(args.file)}
        text = ", ".join(f"{counts[name]} {name}" for name in ("tasks", "agents", "waiting", "running"))
    else:
        expected = f"expected 'topas-trace/1' or 'topas-event/1', found {kind!r:.60}"
        raise InputError(expected, source=args.file, field="format")
    print(json.dumps(counts) if args.json else f"{args.file}: valid {kind}: {text}")
    return 0


def format_of(path: str) -> str:
    """Return the ``format`` of a file's first line, or of the whole file if that is no JSON by itself.

    Raises
    ------
    InputError
        if the file cannot be read, is no JSON, or names no format.
    """
    try:
        with Path(path).open("rb") as stream:
            first = stream.readline(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror}", source=path) from None
    try:
        value = parse_json(first, source=path, line=1)
    except InputError:
        if FORMAT.encode() in first:  # a broken header: reading the trace names the place
            return FORMAT
        value = parse_json(read_file(path), source=path)
    if not isinstance(value, dict):
        raise InputError("expected a JSON object with a format", source=path)
    kind = value.get("format")
    if not isinstance(kind, str):
        raise InputError("expected the name of a format", source=path, field="format")
    return kind


def _event_summary(path: str) -> dict[str, Any]:
    event = read_event(path)
    return {
        "time_s": event.time_s,
        "budget_tokens": event.budget_tokens,
        "tasks": len(event.tasks),
        "agents": len(event.agents),
        "resident": len(event.resident),
        "waiting": len(event.waiting),
        "running": len(event.running),
    }
