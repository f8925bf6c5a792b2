"""Playing a trace against a live server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from tqdm import tqdm

from compare.live.api import ApiRequest, Reply, RequestError
from compare.live.client import TELLS_LENGTHS, ApiName, connect
from compare.live.facts import Level, ToldFacts
from compare.live.outcome import Failure, ReplayResult, RequestResult, metrics_of
from compare.live.prompts import Prompts, Vocab
from topas.errors import InputError
from topas.sim.result import TaskResult
from topas.trace import Round, TaskSpec, Trace

Send = Callable[[ApiRequest], Awaitable[Reply]]
Clock = Callable[[], float]

TIMEOUT_S = 3600.0
TELLS_NO_IDS = "the server does not return token ids: reused context repeats the input only"


def replay(  # noqa: PLR0913  what a replay depends on
    trace: Trace,
    url: str,
    *,
    seed: int = 0,
    run: str | None = None,
    speed: float = 1.0,
    facts: Level = "full",
    api: ApiName = "auto",
    vocab: Vocab | None = None,
    timeout_s: float = TIMEOUT_S,
    progress: bool | None = False,
    tell: Callable[[str], None] = lambda _: None,
    clock: Clock = time.monotonic,
) -> ReplayResult:
    """Play a trace against the server at ``url`` and measure job completion times.

    A stage is ready when all its predecessors are complete, and issues its rounds one after the other;
    a round's ``tool_s`` is waited behind it. A task is complete with its last stage. A request that
    fails fails its task; the others go on. The bodies sent depend on trace, seed, run and options only,
    but for what the server generated where a round reuses it.

    Parameters
    ----------
    seed : of the prompts.
    run : keeps task ids apart from those of other replays on one server; ``r<seed>`` if None.
    speed : tasks arrive ``arrival_s / speed`` after the start; tool waits keep their length.
    facts : what schedulers are told in ``custom_params["topas"]``.
    vocab : range of the token ids in prompts.
    timeout_s : limit of one request.
    progress : show a bar on standard error; None: only on a terminal.
    tell : gets a caveat in words, at once.
    clock : monotonic, in seconds.

    Raises
    ------
    InputError
        if the server cannot be reached or does not speak the API, an argument is out of range, or the
        scheduler would refuse a fact.
    KeyboardInterrupt
        on Ctrl-C; all connections are closed, so that the server drops their requests.
    """
    if not speed > 0:
        raise InputError(f"expected a speed above 0, found {speed:g}", field="speed")
    if not timeout_s > 0:
        raise InputError(f"expected a timeout above 0 s, found {timeout_s:g}", field="timeout")
    vocab = vocab or Vocab()
    player = Player(
        trace,
        Prompts(trace.agents, seed, vocab),
        ToldFacts(facts, trace.agents, f"r{seed}" if run is None else run),
        speed=speed,
        clock=clock,
        tell=tell,
    )

    async def go() -> ReplayResult:
        async with connect(url, api=api, stop_token=vocab.low, timeout_s=timeout_s, clock=clock) as client:
            if player.caps and not client.server.hides_lengths:
                player.note(TELLS_LENGTHS)
            result = await player.play(client.send, progress=progress)
            spoken = client.server.api.path
            return replace(result, url=client.server.url, api=spoken, policy=client.server.policy)

    return asyncio.run(go())


class _TaskFailed(Exception):  # noqa: N818  a signal between the stages of a task
    """Ends the other stages of a task."""


class Player:
    """One replay of a trace through ``send``; see :func:`replay`."""

    def __init__(  # noqa: PLR0913  what a replay depends on
        self,
        trace: Trace,
        prompts: Prompts,
        facts: ToldFacts,
        *,
        speed: float = 1.0,
        clock: Clock = time.monotonic,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.trace, self.prompts, self.facts, self.speed = trace, prompts, facts, speed
        self.clock, self.tell = clock, tell
        self.tasks: dict[str, TaskResult] = {}
        self.requests: list[RequestResult] = []
        self.failures: list[Failure] = []
        self.notes: list[str] = []
        self.start_s = 0.0
        for task in trace.tasks:
            facts.check(task)

    @property
    def caps(self) -> bool:
        """Return whether some request generates less than it is allowed."""
        return any(
            r.output_tokens < r.max_new_tokens
            for t in self.trace.tasks
            for rounds in t.rounds
            for r in rounds
        )

    def note(self, text: str) -> None:
        """Keep a caveat, once, and tell it."""
        if text not in self.notes:
            self.notes.append(text)
            self.tell(text)

    async def play(self, send: Send, *, progress: bool | None = False) -> ReplayResult:
        """Play all tasks to their end."""
        self.start_s = self.clock()
        disable = None if progress is None else not progress
        with ExitStack() as stack:
            bar = stack.enter_context(tqdm(total=len(self.trace.tasks), unit="task", disable=disable))
            async with asyncio.TaskGroup() as group:
                for task in self.trace.tasks:
                    group.create_task(self._task(task, send)).add_done_callback(lambda _: bar.update())
        tasks = tuple(self.tasks[t.id] for t in self.trace.tasks if t.id in self.tasks)
        return ReplayResult(
            trace=self.trace.name,
            url="",
            api="",
            policy=None,
            tasks=tasks,
            requests=tuple(self.requests),
            failures=tuple(self.failures),
            metrics=metrics_of(tasks, self.requests, self.failures),
            notes=tuple(self.notes),
        )

    async def _task(self, task: TaskSpec, send: Send) -> None:
        arrival_s = task.arrival_s / self.speed
        await asyncio.sleep(self.start_s + arrival_s - self.clock())
        dag = task.workflow.dag
        complete = [asyncio.Event() for _ in dag.names]

        async def stage(k: int) -> None:
            for other in dag.before[k]:
                await complete[other].wait()
            await self._stage(task, k, send)
            complete[k].set()

        try:
            async with asyncio.TaskGroup() as group:
                for k in range(len(dag)):
                    group.create_task(stage(k))
            self.tasks[task.id] = TaskResult(task.id, arrival_s, self.clock() - self.start_s)
        except* _TaskFailed:
            pass  # its failure is noted

    async def _stage(self, task: TaskSpec, k: int, send: Send) -> None:
        """Issue a stage's rounds one after the other."""
        agent, name = task.workflow.agents[k], task.workflow.dag.names[k]
        rounds = task.rounds[k]
        context: list[int] = []
        for index, spec in enumerate(rounds):
            later = rounds[index + 1 :]
            tokens = self.prompts.dynamic(
                (task.id, name, index), spec.input_tokens, spec.reused_tokens, context
            )
            request = ApiRequest(
                prompt=self.prompts.whole(agent, tokens).tolist(),
                output_tokens=spec.output_tokens,
                max_new_tokens=spec.max_new_tokens,
                params=self.facts.params(task, k, final=not later),
                wants_ids=bool(later and later[0].reused_tokens),
            )
            try:
                output = await self._round(request, (task.id, name, index), agent, spec, send)
            except RequestError as error:
                self.failures.append(Failure(task.id, name, index, str(error)))
                raise _TaskFailed from None
            if request.wants_ids and output is None:
                self.note(TELLS_NO_IDS)
            context = [*tokens.tolist(), *(output or ())]
            if spec.tool_s:
                await asyncio.sleep(spec.tool_s)

    async def _round(
        self, request: ApiRequest, place: tuple[str, str, int], agent: str, spec: Round, send: Send
    ) -> Sequence[int] | None:
        """Send a request, keep what was measured, and return the generated ids if they are known."""
        start_s = self.clock()
        reply = await send(request)
        end_s, answer = self.clock(), reply.answer
        if answer.output_tokens != spec.output_tokens:
            raise RequestError(f"generated {answer.output_tokens} tokens instead of {spec.output_tokens}")
        self.requests.append(
            RequestResult(
                *place,
                agent=agent,
                start_s=start_s - self.start_s,
                ttft_s=reply.first_s - start_s,
                end_s=end_s - self.start_s,
                prompt_tokens=answer.prompt_tokens,
                cached_tokens=answer.cached_tokens,
                output_tokens=answer.output_tokens,
            )
        )
        return answer.output_ids
