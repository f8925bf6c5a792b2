"""The optimum of one event as a mixed-integer program of another shape: PuLP, solved by HiGHS.

Nothing is evaluated beforehand. The longest path of every task stands in the model, once for each outcome
k (weight p_k) of its residuals; the outcomes are those of the shared library:

    left_vk >= Z_vk - sum of D_r x_r over the requests r of stage v,   left_vk >= 0      (Eq. 6)
    end_vk  >= left_vk + end_uk for each predecessor u,   path_k >= end_vk
    gain    =  g_i (L - rest - sum_k p_k path_k)                                         (Eq. 5, 12)
    charge  >= T_move(z) - (sum of all moves)(1 - pays),   pays >= x_r if r's agent is not resident

for requests x_r, agents z_a and running requests y_q. It shares neither columns nor memo with the CP-SAT
model, so that the two check each other. Seconds and doubles: optimal within the solver's tolerances.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from oracle.extra import quiet_highs, solver_module
from oracle.models.answer import Answer, Limits
from oracle.models.event_rows import limit_rows
from oracle.result import Status
from topas.errors import InputError
from topas.problem import Problem
from topas.units import to_ns, to_s

MOST_CELLS = 50_000
"""Largest number of outcomes times stages, over all tasks, that is modelled."""

TOLERANCE = 1e-6
"""Relative error allowed to the claimed score: HiGHS keeps rows and integrality to 1e-6 or better."""


def solve_milp(problem: Problem, limits: Limits) -> Answer:
    """Return the best non-empty state within the solver's tolerances.

    Raises
    ------
    InputError
        if PuLP or HiGHS is not installed, or the event's tasks have too many outcomes for this model.
    """
    pulp = solver_module("pulp")
    highspy = quiet_highs()
    tables = problem.tables
    tasks = [int(t) for t in np.flatnonzero(tables.tasks["ready"])]
    cells = sum(problem.store.outcomes(problem.models[task])[0].size for task in tasks)
    if cells > MOST_CELLS:
        raise InputError(
            f"expected at most {MOST_CELLS} outcomes of stages for the MILP, found {cells}: use cp-sat"
        )
    program = pulp.LpProblem("event", pulp.LpMaximize)

    def binary(name: str) -> Any:  # noqa: ANN401  pulp's variable
        return program.add_variable(name, cat="Binary")

    admit = [binary(f"x{k}") for k in range(len(problem.waiting))]
    inside = [binary(f"z{a}") for a in range(len(problem.agents))]
    stays = [binary(f"y{q}") for q in range(len(problem.running))]
    losses_s = [to_s(int(ns)) for ns in tables.running["redo_ns"] + tables.running["revoke_ns"]]
    # HiGHS is given no constant: what does not depend on a variable is added afterwards.
    constant_s = -sum(losses_s)
    score = [to_s(int(reuse)) * z for reuse, z in zip(tables.agents["reuse_ns"], inside, strict=True)]
    score += [loss_s * y for loss_s, y in zip(losses_s, stays, strict=True)]
    for task in tasks:
        weight, row = float(tables.tasks["age"][task]), tables.tasks[task]
        constant_s += weight * (float(row["path_ns"]) - float(row["rest_ns"])) / 1e9
        score += [-weight * p * path for p, path in _paths(program, problem, task, admit)]
    score += [-charge for charge in _charges(program, problem, admit, inside)]
    program += pulp.lpSum(score)
    users: list[list[Any]] = [[] for _ in inside]
    for agent, x in zip((*tables.waiting["agent"], *tables.running["agent"]), (*admit, *stays), strict=True):
        users[agent].append(x)
        program += x <= inside[agent]
    for z, uses in zip(inside, users, strict=True):
        program += z <= pulp.lpSum(uses)
    admitted = [(int(n), 1, x) for n, x in zip(tables.waiting["reserve"], admit, strict=True)]
    for row in limit_rows(problem, inside, stays, admitted, pulp.lpSum):
        program += row
    solver = pulp.HiGHS(
        msg=False,
        gapRel=0.0,
        gapAbs=1e-7,
        threads=limits.workers,
        timeLimit=limits.time_s,
        random_seed=limits.seed,
        mip_feasibility_tolerance=1e-9,
    )
    program.solve(solver)
    answer = _answer(highspy, program, admit, stays, constant_s)
    about_ns = answer.bound_ns if answer.claimed_ns is None else answer.claimed_ns
    return replace(answer, tolerance_ns=tolerance_ns(problem, about_ns or 0))


def tolerance_ns(problem: Problem, score_ns: int) -> int:
    """Return how far a score claimed by this model may be from the true one."""
    moves_ns = int(problem.tables.agents["swap_ns"].sum()) * len(problem.tasks)
    return to_ns(TOLERANCE) + math.ceil(TOLERANCE * (abs(score_ns) + moves_ns))


def _paths(
    program: Any,  # noqa: ANN401  pulp's problem
    problem: Problem,
    task: int,
    admit: list[Any],
) -> list[tuple[float, Any]]:
    """Add a task's longest paths; return the weight and the length (s) of each."""
    done: dict[int, list[Any]] = {}
    for k in problem.ready(task):
        work = problem.tables.waiting[k]
        done.setdefault(int(work["stage"]), []).append(to_s(int(work["work_ns"])) * admit[k])
    z_ns, weights, precedence = problem.store.outcomes(problem.models[task])
    lengths = []
    for outcome, weight in enumerate(weights):
        name = f"{task}_{outcome}"
        path = program.add_variable(f"path{name}", lowBound=0)
        ends: list[Any] = []
        for stage, before in enumerate(precedence):
            z_s = to_s(int(z_ns[outcome, stage]))
            left: Any = z_s
            if stage in done and z_s:
                left = program.add_variable(f"left{name}_{stage}", lowBound=0)
                program += left >= z_s - sum(done[stage])
            end = program.add_variable(f"end{name}_{stage}", lowBound=0)
            program += end >= left
            for other in before:
                program += end >= left + ends[other]
            program += path >= end
            ends.append(end)
        lengths.append((float(weight), path))
    return lengths


