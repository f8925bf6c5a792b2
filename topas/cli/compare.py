"""``topas compare``: policies side by side."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topas.cli.compare_live import PROFILE, add_live_options, run_live
from topas.cli.options import add_engine_options, engine_of, params_of
from topas.cli.pooled import (
    add_pool_options,
    command_line,
    guarded,
    jobs_of,
    joined,
    known_policies,
    list_of,
    names,
    option,
    say,
)
from topas.errors import InputError
from topas.policies import baseline_names, policy_names

if TYPE_CHECKING:
    from compare.cell import Source
    from compare.report import Comparison
    from compare.run import Outcome
    from topas.profile import Profile

LOADS = (0.5, 0.75)
SEEDS = (1, 2, 3)
TASKS = 60
PROFILE_OF_SIMULATIONS = "study"
LIVE = ("repeats", "kv_tokens", "max_running", "port")
"""Options of real servers."""
LENGTHS: dict[str, type[int | float]] = {
    "prefix_tokens": int,
    "input_tokens": int,
    "output_tokens": int,
    "max_new_tokens": int,
    "input_sigma": float,
    "output_sigma": float,
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:  # noqa: ANN401  argparse names no public type
    """Add the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "compare",
        help="run policies side by side: CSV, Parquet, Markdown, figure",
        description="Run every policy on the same traces and compare it with the best baseline, as the paper"
        " does: per workload and metric, averaged over the operating points.",
        epilog="Finished cells are kept in DIR/cells: an interrupted command, given again, goes on. "
        "example: topas compare chain-3 dag-4 --loads 0.25,0.5 --seeds 1,2,3 -o out/synthetic",
    )
    parser.add_argument(
        "what", nargs="+", metavar="WORKLOAD-OR-TRACE", help="a workload's name or a trace file"
    )
    parser.add_argument("-o", dest="folder", required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--policies", type=names, metavar="a,b", help="policies to run (default: all)")
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
        "--seeds", type=_seeds, metavar="S,S", help=f"seeds of the traces (default: {joined(SEEDS)})"
    )
    lengths = parser.add_argument_group("lengths of generated workloads (default: the workload's own)")
    for name, kind in LENGTHS.items():
        lengths.add_argument(option(name), type=kind, metavar="N" if kind is int else "X")
    lengths.add_argument("--order", choices=["alternating", "grouped"], help="order of two-agent's requests")
    add_engine_options(parser)
    parser.set_defaults(profile=None)  # it depends on the engine
    parser.add_argument(
        "--engine",
        choices=["sim", "sglang"],
        default="sim",
        help="what runs the traces: the simulator (sim, the default), or real SGLang servers on this "
        f"machine's CPU (sglang; default profile {PROFILE}, shorter default lengths)",
    )
    add_live_options(parser)
    parser.add_argument("--plot", action="store_true", help="also draw figure.png and figure.svg")
    add_pool_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a cell failed."""
    return guarded(run_live if args.engine == "sglang" else _run, args)


def _run(args: argparse.Namespace) -> int:
    from compare.cell import cells_of  # noqa: PLC0415  the other commands do without the extra
    from compare.pool import Interrupted  # noqa: PLC0415  the same
    from compare.report import Comparison, screen, write_report  # noqa: PLC0415  the same
    from compare.run import run_cells  # noqa: PLC0415  the same

    if args.plot:
        from compare.plot import write_figure  # noqa: PLC0415  the same, and only a figure needs matplotlib

    _refuse_live_options(args)
    args.profile = args.profile or PROFILE_OF_SIMULATIONS
    policies, profile = known_policies(args.policies or policy_names()), engine_of(args)
    folder = Path(args.folder)
    sources = _sources(args, profile)
    drawn = any(source.rate_per_s is not None for source in sources)
    if args.plot and not drawn:
        raise InputError("needs a workload with arrival rates: there is nothing to draw", field="--plot")
    cells = cells_of(sources, policies, profile, params_of(args))
    progress = False if args.quiet else args.progress or None
    try:
        outcome = run_cells(cells, folder, jobs=jobs_of(args.jobs), progress=progress)
    except Interrupted as stop:
        kept = f"{stop.done} of {stop.total} cells are kept in {folder / 'cells'}"
        say(f"interrupted: {kept}; the same command goes on from there")
        return 130
    if not args.quiet:
        _say_what_was_kept(outcome, folder)
    for failure in outcome.failures:
        say(f"failed: {failure.cell}: {failure.reason}")
    if not outcome.results:
        return 1
    command = _command(args, policies, drawn=drawn)
    comparison = Comparison.of(command, policies, baseline_names(), outcome)
    files = write_report(comparison, folder)
    if args.plot:
        files += write_figure(comparison, folder)
    if args.json:
        print(_json(comparison, files))
    else:
        print(f"{screen(comparison)}\n\nwritten: {', '.join(map(str, files))}")
    return 1 if outcome.failures else 0


def _refuse_live_options(args: argparse.Namespace) -> None:
    for name in LIVE:
        if getattr(args, name) is not None:
            raise InputError("needs --engine sglang", field=option(name))


def _sources(args: argparse.Namespace, profile: Profile) -> list[Source]:
    """Return the traces; all that can be wrong with them is found here, before anything runs."""
    from compare.cell import Points, TraceFile, sources_of, trace_of  # noqa: PLC0415  as above
    from topas.sim import refuse_unservable  # noqa: PLC0415  as above
    from traces.workloads import FIXED, WORKLOADS, WorkloadOptions  # noqa: PLC0415  as above

    if len({what if what in WORKLOADS else Path(what).resolve() for what in args.what}) < len(args.what):
        raise InputError("a workload or trace is named twice", field="WORKLOAD-OR-TRACE")
    options = WorkloadOptions(order=args.order, **{name: getattr(args, name) for name in LENGTHS})
    at = args.rates or args.loads or LOADS
    tasks = TASKS if args.tasks is None else args.tasks
    points = Points(at, args.rates is None, args.seeds or SEEDS, tasks, options)
    sources: list[Source] = []
    as_it_is = []
    for what in args.what:
        if what in WORKLOADS:
            found = sources_of(what, points, profile)
        elif Path(what).is_file():
            found = [TraceFile.of(what)]
        else:
            raise InputError(f"no such trace file, nor a workload: {', '.join(WORKLOADS)}", source=what)
        if what in FIXED or what not in WORKLOADS:
            as_it_is.append(what)
        refuse_unservable(trace_of(found[0]), profile)
        sources += found
    useless = [name for name in ("rates", "loads", "seeds", "tasks") if getattr(args, name) is not None]
    useless += options.given()
    if as_it_is and useless and not args.quiet:
        say(f"{', '.join(map(option, useless))}: of no effect on {', '.join(as_it_is)}, used as it is")
    return sources


def _command(args: argparse.Namespace, policies: tuple[str, ...], *, drawn: bool) -> str:
    """Return the command line that makes the comparison again, with the defaults that it depends on."""
    given = {**vars(args), "policies": policies}
    if drawn:
        given |= {} if args.rates else {"loads": args.loads or LOADS}
        given |= {"seeds": args.seeds or SEEDS, "tasks": TASKS if args.tasks is None else args.tasks}
    useless = () if drawn else ("rates", "loads", "seeds", "tasks", "order", *LENGTHS)
    shown = {name: value for name, value in given.items() if name not in useless}
    return command_line(["compare", *args.what], shown, args.folder)


def _json(comparison: Comparison, files: Sequence[Path]) -> str:
    from compare.report import summary_table  # noqa: PLC0415  as above

    outcome = comparison.outcome
    return json.dumps(
        {
            "version": version("topas"),
            "command": comparison.command,
            "policies": comparison.policies,
            "baselines": comparison.baselines,
            "cells": len(outcome.results) + len(outcome.failures),
            "resumed": outcome.resumed,
            "failed": [{"cell": str(failure.cell), "reason": failure.reason} for failure in outcome.failures],
            "files": [str(path) for path in files],
            "summary": summary_table(comparison.summaries).to_dicts(),
        }
    )


def _say_what_was_kept(outcome: Outcome, folder: Path) -> None:
    if outcome.resumed:
        cells = len(outcome.results) + len(outcome.failures)
        kept = folder / "cells"
        say(f"{outcome.resumed} of {cells} cells were done before; to run them again, remove {kept}")
    if outcome.rejected:
        say(f"{outcome.rejected} kept cells could not be used and were run again")


def _rates(text: str) -> tuple[float, ...]:
    values = list_of(text, float)
    if not all(0 < value < math.inf for value in values):
        raise argparse.ArgumentTypeError(f"expected positive numbers, found {text!r}")
    return values


def _seeds(text: str) -> tuple[int, ...]:
    values = list_of(text, int)
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"expected no negative number, found {text!r}")
    return values
