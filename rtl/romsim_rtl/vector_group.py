"""Thirty-two lanes of the vector unit: buffers, operators, result register, MXINT8 quantiser.

All lane groups get the same control from `romsim_rtl.vector_unit.VectorUnit`, so that the group is
emitted once and instantiated by name. Stage ``s[i]`` is the cycle ``i`` after a word of the main
stream left its buffer; every operator ends in the one result register, which feeds the X and Y
buffers and the quantiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.affine_encoder import AffineEncoder, bound_members
from romsim_rtl.kv_words import KV_WORDS
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.mx_quantizer import MxQuantizer
from romsim_rtl.primitives import add_tree, lane_signals, popcount, saturate32, wire
from romsim_rtl.vector_attn_out import build_attn_out
from romsim_rtl.vector_embed import EmbedWord, build_embed
from romsim_rtl.vector_glu import build_glu
from romsim_rtl.vector_norm import build_norm
from romsim_rtl.vector_rope import build_rope
from romsim_rtl.word_encoder import WordEncoder

__all__ = ["LANES", "GroupConfig", "VectorGroup"]

LANES = MX_BLOCK
"""Lanes of a group in a chip; fewer are built only to be measured (`romsim.synthesis_points`)."""

_ANGLE_BITS = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """What a lane group is built for.

    Parameters
    ----------
    x_depth, y_depth
        Words of the X buffer, and of one bank of the Y buffer.
    y_banks
        Banks of the Y buffer: one for each in-flight token where unit V writes Y too.
    sc_depth
        Words of 16 pairs of the SC buffer.
    activation
        ``silu`` or ``relu2``.
    has_sub_norms
        Whether norms read Y, and attn_out and glu write it.
    turns_up
        Whether the up half of Y does not begin on a word, so that its lanes are turned outside.
    linear_frac
        ``F_A``.
    query_scale
        ``CQ``.
    sigmoid
        Table ``SIG``.
    embed
        How codes stand in a ROM word.
    codec
        Of the KV cache, one of `KV_WORDS`.
    reciprocals
        Table ``RCP``.
    has_sink_query
        Whether rope rotates queries once more, for a window's sinks.
    kv_blocks
        Blocks of a head that share a zero and a scale, side by side in the lanes.
    n_lanes
        Lanes, an even number; a chip's groups have `LANES`.
    """

    x_depth: int
    y_depth: int
    y_banks: int
    sc_depth: int
    activation: str
    has_sub_norms: bool
    turns_up: bool
    linear_frac: int
    query_scale: int
    sigmoid: Sequence[int]
    embed: EmbedWord
    codec: str
    reciprocals: Sequence[int]
    has_sink_query: bool = False
    kv_blocks: int = 1
    n_lanes: int = LANES


class VectorGroup(wiring.Component):
    """Lanes of one block of 32.

    Parameters
    ----------
    config
        Sizes and choices.

    Members
    -------
    is_norm, is_rope, is_attn, is_resid, is_glu, from_y : In(1)
        The operator that runs; embed if none.
    s, p : In(6), In(4)
        Stages of the main stream, and of the first pass of a norm.
    sum_en, u1 : In(1)
        A word of Y and D is there; one cycle later: it was of the up half.
    at_sinks : In(1)
        The word of Y and D is for the sinks' query; if there is one.
    in_mask, out_mask : In(32)
        Lanes that count in the words that arrive, and in the result that is loaded.
    res_en, v_valid, v_quant, v_x, v_y : In(1)
        Load the result register; it is valid; quantise it; write it to X, to Y.
    n_sat : Out(7)
        Clips in this group's lanes, each counted in one cycle.
    affine_codes, affine : Out
        Of an affine KV codec, the encoder's codes, and zero and scale.
    low, high, other_low, other_high
        Of a KV codec whose values share a scale with other groups' lanes, members of the encoder.
    words : Out
        Of a KV codec of 16-bit words, those of the block that is quantised.
    """

    def __init__(self, *, config: GroupConfig) -> None:
        self.config = config
        n_lanes, n_pairs = config.n_lanes, config.n_lanes // 2
        lanes = signed(32)
        members: dict[str, Any] = {
            name: In(1) for name in ("is_norm", "is_rope", "is_attn", "is_resid", "is_glu")
        }
        members |= {"s": In(6), "p": In(4), "sum_en": In(1), "u1": In(1)}
        members |= {"in_mask": In(n_lanes), "out_mask": In(n_lanes), "res_en": In(1)}
        members |= {"v_valid": In(1), "v_quant": In(1), "v_x": In(1)}
        # buffers
        members |= {"x_r_en": In(1), "x_r_addr": In(address_bits(config.x_depth))}
        members |= {"x_w_addr": In(address_bits(config.x_depth))}
        members |= {"y_r_en": In(1), "y_r_addr": In(address_bits(config.y_depth))}
        members |= {"ly_en": In(1), "ly_addr": In(address_bits(config.y_depth))}
        members |= {"ly_mask": In(n_lanes), "ly": In(lanes).array(n_lanes)}
        if config.has_sub_norms:
            members |= {"from_y": In(1), "v_y": In(1)}
            members |= {"y_w_addr": In(address_bits(config.y_depth))}
        if config.y_banks > 1:
            bank = address_bits(config.y_banks)
            members |= {"y_r_bank": In(bank), "ly_bank": In(bank), "y_w_bank": In(bank)}
        members |= {"d_valid": In(1), "d": In(lanes).array(n_lanes)}
        members |= {"o": In(signed(64)).array(n_lanes), "gain": In(lanes).array(n_lanes)}
        if config.turns_up:
            members |= {name: Out(lanes).array(n_lanes) for name in ("sums", "sums_before")}
            members |= {"turned": In(lanes).array(n_lanes)}
        # norm
        members |= {"u_left": In(4), "u_right": In(4), "x_left": In(4), "scale": In(29)}
        members |= {"n_right": In(6), "gain_right": In(6)}
        # rope
        members |= {"is_q": In(1), "turns": In(1)}
        if config.has_sink_query:
            members["at_sinks"] = In(1)
        members |= {"sc_r_en": In(1), "sc_r_addr": In(address_bits(config.sc_depth))}
        members |= {"sc_w_en": In(1), "sc_w_addr": In(address_bits(config.sc_depth))}
        members |= {"sc_w_mask": In(n_pairs), "sc_w_data": In(2 * _ANGLE_BITS * n_pairs)}
        # attn_out
        members |= {"l_length": In(6), "l_recip": In(32)}
        members |= config.embed.members(n_lanes)
        # results
        members |= {"magnitude": Out(32), "squares": Out(54), "n_sat": Out(7)}
        members |= {"codes": Out(8 * n_lanes), "shift": Out(5), "total": Out(signed(13))}
        words = KV_WORDS[config.codec]
        if words.is_affine:
            members |= {"affine_codes": Out(words.code_bits), "affine": Out(words.block_bits)}
            if config.kv_blocks > 1:
                members |= bound_members(32, config.kv_blocks - 1)
        if words.has_halves:
            members |= {"words": Out(words.code_bits)}
        super().__init__(members)

    @property
    def n_lanes(self) -> int:
        """Lanes of the group."""
        return self.config.n_lanes

    def with_lanes(self, n_lanes: int) -> VectorGroup:
        """Return the same group with other lanes, to be measured (`romsim_rtl.synthesis`)."""
        return VectorGroup(config=replace(self.config, n_lanes=n_lanes))

    def elaborate(self, platform: Any) -> Module:
        """Build buffers, operators and quantiser."""
        m = Module()
        config, n_lanes = self.config, self.config.n_lanes
        v = lane_signals("v", n_lanes, 32)
        v_mask = Signal(n_lanes, reset_less=True)
        x = self._x_buffer(m, v, v_mask)
        y = self._y_buffer(m, v, v_mask)
        pairs = self._sc_buffer(m)

        sums = lane_signals("sum", n_lanes, 32)
        sum_clips = Signal(n_lanes, reset_less=True)
        totals = [
            saturate32(wire(m, y[lane] + Mux(self.d_valid, self.d[lane], 0), f"y_and_d{lane}"))
            for lane in range(n_lanes)
        ]
        with m.If(self.sum_en):
            for lane, (total, is_clipped) in enumerate(totals):
                if config.has_sink_query:  # the same sums come again and are counted then
                    is_clipped = is_clipped & ~self.at_sinks
                m.d.sync += [
                    sums[lane].eq(Mux(self.in_mask[lane], total, 0)),
                    sum_clips[lane].eq(is_clipped & self.in_mask[lane]),
                ]
        turned: list[Value] = list(sums)
        if config.turns_up:
            turned = [self.turned[lane] for lane in range(n_lanes)]
            before = lane_signals("before", n_lanes, 32)
            with m.If(self.u1):
                m.d.sync += [before[lane].eq(sums[lane]) for lane in range(n_lanes)]
            m.d.comb += [self.sums[lane].eq(sums[lane]) for lane in range(n_lanes)]
            m.d.comb += [self.sums_before[lane].eq(before[lane]) for lane in range(n_lanes)]

        source: list[Value] = list(x)
        if config.has_sub_norms:
            source = [Mux(self.from_y, y[lane], x[lane]) for lane in range(n_lanes)]
        normed = build_norm(m, self, source)
        roped, rope_clips, rope_clipped = build_rope(m, self, sums, pairs, config.query_scale)
        glued, glu_clips, glu_clipped = build_glu(m, self, sums, turned, config)
        attended = build_attn_out(m, self)
        embedded = build_embed(m, self, config.embed, n_lanes)

        v_clips = Signal(n_lanes, reset_less=True)
        chosen = [
            Mux(
                self.is_norm,
                normed[lane],
                Mux(
                    self.is_rope,
                    roped[lane],
                    Mux(
                        self.is_glu,
                        glued[lane],
                        Mux(
                            self.is_attn,
                            attended[lane],
                            Mux(self.is_resid, x[lane] + sums[lane], embedded[lane]),
                        ),
                    ),
                ),
            )
            for lane in range(n_lanes)
        ]
        values = [saturate32(wire(m, one, f"chosen{lane}")) for lane, one in enumerate(chosen)]
        with m.If(self.res_en):
            m.d.sync += v_mask.eq(self.out_mask)
            for lane, (value, is_clipped) in enumerate(values):
                m.d.sync += [
                    v[lane].eq(Mux(self.out_mask[lane], value, 0)),
                    v_clips[lane].eq(is_clipped & self.out_mask[lane]),
                ]

        m.submodules.quantizer = quantizer = MxQuantizer(n_lanes=n_lanes)
        m.d.comb += [
            quantizer.measure.eq(self.v_valid),
            quantizer.start.eq(self.v_quant),
            self.magnitude.eq(quantizer.magnitude),
            self.codes.eq(quantizer.codes),
            self.shift.eq(quantizer.shift),
            self.total.eq(quantizer.total),
        ]
        m.d.comb += [quantizer.values[lane].eq(v[lane]) for lane in range(n_lanes)]
        words = KV_WORDS[config.codec]
        if words.is_affine:
            m.submodules.encoder = encoder = AffineEncoder(
                code_bits=words.element_bits,
                table=config.reciprocals,
                n_others=config.kv_blocks - 1,
            )
            for name in bound_members(32, config.kv_blocks - 1) if config.kv_blocks > 1 else ():
                ours, theirs = getattr(self, name), getattr(encoder, name)
                for a, b in zip(ours, theirs, strict=True):
                    m.d.comb += b.eq(a) if name.startswith("other") else a.eq(b)
            m.d.comb += [encoder.values[lane].eq(v[lane]) for lane in range(n_lanes)]
            m.d.comb += [
                encoder.start.eq(self.v_quant & self.is_rope),
                self.affine_codes.eq(encoder.codes),
                self.affine.eq(Cat(encoder.zero, encoder.scale)),
            ]
        if words.has_halves:
            m.submodules.rounder = rounder = WordEncoder()
            m.d.comb += [rounder.values[lane].eq(v[lane]) for lane in range(n_lanes)]
            m.d.comb += [
                rounder.start.eq(self.v_quant & self.is_rope),
                self.words.eq(rounder.words),
            ]

        sum_valid = Signal()
        m.d.sync += sum_valid.eq(self.sum_en)
        counted = [
            (sum_valid, sum_clips),
            (rope_clipped, rope_clips),
            (glu_clipped, glu_clips),
            (self.v_valid, v_clips),
        ]
        counted = [(valid, clips) for valid, clips in counted if clips is not None]
        is_counted = Signal()
        m.d.comb += is_counted.eq(Cat(valid & clips.any() for valid, clips in counted).any())
        n_clips = Signal(7, reset_less=True)
        was_counted = Signal()
        m.d.sync += was_counted.eq(is_counted)
        with m.If(is_counted):
            m.d.sync += n_clips.eq(
                add_tree([Mux(valid, popcount(clips), 0) for valid, clips in counted])
            )
        m.d.comb += self.n_sat.eq(Mux(was_counted, n_clips, 0))
        return m

    def _x_buffer(self, m: Module, v: list[Signal], v_mask: Signal) -> list[Value]:
        depth, n_lanes = self.config.x_depth, self.config.n_lanes
        m.submodules.x = memory = Sram(depth=depth, n_lanes=n_lanes, lane_bits=32)
        m.d.comb += [
            memory.r_en.eq(self.x_r_en),
            memory.r_addr.eq(self.x_r_addr),
            memory.w_en.eq(self.v_x),
            memory.w_addr.eq(self.x_w_addr),
            memory.w_mask.eq(v_mask),
            memory.w_data.eq(Cat(*v)),
        ]
        return memory.lanes()

    def _y_buffer(self, m: Module, v: list[Signal], v_mask: Signal) -> list[Value]:
        config = self.config
        banks = []
        rows = Cat(*(self.ly[lane] for lane in range(config.n_lanes)))
        for index in range(config.y_banks):
            memory = Sram(depth=config.y_depth, n_lanes=config.n_lanes, lane_bits=32)
            m.submodules[f"y{index}"] = memory
            banks.append(memory)
            from_l, from_v, reads = self.ly_en, Value.cast(0), self.y_r_en
            if config.has_sub_norms:
                from_v = self.v_y
            if config.y_banks > 1:
                from_l = from_l & (self.ly_bank == index)
                from_v = from_v & (self.y_w_bank == index)
                reads = reads & (self.y_r_bank == index)
            m.d.comb += [memory.r_en.eq(reads), memory.r_addr.eq(self.y_r_addr)]
            if config.has_sub_norms:
                m.d.comb += [
                    memory.w_en.eq(from_l | from_v),
                    memory.w_addr.eq(Mux(from_l, self.ly_addr, self.y_w_addr)),
                    memory.w_mask.eq(Mux(from_l, self.ly_mask, v_mask)),
                    memory.w_data.eq(Mux(from_l, rows, Cat(*v))),
                ]
            else:
                m.d.comb += [
                    memory.w_en.eq(from_l),
                    memory.w_addr.eq(self.ly_addr),
                    memory.w_mask.eq(self.ly_mask),
                    memory.w_data.eq(rows),
                ]
        if len(banks) == 1:
            return banks[0].lanes()
        chosen = Signal(len(self.y_r_bank))
        with m.If(self.y_r_en):
            m.d.sync += chosen.eq(self.y_r_bank)
        words = [bank.lanes() for bank in banks]
        result: list[Value] = words[0]
        for index in range(1, len(banks)):
            result = [
                Mux(chosen == index, word, before)
                for word, before in zip(words[index], result, strict=True)
            ]
        return result

    def _sc_buffer(self, m: Module) -> list[tuple[Value, Value]]:
        n_pairs = self.config.n_lanes // 2
        memory = Sram(depth=self.config.sc_depth, n_lanes=n_pairs, lane_bits=2 * _ANGLE_BITS)
        m.submodules.sc = memory
        m.d.comb += [
            memory.r_en.eq(self.sc_r_en),
            memory.r_addr.eq(self.sc_r_addr),
            memory.w_en.eq(self.sc_w_en),
            memory.w_addr.eq(self.sc_w_addr),
            memory.w_mask.eq(self.sc_w_mask),
            memory.w_data.eq(self.sc_w_data),
        ]
        return [
            (pair[:_ANGLE_BITS].as_signed(), pair[_ANGLE_BITS:].as_signed())
            for pair in memory.lanes(is_signed=False)
        ]