def _charges(
    program: Any,  # noqa: ANN401  pulp's problem
    problem: Problem,
    admit: list[Any],
    inside: list[Any],
) -> list[Any]:
    """Add each task's charge for the moves it waits for, in seconds (Eq. 8)."""
    agents = problem.tables.agents
    moves_s = [to_s(int(swap)) for swap in agents["swap_ns"]]
    most_s = sum(moves_s)
    moving = sum(
        swap_s * (1 - z if here else z)
        for swap_s, here, z in zip(moves_s, agents["resident"], inside, strict=True)
    )
    paying: dict[int, list[Any]] = {}
    for request, x in zip(problem.tables.waiting, admit, strict=True):
        if not agents[request["agent"]]["resident"]:
            paying.setdefault(int(request["task"]), []).append(x)
    charges = []
    for task, requests in paying.items():
        pays = program.add_variable(f"pays{task}", lowBound=0, upBound=1)
        for x in requests:
            program += pays >= x
        charge = program.add_variable(f"charge{task}", lowBound=0)
        program += charge >= moving - most_s * (1 - pays)
        charges.append(charge)
    return charges


def _answer(highspy: Any, program: Any, admit: list[Any], stays: list[Any], constant_s: float) -> Answer:  # noqa: ANN401
    """Read HiGHS itself: PuLP calls a run that was stopped without a solution feasible."""
    highs = program.solverModel
    state = highs.getModelStatus()
    info = highs.getInfo()
    if state == highspy.HighsModelStatus.kInfeasible:
        return Answer(Status.INFEASIBLE)
    bound_s = constant_s - info.mip_dual_bound
    bound_ns = math.ceil(bound_s * 1e9) if math.isfinite(bound_s) else None
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Answer(Status.UNKNOWN, bound_ns=bound_ns)
    proved = state == highspy.HighsModelStatus.kOptimal
    return Answer(
        Status.OPTIMAL if proved else Status.FEASIBLE,
        tuple(k for k, x in enumerate(admit) if round(x.varValue)),
        tuple(q for q, y in enumerate(stays) if not round(y.varValue)),
        to_ns(constant_s - info.objective_function_value) if proved else None,
        bound_ns,
    )
