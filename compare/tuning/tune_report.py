"""What tuning leaves in its folder: page, JSON, tables, and the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from compare.change import JCT
from compare.comparison import SHOWN_TAILS, sources_in_words, tail_table
from compare.gap import PAPER
from compare.page import change, csv, markdown_table, number, percent, records, render
from compare.source import Source
from compare.study import TIMINGS
from compare.tuning.config_file import config_text, scalar
from compare.tuning.held_out import DEFAULT, TUNED, HeldOut
from compare.tuning.plan import TuningPlan
from compare.tuning.search import ENOUGH, Found, State, Trial
from compare.tuning.space import in_words
from compare.tuning.sweep import SCORED, Setting, Sweep
from topas.event import Params
from topas.files import write_all
from topas.params import params_in_words, values_of


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was asked and what was found.

    ``command`` is the command line that makes it again; the parameters of the trial ``best`` are the tuned
    ones; ``sweep`` is None if it was left out.
    """

    command: str
    plan: TuningPlan
    found: Found
    best: Trial
    held_sources: tuple[Source, ...]
    held_out: HeldOut
    sweep: Sweep | None


def write_tuning(tuning: Tuning, folder: Path) -> tuple[Path, ...]:
    """Write ``report.md``, ``results.json``, ``topas.yaml`` and the tables.

    All but ``timings.csv``, and the decision times in the report, have the same bytes whenever the same
    version does the same.
    """
    contents = {
        "report.md": markdown(tuning).encode(),
        "results.json": (json.dumps(as_json(tuning), indent=1) + "\n").encode(),
        "topas.yaml": config_text(tuning.best.params, tuning.plan.base, _comments(tuning)).encode(),
        "trials.csv": csv(trials_table(tuning)),
        "held_out.csv": csv(_held_out_table(tuning.held_out)),
        "tails.csv": csv(tuning.held_out.tails),
        "timings.csv": csv(pd.DataFrame(timing_rows(tuning))),
    }
    if tuning.sweep is not None:
        contents["sweep.csv"] = csv(sweep_table(tuning.sweep))
    return write_all(folder, contents)


def _comments(tuning: Tuning) -> list[str]:
    plan, best = tuning.plan, tuning.best
    trained = "; ".join(f"{name}: {text}" for name, text in _traces(plan.train))
    return [
        f"Parameters of {plan.policy}, tuned in the simulator by topas {version('topas')}:",
        f"  {tuning.command}",
        f"Profile {plan.profile.name}. Trained on {trained}.",
        f"Trial {best.index} of {len(tuning.found.trials)}. {outcome_in_words(tuning.held_out)}",
        "A server needs its own profile, agents and workflows beside this.",
    ]


def trials_table(tuning: Tuning) -> pd.DataFrame:
    """Return a row a trial; the loss is that of the cells that ran."""
    names = list(tuning.plan.space)
    return pd.DataFrame(
        {
            "trial": one.index,
            "state": one.state.value,
            "cells": one.cells,
            "loss": one.loss,
            **values_of(one.params, names),
            "reason": one.reason,
        }
        for one in tuning.found.trials
    )


def _held_out_table(held_out: HeldOut) -> pd.DataFrame:
    names = ["workload", "load", "rate_per_s", "seed", "tasks", "policy", *JCT, "loss"]
    return held_out.runs[names].rename(columns={"policy": "arm"})


def sweep_table(sweep: Sweep) -> pd.DataFrame:
    """Return a row a policy and setting; only those that maximise the score have gaps."""
    gaps = {(one["policy"], Setting(**one["setting"])): one for one in sweep.gaps}
    rows: list[dict[str, object]] = []
    for one in sweep.played:
        row = {"policy": one["policy"], **one["setting"], **{name: one[name] for name in JCT}}
        for name in JCT:
            found = one["changes"].get(name, {})
            row |= {f"{name}_{part}": found.get(part) for part in ("change", "low", "high")}
        judged = gaps.get((one["policy"], Setting(**one["setting"])), {})
        for side in ("capped", "free"):
            own = judged.get(side, {})
            row |= {f"{side}_proved": own.get("count"), f"{side}_exact": own.get("exact")}
            row |= {f"{side}_mean_gap": own.get("mean"), f"{side}_p95_gap": own.get("p95")}
        rows.append(row)
    counts = [f"{side}_{count}" for side in ("capped", "free") for count in ("proved", "exact")]
    return pd.DataFrame(rows).astype(dict.fromkeys(counts, "Int64"))


