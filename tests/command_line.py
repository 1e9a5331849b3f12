"""Running the command line inside the test's own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from romsim.cli import main

__all__ = ["Outcome", "run_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON value on standard output; fails if there is anything else."""
        return json.loads(self.out)

    def sentence(self) -> str:
        """The one line of an error, which must be all that was printed."""
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return lines[0]


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Run ``romsim`` with some arguments."""
    capsys.readouterr()
    code = 0
    try:
        main([str(a) for a in arguments])
    except SystemExit as end:
        code = 0 if end.code is None else int(end.code)
    captured = capsys.readouterr()
    return Outcome(code=code, out=captured.out, err=captured.err)
