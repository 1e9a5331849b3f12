"""The affine encoder (docs/kv.md, section 2): 32 values become codes, a zero and a scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK
from romsim_models.errors import SpecError
from romsim_rtl.half_words import to_word
from romsim_rtl.primitives import lane_signals, magnitude, round_shift_by, wire

__all__ = [
    "ENCODER_CYCLES",
    "AffineEncoder",
    "bound_members",
    "share_bounds",
    "significand_inverses",
]

ENCODER_CYCLES = 7
"""Cycles from valid values to valid codes: bounds (2), step, words, inverse, product, codes."""

_INVERSE_BITS = 24
_PRODUCT_BITS = 58  # at most (2^32 + 2^20) · 2^23 and half of it, and a sign
_FIRST = 4  # values that the first stage compares


def significand_inverses(table: Sequence[int]) -> list[int]:
    """Return ``Y`` of every significand 1024 … 2047, from the numerics page's RCP.

    ``Y`` depends on no more of a scale than its significand, which has 11 bits.

    Parameters
    ----------
    table
        ``RCP[0 … 127]``.

    Raises
    ------
    SpecError
        If the table has another length.
    """
    if len(table) != 128:
        raise SpecError(f"table RCP must be 128 entries, not {len(table)!r}")
    inverses = []
    for significand in range(1024, 2048):
        n = significand << 21
        y = int(table[(n >> 24) & 127]) << 15
        for _ in range(2):
            y = (y * ((1 << 31) - ((n * y) >> 32))) >> 30
        half, odd = y & 255, y >> 8 & 1
        inverses.append((y >> 8) + (half > 128 or (half == 128 and odd == 1)))
    return inverses


class AffineEncoder(wiring.Component):
    """Encode one group of 32 a cycle, or as much of a larger one, with others.

    Parameters
    ----------
    code_bits
        Of a code: 2 or 4.
    table
        ``RCP`` of the numerics page.
    value_bits
        Of a value, which is at most 2^31 in magnitude; with 33 it may be 2^31.
    n_others
        Encoders that have the rest of a larger group.

    Members
    -------
    start : In(1)
        ``values`` are to be encoded.
    values : In(signed(value_bits)).array(32)
        The group.
    done : Out(1)
        The results of the group that was started 7 cycles ago are valid.
    codes : Out(32 * code_bits)
        Codes, position 0 in the least significant bits.
    zero, scale : Out(16)
        Words of docs/kv.md, section 1.
    low, high, other_low, other_high
        Least and largest values of parts of the group, a cycle after ``start``, and those of the
        others; where there are any.
    """

    def __init__(
        self, *, code_bits: int, table: Sequence[int], value_bits: int = 32, n_others: int = 0
    ) -> None:
        self.code_bits, self.value_bits, self.n_others = code_bits, value_bits, n_others
        self._inverses = significand_inverses(table)
        super().__init__(
            (bound_members(value_bits, n_others) if n_others else {})
            | {
                "start": In(1),
                "values": In(signed(value_bits)).array(MX_BLOCK),
                "done": Out(1),
                "codes": Out(code_bits * MX_BLOCK),
                "zero": Out(16),
                "scale": Out(16),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline."""
        m = Module()
        valid: list[Any] = [self.start]
        for index in range(ENCODER_CYCLES):
            stage = Signal(name=f"valid{index + 1}")
            m.d.sync += stage.eq(valid[-1])
            valid.append(stage)
        m.d.comb += self.done.eq(valid[-1])

        # the values wait for the words of their group
        waiting: list[list[Any]] = [list(self.values)]
        for index in range(4):
            lanes = lane_signals(f"value{index + 1}_", MX_BLOCK, self.value_bits)
            with m.If(valid[index]):
                m.d.sync += [a.eq(b) for a, b in zip(lanes, waiting[-1], strict=True)]
            waiting.append(lanes)

        low, high = self._bounds(m, valid)
        top = (1 << self.code_bits) - 1
        extent = wire(m, (high - low)[: self.value_bits], "extent")
        product = wire(m, (extent * Const((1 << 32) // top, 32))[:64], "scaled_extent")
        is_up = product[31] & (product[:31].any() | product[32])
        step = Signal(32, reset_less=True)
        # sign and magnitude from here on: to negate what a word stands for is the next stages' sum
        is_below, below = Signal(reset_less=True), Signal(32, reset_less=True)
        with m.If(valid[2]):
            m.d.sync += step.eq((product[32:] + is_up)[:32])
            m.d.sync += [is_below.eq(low[-1]), below.eq(magnitude(low)[:32])]

        scale_of = to_word(m, step, "scale_of")
        zero_of = to_word(m, below, "zero_of")
        index_of, length = Signal(10, reset_less=True), Signal(6, reset_less=True)
        has_scale = Signal(reset_less=True)
        zero, adds_zero = Signal(33, reset_less=True), Signal(reset_less=True)
        words = Signal(32, reset_less=True)
        with m.If(valid[3]):
            m.d.sync += [
                index_of.eq(scale_of.fraction),
                length.eq(scale_of.length),
                has_scale.eq(~scale_of.is_zero),
                zero.eq(zero_of.value),
                adds_zero.eq(is_below),
                words.eq(Cat(zero_of.word, is_below, scale_of.word, Const(0, 1))),
            ]

        m.submodules.table = table = Memory(
            shape=unsigned(_INVERSE_BITS), depth=len(self._inverses), init=self._inverses
        )
        port = table.read_port()
        m.d.comb += [port.addr.eq(index_of), port.en.eq(valid[4])]
        above = lane_signals("above", MX_BLOCK, 34)
        rest: list[Any] = [(length, has_scale, words)]
        for index in range(2):
            after = (
                Signal(6, name=f"length{index}", reset_less=True),
                Signal(name=f"has_scale{index}", reset_less=True),
                Signal(32, name=f"words{index}", reset_less=True),
            )
            with m.If(valid[4 + index]):
                m.d.sync += [a.eq(b) for a, b in zip(after, rest[-1], strict=True)]
            rest.append(after)
        products = lane_signals("product", MX_BLOCK, _PRODUCT_BITS)
        size = Cat(zero, Const(0, 1)).as_signed()
        other = wire(m, Mux(adds_zero, size, ~size).as_signed(), "minus_zero")
        up = wire(m, ~adds_zero, "minus_zero_up")
        with m.If(valid[4]):
            m.d.sync += [a.eq(b + other + up) for a, b in zip(above, waiting[4], strict=True)]
        with m.If(valid[5]):
            m.d.sync += [a.eq(b * port.data) for a, b in zip(products, above, strict=True)]

        down, is_coded, words_before = rest[2]
        shift = wire(m, (down + 22)[:6], "code_shift")
        codes = Signal(self.code_bits * MX_BLOCK, reset_less=True)
        last_words = Signal(32, reset_less=True)
        coded = []
        for lane, product in enumerate(products):
            code = wire(m, round_shift_by(product, shift), f"rounded{lane}")
            kept = Mux(code[self.code_bits :].any(), top, code[: self.code_bits])
            coded.append(Mux(code[-1] | ~is_coded, 0, kept)[: self.code_bits])
        with m.If(valid[6]):
            m.d.sync += [codes.eq(Cat(*coded)), last_words.eq(words_before)]
        m.d.comb += [
            self.codes.eq(codes),
            self.zero.eq(last_words[:16]),
            self.scale.eq(last_words[16:]),
        ]
        return m

    def _bounds(self, m: Module, valid: list[Any]) -> tuple[Signal, Signal]:
        """Find the least and the largest value, in two stages."""
        found = []
        for name, is_better in (("low", _is_less), ("high", _is_more)):
            parts = [self.values[lane] for lane in range(MX_BLOCK)]
            whole = (1 + self.n_others) * MX_BLOCK
            for stage, size in enumerate((_FIRST, whole // _FIRST)):
                best = [
                    _best(m, parts[at : at + size], is_better, f"{name}{stage}_{at}")
                    for at in range(0, len(parts), size)
                ]
                kept = lane_signals(f"{name}{stage}_kept", len(best), self.value_bits)
                with m.If(valid[stage]):
                    m.d.sync += [a.eq(b) for a, b in zip(kept, best, strict=True)]
                parts = list(kept)
                if self.n_others and stage == 0:
                    mine = getattr(self, name)
                    m.d.comb += [a.eq(b) for a, b in zip(mine, kept, strict=True)]
                    parts += list(getattr(self, f"other_{name}"))
            found.append(parts[0])
        return found[0], found[1]


def bound_members(value_bits: int, n_others: int) -> dict[str, Any]:
    """List the members by which encoders of one group know each other's bounds."""
    value, n_parts = signed(value_bits), MX_BLOCK // _FIRST
    members: dict[str, Any] = {name: Out(value).array(n_parts) for name in ("low", "high")}
    others = {f"other_{name}": In(value).array(n_parts * n_others) for name in ("low", "high")}
    return members | others


def share_bounds(m: Module, encoders: Sequence[Any]) -> None:
    """Connect the encoders of one group."""
    for one in encoders:
        for name in ("low", "high"):
            parts = [
                part for other in encoders if other is not one for part in getattr(other, name)
            ]
            theirs = getattr(one, f"other_{name}")
            m.d.comb += [a.eq(b) for a, b in zip(theirs, parts, strict=True)]


def _is_less(a: Any, b: Any) -> Any:
    return a < b


def _is_more(a: Any, b: Any) -> Any:
    return a > b


def _best(m: Module, values: list[Any], is_better: Any, name: str) -> Any:
    level = 0
    while len(values) > 1:
        values = [
            wire(m, Mux(is_better(b, a), b, a).as_signed(), f"{name}_{level}_{index}")
            for index, (a, b) in enumerate(zip(values[::2], values[1::2], strict=True))
        ]
        level += 1
    return values[0]
