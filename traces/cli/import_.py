"""``topas import``: turns recorded sessions of a public format into a trace."""

from __future__ import annotations

import argparse
import json

from topas.files import refuse_overwrite
from topas.profile import Profile
from topas.trace.format import write_trace
from topas.trace.summary import in_words, summary
from traces.cli.arrivals import add_arrival_options, chosen_rate
from traces.importers import IMPORTERS, capped, replayed
from traces.load import check_load, one_prefix_rate_per_s

DEFAULT_RATE_PER_S = 0.01

EPILOG = """\
kinds:
  kv-cache-tester   coding-agent sessions, one JSON file each. A session is a task: its main agent and its
                    sub-agents are stages, think times are tool waits

example:
  topas import kv-cache-tester trace_*.json --tasks 40 --rate 0.02 -o sessions.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Turn recorded sessions of a public format into one trace. Tasks go round the sessions in"
        " an order shuffled by the seed and arrive as a Poisson process."
    )
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("kind", metavar="KIND", choices=tuple(IMPORTERS), help=", ".join(IMPORTERS))
    parser.add_argument("files", metavar="FILE", nargs="+", help="the recorded sessions")
    add_arrival_options(
        parser,
        rate=f"default {DEFAULT_RATE_PER_S}",
        tasks="number of tasks (default: as many as files)",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help="output that the client allowed, which is not recorded (default: the least power of two that"
        " holds the output, at least 512)",
    )
    parser.add_argument(
        "--max-wait",
        type=float,
        metavar="S",
        help="cut tool waits to S seconds: recorded ones may be a person's (default: as recorded)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the trace."""
    refuse_overwrite(args.output, args.files)
    recording = IMPORTERS[args.kind](args.files, args.max_new_tokens)
    if args.max_wait is not None:
        recording = capped(recording, args.max_wait)
    tasks = len(args.files) if args.tasks is None else args.tasks

    def at_load(load: float, profile: Profile) -> float:
        unit = replayed(recording, rate_per_s=1.0, tasks=tasks, seed=args.seed)
        return check_load(load) * one_prefix_rate_per_s(unit, profile)

    rate = chosen_rate(args, DEFAULT_RATE_PER_S, at_load)
    trace = replayed(recording, rate_per_s=rate, tasks=tasks, seed=args.seed)
    write_trace(trace, args.output)
    counts = {"file": args.output, "rate_per_s": rate, **summary(trace), "notes": recording.notes}
    if args.json:
        print(json.dumps(counts))
    else:
        print(f"{args.output}: {in_words(counts)}", *recording.notes, sep="\n")
    return 0
