"""``romsim verify``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from romsim.commands.arguments import adapter_folders, integers_option
from romsim.commands.output import Progress, emit_json, json_option, say
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim.comparison import ValueReport
    from romsim.verification import RtlPart, Waves
    from romsim_rtl.driver_build import BuildOptions

__all__ = ["command"]

_BEFORE, _AFTER = 40, 8  # cycles of a waveform around a difference


@click.command("verify")
@click.argument("description", type=click.Path())
@click.option("--model", help="File, folder or name [default: the built-in model of that name].")
@click.option("--prompt", help="Text to continue [default: a fixed one].")
@click.option("--chat", help="A user's message, put into the model's chat template.")
@integers_option("--token-ids", "The prompt as token ids, separated by commas.")
@click.option("--tokens", default=8, show_default=True, help="Tokens to decode.")
@click.option(
    "--level",
    help="chip: whole programs; layer: one layer of each shape; unit: instructions one by one; "
    "values: no RTL [default: chip where there is RTL for it, else values].",
)
@click.option("--adapter", help="Resident LoRA adapter to use.")
@click.option(
    "--lora", multiple=True, metavar="[NAME=]FOLDER", help="Folder of that adapter, read anew."
)
@click.option("--waves", help="Write waveforms, fst or vcd.")
@click.option("--from", "first", type=int, help="First cycle of the waveforms.")
@click.option("--to", "last", type=int, help="Last cycle of the waveforms.")
@click.option(
    "-o", "--out", default="waves", show_default=True, type=click.Path(), help="Their folder."
)
@click.option("--logic-rom", is_flag=True, help="RTL with its weights as logic, not mask ROMs.")
@click.option("--max-lanes", type=int, help="Lanes above which a chip is verified by parts.")
@json_option
def command(
    description: str,
    model: str | None,
    prompt: str | None,
    chat: str | None,
    token_ids: list[int] | None,
    tokens: int,
    level: str | None,
    adapter: str | None,
    lora: tuple[str, ...],
    waves: str | None,
    first: int | None,
    last: int | None,
    out: str,
    logic_rom: bool,
    max_lanes: int | None,
    as_json: bool,
) -> None:
    """Compare RTL, cycle model and integer reference: every value, SRAM write and cycle."""
    import romsim

    progress = Progress()
    report = romsim.verify(
        description,
        model=model,
        prompt=prompt,
        chat=chat,
        tokens=token_ids,
        n_new=tokens,
        level=level,
        adapter=adapter,
        loras=adapter_folders(lora),
        waves=_waves(waves, first, last, out),
        options=_logic(level) if logic_rom else None,
        max_lanes=max_lanes,
        progress=progress,
    )
    progress.clear()
    if as_json:
        emit_json(report.to_json())
    else:
        _say_reference(report.reference)
        again = ["romsim", "verify", description, "--tokens", str(tokens), "--level", report.level]
        given = {
            "--model": model, "--prompt": prompt, "--chat": chat,
            "--token-ids": None if token_ids is None else ",".join(map(str, token_ids)),
            "--adapter": adapter, "--max-lanes": max_lanes,
        }  # fmt: skip
        again += [w for key, value in given.items() if value is not None for w in (key, str(value))]
        again += ["--logic-rom"] * logic_rom
        again += [word for folder in lora for word in ("--lora", folder)]
        for part in report.rtl:
            _say_part(part, again)
        for note in report.notes:
            say(f"note: {note}")
        for what in report.not_covered:
            say(f"not covered: {what}")
    if not report.passed:
        sys.exit(1)


def _logic(level: str | None) -> BuildOptions:
    if level == "values":
        raise SpecError(
            "--logic-rom must be used where RTL is run, at level unit, layer or chip, not at "
            "'values'; leave it out or choose another level"
        )
    from romsim_rtl.driver_build import BuildOptions
    from romsim_rtl.logic_rom_verilog import LogicRomOptions

    return BuildOptions(opt="-O0", logic_rom=LogicRomOptions())


def _waves(form: str | None, first: int | None, last: int | None, out: str) -> Waves | None:
    if form is None:
        for option, value in (("--from", first), ("--to", last)):
            if value is not None:
                raise SpecError(f"{option} must be used with --waves, not alone; add --waves fst")
        return None
    if first is None or last is None:
        missing = "--from" if first is None else "--to"
        raise SpecError(
            f"--waves must be used with --from and --to, the first and the last cycle, "
            f"not without {missing}"
        )
    from romsim.verification import Waves

    return Waves(form=form, first=first, last=last, folder=Path(out))


def _say_reference(report: ValueReport) -> None:
    verdict = "equal" if report.passed else "DIFFERENT"
    say(
        f"{verdict}: {report.n_values:,} values of {report.n_tokens} tokens compared, "
        f"{report.n_mismatches} mismatches, {report.saturations} saturations"
    )
    if report.first is not None:
        say(f"  first: {report.first.sentence()}")
        say(f"  tainted after it: {', '.join(report.tainted[1:11]) or 'nothing'}")


def _say_part(part: RtlPart, again: list[str]) -> None:
    report = part.report
    verdict = "equal" if report.passed else "DIFFERENT"
    say(
        f"RTL, {part.name}: {verdict}: {report.n_writes:,} elements written, "
        f"{report.n_events:,} issues and {report.n_logits:,} logits of {report.n_tokens} tokens "
        f"in {report.n_cycles:,} cycles, {report.n_mismatches} mismatches; "
        f"{report.n_tokens / report.wall_s:.3g} tokens/s"
    )
    for counts, title in ((report.by_memory, "memory"), (report.by_operator, "operator")):
        line = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
        say(f"  by {title}: {line or 'nothing'}")
    if part.waves is not None:
        say(f"  waves: {part.waves}")
    if report.first is not None:
        say(f"  first: {report.first.sentence()}")
        say(f"  and {report.n_mismatches - 1} mismatches more")
        at = report.first.chip_cycle
        window = ["--waves", "fst", "--from", str(max(0, at - _BEFORE)), "--to", str(at + _AFTER)]
        say(f"  waves around it: {shlex.join([*again, *window])}")
