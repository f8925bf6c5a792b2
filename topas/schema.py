"""Reading JSON that others wrote: strict, bounded, and with the field named when it is wrong."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from topas.errors import InputError

MAX_BYTES = 8 * 1024 * 1024
"""Longest line of a trace, and largest event, that is read."""

_INTERNAL = re.compile(r"\[key\]$|constrained-|list\[constrained-")
"""Parts of pydantic's paths that name no field: the alternatives of a union, the key of a mapping."""

MAX_SHOWN = 60
"""Longest piece of a wrong value that an error shows."""

Model = TypeVar("Model")

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
"""No unknown fields, no NaN or infinity: what a dataclass needs whose fields have the types below."""

MAX_COUNT = 1_000_000_000
"""Largest token count or other count: beyond it a number is a slip, and sums would leave 64 bits."""

MAX_S = 1e6
"""Longest single duration and largest single cost of an event: eleven days; keeps sums within 64 bits."""

Flag = Annotated[bool, Field(strict=True)]
Real = Annotated[float, Field(strict=True)]
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[Whole, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[Real, Field(ge=0, le=MAX_S)]
Name = Annotated[str, Field(strict=True, min_length=1, max_length=200)]


SomeTokens = Annotated[Whole, Field(ge=1, le=MAX_COUNT)]


class Strict(BaseModel):
    """A part of a file: no conversions, no unknown fields, no NaN or infinity."""

    model_config = STRICT | ConfigDict(strict=True)


class AgentRow(Strict):
    """An agent: the length of its static prefix."""

    prefix_tokens: Count


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InputError(f"the key {key!r} stands twice in one object")
            seen.add(key)
    return found


def parse_json(
    data: bytes | str,
    *,
    source: str | None = None,
    line: int | None = None,
    max_bytes: int | None = MAX_BYTES,
) -> Any:  # noqa: ANN401  any JSON value
    """Parse one JSON document; ``max_bytes`` of None reads one of any length.

    Raises
    ------
    InputError
        if it is too long, not UTF-8, not JSON, or has a key twice. NaN and infinity, which JSON does not
        know, pass here: the schema refuses them with their field named.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise InputError(f"expected at most {max_bytes} bytes, found {len(data)}", source=source, line=line)
    try:
        return json.loads(data, object_pairs_hook=_unique)
    except InputError as error:
        raise error.at(source=source, line=line) from None
    except UnicodeDecodeError:
        raise InputError("expected UTF-8 text", source=source, line=line) from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno} column {error.colno}" if line is None else f"column {error.colno}"
        raise InputError(
            f"expected JSON: {error.msg.removesuffix(' at')} at {at}", source=source, line=line
        ) from None
    except RecursionError:
        raise InputError("expected JSON nested less deeply", source=source, line=line) from None
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"expected JSON: {error}", source=source, line=line) from None


def validate(
    model: type[Model],
    value: Any,  # noqa: ANN401  any JSON value
    *,
    source: str | None = None,
    line: int | None = None,
) -> Model:
    """Check a JSON value against a schema: a pydantic model, or a dataclass with annotated fields.

    Raises
    ------
    InputError
        naming the first wrong field and what was expected there.
    """
    try:
        return cast("Model", _adapter(model).validate_python(value))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"] if not _INTERNAL.match(str(part))) or None
        unknown = first["type"] in ("extra_forbidden", "unexpected_keyword_argument")
        expected = "extra inputs are not permitted" if unknown else first["msg"][0].lower() + first["msg"][1:]
        if not unknown and first["type"] != "missing":
            shown = repr(first.get("input"))
            expected += f", found {shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + '...'}"
        raise InputError(expected, source=source, line=line, field=field) from None


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:  # noqa: ANN401  a model
    return TypeAdapter(model)
