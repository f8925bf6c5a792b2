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

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from oracle.columns import Column, Gains, columns_of, is_listed, kinds_of, ready_of
from oracle.cuts import Cut, cut_at, first_cuts
from oracle.extra import solver_module
from oracle.models.answer import Answer, Limits
from oracle.models.cpsat import new_solver
from oracle.result import Status
from topas.decision import Decision
from topas.errors import InputError
from topas.problem import Problem

EXACT_DOUBLE = 1 << 53
"""Integers up to here are doubles without error."""

Term = tuple[int, Any]
"""A coefficient and its variable."""


@dataclass(frozen=True, slots=True)
class _Free:
    """A task whose subsets are not listed: one Boolean a request, its gain under cuts."""

    task: int
    requests: list[int]
    chosen: dict[int, Any]
    pays: Any
    gain: Any


@dataclass(slots=True)
class _Model:
    """The CP-SAT model, with what is needed to read its solutions."""

    problem: Problem
    gains: Gains
    cp: Any
    inside: list[Any]
    stays: list[Any]
    columns: list[Column] = field(default_factory=list)
    chosen: list[Any] = field(default_factory=list)
    free: list[_Free] = field(default_factory=list)
    waits: Any = None
    charged: dict[int, Any] = field(default_factory=dict)
    score: list[Term] = field(default_factory=list)
    constant_ns: int = 0
    last: Any = None

    def running(self) -> list[Any]:
        """Return the terms that add up to the number of requests running afterwards."""
        listed = [len(c.requests) * x for c, x in zip(self.columns, self.chosen, strict=True)]
        return [*listed, *(x for task in self.free for x in task.chosen.values()), *self.stays]


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
    cp = cp_model.CpModel()
    params, gains = problem.event.params, Gains(problem)
    model = _Model(
        problem,
        gains,
        cp,
        inside=[cp.new_bool_var("") for _ in problem.agents],
        stays=[cp.new_bool_var("") for _ in problem.running],
    )
    users: list[list[Any]] = [[] for _ in problem.agents]
    for q, stays in enumerate(model.stays):
        users[problem.running_agent[q]].append(stays)
    paying: list[Any] = []
    for task, requests in ready_of(problem).items():
        kinds = kinds_of(problem, requests)
        if is_listed(kinds):
            _add_columns(model, columns_of(problem, task, kinds, gains), users, paying)
        else:
            _add_free(model, task, requests, kinds, users, paying)
    for inside, uses in zip(model.inside, users, strict=True):
        for use in uses:
            cp.add_implication(use, inside)
        cp.add_bool_or([*uses, inside.Not()])
    tokens = [int(n) * z for n, z in zip(problem.prefix, model.inside, strict=True)]
    tokens += [int(d) * y for d, y in zip(problem.running_reserve, model.stays, strict=True)]
    tokens += [c.tokens * x for c, x in zip(model.columns, model.chosen, strict=True)]
    tokens += [int(problem.waiting_reserve[k]) * x for one in model.free for k, x in one.chosen.items()]
    cp.add(sum(tokens) <= problem.event.budget_tokens)
    running = model.running()
    cp.add(sum(running) >= 1)
    if params.max_running:
        cp.add(sum(running) <= params.max_running)
    if params.K:
        cp.add(sum(running[: len(running) - len(model.stays)]) <= params.K)
        cp.add(sum(model.stays) >= len(model.stays) - params.K)
    _add_move(model, paying)
    for a, inside in enumerate(model.inside):
        model.score.append((int(problem.reuse_ns[a]), inside))
    for q, stays in enumerate(model.stays):
        loss_ns = int(problem.redo_ns[q]) + int(problem.revoke_ns[q])
        model.score.append((loss_ns, stays))
        model.constant_ns -= loss_ns
    return model


def _add_columns(model: _Model, columns: list[Column], users: list[list[Any]], paying: list[Any]) -> None:
    """Add a task whose subsets are listed."""
    chosen = [model.cp.new_bool_var("") for _ in columns]
    if len(chosen) > 1:
        model.cp.add_at_most_one(chosen)
    for column, x in zip(columns, chosen, strict=True):
        model.score.append((column.gain_ns, x))
        for agent in column.agents:
            users[agent].append(x)
        if column.pays:
            paying.append(x)
    model.columns += columns
    model.chosen += chosen


