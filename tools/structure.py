"""How large the code is and how much of it stands twice, of the working tree and of revisions beside it.

``python tools/structure.py [REV ...] [--pairs] [--json]``, or ``make structure``. Tests do not count. Needs
git and the standard library only.
"""

from __future__ import annotations

import argparse
import ast
import io
import itertools
import json
import keyword
import subprocess
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("topas", "oracle", "traces", "compare", "serving", "tools")
WINDOW = 6
"""So many equal lines make two places duplicates."""

KINDS, TOKENS = 4, 30
"""So many of them must differ, with so many words and signs in all: every list of fields looks alike."""

MANY_ARGUMENTS = 8
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.COMMENT,
}
LITERALS = {tokenize.NUMBER: "0", tokenize.STRING: "''"}


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file: its text, its tree, and its lines of code, each with names, texts and numbers made equal.

    A line of code is no blank, no comment, and no part of a docstring or an import.
    """

    path: str
    text: str
    tree: ast.Module
    code: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two places of equal lines: path and first line of each."""

    left: tuple[str, int]
    right: tuple[str, int]
    lines: int


def sources(revision: str | None) -> list[CodeFile]:
    """Return the files of a revision; of the working tree if it is None."""
    if revision is None:
        names = _git("ls-files", "-co", "--exclude-standard").decode().splitlines()
        texts = {name: Path(name).read_text() for name in names if _counts(name) and Path(name).is_file()}
    else:
        with tarfile.open(fileobj=io.BytesIO(_git("archive", revision))) as archive:
            texts = {
                name: content.read().decode()
                for name in archive.getnames()
                if _counts(name) and (content := archive.extractfile(name))
            }
    return [source(name, texts[name]) for name in sorted(texts)]


def measure(files: Sequence[CodeFile], pairs: Sequence[Pair]) -> dict[str, int | str]:
    """Return every measure by name."""
    nodes = [(file.path, node) for file in files for node in ast.walk(file.tree)]
    classes = [(path, node) for path, node in nodes if isinstance(node, ast.ClassDef)]
    tuples = {
        f"{node.name}, {path}": _fields(node)
        for path, node in classes
        if "NamedTuple" in map(ast.unparse, node.bases)
    }
    arguments = {
        f"{node.name}, {path}": _arguments(node) for path, node in nodes if isinstance(node, ast.FunctionDef)
    }
    by_package = Counter[str]()
    for file in files:
        by_package[file.path.partition("/")[0]] += len(file.code)
    physical = {file.path: file.text.count("\n") for file in files}
    return {
        "lines of code": sum(by_package.values()),
        **{f"- {package}/": by_package[package] for package in PACKAGES},
        "lines of files": sum(physical.values()),
        "files": len(files),
        "largest file": _largest(physical),
        "classes": len(classes),
        "class names used more than once": len(namesakes(files)),
        "named tuples": len(tuples),
        "- their fields": sum(tuples.values()),
        "- the largest": _largest(tuples),
        "largest argument list": _largest(arguments),
        f"functions of more than {MANY_ARGUMENTS} arguments": sum(
            n > MANY_ARGUMENTS for n in arguments.values()
        ),
        f"pairs of places of {WINDOW} or more equal lines": len(pairs),
        "- lines in them": sum(pair.lines for pair in pairs),
    }


def namesakes(files: Sequence[CodeFile]) -> dict[str, list[str]]:
    """Return the classes whose name others have too: the paths of all of them."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(file.path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def duplicates(files: Sequence[CodeFile]) -> list[Pair]:
    """Return pairs of places whose code differs in names, texts and numbers only, each as long as it gets."""
    lines = {file.path: list(file.code.items()) for file in files}
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, code in lines.items():
        for start in range(len(code) - WINDOW + 1):
            window = tuple(text for _, text in code[start : start + WINDOW])
            if len(set(window)) >= KINDS and len(" ".join(window).split()) >= TOKENS:
                places[window].append((path, start))
    matches = {
        (left, right)
        for same in places.values()
        for left, right in itertools.combinations(same, 2)
        if left[0] != right[0] or right[1] - left[1] >= WINDOW
    }
    found = []
    for left, right in sorted(matches):
        if (_moved(left, -1), _moved(right, -1)) in matches:
            continue  # part of a longer one
        more = next(k for k in itertools.count(1) if (_moved(left, k), _moved(right, k)) not in matches)
        first = [(path, lines[path][start][0]) for path, start in (left, right)]
        found.append(Pair(first[0], first[1], WINDOW + more - 1))
    return found


def _moved(place: tuple[str, int], by: int) -> tuple[str, int]:
    return place[0], place[1] + by


def source(path: str, text: str) -> CodeFile:
    """Parse a file."""
    tree = ast.parse(text)
    left_out = set[int]()
    for node in ast.walk(tree):
        said = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if said or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in LAYOUT:
            continue
        plain = "N" if token.type == tokenize.NAME and not keyword.iskeyword(token.string) else token.string
        for line in range(token.start[0], token.end[0] + 1):
            if line not in left_out:
                code[line].append(LITERALS.get(token.type, plain))
    return CodeFile(path, text, tree, {line: " ".join(code[line]) for line in sorted(code)})


def _fields(node: ast.ClassDef) -> int:
    return sum(isinstance(part, ast.AnnAssign) for part in node.body)


def _arguments(node: ast.FunctionDef) -> int:
    return len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)


def _largest(sizes: Mapping[str, int]) -> str:
    name = max(sizes, key=sizes.__getitem__, default="")
    return f"{sizes[name]} ({name})" if name else "0"


def _counts(path: str) -> bool:
    return path.endswith(".py") and path.partition("/")[0] in PACKAGES


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], check=True, capture_output=True).stdout  # noqa: S603, S607


def _table(columns: Mapping[str, Mapping[str, int | str]]) -> Iterator[str]:
    rows = [
        ("", *columns),
        *((name, *(str(c[name]) for c in columns.values())) for name in next(iter(columns.values()))),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def main() -> None:
    """Print the measures, a column a revision, the working tree last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "revisions", nargs="*", metavar="REV", help="revisions to set beside the working tree"
    )
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="list the classes and places of the working tree that stand twice",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    args = parser.parse_args()
    columns = {}
    for revision in (*args.revisions, None):
        files = sources(revision)
        pairs = duplicates(files)
        columns[revision or "working tree"] = measure(files, pairs)
    if args.json:
        print(json.dumps(columns))
        return
    print(*_table(columns), sep="\n")
    for name, paths in namesakes(files).items() if args.pairs else ():
        print(f"class {name}: {', '.join(paths)}")
    for pair in sorted(pairs, key=lambda pair: -pair.lines) if args.pairs else ():
        print(f"{pair.lines:>4} lines  {pair.left[0]}:{pair.left[1]}  {pair.right[0]}:{pair.right[1]}")


if __name__ == "__main__":
    main()
