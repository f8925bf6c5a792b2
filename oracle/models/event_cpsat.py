"""The exact optimum of one event with CP-SAT: integer nanoseconds throughout, proved to the last one.

For a prefix set R' the score is linear, so the model is a multiple-choice knapsack under R':

    z_a in {0, 1}   agent a is in R'
    x_c in {0, 1}   column c (a set of ready requests of one task) is admitted
    y_q in {0, 1}   running request q stays
    v_a in N        a's share of the move charge: the tasks that wait while a's prefix is moved

    maximise  sum gain_c x_c - sum (redo_q + revoke_q)(1 - y_q) + sum reuse_a z_a - sum swap_a v_a
    at most one column a task;  sum l_a z_a + sum tokens_c x_c + sum d_q y_q <= B      (Eq. 2)
    x_c <= z_a for each agent a of c,  y_q <= z_a,  z_a <= sum of its x_c and y_q      (R' is used, wholly)
    v_a >= N if a is moved, that is if z_a differs from what it is now                 (Eq. 8)
    N = sum of x_c over the columns with an agent that is not resident                 (|T_in|)

together with K, the batch limit, and ``sum x + sum y >= 1``. Splitting ``T_move |T_in|`` by agent, and not
by task, makes it a matter of A small counts with the coefficients ``swap_a``; this closes large events
several times faster than one charge a task, since ``v_a`` is settled as soon as R' is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from oracle.columns import Columns, columns_of
from oracle.cuts import Cut, Gains, cut_at, first_cuts
from oracle.extra import solver_module
from oracle.models.answer import Answer, Limits
from oracle.models.cpsat import new_solver
from oracle.models.event_rows import limit_rows
from oracle.result import Status
from topas.decision import Decision
from topas.errors import InputError
from topas.problem import Problem
from topas.score import joint_gain_ns

EXACT_DOUBLE = 1 << 53
"""Integers up to here are doubles without error."""

Term = tuple[int, Any]
"""A coefficient and its variable."""


@dataclass(frozen=True, slots=True)
class _Free:
    """A task whose subsets are not listed: one Boolean a request, its gain under cuts."""

    task: int
    requests: range
    chosen: dict[int, Any]
    pays: Any
    gain: Any


@dataclass(slots=True)
class _Model:
    """The CP-SAT model, with what is needed to read its solutions."""

    problem: Problem
    gains: Gains
    columns: Columns
    cp: Any
    inside: list[Any]
    stays: list[Any]
    chosen: list[Any]
    free: list[_Free] = field(default_factory=list)
    waits: Any = None
    charged: dict[int, Any] = field(default_factory=dict)
    score: list[Term] = field(default_factory=list)
    constant_ns: int = 0
    last: Any = None

    def admitted(self) -> list[tuple[int, int, Any]]:
        """Return tokens, requests and variable of all that may be admitted."""
        table, reserve = self.columns.table, self.problem.tables.waiting["reserve"]
        listed = zip(table["tokens"].tolist(), table["requests"].tolist(), self.chosen, strict=True)
        return [*listed, *((int(reserve[k]), 1, x) for task in self.free for k, x in task.chosen.items())]

    def running(self) -> list[Any]:
        """Return the terms that add up to the number of requests running afterwards."""
        return [*(count * x for _, count, x in self.admitted()), *self.stays]

    def moved(self, agent: int, *, inside: bool) -> bool:
        """Return whether an agent's prefix moves if it is in R' or not."""
        return inside != bool(self.problem.tables.agents["resident"][agent])


def solve_cpsat(
    problem: Problem,
    limits: Limits,
    *,
    hint: Decision | None = None,
    tie_break: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Return the best non-empty state.

    ``hint`` is a feasible decision to start from. ``tie_break``: among the optimal states, one with the
    most requests running, among these one with the fewest prefix tokens moved. With one worker and no
    limit on time, the same problem gets the same answer.

    Raises
    ------
    InputError
        if OR-Tools is not installed, or the event's numbers leave the solver's range.
    """
    cp_model = solver_module("ortools.sat.python.cp_model")
    started = clock()
    model = _build(cp_model, problem)
    if hint is not None:
        _hint_decision(model, hint)
    objective = sum(factor * x for factor, x in model.score)
    model.cp.maximize(objective)

    def solver() -> Any:  # noqa: ANN401  ortools gives no types
        left_s = None if limits.time_s is None else limits.time_s - (clock() - started)
        found = _solver(limits, left_s)
        # Gains under cuts are integers of many values, along which the search would creep up by single ns.
        found.parameters.use_objective_lb_search = bool(model.free)
        return found

    answer = _close(model, solver, None)
    if not tie_break or answer.status is not Status.OPTIMAL or answer.claimed_ns is None:
        return answer
    best_ns = answer.claimed_ns
    _hint_solution(model)
    model.cp.add(objective >= best_ns - model.constant_ns)
    model.cp.maximize(_tie_break(model))
    tied = _close(model, solver, best_ns)
    if tied.claimed_ns != best_ns:
        return answer
    proved = tied.status is Status.OPTIMAL
    return Answer(Status.OPTIMAL, tied.admit, tied.preempt, best_ns, best_ns, ties_proved=proved)


