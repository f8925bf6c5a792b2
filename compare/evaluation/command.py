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

from joblib import cpu_count

from compare.evaluation.bound_page import bound_rows, bound_table, reach_table, reaches
from compare.evaluation.changes import Change, against_targets, averages, breaches, changes
from compare.evaluation.figure import figure_bytes
from compare.evaluation.page import (
    BELOW,
    averages_table,
    cells_table,
    guard_section,
    targets_table,
    timings_table,
    variants_table,
    worst_table,
)
from compare.evaluation.parts import (
    ablation_runs,
    bounded_traces,
    main_runs,
    robustness_runs,
    session_runs,
)
from compare.evaluation.plan import PLAN, Plan, load_plan
from compare.evaluation.run import Run, run_questions
from compare.evaluation.tables import (
    averages_json,
    bound_json,
    breaches_json,
    change_rows,
    csv_text,
    reach_json,
    run_rows,
    targets_json,
    timing_rows,
)
from compare.kept import Question
from compare.pool import Interrupted, folder_for
from topas.errors import InputError
from topas.files import write_all

PARTS = ("main", "sessions", "ablation", "robustness", "bound")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asked for; ``command`` makes it again."""

    plan: Plan
    folder: Path
    jobs: int
    sessions: tuple[str, ...]
    bound_s: float
    improve_s: float
    command: str


Answers = Mapping[Any, Any]
Contents = dict[str, bytes]


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
    if part == "bound":
        return _bound(asked)
    plan = asked.plan
    planned: Mapping[str, Callable[[], tuple[Run, ...]]] = {
        "main": lambda: main_runs(plan),
        "sessions": lambda: session_runs(plan, asked.sessions),
        "ablation": lambda: ablation_runs(plan),
        "robustness": lambda: robustness_runs(plan),
    }
    results, failures = _answers(planned[part](), asked)
    found = changes(results, plan.baselines)
    written: Mapping[str, Callable[[], tuple[str, dict[str, object]]]] = {
        "main": lambda: grid_page(found, plan, targets=True),
        "sessions": lambda: grid_page(found, plan, targets=False),
        "ablation": lambda: ablation_page(found),
        "robustness": lambda: robustness_page(found),
    }
    body, values = written[part]()
    text = _headed(part, asked, failures) + body + "\n"
    compared = list(dict.fromkeys(one.policy for one in found))
    document = {"version": version("topas"), "command": asked.command, "cells": change_rows(found), **values}
    times = (
        "# Decision times\n\nThey depend on the machine and on what else it does.\n\n"
        + timings_table(results, compared)
        + "\n"
    )
    contents = {
        "report.md": text.encode(),
        "results.csv": csv_text(change_rows(found)).encode(),
        "results.json": (json.dumps(document, indent=1) + "\n").encode(),
        "runs.csv": csv_text(run_rows(results)).encode(),
        "timings.csv": csv_text(timing_rows(results)).encode(),
        "timings.md": times.encode(),
    }
    if part == "main" and found:
        contents["evaluation.png"] = figure_bytes(found, plan.policies[0])
    write_all(folder_of(part, asked), contents)
    print(f"{text}\n{times}")
    return len(failures)


def folder_of(part: str, asked: Asked) -> Path:
    """Return the folder of a part's files, made if need be: DIR itself for the main part."""
    return folder_for(asked.folder if part == "main" else asked.folder / part)


def _answers(questions: Sequence[Question], asked: Asked) -> tuple[Answers, Mapping[Any, str]]:
    done = run_questions(questions, asked.folder, jobs=asked.jobs, progress=True)
    for question, reason in done.failures.items():
        print(f"failed: {question}: {reason}", file=sys.stderr)
    return done.results, done.failures


def _headed(part: str, asked: Asked, failures: Mapping[Any, str]) -> str:
    text = f"# Evaluation, part {part}\n\ntopas {version('topas')}, simulated. Made by\n\n"
    text += f"```sh\n{asked.command}\n```\n\n"
    if failures:
        lines = "\n".join(f"- {question}: {reason}" for question, reason in failures.items())
        text += f"## Failed\n\nA policy counts nowhere that a failed run of it belongs to.\n\n{lines}\n\n"
    return text


def grid_page(found: tuple[Change, ...], plan: Plan, *, targets: bool) -> tuple[str, dict[str, object]]:
    """Return the page of a grid, and what it adds to the JSON."""
    policy = plan.policies[0]
    mean_changes = averages(found)
    broken = breaches(found, plan.guard, policy)
    cells = len({one.setting for one in found if one.policy == policy})
    parts, values = [BELOW], dict[str, object]()
    if targets:
        reached = against_targets(mean_changes, plan.targets, plan.loads, policy)
        met = sum(one.met for one in reached)
        parts += [f"## Targets of `{policy}`", f"{met} of {len(reached)} are met.", targets_table(reached)]
        values["targets"] = targets_json(reached)
    parts += [f"## Guard of `{policy}`", guard_section(broken, plan.guard, cells)]
    parts += ["## Averages over the loads", averages_table(mean_changes)]
    parts += ["## Every setting", cells_table(found)]
    values |= {"guard": breaches_json(broken), "averages": averages_json(mean_changes)}
    return "\n\n".join(parts), values


def ablation_page(found: tuple[Change, ...]) -> tuple[str, dict[str, object]]:
    """Return the page of the ablation, and what it adds to the JSON."""
    text = (
        f"{BELOW}\n\n## Variants\n\nMean / p99 JCT, averaged over the loads.\n\n{variants_table(found)}\n\n"
        f"## Every setting\n\n{cells_table(found)}"
    )
    return text, {"averages": averages_json(averages(found))}


def robustness_page(found: tuple[Change, ...]) -> tuple[str, dict[str, object]]:
    """Return the page of the cases, and what it adds to the JSON."""
    text = (
        f"{BELOW}\n\n## The worst setting of each case\n\n{worst_table(found)}\n\n"
        f"## Every setting\n\n{cells_table(found, by_case=True)}"
    )
    return text, {}


def _bound(asked: Asked) -> int:
    traces = bounded_traces(asked.plan, asked.bound_s, asked.improve_s)
    questions: list[Question] = [trace.bound for trace in traces]
    questions += [trace.improve for trace in traces]
    questions += [run for trace in traces for run in trace.runs]
    answers, failures = _answers(questions, asked)
    rows = bound_rows(traces, answers, asked.plan.baselines)
    found = reaches(rows, asked.plan.targets)
    text = _headed("bound", asked, failures) + (
        f"Bounds and best known schedules were looked for over {asked.bound_s:g} s and {asked.improve_s:g} s "
        "a trace; another machine finds others. They know all arrivals and lengths beforehand.\n\n"
        "## How far it could go\n\n"
        "Change of mean JCT against the best baseline of each trace, averaged over the loads. No schedule "
        f"goes beyond the bound.\n\n{reach_table(found)}\n\n"
        "## Every trace\n\n"
        f"Mean JCT in seconds; in brackets how far above the bound.\n\n{bound_table(rows)}\n"
    )
    values = bound_json(rows)
    document = {"version": version("topas"), "averages": reach_json(found), "traces": values}
    contents = {
        "report.md": text,
        "results.csv": csv_text(values),
        "results.json": json.dumps(document, indent=1) + "\n",
    }
    write_all(folder_of("bound", asked), {name: part.encode() for name, part in contents.items()})
    print(text)
    return len(failures)
