"""``romsim kv-check``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from romsim.commands.output import emit_json, json_option, say

if TYPE_CHECKING:
    from romsim.kv_check import KvReport

__all__ = ["command"]


@click.command("kv-check")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--write", type=click.Path(), metavar="FILE", help="Write the page as Markdown.")
@json_option
def command(ids: tuple[str, ...], write: str | None, as_json: bool) -> None:
    """Recompute what articles say about KV caches: the claim, the verdict, what is right.

    ID is an erratum such as E29; all of them if none is named.
    """
    from romsim.kv_check import kv_report
    from romsim_models.errors import SpecError

    if ids and write is not None:
        raise SpecError(f"--write must be used with all errata, not with {' '.join(ids)}")
    report = kv_report(ids)
    if write is not None:
        from romsim.kv_page import render_markdown
        from romsim.whole_file import write_text

        write_text(Path(write), render_markdown(report), what="Page")
    if as_json:
        emit_json(report.to_json())
    elif write is not None:
        say(f"{write}: {len(report.errata)} errata, {report.n_figures} figures")
    else:
        _print(report)
    if report.disagreements():
        sys.exit(1)


def _print(report: KvReport) -> None:
    for erratum in report.errata:
        say(f"{erratum.id}  {erratum.verdict:<11} {erratum.claim}")
        say(f"{'':17}{erratum.correct}")
        for figure in erratum.figures:
            mark = "stated:" if figure.agrees else "DIFFERENT, stated:"
            say(
                f"{'':17}  {figure.name}: {figure.formula} = {figure.value:.6g} {figure.unit} "
                f"({mark} {figure.stated:g})"
            )
    if report.models:
        say("KV bytes of a token, FP16: 2 x layers x KV heads x head_dim x 2")
    for model in report.models:
        mark = "" if model.agrees else f"  DIFFERENT: {model.bytes_per_token:,} stated"
        sizes = f"2 x {model.layers} x {model.kv_heads} x {model.head_dim} x 2"
        say(f"  {model.name:<50} {sizes:>20} = {model.recomputed:>12,.0f} B{mark}")
    different = report.disagreements()
    for sentence in different:
        say(f"DIFFERENT: {sentence}")
    say(
        f"{len(report.errata)} errata, {report.n_figures} figures recomputed, {len(different)} "
        f"different"
    )
