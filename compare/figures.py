"""The paper's Figures 1, 3, 4 and 5 in the simulator: ``make figures``.

Each study is one setting of workload, engine and lengths; all cells run as one resumable batch. The
settings are the paper's facts where it gives them and a grid where it does not; docs/reproduction.md
discusses the results. Policies and baselines are the paper's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from joblib import cpu_count
from tabulate import tabulate

from compare.cell import Cell, Points, cells_of, sources_of
from compare.plot import write_figure
from compare.pool import Interrupted
from compare.report import JCT, Comparison, percent, write_report
from compare.run import Outcome, run_cells
from topas.event import Params
from topas.files import whole_file
from topas.policies import PAPER_BASELINES, PAPER_POLICIES
from topas.profile import Profile, load_profile
from traces.workloads import WorkloadOptions

SYNTHETIC = ("chain-3", "dag-4", "dag-10-wide")
METAGPT = ("metagpt-sop", "metagpt-tl")
LOADS = (0.25, 0.5, 0.75, 1.0)
SEEDS = (1, 2, 3)
A100 = "a100-80g-qwen2.5-32b"
NAMED = ("topas-paper", "topas-base", "downstream-gate")
"""Policies whose change against the best baseline the overview shows."""


@dataclass(frozen=True, slots=True)
class Study:
    """One setting: workloads on one engine at some operating points; ``about`` says what it stands for."""

    name: str
    about: str
    workloads: tuple[str, ...]
    profile: Profile
    at: tuple[float, ...] = LOADS
    loads: bool = True
    seeds: tuple[int, ...] = SEEDS
    tasks: int = 60
    options: WorkloadOptions = field(default_factory=WorkloadOptions)

    def cells(self) -> tuple[Cell, ...]:
        """Return its cells, the paper's policies on every trace."""
        points = Points(self.at, self.loads, self.seeds, self.tasks, self.options)
        sources = [source for name in self.workloads for source in sources_of(name, points, self.profile)]
        return cells_of(sources, PAPER_POLICIES, self.profile, Params())


def studies() -> list[Study]:
    """Return every study: the paper's operating points on the A100 profile, and the grids on ``study``."""
    a100 = load_profile(A100).model_copy(update={"host_cache": True})
    grid = [(tier, sigma) for tier in (True, False) for sigma in (0.0, 0.5)]
    return [
        Study("figure-1", "Chain-3 at 0.15 task/s", ("chain-3",), a100, (0.15,), loads=False),
        Study("figure-4-sop", "SOP by rate", ("metagpt-sop",), a100, (0.05, 0.1, 0.15), loads=False),
        Study("figure-4-tl", "TL by rate", ("metagpt-tl",), a100, (0.01, 0.0175), loads=False),
        Study("figure-5", "TL at 0.0175 task/s", ("metagpt-tl",), a100, (0.0175,), loads=False),
        *(_synthetic(tier, prefix, sigma) for prefix in (4_000, 8_000, 12_000) for tier, sigma in grid),
        *(_metagpt(tier, sigma) for tier, sigma in grid),
    ]


def _engine(tier: bool) -> Profile:  # noqa: FBT001  one of the grid's axes
    return load_profile("study").model_copy(update={"host_cache": tier})


def _synthetic(tier: bool, prefix: int, sigma: float) -> Study:  # noqa: FBT001  as above
    return Study(
        f"figure-3-{'host' if tier else 'nohost'}-{prefix // 1000}k-sigma{sigma:g}",
        f"prefix {prefix}, sigma {sigma:g}, host tier {'on' if tier else 'off'}",
        SYNTHETIC,
        _engine(tier),
        options=WorkloadOptions(prefix_tokens=prefix, output_sigma=sigma or None),
    )


def _metagpt(tier: bool, sigma: float) -> Study:  # noqa: FBT001  as above
    return Study(
        f"metagpt-{'host' if tier else 'nohost'}-sigma{sigma:g}",
        f"sigma {sigma:g}, host tier {'on' if tier else 'off'}",
        METAGPT,
        _engine(tier),
        options=WorkloadOptions(output_sigma=sigma, input_sigma=0.3 if sigma else 0.0),
    )


Compared = Sequence[tuple[Study, Comparison]]


