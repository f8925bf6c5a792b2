"""What a study of gaps leaves in its folder: page, JSON, tables, and the events with the largest gaps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from compare.gap import Gaps
from compare.gap_tables import GROUPINGS, differences, share, tallies, tally, tied, worst
from compare.page import csv, markdown_table, number, parquet, percent, render
from compare.pool import folder_for
from topas.files import whole_file, write_all
from topas.formats import decision_json, event_json
from topas.params import params_in_words

HEADINGS = {"group": "By source", "waiting": "By waiting requests", "search": "By how agents are searched"}
_NUMBERS = ("mean", "median", "p95", "p99", "max")


def write_gap_report(gaps: Gaps, command: str, folder: Path, keep: int) -> tuple[Path, ...]:
    """Write ``report.md``, ``report.json``, ``events.csv``, ``events.parquet`` and the folder ``worst``.

    All but the solve times have the same bytes whenever the same items are done by the same versions.
    """
    contents = {
        "report.md": markdown(gaps, command, keep).encode(),
        "report.json": (json.dumps(as_json(gaps, command, keep), indent=1) + "\n").encode(),
    }
    if len(gaps.events):
        contents |= {"events.csv": csv(gaps.events), "events.parquet": parquet(gaps.events)}
    written = write_all(folder, contents)
    _write_worst(gaps, folder / "worst", keep)
    return written


def _write_worst(gaps: Gaps, folder: Path, keep: int) -> None:
    """Write the events of the largest gaps, each with the two decisions beside it."""
    for old in folder.glob("[0-9]*-*.json"):  # of an earlier run: they would pass for this one's
        old.unlink()
    for rank, (file, index) in enumerate(_places(worst(gaps.events, keep)), start=1):
        case, verdict = gaps.cases[file, index], gaps.verdicts[file, index]
        values = {"gap": event_json(case.event), "made": decision_json(verdict.made)}
        if verdict.best is not None:
            values["optimum"] = decision_json(verdict.best)
        for name, value in values.items():
            with whole_file(folder_for(folder) / f"{rank:02d}-{name}.json") as stream:
                stream.write(json.dumps(value, indent=1) + "\n")


def _places(events: pd.DataFrame) -> list[tuple[str, int]]:
    return list(zip(events["file"], events["index"], strict=True))


def as_json(gaps: Gaps, command: str, keep: int) -> dict[str, Any]:
    """Return the report as a JSON object."""
    behind = worst(gaps.events, keep)
    events = {
        **_tallied(gaps.events),
        "differences": differences(gaps.events),
        "tied": tied(gaps.events),
        "sampled": gaps.sampled,
        "worst": behind[["group", "file", "index", "gap"]].to_dict("records"),
    }
    settings = gaps.settings
    plain = {"profile": settings.profile.model_dump(mode="json"), "params": asdict(settings.params)}
    return {
        "version": version("topas"),
        "command": command,
        "settings": {**{item.name: getattr(settings, item.name) for item in fields(settings)}, **plain},
        "events": events if len(gaps.events) else None,
        "traces": list(gaps.traces),
        "failed": [{"item": item, "reason": reason} for item, reason in gaps.failures.items()],
    }


def _tallied(events: pd.DataFrame) -> dict[str, Any]:
    by = {name: tallies(events, names(events)) for name, names in GROUPINGS.items()}
    return {"all": tally("all events", events), "by": by}


def markdown(gaps: Gaps, command: str, keep: int) -> str:
    """Return the page: what was done, per-event gaps with the ``keep`` largest ones, whole traces."""
    return render(
        "gap",
        settings=gaps.settings,
        params=params_in_words(gaps.settings.params),
        command=command,
        failures=gaps.failures,
        summary=summary_text(gaps, keep),
    )


def summary_text(gaps: Gaps, keep: int) -> str:
    """Return the tables of the page."""
    found = _tallied(gaps.events)
    proved = found["all"]["proved"]
    behind = proved["count"] - proved["exact"]
    text = render(
        "gap_summary",
        gaps=gaps,
        all=found["all"],
        by={name: some for name, some in found["by"].items() if len(some) > 1},
        groups=found["by"]["group"],
        headings=HEADINGS,
        tied=tied(gaps.events),
        behind=behind,
        difference_table=_difference_table(gaps.events, behind) if behind else "",
        worst_table=_worst_table(worst(gaps.events, keep)) if keep and behind else "",
        tally_table=tally_table,
        bounded_table=bounded_table,
        bounds_table=bounds_table,
        whole_table=whole_table,
        split_table=split_table,
    )
    return text.rstrip()


def tally_table(key: str, some: Sequence[Mapping[str, Any]]) -> str:
    """Return tallies as a Markdown table, events without a proof at its right."""
    rows = []
    for one in some:
        apart = (str(count) for count in (one["bounded"]["count"], one["unknown"], one["infeasible"]))
        rows.append([one["name"], str(one["events"]), *_numbers(one["proved"]), *apart])
    heads = (
        "events",
        "proved",
        "exact",
        "within 1 %",
        "worse",
        *_NUMBERS,
        "bounded",
        "unknown",
        "infeasible",
    )
    return markdown_table([key, *heads], rows)


def bounded_table(some: Sequence[Mapping[str, Any]]) -> str:
    """Return the gaps of events without a proof, which are upper limits."""
    rows = [[one["name"], *_numbers(one["bounded"])] for one in some]
    return markdown_table(["", "bounded", "at most 0", "at most 1 %", "more", *_NUMBERS], rows)


def _numbers(own: Mapping[str, Any]) -> list[str]:
    counts = [str(own[name]) for name in ("count", "exact", "near", "worse")]
    return [*counts, *(share(own[name]) for name in _NUMBERS)]


def _difference_table(events: pd.DataFrame, behind: int) -> str:
    rows = []
    for one in differences(events):
        net = "" if one["net_s"] is None else f"{one['net_s']:+.6f}"
        rows.append([one["name"], str(one["events"]), share(one["events"] / behind), net])
    return markdown_table(["difference", "events", "share", "optimum - decision, s"], rows)


def _worst_table(some: pd.DataFrame) -> str:
    rows = []
    for rank, one in enumerate(some.to_dict("records"), start=1):
        counts = (str(one[name]) for name in ("waiting", "running", "agents"))
        scores = (f"{one[name]:.6f}" for name in ("made_s", "best_s"))
        rows.append([f"{rank:02d}", f"{one['file']}:{one['index']}", *counts, *scores, share(one["gap"])])
    heads = ["in `worst/`", "event", "waiting", "running", "agents", "score, s", "optimum, s", "gap"]
    return markdown_table(heads, rows)


def bounds_table(bounds: Mapping[str, Any]) -> str:
    """Return all bounds of a trace, and those that do not apply."""
    rows = [[f"`{one['name']}`", number(one["mean_jct_s"]), one["status"]] for one in bounds["values"]]
    rows += [[f"`{name}`", "", reason] for name, reason in bounds["refused"]]
    return markdown_table(["lower bound", "mean JCT", "status"], rows)


def whole_table(trace: Mapping[str, Any]) -> str:
    """Return a trace's table: the best bound, the best known schedule, every policy."""
    rows = []
    if trace["bounds"] is not None:
        bound = trace["bounds"]["best"]
        rows.append([f"best bound: `{bound['name']}`", number(bound["mean_jct_s"]), "", "", "", ""])
    if trace["best"] is not None:
        best = trace["best"]
        rows.append([f"best known: `{best['found']}`", *_jct(best), _percent(best["over_bound"]), ""])
    for row in trace["rows"]:
        over = (_percent(row["over_bound"]), _percent(row["over_best"]))
        rows.append([f"`{row['policy']}`", *_jct(row), *over])
    heads = ["mean JCT", "p99 JCT", "largest JCT", "to the bound", "to the best known"]
    return markdown_table(["", *heads], rows)


def _jct(row: Mapping[str, Any]) -> list[str]:
    return [number(row[name]) for name in ("mean_jct_s", "p99_jct_s", "max_jct_s")]


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else percent(fraction)


def split_table(split: Mapping[str, Any]) -> str:
    """Return where the distance of a policy to the bound comes from."""
    parts = {name: split[f"{name}_s"] for name in ("search", "score", "unexplained")}
    parts[f"`{split['policy']}` - bound"] = total = split["total_s"]
    rows = [[name, f"{one:+.3f}", percent(one / total) if total > 0 else ""] for name, one in parts.items()]
    return markdown_table(["mean JCT lost to", "s", "share"], rows)
