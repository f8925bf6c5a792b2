"""What is found out once and kept: a JSON file an item, named after all that it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pydantic import TypeAdapter

import oracle
import topas
import traces
from compare.pool import Done, Work, folder_for, run_all
from topas.files import whole_file

FORMAT = "topas-answer/1"
MAKERS = ("source.py", "cases.py", "study.py", "judge.py", "bound.py")
"""Modules of this package that decide what an answer is."""


class Question(Protocol):
    """Something with an answer to keep; ``kept`` is the folder of the answers, ``kind`` their type."""

    kept: ClassVar[str]
    kind: ClassVar[TypeAdapter[Any]]

    def content(self) -> dict[str, Any]:
        """Return all that the answer depends on, as a JSON object."""


class Item(Question, Protocol):
    """Something that can find out its answer in any process."""

    def answer(self) -> Any:  # noqa: ANN401  of type ``kind``
        """Find it out."""

    def __hash__(self) -> int:
        """Equal items are found out once."""


def find_out(
    items: Iterable[Item], folder: Path, *, jobs: int = 1, progress: bool | None = None, unit: str = "item"
) -> Done[Any, Any]:
    """Find out what ``folder`` does not hold yet and return all answers; one that fails stops no other.

    Raises
    ------
    InputError
        if a folder cannot be made or written.
    Interrupted
        on Ctrl-C; finished answers stay.
    """
    paths = {item: answer_path(item, folder) for item in dict.fromkeys(items)}
    for parent in {path.parent for path in paths.values()}:
        folder_for(parent)
    return run_all(paths, WORK, jobs=jobs, progress=progress, unit=unit)


def answer_path(item: Question, folder: Path) -> Path:
    """Return the file of an item's answer."""
    return folder / item.kept / f"{key_of(item)}.json"


def answer_and_keep(item: Item, path: Path) -> Any:  # noqa: ANN401  of type ``item.kind``
    """Find the answer and write it to ``path``."""
    answer = item.answer()
    keep(item, answer, path)
    return answer


def keep(item: Question, answer: Any, path: Path) -> None:  # noqa: ANN401  as above
    """Write an answer to ``path``."""
    value = item.kind.dump_python(answer, mode="json")
    stored = {"format": FORMAT, "version": version("topas"), "item": item.content(), "answer": value}
    with whole_file(path, "wb") as stream:
        stream.write(canonical(stored).encode() + b"\n")


def read_answer(item: Question, path: Path) -> Any:  # noqa: ANN401  of type ``item.kind``, or None
    """Return the answer that ``path`` holds, or None if there is no such valid file."""
    try:
        stored = json.loads(path.read_bytes())
        if stored["format"] != FORMAT or canonical(stored["item"]) != canonical(item.content()):
            return None
        return item.kind.validate_json(canonical(stored["answer"]), strict=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


WORK: Work[Any, Any] = Work(answer_and_keep, read_answer)


def key_of(item: Question) -> str:
    """Return the SHA-256 over the canonical JSON of an item and the code that finds it out.

    Equal items have equal keys in every process; any change of the code finds its items out anew.
    """
    kind = type(item).__name__.lower()
    text = canonical({kind: item.content(), "version": version("topas"), "code": code_digest()})
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return the SHA-256 over the source and data files of the simulator, the traces and the solvers.

    The version alone would let a policy under development keep the results of its earlier form.
    """
    digest = hashlib.sha256()
    for package in (topas, traces, oracle):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*")):
            if path.suffix in {".py", ".json"} and not {"cli", "commands"} & set(path.parts):
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(path.read_bytes())
    for name in MAKERS:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


def canonical(value: object) -> str:
    """Return JSON text that is the same for equal values: keys sorted, no spaces, no NaN.

    Raises
    ------
    ValueError
        if a number is NaN or infinite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
