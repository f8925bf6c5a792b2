"""A real SGLang server on this machine: started as a child process, asked over HTTP, stopped for good."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from prometheus_client.parser import text_string_to_metric_families

from topas.errors import InputError

HOST = "127.0.0.1"
LOCATION = "TOPAS_SERVING"
_NEVER_S = "1000000"
_KILL_S = 10.0
_LOG_LINES = 25

# Outlives this process by any end it may come to, also a SIGKILL: then its input ends.
_GUARD = 'read _; kill -s KILL -- "-$1"; rm -rf -- "$2"'


class ServerError(RuntimeError):
    """A server that did not start, died, or refused: the message ends with the last lines of its log."""


class Sample(NamedTuple):
    """One time series of a metric."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class ServerPaths:
    """What `make serving` makes: an interpreter that can import SGLang, and the tiny model."""

    python: Path
    model: Path


def cpu_server_paths(environ: Mapping[str, str] = os.environ) -> ServerPaths:
    """Return the serving environment of this checkout, or the one that TOPAS_SERVING names.

    Raises
    ------
    InputError
        if there is none, or its installation was not completed.
    """
    named = environ.get(LOCATION)
    folder = Path(named).absolute() if named else Path(__file__).resolve().parents[2] / ".serving"
    if not (folder / ".ready").is_file():
        raise InputError(
            f"no SGLang is installed here: run `make serving`, or set {LOCATION} to a folder that it made",
            source=str(folder),
        )
    return ServerPaths(folder / "bin" / "python", folder / "tiny-qwen2")


def server_command(  # noqa: PLR0913 # SGLang's flags
    *,
    python: Path,
    model: Path,
    policy: str,
    port: int,
    kv_tokens: int,
    max_running: int,
    args: Sequence[str] = (),
    overlap: bool = False,
) -> list[str]:
    """Return the command line of a server on a CPU; ``args`` come last, and so win over what is set here."""
    command = [str(python.absolute()), "-m", "sglang.launch_server", "--model-path", str(model.absolute())]
    flags = {
        "load-format": "dummy",
        "device": "cpu",
        "attention-backend": "torch_native",
        "dtype": "float32",
        "host": HOST,
        "port": str(port),
        "schedule-policy": policy,
        "max-total-tokens": str(kv_tokens),
        "max-running-requests": str(max_running),
        "mem-fraction-static": "0.05",
        "page-size": "1",
        "random-seed": "1",
        # A paused server would be taken for one that hangs.
        "watchdog-timeout": _NEVER_S,
    }
    for name, value in flags.items():
        command += [f"--{name}", value]
    # `Server.wait_ready` warms up, a second sooner and with an empty cache afterwards.
    command += ["--enable-metrics", "--enable-cache-report", "--skip-server-warmup"]
    return [*command, *([] if overlap else ["--disable-overlap-schedule"]), *args]


