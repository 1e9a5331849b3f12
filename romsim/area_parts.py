"""Silicon of single parts: storage, multipliers, shifters, adders and lanes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec

from romsim_compiler.target import MX_BLOCK, Array, Target
from romsim_compiler.technology import GRADES, Range, Technology, sum_ranges

__all__ = [
    "WEIGHT_LOGIC",
    "ZERO_BITS",
    "Item",
    "Part",
    "Parts",
    "default_zero_bits",
    "join",
    "parts_of",
    "sum_bits",
]

_P = ParamSpec("_P")

ZERO_BITS = {"ternary": 0.71, "unsigned": 0.487}
"""Share of zero bits in a synthesised ROM whose contents are not known: BitNet-2B-4T's measured
42 % zero weights, which are 71 % zero bits; and offset int4 codes of Gaussian weights, 48.7 %."""

WEIGHT_LOGIC = "patterns"
"""How weights become logic, as ``romsim rtl --logic-rom`` does it."""

_FIXED_SHIFT_BITS = 25  # MXINT8 shifts are 0 … 25
_SIGNIFICAND_BITS = 11  # of a binary16 scale
_MAX_REMEMBERED = 8192
_TABLE_ZERO_BITS = 0.487


def sum_bits(number_format: str) -> int:
    """Return the width of sums: exact in integers, binary32 where the inputs are FP8."""
    return 64 if number_format == "mxint8" else 32


def default_zero_bits(target: Target) -> float:
    """Return the share of zero bits assumed for a target whose ROM contents are not known."""
    return ZERO_BITS[target.array.encoding]


@dataclass(frozen=True, slots=True)
class Part:
    """Area of one part in um2, with how it comes about."""

    area: Range
    formula: str
    source: str
    grade: str
    kind: str = "logic"  # or "rom", "sram": what it leaks


Item = tuple[str, str, int, Part]
"""Unit, component, count, and one of it."""


def _remembered(
    make: Callable[Concatenate[Parts, _P], Part],
) -> Callable[Concatenate[Parts, _P], Part]:
    """Keep what a method made: in a sweep most parts are the last point's."""

    @wraps(make)
    def method(self: Parts, /, *args: _P.args, **kwargs: _P.kwargs) -> Part:
        key = (make, args, *kwargs.values())
        part = self._made.get(key)
        if part is None:
            if len(self._made) >= _MAX_REMEMBERED:
                self._made.clear()
            part = self._made[key] = make(self, *args, **kwargs)
        return part

    return method


