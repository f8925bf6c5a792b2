"""The traces of commands that compare policies: workloads at operating points, with seeds, or trace files."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from compare.cli.pooled import joined, list_of, say
from compare.source import Points, Source, sources_of, trace_file, trace_of
from topas.cli.options import option
from topas.errors import InputError
from topas.profile import Profile
from topas.sim import refuse_unservable
from traces.cli.lengths import OPTIONS, add_length_options, lengths_of
from traces.workloads import FIXED, WORKLOADS

LOADS = (0.5, 0.75)
SEEDS = (1, 2, 3)
TASKS = 60


def add_point_options(parser: argparse.ArgumentParser) -> None:
    """Add rates or loads, tasks, seeds and the lengths of generated workloads."""
    points = parser.add_mutually_exclusive_group()
    points.add_argument("--rates", type=_rates, metavar="R,R", help="arrival rates, tasks a second")
    points.add_argument(
        "--loads",
        type=_rates,
        metavar="X,X",
        help=f"arrival rates as shares of the one-prefix-at-a-time rate (default: {joined(LOADS)})",
    )
    parser.add_argument("--tasks", type=int, metavar="N", help=f"tasks a trace (default: {TASKS})")
    parser.add_argument(
        "--seeds", type=seed_list, metavar="S,S", help=f"seeds of the traces (default: {joined(SEEDS)})"
    )
    add_length_options(parser)


def points_of(args: argparse.Namespace, seeds: tuple[int, ...] | None = None) -> Points:
    """Return operating points and draws of any workload; ``seeds`` instead of those of the options."""
    tasks = TASKS if args.tasks is None else args.tasks
    at = args.rates or args.loads or LOADS
    return Points(at, args.rates is None, seeds or args.seeds or SEEDS, tasks, lengths_of(args))


def sources_named(
    what: Sequence[str],
    args: argparse.Namespace,
    profile: Profile,
    points: Callable[[str], Points] | None = None,
    *,
    every: bool = False,
) -> list[Source]:
    """Return the traces of workloads and files; all that can be wrong with them is found here.

    Parameters
    ----------
    what : names of workloads, and paths of trace files.
    points : operating points and draws of a workload, if not those of the options.
    every : refuse what the engine cannot serve of every trace, not only of a workload's first.

    Raises
    ------
    InputError
        naming what is wrong.
    """
    if len({one if one in WORKLOADS else Path(one).resolve() for one in what}) < len(what):
        raise InputError("a workload or trace is named twice", field="WORKLOAD-OR-TRACE")
    sources: list[Source] = []
    as_it_is = []
    for one in what:
        if one in WORKLOADS:
            found = sources_of(one, points(one) if points else points_of(args), profile)
        elif Path(one).is_file():
            found = [trace_file(one)]
        else:
            raise InputError(f"no such trace file, nor a workload: {', '.join(WORKLOADS)}", source=one)
        if one in FIXED or one not in WORKLOADS:
            as_it_is.append(one)
        for source in found if every else found[:1]:
            refuse_unservable(trace_of(source), profile)
        sources += found
    useless = [name for name in ("rates", "loads", "seeds", "tasks") if getattr(args, name) is not None]
    useless += lengths_of(args).given()
    if as_it_is and useless and not args.quiet:
        say(f"{', '.join(map(option, useless))}: of no effect on {', '.join(as_it_is)}, used as it is")
    return sources


def points_given(args: argparse.Namespace, *, drawn: bool) -> dict[str, object]:
    """Return what a report's command line says of these options, with the defaults that results depend on.

    ``drawn`` if any trace is generated; else they decide nothing and are not shown.
    """
    if not drawn:
        return dict.fromkeys(("rates", "loads", "seeds", "tasks", *OPTIONS))
    loads = None if args.rates else args.loads or LOADS
    tasks = TASKS if args.tasks is None else args.tasks
    return {"loads": loads, "seeds": args.seeds or SEEDS, "tasks": tasks}


def seed_list(text: str) -> tuple[int, ...]:
    """Parse seeds with commas between."""
    values = list_of(text, int)
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"expected no negative number, found {text!r}")
    return values


def _rates(text: str) -> tuple[float, ...]:
    values = list_of(text, float)
    if not all(0 < value < math.inf for value in values):
        raise argparse.ArgumentTypeError(f"expected positive numbers, found {text!r}")
    return values
