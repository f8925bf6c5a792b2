"""Policies side by side on real SGLang servers on this machine's CPU.

Each policy has a server of its own. All are started once, and all but the one in use are halted, since even
an idle scheduler keeps a core busy. A run plays one trace against one server with an empty cache. Agents and
stages are renamed for each run: what a policy has learnt of them in one run does not help it in the next.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import TypeAdapter
from tqdm import tqdm

from compare.live.outcome import ReplayResult
from compare.live.player import replay
from compare.live.server import Sample, Server, ServerError, ServerPaths, start_server
from compare.pool import Done, Interrupted, folder_for
from compare.source import Source, trace_of
from compare.store import answer_path, keep, read_answer
from topas.errors import InputError
from topas.event import Params
from topas.files import whole_file
from topas.params import SearchParams
from topas.profile import Profile
from topas.sim.result import Tail, tails
from topas.trace import TaskSpec, Trace
from topas.workflow import StageSpec, Workflow, workflow_of

Item = TypeVar("Item")

NATIVE = frozenset({"fcfs", "lpm", "hrrn"})
"""Policies that SGLang has itself; the others come with the plugin."""

BATCH_STAGES = ("get_next_batch_to_run", "run_batch", "process_batch_result")
SETTLE_S = 1.2
"""SGLang writes how long its stages took every second."""

SERVER_ARGS = ("--enable-custom-logit-processor",)
"""The replay ends generations with a logit processor, so that no scheduler knows their lengths."""

Metrics = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True, slots=True)
class LiveRow:
    """What one run measured; None where the server or the policy has no such figure.

    ``computed_tokens`` are prompt tokens that were prefilled, again after a preemption too;
    ``recomputed_tokens`` of them would not have been with unlimited memory. ``decision_ms`` is the time to
    choose, ``event_ms`` that of a whole scheduling event; a p99 is the upper end of its bucket in the
    server's histogram. ``busy_s`` is how long the scheduler's process computed, without scheduling events
    of the plugin; ``expected_s`` how long that takes by the profile, given the batches that were run. Their
    quotient is the speed of the machine during the run. ``tails`` are those of workflows and agents.
    """

    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    makespan_s: float
    requests_per_s: float
    mean_ttft_s: float
    p99_ttft_s: float
    cached_tokens: int | None
    computed_tokens: int | None
    recomputed_tokens: int | None
    preemptions: int | None
    decisions: int | None
    decision_ms_mean: float | None
    decision_ms_p99: float | None
    event_ms_mean: float | None
    event_ms_p99: float | None
    event_share: float | None
    fallbacks: int | None
    busy_s: float | None
    expected_s: float | None
    tails: tuple[Tail, ...] = ()

    @property
    def speed(self) -> float | None:
        """Return how fast the machine was: 1 as when the profile was measured, less where slower."""
        return self.expected_s / self.busy_s if self.expected_s and self.busy_s else None


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers: their size, the profile and parameters of the policies."""

    kv_tokens: int
    max_running: int
    profile: Profile
    params: Params

    def content(self) -> dict[str, Any]:
        """Return them as a JSON object."""
        return {
            "kv_tokens": self.kv_tokens,
            "max_running": self.max_running,
            "profile": self.profile.model_dump(mode="json"),
            "params": asdict(self.params),
        }


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One trace under one policy on a real server, for the ``repeat``-th time."""

    kept: ClassVar[str] = "live"
    kind: ClassVar[TypeAdapter[Any]] = TypeAdapter(LiveRow)
    source: Source
    policy: str
    repeat: int
    settings: Servers

    def content(self) -> dict[str, Any]:
        """Return all that the answer depends on but the machine."""
        return {
            "trace": self.source.content(),
            "policy": self.policy,
            "repeat": self.repeat,
            "settings": self.settings.content(),
        }

    def __str__(self) -> str:
        """One line for messages: ``dag-4, load 0.5, seed 1, lpm, repeat 2``."""
        return f"{self.source}, {self.policy}, repeat {self.repeat}"


def runs_of(
    sources: Sequence[Source], policies: Sequence[str], repeats: int, settings: Servers
) -> tuple[LiveRun, ...]:
    """Return all runs, repeat by repeat; traces and policies rotate, so that each place comes to each."""
    return tuple(
        LiveRun(source, policy, repeat, settings)
        for repeat in range(1, repeats + 1)
        for index, source in _rotated(list(enumerate(sources)), repeat - 1)
        for policy in _rotated(policies, repeat - 1 + index)
    )


def _rotated(items: Sequence[Item], by: int) -> list[Item]:
    by %= len(items)
    return [*items[by:], *items[:by]]


def play_all(
    runs: Sequence[LiveRun],
    folder: Path,
    paths: ServerPaths,
    *,
    port: int | None = None,
    progress: bool | None = None,
) -> Done[LiveRun, LiveRow]:
    """Play the runs that ``folder/live`` does not hold yet and return all of them.

    Each finished run is written at once and whole. A failed one does not stop the others.

    Parameters
    ----------
    port : of the first server, the others follow; None: free ones.
    progress : show bars on standard error; None: only on a terminal.

    Raises
    ------
    InputError
        if the folder cannot be written, or a server cannot be started.
    Interrupted
        on Ctrl-C; finished runs stay, all servers are stopped.
    """
    folder_for(folder / LiveRun.kept)
    files = {run: answer_path(run, folder) for run in runs}
    rows: dict[LiveRun, LiveRow] = {
        run: row for run, path in files.items() if (row := read_answer(run, path)) is not None
    }
    resumed = len(rows)
    todo = [run for run in runs if run not in rows]
    failures: dict[LiveRun, str] = {}
    disable = None if progress is None else not progress
    try:
        with ExitStack() as stack:
            if todo:
                fleet = stack.enter_context(Fleet(paths, folder, todo[0].settings, port))
                policies = list(dict.fromkeys(run.policy for run in todo))
                for policy in tqdm(policies, unit="server", disable=disable):
                    fleet.start(policy)
                for run in tqdm(todo, unit="run", disable=disable):
                    try:
                        rows[run] = fleet.play(run)
                        keep(run, rows[run], files[run])
                    except (InputError, ServerError) as error:
                        failures[run] = " ".join(str(error).split())
    except KeyboardInterrupt:
        raise Interrupted(len(rows), len(runs)) from None
    return Done({run: rows[run] for run in runs if run in rows}, failures, resumed, 0)


class Fleet:
    """A server a policy, at most one of them running; a context that stops them all."""

    def __init__(self, paths: ServerPaths, folder: Path, settings: Servers, port: int | None) -> None:
        self._paths, self._folder, self._settings, self._port = paths, folder, settings, port
        self._servers: dict[str, Server] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Write what the servers read."""
        self._config = write_config(self._settings, self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all servers."""
        self._stack.close()

    def start(self, policy: str) -> Server:
        """Start the server of a policy, wait until it is ready, and halt it."""
        ours = policy not in NATIVE
        server = start_server(
            python=self._paths.python,
            model=self._paths.model,
            policy=policy,
            log=self._folder / f"server-{policy}.log",
            port=None if self._port is None else self._port + len(self._servers),
            kv_tokens=self._settings.kv_tokens,
            max_running=self._settings.max_running,
            args=SERVER_ARGS,
            env={"TOPAS_CONFIG": str(self._config.resolve())} if ours else {},
        )
        self._servers[policy] = self._stack.enter_context(server)
        server.pause()
        return server

    def play(self, run: LiveRun) -> LiveRow:
        """Play a run.

        Raises
        ------
        ServerError
            if the server fails, or a request did.
        """
        server = self._servers[run.policy]
        if not server.alive:
            server = self.start(run.policy)
        name = f"{run.repeat}.{abs(hash_of(run)) % 10**8}"
        trace = renamed(trace_of(run.source), f"~{name}")
        server.resume()
        try:
            server.flush()
            server.generate([1, 2, 3, 4, 5, 6, 7, 8], 4)  # the first request after a halt is slow
            server.flush()
            time.sleep(SETTLE_S)
            before = server.metrics()
            result = replay(trace, server.url, seed=run.repeat, run=name, api="sglang")
            if result.failures:
                one = result.failures[0]
                raise ServerError(
                    f"{len(result.failures)} requests failed, {one.task}/{one.stage}: {one.reason}"
                )
            server.flush()
            time.sleep(SETTLE_S)
            row = row_of(trace, result, before, server.metrics(), self._settings.profile)
            return replace(row, tails=tails(trace_of(run.source), result.tasks))
        finally:
            server.pause()


def hash_of(run: LiveRun) -> int:
    """Return a number that differs between runs and is the same in every process."""
    return int(answer_path(run, Path()).stem[:12], 16)


def write_config(settings: Servers, folder: Path) -> Path:
    """Write what the plugin reads at the start of a server; return the file."""
    with whole_file(folder / "profile.json") as stream:
        stream.write(json.dumps(settings.profile.model_dump(mode="json"), indent=2) + "\n")
    params = asdict(SearchParams.of(settings.params))
    lookahead = params.pop("lookahead")
    lines = ['format = "topas-serving/1"', 'profile = "profile.json"']
    for section, values in (("params", params), ("params.lookahead", lookahead)):
        lines += ["", f"[{section}]", *(f"{name} = {value!r}" for name, value in values.items())]
    config = folder / "serving.toml"
    with whole_file(config) as stream:
        stream.write("\n".join(lines) + "\n")
    return config


def renamed(trace: Trace, suffix: str) -> Trace:
    """Return the trace with a suffix behind the names of agents and stages."""
    workflows = {name: _renamed(workflow, suffix) for name, workflow in trace.workflows.items()}
    tasks = []
    for task in trace.tasks:
        workflow, old = workflows[task.workflow.name], task.workflow.dag.index
        rounds = tuple(task.rounds[old[name.removesuffix(suffix)]] for name in workflow.dag.names)
        tasks.append(TaskSpec(task.id, workflow, task.arrival_s, rounds))
    agents = {agent + suffix: tokens for agent, tokens in trace.agents.items()}
    return Trace(trace.name, agents, workflows, tuple(tasks))


def _renamed(workflow: Workflow, suffix: str) -> Workflow:
    stages = (
        StageSpec(one.name + suffix, one.agent + suffix, tuple(v + suffix for v in one.after), one.profile)
        for one in workflow.stages
    )
    return workflow_of(workflow.name, stages)


def row_of(
    trace: Trace, result: ReplayResult, before: Metrics, after: Metrics, profile: Profile | None = None
) -> LiveRow:
    """Return the figures of a replay without failures from the client's clock and the server's counters."""
    found: dict[str, Any] = dict(result.metrics)
    computed = _grown(before, after, "sglang:realtime_tokens_total", mode="prefill_compute")
    preemptions = [
        _grown(before, after, name)
        for name in ("topas_preemptions_total", "sglang:num_retracted_requests_total")
    ]
    events_s = _grown(before, after, "topas_event_seconds_sum")
    fallbacks = _grown(before, after, "topas_fallbacks_total")
    decisions = _grown(before, after, "topas_decisions_total")
    return LiveRow(
        **{name: found[name] for name in LiveRow.__slots__ if name in found},
        computed_tokens=None if computed is None else int(computed),
        recomputed_tokens=None if computed is None else max(int(computed) - fewest_computed(trace), 0),
        preemptions=int(sum(count or 0 for count in preemptions)),
        decisions=None if decisions is None else int(decisions),
        decision_ms_mean=_mean_ms(before, after, "topas_decision_seconds"),
        decision_ms_p99=_p99_ms(before, after, "topas_decision_seconds"),
        event_ms_mean=_mean_ms(before, after, "topas_event_seconds"),
        event_ms_p99=_p99_ms(before, after, "topas_event_seconds"),
        event_share=None if events_s is None else events_s / found["makespan_s"],
        fallbacks=None if decisions is None else int(fallbacks or 0),
        busy_s=_busy_s(before, after, events_s or 0.0),
        expected_s=None if profile is None else expected_s(result, before, after, profile),
    )


def _busy_s(before: Metrics, after: Metrics, events_s: float) -> float | None:
    """Return the time spent on batches without the plugin's events; other stages also run while idle."""
    times = [
        _grown(before, after, "sglang:scheduler_stage_seconds_total", category=stage)
        for stage in BATCH_STAGES
    ]
    known = [seconds for seconds in times if seconds is not None]
    return sum(known) - events_s if known else None


def expected_s(result: ReplayResult, before: Metrics, after: Metrics, profile: Profile) -> float | None:
    """Return how long the engine computes by the profile for the batches that it ran.

    Their numbers come from the server. What they contained follows from the requests: a token attends to
    all before it, in whatever step it is generated. Prefills after a preemption count by their tokens only.
    """
    passes = {
        kind: sum(
            _grown(before, after, "sglang:cuda_graph_passes_total", mode=mode) or 0.0
            for mode in {s.labels["mode"] for s in after.get("sglang:cuda_graph_passes_total", ())}
            if mode.startswith(kind)
        )
        for kind in ("prefill", "decode")
    }
    computed = _grown(before, after, "sglang:realtime_tokens_total", mode="prefill_compute")
    if not passes["decode"] or computed is None:
        return None
    seconds = passes["prefill"] * profile.prefill_base_s + passes["decode"] * profile.decode_base_s
    seconds += computed * profile.prefill_s_per_token
    for request in result.requests:
        whole, cached, steps = request.prompt_tokens, request.cached_tokens or 0, request.output_tokens - 1
        seconds += (
            profile.prefill_s_per_seq
            + cached * profile.prefill_s_per_cached_token
            + (whole**2 - cached**2) * profile.prefill_s_per_pair
            + cached**2 * profile.prefill_s_per_cached_pair
            + steps * profile.decode_s_per_seq
            + (steps * whole + steps * (steps + 1) / 2) * profile.decode_s_per_kv_token
        )
    return seconds


def fewest_computed(trace: Trace) -> int:
    """Return the prompt tokens that must be computed at the least: each prefix once, and what is new."""
    used = {agent for task in trace.tasks for agent in task.workflow.agents}
    new = sum(
        one.input_tokens - one.reused_tokens
        for task in trace.tasks
        for rounds in task.rounds
        for one in rounds
    )
    return sum(trace.agents[agent] for agent in used) + new


def _samples(metrics: Metrics, name: str, labels: Mapping[str, str]) -> Iterator[Sample]:
    for sample in metrics.get(name, ()):
        if labels.items() <= dict(sample.labels).items():
            yield sample


def _grown(before: Metrics, after: Metrics, name: str, **labels: str) -> float | None:
    """Return by how much a counter grew; None if there is none."""
    later = [sample.value for sample in _samples(after, name, labels)]
    return sum(later) - sum(sample.value for sample in _samples(before, name, labels)) if later else None


def _mean_ms(before: Metrics, after: Metrics, name: str) -> float | None:
    total, count = _grown(before, after, f"{name}_sum"), _grown(before, after, f"{name}_count")
    return 1e3 * total / count if total is not None and count else None


def _p99_ms(before: Metrics, after: Metrics, name: str) -> float | None:
    """Return the upper end of the bucket that the 99th percentile lies in; None if that is open."""
    bounds = {sample.labels["le"] for sample in after.get(f"{name}_bucket", ())}
    grown = {float(le): _grown(before, after, f"{name}_bucket", le=le) or 0.0 for le in bounds}
    total = grown.get(math.inf, 0.0)
    reached = [bound for bound, count in sorted(grown.items()) if total and count >= 0.99 * total]
    return 1e3 * reached[0] if reached and math.isfinite(reached[0]) else None
