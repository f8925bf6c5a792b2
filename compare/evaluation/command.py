"""The command: run the parts that were asked for, and write a page of each."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from joblib import cpu_count

from compare.comparison import SHOWN_TAILS, tail_table
from compare.evaluation import tables
from compare.evaluation.figure import figure_bytes
from compare.evaluation.parts import (
    ablation_runs,
    bounded_traces,
    main_runs,
    robustness_runs,
    session_runs,
)
from compare.evaluation.plan import PLAN, EvaluationPlan, load_plan
from compare.page import csv, records, render
from compare.pool import Interrupted, folder_for
from compare.store import find_out
from compare.study import REPRODUCIBLE, TIMINGS, Run, run_study
from topas.errors import InputError
from topas.files import write_all

PARTS = ("main", "sessions", "ablation", "robustness", "bound")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for; ``command`` makes it again."""

    plan: EvaluationPlan
    folder: Path
    jobs: int
    sessions: tuple[str, ...]
    bound_s: float
    improve_s: float
    command: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 0 if all runs finished, 1 if one failed, 2 for wrong input, 130 if interrupted."""
    args = _parser().parse_args(argv)
    try:
        asked = Asked(
            load_plan(args.plan),
            args.output,
            args.jobs,
            tuple(args.sessions),
            args.bound_time,
            args.improve,
            shlex.join(["python", "-m", "compare.evaluation", *(sys.argv[1:] if argv is None else argv)]),
        )
        failed = sum([run_part(part, asked) for part in chosen_parts(args.part, asked)])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"{stop.done} of {stop.total} runs are kept; the same command goes on", file=sys.stderr)
        return 130
    return 1 if failed else 0


def chosen_parts(named: Sequence[str] | None, asked: Asked) -> list[str]:
    """Return the parts to run, each once: those named, else all for which there is something to run.

    Raises
    ------
    InputError
        if sessions are to be run and none are given.
    """
    if named and "sessions" in named and not asked.sessions:
        raise InputError("expected trace files for part sessions", field="--sessions")
    return list(dict.fromkeys(named or [part for part in PARTS if part != "sessions" or asked.sessions]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m compare.evaluation", description=__doc__)
    parser.add_argument("-o", "--output", default="out/evaluation", type=Path, metavar="DIR")
    parser.add_argument("--jobs", type=int, default=cpu_count(), metavar="N", help="processes at a time")
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help="only this part; may be given again (default: all, sessions only with --sessions)",
    )
    parser.add_argument(
        "--sessions", nargs="+", default=[], metavar="FILE", help="traces of recorded sessions (topas import)"
    )
    parser.add_argument("--plan", default=PLAN, type=Path, metavar="FILE", help="another plan (TOML)")
    parser.add_argument(
        "--bound-time", type=float, default=240.0, metavar="S", help="seconds a trace's bounds"
    )
    parser.add_argument(
        "--improve", type=float, default=120.0, metavar="S", help="seconds a trace's best known"
    )
    return parser


def run_part(part: str, asked: Asked) -> int:
    """Run a part, write its files and print its page; return how many runs failed.

    Raises
    ------
    InputError
        if a session file is wrong or a folder cannot be written.
    Interrupted
        on Ctrl-C; finished runs stay.
    """
    print(f"part {part}", file=sys.stderr)
    return _bound(asked) if part == "bound" else _compared(part, asked)


def _compared(part: str, asked: Asked) -> int:
    plan = asked.plan
    planned: Mapping[str, Callable[[], Sequence[Run]]] = {
        "main": lambda: main_runs(plan),
        "sessions": lambda: session_runs(plan, asked.sessions),
        "ablation": lambda: ablation_runs(plan),
        "robustness": lambda: robustness_runs(plan),
    }
    outcome = run_study(planned[part](), asked.folder, jobs=asked.jobs, progress=True)
    _tell(outcome.failures)
    runs, tails = tables.named(outcome.runs), tables.named(outcome.tails)
    found = tables.found_in(runs, plan.baselines)
    cells, means = tables.by_cell(found), tables.over_loads(found)
    policy, policies = plan.policies[0], list(dict.fromkeys(cells["policy"]))
    broken = tables.breaches(cells, plan.guard, policy)
    reached = tables.against_targets(means, plan.targets, plan.loads, policy)
    document: dict[str, Any] = {
        "version": version("topas"),
        "command": asked.command,
        "cells": records(cells),
    }
    if part in {"main", "sessions"}:
        document |= {"guard": records(broken)}
    if part == "main":
        document |= {"targets": records(reached)}
    if part != "robustness":
        document |= {"averages": records(means)}
    page = render(
        "evaluation",
        part=part,
        command=asked.command,
        failures=outcome.failures,
        policy=policy,
        guard=plan.guard,
        settings=len(cells[cells["policy"] == policy].drop_duplicates(list(tables.CELL))),
        broken=len(broken.drop_duplicates(list(tables.CELL))),
        met=int(reached["met"].sum()),
        targets=len(reached),
        targets_table=tables.targets_table(reached) if part == "main" else "",
        guard_table=tables.guard_table(broken),
        averages_table=tables.change_table(means, tables.PLACE, tables.SETTING),
        variants_table=tables.variants_table(found) if part == "ablation" else "",
        worst_table=tables.worst_table(cells) if part == "robustness" else "",
        cells_table=_cells_table(cells, part),
        tail_table=tail_table(tails, [*plan.baselines, *policies], ("case", "workload")),
        most=SHOWN_TAILS,
    )
    times = render("evaluation_times", table=tables.timings_table(runs, policies))
    place = [*tables.CELL, "outputs", "seed", "tasks", "policy"]
    contents = {
        "report.md": page.encode(),
        "results.csv": csv(cells),
        "results.json": (json.dumps(document, indent=1) + "\n").encode(),
        "runs.csv": csv(runs[[*place, *REPRODUCIBLE]]),
        "tails.csv": csv(tails[[*place, "by", "name", "mean_jct_s", "p99_jct_s", "max_jct_s"]]),
        "timings.csv": csv(runs[[*place, "decisions", *TIMINGS]]),
        "timings.md": times.encode(),
    }
    if part == "main" and len(cells):
        contents["evaluation.png"] = figure_bytes(cells, policy)
    write_all(folder_of(part, asked), contents)
    print(f"{page}\n{times}")
    return len(outcome.failures)


def _cells_table(cells: pd.DataFrame, part: str) -> str:
    case = ("case",) if part == "robustness" else ()
    return tables.change_table(cells, (*case, *tables.PLACE, "load"), tables.CELL)


def folder_of(part: str, asked: Asked) -> Path:
    """Return the folder of a part's files, made if need be: DIR itself for the main part."""
    return folder_for(asked.folder if part == "main" else asked.folder / part)


def _tell(failures: Mapping[Any, str]) -> None:
    for item, reason in failures.items():
        print(f"failed: {item}: {reason}", file=sys.stderr)


def _bound(asked: Asked) -> int:
    traces = bounded_traces(asked.plan, asked.bound_s, asked.improve_s)
    items = [item for trace in traces for item in trace.items]
    done = find_out(items, asked.folder, jobs=asked.jobs, progress=True)
    _tell(done.failures)
    rows = tables.bound_rows(traces, done.results, asked.plan.baselines)
    found = tables.reaches(rows, asked.plan.targets)
    page = render(
        "evaluation_bound",
        part="bound",
        command=asked.command,
        failures=done.failures,
        asked=asked,
        reach_table=tables.reach_table(found),
        bound_table=tables.bound_table(rows),
    )
    document = {"version": version("topas"), "averages": records(found), "traces": records(rows)}
    contents = {
        "report.md": page.encode(),
        "results.csv": csv(rows),
        "results.json": (json.dumps(document, indent=1) + "\n").encode(),
    }
    write_all(folder_of("bound", asked), contents)
    print(page)
    return len(done.failures)
