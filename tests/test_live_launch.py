"""The launcher of servers and the installer, without SGLang: commands, processes, refusals."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from compare.live.server import (
    Server,
    ServerError,
    cpu_server_paths,
    free_port,
    group_members,
    server_command,
    server_environment,
    start_server,
)
from topas.errors import InputError

ROOT = Path(__file__).parents[1]
Refusal = Callable[..., str | None]

# Stands in for SGLang where only processes matter: it starts a child, ignores SIGTERM and prints.
STUBBORN = """#!/bin/sh
trap '' TERM
echo starting
sleep 1000 &
while :; do sleep 1; done
"""


def _fake(folder: Path, script: str) -> Path:
    path = folder / "python"
    path.write_text(script)
    path.chmod(0o755)
    return path


def _start(folder: Path, script: str, timeout_s: float = 10.0) -> Server:
    return start_server(
        python=_fake(folder, script), model=folder, policy="fcfs", log=folder / "log", timeout_s=timeout_s
    )


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_later_flags_win_and_stand_last() -> None:
    command = server_command(
        python=Path("p"),
        model=Path("m"),
        policy="lpm",
        port=5,
        kv_tokens=99,
        max_running=3,
        args=["--page-size", "2"],
    )
    assert command[-2:] == ["--page-size", "2"]
    assert command[command.index("--schedule-policy") + 1] == "lpm"
    assert command[command.index("--max-total-tokens") + 1] == "99"
    assert "--disable-overlap-schedule" in command


def test_overlap_is_off_unless_asked_for() -> None:
    command = server_command(
        python=Path("p"), model=Path("m"), policy="lpm", port=5, kv_tokens=9, max_running=3, overlap=True
    )
    assert "--disable-overlap-schedule" not in command


def test_given_variables_win_over_ours_and_ours_over_inherited_ones() -> None:
    inherited = {"OMP_NUM_THREADS": "8", "PROMETHEUS_MULTIPROC_DIR": "/elsewhere", "HOME": "/root"}
    env = server_environment(inherited, {"HF_HUB_OFFLINE": "0"}, Path("/scratch"))
    assert (env["OMP_NUM_THREADS"], env["HF_HUB_OFFLINE"], env["HOME"]) == ("1", "0", "/root")
    assert "PROMETHEUS_MULTIPROC_DIR" not in env
    assert env["TMPDIR"] == "/scratch"


def test_a_missing_environment_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"make serving"):
        cpu_server_paths({"TOPAS_SERVING": str(tmp_path)})


def test_an_interpreter_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*cannot start a server"):
        start_server(python=tmp_path / "nowhere", model=tmp_path, policy="fcfs", log=tmp_path / "log")


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none/log.*cannot start a server"):
        start_server(python=Path(sys.executable), model=tmp_path, policy="f", log=tmp_path / "none" / "log")


def test_a_server_that_ends_gives_its_exit_code_and_last_words(tmp_path: Path) -> None:
    script = "#!/bin/sh\nfor i in $(seq 100); do echo line $i.; done\necho no such thing >&2\nexit 3\n"
    with pytest.raises(ServerError, match=r"exit code 3") as caught, _start(tmp_path, script):
        pass
    text = str(caught.value)
    assert "no such thing" in text
    assert "line 100." in text
    assert "line 1." not in text


def test_a_server_that_is_never_ready_is_stopped_at_the_limit(tmp_path: Path) -> None:
    server = _start(tmp_path, "#!/bin/sh\necho slow\nsleep 1000\n", timeout_s=0.5)
    with pytest.raises(ServerError, match=r"not ready after 0.5 s(.|\n)*slow"), server:
        pass
    assert not group_members(server.pid)


@pytest.mark.parametrize("paused", [False, True])
def test_stop_ends_children_that_would_not_go(tmp_path: Path, *, paused: bool) -> None:
    server = _start(tmp_path, STUBBORN)
    assert _until(lambda: len(group_members(server.pid)) >= 3)
    if paused:
        server.pause()
    server.stop()
    assert not group_members(server.pid)
    server.stop()  # the second time does nothing


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_process_that_started_it(tmp_path: Path, end: signal.Signals) -> None:
    _fake(tmp_path, STUBBORN)
    code = f"""
import time
from pathlib import Path
from compare.live.server import start_server
folder = Path({str(tmp_path)!r})
server = start_server(python=folder / "python", model=folder, policy="fcfs", log=folder / "log")
server.pause()
print(server.pid, flush=True)
time.sleep(1000)
"""
    with subprocess.Popen(  # noqa: S603 # the code above
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as owner:
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        assert group_members(group)
        owner.send_signal(end)
    try:
        assert _until(lambda: not group_members(group))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def test_a_paused_server_says_so_instead_of_hanging(tmp_path: Path) -> None:
    server = _start(tmp_path, STUBBORN)
    try:
        server.pause()
        with pytest.raises(ServerError, match=r"is paused"):
            server.info()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.stop()


def test_a_free_port_can_be_listened_on() -> None:
    assert 1024 <= free_port() <= 65535


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (("Darwin", "arm64", ("", ""), (3, 12)), "Darwin on arm64"),
        (("Linux", "aarch64", ("glibc", "2.39"), (3, 12)), "aarch64"),
        (("Linux", "x86_64", ("glibc", "2.31"), (3, 12)), "glibc 2.31"),
        (("Linux", "x86_64", ("", ""), (3, 12)), "another C library"),
        (("Linux", "x86_64", ("glibc", "2.39"), (3, 9)), "Python 3.11 or later"),
        (("Linux", "x86_64", ("glibc", "2.34"), (3, 11)), None),
        (("Linux", "x86_64", ("glibc", "2.100"), (3, 14)), None),
    ],
)
def test_the_installer_refuses_machines_with_the_reason(
    machine: tuple[str, str, tuple[str, str], tuple[int, int]], reason: str | None
) -> None:
    refusal: Refusal = runpy.run_path(str(ROOT / "serving" / "install.py"))["refusal"]
    answer = refusal(*machine)
    assert answer is None if reason is None else reason in (answer or "")


def test_the_operators_are_declared_once_however_often() -> None:
    declared: Callable[[str], str] = runpy.run_path(str(ROOT / "serving" / "torchvision_ops.py"))["declared"]
    once = declared("import torch\n\n")
    assert once.startswith("import torch\n")
    assert declared(once) == once
    assert once.count("torch.library.Library") == 1


def test_a_kernel_of_the_stand_in_raises_when_called_only() -> None:
    names = runpy.run_path(str(ROOT / "serving" / "shim" / "sgl_kernel" / "__init__.py"))
    kernel = names["__getattr__"]("topk_softmax")
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.topk_softmax"):
        kernel(1, out=2)
    with pytest.raises(AttributeError):
        names["__getattr__"]("__path__")
