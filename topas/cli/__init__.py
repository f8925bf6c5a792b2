"""The ``topas`` command.

Packages contribute subcommands through the entry point group ``topas.commands``: each entry is a mapping of
names to :class:`~topas.cli.command.Command`. So nothing here knows what stands above this package.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points, version

from topas.cli.command import Command
from topas.errors import InputError, SimulationError

COMMANDS = {
    "check": Command("topas.cli.check", "validate a trace or an event"),
    "decide": Command("topas.cli.decide", "the decision of a policy for one event"),
    "simulate": Command("topas.cli.simulate", "play a trace under one policy in the engine simulator"),
}
"""What needs no package above this one."""

GROUP = "topas.commands"


@cache
def commands() -> Mapping[str, Command]:
    """Return every command that an installed package contributes, by name."""
    found: dict[str, Command] = {}
    for entry in entry_points(group=GROUP):
        found |= entry.load()
    return dict(sorted(found.items()))


def build_parser(given: str | None = None) -> argparse.ArgumentParser:
    """Return the parser that knows every command by name, and the one given with its arguments."""
    parser = argparse.ArgumentParser(
        prog="topas",
        description="Workflow-aware prefix-state scheduling for multi-agent LLM serving.",
        epilog="Exit status: 0 done, 1 failed, 2 bad input (one line on stderr says why), 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"topas {version('topas')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in commands().items():
        subparser = subparsers.add_parser(name, help=command.help)
        if name == given:
            module = importlib.import_module(command.module)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    words = sys.argv[1:] if argv is None else argv
    given = next((word for word in words if not word.startswith("-")), None)
    try:
        args = build_parser(given).parse_args(words)
        return int(args.run(args) or 0)
    except InputError as error:
        return _say(f"{error}", 2)
    except ModuleNotFoundError as error:
        library, command = (error.name or "").partition(".")[0], commands().get(given or "")
        ours = {entry.module.partition(".")[0] for entry in entry_points(group=GROUP)}
        if command is None or not command.extra or library in ours:
            raise
        return _say(f"{library} is not installed: pip install 'topas[{command.extra}]'", 2)
    except SimulationError as error:
        return _say(f"simulation broken off: {error}", 1)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except BrokenPipeError:
        return 141


def _say(text: str, status: int) -> int:
    print(f"topas: {text}", file=sys.stderr)
    return status
