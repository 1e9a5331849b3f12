"""``romsim kv-capacity``."""

from __future__ import annotations

from pathlib import Path

import click

from romsim.commands.arguments import integers_option
from romsim.commands.output import emit_json, json_option, say

__all__ = ["command"]


@click.command("kv-capacity")
@click.argument("model", default="llama-3.2-3b")
@click.option(
    "--target", default="roma-7nm-int8", show_default=True, help="Built-in target or TOML file."
)
@click.option(
    "--configs",
    multiple=True,
    metavar="PRESET|KEY=VALUE,...",
    help="A KV cache as for compile --kv; repeatable [default: every preset].",
)
@integers_option("--contexts", "Tokens at which rates are given [default: 256,1024,4096,16384].")
@click.option("--rank", default=0, show_default=True, help="Rank of a resident adapter.")
@click.option("--weights", help="Format of all matrices [default: the target's own].")
@click.option("--csv", "csv_path", type=click.Path(), help="Write a line per rate as CSV, too.")
@json_option
def command(
    model: str,
    target: str,
    configs: tuple[str, ...],
    contexts: list[int] | None,
    rank: int,
    weights: str | None,
    csv_path: str | None,
    as_json: bool,
) -> None:
    """Print what every KV cache holds and how fast MODEL decodes with it on a chip."""
    from romsim.kv_room import CONTEXTS, kv_capacity
    from romsim.whole_file import write_text
    from romsim_compiler.kv import KV_PRESETS

    done = kv_capacity(
        model,
        target=target,
        configs=configs or tuple(KV_PRESETS),
        contexts=contexts or CONTEXTS,
        rank=rank,
        weights=weights,
    )
    if csv_path is not None:
        write_text(Path(csv_path), done.to_csv(), what="Table")
    if as_json:
        emit_json(done.to_json())
        return
    for line in done.lines():
        say(line)
