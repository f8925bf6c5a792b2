"""CP-SAT as every model here sets it up."""

from __future__ import annotations

from typing import Any

from oracle.extra import solver_module


def new_solver(*, time_s: float | None, seed: int, workers: int, work: float | None = None) -> Any:  # noqa: ANN401
    """Return a solver of OR-Tools, which has no types.

    Parameters
    ----------
    time_s, work : limits in seconds and in CP-SAT's deterministic work units.
    """
    solver = solver_module("ortools.sat.python.cp_model").CpSolver()
    parameters = solver.parameters
    parameters.num_workers = workers
    parameters.random_seed = seed
    parameters.catch_sigint_signal = False  # Ctrl-C is Python's: the solver would swallow it
    # OR-Tools 9.15 proves wrong optima with this step of its presolve (its issue 5293; a test has an event).
    parameters.presolve_inclusion_work_limit = 0
    if time_s is not None:
        parameters.max_time_in_seconds = max(time_s, 0.0)
    if work is not None:
        parameters.max_deterministic_time = work
    return solver
