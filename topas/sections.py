"""Files of sections by name that people write: YAML and TOML, with one line for what is wrong."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topas.errors import InputError
from topas.files import read_file

MAX_SECTION_BYTES = 1024 * 1024
"""Longest file that is read."""


def read_sections(path: str) -> dict[Any, Any]:
    """Return the sections of a file that ends in ``.yaml``, ``.yml`` or ``.toml``, still to be validated.

    Raises
    ------
    InputError
        in one line with the file, and the line where the parser stopped.
    """
    read = _READERS.get(Path(path).suffix.lower())
    if read is None:
        raise InputError("expected a file that ends in .yaml, .yml or .toml", source=path)
    data = read_file(path)
    if len(data) > MAX_SECTION_BYTES:
        raise InputError(f"expected at most {MAX_SECTION_BYTES} bytes, found {len(data)}", source=path)
    try:
        value = read(data.decode())
    except UnicodeDecodeError:
        raise InputError("expected UTF-8 text", source=path) from None
    except RecursionError:
        raise InputError("expected values nested less deeply", source=path) from None
    except InputError as error:
        raise error.at(source=path) from None
    if not isinstance(value, dict):
        raise InputError("expected sections by name", source=path)
    return value


def _read_toml(text: str) -> Any:  # noqa: ANN401  any value
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
        message, line = found.groups() if found else (str(error), None)
        raise InputError(f"expected TOML: {message}", line=int(line) if line else None) from None


def _read_yaml(text: str) -> Any:  # noqa: ANN401  any value
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise InputError("reading YAML needs the package PyYAML; a TOML file needs none") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # safe_load, but for keys that stand twice
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002
            seen = set()
            for key, _ in node.value:
                if not isinstance(key.value, str):  # no plain key: refused below
                    continue
                if key.value in seen:
                    problem = f"the key {key.value!r} stands twice"
                    raise yaml.MarkedYAMLError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(f"expected YAML: {error.problem}", line=mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError) as error:  # an odd character; a date that is none
        raise InputError(f"expected YAML: {str(error).splitlines()[0]}") from None


_READERS: dict[str, Callable[[str], Any]] = {".toml": _read_toml, ".yaml": _read_yaml, ".yml": _read_yaml}
