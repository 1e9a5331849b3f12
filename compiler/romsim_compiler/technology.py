"""Technology data: every constant of silicon with range, unit, source and grade.

A technology is one TOML file in ``technologies/``, validated by
:mod:`romsim_compiler.technology_file`; this module holds what is left after that: frozen values
that cost nothing to evaluate. A technology may be scaled from another (``base``), so that a fact
stands in one file only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from romsim_models.errors import SpecError

__all__ = [
    "GRADES",
    "Fact",
    "Instance",
    "LogicRom",
    "MacroModel",
    "Range",
    "Technology",
    "calibrate",
    "sum_ranges",
]

GRADES = ("published", "measured", "derived", "assumed")
"""How far a value can be trusted, best first."""


@dataclass(frozen=True, slots=True)
class Range:
    """A value with its lowest and highest plausible figure."""

    low: float
    mid: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def __mul__(self, factor: float) -> Range:
        return Range(self.low * factor, self.mid * factor, self.high * factor)

    def times(self, other: Range) -> Range:
        """Return the product of two ranges of positive numbers."""
        return Range(self.low * other.low, self.mid * other.mid, self.high * other.high)

    def over(self, other: Range) -> Range:
        """Return the quotient of two ranges of positive numbers."""
        return Range(self.low / other.high, self.mid / other.mid, self.high / other.low)

    @classmethod
    def exact(cls, value: float) -> Range:
        """Return a range of one value."""
        return cls(value, value, value)


def sum_ranges(ranges: Iterable[Range]) -> Range:
    """Return the sum of ranges."""
    low = mid = high = 0.0
    for one in ranges:
        low, mid, high = low + one.low, mid + one.mid, high + one.high
    return Range(low, mid, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One constant: range, unit, grade and where it comes from."""

    key: str
    low: float
    mid: float
    high: float
    unit: str
    grade: str
    source: str

    @property
    def range(self) -> Range:
        """The three values."""
        return Range(self.low, self.mid, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A memory macro whose density is known: what a macro model is calibrated to."""

    words: int
    bits: int
    mbit_per_mm2: float
    grade: str
    source: str

    @property
    def area_um2(self) -> float:
        """Area in um2."""
        return self.words * self.bits / self.mbit_per_mm2


@dataclass(frozen=True, slots=True, kw_only=True)
class MacroModel:
    """Area of a memory macro: bits, and columns of each bank of at most ``max_words`` words.

    ``area = words * bits * um2_per_bit + banks * bits * um2_per_column``, which is the exact form
    of instances set side by side; decoders are in the column term, since the instances known differ
    in depth and hardly in width.
    """

    kind: str
    bit_cell: Fact
    band: Fact
    max_words: int
    um2_per_bit: float
    um2_per_column: float
    instances: tuple[Instance, ...]

    def mid_um2(self, words: int, bits: int) -> float:
        """Return the mid area of a macro of ``words`` words of ``bits`` bits, in um2."""
        banks = -(-words // self.max_words)
        return bits * (words * self.um2_per_bit + banks * self.um2_per_column)

    def area_um2(self, words: int, bits: int) -> Range:
        """Return the area of a macro with its range, in um2."""
        return self.band.range * self.mid_um2(words, bits)

    def mbit_per_mm2(self, words: int, bits: int) -> float:
        """Return the density of a macro, mid value."""
        return words * bits / self.mid_um2(words, bits)

    def residuals(self) -> tuple[float, ...]:
        """Return, per instance, the model's area over the instance's, minus 1."""
        return tuple(self.mid_um2(i.words, i.bits) / i.area_um2 - 1 for i in self.instances)

    @property
    def grade(self) -> str:
        """The grade of a figure of this model: derived, or worse where an instance is."""
        return max(("derived", *(i.grade for i in self.instances)), key=GRADES.index)


def calibrate(
    instances: tuple[Instance, ...], *, bit_cell_um2: float, max_words: int
) -> tuple[float, float]:
    """Return um2 per bit and um2 per column that fit the instances best.

    Least squares of the relative error of the area. With a single instance the bit is the cell and
    the rest is columns.

    Raises
    ------
    SpecError
        If the fit has a term below zero.
    """
    if len(instances) == 1:
        one = instances[0]
        banks = -(-one.words // max_words)
        bit = bit_cell_um2
        column = (one.area_um2 - one.words * one.bits * bit) / (banks * one.bits)
    else:
        aa = ab = bb = a1 = b1 = 0.0
        for one in instances:
            a = one.words * one.bits / one.area_um2
            b = -(-one.words // max_words) * one.bits / one.area_um2
            aa, ab, bb, a1, b1 = aa + a * a, ab + a * b, bb + b * b, a1 + a, b1 + b
        determinant = aa * bb - ab * ab
        if determinant <= 1e-12 * aa * bb:
            raise SpecError(
                "macro instances must differ in depth, or no model can be fitted to them"
            )
        bit, column = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if bit <= 0 or column < 0:
        raise SpecError(
            f"macro instances must fit a model with positive terms, not {bit:.4g} um2 a bit and "
            f"{column:.4g} um2 a column; check their densities"
        )
    return bit, column


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicRom:
    """Cell area of ROM words synthesised as logic, against the share of zero bits."""

    style: str
    grade: str
    source: str
    words: int
    um2_per_bit: tuple[tuple[float, float], ...]  # (share of zero bits, um2), ascending share
    scale: Range

    def area_per_bit(self, zero_bits: float) -> Range:
        """Return um2 of cell area per stored bit, linear between the measured points.

        Denser words than the first point cost what it costs; sparser ones than the last lie on the
        line from there to nothing at a share of 1.
        """
        previous = self.um2_per_bit[0]
        if zero_bits <= previous[0]:
            return self.scale * previous[1]
        for point in (*self.um2_per_bit[1:], (1.0, 0.0)):
            if zero_bits <= point[0]:
                part = (zero_bits - previous[0]) / (point[0] - previous[0])
                return self.scale * (previous[1] + part * (point[1] - previous[1]))
            previous = point
        return self.scale * previous[1]


@dataclass(frozen=True, kw_only=True, eq=False)  # the same only if it is the same object
class Technology:
    """One process with all its constants."""

    name: str
    summary: str
    node_nm: int
    rom_style: str  # "compiler" or "logic": how a ROM bank is built unless told otherwise
    facts: Mapping[str, Fact]
    rom: MacroModel
    sram: MacroModel
    logic_rom: Mapping[str, LogicRom]
    cell_um2: Mapping[str, float]
    cell_function: Mapping[str, str]
    cell_source: str
    cell_grade: str

    def __getitem__(self, key: str) -> Fact:
        """Return a fact by its key, such as ``lane.int4_mxint8``.

        Raises
        ------
        SpecError
            If there is none: the keys of that section.
        """
        try:
            return self.facts[key]
        except KeyError:
            section = key.partition(".")[0]
            known = ", ".join(k for k in self.facts if k.startswith(section + "."))
            raise SpecError(
                f"Technology {self.name!r} must have the fact {key!r}, but it has "
                f"{known or 'no such section'}"
            ) from None

    @cached_property
    def gate_delay_ps(self) -> Range:
        """Delay of an inverter that drives four."""
        return self["clock.fo4_ps"].range

    def clock_period_ps(self, depth_fo4: float) -> Range:
        """Return the shortest period of a path of ``depth_fo4`` FO4 of logic between two registers.

        Wires lengthen the logic by the wire factor; set-up, clock-to-output and skew come on top.
        """
        wired = self["clock.wire_factor"].range * depth_fo4
        return (wired + self["clock.overhead_fo4"].range).times(self.gate_delay_ps)

    def to_json(self) -> dict[str, Any]:
        """Return all constants as JSON-ready values."""
        return {
            "name": self.name,
            "summary": self.summary,
            "node_nm": self.node_nm,
            "rom_style": self.rom_style,
            "facts": {k: asdict(f) for k, f in self.facts.items()},
            "macros": {m.kind: asdict(m) for m in (self.rom, self.sram)},
            "logic_rom": {k: asdict(v) for k, v in self.logic_rom.items()},
            "cells": {
                "um2": dict(self.cell_um2),
                "function": dict(self.cell_function),
                "source": self.cell_source,
                "grade": self.cell_grade,
            },
        }
