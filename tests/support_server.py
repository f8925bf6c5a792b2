"""Real SGLang servers for tests: each kind is started once and halted while it is not used.

A test module that needs one says ``pytestmark = SERVING``. Such tests run in one process, apart from the
others, so that no server is started twice; and one at a time keeps a core busy. Only ``TOPAS_SERVING=none``
skips them, as ``make test`` installs what they need.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from compare.live.server import LOCATION, Server, ServerPaths, cpu_server_paths, start_server

SERVING = pytest.mark.serving

HICACHE_ARGS = (
    *("--enable-hierarchical-cache", "--hicache-ratio", "8", "--hicache-write-policy", "write_back"),
    *("--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"),
)
HICACHE_ENV = {"TOPAS_CPU_HICACHE": "1"}

_KEPT: dict[object, Server] = {}
_OPEN = ExitStack()
atexit.register(_OPEN.close)


def serving_paths() -> ServerPaths:
    """Return the interpreter and the model; skip the test if it was said that there are none."""
    if os.environ.get(LOCATION) == "none":
        pytest.skip(f"{LOCATION}=none: no test asks a real server")
    return cpu_server_paths()


@cache
def _log_folder() -> Path:
    return Path(_OPEN.enter_context(tempfile.TemporaryDirectory(prefix="topas-logs-")))


@contextmanager
def serving(  # noqa: PLR0913 # as start_server
    policy: str,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    *,
    kv_tokens: int = 4096,
    max_running: int = 8,
    overlap: bool = False,
) -> Iterator[Server]:
    """Give the server of this kind, running and with an empty cache; halt it afterwards.

    Its counters go on from earlier tests: compare differences. Two of them may be nested, then both run.
    """
    paths = serving_paths()
    key = (policy, tuple(args), tuple(sorted((env or {}).items())), kv_tokens, max_running, overlap)
    server = _KEPT.get(key)
    if server is not None and server.alive:
        server.resume()
        server.flush()
    else:  # the first time, or a test has ended it
        folder = _log_folder()
        server = start_server(
            python=paths.python,
            model=paths.model,
            policy=policy,
            log=folder / f"{len(list(folder.iterdir()))}-{policy}.log",
            kv_tokens=kv_tokens,
            max_running=max_running,
            args=args,
            env=env,
            overlap=overlap,
        )
        _KEPT[key] = _OPEN.enter_context(server)
    try:
        yield server
    finally:
        server.pause()
