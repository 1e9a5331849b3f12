"""A chip whose weights are logic: one Verilog module for each bank, and cells made of them.

In the place of a cell's mask ROM, ``romsim_rom``, stands ``romsim_cell_rom`` with the same ports
and registered read: the OR of the cell's banks. A bank is on only while its block of addresses is
read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from romsim_compiler.description import Description
from romsim_compiler.technology_file import load_technology
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_bank_cache import BankTask, synthesise_all
from romsim_rtl.lside import TILE_MODULE
from romsim_rtl.memory import address_bits
from romsim_rtl.model_banks import (
    BANK_WORDS,
    BankPlace,
    bank_places,
    block_bits,
    block_rows,
    digit_bits,
)
from romsim_rtl.rom_files import check_image_format, write_gain_image, write_program_image
from romsim_rtl.toolchain import ToolError

__all__ = ["CELL_ROM_MODULE", "LogicRomOptions", "logic_rom_texts", "write_other_images"]

CELL_ROM_MODULE = "romsim_cell_rom"
"""Stands in the tile in the place of the mask ROM, and chooses the cell's own module."""

_INSTANCE = re.compile(r"  romsim_rom #\(\n(?P<parameters>(?:    \..*\n)+)  \) rom\d+ \(")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicRomOptions:
    """How the banks of a chip in logic are built.

    Parameters
    ----------
    style
        One of `romsim_rtl.logic_rom.STYLES`.
    bank_words
        Words of a bank, a power of two.
    jobs
        Banks built at once; it changes nothing in the result.
    """

    style: str = "patterns"
    bank_words: int = BANK_WORDS
    jobs: int = 1


def logic_rom_texts(
    texts: Mapping[str, str],
    description: Description,
    options: LogicRomOptions,
    *,
    progress: Callable[[float], None] | None = None,
) -> dict[str, str]:
    """Return a chip's Verilog with its weights as logic.

    Parameters
    ----------
    texts
        The chip's Verilog with mask ROMs, by file name.

    Raises
    ------
    SpecError
        If an option is impossible, or the technology's cells do not suffice.
    ToolError
        If the synthesis fails, or the tile has not the ROMs that it should have.
    """
    array = description.target.array
    library = CellLibrary.of(load_technology(description.target.technology))
    places = [p for ps in bank_places(description, options.bank_words).values() for p in ps]
    tasks, filled = [], []
    for place in places:
        bits = block_bits(description, place, options.bank_words)
        if bits.any():  # the OR of the others is all there is of a bank of zeros
            filled.append(place)
            group = description.groups[place.group]
            tasks.append(
                BankTask(bits=bits, style=options.style, field_bits=digit_bits(group, array))
            )
    banks = synthesise_all(tasks, library, jobs=options.jobs, progress=progress)
    result = dict(texts)
    result[f"{TILE_MODULE}.v"] = _with_cell_roms(texts[f"{TILE_MODULE}.v"], array.n_cells)
    rows = block_rows(description, options.bank_words)
    by_cell: dict[tuple[int, int], list[BankPlace]] = {
        (tile, cell): [] for tile in range(array.n_tiles) for cell in range(array.n_cells)
    }
    for place, bank in zip(filled, banks, strict=True):
        by_cell[place.tile, place.cell].append(place)
        name = _bank_name(place, rows)
        result[f"{name}.v"] = bank.netlist.to_verilog(name, library)
    n_bits = address_bits(array.rom_rows)
    for (tile, cell), mine in by_cell.items():
        name = _cell_name(tile, cell)
        result[f"{name}.v"] = _cell(name, mine, rows, n_bits, array.word_bits)
    result[f"{CELL_ROM_MODULE}.v"] = _cell_rom(list(by_cell))
    return result


def write_other_images(
    description: Description, folder: Path, *, image_format: str = "hex"
) -> list[str]:
    """Write the images that are left where the weights are logic: gains and program.

    Raises
    ------
    SpecError
        If the format is unknown.
    """
    check_image_format(image_format)
    return [
        write_gain_image(description, folder, image_format=image_format),
        write_program_image(description, folder, image_format=image_format),
    ]


