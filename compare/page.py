"""Pages: templates of this package filled in, and how numbers and tables look in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from io import BytesIO
from typing import Any

import jinja2
import pandas as pd
import pyarrow as pa
from pyarrow.parquet import write_table
from tabulate import tabulate

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("compare"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,  # noqa: S701  Markdown, not HTML
)


def render(template: str, /, **values: Any) -> str:  # noqa: ANN401  whatever the template names
    """Return a page: ``templates/<template>.md.j2`` with these values; it ends with one line break."""
    return (
        ENVIRONMENT.get_template(f"{template}.md.j2").render(version=version("topas"), **values).strip()
        + "\n"
    )


def number(value: float) -> str:
    """Return a value with four significant digits, and never with an exponent for large ones."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004  four digits


def percent(fraction: float) -> str:
    """Return a signed percentage with one decimal: ``-15.2 %``."""
    return f"{_signed(fraction)} %"


def _signed(fraction: float) -> str:
    text = f"{100 * fraction:+.1f}"
    return "0.0" if text in {"+0.0", "-0.0"} else text


def change(row: Mapping[str, float]) -> str:
    """Return a row's change with its interval, if it has one: ``-15.2 % [-17.0, -13.1]``."""
    if pd.isna(row["low"]):
        return percent(row["change"])
    return f"{percent(row['change'])} [{_signed(row['low'])}, {_signed(row['high'])}]"


def named(values: Mapping[str, object]) -> str:
    """Return names with their values, those of None left out."""
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; a bar in a text is no end of its cell."""
    escaped = [[text.replace("|", "\\|") for text in row] for row in rows]
    return str(tabulate(escaped, heads, "github", disable_numparse=True))


def screen_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a terminal, all but the first column at the right."""
    align = ("left", *("right",) * (len(heads) - 1))
    return str(tabulate(rows, heads, "simple", disable_numparse=True, colalign=align))


def parquet(frame: pd.DataFrame) -> bytes:
    """Return a frame as Parquet."""
    stream = BytesIO()
    write_table(pa.Table.from_pandas(frame, preserve_index=False), stream)
    return stream.getvalue()


def csv(frame: pd.DataFrame) -> bytes:
    """Return a frame as CSV; numbers are written so that they are read as they were."""
    return frame.to_csv(index=False, lineterminator="\n").encode() if len(frame.columns) else b""


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a frame's rows for JSON, with None for what is missing."""
    return [
        {str(name): None if _missing(value) else _plain(value) for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def _missing(value: object) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)  # noqa: PLR0124  NaN


def _plain(value: Any) -> Any:  # noqa: ANN401  a number of numpy's becomes one of Python's
    return value.item() if hasattr(value, "item") else value


ENVIRONMENT.filters.update(number=number, percent=percent, change=change, named=named)
