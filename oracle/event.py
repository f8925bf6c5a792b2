"""The exact optimum of one event: the best of all joint states by the shared score.

A joint state is any subset of the waiting requests admitted and any subset of the running ones preempted,
within Eq. 2, K and the batch limit; R' is the set of agents of what runs then. As in Algorithm 1 the state
in which nothing runs is the last resort: it counts only if no other state is feasible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

from oracle.branch.sets import solve_branch
from oracle.brute_force import brute_force
from oracle.columns import columns_of
from oracle.extra import solver_module
from oracle.models.answer import Answer, Limits
from oracle.models.event_cpsat import solve_cpsat
from oracle.models.event_milp import solve_milp
from oracle.result import EventResult, Status
from oracle.verify import OracleError, verified
from topas.decision import Decision
from topas.errors import InputError
from topas.event import Event
from topas.feasible import violations
from topas.online.search import select, small_event, warm_up
from topas.problem import Problem, compile_event
from topas.score import task_gains

MODULES = {
    "cp-sat": ("ortools.sat.python.cp_model",),
    "milp": ("pulp", "highspy"),
    "branch-and-bound": (),
    "brute-force": (),
}
SOLVERS = tuple(MODULES)


def solve_event(  # noqa: PLR0913  a solver's independent options
    event: Event,
    *,
    solver: str = "cp-sat",
    time_limit_s: float | None = 10.0,
    work_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    tie_break: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> EventResult:
    """Return the best joint state of an event, how sure that is, and a bound.

    When a limit strikes, the heuristic's decision (:func:`topas.online.search.select`) still counts: the
    result is then FEASIBLE, with the solver's bound or, before it has any, :func:`simple_bound_ns`.

    Parameters
    ----------
    solver : ``cp-sat`` (exact to the nanosecond), ``milp`` (another model, within the tolerances of
        doubles), ``branch-and-bound`` (exact; a search of its own, for tasks with few ready requests) or
        ``brute-force`` (small events; no time limit).
    time_limit_s : wall-clock limit (None: none). Compiling the event, the heuristic and listing columns
        count, but are not broken off. Branch and bound counts its steps instead.
    work_limit : limit by a deterministic measure of work: stops at the same place in every run.
    seed, workers : of the solver. CP-SAT with one worker and no wall-clock limit is deterministic.
    tie_break : among equal scores more requests running, then fewer prefix tokens moved (``cp-sat`` and
        ``brute-force``); ``ties_proved`` tells whether that is proved too.

    Raises
    ------
    InputError
        if the solver is unknown, not installed, or the event is too large for it.
    OracleError
        if a model contradicts the shared library.
    """
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver!r}; known: {', '.join(SOLVERS)}")
    prepare(solver)
    started = clock()
    problem = compile_event(event)
    known = _heuristic(event)
    left_s = None if time_limit_s is None else time_limit_s - (clock() - started)
    limits = Limits(left_s, work_limit, seed, workers)
    answer = _ask(solver, problem, limits, known, tie_break=tie_break, clock=clock)
    status, decision, bound_ns = _proved(problem, solver, answer, known)
    ties_proved = answer.ties_proved or answer.status is Status.INFEASIBLE
    ties_proved = ties_proved and status is Status.OPTIMAL
    return EventResult(status, decision, bound_ns, solver, clock() - started, ties_proved=ties_proved)


@cache
def prepare(solver: str = "cp-sat") -> None:
    """Load a solver and the compiled code, which would otherwise delay the first event.

    Raises
    ------
    InputError
        if the solver is not installed.
    """
    for module in MODULES[solver]:
        solver_module(module)
    warm_up()
    problem = compile_event(small_event())
    columns_of(problem)
    verified(
        problem,
        solve_branch(problem, Limits()) if solver == "branch-and-bound" else Answer(Status.OPTIMAL, (0,)),
    )


def gap(optimum_ns: int, heuristic_ns: int) -> float:
    """Return ``(optimum - heuristic) / max(|optimum|, 1e-9 s)``: the share of the optimum that is lost."""
    return (optimum_ns - heuristic_ns) / max(abs(optimum_ns), 1)


def simple_bound_ns(problem: Problem) -> int:
    """Return a bound that needs no solver: every task gains what all its ready requests would, for free.

    Gains never fall as requests are added, costs are never negative, and reuse counts for each agent once.
    """
    agents = problem.tables.agents
    gains_ns = sum(gain_ns for _, gain_ns in task_gains(problem, range(len(problem.waiting))))
    return gains_ns + int(agents["reuse_ns"][agents["active"] > 0].sum())


def _heuristic(event: Event) -> Decision | None:
    """Return the heuristic's decision if it is feasible and something runs after it."""
    decision = select(event)
    return decision if decision.resident and not violations(event, decision) else None


def _ask(  # noqa: PLR0913  the solvers' common inputs
    solver: str,
    problem: Problem,
    limits: Limits,
    known: Decision | None,
    *,
    tie_break: bool,
    clock: Callable[[], float],
) -> Answer:
    """Ask a model for the best state in which something runs."""
    if not problem.waiting and not problem.running:
        return Answer(Status.INFEASIBLE)
    if solver == "brute-force":
        return brute_force(problem, tie_break=tie_break)
    if limits.time_s is not None and limits.time_s <= 0:
        return Answer(Status.UNKNOWN)
    if solver == "branch-and-bound":
        return solve_branch(problem, limits)
    if solver == "milp":
        return solve_milp(problem, limits)
    return solve_cpsat(problem, limits, hint=known, tie_break=tie_break, clock=clock)


def _proved(
    problem: Problem, solver: str, answer: Answer, known: Decision | None
) -> tuple[Status, Decision | None, int | None]:
    """Return status, decision and bound that an answer and the heuristic's decision prove together."""
    if answer.status is Status.INFEASIBLE:
        if known is not None:
            raise OracleError(f"{solver} calls an event infeasible for which a decision is known")
        return _emptied(problem)
    found: Decision | None = None
    if answer.status is not Status.UNKNOWN:
        found = verified(problem, answer)
    states = [state for state in (found, known) if state]
    best = max(states, key=lambda state: state.terms.score_ns, default=None)
    if answer.status is Status.OPTIMAL and found and best:
        score_ns = found.terms.score_ns
        if best.terms.score_ns > score_ns + answer.tolerance_ns:
            raise OracleError(
                f"{solver} calls {score_ns} ns optimal, a known state has {best.terms.score_ns}"
            )
        return Status.OPTIMAL, found, score_ns
    bound_ns = simple_bound_ns(problem)
    if answer.bound_ns is not None:
        bound_ns = min(bound_ns, answer.bound_ns + answer.tolerance_ns)
    if best is None:
        return Status.UNKNOWN, None, bound_ns
    if best.terms.score_ns > bound_ns:
        raise OracleError(f"{solver} gives a bound of {bound_ns} ns, a state has {best.terms.score_ns} ns")
    return (Status.OPTIMAL if best.terms.score_ns == bound_ns else Status.FEASIBLE), best, bound_ns


def _emptied(problem: Problem) -> tuple[Status, Decision | None, int | None]:
    """Return the last resort, where it is proved that nothing can run."""
    everyone = range(len(problem.running))
    if 0 < problem.tables.cap < len(everyone):
        return Status.INFEASIBLE, None, None
    decision = verified(problem, Answer(Status.OPTIMAL, preempt=tuple(everyone)))
    return Status.OPTIMAL, decision, decision.terms.score_ns
