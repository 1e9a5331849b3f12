"""``romsim kv-eval``."""

from __future__ import annotations

from pathlib import Path

import click

from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command"]


@click.command("kv-eval")
@click.argument("description", type=click.Path())
@click.option("--text", type=click.Path(), help="A UTF-8 file [default: the start of a novel].")
@click.option("--tokens", default=4096, show_default=True, help="Tokens read, at most.")
@click.option("--window", default=1024, show_default=True, help="Tokens of one window.")
@click.option(
    "--skip", default=256, show_default=True, help="Tokens of a window that are not scored."
)
@click.option(
    "--configs",
    multiple=True,
    metavar="PRESET|KEY=VALUE,...",
    help="A KV cache as for compile --kv; repeatable [default: ten of them].",
)
@click.option("--csv", "csv_path", type=click.Path(), help="Write the rows as CSV, too.")
@click.option(
    "--keep",
    type=click.Path(),
    help="Folder for finished windows: a run that was stopped goes on with them.",
)
@click.option("--model", help="File, folder or name [default: the built-in model of that name].")
@json_option
def command(
    description: str,
    text: str | None,
    tokens: int,
    window: int,
    skip: int,
    configs: tuple[str, ...],
    csv_path: str | None,
    keep: str | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Measure quality and room of KV caches, with the chip's arithmetic on the model of a chip."""
    import romsim
    from romsim.kv_quality import DEFAULT_CONFIGS
    from romsim.whole_file import write_text

    progress = Progress()
    done = romsim.kv_eval(
        description,
        text=None if text is None else Path(text),
        n_tokens=tokens,
        window=window,
        skip=skip,
        configs=configs or DEFAULT_CONFIGS,
        model=model,
        keep=None if keep is None else Path(keep),
        progress=progress,
        done=lambda row: progress.tell(row.sentence()),
    )
    progress.clear()
    if csv_path is not None:
        write_text(Path(csv_path), done.to_csv(), what="Table")
    if as_json:
        emit_json(done.to_json())
        return
    for line in done.lines():
        say(line)
