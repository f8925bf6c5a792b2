"""``topas oracle``: exact optima and bounds, one module a kind."""

from __future__ import annotations

import argparse
import sys

from oracle.cli import event, trace
from oracle.verify import OracleError

KINDS = {
    "event": (event, "the optimum of scheduling events, and what the heuristic loses"),
    "trace": (trace, "lower bounds on the mean JCT of any schedule, and the best schedule known"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its kinds."""
    parser.description = (
        "Exact optima and bounds, to measure what a policy loses."
        " Needs the extra: pip install 'topas[oracle]'."
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, (module, text) in KINDS.items():
        kind = kinds.add_parser(name, help=text)
        module.add_arguments(kind)
        kind.set_defaults(run_kind=module.run)


def run(args: argparse.Namespace) -> int:
    """Run a subcommand."""
    try:
        return int(args.run_kind(args) or 0)
    except OracleError as error:
        print(f"topas: {error}", file=sys.stderr)
        return 1