def timing_rows(tuning: Tuning) -> list[dict[str, Any]]:
    """Return decision times: of every held-out run, and of the sweep's settings."""
    runs = tuning.held_out.runs.rename(columns={"policy": "what"})
    policies = [tuning.plan.policy if arm in (DEFAULT, TUNED) else arm for arm in runs["what"]]
    runs = runs.assign(policy=policies)[["policy", "what", "workload", "rate_per_s", "seed", *TIMINGS]]
    rows = records(runs)
    for one in tuning.sweep.played if tuning.sweep else ():
        head = {"policy": one["policy"], "what": str(Setting(**one["setting"])), "workload": "all"}
        rows.append({**head, "rate_per_s": None, "seed": None, **{name: one[name] for name in TIMINGS}})
    return rows


def as_json(tuning: Tuning) -> dict[str, Any]:
    """Return the report as a JSON object, without the times that no rerun reproduces."""
    plan, found, best, held_out = tuning.plan, tuning.found, tuning.best, tuning.held_out
    names = list(plan.space)
    importance = found.importance
    return {
        "version": version("topas"),
        "command": tuning.command,
        "policy": plan.policy,
        "profile": plan.profile.name,
        "baselines": plan.baselines,
        "weights": asdict(plan.weights),
        "seed": plan.seed,
        "prune": plan.prune,
        "parameters": [
            {
                "name": name,
                "range": in_words(name, plan.space[name]),
                DEFAULT: values_of(plan.base, names)[name],
                "tuned": values_of(best.params, names)[name],
                "importance": None if importance is None else importance.get(name, 0.0),
            }
            for name in names
        ],
        "config": asdict(best.params),
        "trials": {
            **{state.value: len(found.of(state)) for state in State},
            "best": best.index,
            "best_loss": best.loss,
            "default_loss": found.trials[0].loss,
        },
        "train": [source.content() for source in plan.train],
        "held_out": {
            "traces": [source.content() for source in tuning.held_sources],
            "loss": held_out.loss,
            "tuned_against_default": {row.pop("metric"): row for row in records(held_out.overall)},
            "against_best_baseline": records(held_out.against_best),
            "against_default": records(held_out.against_default),
        },
        "sweep": None if tuning.sweep is None else _sweep_json(tuning.sweep),
    }


def _sweep_json(sweep: Sweep) -> dict[str, Any]:
    value = asdict(sweep)
    for one in value["played"]:
        for name in TIMINGS:
            del one[name]
    return value


def markdown(tuning: Tuning) -> str:
    """Return the page."""
    plan, held_out = tuning.plan, tuning.held_out
    return render(
        "tune",
        tuning=tuning,
        plan=plan,
        counts=", ".join(f"{len(tuning.found.of(state))} {state.value}" for state in State),
        failed=tuning.found.of(State.FAILED),
        complete=len(tuning.found.of(State.COMPLETE)),
        enough=ENOUGH,
        train=_traces(plan.train),
        held=_traces(tuning.held_sources),
        default=params_in_words(plan.base.on(Params())),
        loss=_loss,
        outcome=outcome_in_words(held_out),
        overall_table=markdown_table(
            ["", "tuned against default"],
            [[JCT[row["metric"]], change(row)] for row in records(held_out.overall)],
        ),
        workload_table=_workload_table(held_out),
        tail_table=tail_table(held_out.tails, [*plan.baselines, DEFAULT, TUNED]),
        most=SHOWN_TAILS,
        time_table=_time_table(held_out.runs),
        parameter_table=_parameter_table(tuning),
        sweep_tables=_sweep_tables(tuning.sweep),
        gap_table=_gap_table(tuning.sweep),
        paper=PAPER,
        scored=SCORED,
    )


def screen(tuning: Tuning) -> str:
    """Return what a terminal shows: the outcome and the parameters."""
    return f"{outcome_in_words(tuning.held_out)}\n\n{_parameter_table(tuning)}"


