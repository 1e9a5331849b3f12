"""``romsim synth``."""

from __future__ import annotations

import click

from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command"]


@click.command("synth")
@click.argument("description", type=click.Path())
@click.option(
    "--mapping",
    default="area",
    show_default=True,
    help="What cells are mapped for: area, or speed (least delay).",
)
@click.option(
    "--module", "modules", multiple=True, help="A module, with what it holds [default: all]."
)
@click.option("--jobs", default=1, show_default=True, help="Modules synthesised at once.")
@json_option
def command(
    description: str, mapping: str, modules: tuple[str, ...], jobs: int, as_json: bool
) -> None:
    """Synthesise the chip's own RTL: area of every module, and the clock it can reach."""
    import romsim

    progress = Progress()
    report = romsim.synth(
        description,
        mapping=mapping,
        modules=modules,
        jobs=jobs,
        progress=lambda fraction: progress("synthesising", fraction),
    )
    progress.clear()
    if as_json:
        emit_json(report.to_json())
        return
    say(
        f"{'module':<22}{'count':>6}{'cells':>10}{'flops':>8}{'um2 of one':>12}{'um2 of all':>13}"
        f"{'gates':>7}{'FO4':>7}{'ps':>7}{'MHz':>7}  longest path"
    )
    for row in report.modules:
        head = (
            f"{row.module:<22}{row.count:>6,}{row.n_cells:>10,}{row.n_flops:>8,}"
            f"{row.cell_um2:>12,.0f}{row.cell_um2 * row.count:>13,.0f}"
        )
        if row.period_ps is None:
            say(f"{head}{'-':>7}{'-':>7}{'-':>7}{'-':>7}  no path ends in it")
            continue
        start = "" if row.start == "flop" else f"{row.start} read, "
        period = row.period_ps.mid
        say(
            f"{head}{row.gates:>7}{row.depth_fo4:>7.1f}{period:>7.0f}{1e6 / period:>7.0f}  "
            f"{start}{row.first or '?'} -> {row.last or '?'}"
        )
    for name in report.left_out:
        say(f"{name:<22} left out")
    say()
    say(f"{'unit':<14}{'placed um2':>13}{'estimate from parts':>21}{'ratio':>8}")
    for unit in report.units:
        ratio = "-" if unit.ratio is None else f"{unit.ratio:.2f}"
        say(f"{unit.unit:<14}{unit.placed_um2.mid:>13,.0f}{unit.estimated_um2:>21,.0f}{ratio:>8}")
    placed = report.placed_um2
    say(
        f"cells {report.cell_um2:,.0f} um2 (mapped for {report.mapping}), placed "
        f"{placed.mid:,.0f} um2 ({placed.low:,.0f} to {placed.high:,.0f}); memories apart"
    )
    say(f"clock: {report.verdict()}")
