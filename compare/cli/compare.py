"""``topas compare``: policies side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from compare.cli.points import add_point_options, points_given, sources_named
from compare.cli.pooled import (
    add_pool_options,
    command_line,
    guarded,
    jobs_of,
    known_policies,
    names,
    say,
)
from compare.comparison import SUMMARY, Comparison, screen, write_report
from compare.live.sizes import PROFILE
from compare.page import records
from compare.plot import write_figure
from compare.pool import Interrupted
from compare.study import Outcome, run_study, runs_of
from topas.cli.options import add_engine_options, engine_of, option, params_of
from topas.errors import InputError
from topas.policies import baseline_names, policy_names

LIVE = ("repeats", "kv_tokens", "max_running", "port")
"""Options of real servers."""


SERVING = frozenset({"aiohttp", "prometheus_client", "yaml"})
"""What the extra ``topas[serving]`` brings for them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Run every policy on the same traces and compare it with the best baseline, as the paper"
        " does: per workload and metric, averaged over the operating points."
    )
    parser.epilog = (
        "Finished cells are kept in DIR/cells: an interrupted command, given again, goes on. "
        "example: topas compare chain-3 dag-4 --loads 0.25,0.5 --seeds 1,2,3 -o out/synthetic"
    )
    parser.add_argument(
        "what", nargs="+", metavar="WORKLOAD-OR-TRACE", help="a workload's name or a trace file"
    )
    parser.add_argument("-o", dest="folder", required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--policies", type=names, metavar="a,b", help="policies to run (default: all)")
    add_point_options(parser)
    add_engine_options(parser)
    parser.add_argument(
        "--engine",
        choices=["sim", "sglang"],
        default="sim",
        help="what runs the traces: the simulator (sim, the default), or real SGLang servers on this "
        f"machine's CPU (sglang; default profile {PROFILE}, shorter default lengths)",
    )
    _add_live_options(parser)
    parser.add_argument("--plot", action="store_true", help="also draw figure.png and figure.svg")
    add_pool_options(parser)


def _add_live_options(parser: argparse.ArgumentParser) -> None:
    live = parser.add_argument_group(
        "--engine sglang", "a server a policy on this machine's CPU (make serving), interleaved repeats"
    )
    live.add_argument("--repeats", type=int, metavar="N", help="times each trace is played (default: 5)")
    live.add_argument("--kv-tokens", type=int, metavar="N", help="KV memory (default: the profile's)")
    live.add_argument("--max-running", type=int, metavar="N", help="largest batch (default: the profile's)")
    live.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="port of the first server, the others follow (default: free ones)",
    )


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a cell failed."""
    return guarded(_run_live if args.engine == "sglang" else _run, args)


def _run_live(args: argparse.Namespace) -> int:
    try:
        from compare.cli.live import run_live  # noqa: PLC0415  a simulation does without the extra
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library not in SERVING:
            raise
        raise InputError(f"{library} is not installed: pip install 'topas[serving]'") from None
    return run_live(args)


def _run(args: argparse.Namespace) -> int:
    _refuse_live_options(args)
    policies, profile = known_policies(args.policies or policy_names()), engine_of(args)
    folder = Path(args.folder)
    sources = sources_named(args.what, args, profile)
    drawn = any(source.rate_per_s is not None for source in sources)
    if args.plot and not drawn:
        raise InputError("needs a workload with arrival rates: there is nothing to draw", field="--plot")
    runs = runs_of(sources, policies, profile, params_of(args))
    progress = False if args.quiet else args.progress or None
    try:
        outcome = run_study(runs, folder, jobs=jobs_of(args.jobs), progress=progress)
    except Interrupted as stop:
        kept = f"{stop.done} of {stop.total} cells are kept in {folder / 'cells'}"
        say(f"interrupted: {kept}; the same command goes on from there")
        return 130
    if not args.quiet:
        _say_what_was_kept(outcome, folder)
    for failed, reason in outcome.failures.items():
        say(f"failed: {failed}: {reason}")
    if outcome.runs.empty:
        return 1
    command = _command(args, policies, drawn=drawn)
    comparison = Comparison.of(command, runs, baseline_names(), outcome)
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


def _command(args: argparse.Namespace, policies: tuple[str, ...], *, drawn: bool) -> str:
    """Return the command line that makes the comparison again, with the defaults that it depends on."""
    shown = {**vars(args), "policies": policies, **points_given(args, drawn=drawn)}
    return command_line(["compare", *args.what], shown, args.folder)


def _json(comparison: Comparison, files: Sequence[Path]) -> str:
    outcome = comparison.outcome
    return json.dumps(
        {
            "version": version("topas"),
            "command": comparison.command,
            "policies": comparison.policies,
            "baselines": comparison.baselines,
            "cells": len(comparison.runs),
            "resumed": outcome.resumed,
            "failed": [{"cell": str(run), "reason": reason} for run, reason in outcome.failures.items()],
            "files": [str(path) for path in files],
            "summary": records(comparison.summary[list(SUMMARY)]),
        }
    )


def _say_what_was_kept(outcome: Outcome, folder: Path) -> None:
    if outcome.resumed:
        cells = len(outcome.runs) + len(outcome.failures)
        kept = folder / "cells"
        say(f"{outcome.resumed} of {cells} cells were done before; to run them again, remove {kept}")
    if outcome.rejected:
        say(f"{outcome.rejected} kept cells could not be used and were run again")