# ------------------------------------------------------------------------------------------------ building


def _build(cp_model: Any, problem: Problem) -> _Model:  # noqa: ANN401  ortools gives no types
    cp, columns = cp_model.CpModel(), columns_of(problem)
    agents, _, running = problem.tables[:3]

    def binaries(count: int) -> list[Any]:
        return [cp.new_bool_var("") for _ in range(count)]

    model = _Model(
        problem,
        cache(partial(joint_gain_ns, problem)),
        columns,
        cp,
        inside=binaries(len(agents)),
        stays=binaries(len(running)),
        chosen=binaries(len(columns.table)),
    )
    users: list[list[Any]] = [[] for _ in problem.agents]
    for agent, stays in zip(running["agent"], model.stays, strict=True):
        users[agent].append(stays)
    paying = _add_columns(model, users)
    for task in columns.unlisted:
        _add_free(model, int(task), users, paying)
    for inside, uses in zip(model.inside, users, strict=True):
        for use in uses:
            cp.add_implication(use, inside)
        cp.add_bool_or([*uses, inside.Not()])
    for row in limit_rows(problem, model.inside, model.stays, model.admitted(), sum):
        cp.add(row)
    _add_move(model, paying)
    losses = running["redo_ns"] + running["revoke_ns"]
    model.constant_ns = -int(losses.sum())
    for factors, variables in (
        (columns.table["gain_ns"], model.chosen),
        (agents["reuse_ns"], model.inside),
        (losses, model.stays),
    ):
        model.score += zip(factors.tolist(), variables, strict=True)
    return model


def _add_columns(model: _Model, users: list[list[Any]]) -> list[Any]:
    """Add the tasks whose subsets are listed; return the variables of those columns that pay for moves."""
    columns, agent_of = model.columns, model.problem.tables.waiting["agent"]
    table = columns.table
    for some in np.split(np.arange(len(table)), np.flatnonzero(np.diff(table["task"])) + 1):
        if len(some) > 1:
            model.cp.add_at_most_one(model.chosen[i] for i in some)
    for i, x in enumerate(model.chosen):
        for agent in set(agent_of[columns.requests(i)].tolist()):
            users[agent].append(x)
    return [x for x, pays in zip(model.chosen, table["pays"], strict=True) if pays]


