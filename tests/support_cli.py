"""Running a command in this process."""

from __future__ import annotations

import pytest

from topas.cli import main


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line with which a command is refused, be it by argparse or by the command itself."""
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main(words))
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()[-1]
