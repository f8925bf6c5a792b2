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
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracle.extra import quiet_highs, solver_module
from oracle.models.answer import Answer, Limits
from oracle.result import Status
from topas.errors import InputError
from topas.problem import Problem
from topas.units import to_ns, to_s

MOST_CELLS = 50_000
"""Largest number of outcomes times stages, over all tasks, that is modelled."""

TOLERANCE = 1e-6
"""Relative error allowed to the claimed score: HiGHS keeps rows and integrality to 1e-6 or better."""


@dataclass(frozen=True, slots=True)
class _Scenarios:
    """The outcomes of the evaluated part of one task: z in ns (outcomes x stages), weights, precedence."""

    z_ns: np.ndarray[Any, np.dtype[np.int64]]
    weights: np.ndarray[Any, np.dtype[np.float64]]
    before: list[list[int]]
    rest_ns: float

    @property
    def cells(self) -> int:
        """Return outcomes times stages."""
        return int(self.z_ns.size)


def solve_milp(problem: Problem, limits: Limits) -> Answer:
    """Return the best non-empty state within the solver's tolerances.

    Raises
    ------
    InputError
        if PuLP or HiGHS is not installed, or the event's tasks have too many outcomes for this model.
    """
    pulp = solver_module("pulp")
    highspy = quiet_highs()
    scenarios = {int(t): _scenarios(problem, int(t)) for t in np.unique(problem.waiting_task)}
    cells = sum(one.cells for one in scenarios.values())
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
    losses_s = [to_s(int(a) + int(b)) for a, b in zip(problem.redo_ns, problem.revoke_ns, strict=True)]
    # HiGHS is given no constant: what does not depend on a variable is added afterwards.
    constant_s = -sum(losses_s)
    score = [to_s(int(reuse)) * z for reuse, z in zip(problem.reuse_ns, inside, strict=True)]
    score += [loss_s * y for loss_s, y in zip(losses_s, stays, strict=True)]
    for task, one in scenarios.items():
        weight = float(problem.age[task])
        constant_s += weight * (float(problem.path_ns[task]) - one.rest_ns) / 1e9
        score += [-weight * p * path for p, path in _paths(program, problem, task, one, admit)]
    score += [-charge for charge in _charges(program, problem, admit, inside)]
    program += pulp.lpSum(score)
    _constrain(pulp, program, problem, (admit, inside, stays))
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
    return _answer(highspy, program, admit, stays, constant_s)


def tolerance_ns(problem: Problem, score_ns: int) -> int:
    """Return how far a score claimed by this model may be from the true one."""
    moves_ns = int(problem.swap_ns.sum()) * len(problem.tasks)
    return to_ns(TOLERANCE) + math.ceil(TOLERANCE * (abs(score_ns) + moves_ns))


def _scenarios(problem: Problem, task: int) -> _Scenarios:
    model, store = problem.models[task], problem.store
    if model is None:
        return _Scenarios(np.zeros((0, 0), dtype=np.int64), np.zeros(0), [], 0.0)
    z_at, outcomes, stages, weight_at, edge_at = (int(x) for x in store.rows[model.row])
    ends = store.before_at[edge_at : edge_at + stages + 1]
    return _Scenarios(
        z_ns=store.z[z_at : z_at + outcomes * stages].reshape(outcomes, stages),
        weights=store.weights[weight_at : weight_at + outcomes],
        before=[[int(u) for u in store.before[ends[v] : ends[v + 1]]] for v in range(stages)],
        rest_ns=model.rest_ns,
    )


def _paths(
    program: Any,  # noqa: ANN401  pulp's problem
    problem: Problem,
    task: int,
    one: _Scenarios,
    admit: list[Any],
) -> list[tuple[float, Any]]:
    """Add a task's longest paths; return the weight and the length (s) of each."""
    done: dict[int, list[Any]] = {}
    for k, x in enumerate(admit):
        if problem.waiting_task[k] == task and problem.work_stage[k] >= 0:
            done.setdefault(int(problem.work_stage[k]), []).append(to_s(int(problem.work_ns[k])) * x)
    lengths = []
    for outcome, weight in enumerate(one.weights):
        name = f"{task}_{outcome}"
        path = program.add_variable(f"path{name}", lowBound=0)
        ends: list[Any] = []
        for stage, before in enumerate(one.before):
            z_s = to_s(int(one.z_ns[outcome, stage]))
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
    moves_s = [to_s(int(swap)) for swap in problem.swap_ns]
    most_s = sum(moves_s)
    moving = sum(
        swap_s * (1 - z if problem.resident[a] else z)
        for a, (swap_s, z) in enumerate(zip(moves_s, inside, strict=True))
    )
    paying: dict[int, list[Any]] = {}
    for k, x in enumerate(admit):
        if not problem.resident[problem.waiting_agent[k]]:
            paying.setdefault(int(problem.waiting_task[k]), []).append(x)
    charges = []
    for task, requests in paying.items():
        pays = program.add_variable(f"pays{task}", lowBound=0, upBound=1)
        for x in requests:
            program += pays >= x
        charge = program.add_variable(f"charge{task}", lowBound=0)
        program += charge >= moving - most_s * (1 - pays)
        charges.append(charge)
    return charges


def _constrain(
    pulp: Any,  # noqa: ANN401  the module
    program: Any,  # noqa: ANN401  pulp's problem
    problem: Problem,
    variables: tuple[list[Any], list[Any], list[Any]],
) -> None:
    """Add R' = agents of Q', Eq. 2, the caps, and that something runs."""
    admit, inside, stays = variables
    params = problem.event.params
    users: list[list[Any]] = [[] for _ in inside]
    for k, x in enumerate(admit):
        users[problem.waiting_agent[k]].append(x)
    for q, y in enumerate(stays):
        users[problem.running_agent[q]].append(y)
    for z, uses in zip(inside, users, strict=True):
        program += z <= pulp.lpSum(uses)
        for use in uses:
            program += use <= z
    sizes = (problem.waiting_reserve, problem.prefix, problem.running_reserve)
    tokens = [
        int(n) * v
        for some, size in zip(variables, sizes, strict=True)
        for n, v in zip(size, some, strict=True)
    ]
    program += pulp.lpSum(tokens) <= problem.event.budget_tokens
    program += pulp.lpSum([*admit, *stays]) >= 1
    if params.max_running:
        program += pulp.lpSum([*admit, *stays]) <= params.max_running
    if params.K and admit:
        program += pulp.lpSum(admit) <= params.K
    if params.K and stays:
        program += pulp.lpSum(stays) >= len(stays) - params.K


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
