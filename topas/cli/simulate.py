"""``topas simulate``: one trace, one policy, one engine profile."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from typing import Any

from topas.cli.options import add_engine_options, add_policy_option, engine_of, params_of
from topas.decision import Decision
from topas.event import Event
from topas.files import refuse_overwrite, whole_file
from topas.formats import log_line
from topas.policies import get_policy
from topas.sim import simulate
from topas.trace.format import read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = "Play a trace under one policy in the engine simulator and print its metrics."
    parser.epilog = "example: topas simulate chain.jsonl --policy topas --profile study --json"
    parser.add_argument("trace", metavar="F", help="trace file (topas-trace/1)")
    add_policy_option(parser)
    add_engine_options(parser)
    parser.add_argument(
        "--events", metavar="E.jsonl", help="record every decision with the event it was made on"
    )
    parser.add_argument("--check", action="store_true", help="verify every invariant after every step (slow)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: argparse.Namespace) -> int:
    """Run it."""
    policy = get_policy(args.policy)
    profile, params = engine_of(args), params_of(args)
    if args.events:
        refuse_overwrite(args.events, [args.trace])
    trace = read_trace(args.trace)
    with ExitStack() as stack:
        record = None
        if args.events:
            stream: Any = stack.enter_context(whole_file(args.events))

            def record(event: Event, decision: Decision) -> None:
                stream.write(log_line(event, decision) + "\n")

        shown = _counter if sys.stderr.isatty() and not args.json else None
        result = simulate(
            trace, policy, profile, params=params, record=record, check=args.check, progress=shown
        )
    if args.json:
        print(json.dumps(dict(result.metrics)))
        return 0
    print(f"{trace.name}: {len(trace.tasks)} tasks under {policy.name} on {profile.name}")
    for name, value in result.metrics.items():
        print(f"  {name:<18} {value:>12.3f}" if isinstance(value, float) else f"  {name:<18} {value:>12}")
    return 0


def _counter(done: int, tasks: int) -> None:
    """Show how many tasks are finished, on one line of the terminal."""
    print(f"\r{done}/{tasks} tasks", end="\n" if done == tasks else "", file=sys.stderr, flush=True)
