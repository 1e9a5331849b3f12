"""``romsim rtl``."""

from __future__ import annotations

import click

from romsim.commands.output import emit_json, json_option, say

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
@click.option("--lint", "with_lint", is_flag=True, help="Run verilator --lint-only -Wall on it.")
@json_option
def command(description: str, output: str, images: str, with_lint: bool, as_json: bool) -> None:
    """Write the chip of a description: Verilog, ROM images, file list, port table."""
    from romsim_compiler.description import Description
    from romsim_rtl.emit import TOP_MODULE, emit_rtl
    from romsim_rtl.toolchain import ToolError, lint

    done = emit_rtl(Description.load(description), output, image_format=images)
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
