"""Items whose answer is a dataclass, kept in a JSON file of its own."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from compare.cell import canonical, key_of
from topas.files import whole_file

FORMAT = "topas-answer/1"


class Question(Protocol):
    """Something to find out once and to keep."""

    @property
    def kind(self) -> TypeAdapter[Any]:
        """The type of its answer."""

    def content(self) -> dict[str, Any]:
        """Return all that the answer depends on, as a JSON object."""

    def answer(self) -> Any:  # noqa: ANN401  of type ``kind``
        """Find it out."""


def question_path(question: Question, folder: Path) -> Path:
    """Return the file of a question's answer; its name changes with the question and with the code."""
    return folder / f"{key_of(type(question).__name__, question.content())}.json"


def answer_and_keep(question: Question, path: Path) -> Any:  # noqa: ANN401  of type ``question.kind``
    """Find the answer and write it to ``path``."""
    answer = question.answer()
    value = question.kind.dump_python(answer, mode="json")
    stored = {"format": FORMAT, "version": version("topas"), "item": question.content(), "answer": value}
    with whole_file(path, "wb") as stream:
        stream.write(canonical(stored).encode() + b"\n")
    return answer


def read_answer(question: Question, path: Path) -> Any:  # noqa: ANN401  of type ``question.kind`` or None
    """Return the answer that ``path`` holds, or None if there is no such valid file."""
    try:
        stored = json.loads(path.read_bytes())
        if stored["format"] != FORMAT or canonical(stored["item"]) != canonical(question.content()):
            return None
        return question.kind.validate_json(canonical(stored["answer"]), strict=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
