"""Solvers come with the extra ``topas[oracle]``; without it the rest of the project works."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from types import ModuleType

from topas.errors import InputError


def solver_module(name: str) -> ModuleType:
    """Import a solver's module.

    Raises
    ------
    InputError
        if it is not installed, naming the extra that brings it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        raise InputError(f"needs {missing}, which is not installed: pip install 'topas[oracle]'") from None


@cache
def quiet_highs() -> ModuleType:
    """Import HiGHS and have it print its banner to nowhere: once a process, before it takes any option.

    Raises
    ------
    InputError
        if it is not installed.
    """
    highspy = solver_module("highspy")
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
    return highspy
