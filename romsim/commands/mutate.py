"""``romsim mutate``."""

from __future__ import annotations

import sys

import click

from romsim.commands.arguments import integers_option
from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command"]


@click.command("mutate")
@click.argument("description", type=click.Path())
@click.option("--count", default=20, show_default=True, help="Faults of each kind.")
@click.option("--kinds", help="Kinds of faults, separated by commas [default: all].")
@click.option("--seed", default=1, show_default=True, help="Of the choice of faults.")
@integers_option("--token-ids", "Token ids of the prompt, separated by commas [default: five].")
@click.option("--max-tokens", default=3, show_default=True, help="Tokens to decode.")
@click.option("--opt", default="-O1", show_default=True, help="Optimisation of the simulation.")
@json_option
def command(
    description: str,
    count: int,
    kinds: str | None,
    seed: int,
    token_ids: list[int] | None,
    max_tokens: int,
    opt: str,
    as_json: bool,
) -> None:
    """Inject faults into the ROM images that the RTL reads; say how many verification finds."""
    from romsim.image_faults import FAULT_KINDS
    from romsim.mutate import mutate
    from romsim_rtl.driver_build import BuildOptions

    progress = Progress()
    more = {} if token_ids is None else {"tokens": token_ids}
    report = mutate(
        description,
        n_new=max_tokens,
        count=count,
        seed=seed,
        kinds=FAULT_KINDS if kinds is None else tuple(kinds.split(",")),
        options=BuildOptions(opt=opt),
        progress=progress,
        **more,
    )
    progress.clear()
    if as_json:
        emit_json(report.to_json())
    else:
        say(report.to_text())
    if not report.passed:
        sys.exit(1)
