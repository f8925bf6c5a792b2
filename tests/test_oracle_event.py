"""The exact optimum of one event: four solvers against one another and against an enumeration.

``Reference`` (support_events) shares no code with the library: it lists all states and judges them with
exact fractions.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from support_events import Raw, Reference, events, make_event, many, subsets
from support_oracle import paying_event, squeezed
from support_sim import ask, chain, make_trace, recorded, single, stepping

import oracle.extra
from compare import bench
from oracle import columns as columns_module
from oracle.columns import Columns, columns_of
from oracle.cuts import cut_at, first_cuts
from oracle.event import SOLVERS, gap, simple_bound_ns, solve_event
from oracle.models import event_cpsat, event_milp
from oracle.models.answer import Answer, Limits
from oracle.policy import TOPAS_EXACT, decide_exactly
from oracle.result import EventResult, Status
from oracle.verify import OracleError, verified
from topas.cli import main
from topas.cost import Cost
from topas.decision import Decision
from topas.errors import InputError, SimulationError
from topas.event import Event, Params, Request, TaskState
from topas.feasible import violations
from topas.formats import event_json, event_of
from topas.online.search import select
from topas.policies import get_policy, policy_names
from topas.problem import Problem, compile_event
from topas.residual import residual_of_seconds
from topas.score import conditional_gains_ns, joint_gain_ns, score
from topas.sim import simulate
from topas.workflow import dag_of

MILP_NS = 2_000
"""What HiGHS's tolerances may cost on events of this size."""


def score_ns(result: EventResult) -> int:
    assert result.decision is not None
    return result.decision.terms.score_ns


def problem_of(raw: Raw) -> Problem:
    return compile_event(event_of(raw))


# ------------------------------------------------------------------------------- four solvers, one optimum


def unsure_ns(ref: Reference) -> int:
    """Return by how many ns double precision may err in any state."""
    return max((ref.unsure_ns(admit) for admit, _ in ref.states()), default=0)


def best_of(ref: Reference) -> tuple[int, int, int] | None:
    """Return the score, requests running and (negative) tokens moved of the best state, in this order."""
    found = []
    for admit, preempt in ref.states():
        chosen = ref.chosen(admit, preempt)
        value = (ref.parts(admit, preempt).score, len(chosen), -ref.moved_tokens(chosen))
        found.append((bool(chosen), value))
    return max(found)[1] if found else None


def note(seen: Counter[str], raw: Raw, ref: Reference, decision: Decision) -> None:
    """Count what kinds of events were drawn."""
    successors = Counter(p for t in raw["tasks"].values() for s in t["stages"].values() for p in s["after"])
    seen["fork"] += max(successors.values(), default=0) > 1
    seen["join"] += any(len(s["after"]) > 1 for t in raw["tasks"].values() for s in t["stages"].values())
    seen["K"] += bool(ref.cap)
    seen["batch limit"] += bool(ref.batch)
    seen["nothing waits"] += not raw["waiting"]
    seen["nothing runs"] += not raw["running"]
    seen["one agent"] += len(raw["agents"]) == 1
    seen["reserves nothing"] += any(r["reserve_tokens"] == 0 for r in raw["waiting"])
    seen["several ready"] += max(Counter(r["task"] for r in raw["waiting"]).values(), default=0) > 1
    seen["preempts"] += bool(decision.preempt)
    seen["keeps and preempts"] += 0 < len(decision.preempt) < len(raw["running"])
    seen["moves"] += decision.terms.move_ns > 0
    seen["last resort"] += not decision.resident


def test_all_solvers_find_the_optimum() -> None:
    seen: Counter[str] = Counter()

    @many(500)
    @given(events())
    def check(raw: Raw) -> None:
        event, ref = event_of(raw), Reference(raw)
        wanted = best_of(ref)
        for solver in SOLVERS:
            result = solve_event(event, solver=solver, tie_break=True)
            if wanted is None:
                assert (result.status, result.decision, result.bound_ns) == (Status.INFEASIBLE, None, None)
                continue
            assert result.status is Status.OPTIMAL
            assert result.decision is not None
            assert violations(event, result.decision) == []
            found = score_ns(result)
            assert result.bound_ns == found
            off = abs(found - wanted[0])
            assert off <= (MILP_NS if solver == "milp" else 0) or off <= unsure_ns(ref)
            decision = result.decision
            chosen = ref.chosen(decision.admit, decision.preempt)
            if solver != "milp" and not off:
                assert len(chosen) == wanted[1]
            if solver in ("cp-sat", "brute-force") and not off:
                assert result.ties_proved
                assert -ref.moved_tokens(chosen) == wanted[2]
            if solver == "cp-sat":
                note(seen, raw, ref, decision)

    check()
    assert min(seen.values()) >= 3, seen
    assert len(seen) == 13


