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

import pandas as pd
from joblib import cpu_count

from compare.change import averages, differences
from compare.comparison import PLACE, Comparison, write_report
from compare.page import markdown_table, percent
from compare.plot import FIGURE, write_figure
from compare.pool import Interrupted, folder_for
from compare.source import Points, sources_of
from compare.study import Run, part_of, run_study, runs_of
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

    def runs(self) -> tuple[Run, ...]:
        """Return its runs, the paper's policies on every trace."""
        points = Points(self.at, self.loads, self.seeds, self.tasks, self.options)
        sources = [source for name in self.workloads for source in sources_of(name, points, self.profile)]
        return runs_of(sources, PAPER_POLICIES, self.profile, Params())


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


def overview(runs: pd.DataFrame) -> str:
    """Return a Markdown table: per study and workload, change against the best baseline (mean / p99).

    ``runs`` has a column ``study`` that says what a study stands for.
    """
    keys = ["study", *PLACE]
    found = averages(differences(runs, keys, PAPER_BASELINES, FIGURE), keys, carry=["best_baseline"])
    rows = []
    for _, own in found.groupby(keys, sort=False):
        by = own.set_index(["metric", "policy"])
        if any((metric, name) not in by.index for metric in FIGURE for name in NAMED):
            continue  # a failed run: the study's own report says which
        best = dict.fromkeys(by.loc[(metric, NAMED[0]), "best_baseline"] for metric in FIGURE)
        ratios = (
            " / ".join(percent(by.loc[(metric, name), "change"]) for metric in FIGURE) for name in NAMED
        )
        rows.append([own["study"].iloc[0], own["workload"].iloc[0], " / ".join(best), *ratios])
    return markdown_table(["setting", "workload", "best baseline", *NAMED], rows)


def own_tier(runs: pd.DataFrame) -> str:
    """Return a Markdown table that gives the paper's TOPAS alone the host tier: the paper's likely setting.

    Its prefixes move over the link while the baselines, as SGLang without a hierarchical cache, compute an
    evicted prefix again. Each row takes TOPAS of a study with the tier, and the baselines of its twin
    without; no twins, no table.
    """
    ours = runs[runs["host_cache"] & (runs["policy"] == NAMED[0])]
    rivals = runs[~runs["host_cache"] & runs["policy"].isin(PAPER_BASELINES)]
    mixed = pd.concat([ours, rivals])
    mixed["study"] = mixed["study"].str.replace(r", host tier (on|off)", "", regex=True)
    keys = ["study", "workload"]
    paired = mixed[mixed.groupby(keys)["host_cache"].transform("nunique") > 1]
    if paired.empty:
        return ""
    found = averages(differences(paired, keys, PAPER_BASELINES, FIGURE), keys, carry=["best_baseline"])
    rows = []
    for (study, workload), own in found[found["policy"] == NAMED[0]].groupby(keys, sort=False):
        best, ratios = dict.fromkeys(own["best_baseline"]), map(percent, own["change"])
        rows.append([study, workload, " / ".join(best), " / ".join(ratios)])
    head = ["setting", "workload", "best baseline without tier", f"{NAMED[0]} with tier"]
    return markdown_table(head, rows)


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
    planned = {study.name: study.runs() for study in chosen}
    try:
        outcome = run_study(
            [run for some in planned.values() for run in some], args.output, jobs=args.jobs, progress=True
        )
    except Interrupted as stop:
        print(f"{stop.done} of {stop.total} cells are kept; the same command goes on", file=sys.stderr)
        return 130
    for run, reason in outcome.failures.items():
        print(f"failed: {run}: {reason}", file=sys.stderr)
    parts = []
    for study in chosen:
        part = part_of(outcome, planned[study.name])
        command = f"python -m compare.figures {study.name}"
        comparison = Comparison.of(command, planned[study.name], PAPER_BASELINES, part)
        folder = folder_for(args.output / study.name)
        write_report(comparison, folder)
        if not part.failures:
            write_figure(comparison, folder)
        parts.append(part.runs.assign(study=study.about))
    runs = pd.concat(parts, ignore_index=True)
    text = overview(runs)
    if own := own_tier(runs):
        text += f"\n\nHost tier for TOPAS alone:\n\n{own}"
    print(text)
    if not args.only:
        with whole_file(args.output / "overview.md") as stream:
            stream.write(text + "\n")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
