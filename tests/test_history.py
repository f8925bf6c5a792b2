"""What a tracker remembers, worked out by hand: F, D_r, H_age and n_a."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import pytest
from support_events import NS

from topas.event import Request
from topas.online.history import WINDOW, StageHistory
from topas.online.tracker import LiveTask, Tracker
from topas.profile import Profile
from topas.workflow import StageProfile, Workflow, dag_of

PROFILE = Profile(
    kv_budget_tokens=1000,
    kv_bytes_per_token=100,
    swap_bytes_per_s=1000.0,
    prefill_base_s=0.5,
    prefill_s_per_token=0.01,
    decode_base_s=0.15,
    decode_s_per_seq=0.05,
    max_running=7,
)
"""A request of 50 input and 10 new tokens is expected to take 0.5 + 50 * 0.01 + 10 * 0.2 = 3 s."""


def workflow(
    after: Mapping[str, Sequence[str]], agents: Mapping[str, str] | None = None, rounds: int | None = 2
) -> Workflow:
    """Return a workflow; each stage is profiled as so many rounds of 3 s, or not at all."""
    dag = dag_of(after)
    profile = StageProfile(rounds, 50, 10) if rounds else None
    names = tuple((agents or {}).get(name, name.upper()) for name in dag.names)
    return Workflow("w", dag, names, (profile,) * len(dag))


def samples_s(tracker: Tracker, task: LiveTask, stage: str) -> list[float]:
    """Return the residual's samples of one stage as a policy sees them."""
    residual = tracker.state(task).residuals[task.dag.index[stage]]
    return [x / NS for x in residual.samples_ns.tolist()]


def serve(tracker: Tracker, task: LiveTask, stage: str, *services_s: float, finish: bool = True) -> None:
    """Run a stage's requests one after the other."""
    k = task.dag.index[stage]
    for service in services_s:
        tracker.request_ready(task, k, 50, 10)
        tracker.request_admitted(task, k)
        tracker.request_done(task, k, int(service * NS))
    if finish:
        tracker.stage_done(task, k)


CHAIN = {"a": [], "b": ["a"]}


# ----------------------------------------------------------------------------------- F and the residuals


def test_before_the_first_execution_a_stage_takes_what_its_profile_says() -> None:
    """Two rounds of 3 s."""
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN), 0.0)
    assert samples_s(tracker, task, "a") == [6.0]
    assert samples_s(tracker, task, "b") == [6.0]


def test_after_it_a_stage_takes_what_finished_executions_took() -> None:
    tracker, flow = Tracker(PROFILE), workflow(CHAIN)
    for k, services in enumerate([(4.0, 6.0), (20.0,), (15.0, 15.0)]):
        serve(tracker, tracker.task_arrived(f"t{k}", flow, 0.0), "a", *services)
    task = tracker.task_arrived("t", flow, 0.0)
    assert samples_s(tracker, task, "a") == [10.0, 20.0, 30.0]
    assert samples_s(tracker, task, "b") == [6.0]
    # Eq. 4: 15 s served, of {10, 20, 30} the last two are possible.
    serve(tracker, task, "a", 15.0, finish=False)
    assert samples_s(tracker, task, "a") == [5.0, 15.0]
    serve(tracker, task, "a", 1.0)
    assert samples_s(tracker, task, "a") == [0.0]


def test_a_stage_that_outlived_all_executions_expects_one_more_mean_request() -> None:
    """Requests of 4, 6 and 20 s were seen for the pair: the fourth is expected to take 10 s."""
    tracker, flow = Tracker(PROFILE), workflow(CHAIN)
    serve(tracker, tracker.task_arrived("t0", flow, 0.0), "a", 4.0, 6.0)
    task = tracker.task_arrived("t1", flow, 0.0)
    serve(tracker, task, "a", 20.0, finish=False)
    assert samples_s(tracker, task, "a") == [10.0]


def test_a_started_stage_is_conditioned_on_the_profile_too() -> None:
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN), 0.0)
    serve(tracker, task, "a", 2.0, finish=False)
    assert samples_s(tracker, task, "a") == [4.0]


def test_a_running_request_does_not_move_what_has_been_served() -> None:
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN), 0.0)
    tracker.request_ready(task, 0, 50, 10)
    tracker.request_admitted(task, 0)
    request = Request("r", "t", "a", "A", 60, 3.0)
    for time_s in (1.0, 100.0):
        event = tracker.event(time_s, 1000, {"A": 1, "B": 1}, ["A"], [], [request])
        assert event.tasks["t"].residuals[0].samples_ns.tolist() == [6 * NS]