def _add_free(model: _Model, task: int, users: list[list[Any]], paying: list[Any]) -> None:
    """Add a task whose gain stands under cuts."""
    problem, cp, requests = model.problem, model.cp, model.problem.ready(task)
    waiting, resident = problem.tables.waiting, problem.tables.agents["resident"]
    chosen = {k: cp.new_bool_var("") for k in requests}
    last: dict[tuple[int, ...], int] = {}
    for k in requests:
        one = waiting[k]
        kind = (one["agent"], one["reserve"], one["stage"], one["work_ns"] * (one["stage"] >= 0))
        if kind in last:
            cp.add_implication(chosen[k], chosen[last[kind]])  # interchangeable: in canonical order
        last[kind] = k
    pays = cp.new_bool_var("")
    strangers = [x for k, x in chosen.items() if not resident[waiting["agent"][k]]]
    for x in strangers:
        cp.add_implication(x, pays)
    cp.add_bool_or([*strangers, pays.Not()])
    paying.append(pays)
    for k, x in chosen.items():
        users[waiting["agent"][k]].append(x)
    gain = cp.new_int_var(0, model.gains(task, tuple(requests)), "")
    model.score.append((1, gain))
    one = _Free(task, requests, chosen, pays, gain)
    for cut in first_cuts(problem, task, requests, model.gains):
        _add_cut(model, one, cut)
    model.free.append(one)


def _add_cut(model: _Model, one: _Free, cut: Cut) -> None:
    model.cp.add(
        one.gain <= cut.constant_ns + sum(slope * one.chosen[k] for k, slope in cut.slope_ns.items())
    )


def _add_move(model: _Model, paying: list[Any]) -> None:
    """Add ``T_move |T_in|``, one share an agent."""
    if not paying:
        return
    cp, swaps_ns = model.cp, model.problem.tables.agents["swap_ns"].tolist()
    model.waits = cp.new_int_var(0, len(paying), "")
    cp.add(model.waits == sum(paying))
    for a, (inside, swap_ns) in enumerate(zip(model.inside, swaps_ns, strict=True)):
        if swap_ns:
            charged = cp.new_int_var(0, len(paying), "")
            moved = inside if model.moved(a, inside=True) else inside.Not()
            cp.add(charged >= model.waits).only_enforce_if(moved)
            model.charged[a] = charged
            model.score.append((-swap_ns, charged))


def _tie_break(model: _Model) -> Any:  # noqa: ANN401  ortools gives no types
    """Return what to maximise among equal scores: requests running, then prefix tokens left in place."""
    prefix = model.problem.tables.agents["prefix"].tolist()
    staying = [
        tokens * (1 - inside if model.moved(a, inside=True) else inside)
        for a, (tokens, inside) in enumerate(zip(prefix, model.inside, strict=True))
    ]
    return (sum(prefix) + 1) * sum(model.running()) + sum(staying)


def _hint_decision(model: _Model, decision: Decision) -> None:
    """Start from a decision."""
    problem, cp = model.problem, model.cp
    admit, preempt, resident = set(decision.admit), set(decision.preempt), set(decision.resident)
    sets: dict[str, list[int]] = {}
    for k, request in enumerate(problem.waiting):
        if request.id in admit:
            sets.setdefault(request.task, []).append(k)
    wanted = list(sets.values())
    # A set that was left out as a column, for another one or because it cannot fit, stays without a hint.
    chosen = [model.columns.requests(i) in wanted for i in range(len(model.chosen))]
    for x, here in zip(model.chosen, chosen, strict=True):
        cp.add_hint(x, here)
    for one in model.free:
        for k, x in one.chosen.items():
            cp.add_hint(x, problem.waiting[k].id in admit)
    for agent, inside in zip(problem.agents, model.inside, strict=True):
        cp.add_hint(inside, agent in resident)
    for request, stays in zip(problem.running, model.stays, strict=True):
        cp.add_hint(stays, request.id not in preempt)
    if model.waits is not None and not model.free:
        waits = int(model.columns.table["pays"][chosen].sum())
        cp.add_hint(model.waits, waits)
        for a, charged in model.charged.items():
            cp.add_hint(charged, waits if model.moved(a, inside=problem.agents[a] in resident) else 0)


