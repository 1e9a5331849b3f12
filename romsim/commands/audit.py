"""``romsim audit``."""

from __future__ import annotations

import sys

import click

from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command"]


@click.command("audit")
@click.argument("description", type=click.Path())
@click.option("--model", help="File, folder or name [default: the built-in model of that name].")
@json_option
def command(description: str, model: str | None, as_json: bool) -> None:
    """Read every code, scale, minimum and gain back from the ROM and compare with the model."""
    import romsim

    progress = Progress()
    report = romsim.audit(description, model=model, progress=progress)
    progress.clear()
    if as_json:
        emit_json(report.to_json())
    else:
        say(
            f"{report.n_codes} codes, {report.n_scales} scales, {report.n_minima} minima, "
            f"{report.n_gains} gains compared: {report.n_differences} differences"
        )
        for difference in report.differences:
            say(f"  {difference}")
    if report.n_differences or not report.n_codes:
        sys.exit(1)
