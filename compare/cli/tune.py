"""``topas tune``: parameters of a policy, tuned on training traces and compared on held-out ones."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from compare.cli.points import SEEDS, add_point_options, points_given, points_of, seed_list, sources_named
from compare.cli.pooled import (
    add_pool_options,
    command_line,
    guarded,
    jobs_of,
    joined,
    known_policies,
    list_of,
    names,
    say,
)
from compare.pool import Interrupted, folder_for
from compare.source import Source
from compare.study import Run
from compare.tuning.held_out import hold_out, references_on
from compare.tuning.loss import Weights
from compare.tuning.plan import TuningPlan
from compare.tuning.search import search
from compare.tuning.space import space_of
from compare.tuning.sweep import VALUES, sweep
from compare.tuning.tune_report import Tuning, as_json, screen, timing_rows, write_tuning
from oracle.extra import solver_module
from topas.cli.options import add_engine_options, engine_of, search_params_of
from topas.errors import InputError
from topas.params import SearchParams
from topas.policies import baseline_names
from topas.schema import validate
from traces.workloads import FIXED, WORKLOADS

HELD_OUT_SEEDS = (4, 5, 6, 7, 8, 9)
TRIALS = 50
EVENTS = 40
PRUNE = 0.1
SWEPT = ("M", "K")
"""What may be swept."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Search the parameters of a policy in the simulator, so that mean and p99 JCT on "
        "training traces are low against the best baseline, and compare the best with the default on "
        "held-out traces. DIR/topas.yaml is the result, for --config here and TOPAS_CONFIG of a server."
    )
    parser.epilog = (
        "Finished trials and cells are kept: an interrupted command, given again, goes on, also with "
        "more --trials. Only one process may use a study at a time. "
        "example: topas tune chain-3 dag-4 --output-sigma 0.5 --trials 50 -o out/tune"
    )
    parser.add_argument(
        "what", nargs="+", metavar="WORKLOAD-OR-TRACE", help="to train on: a workload's name or a trace file"
    )
    parser.add_argument("-o", dest="folder", required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--policy", default="topas", help="policy to tune (default: topas)")
    parser.add_argument(
        "--parameters", type=names, metavar="a,b", help="parameters to tune (default: all of the policy's)"
    )
    parser.add_argument(
        "--held-out",
        nargs="+",
        metavar="F",
        help="trace files to compare on, beside the workloads' held-out seeds",
    )
    parser.add_argument(
        "--held-out-seeds",
        type=seed_list,
        metavar="S,S",
        help=f"seeds of the workloads to compare on (default: {joined(HELD_OUT_SEEDS)})",
    )
    search = parser.add_argument_group("search")
    search.add_argument(
        "--trials", type=int, default=TRIALS, metavar="N", help=f"trials in all, the default first [{TRIALS}]"
    )
    search.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the search [0]")
    search.add_argument(
        "--weights",
        type=_weights,
        default=(1.0, 1.0),
        metavar="A,B",
        help="how much the logarithms of mean and p99 JCT count (default: 1,1)",
    )
    search.add_argument(
        "--prune",
        type=float,
        default=PRUNE,
        metavar="P",
        help=f"give a trial up at this p-value of Wilcoxon's test against the best, 0 for never [{PRUNE}]",
    )
    search.add_argument(
        "--storage", metavar="URL", help="where trials are kept, an SQLAlchemy URL (default: DIR/study.db)"
    )
    search.add_argument("--study", metavar="NAME", help="name of the study (default: the policy's)")
    sweep = parser.add_argument_group("effect of M and K, each alone")
    sweep.add_argument(
        "--sweep",
        nargs="+",
        type=_swept,
        metavar="M=a,b",
        help="values of M and of K (default: M=0,4,8 K=0,4,8,16)",
    )
    sweep.add_argument(
        "--sweep-events",
        type=int,
        default=EVENTS,
        metavar="N",
        help=f"events on which decisions are compared with the optimum, 0 for none [{EVENTS}]",
    )
    sweep.add_argument("--no-sweep", action="store_true", help="leave it out")
    add_point_options(parser)
    add_engine_options(parser)
    add_pool_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a run failed."""
    return guarded(_run, args)


def _run(args: argparse.Namespace) -> int:
    _check(args)
    plan, held_sources = _plan(args)
    command = _command(args, plan, held_sources)
    folder = folder_for(Path(args.folder))
    storage = args.storage or f"sqlite:///{(folder / 'study.db').resolve()}"
    jobs, progress = jobs_of(args.jobs), (False if args.quiet else args.progress or None)
    unit = "runs of baselines"
    try:
        references, failures = references_on(plan, plan.train, folder, jobs=jobs, progress=progress)
        if failures:
            return _failed(failures)
        unit = "trials"
        found = search(
            plan, references, folder, storage, args.study or f"topas-tune-{plan.policy}",
            trials=args.trials, jobs=jobs, progress=progress,
        )  # fmt: skip
        for trial in found.trials:
            if trial.reason:
                say(f"failed: trial {trial.index}: {trial.reason}")
        if found.best is None:
            return 1
        unit = "held-out runs"
        held_out, failures = hold_out(
            plan, found.best.params, held_sources, folder, jobs=jobs, progress=progress
        )
        if held_out is None:
            return _failed(failures)
        unit = "items of the sweep"
        swept = None
        if not args.no_sweep:
            values = {**VALUES, **dict(args.sweep or ())}
            swept = sweep(plan, held_sources, values, args.sweep_events, folder, jobs=jobs, progress=progress)
    except Interrupted as stop:
        say(f"interrupted: {stop.done} of {stop.total} {unit} are kept; the same command goes on from there")
        return 130
    if found.resumed and not args.quiet:
        say(f"{found.resumed} of {len(found.trials)} trials were done before")
    for reason in swept.failures if swept else ():
        say(f"failed: {reason}")
    _write(args, Tuning(command, plan, found, found.best, held_sources, held_out, swept))
    return 1 if (swept and swept.failures) or any(trial.reason for trial in found.trials) else 0


def _write(args: argparse.Namespace, tuning: Tuning) -> None:
    files = write_tuning(tuning, Path(args.folder))
    if args.json:
        done = {"resumed": tuning.found.resumed, "files": [str(path) for path in files]}
        print(json.dumps({**as_json(tuning), "timings": timing_rows(tuning), **done}))
    else:
        print(f"{screen(tuning)}\n\nwritten: {', '.join(map(str, files))}")


def _failed(failures: Mapping[Run, str]) -> int:
    for run, reason in failures.items():
        say(f"failed: {run}: {reason}")
    return 1


def _check(args: argparse.Namespace) -> None:
    """Refuse numbers out of range, and options that contradict each other."""
    if args.trials < 1:
        raise InputError(f"expected at least 1 trial, found {args.trials}", field="--trials")
    if not 0 <= args.prune < 1:
        raise InputError(f"expected a number from 0 to below 1, found {args.prune}", field="--prune")
    if args.sweep_events < 0:
        raise InputError(f"expected no negative number, found {args.sweep_events}", field="--sweep-events")
    if args.no_sweep and args.sweep:
        raise InputError("contradicts --no-sweep", field="--sweep")
    if args.sweep and len(dict(args.sweep)) < len(args.sweep):
        raise InputError("M or K is given twice", field="--sweep")
    if args.sweep_events and not args.no_sweep:
        solver_module("ortools")


def _plan(args: argparse.Namespace) -> tuple[TuningPlan, tuple[Source, ...]]:
    """Return what is tuned, and the held-out traces; all that can be wrong with them is found here."""
    (policy,) = known_policies([args.policy], "--policy")
    profile, base = engine_of(args), search_params_of(args)
    space = space_of(policy, args.parameters, base)
    train = tuple(sources_named(args.what, args, profile))
    plan = TuningPlan(
        policy=policy,
        base=base,
        space=space,
        train=train,
        profile=profile,
        baselines=tuple(baseline_names()),
        weights=Weights(*args.weights),
        seed=args.seed,
        prune=args.prune,
    )
    return plan, _held_out(args, plan)


def _held_out(args: argparse.Namespace, plan: TuningPlan) -> tuple[Source, ...]:
    seeds = args.held_out_seeds or HELD_OUT_SEEDS
    both = set(seeds) & set(args.seeds or SEEDS)
    if both:
        raise InputError(f"seed {min(both)} is trained on", field="--held-out-seeds")
    for one in args.held_out or ():
        if one in WORKLOADS:
            raise InputError(
                f"{one} is a workload: name it first, and its seeds by --held-out-seeds",
                field="--held-out",
            )
    drawn = [one for one in args.what if one in WORKLOADS and one not in FIXED]
    found = tuple(
        sources_named([*drawn, *(args.held_out or ())], args, plan.profile, lambda _: points_of(args, seeds))
    )
    if not found:
        raise InputError("needs traces to compare on: --held-out F", field="WORKLOAD-OR-TRACE")
    digests = {source.sha256 for source in plan.train if source.sha256}
    for source in found:
        if source.sha256 in digests:
            raise InputError(f"{source} is trained on", field="--held-out")
    return found


def _command(args: argparse.Namespace, plan: TuningPlan, held_sources: Sequence[Source]) -> str:
    """Return the command line that makes this again; a storage may hold a password and is left out."""
    drawn = any(source.rate_per_s is not None for source in (*plan.train, *held_sources))
    given: dict[str, object] = {**vars(args), "storage": None, **points_given(args, drawn=drawn)}
    if args.sweep:
        given["sweep"] = [f"{name}={joined(values)}" for name, values in args.sweep]
    if drawn:
        given["held_out_seeds"] = args.held_out_seeds or HELD_OUT_SEEDS
    words = ["tune", *args.what]
    return command_line(words, given, args.folder)


def _weights(text: str) -> tuple[float, float]:
    try:
        mean, p99 = (float(one) for one in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected two numbers as 1,1, found {text!r}") from None
    if not (0 <= mean < math.inf and 0 <= p99 < math.inf and mean + p99 > 0):
        raise argparse.ArgumentTypeError(f"expected weights, one of them above 0, found {text!r}")
    return mean, p99


def _swept(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, values = text.partition("=")
    if name not in SWEPT:
        raise argparse.ArgumentTypeError(f"expected M=a,b or K=a,b, found {text!r}")
    found = list_of(values, int)
    for value in found:
        try:
            validate(SearchParams, {name: value})
        except InputError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error.expected}") from None
    return name, found
