"""What a study of gaps leaves in its folder: page, JSON, tables, and the events with the largest gaps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from compare.gap import Study
from compare.gap_page import markdown
from compare.gap_stats import EventSummary, Judged, chosen, search_kind, worst
from compare.page import csv, parquet
from compare.pool import folder_for
from compare.whole import WholeTrace
from topas.decision import Decision, Terms
from topas.files import whole_file, write_all
from topas.formats import decision_json, event_json
from topas.units import to_s


def write_gap_report(study: Study, command: str, folder: Path, keep: int) -> tuple[Path, ...]:
    """Write ``report.md``, ``report.json``, ``events.csv``, ``events.parquet`` and the folder ``worst``.

    All but the solve times have the same bytes whenever the same items are done by the same versions.
    """
    contents = {
        "report.md": markdown(study, command, keep).encode(),
        "report.json": (json.dumps(as_json(study, command, keep), indent=1) + "\n").encode(),
    }
    if study.judged:
        table = events_table(study.judged)
        contents |= {"events.csv": csv(table), "events.parquet": parquet(table)}
    written = write_all(folder, contents)
    _write_worst(study, folder / "worst", keep)
    return written


def _write_worst(study: Study, folder: Path, keep: int) -> None:
    """Write the events of the largest gaps, each with the two decisions beside it."""
    for old in folder.glob("[0-9]*-*.json"):  # of an earlier run: they would pass for this one's
        old.unlink()
    for rank, one in enumerate(worst(study.judged, keep), start=1):
        values = {"gap": event_json(study.cases[one.file, one.index].event)}
        values["made"] = decision_json(one.verdict.made)
        if one.verdict.best is not None:
            values["optimum"] = decision_json(one.verdict.best)
        for name, value in values.items():
            path = folder_for(folder) / f"{rank:02d}-{name}.json"
            with whole_file(path) as stream:
                stream.write(json.dumps(value, indent=1) + "\n")


TERMS = tuple(field.name.removesuffix("_ns") for field in fields(Terms))


def events_table(judged: Sequence[Judged]) -> pd.DataFrame:
    """Return one row an event: the judged decision against the solver's; times and scores in seconds."""
    names = [
        *("group", "file", "index", "time_s", "waiting", "running", "agents", "search", "status"),
        *("made_s", "best_s", "bound_s", "gap", "gap_at_most"),
        *(f"{side}_{term}_s" for side in ("made", "best") for term in TERMS),
        *("same_resident", "same_admit", "same_preempt", "solve_s"),
    ]
    same = dict.fromkeys(("same_resident", "same_admit", "same_preempt"), "boolean")
    numbers = dict.fromkeys(names[9:-4], "float64")
    return pd.DataFrame([_event_row(one) for one in judged], columns=names).astype({**same, **numbers})


def _event_row(one: Judged) -> tuple[object, ...]:
    verdict = one.verdict
    made, best = verdict.made, verdict.best
    bound_s = None if verdict.bound_ns is None else to_s(verdict.bound_ns)
    best_s = None if best is None else best.terms.score_s
    pairs = zip(chosen(made), chosen(best), strict=True)
    return (
        *(one.group, one.file, one.index, verdict.time_s, verdict.waiting, verdict.running, verdict.agents),
        *(search_kind(one), verdict.status.value, made.terms.score_s, best_s, bound_s),
        *(verdict.gap, verdict.gap_at_most, *_terms_s(made), *_terms_s(best)),
        *(None if best is None else mine == other for mine, other in pairs),
        verdict.solve_s,
    )


def _terms_s(decision: Decision | None) -> tuple[float | None, ...]:
    if decision is None:
        return (None,) * len(TERMS)
    return tuple(to_s(getattr(decision.terms, f"{term}_ns")) for term in TERMS)


def as_json(study: Study, command: str, keep: int) -> dict[str, Any]:
    """Return the report as a JSON object."""
    summary = EventSummary.of(study.judged, keep)
    events = {
        "all": asdict(summary.all),
        "by": {name: [asdict(one) for one in own] for name, own in summary.by.items()},
        "differences": [asdict(one) for one in summary.differences],
        "tied": summary.tied,
        "sampled": study.sampled,
        "worst": [
            {"group": one.group, "file": one.file, "index": one.index, "gap": one.verdict.gap}
            for one in summary.worst
        ],
    }
    return {
        "version": version("topas"),
        "command": command,
        "settings": _settings_json(study),
        "events": events if study.judged else None,
        "traces": [_trace_json(one) for one in study.traces],
        "failed": [{"item": item, "reason": reason} for item, reason in study.failures.items()],
    }


def _settings_json(study: Study) -> dict[str, Any]:
    settings = study.settings
    plain = {"profile": settings.profile.model_dump(mode="json"), "params": asdict(settings.params)}
    return {**{field.name: getattr(settings, field.name) for field in fields(settings)}, **plain}


def _trace_json(trace: WholeTrace) -> dict[str, Any]:
    value = asdict(trace)
    if trace.split is not None:
        value["split"]["total_s"] = trace.split.total_s
    return value
