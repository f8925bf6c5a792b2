"""Files that a command writes (topas.files), and what it must not write over."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from compare import figures
from topas.cli import main
from topas.errors import InputError
from topas.files import refuse_overwrite, whole_file
from topas.trace import MAX_SECONDS
from traces.arrivals import poisson_arrivals


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("before")

    def stop_half_way() -> None:
        with whole_file(path) as stream:
            stream.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stop_half_way()
    assert path.read_text() == "before"
    with whole_file(path) as stream:
        stream.write("whole")
        assert path.read_text() == "before"
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_written_through_and_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("before")
    link.symlink_to(real)
    with whole_file(link) as stream:
        stream.write("after")
    assert link.is_symlink()
    assert real.read_text() == "after"


def test_a_pipe_takes_the_text_as_it_comes_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    with whole_file(pipe) as stream:
        stream.write("through")
    reader.join()
    assert received == ["through"]
    assert pipe.is_fifo()


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"), whole_file(tmp_path):
        pass


def test_no_command_writes_over_what_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    assert main(["workload", "figure-2", "-o", str(trace)]) == 0
    before = trace.read_bytes()
    capsys.readouterr()
    again = tmp_path / "." / "trace.jsonl"
    run = ["simulate", str(trace), "--profile", "unit", "--policy", "fcfs", "--events", str(again)]
    assert main(run) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert main(["import", "kv-cache-tester", str(trace), "-o", str(trace)]) == 2
    assert trace.read_bytes() == before
    refuse_overwrite(str(tmp_path / "other"), [str(trace)])


def test_a_rate_too_small_for_a_trace_is_refused() -> None:
    assert poisson_arrivals(3, 1e-8, seed=1)[-1] <= MAX_SECONDS
    for rate in (1e-9 / 1e3, 5e-324):
        with pytest.raises(InputError, match="would arrive after") as caught:
            poisson_arrivals(3, rate, seed=1)
        assert caught.value.field == "rate"


def test_an_unknown_study_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        figures.main(["figure-9"])
    assert caught.value.code == 2
    assert "figure-3-host-12k-sigma0" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("topas ")
