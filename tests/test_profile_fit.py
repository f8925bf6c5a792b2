"""``topas profile fit``: the constants of an engine that is known come back."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
import support_cli
from support_replay import FakeServer
from support_server import serving

from compare.live.fit import ServerFacts, fit_line, fit_points, swap_s_per_token
from compare.live.points import Experiments, HostPoint, MeasuredPoints, ServerLimits, steps_between
from compare.live.probe import Timed, _events, _timed
from compare.live.prompts import Vocab
from topas.cli import main
from topas.errors import InputError
from topas.profile import Profile, load_profile

ENGINE = Profile(
    name="made-up",
    kv_budget_tokens=4000,
    kv_bytes_per_token=512,
    swap_bytes_per_s=512 / 2e-5,
    prefill_base_s=0.004,
    prefill_s_per_token=6e-6,
    prefill_s_per_seq=0.001,
    prefill_s_per_cached_token=4e-6,
    prefill_s_per_pair=8e-9,
    prefill_s_per_cached_pair=5e-9,
    decode_base_s=0.0025,
    decode_s_per_seq=0.0003,
    decode_s_per_kv_token=5e-7,
    request_s=0.005,
    max_running=8,
    host_cache=False,
    admission="sglang",
    redo="keep",
    prefix_sharing="tree",
    ignore_eos=True,
)
FACTS = ServerFacts(4000, 8, kv_bytes_per_token=512, sglang=True)
TIMES = [name for name in Profile.model_fields if name.endswith("_s") or "_s_per_" in name]


@dataclass
class MadeUpEngine:
    """Answers at once what an engine with these constants would have measured.

    Requests that are asked together after a first one are prefilled in one batch and decode together.
    """

    profile: Profile
    noise: float = 0.0
    tells: bool = True
    host: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311  no secret
    seen: set[tuple[int, ...]] = field(default_factory=set)
    pushed: set[tuple[int, ...]] = field(default_factory=set)
    waiting: list[tuple[Sequence[int], int, int, asyncio.Future[Timed]]] = field(default_factory=list)
    now_s: float = 100.0

    async def ask(self, prompt: Sequence[int], new_tokens: int, every: int) -> Timed:
        """Wait for the batch."""
        asked: asyncio.Future[Timed] = asyncio.get_running_loop().create_future()
        self.waiting.append((prompt, new_tokens, every, asked))
        await asyncio.sleep(0)
        if self.waiting and self.waiting[0][3] is asked:
            self._run()
        return await asked

    def _noisy(self, seconds: float) -> float:
        return seconds * (1 + self.noise * self.chance.uniform(-1, 1))

    def _cached(self, prompt: Sequence[int]) -> int:
        starts = (n for n in range(len(prompt) - 1, 0, -1) if tuple(prompt[:n]) in self.seen)
        return next(starts, 0)

    def _run(self) -> None:
        batch, self.waiting = self.waiting, []
        cached = [self._cached(prompt) for prompt, *_ in batch]
        new = [len(prompt) - count for (prompt, *_), count in zip(batch, cached, strict=True)]
        p, n = self.profile, len(batch)
        prefill_s = self._noisy(
            p.prefill_base_s
            + n * p.prefill_s_per_seq
            + sum(
                x * p.prefill_s_per_token
                + y * p.prefill_s_per_cached_token
                + ((x + y) ** 2 - y**2) * p.prefill_s_per_pair
                + y**2 * p.prefill_s_per_cached_pair
                for x, y in zip(new, cached, strict=True)
            )
        )
        hosted = [
            n if self.host and tuple(prompt[:n]) in self.pushed else 0
            for (prompt, *_), n in zip(batch, cached, strict=True)
        ]
        load_s = sum(hosted) * p.kv_bytes_per_token / p.swap_bytes_per_s
        start_s, first_s = self.now_s, self.now_s + p.request_s / 2 + load_s + prefill_s
        own = [len(prompt) for prompt, *_ in batch]
        if p.prefix_sharing == "batch" and n > 1 and cached[0]:
            own = [own[0], *(x for x in new[1:])]
        at_s, times, kv = first_s, [first_s], sum(own)
        for _ in range(max(tokens for _, tokens, *_ in batch) - 1):
            kv += n
            at_s += self._noisy(p.decode_base_s + n * p.decode_s_per_seq + kv * p.decode_s_per_kv_token)
            times.append(at_s)
        for k, (prompt, tokens, every, asked) in enumerate(batch):
            counts = sorted({1, tokens, *range(1 + every, tokens, every)})
            asked.set_result(
                Timed(
                    len(prompt),
                    cached[k],
                    hosted[k],
                    start_s,
                    times[tokens - 1] + p.request_s / 2,
                    tuple((count, times[count - 1]) for count in counts),
                    (start_s + 0.001, start_s + 0.001 + prefill_s) if self.tells else None,
                )
            )
            self.pushed.update(self.seen)
            self.pushed.discard(tuple(prompt[: cached[k]]))
            self.seen.update(tuple(prompt[:n]) for n in {len(prompt) - 1, len(prompt)} if n)
        self.now_s = at_s + p.request_s + 1.0


def measured(engine: MadeUpEngine, limits: ServerLimits, repeats: int = 1, seed: int = 3) -> MeasuredPoints:
    experiments = Experiments(engine, limits, seed=seed, vocab=Vocab())

    async def go() -> MeasuredPoints:
        for step in experiments.steps(repeats):
            await step()
        return experiments.points()

    return asyncio.run(go())


LIMITS = ServerLimits(4000, 8)


def test_the_constants_of_a_known_engine_come_back() -> None:
    found = fit_points(measured(MadeUpEngine(ENGINE), LIMITS), FACTS, name="made-up", note="").profile
    for name in set(TIMES) - {"swap_bytes_per_s"}:
        assert getattr(found, name) == pytest.approx(getattr(ENGINE, name), rel=0.02), name
    same = ("kv_budget_tokens", "kv_bytes_per_token", "max_running", "host_cache", "prefix_sharing")
    assert [getattr(found, name) for name in same] == [getattr(ENGINE, name) for name in same]


def test_a_tenth_of_noise_leaves_the_predicted_times_within_a_tenth() -> None:
    points = measured(MadeUpEngine(ENGINE, noise=0.1), LIMITS, repeats=3)
    found = fit_points(points, FACTS, name="made-up", note="")
    exact = fit_points(measured(MadeUpEngine(ENGINE), LIMITS), FACTS, name="made-up", note="")
    assert found.prefill.median_error < 0.1
    assert found.decode.median_error < 0.1
    for noisy, known in ((found.prefill, exact.prefill), (found.decode, exact.decode)):
        assert noisy.r2 > 0.97
        assert known.r2 > 0.9999
    step = {"decode_base_s": 1.0, "decode_s_per_seq": 8.0, "decode_s_per_kv_token": 9000.0}
    ours, theirs = (
        sum(fit.decode.constants[name] * value for name, value in step.items()) for fit in (found, exact)
    )
    assert ours == pytest.approx(theirs, rel=0.1)


@pytest.mark.parametrize("sharing", ["batch", "tree"])
def test_whether_a_shared_prefix_is_read_once_or_by_each_request_is_found_out(
    sharing: Literal["batch", "tree"],
) -> None:
    engine = MadeUpEngine(ENGINE.model_copy(update={"prefix_sharing": sharing}))
    found = fit_points(measured(engine, LIMITS), FACTS, name="made-up", note="").profile
    assert found.prefix_sharing == sharing
    assert found.decode_s_per_kv_token == pytest.approx(ENGINE.decode_s_per_kv_token, rel=0.02)


def test_an_engine_that_tells_nothing_of_its_prefill_is_fitted_from_the_clients_side() -> None:
    points = measured(MadeUpEngine(ENGINE, tells=False), LIMITS)
    found = fit_points(points, replace(FACTS, sglang=False), name="plain", note="").profile
    assert points.outside_s == ()
    assert all(len(point.requests) == 1 for point in points.prefill)
    assert (found.request_s, found.prefill_s_per_seq, found.ignore_eos) == (0.0, 0.0, False)
    outside_s = ENGINE.request_s / 2 + ENGINE.prefill_s_per_seq
    assert found.prefill_base_s == pytest.approx(ENGINE.prefill_base_s + outside_s, rel=0.05)


def test_the_link_to_host_memory_is_measured_where_there_is_one() -> None:
    points = measured(MadeUpEngine(ENGINE, host=True), replace(LIMITS, host_cache=True))
    assert points.host
    found = fit_points(points, replace(FACTS, host_cache=True), name="made-up", note="").profile
    assert found.host_cache
    assert found.swap_bytes_per_s == pytest.approx(ENGINE.swap_bytes_per_s, rel=0.02)


def test_without_a_host_tier_moving_a_prefix_costs_what_its_absence_costs() -> None:
    found = fit_points(measured(MadeUpEngine(ENGINE), LIMITS), FACTS, name="made-up", note="").profile
    prefix = LIMITS.kv_tokens // 4

    async def cold_and_warm() -> tuple[float, float]:
        engine = MadeUpEngine(ENGINE)
        cold = await engine.ask([1] * prefix, 1, 1)
        warm = await engine.ask([1] * prefix + [2], 1, 1)
        return cold.ttft_s, warm.ttft_s

    cold_s, warm_s = asyncio.run(cold_and_warm())
    assert prefix * found.swap_s_per_token == pytest.approx(cold_s - warm_s, rel=0.05)


def test_the_link_counts_where_there_is_one() -> None:
    points = [HostPoint(100, 0.2), HostPoint(100, 0.4)]
    assert swap_s_per_token(points, {}, 100) == pytest.approx(0.003)


def test_no_constant_is_negative_where_the_best_line_would_be() -> None:
    line = fit_line({"base": [1, 1, 1, 1], "slope": [1, 2, 3, 4]}, [4.0, 3.0, 2.0, 1.0])
    assert min(line.constants.values()) >= 0
    assert line.constants["slope"] == pytest.approx(0.0, abs=1e-12)


def test_a_short_time_counts_as_much_as_a_long_one() -> None:
    columns = {"base": [1.0, 1.0], "slope": [1.0, 1.0]}
    line = fit_line(columns, [1.0, 100.0])
    value = sum(line.constants.values())
    assert value == pytest.approx((1 + 0.01) / (1 + 0.0001), rel=1e-6)  # least squares of value/y - 1


def test_too_few_points_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 usable measurements, got 1"):
        fit_line({"a": [1.0], "b": [1.0]}, [1.0])


def test_what_neither_server_nor_option_tells_is_asked_for() -> None:
    points = measured(MadeUpEngine(ENGINE), LIMITS)
    with pytest.raises(InputError, match="give the option") as refused:
        fit_points(points, replace(FACTS, kv_bytes_per_token=None), name="made-up", note="")
    assert refused.value.field == "--kv-bytes"


def _marked(marks: Sequence[tuple[int, float]], end_s: float) -> Timed:
    return Timed(10, 0, 0, 0.0, end_s, tuple(marks), None)


def test_steps_are_timed_only_while_all_requests_decode() -> None:
    early = _marked([(1, 0.0), (11, 10.0), (21, 12.0), (31, 14.0)], 15.0)
    late = _marked([(1, 9.0), (11, 11.0), (21, 13.0), (31, 40.0)], 41.0)
    assert steps_between([early, late]) == pytest.approx(0.2)
    assert steps_between([_marked([(1, 0.0), (2, 1.0)], 1.0), _marked([(1, 2.0), (2, 3.0)], 3.0)]) is None


def test_events_split_over_pieces_keep_the_time_at_which_they_were_whole() -> None:
    assert _events([(1.0, b'data: {"a"'), (2.0, b": 1}\n\ndata: [DONE]\n\n")]) == [(2.0, b'{"a": 1}')]


def test_a_plain_stream_marks_one_token_an_event() -> None:
    chunks = [{"choices": [{"text": "x", "finish_reason": None}]} for _ in range(3)]
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}
    timed = _timed([*((float(k), chunk) for k, chunk in enumerate(chunks)), (3.0, usage)], 0.0)
    assert timed.marks == ((1, 0.0), (2, 1.0), (3, 2.0))
    assert (timed.prompt_tokens, timed.cached_tokens, timed.prefill) == (7, None, None)


def fitted(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["profile", "fit", *words, "--json", "--repeats", "1"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


PLAIN = ["--kv-tokens", "600", "--max-running", "2", "--kv-bytes", "512"]


def test_the_command_writes_a_profile_that_other_commands_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.json"
    with FakeServer(sglang=False, pause_s=0.0002).serve() as server:
        found = fitted(capsys, "--url", server.url, "-o", str(path), *PLAIN)
    profile = load_profile(str(path))
    assert found["profile"] == profile.model_dump(mode="json")
    assert (profile.name, profile.kv_budget_tokens, profile.max_running) == ("plain", 600, 2)
    assert profile.decode_base_s + profile.decode_s_per_seq + profile.decode_s_per_kv_token > 0
    assert set(found) == {"profile", "prefill", "decode", "points"}


def test_a_server_that_does_not_tell_its_memory_needs_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plain.json"
    with FakeServer(sglang=False).serve() as server:
        error = support_cli.refused(capsys, "profile", "fit", "--url", server.url, "-o", str(path))
    assert "--kv-tokens: the server does not tell it" in error
    assert not path.exists()


def test_a_server_that_refuses_a_measurement_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-o", str(tmp_path / "x.json"), *PLAIN]
    with FakeServer(sglang=False, fault=lambda _: "refuse").serve() as server:
        error = support_cli.refused(capsys, "profile", "fit", "--url", server.url, *words)
    assert "a measurement failed: refused with 400" in error
    assert server.url in error


@pytest.mark.parametrize("words", [["--repeats", "0"], ["--kv-tokens", "0"], ["--kv-bytes", "-1"]])
def test_numbers_out_of_range_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--url", "http://127.0.0.1:9", "-o", str(tmp_path / "x.json")]
    assert words[0] in support_cli.refused(capsys, "profile", "fit", *output, *words)


@pytest.mark.serving
@pytest.mark.xdist_group("serving")
def test_a_real_server_is_measured_into_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "real.json"
    with serving("fcfs", ["--enable-custom-logit-processor"], kv_tokens=2000, max_running=4) as server:
        found = fitted(capsys, "--url", server.url, "-o", str(path))
    profile = load_profile(str(path))
    assert (profile.kv_budget_tokens, profile.max_running, profile.host_cache) == (2000, 4, False)
    assert profile.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # K and V, layers, heads, their size, float32
    assert (profile.admission, profile.redo, profile.ignore_eos) == ("sglang", "keep", True)
    # loose: the machine may be busy
    assert 0.0005 < profile.decode_s_per_token < 0.1
    assert 0 < profile.request_s < 0.5
    assert isinstance(found["prefill"], dict)
    assert found["prefill"]["points"] >= 20
