"""Solvers come with the extra ``topas[oracle]``; without it the rest of the project works."""

from __future__ import annotations

import importlib
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
