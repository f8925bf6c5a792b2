"""``topas compare --engine sglang``: policies side by side on real servers on this machine's CPU."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compare.cli.points import sources_named
from compare.cli.pooled import command_line, known_policies, say
from compare.live.live_report import LiveComparison, screen, write_live
from compare.live.server import cpu_server_paths
from compare.live.side_by_side import NATIVE, Servers, play_all, runs_of
from compare.live.sizes import LOADS, PROFILE, REPEATS, SEEDS, size_of
from compare.page import records
from compare.pool import Interrupted
from compare.source import Points
from topas.cli.options import engine_of, option, params_of
from topas.errors import InputError
from topas.online.sglang.plugin import POLICIES as PLUGGED
from topas.policies import baseline_names
from topas.profile import Profile
from traces.cli.lengths import lengths_of

POLICIES = ("fcfs", "lpm", "spf", "parrot-fcfs", "autellix-las", "topas-paper", "topas")
USELESS = ("jobs", "plot", "admission", "redo", "host_cache")
"""Options that have no meaning for a real server."""


def run_live(args: argparse.Namespace) -> int:
    """Run it; 1 if a run failed.

    Raises
    ------
    InputError
        if the serving environment is missing, or an option makes no sense.
    """
    _check(args)
    policies = known_policies(args.policies or POLICIES)
    for policy in policies:
        if policy not in NATIVE and policy not in PLUGGED:
            raise InputError(f"{policy} runs in the simulator only", field="--policies")
    repeats = REPEATS if args.repeats is None else args.repeats
    profile = _profile(args)
    sources = sources_named(args.what, args, profile, partial(_points, args), every=True)
    settings = Servers(profile.kv_budget_tokens, profile.max_running, profile, params_of(args))
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
    if not played.results:
        return 1
    command = _command(args, policies, repeats)
    comparison = LiveComparison.of(command, hardware(), baseline_names(), runs, played)
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


def _points(args: argparse.Namespace, workload: str) -> Points:
    """Return operating points and draws of a workload, at the size that a small model on a CPU serves."""
    size = size_of(workload, lengths_of(args), args.tasks)
    at = args.rates or args.loads or LOADS
    return Points(at, args.rates is None, args.seeds or SEEDS, size.tasks, size.options)


def hardware() -> str:
    """Say in words what the servers run on."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
    models = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} CPUs ({models[0] if models else platform.machine()})"


def _command(args: argparse.Namespace, policies: tuple[str, ...], repeats: int) -> str:

    given: dict[str, Any] = {**vars(args), "policies": policies, "repeats": repeats}
    given["seeds"] = args.seeds or SEEDS
    if not args.rates:
        given["loads"] = args.loads or LOADS
    return command_line(["compare", *args.what], given, args.folder)


def _json(comparison: LiveComparison, files: Sequence[Path]) -> str:

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
            "summary": records(comparison.summary),
        }
    )
