"""What commands that run many items in processes share: signals, and words on stderr."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from joblib import cpu_count

from topas.cli.options import option
from topas.errors import InputError
from topas.policies import policy_names

Item = TypeVar("Item")

SHOWN_ELSEWHERE = frozenset({"command", "run", "what", "folder", "jobs", "progress", "quiet", "json"})
"""Arguments that decide no result, or stand first or last in the command line."""


def add_pool_options(parser: argparse.ArgumentParser) -> None:
    """Add processes, progress and output options."""
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (default: one a CPU)")
    parser.add_argument("--progress", action="store_true", help="show the bar even without a terminal")
    parser.add_argument("--quiet", action="store_true", help="no bar and no notes on stderr")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def guarded(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command whose workers SIGTERM ends like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(args)
    finally:
        signal.signal(signal.SIGTERM, before)


def jobs_of(given: int | None) -> int:
    """Return the number of processes, one a CPU if none is given.

    Raises
    ------
    InputError
        if it is not positive.
    """
    if given is not None and given < 1:
        raise InputError(f"expected at least 1 process, found {given}", field="--jobs")
    return int(cpu_count()) if given is None else given


def known_policies(given: Collection[str], field: str = "--policies") -> tuple[str, ...]:
    """Return policies, all of which exist.

    Raises
    ------
    InputError
        naming the first that does not.
    """
    known = policy_names(on_request=True)
    for name in given:
        if name not in known:
            raise InputError(f"unknown policy {name!r}; known: {', '.join(known)}", field=field)
    return tuple(given)


def list_of(text: str, kind: Callable[[str], Item]) -> tuple[Item, ...]:
    """Parse values with commas between, none of them twice."""
    try:
        values = tuple(kind(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between, found {text!r}") from None
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"found one twice in {text!r}")
    return values


def names(text: str) -> tuple[str, ...]:
    """Parse names with commas between."""
    return list_of(text, str)


def say(text: str) -> None:
    """Write a line to stderr."""
    print(f"topas: {text}", file=sys.stderr)


def joined(values: Iterable[object]) -> str:
    """Return values with commas between."""
    return ",".join(str(value) for value in values)


def command_line(head: Sequence[str], given: Mapping[str, object], folder: str) -> str:
    """Return the command line with these words first, then the options given, then the folder."""
    words = ["topas", *head]
    for name, value in given.items():
        if name in SHOWN_ELSEWHERE or value is None or value is False:
            continue
        words.append(option(name))
        if isinstance(value, list):
            words += [str(one) for one in value]
        elif value is not True:
            words.append(joined(value) if isinstance(value, tuple) else str(value))
    return shlex.join([*words, "-o", folder])
