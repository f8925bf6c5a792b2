"""The tables of docs/optimality.md on the near-exact search: ``python -m compare.near``.

Plays the paper's five workloads under ``topas-score`` in the study's engine, seed after seed until there are
enough events, and judges each decision against the proved optimum of its event.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from compare.figures import METAGPT, SYNTHETIC
from compare.gap import Settings, enough_events, measure
from compare.gap_tables import GROUPINGS, share, tallies
from compare.page import markdown_table
from compare.source import Points, Source, sources_of
from topas.event import Params
from topas.profile import load_profile
from traces.workloads import WorkloadOptions

POLICY = "topas-score"
TASKS, LOAD, PREFIX = 60, 0.5, 12_000


def source_of(workload: str, sigma: float, settings: Settings, seed: int) -> Source:
    """Return a workload with long prefixes at half load."""
    options = WorkloadOptions(prefix_tokens=PREFIX, output_sigma=sigma)
    points = Points((LOAD,), loads=True, seeds=(seed,), tasks=TASKS, options=options)
    return sources_of(workload, points, settings.profile)[0]


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
    drawn = {
        f"{name}, sigma {sigma:g}, K = {args.K}": partial(source_of, name, sigma, settings)
        for name in (*SYNTHETIC, *METAGPT)
        if not args.only or name in args.only
        for sigma in (float(text) for text in args.sigmas.split(","))
    }
    groups = enough_events(drawn, settings, args.output, args.jobs)
    gaps = measure(groups, [], settings, args.output, jobs=args.jobs)
    for item, reason in gaps.failures.items():
        print(f"failed: {item}: {reason}", file=sys.stderr)
    rows = []
    for one in tallies(gaps.events, GROUPINGS["group"](gaps.events)):
        own = one["proved"]
        numbers = (share(own[name]) for name in ("mean", "p99", "max"))
        rows.append(
            [
                one["name"],
                str(one["events"]),
                share(own["count"] / one["events"]),
                str(own["exact"]),
                *numbers,
            ]
        )
    print(markdown_table(["events of", "judged", "proved", "exact", "mean gap", "p99", "max"], rows))
    return 1 if gaps.failures else 0


if __name__ == "__main__":
    sys.exit(main())
