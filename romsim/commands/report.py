"""``romsim report``."""

from __future__ import annotations

import json

import click

from romsim.commands.output import Progress, emit_json, json_option, say
from romsim_models.errors import SpecError

__all__ = ["command"]


@click.command("report")
@click.argument("descriptions", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="DIR|FILE",
    help="A .html, .json or .md file, or a folder for all of them with CSV, PNG and SVG.",
)
@click.option(
    "--context",
    type=int,
    metavar="N",
    help="Tokens at which single figures are taken [default: 1024, or what fits].",
)
@click.option(
    "--verify", multiple=True, metavar="FILE", help="What `romsim verify --json` printed."
)
@click.option(
    "--compare", multiple=True, metavar="FILE", help="What `romsim compare --json` printed."
)
@click.option(
    "--kv-eval", multiple=True, metavar="FILE", help="What `romsim kv-eval --json` printed."
)
@json_option
def command(
    descriptions: tuple[str, ...],
    output: str | None,
    context: int | None,
    verify: tuple[str, ...],
    compare: tuple[str, ...],
    kv_eval: tuple[str, ...],
    as_json: bool,
) -> None:
    """Report area, speed, energy and memory of DESCRIPTIONS, side by side if there are several."""
    import romsim
    from romsim.report.numbers import quantity, span
    from romsim.report.output import write_report

    if output is None and not as_json:
        raise SpecError("Report must have an output, not none; add -o report.html, or --json")
    progress = Progress()
    report = romsim.build_report(
        *descriptions,
        context=context,
        verify=verify,
        compare=compare,
        kv_eval=kv_eval,
        progress=progress,
    )
    files = () if output is None else write_report(report, output, progress=progress)
    progress.clear()
    if as_json:
        emit_json(json.loads(json.dumps(report.to_json())))
        return
    for chip in report.chips:
        say(chip.label)
        for key in ("tokens_per_s", "ttft_s", "area_mm2", "token_j", "power_w"):
            figure = chip.figure(key)
            ends = (
                ""
                if figure.is_exact
                else span(figure.low, figure.high, figure.unit, like=figure.value)
            )
            value = quantity(figure.value, figure.unit)
            say(f"  {value:>16}  {figure.label}" + (f" ({ends})" if ends else ""))
    say(f"written: {output}" + (f" ({len(files)} files)" if len(files) > 1 else ""))
