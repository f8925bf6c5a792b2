"""The best known schedule of a trace: an upper bound on the least mean JCT of any schedule.

What is searched over, and what it can express, is in :mod:`topas.sim.schedule`. Starts are the schedules
of the registered policies and cohorts (:mod:`oracle.cohorts`); then the best are annealed, fewer and fewer
of them. The search knows the whole trace. What it returns was played in the simulator.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from oracle.anneal import anneal
from oracle.budget import Budget
from oracle.cohorts import Cuts, anneal_cohorts, cohort_order, equal_cohorts
from oracle.evaluate import Ints, bench_of, plan_with, play, schedule_of
from topas.decision import Decision
from topas.engine.core import BLOCK, SKIP, STRICT
from topas.errors import InputError, SimulationError
from topas.event import Event, Params
from topas.policies import get_policy, policy_names
from topas.profile import Profile
from topas.sim import SimResult, refuse_unservable, simulate
from topas.sim.build import request_names
from topas.sim.schedule import Schedule
from topas.trace import Trace

CHUNK = 200
"""Moves between two looks at the clock."""
HOT, COLD = 4e-4, 3e-6
"""First and last temperature of an annealing run, as shares of the sum of JCTs."""
ROUNDS = ((8, 0.2), (3, 0.3), (1, 1.0))
"""How many solutions are annealed in a round, and the share of what is left of the budget it may use."""
COHORT_SHARE = 0.2
"""Of the whole budget, for cohorts of all modes together."""
COHORT_STARTS = 3
COHORT_TRIES = 3000
"""Tried from each start of each mode, at most."""
POLICY_SHARE = 0.3
TOLERANCE = 1e-9

Progress = Callable[[float, int], None]
"""Called with the best mean JCT so far and the number of schedules tried."""


@dataclass(frozen=True, slots=True)
class BestKnown:
    """A schedule and what the simulator makes of it.

    ``schedule`` is None where a policy that preempts is best; ``found_by`` names the policy or the start,
    with ``+search`` where it was improved on.
    """

    mean_jct_s: float
    found_by: str
    schedule: Schedule | None
    evaluations: int
    result: SimResult


@dataclass(frozen=True, slots=True)
class Solution:
    """A schedule as a plan (:meth:`topas.sim.schedule.Schedule.plan`) with the sum of its JCTs."""

    total_s: float
    name: str
    plan: Ints


def improve(  # noqa: PLR0913  the search's independent inputs
    trace: Trace,
    profile: Profile,
    *,
    seconds: float = math.inf,
    max_evaluations: int | None = None,
    seed: int = 0,
    starts: Sequence[str] | None = None,
    params: Params | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> BestKnown:
    """Return the best schedule of a trace found within a budget; the same for the same ``max_evaluations``.

    Parameters
    ----------
    seconds, max_evaluations : the budget; at least one must be given. One policy is tried in any case.
    starts : policies to begin with; all that are registered by default.
    params : parameters of those policies.

    Raises
    ------
    InputError
        if a request can never fit the profile's KV budget, a policy is unknown, or there is no budget.
    """
    if seconds == math.inf and max_evaluations is None:
        raise InputError("expected a limit in seconds or evaluations", field="seconds")
    refuse_unservable(trace, profile)
    search = _Search(trace, profile, seed, progress)
    search.prepare()
    budget = Budget(clock() + seconds, -1 if max_evaluations is None else max_evaluations, clock)
    search.try_cohorts(budget)
    search.try_policies(policy_names() if starts is None else starts, params, budget)
    search.anneal(budget)
    return search.best(budget.used)


class _Search:
    """The pool of solutions of one call of :func:`improve`."""

    def __init__(self, trace: Trace, profile: Profile, seed: int, progress: Progress | None) -> None:
        self.trace, self.profile, self.seed, self.progress = trace, profile, seed, progress
        self.bench = bench_of(trace, profile)
        self.names = request_names(trace)
        self.index = {name: k for k, name in enumerate(self.names)}
        world = self.bench.world
        self.task_at = np.append(world.stages["first"][world.tasks["first_stage"]], len(self.names))
        self.pool: list[Solution] = []
        self.policy: tuple[float, str, SimResult] | None = None
        self.least_s = math.inf

    def prepare(self) -> None:
        """Compile, or load what is compiled, before the clock starts."""
        plan = plan_with(np.arange(len(self.names)))
        anneal(self.bench, self.task_at, plan, plan.copy(), math.inf, 1.0, 0, 0)

    # --- starts ---------------------------------------------------------------------------------------

    def try_policies(self, names: Sequence[str], params: Params | None, budget: Budget) -> None:
        """Play policies, and put their orders of admission into the pool."""
        share = budget.share(POLICY_SHARE)
        for name in names:
            if share.spent >= 1 and self.policy:
                break
            admitted: dict[str, None] = {}

            def note(_: Event, decision: Decision, seen: dict[str, None] = admitted) -> None:
                for request in decision.admit:
                    seen.pop(request, None)  # after a preemption, the last admission counts
                    seen[request] = None

            result = simulate(self.trace, get_policy(name), self.profile, params=params, record=note)
            share.used += 1
            total_s = sum(task.jct_s for task in result.tasks)
            if self.policy is None or total_s < self.policy[0]:
                self.policy = (total_s, name, result)
            self._report(total_s, share.used)
            order = np.array([self.index[request] for request in admitted], dtype=np.int64)
            for mode in (SKIP, BLOCK, STRICT):
                if share.spent < 1:
                    self._add(name, order, mode, share)
        budget.charge(share)

    def try_cohorts(self, budget: Budget) -> None:
        """Search for cohorts from the best equal ones in each mode, and put what is found into the pool."""
        whole = budget.share(COHORT_SHARE)
        tasks = len(self.trace.tasks)
        for left, mode in ((3, STRICT), (2, BLOCK), (1, SKIP)):
            part = whole.share(1 / left)

            def value(cuts: Cuts, mode: int = mode, part: Budget = part) -> float:
                return self._solution("cohorts", cohort_order(self.bench.world, cuts), mode, part).total_s

            starts = sorted((value(cuts), cuts) for cuts in equal_cohorts(tasks) if part.spent < 1)
            for turn, (_, cuts) in enumerate(starts[:COHORT_STARTS]):
                chain = part.share(1 / (len(starts[:COHORT_STARTS]) - turn)).at_most(COHORT_TRIES)
                before = part.used

                def spent(part: Budget = part, chain: Budget = chain, before: int = before) -> float:
                    chain.used = part.used - before
                    return chain.spent

                rng = random.Random(f"{self.seed} {turn}")  # noqa: S311  no secret
                found = anneal_cohorts(cuts, tasks, value, spent, rng)[1]
                self._add("cohorts", cohort_order(self.bench.world, found), mode, part)
            whole.charge(part)
        budget.charge(whole)

    def _add(self, name: str, order: Ints, mode: int, budget: Budget) -> None:
        solution = self._solution(name, order, mode, budget)
        if solution.total_s < math.inf:
            self.pool.append(solution)
            self._report(solution.total_s, budget.used)

    def _solution(self, name: str, order: Ints, mode: int, budget: Budget) -> Solution:
        budget.used += 1
        plan = plan_with(order, mode)
        self.bench.setup.plan[:] = plan
        return Solution(float(play(self.bench)), name, plan)

    # --- annealing ------------------------------------------------------------------------------------

    def anneal(self, budget: Budget) -> None:
        """Anneal the best solutions in rounds; the last round restarts from the best until the end."""
        seed = self.seed
        for width, part in ROUNDS:
            stage = budget.share(part)
            for solution in self._distinct(width):
                share = stage.share(1 / width)
                seed += 1_000_003
                self.pool.append(self._annealed(solution, share, seed))
                stage.charge(share)
            budget.charge(stage)

    def _distinct(self, most: int) -> list[Solution]:
        """Return the best solutions of different values."""
        chosen: list[Solution] = []
        for solution in sorted(self.pool, key=lambda s: s.total_s):
            if all(solution.total_s - other.total_s > TOLERANCE for other in chosen):
                chosen.append(solution)
        return chosen[:most]

    def _annealed(self, solution: Solution, budget: Budget, seed: int) -> Solution:
        now, best = solution.plan.copy(), solution.plan.copy()
        best_s = solution.total_s
        while budget.spent < 1:
            heat_s = max(solution.total_s * HOT * (COLD / HOT) ** budget.spent, 1e-12)
            tries = CHUNK if budget.most < 0 else min(CHUNK, budget.most - budget.used)
            best_s = anneal(self.bench, self.task_at, now, best, best_s, heat_s, tries, seed)
            seed += 1
            budget.used += tries
            self._report(best_s, budget.used)
        name = solution.name if solution.name.endswith("+search") else f"{solution.name}+search"
        return Solution(best_s, name, best) if best_s < solution.total_s else solution

    # --- results --------------------------------------------------------------------------------------

    def _report(self, total_s: float, used: int) -> None:
        if total_s < self.least_s:
            self.least_s = total_s
            if self.progress:
                self.progress(total_s / len(self.trace.tasks), used)

    def best(self, used: int) -> BestKnown:
        """Return the best of the pool and the policies, played in the simulator with all its checks."""
        if self.policy is None:
            raise InputError("expected at least one policy to start from", field="starts")
        least = min(self.pool, key=lambda s: s.total_s, default=None)
        total_s, name, result = self.policy
        if least is None or total_s <= least.total_s:
            return BestKnown(float(result.metrics["mean_jct_s"]), name, None, used, result)
        schedule = schedule_of(least.plan, self.names)
        result = simulate(self.trace, schedule, self.profile, check=True)
        mean_jct_s = float(result.metrics["mean_jct_s"])
        if not math.isclose(mean_jct_s, least.total_s / len(self.trace.tasks), rel_tol=TOLERANCE):
            raise SimulationError(f"a schedule with a mean JCT of {mean_jct_s} s was taken for another")
        return BestKnown(mean_jct_s, least.name, schedule, used, result)