def outcome_in_words(held_out: HeldOut) -> str:
    """Say what tuning brought on the held-out traces."""
    rows = records(held_out.overall)
    text = "Tuned against default on held-out traces: "
    text += ", ".join(f"{JCT[row['metric']]} {change(row)}" for row in rows) + "."
    if any(row["low"] is None for row in rows):
        return text + " One draw has no interval."
    if all(row["low"] <= 0 <= row["high"] for row in rows):
        return text + " No difference beyond noise."
    return text


def _traces(sources: Sequence[Source]) -> list[tuple[str, str]]:
    found: dict[str, list[Source]] = {}
    for source in sources:
        found.setdefault(source.workload, []).append(source)
    return [(name, sources_in_words(own)) for name, own in found.items()]


def _loss(value: float | None) -> str:
    return "none" if value is None else f"{value:+.4f}"


def _workload_table(held_out: HeldOut) -> str:
    best = {(row["workload"], row["metric"], row["policy"]): row for row in records(held_out.against_best)}
    rows = []
    for against in records(held_out.against_default):
        workload, metric = against["workload"], against["metric"]
        arms = [best[workload, metric, arm] for arm in (DEFAULT, TUNED)]
        rival, value = arms[0]["best_baseline"], arms[0]["best_value"]
        cells = [
            number(one["value"]) + ("" if one["change"] is None else f"<br>{change(one)}") for one in arms
        ]
        last = "" if against["change"] is None else change(against)
        first = f"`{rival}` {number(value)}" if rival else "-"
        rows.append([f"`{workload}`", f"{JCT[metric]}, s", first, *cells, last])
    return markdown_table(["workload", "", "best baseline", DEFAULT, TUNED, "tuned against default"], rows)


def _time_table(runs: pd.DataFrame) -> str:
    means = runs.groupby("policy")[list(TIMINGS)].mean()
    rows = [[arm, *map(number, means.loc[arm])] for arm in (DEFAULT, TUNED)]
    return markdown_table(["", "mean, ms", "p99, ms"], rows)


def _parameter_table(tuning: Tuning) -> str:
    space, importance = tuning.plan.space, tuning.found.importance
    names = list(space)
    before, after = values_of(tuning.plan.base, names), values_of(tuning.best.params, names)
    heads = ["parameter", "range", DEFAULT, TUNED]
    rows = [[f"`{n}`", in_words(n, space[n]), scalar(before[n]), scalar(after[n])] for n in names]
    if importance is not None:
        heads.append("importance")
        rows = [[*row, f"{importance.get(n, 0.0):.2f}"] for n, row in zip(names, rows, strict=True)]
    return markdown_table(heads, rows)


def _sweep_tables(sweep: Sweep | None) -> dict[str, str]:
    """Return a table a policy."""
    if sweep is None:
        return {}
    heads = ["setting", *(head for name in JCT.values() for head in (f"{name}, s", "change"))]
    tables = {}
    for policy in dict.fromkeys(one["policy"] for one in sweep.played):
        rows = []
        for one in (own for own in sweep.played if own["policy"] == policy):
            setting = Setting(**one["setting"])
            row = [str(setting)]
            for name in JCT:
                found = one["changes"].get(name)
                row += [number(one[name]), "" if setting == sweep.base or not found else change(found)]
            rows.append([*row, *(number(one[name]) for name in TIMINGS)])
        tables[policy] = markdown_table([*heads, "decision mean, ms", "p99, ms"], rows)
    return tables


def _gap_table(sweep: Sweep | None) -> str:
    rows = [
        [f"`{one['policy']}`", str(Setting(**one["setting"])), *_gaps(one["capped"]), *_gaps(one["free"])[2:]]
        for one in (sweep.gaps if sweep else ())
    ]
    heads = ["policy", "setting", "proved", "exact", "mean gap", "p95", "mean gap, no cap", "p95"]
    return markdown_table(heads, rows) if rows else ""


def _gaps(one: Mapping[str, Any]) -> list[str]:
    numbers: Iterable[float | None] = (one["mean"], one["p95"])
    texts = ["-" if value is None else percent(value).removeprefix("+") for value in numbers]
    return [str(one["count"]), str(one["exact"]), *texts]