def test_only_service_is_recorded_never_a_time_of_day() -> None:
    """A tool's wait cannot count as service: what records service is told service and nothing else."""
    told = [name for name in inspect.signature(Tracker.request_done).parameters if name != "self"]
    assert told == ["task", "stage", "service_ns", "input_tokens", "output_tokens", "reused_tokens"]
    assert list(inspect.signature(Tracker.stage_done).parameters) == ["self", "task", "stage", "record"]
    tracker, flow = Tracker(PROFILE), workflow(CHAIN)
    serve(tracker, tracker.task_arrived("t0", flow, 0.0), "a", 1.0, 2.0)
    late = tracker.task_arrived("t1", flow, 5000.0)
    assert samples_s(tracker, late, "a") == [3.0]


def test_pairs_of_agent_and_stage_learn_apart() -> None:
    """The same stage name under another agent, and the same agent at another stage, are other pairs."""
    tracker = Tracker(PROFILE)
    first = workflow(CHAIN, {"a": "X", "b": "X"})
    second = workflow({"a": [], "c": ["a"]}, {"a": "Y", "c": "X"})
    serve(tracker, tracker.task_arrived("t0", first, 0.0), "a", 11.0)
    other = tracker.task_arrived("t1", second, 0.0)
    assert samples_s(tracker, other, "a") == [6.0]
    again = tracker.task_arrived("t2", workflow({"a": []}, {"a": "X"}), 0.0)
    assert samples_s(tracker, again, "a") == [11.0]
    assert samples_s(tracker, tracker.task_arrived("t3", first, 0.0), "b") == [6.0]


def test_only_the_last_executions_are_remembered() -> None:
    history = StageHistory(None)
    for total in range(1, WINDOW + 11):
        history.stage_done(total, 1)
    assert history.residual(0, 5).samples_ns.tolist() == list(range(11, WINDOW + 11))


def test_only_the_last_requests_make_the_mean() -> None:
    history = StageHistory(None)
    for _ in range(50):
        history.request_done(1_000_000, 1, 1)
    for service in range(WINDOW):
        history.request_done(service, 1, 1)
    assert history.request_ns(7) == (WINDOW - 1) // 2


def test_residuals_are_shared_until_the_history_changes() -> None:
    tracker, flow = Tracker(PROFILE), workflow(CHAIN)
    one, two = tracker.task_arrived("t1", flow, 0.0), tracker.task_arrived("t2", flow, 3.0)
    first = tracker.state(one).residuals[0]
    assert tracker.state(two).residuals[0] is first
    serve(tracker, tracker.task_arrived("t0", flow, 0.0), "a", 5.0)
    assert tracker.state(one).residuals[0] is tracker.state(two).residuals[0]
    assert tracker.state(one).residuals[0] is not first
    assert tracker.state(one).residuals[1] is tracker.state(two).residuals[1]
    assert tracker.state(one) is tracker.state(one)


def test_a_profile_that_is_learned_late_counts_at_once() -> None:
    """A stage without a profile is guessed until its first request is ready, then expected at 3 s."""
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN, rounds=None), 0.0)
    tracker.request_ready(task, 0, 100, 20)
    tracker.state(task)
    tracker.request_ready(task, 1, 50, 10)
    assert samples_s(tracker, task, "b") == [3.0]


def test_a_guess_follows_what_is_known_of_other_stages() -> None:
    """An unknown stage takes the mean of the known profiles: 1 s for want of any, then 5.5 s."""
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN, rounds=None), 0.0)
    assert samples_s(tracker, task, "b") == [1.0]
    tracker.request_ready(task, 0, 100, 20)
    assert samples_s(tracker, task, "a") == [5.5]
    assert samples_s(tracker, task, "b") == [5.5]


# ------------------------------------------------------------------------------------------------- D_r


def test_a_request_takes_its_profiled_service_until_one_was_seen() -> None:
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN), 0.0)
    assert tracker.request_ready(task, 0, 50, 10) == 3 * NS
    assert tracker.service_s(task, 0, 3 * NS) == 3.0


def test_a_request_takes_the_mean_of_the_requests_seen_also_of_unfinished_executions() -> None:
    tracker, flow = Tracker(PROFILE), workflow(CHAIN)
    serve(tracker, tracker.task_arrived("t0", flow, 0.0), "a", 2.0, 4.0)
    task = tracker.task_arrived("t1", flow, 0.0)
    assert tracker.service_s(task, 0, 3 * NS) == 3.0
    serve(tracker, task, "a", 9.0, finish=False)
    assert tracker.service_s(task, 0, 3 * NS) == 5.0
    assert tracker.service_s(task, 1, 7 * NS) == 7.0


