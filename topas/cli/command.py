"""What a package says of each of its commands; importing it costs nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand of ``topas``.

    Parameters
    ----------
    module : where it lives. It gives ``add_arguments(parser)`` and ``run(args)``, which returns the exit
        status, and is imported when the command is given, not before.
    help : the line of ``topas --help``.
    extra : extras of the distribution that bring the libraries which it needs beyond those of ``topas``.
    """

    module: str
    help: str
    extra: str = ""
