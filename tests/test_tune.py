"""``topas tune``: the search, its study, the comparison on held-out traces, and the file it writes."""

from __future__ import annotations

import csv
import json
import math
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
import support_cli
from hypothesis import given, settings
from hypothesis import strategies as st

from compare.pool import Done, Interrupted
from compare.source import Source
from compare.study import METRICS, Metrics, Played, Run, outcome_of
from compare.tuning import plan as plan_module
from compare.tuning import search as search_module
from compare.tuning.config_file import config_text, scalar
from compare.tuning.held_out import overall
from compare.tuning.loss import Reference, Weights, loss_of, references_of
from compare.tuning.plan import TuningPlan
from compare.tuning.search import Found, State, search
from compare.tuning.space import RANGES, TUNED, rounded, space_of
from compare.tuning.sweep import Setting, settings_of
from oracle.event import solve_event
from topas.cli import main
from topas.errors import InputError
from topas.event import Params
from topas.formats import event_json, event_of, read_event, read_events
from topas.online.sglang.config import load_config
from topas.online.tracker import Tracker
from topas.params import SearchParams, values_of, with_values
from topas.policies import baseline_names, get_policy
from topas.profile import load_profile
from topas.schema import validate
from topas.score import decision_on
from topas.trace.format import write_trace
from traces.workloads import WorkloadOptions, generate

STUDY = load_profile("study")
CELLS = 6
BASE = SearchParams()

# --- the search, on a stand-in for the simulator -----------------------------------------------------------


def plan(**changes: Any) -> TuningPlan:  # noqa: ANN401  any field
    train = tuple(Source("chain-3", 3, k, 0.1) for k in range(CELLS))
    base = changes.get("base", BASE)
    fields: dict[str, Any] = {
        "policy": "topas-paper",
        "base": base,
        "space": space_of("topas-paper", None, base),
        "train": train,
        "profile": STUDY,
        "baselines": ("fcfs",),
        "weights": Weights(),
        "seed": 3,
        "prune": 0.1,
    }
    return TuningPlan(**{**fields, **changes})


