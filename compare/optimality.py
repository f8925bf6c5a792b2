"""The tables of docs/optimality.md: ``make optimality``.

Single events: what the paper's Algorithm 1 decides in the simulator on its five workloads at three loads,
against the exact optimum of each event. Whole traces: the study's setting at three rates, between bounds
and the best schedule known. Policies and baselines are the paper's.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from joblib import cpu_count

from compare.figures import METAGPT, SYNTHETIC
from compare.gap import EXACT, PAPER, Settings, enough_events, measure
from compare.gap_report import summary_text, write_gap_report
from compare.gap_tables import over
from compare.page import markdown_table, number, percent
from compare.pool import Interrupted
from compare.source import Points, Source, sources_of
from topas.event import Params
from topas.policies import PAPER_BASELINES
from topas.profile import load_profile

LOADS = (0.25, 0.5, 1.0)
RATES = {"chain-3": (0.05, 0.15, 1.0), "dag-4": (0.04, 0.16, 1.0), "dag-10-wide": (0.02, 0.05, 0.3)}
"""Arrival rates of the study's whole traces, tasks a second: light, full and all at once."""

TASKS = 60
EVENTS = 1000
WORST = 20


def settings_of(args: argparse.Namespace) -> Settings:
    """Return how everything is judged: Algorithm 1 on the study's engine, beside the paper's policies."""
    return Settings(
        profile=load_profile("study"),
        params=Params(),
        policy=PAPER,
        policies=(EXACT, PAPER, *PAPER_BASELINES, "downstream-gate"),
        time_limit_s=args.time_limit,
        bound_s=args.bound_time,
        improve_s=args.improve,
        max_events=args.events,
    )


def at_load(workload: str, load: float, settings: Settings, seed: int) -> Source:
    """Return the trace of a workload at a load."""
    points = Points((load,), loads=True, seeds=(seed,), tasks=TASKS)
    return sources_of(workload, points, settings.profile)[0]


def overview(traces: Iterable[Mapping[str, Any]]) -> str:
    """Return one row a trace: mean JCT of bound, best known schedule and policies, and the split."""
    rows = []
    for trace in traces:
        means = {row["policy"]: row["mean_jct_s"] for row in trace["rows"]}
        baselines = {name: means[name] for name in PAPER_BASELINES if name in means}
        best = min(baselines, key=lambda name: baselines[name], default=None)
        bound_s = trace["bounds"]["best"]["mean_jct_s"] if trace["bounds"] else None
        row = [trace["label"], "" if bound_s is None else number(bound_s)]
        row.append("" if trace["best"] is None else number(trace["best"]["mean_jct_s"]))
        row += [number(means[name]) if name in means else "" for name in (EXACT, PAPER)]
        row.append("" if best is None else f"{number(baselines[best])} (`{best}`)")
        split = trace["split"]
        if split is None or split["total_s"] <= 0:
            row += [""] * 4
        else:
            row.append(percent(over(means[PAPER], bound_s) or 0.0))
            row += [percent(split[f"{x}_s"] / split["total_s"]) for x in ("search", "score", "unexplained")]
        rows.append(row)
    heads = ["trace", "bound", "best known", EXACT, PAPER, "best baseline", f"{PAPER} over bound"]
    return markdown_table([*heads, "search", "score", "unexplained"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if an item failed."""
    parser = argparse.ArgumentParser(prog="python -m compare.optimality", description=__doc__)
    parser.add_argument("only", nargs="*", help="workloads (default: all)")
    parser.add_argument("-o", "--output", default="out/optimality", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=cpu_count(), metavar="N")
    parser.add_argument("--events", type=int, default=EVENTS, metavar="N", help="events a workload and load")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="seconds an event")
    parser.add_argument("--bound-time", type=float, default=240.0, metavar="S", help="seconds for bounds")
    parser.add_argument("--improve", type=float, default=120.0, metavar="S", help="seconds a trace; 0: none")
    args = parser.parse_args(argv)
    workloads = [name for name in (*SYNTHETIC, *METAGPT) if not args.only or name in args.only]
    if not workloads or len(workloads) < len(args.only) or args.events < 1:
        parser.error(f"expected some of {', '.join((*SYNTHETIC, *METAGPT))}, and at least 1 event")
    settings = settings_of(args)
    command = shlex.join(["python", "-m", "compare.optimality", *(sys.argv[1:] if argv is None else argv)])
    drawn = {
        f"{name}, load {load:g}": partial(at_load, name, load, settings)
        for name in workloads
        for load in LOADS
    }
    traces = [Source(name, TASKS, 1, rate) for name in workloads for rate in RATES.get(name, ())]
    try:
        groups = enough_events(drawn, settings, args.output, args.jobs)
        gaps = measure(groups, traces, settings, args.output, jobs=args.jobs)
    except Interrupted as stop:
        print(f"{stop.done} of {stop.total} items are kept; the same command goes on", file=sys.stderr)
        return 130
    for item, reason in gaps.failures.items():
        print(f"failed: {item}: {reason}", file=sys.stderr)
    write_gap_report(gaps, command, args.output, WORST)
    print(summary_text(gaps, WORST))
    if gaps.traces:
        print(f"\n## Overview\n\n{overview(gaps.traces)}")
    return 1 if gaps.failures else 0


if __name__ == "__main__":
    sys.exit(main())
