"""The command itself: what it lists, what that costs, and who knows whom."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from topas.cli import commands, main

HELP = """
import sys
from topas.cli import main
try:
    main(["--help"])
finally:
    print(sorted(name for name in ("numpy", "numba", "pydantic", "scipy") if name in sys.modules))
"""


NAMES = (
    "check",
    "compare",
    "decide",
    "gap",
    "import",
    "oracle",
    "profile",
    "replay",
    "simulate",
    "tune",
    "workload",
)


def test_help_names_every_command_of_every_package_and_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)  # noqa: S603
    for name in NAMES:
        assert f"\n    {name} " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", list(commands()))
def test_every_command_can_be_loaded_and_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(commands()[name].module)
    assert callable(module.run)
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: topas {name}")


def test_a_command_that_nobody_contributes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["serve"])
    assert stop.value.code == 2
    assert "invalid choice: 'serve'" in capsys.readouterr().err
