"""The encoder of 16-bit words (docs/kv.md, section 1), as deep as the MXINT8 quantiser."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.half_words import to_word
from romsim_rtl.mx_quantizer import QUANTIZER_CYCLES
from romsim_rtl.primitives import lane_signals, magnitude

__all__ = ["WordEncoder"]


class WordEncoder(wiring.Component):
    """Round 32 values a cycle.

    Members
    -------
    start : In(1)
        ``values`` are valid.
    values : In(signed(32)).array(32)
        Frac 16.
    words : Out(512)
        Their words, 4 cycles later, position 0 in the least significant bits.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "start": In(1),
                "values": In(signed(32)).array(MX_BLOCK),
                "words": Out(16 * MX_BLOCK),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the stages: magnitudes, words, and what waits for the queries of the same beat."""
        m = Module()
        valid: list[Any] = [self.start]
        for index in range(QUANTIZER_CYCLES - 1):
            after = Signal(name=f"valid{index + 1}")
            m.d.sync += after.eq(valid[-1])
            valid.append(after)
        sizes = lane_signals("size", MX_BLOCK, 32, is_signed=False)
        signs = Signal(MX_BLOCK, reset_less=True)
        with m.If(valid[0]):
            m.d.sync += signs.eq(Cat(value[-1] for value in self.values))
            m.d.sync += [a.eq(magnitude(b)) for a, b in zip(sizes, self.values, strict=True)]
        rounded = [to_word(m, size, f"lane{lane}").word for lane, size in enumerate(sizes)]
        value = Cat(Cat(word, signs[lane]) for lane, word in enumerate(rounded))
        for index in range(1, QUANTIZER_CYCLES):
            stage = Signal(16 * MX_BLOCK, name=f"words{index}", reset_less=True)
            with m.If(valid[index]):
                m.d.sync += stage.eq(value)
            value = stage
        m.d.comb += self.words.eq(value)
        return m