def _hint_solution(model: _Model) -> None:
    """Start from the last solution."""
    model.cp.clear_hints()
    free = [x for one in model.free for x in (*one.chosen.values(), one.pays, one.gain)]
    counts = [*model.charged.values(), *([] if model.waits is None else [model.waits])]
    for x in (*model.inside, *model.stays, *model.chosen, *free, *counts):
        model.cp.add_hint(x, model.last.value(x))


# ----------------------------------------------------------------------------------------------- solving


def _solver(limits: Limits, left_s: float | None) -> Any:  # noqa: ANN401  no types
    solver = new_solver(time_s=left_s, seed=limits.seed, workers=limits.workers, work=limits.work)
    # The relaxation is what proves; the default leaves half of it out.
    solver.parameters.linearization_level = 2
    return solver


def _close(model: _Model, make_solver: Callable[[], Any], fixed_ns: int | None) -> Answer:
    """Solve, cutting off claimed gains that are none, until the claim is true or a limit strikes.

    ``fixed_ns`` is the score while ties are broken, when the objective is another one.
    """
    best = Answer(Status.UNKNOWN)
    bound_ns: int | None = None
    while True:
        solver = make_solver()
        status = solver.status_name(solver.solve(model.cp))
        if status == "INFEASIBLE":
            return Answer(Status.INFEASIBLE)
        if status == "MODEL_INVALID":
            raise InputError("has numbers too large for CP-SAT: the score may leave 64 bits")
        if status == "UNKNOWN":  # its bound means nothing then: 0 if the model was not even loaded
            return Answer(best.status, best.admit, best.preempt, best.claimed_ns, bound_ns)
        if fixed_ns is None:
            bound_ns = _least(bound_ns, model.constant_ns + _bound(solver))
        model.last = solver
        found, true = _read(model, solver)
        if best.claimed_ns is None or (found.claimed_ns or 0) > best.claimed_ns:
            best = Answer(Status.FEASIBLE, found.admit, found.preempt, found.claimed_ns)
        if true and status == "OPTIMAL":
            return Answer(Status.OPTIMAL, found.admit, found.preempt, found.claimed_ns, found.claimed_ns)
        if status != "OPTIMAL":
            return Answer(best.status, best.admit, best.preempt, best.claimed_ns, bound_ns)


def _read(model: _Model, solver: Any) -> tuple[Answer, bool]:  # noqa: ANN401  ortools gives no types
    """Return the solution with its true gains, and whether the model claims no more than these.

    Where it does, the cut that says so is added.
    """
    claimed_ns = model.constant_ns + sum(factor * solver.value(x) for factor, x in model.score)
    admit = [k for i, x in enumerate(model.chosen) if solver.value(x) for k in model.columns.requests(i)]
    true = True
    for one in model.free:
        some = [k for k, x in one.chosen.items() if solver.value(x)]
        excess_ns = solver.value(one.gain) - model.gains(one.task, tuple(some))
        if excess_ns > 0:
            true = False
            cut = cut_at(model.problem, one.task, one.requests, frozenset(some), model.gains)
            _add_cut(model, one, cut)
        claimed_ns -= excess_ns
        admit += some
    preempt = tuple(q for q, y in enumerate(model.stays) if not solver.value(y))
    # A charge above its least value can only stand in a solution that is not proved optimal.
    waits = 0 if model.waits is None else solver.value(model.waits)
    swap_ns = model.problem.tables.agents["swap_ns"].tolist()
    for a, charged in model.charged.items():
        moved = model.moved(a, inside=bool(solver.value(model.inside[a])))
        claimed_ns += swap_ns[a] * (solver.value(charged) - (waits if moved else 0))
    return Answer(Status.FEASIBLE, tuple(admit), preempt, claimed_ns), true


def _bound(solver: Any) -> int:  # noqa: ANN401  ortools gives no types
    """Return the solver's bound as an integer that is not below it, though it comes as a double."""
    bound = float(solver.best_objective_bound)
    return math.ceil(bound if abs(bound) < EXACT_DOUBLE else math.nextafter(bound, math.inf))


def _least(known: int | None, found: int) -> int:
    return found if known is None else min(known, found)
