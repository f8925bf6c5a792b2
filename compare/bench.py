"""The benchmark of this project's own speed: ``make bench``.

Every figure is the best of several repeats, since the machine is shared; quote ratios from one run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tabulate import tabulate

from compare.live.server import ServerPaths, cpu_server_paths
from compare.live.side_by_side import Servers, play_all, runs_of
from compare.source import Source
from oracle.branch.sets import solve_branch
from oracle.event import prepare, solve_event
from oracle.models.answer import Limits
from oracle.policy import TOPAS_SCORE
from oracle.result import Status
from oracle.trace import lower_bounds
from topas.cost import Cost
from topas.errors import InputError, SimulationError
from topas.event import Event, Params, Request, TaskState
from topas.files import whole_file
from topas.online.search import select
from topas.policies import JointPolicy, get_policy, policy_names
from topas.problem import compile_event
from topas.profile import load_profile
from topas.residual import residual_of_seconds
from topas.sim import simulate
from topas.trace import Trace
from topas.workflow import dag_of
from traces.load import rate_for_load
from traces.workloads import WorkloadOptions, generate


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure and what it should be; ``smaller`` says which side is better."""

    name: str
    value: float
    unit: str
    aim: float
    smaller: bool = True

    @property
    def met(self) -> bool:
        """Return whether the aim is met."""
        return self.value <= self.aim if self.smaller else self.value >= self.aim


def large_event(waiting: int, agents: int, seed: int) -> Event:
    """Return a random event with that many waiting single-request tasks, chains of three stages."""
    rng = random.Random(seed)  # noqa: S311  not for secrets
    dag = dag_of({"A": [], "B": ["A"], "C": ["B"]})
    prefixes = {f"agent{k}": rng.randrange(3_000, 9_000) for k in range(agents)}
    residuals = [
        tuple(residual_of_seconds(tuple(rng.uniform(5, 40) for _ in range(64))) for _ in dag.names)
        for _ in range(agents)
    ]
    tasks, requests = {}, []
    for k in range(waiting):
        agent = rng.randrange(agents)
        tasks[f"t{k:04}"] = TaskState(rng.uniform(0, 100), dag, residuals[agent])
        requests.append(
            Request(
                id=f"r{k:04}",
                task=f"t{k:04}",
                stage="A",
                agent=f"agent{agent}",
                reserve_tokens=rng.randrange(300, 1_500),
                service_s=rng.uniform(5, 20),
            )
        )
    return Event(
        time_s=100.0,
        budget_tokens=36_000,
        agents=prefixes,
        tasks=tasks,
        waiting=requests,
        running=[],
        resident=frozenset(list(prefixes)[:2]),
        params=Params(cost=Cost(swap_s_per_token=1.3e-5, decode_base_s=0.04)),
    )


SHAPES = (
    {"A": [], "B": ["A"], "C": ["B"]},
    {"A": [], "B": ["A"], "C": ["A"], "D": ["B", "C"]},
    {"A": [], **{f"W{k}": ["A"] for k in range(4)}, "Z": [f"W{k}" for k in range(4)]},
)
"""A chain, a diamond and a fork of four."""


def mixed_event(waiting: int, agents: int, seed: int, cap: int = 0) -> Event:
    """Return a random event of chains, diamonds and forks at all stages, with six running requests.

    Half of the budget of 36,000 tokens is resident; a prefix of 5,500 tokens moves in 0.07, 0.3 or 1.1 s.
    """
    rng = random.Random(seed)  # noqa: S311  not for secrets
    names = [f"agent{k:02}" for k in range(agents)]
    prefixes = {name: rng.randrange(2_000, 9_000) for name in names}
    pool = [residual_of_seconds(tuple(rng.uniform(5, 40) for _ in range(12))) for _ in range(8)]
    dags = [dag_of(shape) for shape in SHAPES]
    resident: list[str] = []
    room = 36_000
    for name in rng.sample(names, agents):
        if room - prefixes[name] >= 18_000:  # noqa: PLR2004  half of the budget
            resident.append(name)
            room -= prefixes[name]
    tasks: dict[str, TaskState] = {}

    def requests(count: int, agents: list[str]) -> list[Request]:
        found: list[Request] = []
        while len(found) < count:
            dag, task = rng.choice(dags), f"t{len(tasks):04}"
            done = {"A"} if rng.random() < 0.5 else set()  # noqa: PLR2004  every other task
            residuals = (residual_of_seconds((0.0,)) if v in done else rng.choice(pool) for v in dag.names)
            tasks[task] = TaskState(rng.uniform(0, 100), dag, tuple(residuals))
            found += [
                Request(
                    id=f"{task}/{stage}",
                    task=task,
                    stage=stage,
                    agent=rng.choice(agents),
                    reserve_tokens=rng.randrange(300, 1_500),
                    service_s=rng.uniform(3, 25),
                )
                for k, stage in enumerate(dag.names)
                if stage not in done and done.issuperset(dag.names[p] for p in dag.before[k])
            ]
        return found[:count]

    running = [
        replace(request, generated_tokens=rng.randrange(400), credit_s=rng.uniform(0, 20))
        for request in requests(6, resident)
    ]
    return Event(
        time_s=100.0,
        budget_tokens=36_000,
        agents=prefixes,
        tasks=tasks,
        waiting=requests(waiting, names),
        running=running,
        resident=frozenset(resident),
        reuse_counts={name: rng.randrange(5) for name in names},
        params=Params(cost=Cost(swap_s_per_token=1.3e-5 * rng.choice([1, 4, 16]), decode_base_s=0.04), K=cap),
    )


