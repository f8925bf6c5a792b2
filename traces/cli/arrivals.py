"""The options that ``topas workload`` and ``topas import`` share: how tasks arrive, and where they go."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from topas.errors import InputError
from topas.profile import Profile, load_profile, profile_names


def add_arrival_options(parser: argparse.ArgumentParser, *, rate: str, tasks: str) -> None:
    """Add rate or load, profile, tasks, seed, output and ``--json``; the texts tell the defaults."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--rate", type=float, metavar="R", help=f"mean arrivals in tasks a second ({rate})")
    either.add_argument(
        "--load",
        type=float,
        metavar="X",
        help="instead of --rate: a share of the rate that serving one prefix at a time sustains on --profile",
    )
    parser.add_argument(
        "--profile",
        metavar="P",
        help=f"engine profile behind --load: a file, or one of {', '.join(profile_names())}",
    )
    parser.add_argument("--tasks", type=int, metavar="N", help=tasks)
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="seed of all that is drawn (default 0)"
    )
    parser.add_argument("-o", "--output", required=True, metavar="F", help="the trace to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object about the trace")


def chosen_rate(
    args: argparse.Namespace, default: float | None, at_load: Callable[[float, Profile], float]
) -> float:
    """Return the arrival rate that the options ask for.

    Raises
    ------
    InputError
        if there is neither a rate, a load nor a default, or a load and a profile do not come together.
    """
    if args.load is None:
        if args.profile is not None:
            raise InputError("has a use only with --load", field="--profile")
        rate = default if args.rate is None else args.rate
        if rate is None:
            raise InputError("expected a rate, or --load with --profile", field="--rate")
        return float(rate)
    if args.profile is None:
        raise InputError("needs an engine profile: --profile P", field="--load")
    return at_load(args.load, load_profile(args.profile))
