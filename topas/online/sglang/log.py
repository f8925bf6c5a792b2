"""The decision log: JSON Lines of event and decision, bounded in size (format in docs/formats.md)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from typing import Any

from topas.decision import Decision
from topas.event import Event
from topas.formats import decision_json, event_json
from topas.online.sglang.config import DecisionLog


class DecisionWriter:
    """Appends one line a decision; the oldest lines go when the files are full."""

    def __init__(self, config: DecisionLog) -> None:
        self._handler = RotatingFileHandler(
            config.path,
            maxBytes=int(config.max_mb * 1_000_000),
            backupCount=config.files - 1,
            encoding="utf-8",
            delay=True,
        )
        self._handler.terminator = "\n"

    def write(self, event: Event, decision: Decision, observed: Mapping[str, Any] | None) -> None:
        """Write a decision, and what the engine looked like after it was carried out."""
        line: dict[str, Any] = {"event": event_json(event), "decision": decision_json(decision)}
        if observed is not None:
            line["engine"] = observed
        text = json.dumps(line, separators=(",", ":"))
        self._handler.handle(logging.LogRecord("topas", logging.INFO, "", 0, text, (), None))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()
