"""``topas oracle event``: the best joint state of single events."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from oracle.event import SOLVERS, gap, prepare, solve_event
from oracle.result import EventResult, Status
from topas.decision import Decision
from topas.errors import InputError
from topas.feasible import violations
from topas.formats import LoggedEvent, decision_json, read_events
from topas.online.search import select
from topas.score import score
from topas.units import to_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command and its options."""
    parser.description = (
        "Solve scheduling events exactly: the best of all sets of admissions and preemptions by"
        " the score that the policies use. The heuristic is the recorded decision of an event log, else"
        " that of `topas-paper`. The gap is (optimum - heuristic) / |optimum|, where the optimum is proved."
    )
    parser.epilog = "example: topas simulate t.jsonl --events e.jsonl; topas oracle event e.jsonl --json"
    parser.add_argument(
        "events",
        nargs="+",
        metavar="EVENT",
        help="event file (topas-event/1), or event log of `topas simulate --events`",
    )
    parser.add_argument("--solver", choices=SOLVERS, default="cp-sat", help="default: cp-sat")
    parser.add_argument(
        "--time-limit", type=float, default=10.0, metavar="S", help="seconds an event (default: 10)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list and nothing else")


@dataclass(frozen=True, slots=True)
class _SolvedEvent:
    """One solved event; ``heuristic_ns`` is None if the heuristic's decision is not feasible."""

    name: str
    result: EventResult
    heuristic_ns: int | None
    gap: float | None


def run(args: argparse.Namespace) -> int:
    """Run it."""
    if not 0 <= args.time_limit < math.inf:
        raise InputError(f"expected no negative number, found {args.time_limit}", field="--time-limit")
    prepare(args.solver)
    rows = (_solved(args, path, entry) for path in args.events for entry in read_events(path))
    if args.json:
        print(json.dumps([_json(row) for row in rows]))
        return 0
    width = max(len(path) for path in args.events) + 6
    heads = ("score s", "bound s", "heuristic s", "gap %", "solve s")
    print(f"{'event':<{width}} {'status':<10} " + " ".join(f"{head:>12}" for head in heads))
    for row in rows:
        print(f"{row.name:<{width}} {row.result.status:<10} " + " ".join(_cells(row)))
    return 0


def _solved(args: argparse.Namespace, path: str, entry: LoggedEvent) -> _SolvedEvent:
    event = entry.event
    try:
        result = solve_event(event, solver=args.solver, time_limit_s=args.time_limit)
    except InputError as error:
        raise error.at(source=path, line=entry.line) from None
    name = path if entry.line is None else f"{path}:{entry.line}"
    found = entry.decision or select(event)
    if violations(event, found):
        return _SolvedEvent(name, result, None, None)
    # Scored anew: the policy of a log may have judged by other parameters than the event's.
    heuristic_ns = score(event, found.admit, found.preempt).score_ns
    optimum = result.decision
    if (
        result.status is not Status.OPTIMAL
        or optimum is None
        or bool(optimum.resident) > bool(found.resident)
    ):
        return _SolvedEvent(name, result, heuristic_ns, None)
    return _SolvedEvent(name, result, heuristic_ns, gap(optimum.terms.score_ns, heuristic_ns))


def _json(row: _SolvedEvent) -> dict[str, Any]:
    result = row.result
    return {
        "event": row.name,
        "status": result.status,
        "decision": None if result.decision is None else decision_json(result.decision),
        "bound_s": _seconds(result.bound_ns),
        "heuristic_score_s": _seconds(row.heuristic_ns),
        "gap": row.gap,
        "solve_s": result.solve_s,
    }


def _cells(row: _SolvedEvent) -> Iterator[str]:
    decision: Decision | None = row.result.decision
    score_ns = None if decision is None else decision.terms.score_ns
    for value in (_seconds(score_ns), _seconds(row.result.bound_ns), _seconds(row.heuristic_ns)):
        yield f"{'-':>12}" if value is None else f"{value:>12.6f}"
    yield f"{'-':>12}" if row.gap is None else f"{100 * row.gap:>12.3f}"
    yield f"{row.result.solve_s:>12.4f}"


def _seconds(value_ns: int | None) -> float | None:
    return None if value_ns is None else to_s(value_ns)
