"""What tuning leaves in its folder: page, JSON, tables, and the configuration."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from compare.cell import source_content
from compare.stats import Summary
from compare.tuning.config_file import config_text
from compare.tuning.held_out import DEFAULT, JCT, HeldOut
from compare.tuning.outcome import Tuning
from compare.tuning.space import in_words
from compare.tuning.study import State
from compare.tuning.sweep import DECISION, Sweep
from compare.tuning.tune_page import markdown, outcome_in_words, traces_in_words
from topas.files import write_all
from topas.params import values_of


def write_tuning(tuning: Tuning, folder: Path) -> tuple[Path, ...]:
    """Write ``report.md``, ``results.json``, ``topas.yaml`` and the tables.

    All but ``timings.csv``, and the decision times in the report, have the same bytes whenever the same
    version does the same.
    """
    contents = {
        "report.md": markdown(tuning),
        "results.json": json.dumps(as_json(tuning), indent=1) + "\n",
        "topas.yaml": config_text(tuning.best.params, tuning.plan.base, _comments(tuning)),
        "trials.csv": _csv(trial_rows(tuning)),
        "held_out.csv": _csv(held_out_rows(tuning.held_out)),
        "timings.csv": _csv(timing_rows(tuning)),
    }
    if tuning.sweep is not None:
        contents["sweep.csv"] = _csv(sweep_rows(tuning.sweep))
    return write_all(folder, {name: text.encode() for name, text in contents.items()})


def _comments(tuning: Tuning) -> list[str]:
    plan, best = tuning.plan, tuning.best
    return [
        f"Parameters of {plan.policy}, tuned in the simulator by topas {version('topas')}:",
        f"  {tuning.command}",
        f"Profile {plan.profile.name}. Trained on {traces_in_words(plan.train, plan)}.",
        f"Trial {best.index} of {len(tuning.found.trials)}. {outcome_in_words(tuning.held_out)}",
        "A server needs its own profile, agents and workflows beside this.",
    ]


def trial_rows(tuning: Tuning) -> list[dict[str, object]]:
    """Return a row a trial; the loss is that of the cells that ran."""
    names = list(tuning.plan.space)
    return [
        {
            "trial": one.index,
            "state": one.state.value,
            "cells": one.cells,
            "loss": one.loss,
            **values_of(one.params, names),
            "reason": one.reason,
        }
        for one in tuning.found.trials
    ]


def held_out_rows(held_out: HeldOut) -> list[dict[str, object]]:
    """Return a row a held-out trace and arm."""
    rows = []
    for row in held_out.rows:
        source = row.result.cell.source
        place = {name: getattr(source, name) for name in ("workload", "load", "rate_per_s", "seed", "tasks")}
        times = {name: row.result.metrics[name] for name in JCT}
        rows.append({**place, "arm": row.arm, **times, "loss": row.loss})
    return rows


def sweep_rows(sweep: Sweep) -> list[dict[str, object]]:
    """Return a row a policy and setting; only those that maximise the score have gaps."""
    gaps = {(one.policy, one.setting): one for one in sweep.gaps}
    rows: list[dict[str, object]] = []
    for one in sweep.played:
        row: dict[str, object] = {"policy": one.policy, "M": one.setting.M, "K": one.setting.K}
        row |= {"mean_jct_s": one.mean_jct_s, "p99_jct_s": one.p99_jct_s}
        for name in JCT:
            found = one.changes.get(name)
            row |= {
                f"{name}_change_{part}": found and getattr(found, part) for part in ("mean", "low", "high")
            }
        judged = gaps.get((one.policy, one.setting))
        for side in ("capped", "free"):
            own = None if judged is None else getattr(judged, side)
            row |= {f"{side}_proved": own and own.count, f"{side}_exact": own and own.exact}
            row |= {f"{side}_mean_gap": own and own.mean, f"{side}_p95_gap": own and own.p95}
        rows.append(row)
    return rows


def timing_rows(tuning: Tuning) -> list[dict[str, object]]:
    """Return decision times: of every held-out run, and of the sweep's settings."""
    rows: list[dict[str, object]] = []
    for row in tuning.held_out.rows:
        source = row.result.cell.source
        head = {"policy": row.result.cell.policy, "what": row.arm, "workload": source.workload}
        place = {"rate_per_s": source.rate_per_s, "seed": source.seed}
        rows.append({**head, **place, **{name: row.result.metrics[name] for name in DECISION}})
    for one in tuning.sweep.played if tuning.sweep else ():
        head = {"policy": one.policy, "what": str(one.setting), "workload": "all"}
        times = {name: getattr(one, name) for name in DECISION}
        rows.append({**head, "rate_per_s": None, "seed": None, **times})
    return rows


def _csv(rows: Iterable[dict[str, object]]) -> str:
    rows = list(rows)
    stream = StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def as_json(tuning: Tuning) -> dict[str, Any]:
    """Return the report as a JSON object, without the times that no rerun reproduces."""
    plan, found, best = tuning.plan, tuning.found, tuning.best
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
        "train": [source_content(source) for source in plan.train],
        "held_out": {
            "traces": [source_content(source) for source in tuning.held_sources],
            "loss": tuning.held_out.loss,
            "tuned_against_default": {name: asdict(one) for name, one in tuning.held_out.overall.items()},
            "against_best_baseline": _summaries(tuning.held_out.against_best),
            "against_default": _summaries(tuning.held_out.against_default),
        },
        "sweep": None if tuning.sweep is None else _sweep_json(tuning.sweep),
    }


def _summaries(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    return [{**asdict(one), "profile": one.profile.name} for one in summaries]


def _sweep_json(sweep: Sweep) -> dict[str, Any]:
    value = asdict(sweep)
    for one in value["played"]:
        for name in DECISION:
            del one[name]
    return value