OPTIMA = ((60, 4, 0.1), (150, 10, 0.3), (600, 10, 2.0), (1000, 32, 10.0))
"""Waiting requests, agents, and the aim for the median time in seconds."""


def event_optimum(seeds: Sequence[int] = range(1, 8)) -> list[Figure]:
    """Measure CP-SAT's proved optimum of random events: the median over the seeds, all work included."""
    prepare()
    found = []
    for waiting, agents, aim_s in OPTIMA:
        for cap in (0, 8):
            results = [
                solve_event(mixed_event(waiting, agents, seed, cap), time_limit_s=60) for seed in seeds
            ]
            if any(result.status is not Status.OPTIMAL for result in results):
                raise SimulationError(f"an optimum of {waiting} waiting requests was not proved in 60 s")
            name = f"event optimum, {waiting} waiting requests of {agents} agents, K = {cap}"
            found.append(Figure(name, statistics.median(r.solve_s for r in results), "s", aim_s))
    return found


NEAR_EXACT = ((60, 4, 0.5), (150, 10, 1.0), (600, 10, 2.0), (1000, 32, 10.0))
"""Waiting requests, agents, and the aim for the median time of the near-exact search in milliseconds."""


def near_exact(repeats: int, seeds: Sequence[int] = range(1, 8)) -> list[Figure]:
    """Measure the search of ``topas-score`` on random events, and its decisions beside those of the paper's.

    The search alone, from the compiled event to the state: the median over the seeds of the best of the
    repeats. Whole decisions: the ratio of the medians. Gains are known from the first repeat on, to both.
    """
    TOPAS_SCORE.prepare()
    found = []
    for waiting, agents, aim_ms in NEAR_EXACT:
        for cap in (0, 8):
            search_ms, near_ms, paper_ms = [], [], []
            for seed in seeds:
                event = mixed_event(waiting, agents, seed, cap)
                problem = compile_event(event)
                work = partial(solve_branch, problem, Limits())
                search_ms.append(best(repeats + 1, partial(_ms, work)))
                near_ms.append(best(repeats + 1, partial(_ms, partial(TOPAS_SCORE.decide, event))))
                paper_ms.append(best(repeats + 1, partial(_ms, partial(select, event))))
            words = f"{waiting} waiting requests of {agents} agents, K = {cap}"
            found.append(Figure(f"near-exact search, {words}", statistics.median(search_ms), "ms", aim_ms))
            ratio = statistics.median(near_ms) / statistics.median(paper_ms)
            found.append(Figure(f"topas-score over topas-paper, {words}", ratio, "x", 1.5))
    return found


DECIDED = (("chain-3", 1.0), ("dag-4", 1.0), ("metagpt-sop", 1.0), ("metagpt-tl", 1.0), ("dag-10-wide", 5.0))
"""Workloads, and the aim for the mean time of a decision of ``topas`` in milliseconds."""


def looking_ahead(repeats: int) -> list[Figure]:
    """Measure decisions of ``topas`` under pressure: 60 tasks at load 0.75, 12k prefixes, lengths unknown."""
    profile, options = load_profile("study"), WorkloadOptions(prefix_tokens=12_000, output_sigma=0.5)
    found = []
    for workload, aim_ms in DECIDED:
        rate = rate_for_load(workload, 0.75, profile, 60, 1, options)
        trace = generate(workload, rate_per_s=rate, tasks=60, seed=1, options=options)

        def decision_ms(trace: Trace = trace) -> float:
            return float(simulate(trace, "topas", profile).metrics["decision_ms_mean"])

        name = f"decision of topas, {workload} at load 0.75, mean"
        found.append(Figure(name, best(repeats, decision_ms), "ms", aim_ms))
    return found


