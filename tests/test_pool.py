"""What a run over many items leaves and says when it is stopped."""

from __future__ import annotations

import gc
import time
import warnings
from pathlib import Path

import pytest
from tqdm import tqdm

from compare.pool import Interrupted, Work, run_all


def slow_but_first(item: int, path: Path) -> int:
    """Do the first item at once, the others in a while."""
    time.sleep(0.5 if item else 0.0)
    path.write_text(str(item))
    return item


def read(_: int, path: Path) -> int | None:
    """Return what an item's file holds."""
    return int(path.read_text()) if path.exists() else None


def press_ctrl_c(*_: object) -> None:
    """Be interrupted where a progress bar would be drawn."""
    raise KeyboardInterrupt


def test_a_stop_between_two_results_says_nothing_of_the_items_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users asked for the stop: joblib's advice on unfinished items must not reach them."""
    monkeypatch.setattr(tqdm, "update", press_ctrl_c)
    paths = {item: tmp_path / str(item) for item in range(6)}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(Interrupted):
            run_all(paths, Work(slow_but_first, read), jobs=2, progress=False)
        gc.collect()
    assert [str(warning.message) for warning in seen if "cancelled" in str(warning.message)] == []
