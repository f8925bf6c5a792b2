"""The options of generated workloads, which every command has that generates some."""

from __future__ import annotations

import argparse
from dataclasses import fields

from topas.cli.options import option
from traces.workloads import WorkloadOptions

LENGTHS = {
    "prefix_tokens": "static prefix of an agent",
    "input_tokens": "mean dynamic input of a request",
    "output_tokens": "mean output of a request",
    "max_new_tokens": "output that the client allows (the output, or twice its mean where outputs vary)",
    "input_sigma": "sigma of lognormal input lengths around their mean, 0 for fixed ones",
    "output_sigma": "sigma of lognormal output lengths around their mean, 0 for fixed ones",
}

OPTIONS = tuple(field.name for field in fields(WorkloadOptions))
"""Arguments that :func:`add_length_options` adds."""


def add_length_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each of :class:`WorkloadOptions`."""
    group = parser.add_argument_group("lengths of generated workloads (default: their own)")
    for name, words in LENGTHS.items():
        if name.endswith("_sigma"):
            group.add_argument(option(name), type=float, metavar="X", help=words)
        else:
            group.add_argument(option(name), type=int, metavar="N", help=words)
    group.add_argument(
        "--order", choices=("alternating", "grouped"), help="two-agent only (default alternating)"
    )


def lengths_of(args: argparse.Namespace) -> WorkloadOptions:
    """Return what was given.

    Raises
    ------
    InputError
        if a value is out of range.
    """
    return WorkloadOptions(**{name: getattr(args, name) for name in OPTIONS})
