"""``romsim doctor``."""

from __future__ import annotations

import sys

import click

from romsim.commands.output import emit_json, json_option, say

__all__ = ["command"]


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Say which tools are here, which will be used, and what to install."""
    from romsim.doctor import doctor

    report = doctor()
    if as_json:
        emit_json(report.to_json())
    else:
        say(report.to_text())
    if not report.is_ok:
        sys.exit(2)
