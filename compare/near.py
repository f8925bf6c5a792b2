"""The tables of docs/optimality.md on the near-exact search: ``python -m compare.near``.

Plays the paper's five workloads under ``topas-score`` in the study's engine, seed after seed until there are
enough events, and judges each decision against the proved optimum of its event.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from compare.cell import Cell, Points, Source, sources_of
from compare.figures import METAGPT, SYNTHETIC
from compare.gap import Group, Settings, measure, record_all
from compare.gap_stats import Tally, tallies
from compare.report import markdown_table
from topas.event import Params
from topas.profile import load_profile
from traces.workloads import WorkloadOptions

POLICY = "topas-score"
TASKS, LOAD, PREFIX = 60, 0.5, 12_000
MOST_SEEDS = 50


def group_of(workload: str, sigma: float, settings: Settings, folder: Path, jobs: int) -> Group:
    """Record runs of one workload until there are enough events."""
    options = WorkloadOptions(prefix_tokens=PREFIX, output_sigma=sigma)
    sources: list[Source] = []
    count = 0
    for seed in range(1, MOST_SEEDS + 1):
        if count >= settings.max_events:
            break
        points = Points((LOAD,), loads=True, seeds=(seed,), tasks=TASKS, options=options)
        cells = [
            Cell(source, POLICY, settings.profile, settings.params)
            for source in sources_of(workload, points, settings.profile)
        ]
        logs, _ = record_all(cells, folder, jobs=jobs)
        sources += [cell.source for cell in cells]
        count += sum(len(path.read_bytes().splitlines()) for path in logs.values())
    return Group(f"{workload}, sigma {sigma:g}, K = {settings.params.K}", sources=tuple(sources))


def rows_of(found: Sequence[Tally]) -> Iterator[list[str]]:
    """Return one row of the table for each group."""
    for tally in found:
        gaps = tally.proved
        shares = (gaps.count / tally.events, gaps.mean, gaps.p99, gaps.max)
        proved, *rest = ("" if share is None else f"{100 * share:.3g} %" for share in shares)
        yield [tally.name, str(tally.events), proved, str(gaps.exact), *rest]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if an item failed."""
    parser = argparse.ArgumentParser(prog="python -m compare.near", description=__doc__)
    parser.add_argument("only", nargs="*", help="workloads (default: all)")
    parser.add_argument("-o", "--output", default="out/near", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--events", type=int, default=1000, metavar="N", help="events a workload")
    parser.add_argument("--sigmas", default="0,0.5", help="spreads of outputs")
    parser.add_argument("--K", type=int, default=0, metavar="K", help="cap on admissions and preemptions")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="seconds an event")
    args = parser.parse_args(argv)
    settings = Settings(
        profile=load_profile("study"),
        params=Params(K=args.K),
        policy=POLICY,
        policies=(),
        time_limit_s=args.time_limit,
        max_events=args.events,
    )
    groups = [
        group_of(name, sigma, settings, args.output, args.jobs)
        for name in (*SYNTHETIC, *METAGPT)
        if not args.only or name in args.only
        for sigma in (float(text) for text in args.sigmas.split(","))
    ]
    study = measure(groups, [], settings, args.output, jobs=args.jobs)
    for item, reason in study.failures.items():
        print(f"failed: {item}: {reason}", file=sys.stderr)
    heads = ["events of", "judged", "proved", "exact", "mean gap", "p99", "max"]
    print(markdown_table(heads, list(rows_of(tallies(study.judged, lambda one: one.group)))))
    return 1 if study.failures else 0


if __name__ == "__main__":
    sys.exit(main())