def overview(compared: Compared) -> str:
    """Return a Markdown table: per study and workload, change against the best baseline (mean / p99)."""
    rows = []
    for study, comparison in compared:
        for workload in study.workloads:
            found = {
                (summary.metric, summary.policy): summary.change
                for summary in comparison.summaries
                if summary.workload == workload and summary.point is None and summary.change
            }
            if any((metric, name) not in found for metric in JCT for name in NAMED):
                continue  # a failed cell: the study's own report says which
            best = dict.fromkeys(found[metric, NAMED[0]].best for metric in JCT)
            changes = (" / ".join(percent(found[metric, name].ratio) for metric in JCT) for name in NAMED)
            rows.append([study.about, workload, " / ".join(best), *changes])
    return str(tabulate(rows, ["setting", "workload", "best baseline", *NAMED], tablefmt="github"))


def own_tier(compared: Compared) -> str:
    """Return a Markdown table that gives the paper's TOPAS alone the host tier: the paper's likely setting.

    Its prefixes move over the link while the baselines, as SGLang without a hierarchical cache, compute an
    evicted prefix again. Each row pairs a study with the tier with its twin without; no twins, no table.
    """
    means = {
        (study.name, summary.workload, summary.metric, summary.policy): summary.value
        for study, comparison in compared
        for summary in comparison.summaries
        if summary.point is None
    }
    rows = []
    for study, _ in compared:
        twin = study.name.replace("-host", "-nohost")
        for workload in study.workloads:
            if twin == study.name or (twin, workload, "mean_jct_s", NAMED[0]) not in means:
                continue
            changes: list[str] = []
            best: dict[str, None] = {}
            for metric in JCT:
                without = {name: means[twin, workload, metric, name] for name in PAPER_BASELINES}
                best[min(without, key=lambda name: without[name])] = None
                changes.append(
                    percent(means[study.name, workload, metric, NAMED[0]] / min(without.values()) - 1)
                )
            setting = study.about.replace(", host tier on", "")
            rows.append([setting, workload, " / ".join(best), " / ".join(changes)])
    head = ["setting", "workload", "best baseline without tier", f"{NAMED[0]} with tier"]
    return "" if not rows else str(tabulate(rows, head, tablefmt="github"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run all studies, or those whose names begin as given; an overview is written of all of them only."""
    parser = argparse.ArgumentParser(prog="python -m compare.figures", description=__doc__)
    parser.add_argument("only", nargs="*", help="names, or their beginnings (default: all)")
    parser.add_argument("-o", "--output", default="out/figures", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=cpu_count(), metavar="N")
    args = parser.parse_args(argv)
    chosen = [s for s in studies() if not args.only or s.name.startswith(tuple(args.only))]
    if not chosen:
        parser.error(f"no such study; there are {', '.join(study.name for study in studies())}")
    planned = {study.name: study.cells() for study in chosen}
    cells = tuple(dict.fromkeys(cell for some in planned.values() for cell in some))
    try:
        outcome = run_cells(cells, args.output, jobs=args.jobs, progress=True)
    except Interrupted as stop:
        print(f"{stop.done} of {stop.total} cells are kept; the same command goes on", file=sys.stderr)
        return 130
    for failure in outcome.failures:
        print(f"failed: {failure.cell}: {failure.reason}", file=sys.stderr)
    by_cell = {result.cell: result for result in outcome.results}
    compared: list[tuple[Study, Comparison]] = []
    for study in chosen:
        mine = frozenset(planned[study.name])
        results = tuple(by_cell[cell] for cell in planned[study.name] if cell in by_cell)
        failures = tuple(failure for failure in outcome.failures if failure.cell in mine)
        command = f"python -m compare.figures {study.name}"
        outcome_here = Outcome(results, failures, 0, 0)
        comparison = Comparison.of(command, PAPER_POLICIES, PAPER_BASELINES, outcome_here)
        folder = args.output / study.name
        folder.mkdir(parents=True, exist_ok=True)
        write_report(comparison, folder)
        if not failures:
            write_figure(comparison, folder)
        compared.append((study, comparison))
    text = overview(compared)
    if own := own_tier(compared):
        text += f"\n\nHost tier for TOPAS alone:\n\n{own}"
    print(text)
    if not args.only:
        with whole_file(args.output / "overview.md") as stream:
            stream.write(text + "\n")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
