"""The decision log: JSON Lines of event and decision, bounded in size (format in docs/formats.md)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from typing import Any

from topas.decision import Decision
from topas.errors import InputError
from topas.event import Event
from topas.formats import decision_json, event_json
from topas.online.sglang.config import DecisionLog

logger = logging.getLogger("topas")


class DecisionWriter:
    """Appends one line a decision; the oldest lines go when the files are full.

    A disk that is full later costs lines, and one warning; it does not disturb the server.

    Raises
    ------
    InputError
        if the file cannot be opened.
    """

    def __init__(self, config: DecisionLog) -> None:
        try:
            self._handler = RotatingFileHandler(
                config.path,
                maxBytes=max(int(config.max_mb * 1_000_000), 1),  # 0 would be no limit
                backupCount=config.files - 1,
                encoding="utf-8",
            )
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror}", source=config.path) from None
        self._handler.handleError = self._failed  # type: ignore[method-assign]
        self._has_failed = False

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

    def _failed(self, record: logging.LogRecord) -> None:  # noqa: ARG002  the handler's signature
        if not self._has_failed:
            self._has_failed = True
            logger.warning("topas: decisions are lost to the log: %s", sys.exc_info()[1])
