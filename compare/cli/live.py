"""``topas compare --engine sglang``: policies side by side on real servers on this machine's CPU."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compare.cli.pooled import command_line, known_policies, say
from topas.cli.options import engine_of, option, params_of
from topas.errors import InputError
from topas.policies import baseline_names
from traces.cli.lengths import lengths_of

if TYPE_CHECKING:
    from compare.live.live_report import LiveComparison
    from compare.live.sizes import Size
    from compare.source import Source
    from topas.profile import Profile

PROFILE = "cpu-tiny-qwen2"
"""The profile of the CPU servers, made by ``topas profile fit --cpu``."""

POLICIES = ("fcfs", "lpm", "spf", "parrot-fcfs", "autellix-las", "topas-paper", "topas")
USELESS = ("jobs", "plot", "admission", "redo", "host_cache")
"""Options that have no meaning for a real server."""

EXTRA = frozenset({"aiohttp", "prometheus_client", "yaml"})
"""What the extra ``topas[serving]`` installs for this."""


def add_live_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of real servers."""
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


def run_live(args: argparse.Namespace) -> int:
    """Run it; 1 if a run failed.

    Raises
    ------
    InputError
        if an extra or the serving environment is missing, or an option makes no sense.
    """
    try:
        return _run(args)
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library not in EXTRA:
            raise
        raise InputError(f"{library} is not installed: pip install 'topas[serving]'") from None


def _run(args: argparse.Namespace) -> int:
    from compare.live.live_report import compared, screen, write_live  # noqa: PLC0415  the extra
    from compare.live.server import cpu_server_paths  # noqa: PLC0415  the same
    from compare.live.side_by_side import NATIVE, Settings, play_all, runs_of  # noqa: PLC0415  the same
    from compare.live.sizes import REPEATS  # noqa: PLC0415  the same
    from compare.pool import Interrupted  # noqa: PLC0415  the same
    from topas.online.sglang.plugin import POLICIES as PLUGGED  # noqa: PLC0415  the same

    _check(args)
    policies = known_policies(args.policies or POLICIES)
    for policy in policies:
        if policy not in NATIVE and policy not in PLUGGED:
            raise InputError(f"{policy} runs in the simulator only", field="--policies")
    repeats = REPEATS if args.repeats is None else args.repeats
    profile = _profile(args)
    sources = _sources(args, profile)
    settings = Settings(profile.kv_budget_tokens, profile.max_running, profile, params_of(args))
    runs = runs_of(sources, policies, repeats, settings)
    folder = Path(args.folder)
    progress = False if args.quiet else args.progress or None
    try:
        played = play_all(runs, folder, cpu_server_paths(), port=args.port, progress=progress)
    except Interrupted as stop:
        say(
            f"interrupted: {stop.done} of {stop.total} runs are kept in {folder / 'live'}; "
            "the same command goes on from there"
        )
        return 130
    if played.resumed and not args.quiet:
        again = f"to play them again, remove {folder / 'live'}"
        say(f"{played.resumed} of {len(runs)} runs were played before; {again}")
    for run, reason in played.failures.items():
        say(f"failed: {run}: {reason}")
    if not played.rows:
        return 1
    command = _command(args, policies, repeats)
    comparison = compared(command, hardware(), policies, baseline_names(), runs, played)
    files = write_live(comparison, folder)
    if args.json:
        print(_json(comparison, files))
    else:
        print(f"{screen(comparison)}\n\nwritten: {', '.join(map(str, files))}")
    return 1 if played.failures else 0


def _check(args: argparse.Namespace) -> None:
    for name in USELESS:
        if getattr(args, name):
            raise InputError("has no meaning with --engine sglang", field=option(name))
    for name in ("repeats", "kv_tokens", "max_running"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"expected a positive number, found {value}", field=option(name))


def _profile(args: argparse.Namespace) -> Profile:
    """Return the fitted profile, with the memory and batch that the servers shall have."""
    given = {"kv_budget_tokens": args.kv_tokens, "max_running": args.max_running}
    return engine_of(args, PROFILE).model_copy(update={name: v for name, v in given.items() if v is not None})


def _sources(args: argparse.Namespace, profile: Profile) -> list[Source]:
    """Return the traces; all that can be wrong with them is found here, before a server starts."""
    from compare.live.sizes import LOADS, SEEDS  # noqa: PLC0415  the same
    from compare.source import Points, sources_of, trace_file, trace_of  # noqa: PLC0415  the extra
    from topas.sim import refuse_unservable  # noqa: PLC0415  the same
    from traces.workloads import WORKLOADS  # noqa: PLC0415  the same

    if len({what if what in WORKLOADS else Path(what).resolve() for what in args.what}) < len(args.what):
        raise InputError("a workload or trace is named twice", field="WORKLOAD-OR-TRACE")
    found: list[Source] = []
    for what in args.what:
        if what in WORKLOADS:
            size = _size(args, what)
            at = args.rates or args.loads or LOADS
            points = Points(at, args.rates is None, args.seeds or SEEDS, size.tasks, size.options)
            sources = sources_of(what, points, profile)
        elif Path(what).is_file():
            sources = [trace_file(what)]
        else:
            raise InputError(f"no such trace file, nor a workload: {', '.join(WORKLOADS)}", source=what)
        for source in sources:
            refuse_unservable(trace_of(source), profile)
        found += sources
    return found


def _size(args: argparse.Namespace, workload: str) -> Size:
    from compare.live.sizes import size_of  # noqa: PLC0415  the extra

    return size_of(workload, lengths_of(args), args.tasks)


def hardware() -> str:
    """Say in words what the servers run on."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} CPUs ({models[0] if models else platform.machine()})"


def _command(args: argparse.Namespace, policies: tuple[str, ...], repeats: int) -> str:
    from compare.live.sizes import LOADS, SEEDS  # noqa: PLC0415  the extra

    given: dict[str, Any] = {**vars(args), "policies": policies, "repeats": repeats}
    given["seeds"] = args.seeds or SEEDS
    if not args.rates:
        given["loads"] = args.loads or LOADS
    return command_line(["compare", *args.what], given, args.folder)


def _json(comparison: LiveComparison, files: Sequence[Path]) -> str:
    from compare.live.live_report import summary_table  # noqa: PLC0415  the extra
    from compare.page import records  # noqa: PLC0415  the same

    played = comparison.played
    return json.dumps(
        {
            "version": version("topas"),
            "command": comparison.command,
            "hardware": comparison.hardware,
            "policies": comparison.policies,
            "baselines": comparison.baselines,
            "runs": len(comparison.runs),
            "resumed": played.resumed,
            "failed": [{"run": str(run), "reason": reason} for run, reason in played.failures.items()],
            "files": [str(path) for path in files],
            "profile": comparison.settings.profile.model_dump(mode="json"),
            "params": asdict(comparison.settings.params),
            "summary": records(summary_table(comparison.summaries)),
        }
    )
