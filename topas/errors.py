"""Errors that a user can act on.

Every refusal of bad input is one line that names the place and what was expected; the command line
prints it and exits with code 2.
"""

from __future__ import annotations


class InputError(ValueError):
    """Input that cannot be used: where it stands and what was expected there.

    Parameters
    ----------
    expected : what should have been there, in words.
    source : the file (or other origin), if known.
    line : 1-based line in the source, if the format has lines.
    field : dotted path of the offending field, for example ``tasks.t0.arrival_s``.
    """

    def __init__(
        self,
        expected: str,
        *,
        source: str | None = None,
        line: int | None = None,
        field: str | None = None,
    ) -> None:
        self.expected = expected
        self.source = source
        self.line = line
        self.field = field
        super().__init__(expected)

    def at(self, *, source: str | None = None, line: int | None = None) -> InputError:
        """Return the same error with a place filled in where it is still unknown."""
        return InputError(
            self.expected,
            source=self.source or source,
            line=self.line if self.line is not None else line,
            field=self.field,
        )

    def __str__(self) -> str:
        """One line: ``file:line: field: expected``."""
        place = self.source or ""
        if self.line is not None:
            place += f":{self.line}" if place else f"line {self.line}"
        parts = [part for part in (place, self.field, self.expected) if part]
        return " ".join(": ".join(parts).split())


class SimulationError(RuntimeError):
    """The simulator broke one of its invariants, or made no progress: a fault of ours, not of the input."""
