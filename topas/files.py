"""Writing files whole: a temporary file beside the target, renamed when it is complete."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from topas.errors import InputError


@contextmanager
def whole_file(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that appears under ``path`` only if the block ends without an error.

    A link is written through, not replaced. A device or a pipe takes the text as it comes: there is
    nothing to rename over.

    Raises
    ------
    InputError
        if the folder does not exist, or the file cannot be written to its end.
    """
    encoding = None if "b" in mode else "utf-8"
    try:
        if _special(path):
            with Path(path).open(mode, encoding=encoding) as stream:
                yield stream
            return
        target = Path(path).resolve()
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(f"cannot write here: {error.strerror}", source=str(path)) from None
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, mode, encoding=encoding) as stream:
            yield stream
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"cannot write: {error.strerror}", source=str(path)) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_all(folder: Path, contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write files by name into a folder, each of them whole; return their paths.

    Raises
    ------
    InputError
        as :func:`whole_file` does.
    """
    for name, content in contents.items():
        with whole_file(folder / name, "wb") as stream:
            stream.write(content)
    return tuple(folder / name for name in contents)


def _special(path: str | os.PathLike[str]) -> bool:
    """Return whether something stands there that is no regular file."""
    try:
        kind = Path(path).stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(kind):
        raise InputError("cannot write here: Is a directory", source=str(path))
    return not stat.S_ISREG(kind)


def refuse_overwrite(output: str, inputs: Iterable[str]) -> None:
    """Raise InputError if a command would write over what it reads."""
    for name in inputs:
        if Path(output).resolve() == Path(name).resolve():
            raise InputError("is an input of this command: choose another file to write", source=output)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return a file's bytes.

    Raises
    ------
    InputError
        if it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror}", source=str(path)) from None
