"""The measures of ``tools/structure.py``, on code whose answers are known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "structure.py"

ONE = '''"""A docstring
of two lines."""

import os  # an import

# a comment
class Twice(NamedTuple):
    """A docstring."""

    left: int
    right: str
    """What it means."""


def solve(first, /, second, *, third):
    total = first + second * len(third)
    for place, value in enumerate(third):
        if value > 3 and place != 0:
            total -= value * (first + 1)
        while total < value:
            total += os.getpid() % 7
    return f"{total} of {second}"
'''

TWO = """class Twice:
    pass


def other(a, b, c):
    return a


def work(alpha, beta, gamma):
    s = alpha + beta * max(gamma)
    for i, x in sorted(gamma):
        if x > 9 and i != 1:
            s -= x * (alpha + 2)
        while s < x:
            s += sys.getsize() % 4
    return f"{s} and {beta}"
"""


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["structure"] = module
    spec.loader.exec_module(module)
    return module


STILL = frozenset({"Case", "Job", "Phase", "Scratch", "Work"})
"""Names that more than one class has today. It may only become shorter."""


def test_no_new_class_takes_the_name_of_another(
    structure: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TOOL.parent.parent)
    twice = structure.namesakes(structure.sources(None))
    assert {name: paths for name, paths in twice.items() if name not in STILL} == {}


@pytest.fixture(scope="module")
def measured(structure: ModuleType) -> dict[str, int | str]:
    files = [structure.source("topas/one.py", ONE), structure.source("oracle/two.py", TWO)]
    found: dict[str, int | str] = structure.measure(files, structure.duplicates(files))
    return found


def test_docstrings_imports_comments_and_blank_lines_are_no_code(measured: dict[str, int | str]) -> None:
    assert (measured["- topas/"], measured["- oracle/"]) == (11, 12)
    assert measured["lines of code"] == 23
    assert measured["lines of files"] == ONE.count("\n") + TWO.count("\n")


def test_what_is_large_and_what_stands_twice_is_found(measured: dict[str, int | str]) -> None:
    assert (measured["classes"], measured["class names used more than once"]) == (2, 1)
    assert (measured["named tuples"], measured["- their fields"]) == (1, 2)
    assert measured["- the largest"] == "2 (Twice, topas/one.py)"
    assert measured["largest argument list"] == "3 (solve, topas/one.py)"


def test_the_same_code_under_other_names_is_one_pair_as_long_as_it_gets(structure: ModuleType) -> None:
    files = [structure.source("topas/one.py", ONE), structure.source("oracle/two.py", TWO)]
    (pair,) = structure.duplicates(files)
    assert (pair.left, pair.right, pair.lines) == (("topas/one.py", 16), ("oracle/two.py", 10), 7)


def test_two_lists_of_fields_are_no_duplicates(structure: ModuleType) -> None:
    fields = "class A:\n" + "".join(f"    f{k}: int = {k}\n" for k in range(12))
    assert structure.duplicates([structure.source("a.py", fields), structure.source("b.py", fields)]) == []
