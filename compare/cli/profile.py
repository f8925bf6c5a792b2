"""``topas profile fit``: an engine profile from a live server."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topas.cli.options import option
from topas.errors import InputError
from topas.files import whole_file

if TYPE_CHECKING:
    from compare.live.fit import Fit, Line
    from topas.profile import Profile

REPEATS = 5
CPU_KV_TOKENS = 4000
CPU_MAX_RUNNING = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = "Make engine profiles (topas-profile/1)."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    fit = actions.add_parser(
        "fit",
        help="measure a live server",
        description="Measure prefill and decode of a live SGLang or OpenAI-compatible server and fit the "
        "constants of an engine profile. Nothing else may use the server or its machine meanwhile.",
        epilog="What SGLang does not tell of itself, other servers less, must be given. "
        "examples: topas profile fit --url http://127.0.0.1:30000 -o my-gpu.json; "
        "topas profile fit --cpu -o my-cpu.json",
    )
    what = fit.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", metavar="U", help="the server, http://HOST:PORT")
    what.add_argument(
        "--cpu",
        action="store_true",
        help="start the SGLang server that `topas compare --engine sglang` uses, measure and stop it",
    )
    fit.add_argument("-o", dest="output", required=True, metavar="X.json", help="the profile to write")
    fit.add_argument("--name", metavar="N", help="name of the profile [that of the file]")
    fit.add_argument(
        "--repeats", type=int, default=REPEATS, metavar="N", help=f"repeats of each experiment [{REPEATS}]"
    )
    fit.add_argument("--seed", type=int, default=0, metavar="S", help="seed of prompts and order [0]")
    fit.add_argument("--api", choices=["auto", "openai", "sglang"], default="auto", help="API [auto]")
    told = fit.add_argument_group("what the server does not tell of itself, or tells wrongly")
    told.add_argument(
        "--kv-tokens", type=int, metavar="N", help="KV tokens that fit beside the weights; --cpu: [4000]"
    )
    told.add_argument("--max-running", type=int, metavar="N", help="largest batch; --cpu: [8]")
    told.add_argument("--kv-bytes", type=int, metavar="N", help="KV bytes a token")
    fit.add_argument("--quiet", action="store_true", help="no bar on stderr")
    fit.add_argument(
        "--json", action="store_true", help="print one JSON object: profile, quality, raw points"
    )


def run(args: argparse.Namespace) -> int:
    """Run it.

    Raises
    ------
    InputError
        as :func:`compare.live.fit.fit` does.
    """
    from compare.live.fit import ServerFacts, fit  # noqa: PLC0415  the extras

    for name in ("kv_tokens", "max_running", "kv_bytes"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"expected a positive number, found {value}", field=option(name))
    with whole_file(args.output) as stream, _server(args) as url:
        found = fit(
            url,
            name=args.name or Path(args.output).stem,
            given=ServerFacts(args.kv_tokens, args.max_running, kv_bytes_per_token=args.kv_bytes),
            repeats=args.repeats,
            seed=args.seed,
            api=args.api,
            progress=False if args.quiet or args.json else None,
        )
        stream.write(_text(found.profile))
    print(json.dumps(_object(found)) if args.json else _screen(found, args.output))
    return 0


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[str]:
    """Give the address of the server to measure, started here if that was asked for."""
    if args.url:
        yield args.url
        return
    from compare.live.server import ServerError, cpu_server_paths, start_server  # noqa: PLC0415  the extra
    from compare.live.side_by_side import SERVER_ARGS  # noqa: PLC0415  the same

    paths = cpu_server_paths()
    with tempfile.TemporaryDirectory(prefix="topas-") as folder:
        server = start_server(
            python=paths.python,
            model=paths.model,
            policy="fcfs",
            log=Path(folder) / "log",
            kv_tokens=args.kv_tokens or CPU_KV_TOKENS,
            max_running=args.max_running or CPU_MAX_RUNNING,
            args=SERVER_ARGS,
        )
        try:
            with server:
                yield server.url
        except ServerError as error:
            raise InputError(str(error)) from None


def _text(profile: Profile) -> str:
    return json.dumps(profile.model_dump(mode="json"), indent=2) + "\n"


def _object(found: Fit) -> dict[str, Any]:
    return {
        "profile": found.profile.model_dump(mode="json"),
        "prefill": asdict(found.prefill),
        "decode": asdict(found.decode),
        "points": asdict(found.points),
    }


def _screen(found: Fit, output: str) -> str:
    shown = found.profile.model_dump(mode="json", exclude={"format", "name", "note"})
    lines = [f"{found.profile.name}: measured, written to {output}"]
    lines += [f"  {name:<28} {value}" for name, value in shown.items()]
    lines += [f"  {name:<28} {_quality(line)}" for name, line in _lines(found)]
    return "\n".join(lines)


def _lines(found: Fit) -> list[tuple[str, Line]]:
    return [("fit of prefill batches", found.prefill), ("fit of decode steps", found.decode)]


def _quality(line: Line) -> str:
    errors = f"error median {100 * line.median_error:.1f} %, worst {100 * line.worst_error:.1f} %"
    return f"R2 {line.r2:.4f}, {errors}, {line.points} points"
