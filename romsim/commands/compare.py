"""``romsim compare``."""

from __future__ import annotations

from pathlib import Path

import click

from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command"]


@click.command("compare")
@click.argument("description", type=click.Path())
@click.option("--context", type=int, help="Tokens that attention reads [default: 1024, or fewer].")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="A GPU [default: all known].")
@click.option("--fraction", type=float, help="Share of bandwidth reached, instead of the usual.")
@click.option("--device", help="Measure the float decoder in PyTorch here: cpu or cuda.")
@click.option("--batch", "batches", multiple=True, type=int, help="Batch to measure [default: 1].")
@click.option("--steps", type=int, help="Steps of a measured turn [default: 16].")
@click.option("--turns", type=int, help="Measured turns, of which the median counts [default: 5].")
@click.option("--model", help="File, folder or name [default: the built-in model of that name].")
@click.option("--save", type=click.Path(), metavar="FILE", help="Keep what was measured, as JSON.")
@click.option(
    "--measured", multiple=True, type=click.Path(), metavar="FILE", help="Show an earlier record."
)
@click.option("--cost", type=click.Path(), metavar="FILE", help="Inputs of the cost calculation.")
@click.option(
    "--write-cost", type=click.Path(), metavar="FILE", help="Write those inputs, to be edited."
)
@click.option("--csv", "table", type=click.Path(), metavar="FILE", help="Write the rates as CSV.")
@json_option
def command(
    description: str,
    context: int | None,
    gpus: tuple[str, ...],
    fraction: float | None,
    device: str | None,
    batches: tuple[int, ...],
    steps: int | None,
    turns: int | None,
    model: str | None,
    save: str | None,
    measured: tuple[str, ...],
    cost: str | None,
    write_cost: str | None,
    table: str | None,
    as_json: bool,
) -> None:
    """Compare the chip with decode of the same model on GPUs: rates, joules, area, cost."""
    import romsim
    from romsim.compare_tables import comparison_lines, rows_csv
    from romsim.whole_file import write_text
    from romsim_models.errors import SpecError

    if device is None:
        only = {"--batch": batches, "--steps": steps, "--turns": turns, "--model": model}
        for option, value in {**only, "--save": save}.items():
            if value not in (None, ()):
                raise SpecError(f"{option} must be used with --device, not without; add --device")
    progress = Progress()
    comparison = romsim.compare(
        description,
        context=context,
        gpus=gpus,
        fraction=fraction,
        device=device,
        batches=batches or (1,),
        n_steps=16 if steps is None else steps,
        n_turns=5 if turns is None else turns,
        model=model,
        save=None if save is None else Path(save),
        measured=[Path(one) for one in measured],
        cost=None if cost is None else Path(cost),
        progress=progress,
    )
    progress.clear()
    if write_cost is not None:
        from romsim.cost_inputs import cost_template

        text = cost_template() if cost is None else Path(cost).read_text(encoding="utf-8")
        write_text(Path(write_cost), text, what="Cost file")
    if table is not None:
        write_text(Path(table), rows_csv(comparison), what="Table")
    if as_json:
        emit_json(comparison.to_json())
        return
    for line in comparison_lines(comparison):
        say(line)
