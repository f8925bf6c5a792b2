"""A server's decision log: bounded, and read by everything that reads logs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from support_events import make_event
from support_live_engine import Clock, Counts, FakeEngine, Req, drain, tokens_of_family

from topas.cli import main
from topas.decision import Decision
from topas.errors import InputError
from topas.event import Event, Params
from topas.formats import decision_json, event_json, event_of, read_events
from topas.online.policy import TOPAS_PAPER
from topas.online.search import select
from topas.online.sglang.book import Book
from topas.online.sglang.config import DecisionLog, ServingConfig
from topas.online.sglang.joint_scheduling import JointScheduling
from topas.online.sglang.log import DecisionWriter
from topas.profile import load_profile


def some_event(number: int = 0) -> tuple[Event, Decision]:
    """Return an event and what Algorithm 1 decides on it."""
    event = event_of(
        make_event(
            budget=1000,
            agents="A=100",
            tasks={"t": f"a={number + 1} b<a=4"},
            waiting=["r1 t.a A 50 5"],
            time=float(number),
        )
    )
    return event, select(event)


@pytest.fixture
def server_log(tmp_path: Path) -> Path:
    """Return the log of a server that checks its decisions."""
    path = tmp_path / "decisions.jsonl"
    engine = FakeEngine(kv_tokens=240, overlap=True)
    book = Book(ServingConfig(check=True), load_profile("study"), Params())
    writer = DecisionWriter(DecisionLog(path=str(path)))
    engine.scheduling = JointScheduling(engine, book, TOPAS_PAPER, Counts(), Clock(), writer)  # type: ignore[arg-type]
    for number in range(5):
        family = number % 2 + 1
        facts = {"task": f"t{number}", "agent": f"a{family}", "prefix_tokens": 20, "final": True}
        engine.add(Req(f"q{number}", tokens_of_family(family, 20, number, 30), 6, facts=facts))
        engine.step()
    drain(engine, 200)
    writer.close()
    return path


def test_each_line_is_the_event_and_the_decision_made_on_it(server_log: Path) -> None:
    lines = [json.loads(line) for line in server_log.read_text().splitlines()]
    read = list(read_events(server_log))
    assert len(lines) == len(read) > 4
    for line, entry in zip(lines, read, strict=True):
        assert list(line) == ["event", "decision", "engine"]
        assert event_json(entry.event) == line["event"]
        assert decision_json(select(entry.event)) == line["decision"]
        assert entry.decision is not None
        assert entry.decision.terms == select(entry.event).terms


def test_what_the_engine_looked_like_is_beside_it(server_log: Path) -> None:
    seen = [json.loads(line)["engine"] for line in server_log.read_text().splitlines()]
    names = ["on_gpu_tokens", "prefix_tokens", "pinned_tokens", "in_prefill", "free_tokens"]
    assert all(list(one) == names for one in seen)
    assert any(one["pinned_tokens"] for one in seen)
    assert all(
        one["pinned_tokens"][a] == one["on_gpu_tokens"][a] for one in seen for a in one["pinned_tokens"]
    )


def test_the_oracle_and_the_gap_read_a_servers_log(
    server_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = len(server_log.read_text().splitlines())
    assert main(["oracle", "event", str(server_log), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["status"] for row in rows] == ["OPTIMAL"] * count
    assert main(["gap", str(server_log), "--jobs", "1", "-o", str(tmp_path / "gap")]) == 0
    report = json.loads((tmp_path / "gap" / "report.json").read_text())
    assert report["events"]["all"]["events"] == count


def test_one_line_of_a_servers_log_decides_the_same_by_itself(
    server_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = json.loads(server_log.read_text().splitlines()[0])
    path = tmp_path / "event.json"
    path.write_text(json.dumps(line["event"]))
    assert main(["decide", str(path), "--policy", "topas-paper", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == line["decision"]


@pytest.mark.parametrize(
    ("extra", "text"),
    [({"engine": [1]}, "engine"), ({"engine": "x"}, "engine"), ({"motor": {}}, "motor")],
)
def test_other_keys_are_refused_and_the_engine_is_an_object(
    tmp_path: Path, extra: dict[str, Any], text: str
) -> None:
    event, decision = some_event()
    line = {"event": event_json(event), "decision": decision_json(decision)}
    path = tmp_path / "log.jsonl"
    path.write_text(
        json.dumps(line | {"engine": {"anything": [1, None]}}) + "\n" + json.dumps(line | extra) + "\n"
    )
    found = read_events(path)
    assert event_json(next(found).event) == event_json(event)
    with pytest.raises(InputError, match=rf"log\.jsonl:2: {text}: "):
        next(found)


def test_a_log_never_outgrows_its_files(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    writer = DecisionWriter(DecisionLog(path=str(path), max_mb=0.003, files=3))
    longest = 0
    for number in range(60):
        event, decision = some_event(number)
        writer.write(event, decision, None)
        longest = max(longest, len(json.dumps(event_json(event))))
    writer.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    assert all(0 < file.stat().st_size <= 3000 for file in files)
    times = [one.event.time_s for file in (files[2], files[1], files[0]) for one in read_events(file)]
    assert times == [float(k) for k in range(60 - len(times), 60)]
    assert len(times) > 6
    assert longest < 3000


def test_a_limit_below_a_line_keeps_a_line_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    writer = DecisionWriter(DecisionLog(path=str(path), max_mb=1e-7))
    for number in range(5):
        writer.write(*some_event(number), None)
    writer.close()
    assert [one.event.time_s for one in read_events(path)] == [4.0]
    assert [one.event.time_s for one in read_events(tmp_path / "log.jsonl.1")] == [3.0]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_restarted_server_goes_on_with_its_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for number in range(2):
        writer = DecisionWriter(DecisionLog(path=str(path)))
        writer.write(*some_event(number), {})
        writer.close()
    assert [one.event.time_s for one in read_events(path)] == [0.0, 1.0]


def test_a_log_that_cannot_be_opened_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no/log\.jsonl: cannot write: No such file or directory"):
        DecisionWriter(DecisionLog(path=str(tmp_path / "no" / "log.jsonl")))


def test_a_disk_that_fails_later_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = DecisionWriter(DecisionLog(path=str(tmp_path / "log.jsonl")))

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    writer._handler.shouldRollover = full  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.WARNING, "topas"):
        for number in range(3):
            writer.write(*some_event(number), None)
    writer.close()
    assert [r.getMessage() for r in caplog.records] == [
        "topas: decisions are lost to the log: [Errno 28] No space left on device"
    ]
    assert capsys.readouterr().err == ""
