"""``topas oracle``: exact optima and bounds, one module a subcommand, listed in :data:`SUBCOMMANDS`."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

SUBCOMMANDS = ("event", "trace")
"""In the order of the help; ``event`` lives in ``topas.cli.oracle_event``."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:  # noqa: ANN401  argparse names no public type
    """Add the command with its subcommands; a module gives ``add_parser`` and ``run``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "oracle",
        help="exact optima and bounds",
        description="Exact optima and bounds, to measure what a policy loses."
        " Needs the extra: pip install 'topas[oracle]'.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name in SUBCOMMANDS:
        module = importlib.import_module(f"topas.cli.oracle_{name}")
        module.add_parser(kinds).set_defaults(run_kind=module.run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run a subcommand."""
    from oracle.verify import OracleError  # noqa: PLC0415  only this command needs the oracle

    try:
        return int(args.run_kind(args) or 0)
    except OracleError as error:
        print(f"topas: {error}", file=sys.stderr)
        return 1