def _add_free(  # noqa: PLR0913  the lists that a task adds to
    model: _Model,
    task: int,
    requests: list[int],
    kinds: list[list[int]],
    users: list[list[Any]],
    paying: list[Any],
) -> None:
    """Add a task whose gain stands under cuts."""
    problem, cp = model.problem, model.cp
    chosen = {k: cp.new_bool_var("") for k in requests}
    for kind in kinds:
        for first, second in itertools.pairwise(kind):
            cp.add_implication(chosen[second], chosen[first])  # interchangeable: in canonical order
    pays = cp.new_bool_var("")
    strangers = [x for k, x in chosen.items() if not problem.resident[problem.waiting_agent[k]]]
    for x in strangers:
        cp.add_implication(x, pays)
    cp.add_bool_or([*strangers, pays.Not()])
    paying.append(pays)
    for k, x in chosen.items():
        users[problem.waiting_agent[k]].append(x)
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
    problem, cp = model.problem, model.cp
    model.waits = cp.new_int_var(0, len(paying), "")
    cp.add(model.waits == sum(paying))
    for a, inside in enumerate(model.inside):
        if problem.swap_ns[a]:
            charged = cp.new_int_var(0, len(paying), "")
            moved = inside.Not() if problem.resident[a] else inside
            cp.add(charged >= model.waits).only_enforce_if(moved)
            model.charged[a] = charged
            model.score.append((-int(problem.swap_ns[a]), charged))


def _tie_break(model: _Model) -> Any:  # noqa: ANN401  ortools gives no types
    """Return what to maximise among equal scores: requests running, then prefix tokens left in place."""
    prefix, resident = model.problem.prefix, model.problem.resident
    staying = [
        int(tokens) * (inside if resident[a] else 1 - inside)
        for a, (tokens, inside) in enumerate(zip(prefix, model.inside, strict=True))
    ]
    return (int(prefix.sum()) + 1) * sum(model.running()) + sum(staying)


def _hint_decision(model: _Model, decision: Decision) -> None:
    """Start from a decision."""
    problem, cp = model.problem, model.cp
    admit, preempt, resident = set(decision.admit), set(decision.preempt), set(decision.resident)
    chosen = _columns_for(model, admit)
    for i, x in enumerate(model.chosen):
        cp.add_hint(x, i in chosen)
    for one in model.free:
        for k, x in one.chosen.items():
            cp.add_hint(x, problem.waiting[k].id in admit)
    for agent, inside in zip(problem.agents, model.inside, strict=True):
        cp.add_hint(inside, agent in resident)
    for request, stays in zip(problem.running, model.stays, strict=True):
        cp.add_hint(stays, request.id not in preempt)
    if model.waits is not None and not model.free:
        waits = sum(model.columns[i].pays for i in chosen)
        cp.add_hint(model.waits, waits)
        for a, charged in model.charged.items():
            moved = (problem.agents[a] in resident) != bool(problem.resident[a])
            cp.add_hint(charged, waits if moved else 0)


def _columns_for(model: _Model, admit: set[str]) -> set[int]:
    """Return the columns of a set of admissions; one that dominates stands in for a dropped one."""
    problem = model.problem
    sets: dict[int, list[int]] = {}
    for k, request in enumerate(problem.waiting):
        if request.id in admit:
            sets.setdefault(int(problem.waiting_task[k]), []).append(k)
    best: dict[int, tuple[int, int]] = {}
    for i, column in enumerate(model.columns):
        wanted = sets.get(column.task, [])
        if (
            len(column.requests) == len(wanted)
            and column.agents == {int(problem.waiting_agent[k]) for k in wanted}
            and column.tokens <= sum(int(problem.waiting_reserve[k]) for k in wanted)
        ):
            best[column.task] = max(best.get(column.task, (-1, -1)), (column.gain_ns, i))
    return {i for _, i in best.values()}


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
    columns = zip(model.columns, model.chosen, strict=True)
    admit = [k for column, x in columns if solver.value(x) for k in column.requests]
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
    for a, charged in model.charged.items():
        moved = bool(solver.value(model.inside[a])) != bool(model.problem.resident[a])
        claimed_ns += int(model.problem.swap_ns[a]) * (solver.value(charged) - (waits if moved else 0))
    return Answer(Status.FEASIBLE, tuple(admit), preempt, claimed_ns), true


def _bound(solver: Any) -> int:  # noqa: ANN401  ortools gives no types
    """Return the solver's bound as an integer that is not below it, though it comes as a double."""
    bound = float(solver.best_objective_bound)
    return math.ceil(bound if abs(bound) < EXACT_DOUBLE else math.nextafter(bound, math.inf))


def _least(known: int | None, found: int) -> int:
    return found if known is None else min(known, found)
