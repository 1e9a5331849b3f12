"""The x buffer of a tile: MXINT8 activations as they are broadcast, read a word's worth a cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK
from romsim_models.errors import SpecError
from romsim_rtl.cell import CellConfig
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.opaque import opaque_mask

__all__ = ["XBuffer", "XBufferSizes", "beat_signature", "token_member"]

_DIGITS = 0x00FF00FF00FF00FF
_BIAS = 0x0080008000800080
"""Codes are stored plus 128: as unsigned digits, from which packed words are a mask and this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XBufferSizes:
    """Sizes of the x buffer.

    Parameters
    ----------
    n_words
        ROM words of the longest row, absent ones included.
    n_inflight
        Tokens with buffers of their own.
    n_groups
        Blocks of 32 in a beat of the broadcast: a power of two.
    word_blocks
        Blocks of 32 in a ROM word: a power of two, at most ``n_groups``.

    Raises
    ------
    SpecError
        If words and beats do not divide one another.
    """

    n_words: int
    n_inflight: int
    n_groups: int
    word_blocks: int

    def __post_init__(self) -> None:
        for name in ("n_words", "n_inflight"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        for name in ("n_groups", "word_blocks"):
            value = getattr(self, name)
            if value < 1 or value & (value - 1):
                raise SpecError(f"{name} of the RTL must be a power of two, not {value!r}")
        if self.word_blocks > self.n_groups:
            raise SpecError(
                f"word_codes of an RTL target must be at most its {MX_BLOCK * self.n_groups} "
                f"vector lanes, not {MX_BLOCK * self.word_blocks!r}"
            )

    @property
    def n_banks(self) -> int:
        """Words that a beat of the broadcast fills."""
        return self.n_groups // self.word_blocks

    @property
    def row_bits(self) -> int:
        """Bits of the address of a beat in one token's buffer."""
        return address_bits(-(-self.n_words // self.n_banks))

    @property
    def word_bits(self) -> int:
        """Bits of the address of a word in one token's buffer."""
        return self.row_bits + (self.n_banks - 1).bit_length()

    @property
    def token_bits(self) -> int:
        """Bits of the in-flight index."""
        return (self.n_inflight - 1).bit_length()


def token_member(sizes: XBufferSizes, name: str) -> dict[str, Any]:
    """Describe an in-flight index: no port at all where there is only one token."""
    return {name: In(sizes.token_bits)} if sizes.token_bits else {}


def beat_signature(sizes: XBufferSizes) -> dict[str, Any]:
    """Describe a beat of the broadcast.

    Members
    -------
    bc_en, bc_token, bc_row
        There is a beat; in-flight index, where there are several; number of the beat in the vector.
    bc_mask, bc_codes, bc_shift, bc_sum
        For each block of 32: whether it counts, its codes, shift and sum.
    """
    groups = sizes.n_groups
    return {
        "bc_en": In(1),
        **token_member(sizes, "bc_token"),
        "bc_row": In(sizes.row_bits),
        "bc_mask": In(groups),
        "bc_codes": In(8 * MX_BLOCK).array(groups),
        "bc_shift": In(5).array(groups),
        "bc_sum": In(signed(13)).array(groups),
    }


class XBuffer(wiring.Component):
    """Hold the input of the current matrix of each in-flight token.

    Parameters
    ----------
    sizes, config
        Sizes, and the cell whose packed words are given.

    Members
    -------
    bc_*
        A beat of the broadcast, see `beat_signature`; it can be read two cycles later.
    r_en, r_token, r_word : In
        Address of a word; every token's buffer begins at word 0. Without ``r_token`` there is one.
    v_unpack : In(1)
        One cycle after ``r_en``: load the output registers.
    x, total, shift : Out
        Activations as `Cell` takes them, sums and shifts of the word's blocks, two cycles after
        ``r_en``, held.
    """

    def __init__(self, *, sizes: XBufferSizes, config: CellConfig) -> None:
        self.sizes, self.config = sizes, config
        blocks = sizes.word_blocks
        super().__init__(
            beat_signature(sizes)
            | {
                "r_en": In(1),
                **token_member(sizes, "r_token"),
                "r_word": In(sizes.word_bits),
                "v_unpack": In(1),
                "x": Out(64).array(blocks * config.n_packed),
                "total": Out(signed(13)).array(blocks),
                "shift": Out(5).array(blocks),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build a register for the beat, the banks, and the output registers."""
        m = Module()
        sizes, blocks = self.sizes, self.sizes.word_blocks
        writes = Signal()
        address = Signal(sizes.row_bits + sizes.token_bits, reset_less=True)
        mask = Signal(sizes.n_groups, reset_less=True)
        stored = []
        m.d.sync += writes.eq(self.bc_en)
        with m.If(self.bc_en):
            m.d.sync += [
                address.eq(Cat(self.bc_row, *self._token("bc_token"))),
                mask.eq(self.bc_mask),
            ]
            for group in range(sizes.n_groups):
                block = Signal(8 * MX_BLOCK + 18, name=f"block{group}", reset_less=True)
                m.d.sync += block.eq(
                    Cat(
                        self._stored(self.bc_codes[group]),
                        self.bc_shift[group],
                        self.bc_sum[group],
                    )
                )
                stored.append(block)
        bank_bits = (sizes.n_banks - 1).bit_length()
        words = []
        for bank in range(sizes.n_banks):
            memory = Sram(depth=1 << len(address), n_lanes=blocks, lane_bits=8 * MX_BLOCK + 18)
            m.submodules[f"bank{bank}"] = memory
            mine = slice(bank * blocks, (bank + 1) * blocks)
            reads: Value = self.r_en
            if bank_bits:
                reads = reads & (self.r_word[:bank_bits] == bank)
            m.d.comb += [
                memory.w_en.eq(writes),
                memory.w_addr.eq(address),
                memory.w_mask.eq(mask[mine]),
                memory.w_data.eq(Cat(*stored[mine])),
                memory.r_en.eq(reads),
                memory.r_addr.eq(Cat(self.r_word[bank_bits:], *self._token("r_token"))),
            ]
            words.append(memory.r_data)
        chosen = Signal(max(1, bank_bits), reset_less=True)
        with m.If(self.r_en):
            m.d.sync += chosen.eq(self.r_word[:bank_bits])
        word: Value = words[0]
        for bank in range(1, sizes.n_banks):
            word = Mux(chosen == bank, words[bank], word)
        self._unpack(m, word, opaque_mask(m, platform, "digits", _DIGITS))
        return m

    def _token(self, name: str) -> list[Value]:
        return [getattr(self, name)] if self.sizes.token_bits else []

    def _stored(self, codes: Value) -> Value:
        """Put a block's codes, plus 128, in the order in which packed words take them."""
        parts = []
        for pair in range(0, self.config.n_packed, 2):
            for digit in range(4):
                for packed in (pair, pair + 1):
                    at = 8 * self.config.lane(packed, digit)
                    parts += [codes[at : at + 7], ~codes[at + 7]]
        return Cat(*parts)

    def _unpack(self, m: Module, word: Value, mask: Value) -> None:
        config = self.config
        for block in range(self.sizes.word_blocks):
            at = block * (8 * MX_BLOCK + 18)
            shift = Signal(5, name=f"shift_{block}", reset_less=True)
            total = Signal(signed(13), name=f"total_{block}", reset_less=True)
            end = at + 8 * MX_BLOCK
            with m.If(self.v_unpack):
                m.d.sync += [
                    shift.eq(word[end : end + 5]),
                    total.eq(word[end + 5 : end + 18].as_signed()),
                ]
            m.d.comb += [self.shift[block].eq(shift), self.total[block].eq(total)]
            for packed in range(config.n_packed):
                piece = word[at + 64 * (packed // 2) :][:64]
                digits = piece[8 * (packed % 2) :] & mask
                x = Signal(64, name=f"x_{block}_{packed}", reset_less=True)
                with m.If(self.v_unpack):
                    m.d.sync += x.eq(digits - _BIAS if config.is_packed else digits)
                m.d.comb += self.x[block * config.n_packed + packed].eq(x)