class Parts:
    """Parts of one technology. Synthesised parts are cell area over utilisation.

    Parameters
    ----------
    technology
        Where every constant comes from.
    """

    def __init__(self, technology: Technology) -> None:
        self.technology = technology
        self._made: dict[object, Part] = {}
        self._utilisation = technology["logic.utilisation"]
        cells = technology.cell_um2
        self._adder = cells["FAx1"]
        self._flop = cells["DFFHQNx1"]
        self._mux = cells["AO22x1"]  # two inputs with complementary selects
        self._nand = cells["NAND2xp5"]
        self._cell_grade = max("derived", technology.cell_grade, key=GRADES.index)

    def cells(self, um2: float, formula: str) -> Part:
        """Return a part of ``um2`` of standard cells."""
        return Part(
            Range.exact(um2).over(self._utilisation.range),
            f"({formula}) / utilisation {self._utilisation.mid:g}",
            self.technology.cell_source,
            "assumed" if self._utilisation.grade == "assumed" else self._cell_grade,
        )

    @_remembered
    def flops(self, n_bits: int) -> Part:
        """Return registers."""
        return self.cells(n_bits * self._flop, f"{n_bits} flops x {self._flop:.4g} um2")

    @_remembered
    def gates(self, n_gates: int) -> Part:
        """Return random logic of as many two-input gates."""
        return self.cells(n_gates * self._nand, f"{n_gates} NAND2 x {self._nand:.4g} um2")

    @_remembered
    def multiplier(self, a_bits: int, b_bits: int) -> Part:
        """Return a multiplier: a full adder and an AND gate for each bit of the product array."""
        per_bit = self._adder + self._nand
        return self.cells(
            a_bits * b_bits * per_bit, f"{a_bits} x {b_bits} bits x {per_bit:.4g} um2 (FA + NAND2)"
        )

    @_remembered
    def shifter(self, n_bits: int, max_shift: int) -> Part:
        """Return a barrel shifter."""
        stages = max_shift.bit_length()
        return self.cells(
            n_bits * stages * self._mux, f"{n_bits} bits x {stages} stages x {self._mux:.4g} um2"
        )

    @_remembered
    def accumulator(self, n_bits: int) -> Part:
        """Return an adder with its register."""
        per_bit = self._adder + self._flop
        return self.cells(n_bits * per_bit, f"{n_bits} bits x {per_bit:.4g} um2 (FA + flop)")

    @_remembered
    def lane(self, weight: str, activation: str, *, lane_bits: int) -> Part:
        """Return one multiply-add lane.

        Parameters
        ----------
        weight
            ``"ternary"``, ``"unsigned"`` (``lane_bits`` bits) or a format of 8 bits.
        activation
            ``"mxint8"`` or ``"fp8_e4m3"``.
        """
        tech = self.technology
        if weight == "fp8_e4m3":
            fact = tech["lane.fp8_e4m3_fp8_e4m3"]
        elif weight == "ternary":
            fact = tech[f"lane.ternary_{activation}"]
        elif weight == "mxint8" or lane_bits == 8:
            fact = tech[f"lane.int8_{activation}"]
        elif lane_bits in (2, 4):
            fact = tech[f"lane.int{lane_bits}_{activation}"]
        else:
            return self._between(activation, lane_bits)
        return Part(
            fact.range.over(self._utilisation.range),
            f"{fact.key} {fact.mid:.4g} um2 / utilisation {self._utilisation.mid:g}",
            fact.source,
            max(fact.grade, self._utilisation.grade, key=GRADES.index),
        )

    def _between(self, activation: str, lane_bits: int) -> Part:
        """Return a lane of a width that was not synthesised, linear in the width between two."""
        low, high = next((a, b) for a, b in ((0, 2), (2, 4), (4, 8)) if a < lane_bits < b)
        part = (lane_bits - low) / (high - low)
        top = self.technology[f"lane.int{high}_{activation}"]
        area = top.range * part
        if low:
            area = area + self.technology[f"lane.int{low}_{activation}"].range * (1 - part)
        return Part(
            area.over(self._utilisation.range),
            f"{lane_bits} bits, linear between lanes of {low} and {high} bits: {area.mid:.4g} um2 "
            f"/ utilisation {self._utilisation.mid:g}",
            top.source,
            max("derived", top.grade, self._utilisation.grade, key=GRADES.index),
        )

    @_remembered
    def sram(self, words: int, bits: int) -> Part:
        """Return a memory to be written: an SRAM macro, or flops where they are smaller."""
        flops = self.flops(words * bits)
        model = self.technology.sram
        macro = model.area_um2(words, bits)
        if flops.area.mid <= macro.mid:
            return flops
        return Part(
            macro,
            f"SRAM {words} x {bits} b at {words * bits / macro.mid:.4g} Mbit/mm2",
            model.instances[0].source,
            model.grade,
            "sram",
        )

    @_remembered
    def rom(
        self, words: int, bits: int, *, style: str, zero_bits: float, logic: str = "shared"
    ) -> Part:
        """Return a ROM: a compiler's macro, or words synthesised as logic.

        Parameters
        ----------
        style
            ``"compiler"`` or ``"logic"``.
        logic
            How words become logic: a style of the technology's `logic_rom`.
        """
        if style == "compiler":
            model = self.technology.rom
            macro = model.area_um2(words, bits)
            return Part(
                macro,
                f"ROM macro {words} x {bits} b at {words * bits / macro.mid:.4g} Mbit/mm2",
                model.instances[0].source,
                model.grade,
                "rom",
            )
        table = self.technology.logic_rom[logic]
        per_bit = table.area_per_bit(zero_bits)
        banks = -(-words // table.words)
        # Outputs of banks are zero where not addressed, so one OR input each joins them.
        select = (banks - 1) * bits * self.technology.cell_um2["OR2x2"]
        area = (per_bit * (words * bits) + Range.exact(select)).over(self._utilisation.range)
        return Part(
            area,
            f"logic ROM ({logic}) {words} x {bits} b, {zero_bits:.3g} zero bits, "
            f"{per_bit.mid:.4g} um2/bit + {banks - 1} x {bits} OR2 / "
            f"utilisation {self._utilisation.mid:g}",
            table.source,
            max(table.grade, self._utilisation.grade, key=GRADES.index),
            "rom",
        )

    @_remembered
    def scale(self, array: Array, activation: str) -> Part:
        """Return one scale field's multipliers, grid shifters and accumulator."""
        partial = array.lane_bits + 8 + math.ceil(math.log2(array.scale_group))
        sums = 8 + math.ceil(math.log2(array.scale_group))
        if activation == "mxint8" and array.scale_group > MX_BLOCK:
            partial += _FIXED_SHIFT_BITS  # blocks are shifted before they share a multiplier
            sums += _FIXED_SHIFT_BITS
        width = sum_bits(activation)
        parts = [self.multiplier(partial, _SIGNIFICAND_BITS), self.shifter(width, width - 1)]
        if array.min_bits:
            parts += [self.multiplier(sums, _SIGNIFICAND_BITS), self.shifter(width, width - 1)]
        elif array.zero_bits:
            parts.append(self.multiplier(sums, array.zero_bits))
        parts.append(self.accumulator(width))
        return join(parts)

    @_remembered
    def full_adders(self, n_bits: int) -> Part:
        """Return an adder without register."""
        return self.cells(n_bits * self._adder, f"{n_bits} bits x {self._adder:.4g} um2 (FA)")

    @_remembered
    def multiplexers(self, n_bits: int) -> Part:
        """Return two-input multiplexers."""
        return self.cells(n_bits * self._mux, f"{n_bits} bits x {self._mux:.4g} um2 (AO22)")

    @_remembered
    def exponential(self) -> Part:
        """Return one unit for 2^-d: table, interpolation, shift, registers."""
        table = self.rom(257, 21, style="logic", zero_bits=_TABLE_ZERO_BITS)
        return join([table, self.multiplier(21, 8), self.shifter(32, 31), self.flops(64)])

    @_remembered
    def vector_lane(self) -> Part:
        """Return one lane of the vector unit: product, wide shift with rounding, sum, registers."""
        parts = [self.multiplier(32, 32), self.shifter(64, 63), self.accumulator(64)]
        return join([*parts, self.flops(4 * 32)])

    @_remembered
    def activation(self) -> Part:
        """Return one unit for the activation function: table and interpolation."""
        table = self.rom(1025, 21, style="logic", zero_bits=_TABLE_ZERO_BITS)
        return join([table, self.multiplier(21, 22)])

    @_remembered
    def newton(self) -> Part:
        """Return the unit that iterates reciprocals and square roots."""
        return join([self.multiplier(32, 32), self.multiplier(32, 32), self.flops(256)])

    @_remembered
    def rotary(self) -> Part:
        """Return one unit for the sine and cosine of a pair."""
        return join([self.multiplier(32, 17), self.multiplier(22, 21)])


@lru_cache(maxsize=64)
def parts_of(technology: Technology) -> Parts:
    """Return the parts of a technology, the same object every time."""
    return Parts(technology)


def join(parts: list[Part]) -> Part:
    """Return parts as one: areas added, formulas side by side."""
    return Part(
        sum_ranges([p.area for p in parts]),
        " + ".join(p.formula for p in parts),
        "; ".join(dict.fromkeys(p.source for p in parts)),
        max((p.grade for p in parts), key=GRADES.index),
    )
