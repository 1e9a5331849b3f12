"""``romsim published``."""

from __future__ import annotations

import sys

import click

from romsim.commands.output import emit_json, json_option, say

__all__ = ["command"]


@click.command("published")
@json_option
def command(as_json: bool) -> None:
    """Print published chips beside ours: theirs, ours, the difference, and what was fitted.

    Ends with 1 if a row is outside its tolerance.
    """
    from romsim.published import published_rows, render_markdown, to_json

    if as_json:
        emit_json(to_json())
    else:
        say(render_markdown().rstrip())
    if any(row.within is False for row in published_rows()):
        sys.exit(1)
