"""Table of the technology's constants: what area and energy rest on, each with source and grade."""

from __future__ import annotations

from romsim.report.model import Cell, Column, Table
from romsim_compiler.technology import Technology

__all__ = ["technology_table"]


def technology_table(technology: Technology) -> Table:
    """Return every constant of a technology, and the macros that its memories are fitted to."""
    rows: list[tuple[Cell, ...]] = [
        (f.key, f.unit, f.low, f.mid, f.high, "the technology's file", f.source, f.grade)
        for f in technology.facts.values()
    ]
    for macro in (technology.rom, technology.sram):
        fits = zip(macro.instances, macro.residuals(), strict=True)
        rows += [
            (
                f"{macro.kind}: {one.words} words of {one.bits} bits",
                "Mbit/mm²",
                one.mbit_per_mm2,
                one.mbit_per_mm2,
                one.mbit_per_mm2,
                f"an instance; the fitted model's area is {100 * residual:+.1f} % off it",
                one.source,
                one.grade,
            )
            for one, residual in fits
        ]
    return Table(
        key="technology",
        title=f"Constants of {technology.name}",
        note=f"{technology.summary}. Values are in the row's own unit.",
        columns=(
            Column(key="constant", label="constant"),
            Column(key="unit", label="unit"),
            Column(key="low", label="low", unit="row's unit"),
            Column(key="mid", label="mid", unit="row's unit"),
            Column(key="high", label="high", unit="row's unit"),
            Column(key="formula", label="formula"),
            Column(key="source", label="source"),
            Column(key="grade", label="grade"),
        ),
        rows=tuple(rows),
    )
