"""Compiled functions: numba, cached on disk by the content of every source that goes into them.

numba's own cache asks only whether the file of a function has changed. A kernel that calls another file's
kernel, or uses its constants, would go on with the old machine code. Here a cached kernel is valid for
exactly the sources that its module imports from the same packages, whatever their age.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile


def kernel(function: Callable[..., Any]) -> Any:  # noqa: ANN401  a dispatcher of numba, which has no annotations
    """Compile a function that allocates nothing: no references are counted, records pass for free.

    Division by zero gives inf or nan, as in numpy. What is called must be a kernel too.
    """
    return _compiled(function, _nrt=False)


def allocating_kernel(function: Callable[..., Any]) -> Any:  # noqa: ANN401
    """Compile a function that makes arrays of its own."""
    return _compiled(function)


def _compiled(function: Callable[..., Any], **options: bool) -> Any:  # noqa: ANN401
    njit: Any = numba.njit  # its annotations do not know all of its options
    dispatcher = njit(error_model="numpy", **options)(function)
    dispatcher._cache = _ContentCache(function)  # noqa: SLF001  what enable_caching() does with its own class
    return dispatcher


class _ContentCache(FunctionCache):
    """numba's cache of a function, stamped with what :func:`sources_digest` says."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=sources_digest(function.__module__),
        )


@cache
def sources_digest(module: str) -> str:
    """Return a digest of a module's source and of all that it imports from its own family of packages."""
    found = {module: _source(module)}
    todo = [module]
    while todo:
        for name in _imports(found[todo.pop()]):
            if name not in found and (text := _source(name)):
                found[name] = text
                todo.append(name)
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{found[name]}\0".encode())
    return digest.hexdigest()


FAMILY = frozenset({"topas", "oracle", "traces", "compare"})
"""Packages whose sources count; all else changes with its version, which numba's cache knows of."""


@cache
def _source(module: str) -> str:
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = find_spec(module)
        except ModuleNotFoundError:  # ``from package.module import name``: the name is no module
            return ""
        origin = spec.origin if spec else None
    return Path(origin).read_text() if origin and origin.endswith(".py") else ""


def _imports(source: str) -> set[str]:
    """Return the modules of the family that a source imports, and names that may be modules."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in names if name.partition(".")[0] in FAMILY}
