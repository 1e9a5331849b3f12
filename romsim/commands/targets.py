"""``romsim targets``."""

from __future__ import annotations

import click

from romsim.commands.output import emit_json, json_option, say

__all__ = ["command"]


@click.command("targets")
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the built-in targets, or print NAME (or a TOML file) as TOML."""
    from romsim_compiler.target_file import list_targets, load_target, write_target

    if name is not None:
        target = load_target(name)
        if as_json:
            emit_json(target.to_json())
        else:
            say(write_target(target).rstrip())
        return
    targets = [load_target(n) for n in list_targets()]
    if as_json:
        emit_json({t.name: t.to_json() for t in targets})
        return
    for t in targets:
        runs = "executable" if t.executable else "timing, capacity and area only"
        say(f"{t.name:14} {t.array.n_lanes:>9} lanes  {t.summary} ({runs})")