def _ms(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def best(repeats: int, measure: Callable[[], float], *, smaller: bool = True) -> float:
    """Return the best of some measurements."""
    values = [measure() for _ in range(repeats)]
    return min(values) if smaller else max(values)


def figures(repeats: int) -> list[Figure]:
    """Measure everything."""
    study, a100 = load_profile("study"), load_profile("a100-80g-qwen2.5-32b")
    for policy in map(get_policy, policy_names()):
        if isinstance(policy, JointPolicy):
            policy.prepare()  # compile first
    sop = generate("metagpt-sop", rate_per_s=0.15, tasks=100, seed=1)
    event = large_event(600, 10, 1)
    chain = generate("chain-3", rate_per_s=0.12, tasks=1000, seed=1)

    def decision_ms() -> float:
        return float(simulate(sop, "topas-paper", a100).metrics["decision_ms_mean"])

    def large_ms() -> float:
        start = time.perf_counter()
        select(event)
        return 1e3 * (time.perf_counter() - start)

    def events_per_s() -> float:
        start = time.perf_counter()
        result = simulate(chain, "fcfs", study)
        return result.events / (time.perf_counter() - start)

    def all_policies_s() -> float:
        start = time.perf_counter()
        for name in policy_names():
            simulate(chain, name, study)
        return time.perf_counter() - start

    def bounds_s() -> float:
        trace = generate("chain-3", rate_per_s=0.15, tasks=300, seed=1)
        start = time.perf_counter()
        lower_bounds(trace, study, time_limit_s=60)
        return time.perf_counter() - start

    return [
        Figure("decision, MetaGPT-SOP at 0.15 task/s, a100 profile", best(repeats, decision_ms), "ms", 0.63),
        Figure("decision, 600 waiting requests of 10 agents", best(repeats, large_ms), "ms", 20.0),
        Figure(
            "simulator, fcfs on 1,000 tasks of Chain-3",
            best(repeats, events_per_s, smaller=False),
            "events/s",
            20_000.0,
            smaller=False,
        ),
        Figure("all policies on 1,000 tasks of Chain-3, one core", best(1, all_policies_s), "s", 60.0),
        *looking_ahead(repeats),
        *near_exact(repeats),
        *event_optimum(),
        Figure("lower bounds of 300 tasks of Chain-3 at 0.15 task/s", best(1, bounds_s), "s", 60.0),
        *served(repeats),
    ]


SERVED = ("topas", "topas-paper")
"""Policies whose decisions are measured in a real server."""


def served_figures(repeats: int, paths: ServerPaths) -> list[Figure]:
    """Measure what decisions cost inside a real server on this CPU: a burst of Chain-3, all decided."""
    options = WorkloadOptions(prefix_tokens=1000, input_tokens=64, output_tokens=64)
    source = Source("chain-3", 16, 1, 1000.0, options=options)
    profile = load_profile("study").model_copy(update={"kv_budget_tokens": 4000, "max_running": 8})
    settings = Servers(4000, 8, profile, Params())
    with tempfile.TemporaryDirectory(prefix="topas-") as folder:
        played = play_all(runs_of([source], SERVED, repeats, settings), Path(folder), paths)
        if played.failures:
            raise SimulationError(f"a run on a real server failed: {next(iter(played.failures.values()))}")
    found = []
    for policy in SERVED:
        rows = [row for run, row in played.results.items() if run.policy == policy]
        name = f"{policy} decision in a real SGLang server"
        found += [
            Figure(f"{name}: choosing", min(row.decision_ms_mean or 0.0 for row in rows), "ms", 2.0),
            Figure(f"{name}: whole event", min(row.event_ms_mean or 0.0 for row in rows), "ms", 3.0),
        ]
    return found


def served(repeats: int) -> list[Figure]:
    """Measure in a real server, if one can be started here; else say why not."""
    try:
        paths = cpu_server_paths()
    except InputError as error:
        print(f"left out: decisions in a real server: {error}")
        return []
    return served_figures(repeats, paths)


def _shown(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write ``bench.json``."""
    parser = argparse.ArgumentParser(prog="python -m compare.bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output", default="out/bench.json", metavar="F")
    args = parser.parse_args(argv)
    found = figures(args.repeats)
    rows = [(f.name, _shown(f.value), f.unit, _shown(f.aim), "yes" if f.met else "no") for f in found]
    print(
        tabulate(rows, ["figure", "measured", "unit", "aim", "met"], tablefmt="github", disable_numparse=True)
    )
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    with whole_file(args.output) as stream:
        text = json.dumps(
            [{"name": f.name, "value": f.value, "unit": f.unit, "aim": f.aim} for f in found], indent=1
        )
        stream.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
