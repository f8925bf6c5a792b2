"""``topas gap``: how far decisions and schedules are from the optimum."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from compare.cli.pooled import (
    add_pool_options,
    command_line,
    guarded,
    jobs_of,
    known_policies,
    names,
    say,
)
from compare.gap import PAPER, Gaps, Group, Settings, measure, usual_policies
from compare.gap_report import as_json, summary_text, write_gap_report
from compare.pool import Interrupted
from compare.source import Source, trace_file, trace_of
from oracle.extra import solver_module
from topas.cli.check import format_of
from topas.cli.options import add_engine_options, engine_of, params_of
from topas.errors import InputError
from topas.sim import refuse_unservable

SHOWN_FAILURES = 10
"""So many failures are told on stderr; the report names all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Solve events exactly and report how far the decisions are from the optimum. "
        "A trace is played, its events are judged, and the policies' JCT stand beside lower bounds."
    )
    parser.epilog = (
        "Finished items are kept in DIR: an interrupted command, given again, goes on. "
        "example: topas gap events.jsonl trace.jsonl --improve 60 -o out/gap"
    )
    parser.add_argument("what", nargs="+", metavar="F", help="event log, event file or trace file")
    parser.add_argument(
        "-o",
        dest="folder",
        default="out/gap",
        metavar="DIR",
        help="folder for the results (default: out/gap)",
    )
    events = parser.add_argument_group("events")
    events.add_argument(
        "--policy",
        metavar="P",
        help="judge this policy's decisions (default: those recorded in a log, else those of topas-paper)",
    )
    events.add_argument(
        "--time-limit", type=_seconds, default=10.0, metavar="S", help="seconds an event (default: 10)"
    )
    events.add_argument(
        "--max-events", type=_count, default=0, metavar="N", help="judge N evenly spaced events a file"
    )
    events.add_argument(
        "--worst", type=_count, default=10, metavar="N", help="keep the N events of the largest gaps [10]"
    )
    events.add_argument(
        "--seed", type=_count, default=0, metavar="S", help="seed of sample and --improve [0]"
    )
    traces = parser.add_argument_group("traces")
    traces.add_argument(
        "--policies",
        type=names,
        metavar="a,b",
        help="policies to play (default: topas-exact, topas-paper, topas, the baselines and downstream-gate)",
    )
    traces.add_argument(
        "--bound-time",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="seconds for each kind of bound (default: 60)",
    )
    traces.add_argument(
        "--improve", type=_seconds, metavar="S", help="look for a better schedule for S seconds"
    )
    skipped = traces.add_mutually_exclusive_group()
    skipped.add_argument("--no-trace", action="store_true", help="only the events of traces")
    skipped.add_argument("--no-events", action="store_true", help="only whole traces")
    add_engine_options(parser)
    add_pool_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if an item failed."""
    return guarded(_run, args)


def _run(args: argparse.Namespace) -> int:
    solver_module("ortools")
    folder = Path(args.folder)
    settings = _settings(args)
    groups, traces = _plan(args, settings)
    progress = False if args.quiet else args.progress or None
    try:
        gaps = measure(groups, traces, settings, folder, jobs=jobs_of(args.jobs), progress=progress)
    except Interrupted as stop:
        kept = f"{stop.done} of {stop.total} items are kept in {folder}"
        say(f"interrupted: {kept}; the same command goes on from there")
        return 130
    if not args.quiet:
        _say_what_was_kept(gaps, folder)
    _say_failures(gaps)
    command = command_line(["gap", *args.what], vars(args), args.folder)
    files = write_gap_report(gaps, command, folder, args.worst)
    if args.json:
        done = {"resumed": gaps.resumed, "files": [str(path) for path in files]}
        print(json.dumps({**as_json(gaps, command, args.worst), **done}))
    else:
        print(f"{summary_text(gaps, args.worst)}\n\nwritten: {', '.join(map(str, files))}")
    return 1 if gaps.failures else 0


def _settings(args: argparse.Namespace) -> Settings:
    policy = args.policy or PAPER
    known_policies([policy], "--policy")
    chosen = known_policies(args.policies or usual_policies())
    return Settings(
        profile=engine_of(args),
        params=params_of(args),
        policy=policy,
        policies=chosen if policy in chosen else (policy, *chosen),
        decide=args.policy,
        time_limit_s=args.time_limit,
        bound_s=args.bound_time,
        improve_s=args.improve or 0.0,
        max_events=args.max_events,
        seed=args.seed,
    )


def _plan(args: argparse.Namespace, settings: Settings) -> tuple[list[Group], list[Source]]:
    """Return the groups of events and the traces; all that can be wrong with a trace is found here."""
    if len({Path(what).resolve() for what in args.what}) < len(args.what):
        raise InputError("a file is named twice", field="F")
    groups: list[Group] = []
    traces: list[Source] = []
    for what in args.what:
        if not _is_trace(what):
            groups.append(Group(what, files=(what,)))
            continue
        source = trace_file(what)
        refuse_unservable(trace_of(source), settings.profile)
        if not args.no_events:
            groups.append(Group(what, sources=(source,)))
        if not args.no_trace:
            traces.append(source)
    return groups, traces


def _is_trace(path: str) -> bool:
    try:
        return format_of(path).startswith("topas-trace/")
    except InputError:
        return False  # reading it as events says what is wrong


def _say_what_was_kept(gaps: Gaps, folder: Path) -> None:
    if gaps.resumed:
        say(f"{gaps.resumed} items were done before; to do them again, remove {folder}")
    if gaps.rejected:
        say(f"{gaps.rejected} kept items could not be used and were done again")


def _say_failures(gaps: Gaps) -> None:
    for item, reason in list(gaps.failures.items())[:SHOWN_FAILURES]:
        say(f"failed: {item}: {reason}")
    if len(gaps.failures) > SHOWN_FAILURES:
        say(f"{len(gaps.failures) - SHOWN_FAILURES} more failed: see report.md")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, found {text!r}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected no negative number, found {text!r}")
    return value