@many(40)
@given(events(most_waiting=7, most_running=4))
def test_they_agree_on_somewhat_larger_events(raw: Raw) -> None:
    event = event_of(raw)
    exact, other, own = (solve_event(event, solver=one) for one in ("cp-sat", "milp", "branch-and-bound"))
    assert exact.status is other.status is own.status
    if exact.decision:
        assert abs(score_ns(exact) - score_ns(other)) <= MILP_NS
        assert score_ns(exact) == score_ns(own)


@pytest.mark.parametrize("cap", [0, 3])
def test_they_agree_on_a_large_event(cap: int) -> None:
    event = bench.large_event(60, 4, seed=1)
    event = replace(event, params=replace(event.params, K=cap))
    exact, other = (solve_event(event, solver=solver, time_limit_s=60) for solver in ("cp-sat", "milp"))
    assert exact.status is other.status is Status.OPTIMAL
    assert abs(score_ns(exact) - score_ns(other)) <= MILP_NS


@pytest.mark.parametrize("seed", range(1, 7))
def test_presolve_does_not_change_the_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    event = bench.mixed_event(50, 6, seed, cap=[0, 5][seed % 2])
    plain = solve_event(event)
    usual = event_cpsat._solver

    def without(*args: Any) -> Any:  # noqa: ANN401  ortools gives no types
        solver = usual(*args)
        solver.parameters.cp_model_presolve = False
        return solver

    monkeypatch.setattr(event_cpsat, "_solver", without)
    assert solve_event(event).bound_ns == plain.bound_ns == score_ns(plain)


def test_the_heuristic_is_beaten_where_it_should_be() -> None:
    """Two cheap requests of a cold agent outweigh one dear request of the warm one."""
    event = event_of(
        make_event(
            budget=100,
            agents="A=40 B=40",
            tasks={"t": "a=5", "u": "a=4", "v": "a=4"},
            waiting=["r1 t.a A 30 5", "r2 u.a B 30 4", "r3 v.a B 30 4"],
            resident="A",
            swap_s_per_token=0.001,
        )
    )
    result = solve_event(event)
    assert result.decision is not None
    assert sorted(result.decision.admit) == ["r2", "r3"]
    assert score_ns(result) == 8_000_000_000 - 2 * 80_000_000


# -------------------------------------------------------------------------------------- columns and cuts


