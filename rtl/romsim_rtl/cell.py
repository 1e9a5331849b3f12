"""A cell of an L-unit: the multiply lanes of one ROM bank, group scales, and the accumulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK, Array
from romsim_models.errors import SpecError
from romsim_rtl.opaque import opaque_mask
from romsim_rtl.primitives import round_shift_by

__all__ = ["Cell", "CellConfig"]

_DIGIT = 16
"""Bits of a digit of a packed product."""

_DIGITS = 64 // _DIGIT
_MOST_RIGHT = 40
"""A right shift from which on every term of at most 34 bits rounds to 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellConfig:
    """What a cell is built for.

    Parameters
    ----------
    word_codes
        Lanes, a multiple of 32.
    lane_bits
        Bits of a stored digit: 2, 4 or 8.
    is_ternary
        Whether the 2-bit digits are 00, 01 (+1) and 10 (-1) instead of 0 … 3.
    plane_shift
        Binary weight of a plane over the one below, as a shift.
    max_planes
        Planes of the widest code.
    scale_group
        Codes of a word that share a scale field, a multiple of 32.
    has_minima
        Whether words have minima.
    may_round
        Whether a term may have to be rounded to the grid (numerics, section 4).
    has_plain
        Whether there are matrices whose scale does not stand in the words.
    is_packed
        Whether a multiplication serves four lanes, for a simulator, or one, for a synthesiser.

    Raises
    ------
    SpecError
        If the RTL has no lanes of that kind.
    """

    word_codes: int
    lane_bits: int
    is_ternary: bool = False
    plane_shift: int
    max_planes: int = 1
    scale_group: int
    has_minima: bool = True
    may_round: bool = False
    has_plain: bool = False
    is_packed: bool = True

    def __post_init__(self) -> None:
        if self.word_codes < MX_BLOCK or self.word_codes % MX_BLOCK:
            raise SpecError(
                f"word_codes of the RTL must be a multiple of {MX_BLOCK}, not {self.word_codes!r}"
            )
        if self.lane_bits not in (2, 4, 8):
            raise SpecError(f"lane_bits of the RTL must be 2, 4 or 8, not {self.lane_bits!r}")
        if self.is_ternary and self.lane_bits != 2:
            raise SpecError(f"lane_bits of ternary lanes must be 2, not {self.lane_bits!r}")
        if self.scale_group % MX_BLOCK or self.word_codes % self.scale_group:
            raise SpecError(
                f"scale_group of the RTL must be a multiple of {MX_BLOCK} that divides the word's "
                f"{self.word_codes} codes, not {self.scale_group!r}"
            )
        if not 1 <= self.max_planes <= 8:
            raise SpecError(f"max_planes must be from 1 to 8, not {self.max_planes!r}")

    @classmethod
    def of(cls, array: Array, *, max_planes: int, may_round: bool, has_plain: bool) -> CellConfig:
        """Take the word's format from a target's array.

        Raises
        ------
        SpecError
            If the RTL has no lanes of that kind.
        """
        for name, value, wanted in (
            ("scale_bits", array.scale_bits, (16,)),
            ("min_bits", array.min_bits, (0, 16)),
            ("zero_bits", array.zero_bits, (0,)),
        ):
            if value not in wanted:
                choices = " or ".join(map(str, wanted))
                raise SpecError(f"{name} of an RTL target must be {choices}, not {value!r}")
        return cls(
            word_codes=array.word_codes,
            lane_bits=array.lane_bits,
            is_ternary=array.encoding == "ternary",
            plane_shift=array.plane_shift,
            max_planes=max_planes,
            scale_group=array.scale_group,
            has_minima=array.min_bits > 0,
            may_round=may_round,
            has_plain=has_plain,
        )

    @property
    def n_blocks(self) -> int:
        """Blocks of 32 lanes, each with an activation shift of its own."""
        return self.word_codes // MX_BLOCK

    @property
    def code_bits(self) -> int:
        """Bits of a word's codes."""
        return self.word_codes * self.lane_bits

    @property
    def n_scales(self) -> int:
        """Scale fields of a word."""
        return self.word_codes // self.scale_group

    @property
    def word_bits(self) -> int:
        """Bits of a word."""
        return self.code_bits + 16 * self.n_scales * (2 if self.has_minima else 1)

    @property
    def n_positions(self) -> int:
        """Lanes of a digit of a packed product."""
        return _DIGIT // self.lane_bits

    @property
    def n_chunks(self) -> int:
        """Pieces of 64 bits of a block's codes."""
        return MX_BLOCK * self.lane_bits // 64

    @property
    def n_packed(self) -> int:
        """Packed words of activations for one block."""
        return self.n_chunks * self.n_positions

    @property
    def ones(self) -> int:
        """Bits of a word of 64 at which the codes of digits are taken: 4 bits, 2 bits, or one."""
        bits = 1 if self.is_ternary else self.lane_bits
        return sum((1 << bits) - 1 << _DIGIT * digit for digit in range(_DIGITS))

    def lane(self, packed: int, digit: int) -> int:
        """Return the lane of a block whose activation is a digit of a packed word.

        The codes of a piece of 64 bits stand ``lane_bits`` apart, so that every ``n_positions``-th
        one falls on a digit; the activations stand in reverse order, so that the top digit of the
        product is the sum of products of four lanes.
        """
        chunk, position = divmod(packed, self.n_positions)
        return (chunk * _DIGITS + (_DIGITS - 1 - digit)) * self.n_positions + position


