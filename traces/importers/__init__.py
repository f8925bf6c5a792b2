"""Importers by name: recorded sessions in public formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from traces.importers.kv_cache_tester import import_kv_cache_tester
from traces.importers.recording import Recording, capped, replayed

__all__ = ["IMPORTERS", "Importer", "Recording", "capped", "replayed"]

Importer = Callable[[Sequence[str | os.PathLike[str]], int | None], Recording]
"""Files, and what the client allowed (None: the importer's own estimate), to sessions."""

IMPORTERS: Mapping[str, Importer] = {"kv-cache-tester": import_kv_cache_tester}