def fork(ready: int, shape: str, seed: int, others: int = 6) -> Event:
    """Return an event with one task that has many ready requests, of different stages, and a few others."""
    rng = random.Random(seed)  # noqa: S311  no secret
    names = [f"A{k}" for k in range(4)]
    stages: dict[str, list[str]] = {f"s{k}": [] for k in range(ready)}
    if shape == "join":
        stages["z"] = list(stages)
    elif shape == "mixed":
        stages |= {f"m{k}": [f"s{k}", f"s{(k * 3 + 1) % ready}"] for k in range(ready // 2)}
    elif shape == "lines":
        stages |= {f"m{k}": [f"s{k}"] for k in range(ready)}
    dag, short = dag_of(stages), dag_of({"a": [], "b": ["a"]})

    def residuals(count: int, samples: int) -> tuple[Any, ...]:
        draw = [tuple(rng.uniform(1, 30) for _ in range(samples)) for _ in range(count)]
        return tuple(residual_of_seconds(one) for one in draw)

    def request(name: str, task: str, stage: str) -> Request:
        return Request(name, task, stage, rng.choice(names), rng.randrange(100, 500), rng.uniform(2, 30))

    tasks = {"big": TaskState(rng.uniform(0, 50), dag, residuals(len(dag), 2))}
    requests = [request(f"b{k}", "big", f"s{k}") for k in range(ready)]
    for k in range(others):
        tasks[f"t{k}"] = TaskState(rng.uniform(0, 50), short, residuals(2, 1))
        requests.append(request(f"r{k}", f"t{k}", "a"))
    return Event(
        time_s=50.0,
        budget_tokens=6000,
        agents={name: rng.randrange(300, 1200) for name in names},
        tasks=tasks,
        waiting=requests,
        running=(),
        resident=frozenset(names[:1]),
        params=Params(cost=Cost(swap_s_per_token=0.003)),
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("shape", ["join", "mixed", "lines", "independent"])
def test_cuts_find_what_listing_all_subsets_finds(
    shape: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of these is an event whose optimum OR-Tools 9.15 gets wrong with all of its presolve."""
    event = fork(11, shape, seed)
    by_cuts = solve_event(event, tie_break=True)
    monkeypatch.setattr(columns_module, "MOST_COLUMNS", 1 << 12)
    listed = solve_event(event, tie_break=True)
    assert by_cuts.status is listed.status is Status.OPTIMAL
    assert by_cuts.ties_proved
    assert score_ns(by_cuts) == score_ns(listed)
    assert by_cuts.decision is not None
    assert listed.decision is not None
    assert len(by_cuts.decision.admit) == len(listed.decision.admit)


@pytest.mark.parametrize("cap", [0, 4])
@pytest.mark.parametrize(
    "stages",
    [
        " ".join(f"s{k}={3 + k % 4}" for k in range(12))
        + " z<"
        + ",".join(f"s{k}" for k in range(12))
        + "=2|6",
        " ".join(f"s{k}={2 + k % 5} m{k}<s{k},s{(k + 1) % 12}={1 + k % 3}" for k in range(12)),
        " ".join(f"s{k}={k}.5|4" if k < 2 else f"s{k}={k}" for k in range(1, 13)),
    ],
    ids=["join", "overlapping joins", "independent"],
)
def test_a_fork_of_twelve_against_all_its_states(stages: str, cap: int) -> None:
    names = [word.partition("=")[0] for word in stages.split() if word.startswith("s")]
    raw = make_event(
        budget=330,
        agents="A=60 B=40 C=50",
        tasks={"t": stages},
        waiting=[f"r{k:02} t.{s} {'ABC'[k % 3]} {11 + 7 * (k % 4)} {1 + k % 6}" for k, s in enumerate(names)],
        resident="B",
        swap_s_per_token=0.002,
        K=cap,
    )
    problem = problem_of(raw)
    assert columns_of(problem).unlisted.tolist() == [0]
    result = solve_event(event_of(raw))
    assert (result.status, score_ns(result)) == (Status.OPTIMAL, Reference(raw).optimum())


@pytest.mark.parametrize("shape", ["join", "mixed", "lines", "independent"])
def test_a_cut_holds_for_every_set_and_is_tight_at_its_own(shape: str) -> None:
    problem = compile_event(fork(12, shape, seed=3, others=0))
    gains, requests = partial(joint_gain_ns, problem), problem.ready(0)
    rng = random.Random(5)  # noqa: S311  no secret
    drawn = [frozenset(k for k in requests if rng.random() < rng.choice([0.2, 0.5, 0.9])) for _ in range(60)]
    cuts = first_cuts(problem, 0, requests, gains) + [
        cut_at(problem, 0, requests, s, gains) for s in drawn[:9]
    ]
    for some in drawn:
        gain = gains(0, tuple(sorted(some)))
        assert gain == joint_gain_ns(problem, 0, some)
        allowed = [cut.constant_ns + sum(cut.slope_ns.get(k, 0) for k in some) for cut in cuts]
        assert gain <= min(allowed)
    assert gains(0, tuple(sorted(drawn[0]))) == cuts[-9].constant_ns


def test_interchangeable_requests_make_few_columns() -> None:
    """Thirty requests of a stage, agent and size are 31 choices, not 2^30."""
    raw = make_event(
        budget=400,
        agents="A=100",
        tasks={"t": "a=40|80"},
        waiting=[f"r{k:02} t.a A 10 2" for k in range(30)],
    )
    problem = problem_of(raw)
    assert columns_of(problem).table["requests"].tolist() == list(range(1, 31))
    assert score_ns(solve_event(event_of(raw))) == (40 + 60) * 1_000_000_000 // 2 - 1_000_000_000


@many(60)
@given(events(most_waiting=6))
def test_columns_are_what_they_say_and_the_dropped_ones_are_dominated(raw: Raw) -> None:
    problem = problem_of(raw)
    event, columns, waiting = problem.event, columns_of(problem), problem.tables.waiting
    slots = (
        min(n for n in (event.params.K, event.params.max_running, len(waiting)) if n) if len(waiting) else 0
    )
    kept = {}
    for i, row in enumerate(columns.table):
        members = columns.requests(i)
        agents = {problem.waiting[k].agent for k in members}
        assert set(waiting["task"][members]) == {row["task"]}
        assert row["gain_ns"] == joint_gain_ns(problem, int(row["task"]), members)
        assert row["tokens"] == sum(problem.waiting[k].reserve_tokens for k in members)
        assert row["pays"] == (not agents <= event.resident)
        kept[tuple(members)] = (agents, int(row["gain_ns"]), int(row["tokens"]))
    for task in range(len(problem.tasks)):
        for some in subsets(problem.ready(task)):
            agents = {problem.waiting[k].agent for k in some}
            tokens = sum(problem.waiting[k].reserve_tokens for k in some)
            if not some or len(some) > slots:
                continue
            if tokens + sum(event.agents[a] for a in agents) > event.budget_tokens:
                continue
            gain_ns = joint_gain_ns(problem, task, some)
            assert any(
                len(members) == len(some) and one[0] == agents and one[1] >= gain_ns and one[2] <= tokens
                for members, one in kept.items()
                if waiting["task"][members[0]] == task
            )


# ------------------------------------------------------------------------------------------ limits, statuses


def test_without_time_the_heuristic_stands_with_a_bound() -> None:
    event = bench.mixed_event(60, 4, seed=1)
    result = solve_event(event, time_limit_s=0)
    assert result.status is Status.FEASIBLE
    assert result.decision is not None
    assert score_ns(result) == select(event).terms.score_ns
    optimum = score_ns(solve_event(event))
    assert result.bound_ns == simple_bound_ns(compile_event(event)) > optimum > score_ns(result)


def test_out_of_work_the_better_state_stands_with_the_solvers_bound() -> None:
    event = bench.mixed_event(150, 10, seed=1)
    optimum_ns = score_ns(solve_event(event, time_limit_s=60))
    stopped = [solve_event(event, time_limit_s=None, work_limit=work) for work in (1e-4, 1e-2)]
    heuristic_ns = select(event).terms.score_ns
    for result in stopped:
        assert result.status is Status.FEASIBLE
        assert result.bound_ns is not None
        assert heuristic_ns <= score_ns(result) <= optimum_ns <= result.bound_ns
        assert not result.ties_proved
    # The first stops before it has a bound of its own.
    assert stopped[0].bound_ns == simple_bound_ns(compile_event(event))
    assert (stopped[1].bound_ns or 0) < (stopped[0].bound_ns or 0)


@pytest.mark.parametrize("limit_s", [0.0, 0.01, 0.1, 0.3])
def test_a_stopped_milp_keeps_its_bound_and_the_better_state(limit_s: float) -> None:
    event = bench.mixed_event(40, 4, seed=3)
    optimum_ns = score_ns(solve_event(event, time_limit_s=60))
    result = solve_event(event, solver="milp", time_limit_s=limit_s)
    assert result.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert result.bound_ns is not None
    assert select(event).terms.score_ns <= score_ns(result) <= optimum_ns + MILP_NS
    assert result.bound_ns >= optimum_ns - MILP_NS


def test_the_clock_is_an_argument() -> None:
    ticks: Iterator[float] = iter([0.0, 11.0, 12.5])
    result = solve_event(bench.mixed_event(60, 4, seed=1), time_limit_s=10.0, clock=lambda: next(ticks))
    assert (result.status, result.solve_s) == (Status.FEASIBLE, 12.5)


def test_nothing_known_within_the_limit_is_unknown_and_not_infeasible() -> None:
    """No prefix set holds both requests, so the heuristic has only the empty state; one of them fits."""
    result = solve_event(squeezed(150), time_limit_s=0)
    assert (result.status, result.decision) == (Status.UNKNOWN, None)
    assert result.bound_ns == 0
    for solver in SOLVERS:
        kept = solve_event(squeezed(150), solver=solver)
        assert kept.status is Status.OPTIMAL
        assert kept.decision is not None
        assert kept.decision.preempt == ("r1",)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_empty_state_is_the_last_resort(solver: str) -> None:
    result = solve_event(squeezed(149), solver=solver)
    assert result.status is Status.OPTIMAL
    assert result.decision is not None
    assert result.decision.preempt == ("r0", "r1")
    assert result.bound_ns == score_ns(result) == -3_000_000_000


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_k_forbids_to_empty_is_infeasible(solver: str) -> None:
    result = solve_event(squeezed(149, cap=1), solver=solver)
    assert (result.status, result.decision, result.bound_ns) == (Status.INFEASIBLE, None, None)


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_event_without_requests_has_one_state(solver: str) -> None:
    raw = make_event(budget=100, agents="A=10", tasks={}, resident="A", reuse={"A": 2})
    result = solve_event(event_of(raw), solver=solver)
    assert (result.status, result.bound_ns) == (Status.OPTIMAL, 0)


def test_the_same_event_gets_the_same_decision() -> None:
    event = bench.mixed_event(150, 10, seed=4)
    first, second = (solve_event(event, time_limit_s=None, tie_break=True) for _ in range(2))
    assert first.decision == second.decision
    assert first.decision is not None


def test_the_gap_is_a_share_of_the_optimum() -> None:
    assert gap(200, 150) == 0.25
    assert gap(-100, -150) == 0.5
    assert gap(0, -3) == 3.0
    assert gap(7, 7) == 0.0


def test_what_a_solver_cannot_do_is_refused() -> None:
    event = bench.mixed_event(600, 10, seed=1)
    with pytest.raises(InputError, match="at most 65536 joint states for brute force, found 2"):
        solve_event(event, solver="brute-force")
    with pytest.raises(InputError, match="outcomes of stages for the MILP"):
        solve_event(event, solver="milp")
    with pytest.raises(InputError, match="unknown solver 'simplex'; known: cp-sat"):
        solve_event(event, solver="simplex")


def test_numbers_beyond_the_solver_are_refused() -> None:
    raw = make_event(
        budget=1000,
        agents=" ".join(f"A{k}=100" for k in range(8)),
        tasks={f"t{k}": "a=5" for k in range(2000)},
        waiting=[f"r{k} t{k}.a A{k % 8} 1 5" for k in range(2000)],
        swap_s_per_token=1e4,
    )
    with pytest.raises(InputError, match="too large for CP-SAT"):
        solve_event(event_of(raw))


# ----------------------------------------------------------------------------------------- planted errors


def test_a_wrong_gain_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_good(problem: Problem) -> Columns:
        columns = columns_of(problem)
        columns.table["gain_ns"] += 1
        return columns

    monkeypatch.setattr(event_cpsat, "columns_of", too_good)
    with pytest.raises(OracleError, match=r"claims a score of \d+ ns for a state that has \d+ ns"):
        solve_event(paying_event())


def test_a_wrong_move_charge_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert score_ns(solve_event(paying_event())) == (5 + 9) * 1_000_000_000 - 400_000_000
    monkeypatch.setattr(event_cpsat, "_add_move", lambda *_: None)
    with pytest.raises(OracleError, match="claims a score of 14000000000 ns"):
        solve_event(paying_event())


def test_a_wrong_charge_in_the_milp_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_milp, "_charges", lambda *_: [])
    with pytest.raises(OracleError, match="tolerance"):
        solve_event(paying_event(), solver="milp")


def test_a_state_that_is_not_feasible_is_caught() -> None:
    problem = compile_event(replace(paying_event(), budget_tokens=100))
    with pytest.raises(OracleError, match="not feasible: budget: 120 tokens exceed 100"):
        verified(problem, Answer(Status.OPTIMAL, (0, 1)))


@pytest.mark.parametrize("answer", [Answer(Status.INFEASIBLE), Answer(Status.OPTIMAL, (0,), (), 5 * 10**9)])
def test_a_proof_that_the_heuristic_refutes_is_caught(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oracle.event.solve_cpsat", lambda *_, **__: answer)
    with pytest.raises(OracleError, match="known"):
        solve_event(paying_event())


# ------------------------------------------------------------------------------------------------ policy


def small_trace() -> Any:  # noqa: ANN401  as make_trace
    three = chain(("A", ask(10, 6)), ("B", ask(8, 5)), ("C", ask(6, 4)))
    return make_trace(
        {"A": 40, "B": 30, "C": 20},
        *[(k / 2, three) for k in range(5)],
        *[(1.0 + k, single("BC"[k % 2], ask(12, 7))) for k in range(4)],
    )


@pytest.mark.parametrize("admission", ["full", "sglang"])
def test_the_exact_policy_is_at_least_as_good_at_every_event(admission: str) -> None:
    _, entries = recorded(small_trace(), "topas-exact", stepping(130, admission=admission))
    assert len(entries) > 5
    for event, decision in entries:
        assert violations(event, decision) == []
        assert decision.terms == score(event, decision.admit, decision.preempt)
        greedy = select(event)
        if violations(event, greedy) == [] and greedy.resident:
            assert decision.terms.score_ns >= greedy.terms.score_ns
        assert sum(decision.credits_ns) == decision.terms.admit_ns
        problem = compile_event(event)
        index = {r.id: k for k, r in enumerate(problem.waiting)}
        assert decision.credits_ns == conditional_gains_ns(problem, [index[name] for name in decision.admit])


def test_two_runs_of_the_exact_policy_are_equal() -> None:
    runs = [simulate(small_trace(), "topas-exact", stepping(130)) for _ in range(2)]
    assert runs[0].tasks == runs[1].tasks


@many(80)
@given(events(shrunk=False))
def test_admissions_stand_in_the_order_of_greedy_pack(raw: Raw) -> None:
    """Where the heuristic admits the same requests, it admits them in the same order."""
    event = event_of(raw)
    greedy, exact = select(event), decide_exactly(event)
    if (set(greedy.admit), greedy.preempt) == (set(exact.admit), exact.preempt):
        assert exact == greedy


def test_where_nothing_is_feasible_the_exact_policy_changes_nothing() -> None:
    decision = decide_exactly(squeezed(149, cap=1))
    assert (decision.admit, decision.preempt, decision.resident) == ((), (), ("A",))


def test_an_optimum_that_is_not_proved_breaks_the_simulation_off() -> None:
    with pytest.raises(SimulationError, match=r"not proved within 0.0001 units of work .*600 waiting"):
        decide_exactly(bench.mixed_event(600, 10, seed=2), work_limit=1e-4)


def test_the_exact_policy_runs_only_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert get_policy("topas-exact") is TOPAS_EXACT
    assert "topas-exact" not in policy_names()
    assert "topas-exact" in policy_names(on_request=True)
    with pytest.raises(SystemExit):
        main(["decide", "--help"])
    assert "topas-exact" in capsys.readouterr().out
    path = tmp_path / "event.json"
    path.write_text(json.dumps(event_json(paying_event())))
    assert main(["decide", str(path), "--policy", "topas-exact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["score_s"] == 13.6


# --------------------------------------------------------------------------------------- without the extra


@pytest.fixture
def without_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(name=name.partition(".")[0])

    monkeypatch.setattr(oracle.extra.importlib, "import_module", missing)


@pytest.mark.usefixtures("without_extra")
@pytest.mark.parametrize(("solver", "library"), [("cp-sat", "ortools"), ("milp", "pulp")])
def test_a_missing_solver_is_named_with_the_extra(solver: str, library: str) -> None:
    with pytest.raises(InputError, match=rf"needs {library}, .*pip install 'topas\[oracle\]'"):
        solve_event(paying_event(), solver=solver)
    for own in ("brute-force", "branch-and-bound"):
        assert solve_event(paying_event(), solver=own).status is Status.OPTIMAL


def test_the_benchmark_of_the_optimum_measures_proved_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "OPTIMA", ((20, 3, 1.0),))
    found = bench.event_optimum(seeds=(1, 2))
    assert [figure.name for figure in found] == [
        f"event optimum, 20 waiting requests of 3 agents, K = {cap}" for cap in (0, 8)
    ]
    assert all(figure.value > 0 for figure in found)
    event = bench.mixed_event(60, 4, seed=1)
    assert (len(event.waiting), len(event.running)) == (60, 6)
    assert violations(event, select(event)) == []


def test_limits_have_defaults_that_stop() -> None:
    assert Limits() == Limits(10.0, None, 0, 1)
