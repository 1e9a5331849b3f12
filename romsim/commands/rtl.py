"""``romsim rtl``."""

from __future__ import annotations

import click

from romsim.commands.output import Progress, emit_json, json_option, say

__all__ = ["command"]


@click.command("rtl")
@click.argument("description", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="Folder to write.")
@click.option(
    "--images",
    default="hex",
    show_default=True,
    help="ROM images as hex for $readmemh, or bin for a simulation run with +rombin.",
)
@click.option(
    "--logic-rom", is_flag=True, help="Weights as logic, a module a bank, instead of mask ROMs."
)
@click.option(
    "--style", help="With --logic-rom: plain, shared2, shared3 or patterns [default: patterns]."
)
@click.option("--jobs", default=1, show_default=True, help="Banks built at once.")
@click.option("--lint", "with_lint", is_flag=True, help="Run verilator --lint-only -Wall on it.")
@json_option
def command(
    description: str,
    output: str,
    images: str,
    logic_rom: bool,
    style: str | None,
    jobs: int,
    with_lint: bool,
    as_json: bool,
) -> None:
    """Write the chip of a description: Verilog, ROM images, file list, port table."""
    from romsim_compiler.description import Description
    from romsim_models.errors import SpecError
    from romsim_rtl.emit import TOP_MODULE, emit_rtl
    from romsim_rtl.logic_rom_verilog import LogicRomOptions
    from romsim_rtl.toolchain import ToolError, lint

    if style is not None and not logic_rom:
        raise SpecError(
            "Option --style must come with --logic-rom, not alone; add --logic-rom or remove it"
        )
    progress = Progress()
    done = emit_rtl(
        Description.load(description),
        output,
        image_format=images,
        logic_rom=LogicRomOptions(style=style or "patterns", jobs=jobs) if logic_rom else None,
        progress=lambda fraction: progress("synthesising", fraction),
    )
    progress.clear()
    values = done.to_json()
    if with_lint:
        report = lint([done.folder / name for name in done.verilog], TOP_MODULE)
        values["lint_messages"] = len(report.messages)
        values["lint_waivers"] = report.n_waivers
        if report.messages:
            first = report.messages[0]
            raise ToolError(
                f"Lint of {output} must have nothing to say, not {len(report.messages)} messages; "
                f"the first is {first.text!r}"
            )
    if as_json:
        emit_json(values)
        return
    say(
        f"{output}: {len(done.verilog)} Verilog files of {done.n_verilog_bytes / 1e6:.2f} MB, "
        f"{len(done.images)} ROM images, filelist.f, ports.json"
    )
    if with_lint:
        say(f"lint: clean, {values['lint_waivers']} waivers")
