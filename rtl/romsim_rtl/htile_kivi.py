"""A tile's banks and decoders for KIVI: words in windows, codes behind them (docs/kv.md, 2, 4)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.attention_sizes import CODES_BITS, AttentionSizes
from romsim_rtl.half_words import SIGNIFICAND_BITS, WORD_FRAC, split_word, to_integer
from romsim_rtl.htile_banks import BlockBank
from romsim_rtl.htile_words import SEEN_BITS
from romsim_rtl.kivi_control import kivi_of, window_words
from romsim_rtl.primitives import lane_signals

__all__ = ["build_kivi_banks", "decode_kivi"]

_HALF = MX_BLOCK // 2


def build_kivi_banks(m: Module, tile: Any, *, is_code: Any, is_mine: Any) -> dict[str, Any]:
    """Add windows and banks of codes; return what they read, one cycle after the command.

    Parameters
    ----------
    tile
        The `HTile`; its ``late`` is what is read and written after attention.
    is_code, is_mine
        This tile's token has codes; the broadcast writes here.

    Returns
    -------
    dict
        ``k``, ``v``: words of half a block each; ``k_coded``, ``v_coded``: banks of codes.
    """
    sizes: AttentionSizes = tile.sizes
    kivi, command, late, write = kivi_of(sizes), tile.command, tile.late, tile.write
    is_late = late.tile == tile.tile if sizes.n_tiles > 1 else 1
    shape: dict[str, Any] = {"n_blocks": sizes.word_blocks, "n_banks": sizes.n_banks}
    found: dict[str, Any] = {}
    second = Signal(name="reads_second", reset_less=True)
    reads = {"k": command.qk, "v": command.pv}
    late_reads = {"k": late.read_k & is_late, "v": late.read_v & is_late}
    with m.If(command.qk | command.pv | late.read_k | late.read_v):
        m.d.sync += second.eq(Mux(late.read_k | late.read_v, late.second, ~command.first_half))
    for kind, enable in reads.items():
        halves = []
        for name, is_half in ((kind, 0), (f"{kind}_second", 1)):
            bank = BlockBank(
                depth=window_words(sizes, kind), code_bits=CODES_BITS, block_bits=0, **shape
            )
            m.submodules[name] = bank
            by_attention = enable & ~is_code & (command.first_half != is_half)
            m.d.comb += [
                bank.r_en.eq(by_attention | (late_reads[kind] & (late.second == is_half))),
                bank.r_addr.eq(Mux(late_reads[kind], late.addr, command.window)),
            ]
            if sizes.n_banks > 1:
                m.d.comb += bank.r_group.eq(Mux(late_reads[kind], late.group, command.bank_group))
            for index in range(sizes.n_banks):
                m.d.comb += [
                    bank.w_en[index].eq(getattr(write, f"{kind}_en")[index] & is_mine),
                    bank.w_addr[index].eq(write.kv_addr[index]),
                    bank.w_mask[index].eq(write.mask[index]),
                    bank.w_codes[index].eq((write.second if is_half else write.codes)[index]),
                ]
            halves.append(bank.codes)
        found[kind] = Mux(second, halves[1], halves[0])

        bits = kivi.key_bits if kind == "k" else kivi.value_bits
        coded = BlockBank(
            depth=sizes.bank_words,
            code_bits=bits * MX_BLOCK,
            block_bits=0 if kind == "k" else 32,
            **shape,
        )
        m.submodules[f"coded_{kind}"] = found[f"{kind}_coded"] = coded
        m.d.comb += [
            coded.r_en.eq(enable & is_code & command.first_half),
            coded.r_addr.eq(command.bank),
        ]
        if sizes.n_banks > 1:
            m.d.comb += coded.r_group.eq(command.bank_group)
        code = late.codes[: bits * MX_BLOCK]
        for index in range(sizes.n_banks):
            m.d.comb += [
                coded.w_en[index].eq(getattr(late, f"write_{kind}")[index] & is_late),
                coded.w_addr[index].eq(late.w_addr),
                coded.w_mask[index].eq(late.w_mask),
                coded.w_codes[index].eq(code.replicate(sizes.word_blocks)),
            ]
            if kind == "v":
                affine = late.affine.replicate(sizes.word_blocks)
                m.d.comb += coded.w_shifts[index].eq(affine)
    # half a block to the controller, in the cycle after it is read
    block, is_read, is_v = Signal.like(late.block), Signal(), Signal()
    m.d.sync += [
        is_read.eq((late.read_k | late.read_v) & is_late),
        block.eq(late.block),
        is_v.eq(late.read_v),
    ]
    with m.If(is_read):
        m.d.sync += tile.late_word.eq(
            Mux(is_v, found["v"], found["k"]).word_select(block, CODES_BITS)
        )
    return found


def decode_kivi(
    m: Module,
    valid: list[Any],
    name: str,
    *,
    words: Any,
    codes: Any,
    affine: list[Any],
    is_code: Any,
    is_second: Any,
    is_absent: Any = None,
) -> list[Signal]:
    """Integers of a block: of half of its words, or of all its codes; two stages.

    Parameters
    ----------
    valid
        Enables of the stages.
    words, codes
        Sixteen words; 32 codes.
    affine
        Zero, and scale above it: of each channel, or one for all.
    is_code, is_second
        Codes count, not words; the read is a second one, in which codes count no more.
    is_absent
        The word has no such block; ``None`` if it always has.
    """
    bits = len(codes) // MX_BLOCK
    bases = lane_signals(f"base{name}_", MX_BLOCK, SEEN_BITS)
    scaled = lane_signals(f"scaled{name}_", MX_BLOCK, bits + SIGNIFICAND_BITS, is_signed=False)
    exponents = [
        Signal(5, name=f"exponent{name}_{index}", reset_less=True) for index in range(len(affine))
    ]
    is_coded = is_code & ~is_second
    is_word: Any = ~is_code
    if is_absent is not None:
        is_coded, is_word = is_coded & ~is_absent, is_word & ~is_absent
    zeros, scales = [], []
    for index, one in enumerate(affine):
        significand, exponent = split_word(one[16:])
        zero = Signal(signed(SEEN_BITS), name=f"zero{name}_{index}")
        m.d.comb += zero.eq(to_integer(one[:16], SEEN_BITS))
        zeros.append(zero)
        scales.append(significand)
        with m.If(valid[0]):
            m.d.sync += exponents[index].eq(exponent)
    seen = lane_signals(f"seen{name}_", MX_BLOCK, SEEN_BITS)
    for lane in range(MX_BLOCK):
        half, inside = divmod(lane, _HALF)
        of = lane % len(affine)
        is_there = is_word & (is_second if half else ~is_second)
        word = to_integer(words[16 * inside : 16 * inside + 16], SEEN_BITS)
        code = codes[bits * lane : bits * (lane + 1)]
        with m.If(valid[0]):
            m.d.sync += [
                bases[lane].eq(Mux(is_coded, zeros[of], Mux(is_there, word, 0))),
                scaled[lane].eq(Mux(is_coded, code * scales[of], 0)),
            ]
        size = Cat(scaled[lane] << exponents[of])[WORD_FRAC : WORD_FRAC + SEEN_BITS]
        with m.If(valid[1]):
            m.d.sync += seen[lane].eq((bases[lane] + size)[:SEEN_BITS])
    return seen
