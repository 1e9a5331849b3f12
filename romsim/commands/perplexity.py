"""``romsim perplexity``."""

from __future__ import annotations

from pathlib import Path

import click

from romsim.commands.arguments import adapter_folders
from romsim.commands.output import emit_json, json_option, say

__all__ = ["command"]


@click.command("perplexity")
@click.argument("description", type=click.Path())
@click.option("--text", type=click.Path(), help="A UTF-8 file [default: the start of a novel].")
@click.option("--tokens", default=1024, show_default=True, help="Tokens scored, at most.")
@click.option("--window", default=512, show_default=True, help="Tokens of one window.")
@click.option("--model", help="File, folder or name [default: the built-in model of that name].")
@click.option("--adapter", help="Resident LoRA adapter to use, on both sides.")
@click.option(
    "--lora", multiple=True, metavar="[NAME=]FOLDER", help="Folder of that adapter, read anew."
)
@json_option
def command(
    description: str,
    text: str | None,
    tokens: int,
    window: int,
    model: str | None,
    adapter: str | None,
    lora: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure what the chip's arithmetic and formats cost, beside the float decoder."""
    import romsim

    quality = romsim.perplexity(
        description,
        text=None if text is None else Path(text),
        n_tokens=tokens,
        window=window,
        model=model,
        adapter=adapter,
        loras=adapter_folders(lora),
    )
    if as_json:
        emit_json(quality.to_json())
    else:
        say(quality.sentence())