def _bank_name(place: BankPlace, rows: int) -> str:
    first = place.block * rows + place.first
    return f"romsim_bank_t{place.tile}_c{place.cell}_w{first}"


def _cell_name(tile: int, cell: int) -> str:
    return f"romsim_bits_t{tile}_c{cell}"


def _with_cell_roms(text: str, n_cells: int) -> str:
    """Exchange the instances of the mask ROM in the tile."""

    def exchange(match: re.Match[str]) -> str:
        parameters = match["parameters"]
        parameters = re.sub(r'\.FILE\("c(\d+)\.hex"\)', r".CELL(32'd\1)", parameters)
        parameters = re.sub(r"    \.DEPTH\(.*\),\n", "", parameters)
        return (
            match[0]
            .replace(match["parameters"], parameters)
            .replace("romsim_rom", CELL_ROM_MODULE, 1)
        )

    result, n_exchanged = _INSTANCE.subn(exchange, text)
    if n_exchanged != n_cells or result.count(".CELL(") != n_cells:
        raise ToolError(
            f"Verilog of {TILE_MODULE!r} must have one ROM for each of {n_cells} cells, not "
            f"{n_exchanged}"
        )
    return result


def _cell(name: str, banks: list[BankPlace], rows: int, n_address_bits: int, width: int) -> str:
    """Return the module of one cell's words: the OR of its banks."""
    n_low = min(n_address_bits, rows.bit_length() - 1)
    lines = [
        f"module {name} (",
        f"  input wire [{n_address_bits - 1}:0] a,",
        f"  output wire [{width - 1}:0] d",
        ");",
    ]
    for block in sorted({bank.block for bank in banks}):
        chosen = "1'b1"
        if n_low < n_address_bits:
            chosen = f"a[{n_address_bits - 1}:{n_low}] == {n_address_bits - n_low}'d{block}"
        lines.append(f"  wire in{block} = {chosen};")
    words = []
    for index, bank in enumerate(banks):
        words.append(f"d{index}")
        lines += [
            f"  wire [{width - 1}:0] d{index};",
            f"  {_bank_name(bank, rows)} bank{index}",
            f"    (.a(a[{n_low - 1}:0]), .on(in{bank.block}), .d(d{index}));",
        ]
    if not banks:
        lines.append("  wire unused = &{1'b0, a};")
        words = [f"{width}'d0"]
    lines += ["  assign d =", "    " + " |\n    ".join(words) + ";", "endmodule", ""]
    return "\n".join(lines)


def _cell_rom(cells: list[tuple[int, int]]) -> str:
    """Return the module that stands in the tile, with the ports of ``romsim_rom``."""
    chosen = []
    for tile, cell in cells:
        chosen += [
            f"    if (TILE == {tile} && CELL == {cell}) begin : g_t{tile}_c{cell}",
            f"      {_cell_name(tile, cell)} bits (.a(r_addr), .d(word));",
            "    end else",
        ]
    lines = [
        "// A cell's words as logic, in the place of a mask ROM: one registered read port.",
        f"module {CELL_ROM_MODULE} #(",
        "  parameter integer ADDR_BITS = 1,",
        "  parameter integer WIDTH = 8,",
        "  parameter integer TILE = 0,",
        "  parameter integer CELL = 0",
        ") (",
        "  input wire clk,",
        "  input wire r_en,",
        "  input wire [ADDR_BITS-1:0] r_addr,",
        "  output reg [WIDTH-1:0] r_data",
        ");",
        "  wire [WIDTH-1:0] word;",
        "  generate",
        *chosen,
        "    begin : g_none",
        '      initial $fatal(1, "cell must be one of this chip");',
        "    end",
        "  endgenerate",
        "  always @(posedge clk) begin",
        "    if (r_en) r_data <= word;",
        "  end",
        "endmodule",
        "",
    ]
    return "\n".join(lines)