class Cell(wiring.Component):
    """Multiply ROM words by activations and accumulate a row (docs/numerics.md, section 4).

    A block's ``Σ q·c`` is the top digit of a sum of products of packed words: four codes of a
    piece of 64 bits times four activations at a time, modulo 2^64. Digits below the top one may
    be negative; a bias keeps them from borrowing from it. The function is that of one multiplier
    a lane and an adder tree, which is what a synthesiser is given (``is_packed`` false); a
    simulator of the packed form needs a quarter of the multiplications.

    Parameters
    ----------
    config
        What the cell is built for.

    Members
    -------
    v_read, v_dot, v_sum, v_mul, v_shift, v_acc : In(1)
        A word is in this stage: it comes; products of a plane's digits; sum over planes; times
        significand; moved to the grid (the last three after the last plane only); accumulated.
    first_plane : In(1)
        With ``v_dot``: the word holds scale and minimum.
    first_sum, plane_place : In(1), In(3)
        With ``v_sum``: first plane; shift of the plane.
    first_word : In(1)
        With ``v_acc``: begin a row.
    plain : In(1)
        The scale does not stand in the words: 1 until the accumulator is complete.
    word : In(word_bits)
        ROM word, with ``v_read``; its multiplication does not wait for the memory.
    held : Out(word_bits)
        The word that came last.
    x : In(64) array
        Packed activations, with ``v_dot``: word ``b·n_packed + k`` is the sum over digits ``d`` of
        ``c · 2^16d`` modulo 2^64, ``c`` the code of lane ``lane(k, d)`` of block ``b``; where lanes
        are not packed, of ``(c + 128) · 2^16d``.
    less : In(signed(22)) array
        ``offset · S`` of each block, with ``v_sum``.
    total : In(signed(13)) array
        ``S`` of each block, with ``v_mul``.
    place : In(signed(9)) array
        ``s_b - γ - 25`` of each block, with ``v_mul``.
    acc : Out(64)
        The accumulator, one cycle after ``v_acc``.
    """

    def __init__(self, *, config: CellConfig) -> None:
        self.config = config
        blocks = config.n_blocks
        names = ("v_read", "v_dot", "v_sum", "v_mul", "v_shift", "v_acc")
        members: dict[str, Any] = {name: In(1) for name in names}
        members |= {"first_plane": In(1), "first_word": In(1)}
        if config.max_planes > 1:
            members |= {"first_sum": In(1), "plane_place": In(3)}
        if config.has_plain:
            members["plain"] = In(1)
        members |= {
            "word": In(config.word_bits),
            "held": Out(config.word_bits),
            "x": In(64).array(blocks * config.n_packed),
            "less": In(signed(22)).array(blocks),
            "total": In(signed(13)).array(blocks),
            "place": In(signed(9)).array(blocks),
            "acc": Out(64),
        }
        super().__init__(members)

    @staticmethod
    def unread_bits() -> dict[str, str]:
        """Ports of which some bits are not read, for the emission of Verilog."""
        return {"rst": "all registers here are data, which is not reset"}

    def elaborate(self, platform: Any) -> Module:
        """Build the register and the stages."""
        m = Module()
        config = self.config
        word = Signal(config.word_bits, name="held_word", reset_less=True)
        with m.If(self.v_read):
            m.d.sync += word.eq(self.word)
        m.d.comb += self.held.eq(word)
        ones: Value = Const(0)
        if config.is_packed and config.lane_bits < 8:
            ones = opaque_mask(m, platform, "ones", config.ones)
        terms = []
        scales, minima = self._fields(m)
        for block in range(config.n_blocks):
            field = block * MX_BLOCK // config.scale_group
            product = self._digits(m, block, ones)
            terms += self._scaled(m, block, "t", product, scales[field])
            if config.has_minima:
                total = self.total[block]
                terms += self._scaled(m, block, "u", total, minima[field], is_minimum=True)
        acc = Signal(64, name="row", reset_less=True)
        row: Value = Mux(self.first_word, Const(0, 64), acc)
        for term in terms:
            row = (row + term)[:64]
        with m.If(self.v_acc):
            m.d.sync += acc.eq(row)
        m.d.comb += self.acc.eq(acc)
        return m

    def _fields(self, m: Module) -> tuple[list[Signal], list[Signal]]:
        """Hold a word's scales and minima until the products of its last plane are summed."""
        config, scales, minima = self.config, [], []
        for field in range(config.n_scales):
            halves = self.held[config.code_bits + 16 * field :]
            scales.append(_field(m, halves[:16], f"scale{field}", self))
            if config.has_minima:
                minimum = halves[16 * config.n_scales :][:16]
                minima.append(_field(m, minimum, f"minimum{field}", self))
        return scales, minima

    def _digits(self, m: Module, block: int, ones: Value) -> Value:
        """Sum of products of a block over its planes, less the offset's share: ``P``."""
        config = self.config
        is_packed = config.is_packed and config.lane_bits < 8
        parts = self._packed(m, block, ones) if is_packed else self._lanes(m, block)
        dot = parts[0]
        for part in parts[1:]:
            dot = dot + part
        result = Signal(signed(24), name=f"p{block}", reset_less=True)
        with m.If(self.v_sum):
            if config.max_planes == 1:
                m.d.sync += result.eq(dot - self.less[block])
            else:
                before = Mux(self.first_sum, -self.less[block], result)
                m.d.sync += result.eq(before + (dot << self.plane_place))
        return result

    def _packed(self, m: Module, block: int, ones: Value) -> list[Value]:
        config = self.config
        top = 1 << _DIGIT - 1
        # lower digits are above -2^15: with the bias they are not negative, nor is the top one
        bias = (top << (_DIGITS - 1) * _DIGIT) | (top << (_DIGITS - 2) * _DIGIT)
        parts = []
        for chunk in range(config.n_chunks):
            at = 64 * (block * config.n_chunks + chunk)
            codes = self.held[at : at + 64]
            total: Value = Const(bias, 64)
            for position in range(config.n_positions):
                lanes = self._codes_at(codes, position, ones)
                index = (block * config.n_chunks + chunk) * config.n_positions + position
                total = (total + (lanes * self.x[index])[:64])[:64]
            held = Signal(64, name=f"dot{block}_{chunk}", reset_less=True)
            with m.If(self.v_dot):
                m.d.sync += held.eq(total)
            parts.append(held[-_DIGIT:] - top)
        return parts

    def _codes_at(self, codes: Value, position: int, ones: Value) -> Value:
        """Codes that stand at a position of their digits, each in a digit of its own."""
        bits = self.config.lane_bits
        if self.config.is_ternary:
            plus = (codes >> bits * position) & ones
            minus = (codes >> (bits * position + 1)) & ones
            return (plus - minus)[:64]
        return (codes >> bits * position) & ones

    def _lanes(self, m: Module, block: int) -> list[Value]:
        """Products of lanes one by one: for a synthesiser, and where digits have no room."""
        config = self.config
        total: Any = Const(0)
        for packed in range(config.n_packed):
            raised = self.x[block * config.n_packed + packed]
            if config.is_packed:  # digits of a packed word are signed: take the borrows back
                raised = (raised + 0x0080008000800080)[:64]
            for digit in range(_DIGITS):
                at = config.lane_bits * (MX_BLOCK * block + config.lane(packed, digit))
                byte = raised[_DIGIT * digit : _DIGIT * digit + 8]
                x = Cat(byte[:7], ~byte[7]).as_signed()
                total = total + self._product(self.held[at : at + config.lane_bits], x)
        held = Signal(signed(22), name=f"dot{block}", reset_less=True)
        with m.If(self.v_dot):
            m.d.sync += held.eq(total)
        return [held]

    def _product(self, code: Value, x: Value) -> Value:
        if not self.config.is_ternary:
            return code * x
        minus = code[1] & ~code[0]
        kept = (x[:8] ^ minus.replicate(8)) & (code[0] ^ code[1]).replicate(8)
        return kept.as_signed() + minus

    def _scaled(
        self,
        m: Module,
        block: int,
        name: str,
        value: Value,
        word: Value,
        *,
        is_minimum: bool = False,
    ) -> list[Signal]:
        """``SHR(value · sig, γ - exp - s_b)`` with the parts of a binary16 word."""
        config = self.config
        field = word[10:15]
        is_normal = field.any()
        size = Cat(word[:10], is_normal, Const(0, 1)).as_signed()
        significand = Mux(word[15], -size, size)[:12].as_signed()
        exponent: Value = Mux(is_normal, field, 1)
        if config.has_plain:  # significand 1, exponent 0
            significand = Mux(self.plain, 0 if is_minimum else 1, significand)[:12].as_signed()
            exponent = Mux(self.plain, 25, exponent)
        product = Signal(signed(36), name=f"{name}{block}_product", reset_less=True)
        place = Signal(signed(10), name=f"{name}{block}_place", reset_less=True)
        with m.If(self.v_mul):
            m.d.sync += [product.eq(value * significand), place.eq(self.place[block] + exponent)]
        term = Signal(64, name=f"{name}{block}_term", reset_less=True)
        wide = Cat(product, product[-1].replicate(64 - len(product)))
        left = (wide << place[:6])[:64]
        if not config.may_round:
            with m.If(self.v_shift):
                m.d.sync += term.eq(left)
            return [term]
        down = (-place)[:10]
        shift = Mux(down > _MOST_RIGHT, _MOST_RIGHT, down[:6])
        rounded = round_shift_by(Cat(product, product[-1].replicate(8)).as_signed(), shift)
        with m.If(self.v_shift & ~place[-1]):
            m.d.sync += term.eq(left)
        with m.If(self.v_shift & place[-1]):
            m.d.sync += term.eq(rounded)
        return [term]


def _field(m: Module, word: Value, name: str, cell: Cell) -> Signal:
    """Follow a word's field to the stage that multiplies by it."""
    first = Signal(16, name=f"{name}_0", reset_less=True)
    second = Signal(16, name=f"{name}_1", reset_less=True)
    with m.If(cell.v_dot & cell.first_plane):
        m.d.sync += first.eq(word)
    with m.If(cell.v_sum):
        m.d.sync += second.eq(first)
    return second
