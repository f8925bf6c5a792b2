"""``topas replay``: a trace against a live server."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import IO, TYPE_CHECKING, Any

from compare.cli.pooled import say
from topas.errors import InputError
from topas.files import refuse_overwrite, whole_file
from topas.trace.format import read_trace

if TYPE_CHECKING:
    from compare.live.outcome import ReplayResult
    from topas.trace import Trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Play a trace against a live LLM server: SGLang, or one that serves OpenAI-compatible "
        "completions of token ids. Times are measured here, from a task's arrival to its last stage's end."
    )
    parser.epilog = (
        "Exit status 1: a task failed. Replays on one server need different seeds, or what one left "
        "in the server's cache serves the next. "
        "example: topas replay chain.jsonl --url http://127.0.0.1:30000 --speed 2 --json"
    )
    parser.add_argument("trace", metavar="F", help="trace file (topas-trace/1)")
    parser.add_argument("--url", required=True, metavar="U", help="the server, http://HOST:PORT")
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="arrivals X times as fast [1]")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the prompts [0]")
    parser.add_argument(
        "--run",
        dest="run_id",
        metavar="ID",
        help="keeps task ids apart from those of other replays on the same server [rS, S being the seed]",
    )
    parser.add_argument(
        "--facts",
        choices=["full", "names", "none"],
        default="full",
        help="what the scheduler is told of workflows: all, all but DAG and prefix lengths, nothing [full]",
    )
    parser.add_argument(
        "--api", choices=["auto", "openai", "sglang"], default="auto", help="API to speak [auto]"
    )
    parser.add_argument(
        "--vocab", type=_range, metavar="LO:HI", help="token ids of prompts, both included [10:1000]"
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="limit of one request, s [3600]")
    parser.add_argument("--limit", type=int, metavar="N", help="play the first N tasks only")
    parser.add_argument("-o", dest="tasks", metavar="tasks.csv", help="write a row a task")
    parser.add_argument("--requests", metavar="requests.csv", help="write a row a request")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: argparse.Namespace) -> int:
    """Run it.

    Raises
    ------
    InputError
        as the reader of traces and the replay do.
    """
    from compare.live.outcome import TASK_COLUMNS, RequestResult, task_rows  # noqa: PLC0415  the extra
    from compare.live.player import TIMEOUT_S, replay  # noqa: PLC0415  the same

    trace = _trace(args)
    with ExitStack() as stack:
        tasks, requests = (stack.enter_context(whole_file(path)) if path else None for path in _outputs(args))
        result = replay(
            trace,
            args.url,
            seed=args.seed,
            run=args.run_id,
            speed=args.speed,
            facts=args.facts,
            api=args.api,
            vocab=args.vocab,
            timeout_s=TIMEOUT_S if args.timeout is None else args.timeout,
            progress=False if args.json else None,
            tell=say,
        )
        if tasks:
            _write(tasks, TASK_COLUMNS, task_rows(trace, result))
        if requests:
            columns = [field.name for field in dataclasses.fields(RequestResult)]
            _write(requests, columns, (asdict(row) for row in result.requests))
    if args.json:
        print(json.dumps(_object(result)))
    else:
        _print(result)
    return 1 if result.failures else 0


def _range(text: str) -> Any:  # noqa: ANN401  the extra is imported when it is used
    from compare.live.prompts import Vocab  # noqa: PLC0415

    low, _, high = text.partition(":")
    if not (low.isdecimal() and high.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected LO:HI, found {text!r}")
    try:
        return Vocab(int(low), int(high))
    except InputError as error:
        raise argparse.ArgumentTypeError(error.expected) from None


def _trace(args: argparse.Namespace) -> Trace:
    """Return the tasks to play."""
    if args.limit is not None and args.limit < 1:
        raise InputError(f"expected at least 1 task, found {args.limit}", field="--limit")
    trace = read_trace(args.trace)
    return replace(trace, tasks=trace.tasks[: args.limit])


def _outputs(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Return the files to write, none of them an input or named twice."""
    inputs = [args.trace]
    for path in (args.tasks, args.requests):
        if path:
            refuse_overwrite(path, inputs)
    if args.tasks and args.tasks == args.requests:
        raise InputError("is the file of the tasks: choose another", source=args.requests, field="--requests")
    return args.tasks, args.requests


def _write(stream: IO[str], columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _object(result: ReplayResult) -> dict[str, object]:
    failures = [asdict(failure) for failure in result.failures]
    return dict(result.metrics) | {"policy": result.policy, "api": result.api, "failures": failures}


def _print(result: ReplayResult) -> None:
    count = len(result.tasks)
    print(f"{result.trace}: {count} tasks at {result.url}, policy {result.policy or 'unknown'}")
    for name, value in result.metrics.items():
        shown = "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
        print(f"  {name:<18} {shown:>12}")
    for failure in result.failures:
        say(f"{failure.task}/{failure.stage}/{failure.round} failed: {failure.reason}")
