"""The tables of docs/optimality.md: ``make optimality``.

Single events: what the paper's Algorithm 1 decides in the simulator on its five workloads at three loads,
against the exact optimum of each event. Whole traces: the study's setting at three rates, between bounds
and the best schedule known. Policies and baselines are the paper's.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from joblib import cpu_count

from compare.cell import Cell, Points, Source, sources_of
from compare.figures import METAGPT, SYNTHETIC
from compare.gap import Group, Settings, measure, record_all
from compare.gap_page import summary_text
from compare.gap_report import write_gap_report
from compare.pool import Interrupted
from compare.report import markdown_table, number, percent
from compare.whole import EXACT, PAPER, WholeTrace
from topas.event import Params
from topas.policies import PAPER_BASELINES
from topas.profile import load_profile
from traces.workloads import WorkloadOptions

LOADS = (0.25, 0.5, 1.0)
RATES = {"chain-3": (0.05, 0.15, 1.0), "dag-4": (0.04, 0.16, 1.0), "dag-10-wide": (0.02, 0.05, 0.3)}
"""Arrival rates of the study's whole traces, tasks a second: light, full and all at once."""

TASKS = 60
EVENTS = 1000
MOST_SEEDS = 50
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


def event_groups(
    places: Iterable[tuple[str, float]], settings: Settings, folder: Path, jobs: int
) -> list[Group]:
    """Record seed after seed at every (workload, load) until there are enough events or a run fails.

    Raises
    ------
    Interrupted
        on Ctrl-C; finished logs stay.
    """
    sources: dict[tuple[str, float], list[Source]] = {place: [] for place in places}
    short, counts = list(sources), dict.fromkeys(sources, 0)
    for seed in range(1, MOST_SEEDS + 1):
        if not short:
            break
        cells = {}
        for workload, load in short:
            (source,) = _at(workload, (load,), settings, loads=True, seed=seed)
            sources[workload, load].append(source)
            cells[workload, load] = Cell(source, settings.policy, settings.profile, settings.params)
        logs, _ = record_all(cells.values(), folder, jobs=jobs)
        for place, cell in cells.items():
            counts[place] += _lines(logs[cell]) if cell in logs else settings.max_events
        short = [place for place in short if counts[place] < settings.max_events]
    return [Group(f"{name}, load {load:g}", sources=tuple(own)) for (name, load), own in sources.items()]


def _at(
    workload: str, at: tuple[float, ...], settings: Settings, *, loads: bool, seed: int = 1
) -> list[Source]:
    points = Points(at, loads=loads, seeds=(seed,), tasks=TASKS, options=WorkloadOptions())
    return sources_of(workload, points, settings.profile)


def _lines(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(1 for _ in stream)


def overview(traces: Iterable[WholeTrace]) -> str:
    """Return one row a trace: mean JCT of bound, best known schedule and policies, and the split."""
    rows = []
    for trace in traces:
        means = {row.policy: row.mean_jct_s for row in trace.rows}
        baselines = {name: means[name] for name in PAPER_BASELINES if name in means}
        best = min(baselines, key=lambda name: baselines[name], default=None)
        bound = "" if trace.bounds is None else number(trace.bounds.best.mean_jct_s)
        row = [trace.label, bound, "" if trace.best is None else number(trace.best.mean_jct_s)]
        row += [number(means[name]) if name in means else "" for name in (EXACT, PAPER)]
        row.append("" if best is None else f"{number(baselines[best])} (`{best}`)")
        split = trace.split
        if split is None or split.total_s <= 0:
            row += [""] * 4
        else:
            row.append(percent(trace.over_bound(means[PAPER]) or 0.0))
            row += [percent(x / split.total_s) for x in (split.search_s, split.score_s, split.unexplained_s)]
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
    places = [(name, load) for name in workloads for load in LOADS]
    traces = [
        source for name in workloads for source in _at(name, RATES.get(name, ()), settings, loads=False)
    ]
    try:
        groups = event_groups(places, settings, args.output, args.jobs)
        study = measure(groups, traces, settings, args.output, jobs=args.jobs)
    except Interrupted as stop:
        print(f"{stop.done} of {stop.total} items are kept; the same command goes on", file=sys.stderr)
        return 130
    for item, reason in study.failures.items():
        print(f"failed: {item}: {reason}", file=sys.stderr)
    write_gap_report(study, command, args.output, WORST)
    print(summary_text(study, WORST))
    if study.traces:
        print(f"\n## Overview\n\n{overview(study.traces)}")
    return 1 if study.failures else 0


if __name__ == "__main__":
    sys.exit(main())
