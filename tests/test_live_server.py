"""What the launcher promises of a real SGLang server."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support_server import HICACHE_ARGS, HICACHE_ENV, SERVING, serving, serving_paths

from compare.live.server import Server, ServerError, group_members, shared_files, start_server

pytestmark = SERVING


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def _prompt(seed: int, tokens: int) -> list[int]:
    return random.Random(seed).choices(range(3, 1000), k=tokens)  # noqa: S311 # no secret


def test_greedy_tokens_are_the_same_again_and_the_second_time_cached() -> None:
    with serving("fcfs") as server:
        prompt = _prompt(1, 200)
        first, second = server.generate(prompt, 8), server.generate(prompt, 8)
    assert len(first["output_ids"]) == 8
    assert first["output_ids"] == second["output_ids"]
    assert (first["meta_info"]["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, 199)


def test_flush_empties_the_cache() -> None:
    with serving("fcfs") as server:
        prompt = _prompt(2, 100)
        server.generate(prompt, 1)
        server.flush()
        assert server.generate(prompt, 1)["meta_info"]["cached_tokens"] == 0


def test_a_paused_server_uses_no_processor_and_goes_on_as_before() -> None:
    def clock_ticks(server: Server) -> int:
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in group_members(server.pid)]
        return sum(sum(map(int, text.rpartition(")")[2].split()[11:13])) for text in stats)

    with serving("fcfs") as server:
        prompt = _prompt(3, 50)
        before = server.generate(prompt, 8)["output_ids"]
        server.pause()
        time.sleep(0.05)
        then = clock_ticks(server)
        time.sleep(0.5)
        assert clock_ticks(server) == then
        server.resume()
        assert server.generate(prompt, 8)["output_ids"] == before


def test_metrics_count_what_was_asked() -> None:
    def counted(server: Server, name: str) -> float:
        return sum(sample.value for sample in server.metrics().get(name, []))

    with serving("fcfs") as server:
        names = ("sglang:prompt_tokens_total", "sglang:generation_tokens_total")
        before = [counted(server, name) for name in names]
        server.generate(_prompt(4, 60), 5)
        assert _until(lambda: [counted(server, name) for name in names] == [before[0] + 60, before[1] + 5])


def test_info_shows_the_arguments() -> None:
    with serving("fcfs") as server:
        info = server.info()
    assert (info["schedule_policy"], info["max_total_tokens"], info["page_size"]) == ("fcfs", 4096, 1)
    assert info["disable_overlap_schedule"] is True


def test_a_prefix_pushed_out_of_a_hierarchical_cache_is_found_in_main_memory() -> None:
    with serving("fcfs", HICACHE_ARGS, HICACHE_ENV, kv_tokens=1000) as server:
        prompt = _prompt(5, 600)
        first = server.generate(prompt, 8)
        server.generate(_prompt(6, 900), 1)
        again = server.generate(prompt, 8)
    assert again["output_ids"] == first["output_ids"]
    assert again["meta_info"]["cached_tokens_details"]["host"] > 0


def test_a_policy_that_sglang_does_not_know_is_named_in_the_error(tmp_path: Path) -> None:
    paths = serving_paths()
    server = start_server(python=paths.python, model=paths.model, policy="alphabetical", log=tmp_path / "log")
    with pytest.raises(ServerError, match=r"exit code 2(.|\n)*invalid choice: 'alphabetical'"), server:
        pass
    assert not group_members(server.pid)


def test_stop_leaves_no_process_and_no_file() -> None:
    with serving("fcfs", HICACHE_ARGS, HICACHE_ENV, kv_tokens=1000) as server:
        scratch = server._scratch
        assert any(scratch.iterdir())
        processes = group_members(server.pid)
        shared = shared_files(processes)
        assert len(processes) >= 3
        assert shared
        server.stop()
        assert not group_members(server.pid)
        assert not [path for path in (scratch, *shared) if path.exists()]
        with pytest.raises(ServerError, match=r"did not answer"):
            server.info()
