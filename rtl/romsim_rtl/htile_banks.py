"""Banks of MXINT8 words in a tile: the K and V caches and the query buffer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl.attention_sizes import CODES_BITS, SHIFT_BITS
from romsim_rtl.memory import Sram, address_bits

__all__ = ["BlockBank"]


class BlockBank(wiring.Component):
    """SRAM words of blocks of 32 codes and their exponents (or other words), one read a cycle.

    With more than one bank, bank ``x`` holds the blocks that lane group ``x`` of the broadcast
    brings, so that blocks of one beat that belong to different words never meet at a write port;
    the read port then joins a word from the banks.

    Parameters
    ----------
    depth
        Words.
    n_blocks
        Blocks of 32 in a word.
    n_banks
        Banks; a power of two.
    code_bits, block_bits
        Of a block: its codes, and its exponent or what else it has; 0: it has nothing.
    copies
        Whether words are copied from one address to another.

    Members
    -------
    w_en, w_addr, w_mask, w_codes, w_shifts
        For each bank, a write of the blocks in the mask.
    c_en, c_addr
        Write the word that was read in the last cycle; with ``copies``.
    r_en, r_addr, r_group
        Read; ``r_group`` is the lane group that brought the word's first block.
    codes, shifts : Out
        The word, one cycle later, block 0 in the least significant bits.
    """

    def __init__(
        self,
        *,
        depth: int,
        n_blocks: int,
        n_banks: int,
        code_bits: int = CODES_BITS,
        block_bits: int = SHIFT_BITS,
        copies: bool = False,
    ) -> None:
        self._copies = copies
        self.depth, self.n_blocks, self.n_banks = depth, n_blocks, n_banks
        self._bits = {"codes": code_bits} | ({"shifts": block_bits} if block_bits else {})
        super().__init__(
            {
                "w_en": In(1).array(n_banks),
                "w_addr": In(address_bits(depth)).array(n_banks),
                "w_mask": In(n_blocks).array(n_banks),
                "r_en": In(1),
                "r_addr": In(address_bits(depth)),
            }
            | {f"w_{kind}": In(bits * n_blocks).array(n_banks) for kind, bits in self._bits.items()}
            | {kind: Out(bits * n_blocks) for kind, bits in self._bits.items()}
            | ({"r_group": In(address_bits(n_banks))} if n_banks > 1 else {})
            | ({"c_en": In(1), "c_addr": In(address_bits(depth))} if copies else {})
        )

    def elaborate(self, platform: Any) -> Module:
        """Build the banks and the join."""
        m = Module()
        group: Any = None
        if self.n_banks > 1:
            group = Signal(address_bits(self.n_banks), reset_less=True)
            with m.If(self.r_en):
                m.d.sync += group.eq(self.r_group)
        for kind, bits in self._bits.items():
            words = []
            for bank in range(self.n_banks):
                sram = Sram(depth=self.depth, n_lanes=self.n_blocks, lane_bits=bits)
                m.submodules[f"{kind}{bank}"] = sram
                m.d.comb += [
                    sram.w_en.eq(self.w_en[bank]),
                    sram.w_addr.eq(self.w_addr[bank]),
                    sram.w_mask.eq(self.w_mask[bank]),
                    sram.w_data.eq(getattr(self, f"w_{kind}")[bank]),
                    sram.r_en.eq(self.r_en),
                    sram.r_addr.eq(self.r_addr),
                ]
                if self._copies:
                    with m.If(self.c_en):
                        m.d.comb += [
                            sram.w_en.eq(1),
                            sram.w_addr.eq(self.c_addr),
                            sram.w_mask.eq((1 << self.n_blocks) - 1),
                            sram.w_data.eq(sram.r_data),
                        ]
                words.append(sram.r_data)
            m.d.comb += getattr(self, kind).eq(self._join(words, group, bits))
        return m

    def _join(self, words: list[Any], group: Any, bits: int) -> Any:
        if self.n_banks == 1:
            return words[0]
        blocks = []
        for index in range(self.n_blocks):
            part = slice(index * bits, (index + 1) * bits)
            block = words[self.n_banks - 1][part]
            for bank in reversed(range(self.n_banks - 1)):
                # bank x has the word's block x - group
                wanted = (bank - index) % self.n_banks
                block = Mux(group == wanted, words[bank][part], block)
            blocks.append(block)
        return Cat(*blocks)