class Simulator:
    """Answers for the simulator: a JCT that grows with the distance of beta from 2, and with the seed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[Run] = []
        self.stop: Callable[[Run], BaseException | None] = lambda _: None
        self.fails: Callable[[Run], bool] = lambda _: False
        monkeypatch.setattr(search_module, "find_out", self.find_out)

    def find_out(
        self, runs: Sequence[Run], folder: Path, *, jobs: int, progress: bool | None
    ) -> Done[Run, Played]:
        """Stand for :func:`compare.store.find_out`."""
        del folder, jobs, progress
        results, failures = {}, {}
        for run in runs:
            error = self.stop(run)
            if error is not None:
                raise error
            self.ran.append(run)
            if self.fails(run):
                failures[run] = "out of memory"
            else:
                results[run] = played(10 + (run.params.beta - 2) ** 2 + seed_of(run))
        return Done(results, failures, 0, 0)


def seed_of(run: Run) -> int:
    return run.source.seed or 0


def played(mean_s: float, p99_s: float | None = None) -> Played:
    p99_s = 2 * mean_s if p99_s is None else p99_s
    return Played(Metrics(**{**dict.fromkeys(METRICS, 1), "mean_jct_s": mean_s, "p99_jct_s": p99_s}), ())


def references(what: TuningPlan) -> dict[Source, Reference]:
    return {source: Reference(10.0 + (source.seed or 0), 20.0) for source in what.train}


def searched(folder: Path, what: TuningPlan | None = None, *, trials: int = 8, jobs: int = 1) -> Found:
    what = what or plan()
    url = f"sqlite:///{folder / 'study.db'}"
    return search(what, references(what), folder, url, "s", trials=trials, jobs=jobs, progress=False)


@pytest.fixture(autouse=True)
def _fast_storage() -> Iterator[None]:
    """Do not wait for the disk: nothing here survives a power cut."""

    def hurry(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA synchronous=OFF")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", hurry)
    yield
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", hurry)


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Simulator:
    return Simulator(monkeypatch)


def test_trial_0_is_where_the_search_starts_from(tmp_path: Path, simulator: Simulator) -> None:
    base = SearchParams(beta=7.5, K=5)  # outside of the usual ranges
    found = searched(tmp_path, plan(base=base), trials=3)
    assert found.trials[0].params == base
    assert {run.params for run in simulator.ran[:CELLS]} == {base.on(Params())}
    assert all(trial.params != base for trial in found.trials[1:])


def test_every_trial_runs_on_the_same_traces_in_the_same_mixed_order(
    tmp_path: Path, simulator: Simulator
) -> None:
    searched(tmp_path, plan(prune=0.0), trials=3)
    orders = [[seed_of(run) for run in simulator.ran[k : k + CELLS]] for k in range(0, 3 * CELLS, CELLS)]
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == list(range(CELLS)) != orders[0]


def test_trials_that_lose_on_the_same_traces_are_pruned_and_counted(
    tmp_path: Path, simulator: Simulator
) -> None:
    found = searched(tmp_path)
    pruned = found.of(State.PRUNED)
    assert pruned
    assert len(found.of(State.COMPLETE)) + len(pruned) == len(found.trials) == 8
    assert all(0 < trial.cells < CELLS for trial in pruned)
    assert all(trial.cells == CELLS for trial in found.of(State.COMPLETE))
    assert len(simulator.ran) == sum(trial.cells for trial in found.trials)
    best = found.best
    assert best is not None
    assert best.loss == min(trial.loss or 0.0 for trial in found.of(State.COMPLETE))
    assert all((trial.params.beta - 2) ** 2 > (best.params.beta - 2) ** 2 for trial in pruned)


def test_without_pruning_every_trial_is_complete(tmp_path: Path, simulator: Simulator) -> None:
    found = searched(tmp_path, plan(prune=0.0), trials=6)
    assert len(found.of(State.COMPLETE)) == 6
    assert len(simulator.ran) == 6 * CELLS


def test_the_number_of_processes_changes_nothing(tmp_path: Path, simulator: Simulator) -> None:
    found = []
    for jobs in (1, 4):
        (tmp_path / str(jobs)).mkdir()
        found.append(searched(tmp_path / str(jobs), jobs=jobs))
    assert simulator.ran
    assert found[0] == found[1]
    assert found[0].of(State.PRUNED)


def test_another_seed_searches_elsewhere(tmp_path: Path, simulator: Simulator) -> None:
    found = []
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        found.append(searched(tmp_path / str(seed), plan(seed=seed), trials=3))
    assert simulator.ran
    assert found[0].trials[0].params == found[1].trials[0].params
    assert found[0].trials[1].params != found[1].trials[1].params


@pytest.mark.parametrize("stop", [Interrupted(0, 1), SystemExit(9)], ids=["interrupted", "killed"])
@pytest.mark.parametrize("after", [2, CELLS + 2], ids=["in trial 0", "later"])
def test_a_study_that_was_stopped_ends_like_one_that_was_not(
    tmp_path: Path, simulator: Simulator, stop: BaseException, after: int
) -> None:
    (tmp_path / "whole").mkdir()
    whole = searched(tmp_path / "whole", trials=5)
    simulator.ran = []
    simulator.stop = lambda _: stop if len(simulator.ran) == after else None
    (tmp_path / "part").mkdir()
    with pytest.raises(type(stop)) as error:
        searched(tmp_path / "part", trials=5)
    if isinstance(error.value, Interrupted):
        assert error.value.total == 5
        assert (error.value.done > 0) == (after > CELLS)
    simulator.stop = lambda _: None
    before = len(simulator.ran)
    resumed = searched(tmp_path / "part", trials=5)
    assert resumed.trials == whole.trials
    assert resumed.importance == whole.importance
    assert resumed.resumed == (0 if after < CELLS else sum(1 for _ in finished_before(whole, before)))
    again = simulator.ran[before:]
    done = whole.trials[: resumed.resumed]
    assert len(again) == sum(trial.cells for trial in whole.trials) - sum(trial.cells for trial in done)


def finished_before(whole: Found, cells: int) -> list[int]:
    """Return the trials of a whole study that were finished after so many cells."""
    finished, total = [], 0
    for trial in whole.trials:
        total += trial.cells
        if total <= cells:
            finished.append(trial.index)
    return finished


def test_more_trials_go_on_from_those_there_are(tmp_path: Path, simulator: Simulator) -> None:
    first = searched(tmp_path, trials=4)
    ran = len(simulator.ran)
    assert searched(tmp_path, trials=4).trials == first.trials
    assert len(simulator.ran) == ran
    more = searched(tmp_path, trials=7)
    assert more.trials[:4] == first.trials
    assert (len(more.trials), more.resumed) == (7, 4)


def test_a_failed_trial_is_told_counted_and_not_repeated(tmp_path: Path, simulator: Simulator) -> None:
    simulator.fails = lambda run: len(simulator.ran) > CELLS and seed_of(run) == 2
    found = searched(tmp_path, trials=3)
    assert [trial.state for trial in found.trials] == [State.COMPLETE, State.FAILED, State.FAILED]
    assert "seed 2, topas-paper: out of memory" in found.trials[1].reason
    assert found.best == found.trials[0]
    ran = len(simulator.ran)
    assert searched(tmp_path, trials=3).trials == found.trials
    assert len(simulator.ran) == ran


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "topas-score"}, "another policy"),
        ({"base": SearchParams(M=3)}, "other parameters, ranges or starting values"),
        ({"space": space_of("topas-paper", ["beta"], BASE)}, "other parameters, ranges or starting values"),
        ({"train": plan().train[1:]}, "other training traces"),
        ({"profile": load_profile("unit")}, "another engine profile"),
        ({"weights": Weights(1.0, 0.0)}, "other baselines or weights"),
        ({"seed": 4}, "another seed"),
        ({"prune": 0.0}, "another --prune"),
    ],
)
def test_a_study_of_anything_else_is_refused(
    tmp_path: Path, simulator: Simulator, changes: dict[str, Any], words: str
) -> None:
    searched(tmp_path, trials=1)
    ran = len(simulator.ran)
    with pytest.raises(InputError) as error:
        searched(tmp_path, plan(**changes), trials=1)
    assert f"the study 's' was made with {words}: choose another folder" in str(error.value)
    assert len(simulator.ran) == ran


def test_other_code_is_refused(tmp_path: Path, simulator: Simulator, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(tmp_path, trials=1)
    assert simulator.ran
    monkeypatch.setattr(plan_module, "code_digest", lambda: "other")
    with pytest.raises(InputError, match="another version of the code"):
        searched(tmp_path, trials=1)


def test_a_study_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    storage = optuna.storages.RDBStorage(url)
    other = optuna.create_study(storage=storage, study_name="s")
    other.tell(other.ask(), 1.0)
    storage.remove_session()
    storage.engine.dispose()
    with pytest.raises(InputError, match="'s' is another study"):
        search(plan(), {}, tmp_path, url, "s", trials=1)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("study.db", "--storage: expected an SQLAlchemy URL, found 'study.db'"),
        ("sqlite:////nowhere/study.db", "sqlite:////nowhere/study.db: cannot use the storage: "),
        ("postgresql+none://me:secret@host/db", "postgresql+none://me:***@host/db: cannot use the storage: "),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line_without_its_password(
    tmp_path: Path, url: str, words: str
) -> None:
    with pytest.raises(InputError) as error:
        search(plan(), {}, tmp_path, url, "s", trials=1)
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


def test_a_file_that_is_no_database_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_text("no database, but long enough to have a header of one\n" * 9)
    with pytest.raises(InputError, match="cannot use the storage: file is not a database"):
        search(plan(), {}, tmp_path, f"sqlite:///{path}", "s", trials=1)


def test_the_parameter_that_decides_is_the_important_one(tmp_path: Path, simulator: Simulator) -> None:
    assert searched(tmp_path, plan(prune=0.0), trials=9).importance is None
    found = searched(tmp_path, plan(prune=0.0), trials=16)
    assert simulator.ran
    assert found.importance is not None
    assert next(iter(found.importance)) == "beta"
    assert found.importance.keys() == set(TUNED["topas-paper"])
    assert sum(found.importance.values()) == pytest.approx(1.0)


# --- space and configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", TUNED)
def test_the_space_of_a_policy_holds_its_start_and_only_valid_values(policy: str) -> None:
    base = SearchParams(beta=50.0, K=7, age_factor=0.01)
    space = space_of(policy, None, base)
    for name, value in values_of(base, list(space)).items():
        assert space[name]._contains(space[name].to_internal_repr(value))
        ends = getattr(space[name], "choices", None) or (
            getattr(space[name], "low", None),
            getattr(space[name], "high", None),
        )
        for end in ends:
            changed = validate(SearchParams, asdict(with_values(base, {name: end})))
            assert values_of(changed, [name]) == {name: end}


def test_every_parameter_of_score_and_lookahead_can_be_tuned() -> None:
    file = asdict(BASE)
    file |= {f"lookahead.{name}": value for name, value in file.pop("lookahead").items()}
    assert set(RANGES) == set(file)


def test_parameters_are_named_as_in_the_file_or_by_their_last_word() -> None:
    assert list(space_of("topas", ["margin", "K", "lookahead.tail"], BASE)) == [
        "lookahead.margin",
        "K",
        "lookahead.tail",
    ]


@pytest.mark.parametrize(
    ("policy", "chosen", "words"),
    [
        ("spf", None, "--policy: spf has no parameters; known: topas, topas-paper, "),
        ("topas", ["beta"], "--parameters: topas has no parameter 'beta'; it has lookahead.preempt, "),
        ("topas", ["margin", "lookahead.margin"], "--parameters: lookahead.margin is named twice"),
    ],
)
def test_what_cannot_be_tuned_is_refused(policy: str, chosen: list[str] | None, words: str) -> None:
    with pytest.raises(InputError) as error:
        space_of(policy, chosen, BASE)
    assert str(error.value).startswith(words)


def drawn(name: str) -> st.SearchStrategy[int | float]:
    given_range = RANGES[name]
    if isinstance(given_range, optuna.distributions.CategoricalDistribution):
        return st.sampled_from([int(choice) for choice in given_range.choices])  # type: ignore[arg-type]
    if isinstance(given_range, optuna.distributions.IntDistribution):
        return st.integers(given_range.low, given_range.high)
    assert isinstance(given_range, optuna.distributions.FloatDistribution)
    return st.floats(given_range.low, given_range.high)


@settings(max_examples=60, deadline=None)
@given(values=st.fixed_dictionaries({name: drawn(name) for name in RANGES}))
def test_the_file_says_exactly_what_was_run(
    values: Mapping[str, int | float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    params = with_values(BASE, rounded(values))
    path = tmp_path_factory.mktemp("config") / "topas.yaml"
    path.write_text(config_text(params, BASE, ["a: line", "two\nlines"]))
    assert load_config(str(path)).params == params


def test_the_file_says_what_a_parameter_was() -> None:
    text = config_text(with_values(BASE, {"beta": 0.25, "lookahead.race": 0.1}), BASE, ["from a test"])
    lines = text.splitlines()
    assert lines[:2] == ["# from a test", "format: topas-serving/1"]
    assert "  beta: 0.25  # was 1.0" in lines
    assert "    race: 0.1  # was 0.05" in lines
    assert "  rho: 0.5" in lines


@pytest.mark.parametrize(("value", "text"), [(1e-5, "0.00001"), (0.5, "0.5"), (3, "3"), (1e6, "1000000.0")])
def test_no_number_has_an_exponent(value: float, text: str) -> None:
    assert scalar(value) == text


# --- one file for simulator and server ---------------------------------------------------------------------

CONFIG = """\
format: topas-serving/1
profile: h200-141g-qwen2.5-32b
params: {beta: 0.25, rho: 1.5, M: 3, K: 2, age_factor: 4.0, lookahead: {margin: 0.09, scenarios: 2}}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "server.yaml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    options = WorkloadOptions(output_tokens=200, output_sigma=0.8)
    write_trace(generate("dag-4", rate_per_s=0.5, tasks=6, seed=2, options=options), path)
    return str(path)


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["simulate", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {name: value for name, value in found.items() if not name.startswith("decision_ms")}


def logged(path: Path) -> Params:
    """Return the parameters of the first event of a log."""
    return next(read_events(path)).event.params


def test_the_simulator_reads_a_servers_file_as_the_server_does(
    config: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import json, sys; sys.modules['sglang'] = None\n"
        "from dataclasses import asdict\n"
        "from topas.event import Params\n"
        "from topas.online.sglang.config import load_config\n"
        f"print(json.dumps(asdict(load_config({config!r}).params.on(Params()))))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  our own
    server = json.loads(run.stdout)
    log = tmp_path / "log.jsonl"
    simulated(capsys, trace, "--policy", "topas-paper", "--config", config, "--events", str(log))
    params = asdict(logged(log))
    from_engine = {"age_scale_s", "cost", "max_running", "keeps_output", "host_cache", "reads_shared_once"}
    for name in set(params) - from_engine:
        assert params[name] == server[name], name
    h200 = load_profile("h200-141g-qwen2.5-32b")
    assert (tuple(params["cost"]), params["max_running"]) == (h200.cost, h200.max_running)


def test_a_file_and_options_that_say_the_same_do_the_same(
    tmp_path: Path, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text('format = "topas-serving/1"\nparams = {beta = 0.0, rho = 3.0, K = 2, age_factor = 0.1}\n')
    words = [trace, "--policy", "topas-paper"]
    options = ["--beta", "0", "--rho", "3", "--K", "2", "--age-factor", "0.1"]
    by_file = simulated(capsys, *words, "--config", str(path))
    assert by_file == simulated(capsys, *words, *options)
    assert by_file != simulated(capsys, *words)


def test_an_option_counts_before_the_file(
    config: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    words = ["--config", config, "--rho", "0.75", "--profile", "study", "--events", str(log)]
    simulated(capsys, trace, "--policy", "topas-paper", *words)
    params = logged(log)
    assert (params.beta, params.rho, params.M) == (0.25, 0.75, 3)
    assert params.max_running == STUDY.max_running
    assert params.cost.swap_s_per_token == STUDY.swap_s_per_token


def test_decide_takes_the_parameters_of_a_file_for_those_of_the_event(
    config: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, path = tmp_path / "log.jsonl", tmp_path / "event.json"
    simulated(capsys, trace, "--policy", "topas-paper", "--events", str(log))
    event = max((one.event for one in read_events(log)), key=lambda event: len(event.waiting))
    path.write_text(json.dumps(event_json(event)))
    params = load_config(config).params.on(event.params)
    assert params.age_scale_s == 4 * event.params.age_scale_s
    expected = get_policy("topas-paper").decide(replace(event, params=params))
    assert main(["decide", str(path), "--policy", "topas-paper", "--config", config, "--json"]) == 0
    decided = json.loads(capsys.readouterr().out)
    assert decided["admit"] == list(expected.admit)
    assert len(decided["admit"]) <= 2 < len(get_policy("topas-paper").decide(read_event(path)).admit)


@pytest.mark.parametrize("command", ["simulate", "compare", "gap", "tune", "decide"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "format: topas-serving/1\nparams: {lookahead: {scenarios: 0}}\n",
            "params.lookahead.scenarios: input should be greater than or equal to 1, found 0",
        ),
        (
            "format: topas-serving/1\nparams: {age_factor: 0}\n",
            "params.age_factor: input should be greater than or equal to 0.001, found 0",
        ),
        ("params: {}\n", "format: expected topas-serving/1"),
    ],
)
def test_a_wrong_file_is_one_line_and_exit_2(  # noqa: PLR0913  fixtures
    tmp_path: Path, trace: str, capsys: pytest.CaptureFixture[str], command: str, text: str, words: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    given_files = [trace]
    if command == "decide":
        log = tmp_path / "log.jsonl"
        simulated(capsys, trace, "--policy", "fcfs", "--events", str(log))
        event = tmp_path / "event.json"
        event.write_text(json.dumps(event_json(next(read_events(log)).event)))
        given_files = [str(event)]
    folder = [] if command in {"simulate", "decide"} else ["-o", str(tmp_path / "out")]
    line = support_cli.refused(capsys, command, *given_files, "--config", str(path), *folder)
    assert line == f"topas: {path}: {words}"
    assert not (tmp_path / "out").exists()


def test_the_age_scale_is_a_multiple_of_the_mean_service() -> None:
    trackers = [Tracker(STUDY, Params(age_factor=factor)) for factor in (1.0, 2.5)]
    workflow = generate("chain-3", rate_per_s=0.1, tasks=1, seed=1).tasks[0].workflow
    for tracker in trackers:
        task = tracker.task_arrived("t", workflow, 0.0)
        assert tracker.age_scale_s > 1.0
        for stage in range(len(workflow.dag)):
            tracker.request_admitted(task, stage)
            tracker.request_done(task, stage, 4_000_000_000)
            tracker.stage_done(task, stage)
    assert [tracker.age_scale_s for tracker in trackers] == [12.0, 30.0]


def test_an_event_keeps_the_age_factor(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    simulated(capsys, trace, "--policy", "topas-paper", "--age-factor", "3", "--events", str(log))
    event = next(read_events(log)).event
    assert event.params.age_factor == 3.0
    assert event_of(event_json(event)) == event


# --- loss, changes, settings -------------------------------------------------------------------------------


def run(seed: int, policy: str = "fcfs", rate: float = 0.1, arm: str = "") -> Run:
    return Run(Source("chain-3", 3, seed, rate), policy, STUDY, label=arm)


def test_the_loss_is_the_weighted_logarithm_against_the_best_baseline_of_each_metric() -> None:
    references = references_of({run(1): played(10.0, 50.0), run(1, "spf"): played(12.0, 40.0)})
    assert references == {run(1).source: Reference(10.0, 40.0)}
    loss = loss_of(played(5.0, 80.0).metrics, references[run(1).source], Weights(3.0, 0.5))
    assert loss == pytest.approx(3 * math.log(1 / 2) + 0.5 * math.log(2))


def test_a_baseline_of_zero_seconds_is_refused() -> None:
    with pytest.raises(InputError, match=r"the best JCT on chain-3, 0\.1 tasks/s, seed 1 is 0"):
        references_of({run(1): played(0.0)})


def test_tuned_and_default_are_paired_by_seed_in_each_cell_and_each_cell_has_one_voice() -> None:
    ratios = {(1, 0.1): 0.5, (1, 0.2): 0.5, (2, 0.1): 2.0, (2, 0.2): 8.0}

    def told(seeds: Sequence[int]) -> dict[str, float]:
        found = {}
        for (seed, rate), ratio in ratios.items():
            if seed in seeds:
                found[run(seed, "topas", rate, "default")] = played(10.0 * seed)
                found[run(seed, "topas-paper", rate, "tuned")] = played(10.0 * seed * ratio)
        table = overall(outcome_of(found, found, {}).runs, "default", "tuned")
        (row,) = table[table["metric"] == "mean_jct_s"].to_dict("records")
        return row

    # Of the default's mean of 15: -5 and -5 at seed 1, 20 and 140 at seed 2; t(0.975, 1) = 12.7062.
    first, second = -5 / 15, (20 + 140) / 2 / 15
    row = told((1, 2))
    half = 12.7062 * (second - first) / 2
    assert row["change"] == pytest.approx((first + second) / 2)
    assert (row["low"], row["high"]) == pytest.approx((row["change"] - half, row["change"] + half), rel=1e-5)
    one = told((1,))
    assert one["change"] == pytest.approx(-0.5)
    assert math.isnan(one["low"])


def test_m_and_k_are_swept_one_at_a_time_from_the_base() -> None:
    found = settings_of(Setting(6, 4), {"M": (0, 6), "K": (0, 4)})
    assert found == (Setting(6, 4), Setting(0, 4), Setting(6, 0))


# --- the command -------------------------------------------------------------------------------------------

SMALL = ["dag-4", "--policy", "topas-paper", "--tasks", "6", "--output-tokens", "150", "--jobs", "1"]
SMALL += ["--output-sigma", "0.5", "--loads", "4.0", "--seeds", "1,2", "--held-out-seeds", "3,4"]
SMALL += ["--trials", "3", "--sweep", "M=0", "K=1", "--sweep-events", "8"]


def tuned(folder: Path, *words: str) -> int:
    return main(["tune", *SMALL, *words, "-o", str(folder)])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def contents(folder: Path) -> dict[str, str]:
    """Return what has the same bytes at every run, with the folder's name taken out."""
    texts = {}
    for name in ("results.json", "topas.yaml", "trials.csv", "held_out.csv", "sweep.csv"):
        texts[name] = (folder / name).read_text().replace(str(folder), "DIR")
    report = (folder / "report.md").read_text().replace(str(folder), "DIR")
    before, _, rest = report.partition("### Time a decision")
    _, _, parameters = rest.partition("## Parameters")
    return {**texts, "report": before + parameters.partition("## M and K")[0]}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one whole run."""
    folder = tmp_path_factory.mktemp("tuned")
    assert tuned(folder, "--quiet") == 0
    return folder


def test_the_folder_holds_report_tables_and_configuration(done: Path) -> None:
    names = {path.name for path in done.iterdir() if path.is_file()}
    assert names == {
        "report.md", "results.json", "topas.yaml", "trials.csv", "held_out.csv", "sweep.csv",
        "tails.csv", "timings.csv", "study.db",
    }  # fmt: skip
    trials = rows_of(done / "trials.csv")
    assert [row["trial"] for row in trials] == ["0", "1", "2"]
    held_out = rows_of(done / "held_out.csv")
    arms = [*baseline_names(), "default", "tuned"]
    assert [(row["seed"], row["arm"]) for row in held_out] == [(s, arm) for s in ("3", "4") for arm in arms]
    found = json.loads((done / "results.json").read_text())
    best = min(trials, key=lambda row: float(row["loss"]))
    assert found["trials"]["best"] == int(best["trial"])
    assert found["trials"]["default_loss"] == float(trials[0]["loss"])
    assert found["config"] == asdict(load_config(str(done / "topas.yaml")).params)


def test_the_losses_are_those_of_the_simulator(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Play the held-out traces again, with the file as a user would, and count the loss by hand."""
    words = ["--load", "4.0", "--profile", "study", "--tasks", "6", "--output-tokens", "150"]
    for seed in ("3", "4"):
        trace = str(done / f"again-{seed}.jsonl")
        assert main(["workload", "dag-4", *words, "--output-sigma", "0.5", "--seed", seed, "-o", trace]) == 0
        capsys.readouterr()
        rows = {row["arm"]: row for row in rows_of(done / "held_out.csv") if row["seed"] == seed}
        own = simulated(capsys, trace, "--policy", "topas-paper", "--config", str(done / "topas.yaml"))
        plain = simulated(capsys, trace, "--policy", "topas-paper")
        for name in ("mean_jct_s", "p99_jct_s"):
            assert float(rows["tuned"][name]) == own[name]
            assert float(rows["default"][name]) == plain[name]
        loss = sum(
            math.log(own[name] / min(float(rows[one][name]) for one in baseline_names()))
            for name in ("mean_jct_s", "p99_jct_s")
        )
        assert float(rows["tuned"]["loss"]) == pytest.approx(loss)
        Path(trace).unlink()


def test_the_gaps_of_the_sweep_are_those_of_the_solver(done: Path) -> None:
    """Judge the sampled events anew: under the setting's K, and without a cap."""
    (log,) = (done / "logs").glob("*.jsonl")
    events = [one.event for one in read_events(log)]
    found = json.loads((done / "results.json").read_text())["sweep"]
    assert [one["setting"] for one in found["gaps"]] == [{"M": 6, "K": 0}, {"M": 0, "K": 0}, {"M": 6, "K": 1}]
    (row,) = (one for one in found["gaps"] if one["setting"]["K"] == 1)
    capped, free = set(), set()
    for event in events:
        small = replace(event, params=replace(event.params, M=6, K=1))
        made = get_policy("topas-paper").decide(small)
        for gaps, judged in ((capped, small), (free, event)):
            best = solve_event(judged).decision
            assert best is not None
            score = decision_on(judged, made.admit, made.preempt).terms.score_ns
            gaps.add(0.0 if best.terms.score_ns == score else 1 - score / best.terms.score_ns)
    assert {one["policy"] for one in found["gaps"]} == {"topas-paper"}
    assert row["capped"]["count"] == row["free"]["count"] == 8
    assert any(row["free"]["max"] == pytest.approx(gap) for gap in free)
    assert any(row["capped"]["max"] == pytest.approx(gap) for gap in capped)
    assert row["free"]["mean"] > row["capped"]["mean"]


def test_the_command_in_the_report_makes_the_same_results(done: Path, tmp_path: Path) -> None:
    page = (done / "report.md").read_text()
    command = shlex.split(page.split("```")[1].removeprefix("sh\n"))
    assert command[:3] == ["topas", "tune", "dag-4"]
    command[-1] = str(tmp_path)
    assert main([*command[1:], "--jobs", "1", "--quiet"]) == 0
    assert contents(tmp_path) == contents(done)


def test_an_interrupted_run_leaves_nothing_half_written_and_goes_on(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_out = search_module.find_out
    calls = iter(range(100))

    def stopped(*args: Any, **named: Any) -> Done[Run, Played]:  # noqa: ANN401  as the original
        if next(calls) == 3:
            raise Interrupted(0, 1)
        return find_out(*args, **named)

    monkeypatch.setattr(search_module, "find_out", stopped)
    assert tuned(tmp_path) == 130
    assert "topas: interrupted: 1 of 3 trials are kept; the same command goes on" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"cells", "study.db"}
    assert not list(tmp_path.rglob(".*"))
    assert tuned(tmp_path) == 0
    assert "1 of 3 trials were done before" in capsys.readouterr().err
    assert contents(tmp_path) == contents(done)


def test_a_second_run_does_nothing_again_and_json_is_one_object(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*.json*") if path.parent != done}
    texts = contents(done)
    assert tuned(done, "--json", "--quiet") == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["resumed"] == 3
    assert {row["what"] for row in found["timings"]} >= {"default", "tuned", "M 6, K 1"}
    assert f"{done}/topas.yaml" in found["files"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert contents(done) == texts


def test_trace_files_are_trained_on_and_held_out(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    write_trace(
        generate("dag-4", rate_per_s=0.5, tasks=4, seed=9, options=WorkloadOptions(output_tokens=50)), other
    )
    words = ["--held-out", str(other), "--policy", "topas", "--parameters", "margin,K", "--trials", "2"]
    assert main(["tune", trace, *words, "--no-sweep", "--jobs", "1", "-o", str(tmp_path / "out")]) == 0
    assert "One draw has no interval." in capsys.readouterr().out
    assert {row["workload"] for row in rows_of(tmp_path / "out/held_out.csv")} == {str(other)}
    assert not (tmp_path / "out/sweep.csv").exists()
    assert list(rows_of(tmp_path / "out/trials.csv")[0])[4:6] == ["lookahead.margin", "K"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--policy", "fcfs"], "topas: --policy: fcfs has no parameters; known: topas, "),
        (["--parameters", "gamma"], "topas: --parameters: topas-paper has no parameter 'gamma'; it has beta"),
        (["--trials", "0"], "topas: --trials: expected at least 1 trial, found 0"),
        (["--prune", "1"], "topas: --prune: expected a number from 0 to below 1, found 1.0"),
        (["--held-out-seeds", "2,7"], "topas: --held-out-seeds: seed 2 is trained on"),
        (["--held-out", "dag-4"], "topas: --held-out: dag-4 is a workload: name it first"),
        (["--no-sweep"], "topas: --sweep: contradicts --no-sweep"),
        (["--sweep", "M=1", "M=2"], "topas: --sweep: M or K is given twice"),
        (
            ["--sweep", "M=99"],
            "topas tune: error: argument --sweep: M: input should be less than or equal to 16, found 99",
        ),
        (
            ["--weights", "0,0"],
            "topas tune: error: argument --weights: expected weights, one of them above 0",
        ),
        (["--storage", "study.db"], "topas: --storage: expected an SQLAlchemy URL, found 'study.db'"),
        (["--sweep-events", "-1"], "topas: --sweep-events: expected no negative number, found -1"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    found = support_cli.refused(capsys, "tune", *SMALL, "--quiet", *words, "-o", str(tmp_path / "out"))
    assert found.startswith(line)


def test_a_trace_cannot_be_trained_on_and_held_out(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = support_cli.refused(capsys, "tune", trace, "-o", str(tmp_path / "out"))
    assert alone == "topas: WORKLOAD-OR-TRACE: needs traces to compare on: --held-out F"
    both = support_cli.refused(capsys, "tune", trace, "--held-out", trace, "-o", str(tmp_path / "out"))
    assert both == f"topas: --held-out: {trace} is trained on"


def test_without_optuna_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("compare.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setitem(sys.modules, "optuna.distributions", None)
    line = support_cli.refused(capsys, "tune", *SMALL, "-o", str(tmp_path))
    assert line == "topas: optuna is not installed: pip install 'topas[tune]'"