def server_environment(given: Mapping[str, str], extra: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return the environment of a server on a CPU; ``extra`` wins over all else."""
    kept = {name: value for name, value in given.items() if name != "PROMETHEUS_MULTIPROC_DIR"}
    return {
        **kept,
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TMPDIR": str(scratch),  # sockets and metrics, removed with the server
        **extra,
    }


def group_members(group: int) -> list[int]:
    """Return the ids of the processes of a group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it has just ended
            continue
        state, _, process_group = text.rpartition(")")[2].split()[:3]
        if int(process_group) == group and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def shared_files(processes: Sequence[int]) -> list[Path]:
    """Return the files of shared memory that SGLang's processes have made under a name."""
    lines: list[str] = []
    for process in processes:
        with suppress(OSError):  # it has just ended
            lines += Path(f"/proc/{process}/maps").read_text().splitlines()
    return sorted({Path(line.split(maxsplit=5)[5]) for line in lines if "/shm/sglang_" in line})


class Server:
    """A running server. Use `start_server`.

    As a context manager it waits until the server is ready, and stops it at the end. A server that is not
    stopped ends with the process that started it, however that ends.

    Attributes
    ----------
    port, url : where it listens, for example ``http://127.0.0.1:31000``.
    pid : the process that was started; all of its processes are in the process group of this number.
    log : its output.
    paused : whether it is stopped by `pause`.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], *, port: int, log: Path, timeout_s: float
    ) -> None:
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self.log = log
        self.paused = False
        self._timeout_s = timeout_s
        self._scratch = Path(tempfile.mkdtemp(prefix="topas-"))
        try:
            with log.open("wb") as stream:
                self._process = subprocess.Popen(  # noqa: S603 # our own command
                    command,
                    env=server_environment(os.environ, env, self._scratch),
                    cwd=self._scratch,  # Python looks for modules there first
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(self._scratch)
            raise InputError(
                f"cannot start a server: {error.strerror}", source=str(error.filename or command[0])
            ) from None
        self.pid = self._process.pid
        self._guard = subprocess.Popen(  # noqa: S603 # the constant above
            ["/bin/sh", "-c", _GUARD, "guard", str(self.pid), str(self._scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        """Wait until the server is ready."""
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the process that was started has not ended."""
        return self._process.poll() is None

    def wait_ready(self) -> None:
        """Return when the server has generated a first token; its cache is empty then.

        Raises
        ------
        ServerError
            if it ends, or takes longer than the limit that it was started with.
        """
        end = time.monotonic() + self._timeout_s
        while not self._answers():
            if self._process.poll() is not None:
                raise self._error(f"ended with exit code {self._process.returncode} before it was ready")
            if time.monotonic() > end:
                raise self._error(f"was not ready after {self._timeout_s:g} s")
            time.sleep(0.1)
        self.generate([1, 2, 3, 4], 2)
        self.flush()

    def stop(self) -> None:
        """End all processes, paused or not, and remove their temporary files; nothing if that was done."""
        if self._guard.poll() is not None:
            return
        # There is nothing to save, and asked politely SGLang takes 3 to 10 s and leaves the same files.
        shared = shared_files(group_members(self.pid))
        end = time.monotonic() + _KILL_S
        while group_members(self.pid) and time.monotonic() < end:
            self._signal(signal.SIGKILL)
            time.sleep(0.02)
        self._process.wait()
        for path in shared:
            path.unlink(missing_ok=True)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._guard.kill()
        self._guard.communicate()

    def pause(self) -> None:
        """Halt all processes: an idle scheduler keeps a core busy. Nothing is answered until `resume`."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        self._signal(signal.SIGCONT)
        self.paused = False

    def flush(self, timeout_s: float = 30.0) -> None:
        """Empty the prefix cache, as soon as nothing runs or waits.

        Raises
        ------
        ServerError
            if something still does after ``timeout_s`` seconds.
        """
        end = time.monotonic() + timeout_s
        while (answer := self._ask("POST", "/flush_cache"))[0] != 200:  # noqa: PLR2004 # HTTP's OK
            if time.monotonic() > end:
                raise self._error(f"did not flush its cache in {timeout_s:g} s: {answer[1].strip()}")
            time.sleep(0.05)

    def generate(self, input_ids: Sequence[int], max_new_tokens: int, **fields: object) -> dict[str, Any]:
        """Return SGLang's answer to one request of /generate: greedy, and as long as asked for.

        Parameters
        ----------
        input_ids : tokens of the prompt, at least one.
        max_new_tokens : tokens to generate; they are ``output_ids`` of the answer.
        fields : more of the body, for example ``rid``; ``sampling_params`` are added to the above.
        """
        given = fields.pop("sampling_params", {})
        if not isinstance(given, Mapping):
            raise TypeError("sampling_params: expected a mapping")
        sampling = {"temperature": 0, "ignore_eos": True, "max_new_tokens": max_new_tokens, **given}
        body = {"input_ids": list(input_ids), "sampling_params": sampling, **fields}
        answer: dict[str, Any] = json.loads(self._expect("POST", "/generate", body))
        return answer

    def info(self) -> dict[str, Any]:
        """Return what /server_info tells: arguments and internal states."""
        answer: dict[str, Any] = json.loads(self._expect("GET", "/server_info"))
        return answer

    def metrics(self) -> dict[str, list[Sample]]:
        """Return all samples of /metrics by name, for example ``sglang:cached_tokens_total``."""
        found: dict[str, list[Sample]] = {}
        for family in text_string_to_metric_families(self._expect("GET", "/metrics/")):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(Sample(sample.labels, sample.value))
        return found

    def log_tail(self, lines: int = _LOG_LINES) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _expect(self, method: str, path: str, body: object = None) -> str:
        status, text = self._ask(method, path, body)
        if status != 200:  # noqa: PLR2004 # HTTP's OK
            raise self._error(f"answered {status} to {path}: {text.strip()}")
        return text

    def _ask(self, method: str, path: str, body: object = None, timeout_s: float = 120.0) -> tuple[int, str]:
        if self.paused:
            raise self._error("is paused")
        connection = HTTPConnection(HOST, self.port, timeout=timeout_s)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, HTTPException) as error:
            raise self._error(f"did not answer {path}: {error!r}") from error
        finally:
            connection.close()

    def _answers(self) -> bool:
        try:
            return self._ask("GET", "/ready", timeout_s=5.0)[0] == 200  # noqa: PLR2004 # HTTP's OK
        except ServerError:
            if self.paused:
                raise
            return False

    def _error(self, what: str) -> ServerError:
        return ServerError(
            f"the SGLang server at {self.url} {what}; the end of {self.log}:\n{self.log_tail()}"
        )

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def start_server(  # noqa: PLR0913 # SGLang's flags
    *,
    python: Path,
    model: Path,
    policy: str,
    log: Path,
    port: int | None = None,
    kv_tokens: int = 4096,
    max_running: int = 8,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    overlap: bool = False,
    timeout_s: float = 180.0,
) -> Server:
    """Start a server on this machine's CPU, without waiting for it.

    Parameters
    ----------
    python, model : see `cpu_server_paths`.
    policy : SGLang's ``--schedule-policy``.
    log : file for its output, overwritten.
    port : TCP port; by default a free one.
    kv_tokens : size of the KV cache, in tokens.
    max_running : most requests in a batch.
    args, env : more flags and variables, which win over those set here.
    overlap : whether the next batch is scheduled while the last one still runs.
    timeout_s : how long `Server.wait_ready` waits, in seconds.

    Raises
    ------
    InputError
        if the interpreter or the log cannot be opened.
    """
    chosen = free_port() if port is None else port
    command = server_command(
        python=python,
        model=model,
        policy=policy,
        port=chosen,
        kv_tokens=kv_tokens,
        max_running=max_running,
        args=args,
        overlap=overlap,
    )
    # not beside the sources: another version of numba keeps its compiled code there
    compiled = {"NUMBA_CACHE_DIR": str(python.parent.parent / "numba")}
    return Server(command, compiled | dict(env or {}), port=chosen, log=log, timeout_s=timeout_s)