# ----------------------------------------------------------------------------------------------- H_age


def test_the_age_scale_is_the_profiled_total_and_then_the_mean_of_finished_tasks() -> None:
    """Two stages of two rounds of 3 s: 12 s; then tasks of 10 s and 20 s: 15 s."""
    tracker, flow = Tracker(PROFILE), workflow(CHAIN)
    tasks = [tracker.task_arrived(f"t{k}", flow, 0.0) for k in range(3)]
    assert tracker.age_scale_s == 12.0
    serve(tracker, tasks[0], "a", 4.0)
    serve(tracker, tasks[1], "a", 5.0, 6.0)
    assert tracker.age_scale_s == 12.0
    serve(tracker, tasks[0], "b", 6.0)
    assert tracker.age_scale_s == 10.0
    serve(tracker, tasks[1], "b", 9.0)
    assert tracker.age_scale_s == 15.0
    assert set(tracker.tasks) == {"t2"}


def test_the_age_scale_is_never_zero() -> None:
    tracker, flow = Tracker(PROFILE), workflow({"a": []})
    serve(tracker, tracker.task_arrived("t", flow, 0.0), "a", 0.0)
    assert tracker.age_scale_s > 0


# ------------------------------------------------------------------------------------------------- n_a


def test_each_child_of_a_running_fork_counts() -> None:
    flow = workflow({"a": [], "b": ["a"], "c": ["a"], "d": ["a"]}, {"a": "A", "b": "B", "c": "B", "d": "D"})
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", flow, 0.0)
    assert tracker.reuse_counts([task]) == {}
    tracker.request_admitted(task, 0)
    assert tracker.reuse_counts([task]) == {"B": 2, "D": 1}
    tracker.request_preempted(task, 0)
    assert tracker.reuse_counts([task]) == {}


def test_two_running_requests_of_a_stage_are_one_predecessor() -> None:
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN), 0.0)
    tracker.request_admitted(task, 0)
    tracker.request_admitted(task, 0)
    assert tracker.reuse_counts([task]) == {"B": 1}
    tracker.request_done(task, 0, NS)
    assert tracker.reuse_counts([task]) == {"B": 1}


def test_a_join_counts_only_once_its_other_predecessors_are_finished() -> None:
    flow = workflow({"a": [], "b": [], "c": [], "d": ["a", "b", "c"]})
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", flow, 0.0)
    tracker.request_admitted(task, 0)
    tracker.request_admitted(task, 1)
    assert tracker.reuse_counts([task]) == {}
    tracker.request_done(task, 1, NS)
    tracker.stage_done(task, 1)
    assert tracker.reuse_counts([task]) == {}  # c is not finished, though it does not run
    serve(tracker, task, "c", 1.0)
    assert tracker.reuse_counts([task]) == {"D": 1}


def test_only_one_step_is_looked_ahead() -> None:
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow({"a": [], "b": ["a"], "c": ["b"]}), 0.0)
    tracker.request_admitted(task, 0)
    assert tracker.reuse_counts([task]) == {"B": 1}


def test_a_stage_between_two_rounds_does_not_run() -> None:
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN), 0.0)
    serve(tracker, task, "a", 1.0, finish=False)
    assert tracker.reuse_counts([task]) == {}


def test_an_event_adds_up_the_tasks_and_carries_the_engine() -> None:
    tracker, flow = Tracker(PROFILE), workflow(CHAIN)
    tasks = [tracker.task_arrived(f"t{k}", flow, float(k)) for k in range(3)]
    for task in tasks[:2]:
        tracker.request_admitted(task, 0)
    running = [Request(f"r{k}", f"t{k}", "a", "A", 60, 3.0) for k in range(2)]
    waiting = [Request("r2", "t2", "a", "A", 60, 3.0)]
    event = tracker.event(9.0, 500, {"A": 10, "B": 20}, ["A"], waiting, running)
    assert event.reuse_counts == {"B": 2}
    assert set(event.tasks) == {"t0", "t1", "t2"}
    assert event.tasks["t1"].arrival_s == 1.0
    assert event.params.cost.swap_s_per_token == pytest.approx(0.1)
    assert event.params.cost.decode_s_per_token == pytest.approx(0.2)
    assert event.params.age_scale_s == 12.0
    assert event.params.max_running == 7


def test_attained_service_adds_up_over_stages() -> None:
    tracker = Tracker(PROFILE)
    task = tracker.task_arrived("t", workflow(CHAIN), 0.0)
    serve(tracker, task, "a", 1.5, 2.0)
    serve(tracker, task, "b", 0.25, finish=False)
    assert tracker.state(task).attained_s == 3.75
