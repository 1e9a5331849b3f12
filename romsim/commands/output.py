"""What commands share: JSON on standard output, progress on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

__all__ = ["Progress", "emit_json", "json_option", "say"]

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."
)


def emit_json(values: Any) -> None:
    """Print one JSON object on standard output."""
    click.echo(json.dumps(values, indent=1, sort_keys=True, allow_nan=False))


def say(text: str = "") -> None:
    """Print one line for people on standard output."""
    click.echo(text)


class Progress:
    """A line on standard error with a fraction and the time left; silent when that is no terminal.

    Parameters
    ----------
    clock
        Seconds; a parameter so that tests need not wait.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._shown = 0.0
        self._live = sys.stderr.isatty()

    def __call__(self, stage: str, fraction: float) -> None:
        """Show a stage and the finished fraction."""
        now = self._clock()
        if not self._live or (now - self._shown < 0.1 and fraction < 1):
            return
        self._shown = now
        spent = now - self._start
        left = f", {spent * (1 - fraction) / fraction:.0f} s left" if fraction > 0.02 else ""
        sys.stderr.write(f"\r\x1b[K{stage}: {100 * fraction:.0f} %{left}")
        if fraction >= 1:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()

    def tell(self, text: str) -> None:
        """Write a line that stays, also where standard error is no terminal."""
        self.clear()
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
