"""``romsim logic-rom``."""

from __future__ import annotations

import click

from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command"]


@click.command("logic-rom")
@click.argument("description", type=click.Path())
@click.option(
    "--style",
    default="patterns",
    show_default=True,
    help="How banks are built: plain, shared2, shared3 or patterns.",
)
@click.option(
    "--sample", default=4, show_default=True, help="Banks to build of each matrix; 0 for all."
)
@click.option("--bank-words", default=1024, show_default=True, help="Words of a bank.")
@click.option("--encodings", "with_encodings", is_flag=True, help="Other encodings as well.")
@click.option("--jobs", default=1, show_default=True, help="Banks built at once.")
@json_option
def command(
    description: str,
    style: str,
    sample: int,
    bank_words: int,
    with_encodings: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """Build banks of every matrix as standard cells and add up the ROM of the model."""
    import romsim

    progress = Progress()
    report = romsim.logic_rom(
        description,
        style=style,
        sample=sample,
        bank_words=bank_words,
        with_encodings=with_encodings,
        jobs=jobs,
        progress=lambda fraction: progress("synthesising", fraction),
    )
    progress.clear()
    if as_json:
        emit_json(report.to_json())
        return
    say(
        f"{'matrix':<12}{'weights':>12}{'zero w.':>9}{'zero bits':>11}{'banks':>7}{'built':>7}"
        f"{'um2/weight':>12}{'um2':>12}{'+-95%':>9}"
    )
    for m in report.matrices:
        zero = "-" if m.zero_weights is None else f"{m.zero_weights:.1%}"
        half = "?" if m.area.half_width is None else f"{m.area.half_width:.1f}"
        say(
            f"{m.name:<12}{m.n_weights:>12,}{zero:>9}{m.zero_bits:>11.1%}{m.n_banks:>7}"
            f"{m.n_sampled:>7}{m.area.total / m.n_weights:>12.5f}{m.area.total:>12,.1f}{half:>9}"
        )
    area, placed = report.area, report.placed_mm2
    half = "unknown" if area.half_width is None else f"{area.half_width:,.0f} um2 (95 %)"
    zero = "" if report.zero_weights is None else f"{report.zero_weights:.1%} zero weights, "
    say(f"total: {report.n_weights:,} weights, {zero}{report.zero_bits:.1%} zero bits")
    say(
        f"  cells     {area.total:,.0f} um2 +- {half}, {report.mib_per_mm2:.2f} MiB/mm2, "
        f"and {report.joining_um2:,.0f} um2 to join banks"
    )
    say(
        f"  placed    {placed.mid:.4f} mm2 at utilisation {report.utilisation.mid:g} "
        f"({placed.low:.4f} to {placed.high:.4f})"
    )
    say(
        f"  baseline  random bits, same banks and style: {report.dense_um2:,.0f} um2, "
        f"{report.dense_um2 / area.total:.2f} times as much"
    )
    period = report.period_ps
    say(
        f"  clock     {report.depth_fo4:.1f} FO4 from address to word, {period.mid:.0f} ps "
        f"({period.low:.0f} to {period.high:.0f}): {report.clock_mhz:g} MHz "
        f"{'is' if report.meets_clock else 'IS NOT'} reached"
    )
    if report.fit is not None:
        fit = report.fit
        say(
            f"  fit       um2/bit = {fit.constant:.5f} {fit.zero_bits:+.5f} x share of zero bits "
            f"{fit.doubling:+.6f} x log2(words), R2 {fit.r2:.3f}, {fit.n_banks} banks"
        )
    for e in report.encodings:
        say(
            f"  encoding  {e.encoding:<17}{e.bits_per_weight:.1f} b/weight, {e.zero_bits:.1%} zero "
            f"bits, {e.area.total:,.0f} um2 + {e.decoder_um2:,.0f} of decoders = "
            f"{e.um2_per_weight:.5f} um2/weight"
        )
