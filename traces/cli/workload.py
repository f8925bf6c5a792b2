"""``topas workload``: writes the trace of a named workload."""

from __future__ import annotations

import argparse
import json

from topas.errors import InputError
from topas.trace.format import write_trace
from topas.trace.summary import in_words, summary
from traces.cli.arrivals import add_arrival_options, chosen_rate
from traces.cli.lengths import add_length_options, lengths_of
from traces.load import rate_for_load
from traces.workloads import DEFAULT_RATE_PER_S, FIXED, WORKLOADS, generate

DEFAULT_TASKS = 100

EPILOG = """\
workloads:
  chain-3, dag-4, dag-10-wide   one agent a stage, fixed lengths: prefix 9000, input 400, output 500
  metagpt-sop, metagpt-tl       five roles in a row; a team leader between four specialists (nine stages).
                                Lengths vary; --prefix-tokens, --input-tokens and --output-tokens scale
                                all of a kind so that the largest becomes the given one
  two-agent                     independent requests of agents A and B, --tasks for each
  figure-2                      the two tasks of the paper's Figure 2, for the profile unit

examples:
  topas workload chain-3 --rate 0.15 --tasks 200 --seed 1 -o chain.jsonl
  topas workload dag-4 --load 0.5 --profile study --output-sigma 0.5 -o dag.jsonl
  topas workload two-agent --tasks 60 --order grouped -o grouped.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Write the trace of a named workload. Arrivals are Poisson; the same seed gives the same trace."
    )
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", metavar="NAME", help=", ".join(WORKLOADS))
    add_arrival_options(
        parser,
        rate=f"needed, but for two-agent, whose default is {DEFAULT_RATE_PER_S['two-agent']:.3f}",
        tasks=f"number of tasks (default {DEFAULT_TASKS})",
    )
    add_length_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write the trace."""
    options = lengths_of(args)
    tasks = DEFAULT_TASKS if args.tasks is None else args.tasks
    rate: float | None
    if args.name in FIXED:
        for name in ("rate", "load", "tasks"):
            if getattr(args, name) is not None:
                raise InputError(f"{args.name} is one fixed trace", field=f"--{name}")
        rate = None
    else:
        rate = chosen_rate(
            args,
            DEFAULT_RATE_PER_S.get(args.name),
            lambda load, profile: rate_for_load(args.name, load, profile, tasks, args.seed, options),
        )
    trace = generate(
        args.name, rate_per_s=1.0 if rate is None else rate, tasks=tasks, seed=args.seed, options=options
    )
    write_trace(trace, args.output)
    counts = {"file": args.output, "rate_per_s": rate, **summary(trace)}
    print(json.dumps(counts) if args.json else f"{args.output}: {in_words(counts)}")
    return 0
