"""``topas oracle trace``: between which limits the mean JCT of the best schedule lies."""

from __future__ import annotations

import argparse
import json
import math
from contextlib import ExitStack
from typing import Any

from oracle.improve import BestKnown, improve
from oracle.trace import TraceBounds, lower_bounds
from topas.cli.options import add_engine_options, engine_of, option, params_of
from topas.errors import InputError
from topas.event import Params
from topas.profile import Profile
from topas.trace import Trace
from topas.trace.format import read_trace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Prove lower bounds on the mean JCT of any schedule of a trace, clairvoyant, preemptive"
        " ones too, and name the best. On engines where a request takes a constant time (profile `unit`)"
        " the optimum is searched for too. With --improve a clairvoyant local search looks for a good"
        " schedule, which is played in the simulator: the optimum lies between the two."
    )
    parser.epilog = "example: topas oracle trace chain.jsonl --profile study --improve 60 --json"
    parser.add_argument("trace", metavar="F", help="trace file (topas-trace/1)")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds for each kind of bound (default: 60)",
    )
    parser.add_argument(
        "--improve", type=float, default=0.0, metavar="S", help="look for a good schedule for S seconds"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the search [0]")
    add_engine_options(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(args: argparse.Namespace) -> int:
    """Run it."""
    for name in ("time_limit", "improve"):
        value = getattr(args, name)
        if not 0 <= value < math.inf:
            raise InputError(
                f"expected a finite number of seconds, not negative, found {value}", field=option(name)
            )
    profile, params = engine_of(args), params_of(args)
    trace = read_trace(args.trace)
    found = lower_bounds(trace, profile, time_limit_s=args.time_limit, seed=args.seed)
    known = _improved(args, trace, profile, params) if args.improve else None
    value = _json(trace, profile, found, known)
    if args.json:
        print(json.dumps(value))
    else:
        _say(value)
    return 0


def _improved(args: argparse.Namespace, trace: Trace, profile: Profile, params: Params) -> BestKnown:
    with ExitStack() as stack:
        progress = None
        if not args.quiet:
            try:
                from tqdm import tqdm  # noqa: PLC0415  only for people
            except ModuleNotFoundError:
                pass
            else:
                bar = stack.enter_context(tqdm(unit=" schedules", disable=None, desc="improving"))

                def progress(mean_jct_s: float, tried: int) -> None:
                    bar.set_postfix_str(f"mean JCT {mean_jct_s:.2f} s", refresh=False)
                    bar.update(tried - bar.n)

        return improve(trace, profile, seconds=args.improve, seed=args.seed, params=params, progress=progress)


def _json(trace: Trace, profile: Profile, found: TraceBounds, known: BestKnown | None) -> dict[str, Any]:
    best, optimum = found.best, found.optimum
    value: dict[str, Any] = {
        "trace": trace.name,
        "tasks": len(trace.tasks),
        "profile": profile.name,
        "lower_bound_s": best.mean_jct_s,
        "bound": best.name,
        "bounds": [
            {"name": b.name, "mean_jct_s": b.mean_jct_s, "status": b.status, "solve_s": b.solve_s}
            for b in found.bounds
        ],
        "refused": [{"name": name, "reason": reason} for name, reason in found.refused],
        "optimum": None,
        "best_known": None,
        "gap": None,
    }
    schedules: list[tuple[float, str]] = []
    if optimum is not None:
        value["optimum"] = {"status": optimum.status, "mean_jct_s": optimum.mean_jct_s}
        if optimum.mean_jct_s is not None:
            schedules.append((optimum.mean_jct_s, "cp-sat"))
    if known is not None:
        schedules.append((known.mean_jct_s, known.found_by))
    if schedules:
        mean_jct_s, found_by = min(schedules)
        value["best_known"] = {"mean_jct_s": mean_jct_s, "found_by": found_by}
        value["gap"] = mean_jct_s / best.mean_jct_s - 1 if best.mean_jct_s > 0 else None
    return value


def _say(value: dict[str, Any]) -> None:
    print(f"{value['trace']}: {value['tasks']} tasks on {value['profile']}, mean JCT of any schedule")
    for bound in value["bounds"]:
        mark = "  <- best" if bound["name"] == value["bound"] else ""
        print(
            f"  at least {bound['mean_jct_s']:>12.3f} s  {bound['name']:<16} {bound['status']:<20}"
            f" {bound['solve_s']:>8.2f} s{mark}"
        )
    for refused in value["refused"]:
        print(f"  not applied: {refused['name']}: {refused['reason']}")
    known, optimum = value["best_known"], value["optimum"]
    if known:
        print(f"  reached  {known['mean_jct_s']:>12.3f} s  {known['found_by']}")
    if optimum:
        print(f"  optimum of the whole trace: {optimum['status']}")
    if value["gap"] is not None:
        print(f"  the best schedule known is {100 * value['gap']:.2f} % above the best bound")
