"""Compiled code is valid for the sources that go into it, and for nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from topas.compiled import sources_digest

CALLED = """
from topas.compiled import kernel

STEP = {step}


@kernel
def more(x):
    return x + STEP
"""
CALLING = """
from oracle_like.called import more
from topas.compiled import kernel


@kernel
def twice(x):
    return 2 * more(x)
"""
SAY = """
import topas.compiled

topas.compiled.FAMILY |= {"oracle_like"}
from oracle_like.calling import twice

print(twice(1))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "oracle_like"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "calling.py").write_text(CALLING)
    (folder / "called.py").write_text(CALLED.format(step=1))
    return folder


def _said(folder: Path) -> str:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{SAY}"],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_change_in_a_called_kernels_file_is_seen_by_its_caller(package: Path) -> None:
    assert _said(package) == "4"
    (package / "called.py").write_text(CALLED.format(step=5))
    assert _said(package) == "12"


def test_an_unchanged_source_is_not_compiled_again_whatever_its_age(package: Path) -> None:
    _said(package)
    compiled = {p: p.stat().st_mtime_ns for p in package.rglob("*.nb?")}
    assert compiled
    for source in package.glob("*.py"):
        source.touch()
    _said(package)
    assert {p: p.stat().st_mtime_ns for p in package.rglob("*.nb?")} == compiled


def test_the_digest_covers_what_is_imported_from_the_same_packages() -> None:
    assert sources_digest("topas.cost") != sources_digest("topas.compiled")
