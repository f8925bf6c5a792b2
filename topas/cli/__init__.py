"""The ``topas`` command: one module a subcommand, listed in :data:`COMMANDS`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version

from topas.errors import InputError, SimulationError

COMMANDS = (
    "workload",
    "check",
    "simulate",
    "decide",
    "import",
    "compare",
    "oracle",
    "gap",
    "tune",
    "replay",
    "profile",
)
"""Subcommands in the order of the help; ``import`` lives in ``topas.cli.import_``."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with every subcommand; a module gives ``add_parser`` and ``run``."""
    parser = argparse.ArgumentParser(
        prog="topas",
        description="Workflow-aware prefix-state scheduling for multi-agent LLM serving.",
        epilog="Exit status: 0 done, 1 failed, 2 bad input (one line on stderr says why), 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"topas {version('topas')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"topas.cli.{'import_' if name == 'import' else name}")
        command = module.add_parser(subparsers)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args) or 0)
    except InputError as error:
        print(f"topas: {error}", file=sys.stderr)
        return 2
    except SimulationError as error:
        print(f"topas: simulation broken off: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("topas: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141
