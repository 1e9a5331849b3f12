"""Unit V: lane groups under one controller, with argmax, broadcast and the embedding's input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.numerics import Numerics
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec
from romsim_rtl.affine_encoder import share_bounds
from romsim_rtl.argmax import Argmax
from romsim_rtl.encoding import WORD_BITS
from romsim_rtl.kv_words import KV_WORDS
from romsim_rtl.memory import address_bits, replicate
from romsim_rtl.vector_control import VectorControl, VectorSizes, check_latency
from romsim_rtl.vector_embed import EmbedWord
from romsim_rtl.vector_embed_input import build_embed_input
from romsim_rtl.vector_group import GroupConfig, VectorGroup
from romsim_rtl.vector_results import build_broadcast, build_results
from romsim_rtl.vector_scalars import build_attn_scalars, build_norm_scalars, build_rope_scalars
from romsim_rtl.vector_streams import build_streams

__all__ = ["GROUP_MODULE", "VectorUnit"]

GROUP_MODULE = "romsim_vector_group"
"""Verilog module of one lane group."""


class VectorUnit(wiring.Component):
    """The vector unit (docs/machine.md, section 1; docs/rtl.md, sections 2 and 3).

    Parameters
    ----------
    target
        The chip.
    spec
        The model's sizes.
    numerics
        Fraction bits.
    tables
        ``SIN``, ``SIG``, ``RSQ`` and ``RCP`` of the numerics page.
    phase_increments
        ``inc_j`` of every rotary pair.
    query_scale
        ``CQ``.
    n_gain_words
        Words of ``n_lanes`` gains in the gain ROM, whose image is ``gains.hex``.
    gain_words
        The gain ROM's contents for simulation in Amaranth; never part of the Verilog.

    Members
    -------
    start, instr, pos, busy
        Issue. ``pos`` is valid with ``start``.
    ly_*, em_*
        From unit L: rows of results, and words of the embedding's row, whose first digit plane
        comes at least 3 cycles after ``start``; a row's words come in order, the planes of a word
        one after another. A word in cycle c is in X after cycle c + 4.
    rd_token
        Token whose O, D and l are read.
    o_*, l_*, d_*
        Read ports of unit H: data one cycle after an address with its enable.
    bc_*
        Broadcast to the tiles, after ``broadcast_cycles`` registers.
    lg_*
        Rows of logits as they come.
    best_row, best_value
        The running argmax, 4 cycles after the last row of logits.
    sat_count : Out(32)
        Clips of unit V since reset.

    Raises
    ------
    SpecError
        If the target or the model is not one that the RTL can be built for.
    """

    def __init__(
        self,
        *,
        target: Target,
        spec: ModelSpec,
        numerics: Numerics,
        tables: Mapping[str, Sequence[int]],
        phase_increments: Sequence[int],
        query_scale: int,
        n_gain_words: int,
        gain_words: Sequence[int] = (),
    ) -> None:
        array = target.array
        _check(target, spec, numerics)
        if len(phase_increments) != spec.head_dim // 2:
            raise SpecError(
                f"phase_increments must be one for each of {spec.head_dim // 2} pairs, "
                f"not {len(phase_increments)!r}"
            )
        self.array, self.spec, self.numerics, self.tables = array, spec, numerics, tables
        self.increments, self.query_scale = phase_increments, query_scale
        self.n_gain_words, self.gain_words = n_gain_words, gain_words
        self.sizes = sizes = VectorSizes(
            n_lanes=target.vector.n_lanes,
            dim=spec.dim,
            n_heads=spec.n_heads,
            n_kv_heads=spec.n_kv_heads,
            head_dim=spec.head_dim,
            hidden_dim=spec.hidden_dim,
            vocab_size=spec.vocab_size,
            row_words=-(-spec.dim // array.word_codes),
            n_inflight=target.schedule.n_inflight,
            broadcast_cycles=target.network.broadcast_cycles,
            collect_cycles=target.network.collect_cycles,
            encode_cycles=KV_WORDS[target.kv.codec].encode_cycles,
            sink_position=target.kv.sinks and target.kv.sinks + target.kv.window - 1,
        )
        self.codec = target.kv.codec
        self.kv_blocks = max(1, target.kv.group // MX_BLOCK) if self.codec != "kivi" else 1
        longest = max(2 * spec.hidden_dim, sizes.qkv_rows, spec.dim)
        self.x_bits = address_bits(sizes.beats(spec.dim))
        # one word more than the rows need: the up half's last word may stand past them
        self.y_bits = address_bits(sizes.beats(longest) + 1)
        self.o_bits = address_bits(sizes.beats(sizes.q_dim))
        n_blocks = max(longest // 32 + 1, 2)
        if sizes.sink_position:
            n_blocks = max(n_blocks, sizes.rope_beats * sizes.n_groups)
        self.block_bits = address_bits(n_blocks + sizes.n_groups)
        n_lanes, n_groups = sizes.n_lanes, sizes.n_groups
        word = signed(32)
        words = KV_WORDS[self.codec]
        encoded: dict[str, Any] = {}
        if words.is_affine:
            encoded["bc_affine"] = Out(words.block_bits).array(n_groups)
        if words.has_halves:
            encoded["bc_second"] = Out(words.read_bits).array(n_groups)
        super().__init__(
            {
                "start": In(1),
                "instr": In(WORD_BITS),
                "pos": In(16),
                "busy": Out(1),
                "ly_valid": In(1),
                "ly_token": In(3),
                "ly_row": In(20),
                "ly_mask": In(n_lanes),
                "ly_head": In(1),
                "ly_data": In(word).array(n_lanes),
                "em_valid": In(1),
                "em_word": In(10),
                "em_plane": In(4),
                "em_data": In(array.word_bits),
                "rd_token": Out(3),
                "o_en": Out(1),
                "o_addr": Out(self.o_bits),
                "o_data": In(signed(64)).array(n_lanes),
                "l_en": Out(1),
                "l_addr": Out(address_bits(spec.n_heads)),
                "l_data": In(32),
                "d_en": Out(1),
                "d_addr": Out(self.y_bits),
                "d_data": In(word).array(n_lanes),
                "d_valid": In(1),
                "bc_kind": Out(2),
                "bc_token": Out(3),
                "bc_layer": Out(8),
                "bc_pos": Out(16),
                "bc_block": Out(self.block_bits),
                "bc_mask": Out(n_groups),
                "bc_codes": Out(256).array(n_groups),
                "bc_shift": Out(5).array(n_groups),
                "bc_sum": Out(signed(13)).array(n_groups),
                "lg_valid": Out(1),
                "lg_row": Out(20),
                "lg_mask": Out(n_lanes),
                "lg_data": Out(word).array(n_lanes),
                "best_row": Out(20),
                "best_value": Out(word),
                "sat_count": Out(32),
            }
            | encoded
        )

    @property
    def group_config(self) -> GroupConfig:
        """What the lane groups are built for."""
        sizes, spec, array = self.sizes, self.spec, self.array
        banks = sizes.n_inflight if spec.has_sub_norms else 1
        return GroupConfig(
            x_depth=sizes.n_inflight << self.x_bits,
            y_depth=(1 if banks > 1 else sizes.n_inflight) << self.y_bits,
            y_banks=banks,
            sc_depth=(2 if sizes.sink_position else sizes.n_inflight) * (sizes.head_dim // 32),
            has_sink_query=sizes.sink_position > 0,
            kv_blocks=self.kv_blocks,
            activation=spec.activation,
            has_sub_norms=spec.has_sub_norms,
            turns_up=spec.hidden_dim % sizes.n_lanes != 0,
            linear_frac=self.numerics.linear_frac,
            query_scale=self.query_scale,
            sigmoid=self.tables["SIG"],
            codec=self.codec,
            reciprocals=self.tables["RCP"],
            embed=EmbedWord(
                lane_bits=array.lane_bits,
                is_ternary=array.encoding == "ternary",
                has_minima=array.min_bits > 0,
            ),
        )

    def elaborate(self, platform: Any) -> Module:
        """Wire the controller, the lane groups and the ports."""
        m = Module()
        sizes = self.sizes
        m.submodules.control = control = VectorControl(sizes=sizes)
        pos = Signal(16, name="pos_held", reset_less=True)
        with m.If(self.start):
            m.d.sync += pos.eq(self.pos)
        m.d.comb += [
            control.start.eq(self.start),
            control.instr.eq(self.instr),
            self.busy.eq(control.busy),
            self.rd_token.eq(control.token),
        ]
        config = self.group_config
        groups = replicate(
            m,
            platform,
            "group",
            GROUP_MODULE,
            lambda: VectorGroup(config=config),
            sizes.n_groups,
        )
        n_blocks = config.kv_blocks
        for first in range(0, sizes.n_groups, n_blocks) if n_blocks > 1 else ():
            share_bounds(m, groups[first : first + n_blocks])
        streams = build_streams(m, self, control, groups)
        build_norm_scalars(m, self, control, groups, streams)
        build_rope_scalars(m, self, control, groups, streams, pos)
        build_attn_scalars(m, self, control, groups, streams)
        embedded = build_embed_input(m, self, control, groups)
        results = build_results(m, self, control, groups, streams, embedded)
        build_broadcast(m, self, control, groups, results, pos)
        self._rows(m, groups)
        return m

    def _rows(self, m: Module, groups: list[Any]) -> None:
        """Rows from unit L: into Y, or as logits to the argmax."""
        sizes = self.sizes
        shift = (sizes.n_lanes - 1).bit_length()
        word = self.ly_row[shift : shift + self.y_bits]
        for index, group in enumerate(groups):
            mask = self.ly_mask[32 * index : 32 * index + 32]
            m.d.comb += [
                group.ly_en.eq(self.ly_valid & ~self.ly_head),
                group.ly_mask.eq(mask),
                group.ly_addr.eq(self.y_address(word, self.ly_token)),
            ]
            m.d.comb += [group.ly[lane].eq(self.ly_data[32 * index + lane]) for lane in range(32)]
            if self.group_config.y_banks > 1:
                m.d.comb += group.ly_bank.eq(self.ly_token)
        m.submodules.argmax = argmax = Argmax(n_lanes=sizes.n_lanes, row_bits=20)
        is_logits = Signal()
        m.d.comb += [
            is_logits.eq(self.ly_valid & self.ly_head),
            argmax.valid.eq(is_logits),
            argmax.row.eq(self.ly_row),
            argmax.mask.eq(self.ly_mask),
            self.best_row.eq(argmax.best_row),
            self.best_value.eq(argmax.best_value),
            self.lg_valid.eq(is_logits),
            self.lg_row.eq(self.ly_row),
            self.lg_mask.eq(self.ly_mask),
        ]
        for lane in range(sizes.n_lanes):
            m.d.comb += [
                argmax.data[lane].eq(self.ly_data[lane]),
                self.lg_data[lane].eq(self.ly_data[lane]),
            ]

    @staticmethod
    def unread_bits() -> dict[str, str]:
        """Ports of which some bits are not read, for the emission of Verilog."""
        return {
            "instr": "fields of other units",
            "ly_token": "fewer tokens in flight than the field can name",
            "ly_row": "rows that no matrix has",
            "em_word": "words that no row has",
        }

    def token_bits(self) -> int:
        """Bits of a token index in buffer addresses; 0 for one token."""
        return (self.sizes.n_inflight - 1).bit_length()

    def x_address(self, word: Value, token: Value) -> Value:
        """Address in the X buffer."""
        return Cat(_padded(word, self.x_bits), token[: self.token_bits()])

    def y_address(self, word: Value, token: Value) -> Value:
        """Address in the Y buffer, or in one bank of it."""
        if self.group_config.y_banks > 1:
            return _padded(word, self.y_bits)
        return Cat(_padded(word, self.y_bits), token[: self.token_bits()])


def _padded(word: Value, bits: int) -> Value:
    return Cat(word, Const(0, bits))[:bits]


def _check(target: Target, spec: ModelSpec, numerics: Numerics) -> None:
    """Refuse what the RTL has no hardware for."""
    array = target.array
    check_latency(target.latency)
    if target.embedding.input != "rom":
        raise SpecError(
            f"embedding.input of an RTL target must be 'rom', not {target.embedding.input!r}"
        )
    n_lanes = target.vector.n_lanes
    if array.word_codes & (array.word_codes - 1) or array.word_codes > n_lanes:
        raise SpecError(
            f"word_codes of an RTL target must be a power of two up to its {n_lanes} vector "
            f"lanes, not {array.word_codes!r}"
        )
    if array.scale_group < min(32, array.word_codes):
        raise SpecError(
            f"scale_group of an RTL target must be 32 or more, or a whole word of "
            f"{array.word_codes} codes, not {array.scale_group!r}"
        )
    for name, value, wanted in (
        ("scale_bits", array.scale_bits, (16,)),
        ("min_bits", array.min_bits, (0, 16)),
        ("zero_bits", array.zero_bits, (0,)),
    ):
        if value not in wanted:
            choices = " or ".join(str(one) for one in wanted)
            raise SpecError(f"{name} of an RTL target must be {choices}, not {value!r}")
    if spec.activation == "silu" and numerics.linear_frac != 16:
        raise SpecError(
            "linear_frac of a model with SiLU must be 16, for which its table is made, "
            f"not {numerics.linear_frac!r}"
        )
    if numerics.act_block != 32:
        raise SpecError(f"act_block of the RTL must be 32, not {numerics.act_block!r}")
    if not 1 <= numerics.residual_frac <= 23:
        raise SpecError(
            f"residual_frac of the RTL must be from 1 to 23, not {numerics.residual_frac!r}"
        )
