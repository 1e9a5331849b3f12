"""``romsim verify``."""

from __future__ import annotations

import sys

import click

from romsim.commands.arguments import adapter_folders, token_ids
from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command"]


@click.command("verify")
@click.argument("description", type=click.Path())
@click.option("--model", help="File, folder or name [default: the built-in model of that name].")
@click.option("--prompt", help="Text to continue [default: a fixed one].")
@click.option("--chat", help="A user's message, put into the model's chat template.")
@click.option("--tokens", help="Token ids, separated by commas.")
@click.option("--max-tokens", default=8, show_default=True, help="Tokens to decode.")
@click.option("--adapter", help="Resident LoRA adapter to use.")
@click.option(
    "--lora", multiple=True, metavar="[NAME=]FOLDER", help="Folder of that adapter, read anew."
)
@json_option
def command(
    description: str,
    model: str | None,
    prompt: str | None,
    chat: str | None,
    tokens: str | None,
    max_tokens: int,
    adapter: str | None,
    lora: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare the cycle model with the integer reference: every operator output, KV word, logit."""
    import romsim

    progress = Progress()
    report = romsim.verify(
        description,
        model=model,
        prompt=prompt,
        chat=chat,
        tokens=token_ids("--tokens", tokens),
        n_new=max_tokens,
        adapter=adapter,
        loras=adapter_folders(lora),
        progress=lambda done, total: progress("comparing", done / total),
    )
    progress.clear()
    if as_json:
        emit_json(report.to_json())
    else:
        verdict = "equal" if report.passed else "DIFFERENT"
        say(
            f"{verdict}: {report.n_values:,} values of {report.n_tokens} tokens compared, "
            f"{report.n_mismatches} mismatches, {report.saturations} saturations"
        )
        if report.first is not None:
            say(f"  first: {report.first.sentence()}")
            say(f"  tainted after it: {', '.join(report.tainted[1:11]) or 'nothing'}")
    if not report.passed:
        sys.exit(1)
