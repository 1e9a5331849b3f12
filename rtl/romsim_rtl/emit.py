# amaranth: UnusedElaboratable=no
"""The chip's Verilog, ROM images, file list and port table, as ``romsim rtl`` writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from romsim_compiler.description import Description
from romsim_compiler.store import replace_folder
from romsim_models.errors import SpecError
from romsim_rtl.gated_verilog import convert, lowered
from romsim_rtl.logic_rom import check_style
from romsim_rtl.logic_rom_verilog import LogicRomOptions, logic_rom_texts, write_other_images
from romsim_rtl.lside import TILE_MODULE
from romsim_rtl.ltile import TILE_PARAMETER
from romsim_rtl.memory import VerilogPlatform
from romsim_rtl.port_table import port_table
from romsim_rtl.rom_files import check_image_format, write_images
from romsim_rtl.toolchain import ToolError
from romsim_rtl.top import Top

__all__ = ["MACROS", "ROM_FOLDER", "TOP_MODULE", "Emission", "emit_rtl", "verilog_texts"]

TOP_MODULE = "romsim_top"
"""Name of the chip's Verilog module."""

ROM_FOLDER = "rom"
"""Folder of the images, for ``+romdir=``."""

MACROS = ("romsim_clock_gate.v", "romsim_constant.v", "romsim_rom.v", "romsim_sram.v")
"""Hand-written behavioural models, which a foundry's macros replace."""

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What was written.

    Parameters
    ----------
    folder
        Where.
    verilog
        Names of the Verilog files, in the order of the file list.
    images
        Names of the ROM images, in ``rom/``.
    n_verilog_bytes
        Size of all Verilog: of the model's weights it does not depend on one, unless they are
        logic.
    """

    folder: Path
    verilog: tuple[str, ...]
    images: tuple[str, ...]
    n_verilog_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready values."""
        return {
            "folder": str(self.folder),
            "verilog": list(self.verilog),
            "n_images": len(self.images),
            "n_verilog_bytes": self.n_verilog_bytes,
        }


def verilog_texts(top: Any, name: str = TOP_MODULE) -> dict[str, str]:
    """Return the Verilog of a component and all that it holds, one module a file, macros first.

    Parameters
    ----------
    top
        The chip, or a unit of it.
    name
        Its module's name.

    Raises
    ------
    ToolError
        If yosys fails, or a tile's ROMs do not take its number.
    """
    platform = VerilogPlatform()
    pending: dict[str, Any] = {name: top}
    sources: dict[str, str] = {}
    unread: dict[str, dict[str, str]] = {}
    while pending:
        for module, component in sorted(pending.items()):
            sources[module] = convert(component, module, platform)
            if hasattr(component, "unread_bits"):
                unread[module] = component.unread_bits()
        pending = {n: c for n, c in platform.shared.items() if n not in sources}
    texts = {name: _macro(name) for name in MACROS}
    for module, text in lowered(sources, unread=unread).items():
        texts[f"{module}.v"] = _with_parameter(text, module) if module == TILE_MODULE else text
    return texts


def _macro(name: str) -> str:
    return files("romsim_rtl").joinpath("verilog", name).read_text(encoding="utf-8")


def _with_parameter(text: str, module: str) -> str:
    """Make the tile's number a parameter: Amaranth's modules have none."""
    head, place = f"module {module}(", f'"{TILE_PARAMETER}"'
    if text.count(head) != 1 or place not in text:
        raise ToolError(
            f"Verilog of {module!r} must have one module with ROMs that take its number, "
            f"not {text.count(head)} modules and {text.count(place)} ROMs"
        )
    parameter = f"module {module} #(parameter integer TILE = 0) ("
    return text.replace(head, parameter).replace(place, "TILE")


def emit_rtl(
    description: Description,
    folder: str | Path,
    *,
    image_format: str = "hex",
    logic_rom: LogicRomOptions | None = None,
    progress: Callable[[float], None] | None = None,
) -> Emission:
    """Write a chip: ``*.v``, ``filelist.f``, ``ports.json``, ``rom/*`` and a manifest.

    Everything appears at once or not at all; the same description gives the same bytes.

    Parameters
    ----------
    folder
        A new folder, or one that was written so before.
    image_format
        ``hex`` for ``$readmemh``, or ``bin`` for a simulation run with ``+rombin``.
    logic_rom
        Write the weights as logic, one module for each bank, instead of mask ROMs with images.
    progress
        Called with the finished fraction while banks are synthesised.

    Raises
    ------
    SpecError
        If the description has no images, or the RTL has no hardware for it, or banks cannot be
        built so.
    DescriptionError
        If the folder cannot be written or holds something else.
    ToolError
        If yosys or ABC fails.
    """
    if not description.has_images:
        raise SpecError(
            f"{description.path} must have ROM images to be written as RTL, but it was compiled "
            f"from a shape without weights; compile a model with weights"
        )
    check_image_format(image_format)
    if logic_rom is not None:
        check_style(logic_rom.style)
    with replace_folder(Path(folder)) as out:
        top = Top(description=description)
        texts = verilog_texts(top)
        if logic_rom is not None:
            texts = logic_rom_texts(texts, description, logic_rom, progress=progress)
        for name, text in texts.items():
            out.text(name, text)
        out.text("filelist.f", "".join(f"{name}\n" for name in texts))
        out.json("ports.json", {"top": TOP_MODULE, "ports": port_table(top)})
        (out.path / ROM_FOLDER).mkdir()
        write = write_images if logic_rom is None else write_other_images
        images = write(description, out.path / ROM_FOLDER, image_format=image_format)
        out.seal(
            {
                "schema_version": SCHEMA_VERSION,
                "kind": "rtl",
                "name": description.name,
                "target": description.target.name,
                "top": TOP_MODULE,
            }
        )
    return Emission(
        folder=Path(folder),
        verilog=tuple(texts),
        images=tuple(images),
        n_verilog_bytes=sum(len(text.encode()) for text in texts.values()),
    )
