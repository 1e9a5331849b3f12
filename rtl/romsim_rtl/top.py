"""The chip: sequencer, vector unit, L side, H side and the host port."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.argmax import ARGMAX_CYCLES
from romsim_rtl.clock_gate import DRAIN_CYCLES, gate_clock
from romsim_rtl.die import Die
from romsim_rtl.encoding import OPS, first_row
from romsim_rtl.hside import HSide
from romsim_rtl.instruction import cut_fields
from romsim_rtl.kv_copy import copy_members
from romsim_rtl.kv_hardware import check_kv_hardware
from romsim_rtl.kv_pages import page_members
from romsim_rtl.lora_side import configuration_members
from romsim_rtl.lora_sizes import LORA_CYCLES, LORA_OFF_CYCLES
from romsim_rtl.lside import LSide, LSideConfig
from romsim_rtl.memory import address_bits, replicate
from romsim_rtl.rom_files import program_words
from romsim_rtl.sequencer import TOKEN_CYCLES, Sequencer, SequencerConfig, sequence_members
from romsim_rtl.vector_unit import VectorUnit

__all__ = ["Top"]

_POSITION_BITS = 16

_COUNTERS = ("cycles", "wait", "v", "l", "h", "issued")


class Top(wiring.Component):
    """A whole chip for a compiled description (docs/machine.md, section 1).

    Parameters
    ----------
    description
        What the chip is built for; of its images nothing is read.
    die
        Its sizes; where it is not given, those of the description alone.
    is_packed
        Whether unit L multiplies in the form for a simulator; see `romsim_rtl.cell.CellConfig`.

    Members
    -------
    cmd_valid, cmd_ready, cmd_program, cmd_tokens, cmd_reset
        Host commands; see `romsim_rtl.sequencer.Sequencer`.
    cmd_adapted, cmd_adapter : In(1), In(20)
        The adapter of a command; where adapters are resident.
    cfg_kind, cfg_tile, cfg_addr, cfg_chunk, cfg_data : In
        Loading of adapters between programs; see `romsim_rtl.lora_side.configuration_members`.
    page_en, page_index, page_number : In
        An entry of the block table, between programs; where there is one.
    cmd_sequence, fork_*, copy_* : In
        Where several sequences draw on one pool of pages: `romsim_rtl.sequencer.sequence_members`,
        `romsim_rtl.kv_copy.copy_members`.
    done_valid, done_ready, done_token : Out(1), In(1), Out(20)
        A program is over, and the lowest token among those with the largest logit; it stands
        until the next program with an LM head ends.
    logit_valid, logit_row, logit_mask, logit_data : Out
        Logits as they are computed: row of lane 0, lanes that count, 32 bits a lane.
    event_start, event_busy : Out(3)
        Issue to, and state of, the units V, L, H (bits 0, 1, 2).
    count_cycles, count_wait, count_v, count_l, count_h, count_issued : Out(48)
        Performance counters; see `romsim_rtl.sequencer.Sequencer`.
    count_clipped : Out(32)
        Values that were clipped to 32 bits, since reset.

    Raises
    ------
    SpecError
        If the RTL has no hardware for the target or for the model on it.
    """

    def __init__(
        self, *, description: Description, die: Die | None = None, is_packed: bool = True
    ) -> None:
        self.die = die = die or Die.of(description, is_packed=is_packed)
        for model in die.models:
            _check(model)
            _check_rows(model, die.l_side)
        self.description = description
        target = description.target
        self.l_config, self.h_sizes, self.lora = die.l_side, die.attention, die.lora
        starts, words = program_words(description, die.program_words)
        n_inflight = target.schedule.n_inflight
        self.program_words = words
        self.sequencer_config = SequencerConfig(
            starts=tuple(starts),
            n_tokens=(1, 1, n_inflight, n_inflight),
            n_words=len(words),
            n_inflight=n_inflight,
            n_slots=self.h_sizes.context if self.h_sizes.wants_slots else 0,
            is_ring=self.h_sizes.is_ring,
            sinks=self.h_sizes.sinks,
            wake_cycles=target.power.wake_cycles,
            n_sequences=self.h_sizes.n_sequences,
        )
        lanes = target.vector.n_lanes
        members: dict[str, Any] = {
            "cmd_valid": In(1),
            "cmd_ready": Out(1),
            "cmd_program": In(address_bits(len(starts))),
            "cmd_tokens": In(20 * n_inflight),
            "cmd_reset": In(1),
            "done_valid": Out(1),
            "done_ready": In(1),
            "done_token": Out(20),
            "logit_valid": Out(1),
            "logit_row": Out(20),
            "logit_mask": Out(lanes),
            "logit_data": Out(32 * lanes),
            "event_start": Out(3),
            "event_busy": Out(3),
            "count_clipped": Out(32),
        }
        members |= {f"count_{name}": Out(48) for name in _COUNTERS}
        if self.lora is not None or self.l_config.adders is not None:
            members |= {"cmd_adapted": In(1), "cmd_adapter": In(20)} | configuration_members()
        if self.h_sizes.block:
            members |= page_members(self.h_sizes)
        if self.h_sizes.n_sequences > 1:
            members |= sequence_members(self.h_sizes.n_sequences) | copy_members(self.h_sizes)
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Wire the units, each a module of its own."""
        m = Module()
        (sequencer,) = replicate(
            m,
            platform,
            "sequencer",
            "romsim_sequencer",
            lambda: Sequencer(config=self.sequencer_config, words=self.program_words),
            1,
        )
        # what may change a unit's state; between programs the host may load adapters
        idle, reads, rows, logits = Signal(), Signal(), Signal(), Signal()
        v_wakes = [(Signal(name="v_wake"), DRAIN_CYCLES), (logits, ARGMAX_CYCLES), (rows, 0)]
        h_wakes = [(Signal(name="h_wake"), DRAIN_CYCLES)]
        (v,) = replicate(
            m,
            platform,
            "vector",
            "romsim_vector",
            self.vector_unit,
            1,
            domain=gate_clock(m, platform, "v", v_wakes),
        )
        (l_side,) = replicate(
            m, platform, "lside", "romsim_lside", lambda: LSide(config=self.l_config), 1
        )
        block_bits = len(v.bc_block)
        (h,) = replicate(
            m,
            platform,
            "hside",
            "romsim_hside",
            lambda: self._h_side(block_bits),
            1,
            domain=gate_clock(m, platform, "h", h_wakes),
        )
        h_busy: Any = h.busy
        if self.h_sizes.n_sequences > 1:
            h_busy = h.busy | h.copying
        h_starts: Any = sequencer.start_h
        if self.h_sizes.is_ranked:  # unit H looks up free slots with a ``rope``
            is_rope = cut_fields(sequencer.instr)["op"] == OPS["rope"]
            h_starts = h_starts | (sequencer.start_v & is_rope)
        m.d.comb += [
            idle.eq(sequencer.cmd_ready),
            reads.eq(v.o_en | v.l_en | v.d_en),
            rows.eq(l_side.ly_valid),
            logits.eq(l_side.ly_valid & l_side.ly_head),
            v_wakes[0][0].eq(idle | sequencer.start_v | v.busy | l_side.em_valid),
            h_wakes[0][0].eq(idle | h_starts | h_busy | v.bc_kind.any() | reads),
        ]
        units = {"v": v, "l": l_side, "h": h}
        for name, unit in units.items():
            m.d.comb += [
                unit.start.eq(getattr(sequencer, f"start_{name}")),
                unit.instr.eq(sequencer.instr),
                getattr(sequencer, f"busy_{name}").eq(unit.busy),
            ]
        m.d.comb += [
            v.pos.eq(sequencer.pos),
            h.pos.eq(sequencer.pos),
            l_side.embed.eq(sequencer.start_embed),
            l_side.row.eq(sequencer.token),
        ]
        if self.h_sizes.wants_slots:
            m.d.comb += h.slot.eq(sequencer.slot)
        if self.h_sizes.block:
            m.d.comb += h.begins.eq(sequencer.begins)
            for name in page_members(self.h_sizes):
                m.d.comb += getattr(h, name).eq(getattr(self, name))
        if self.h_sizes.n_sequences > 1:
            for name in sequence_members(self.h_sizes.n_sequences):
                m.d.comb += getattr(sequencer, name).eq(getattr(self, name))
            for name in copy_members(self.h_sizes):
                m.d.comb += getattr(h, name).eq(getattr(self, name))
            m.d.comb += [h.sequence.eq(sequencer.sequence), sequencer.copying.eq(h.copying)]
        self._buses(m, v, l_side, h)
        self._host(m, sequencer, v, l_side, h)
        return m

    def vector_unit(self) -> VectorUnit:
        """Return unit V of this chip."""
        description = self.description
        return VectorUnit(
            target=description.target,
            spec=description.spec,
            numerics=description.numerics,
            tables={name: [int(v) for v in values] for name, values in description.tables.items()},
            phase_increments=[int(v) for v in description.phase_increments],
            query_scale=description.query_scale,
            n_gain_words=self.die.n_gain_words,
        )

    def _h_side(self, block_bits: int) -> HSide:
        spec = self.description.spec
        longest = max(spec.q_dim + 2 * spec.kv_dim, 2 * spec.hidden_dim, spec.dim)
        return HSide(sizes=self.h_sizes, n_rows=longest, block_bits=block_bits, lora=self.lora)

    def _buses(self, m: Module, v: Any, l_side: Any, h: Any) -> None:
        """Broadcast, collected rows, the embedding's row, and what V reads of H."""
        groups = self.l_config.tile.x.n_groups
        for unit in (l_side, h):
            names = set(unit.signature.members)
            for name in ("kind", "token", "layer", "pos", "block", "mask"):
                if f"bc_{name}" in names:
                    m.d.comb += getattr(unit, f"bc_{name}").eq(getattr(v, f"bc_{name}"))
            for name in ("codes", "shift", "sum", "affine", "second"):
                if f"bc_{name}" in names:
                    m.d.comb += [
                        getattr(unit, f"bc_{name}")[group].eq(getattr(v, f"bc_{name}")[group])
                        for group in range(groups)
                    ]
        for name in ("ly_valid", "ly_token", "ly_row", "ly_mask", "ly_head"):
            m.d.comb += getattr(v, name).eq(getattr(l_side, name))
        for name in ("em_valid", "em_word", "em_plane", "em_data"):
            m.d.comb += getattr(v, name).eq(getattr(l_side, name))
        for name in ("o_en", "o_addr", "l_en", "l_addr", "d_en", "d_addr", "rd_token"):
            m.d.comb += getattr(h, name).eq(getattr(v, name))
        adders = self.l_config.adders is not None
        m.d.comb += [v.l_data.eq(h.l_data), v.d_valid.eq(l_side.d_valid if adders else h.d_valid)]
        if adders:
            for name in ("d_en", "d_addr", "rd_token"):
                m.d.comb += getattr(l_side, name).eq(getattr(v, name))
        for lane in range(self.l_config.n_lanes):
            d_data = l_side.d_data.word_select(lane, 32) if adders else h.d_data[lane]
            m.d.comb += [
                v.ly_data[lane].eq(l_side.ly_data[lane]),
                v.o_data[lane].eq(h.o_data[lane]),
                v.d_data[lane].eq(d_data),
            ]

    def _host(self, m: Module, sequencer: Any, v: Any, l_side: Any, h: Any) -> None:
        for name in ("cmd_valid", "cmd_program", "cmd_tokens", "cmd_reset", "done_ready"):
            m.d.comb += getattr(sequencer, name).eq(getattr(self, name))
        adders = self.l_config.adders is not None
        if self.lora is not None or adders:
            unit = l_side if adders else h
            for name in ("cmd_adapted", "cmd_adapter"):
                m.d.comb += getattr(sequencer, name).eq(getattr(self, name))
            for name in ("is_adapted", "adapter_base"):
                m.d.comb += getattr(unit, name).eq(getattr(sequencer, name))
            for name in configuration_members():
                m.d.comb += getattr(unit, name).eq(getattr(self, name))
        for name in ("cmd_ready", "done_valid", *(f"count_{name}" for name in _COUNTERS)):
            m.d.comb += getattr(self, name).eq(getattr(sequencer, name))
        m.d.comb += [
            self.done_token.eq(v.best_row),
            self.logit_valid.eq(v.lg_valid),
            self.logit_row.eq(v.lg_row),
            self.logit_mask.eq(v.lg_mask),
            self.logit_data.eq(Cat(v.lg_data[lane] for lane in range(self.l_config.n_lanes))),
            self.event_start.eq(Cat(getattr(sequencer, f"start_{name}") for name in "vlh")),
            self.event_busy.eq(Cat(unit.busy for unit in (v, l_side, h))),
            self.count_clipped.eq((v.sat_count + l_side.sat_count + h.sat_count)[:32]),
        ]


def _check(description: Description) -> None:
    """Refuse what no unit has hardware for."""
    target = description.target
    if not target.executable:
        raise SpecError(
            f"Target {target.name!r} must be executable to be built as RTL, but its formats are "
            f"for area and timing only; compile for an executable target"
        )
    check_kv_hardware(target.kv, n_lanes=target.vector.n_lanes)
    if description.context > 1 << _POSITION_BITS:  # under a window, more than there are slots
        raise SpecError(
            f"Context of the RTL must be at most {1 << _POSITION_BITS} tokens, which its position "
            f"registers count, not {description.context}; compile with a smaller --context"
        )
    depths = {"token": TOKEN_CYCLES, "lora": LORA_CYCLES, "lora_off": LORA_OFF_CYCLES}
    for name, cycles in depths.items():
        if getattr(target.latency, name) != cycles:
            raise SpecError(
                f"latency.{name} of target {target.name!r} must be {cycles}, the RTL's, "
                f"not {getattr(target.latency, name)!r}; leave it out of the target"
            )
    if target.schedule.n_batch != 1:
        raise SpecError(
            f"schedule.n_batch of an RTL target must be 1, not {target.schedule.n_batch!r}"
        )
    if target.schedule.n_slots != 1 and target.kv.layout != "paged":
        raise SpecError(
            f"schedule.n_slots of an RTL target must be 1 with KV layout {target.kv.layout!r}, not "
            f"{target.schedule.n_slots!r}; compile with --kv layout=paged"
        )
    if target.schedule.n_slots != 1 and target.kv.retention == "h2o":
        raise SpecError(
            f"schedule.n_slots of an RTL target must be 1 with KV retention h2o, not "
            f"{target.schedule.n_slots!r}: its masses are of one sequence; compile with --kv "
            f"retention=all"
        )
    if target.schedule.n_slots != 1 and target.kv.codec == "kivi":
        raise SpecError(
            f"schedule.n_slots of an RTL target must be 1 with KV codec kivi, not "
            f"{target.schedule.n_slots!r}: its windows are of one sequence; compile with --kv "
            f"codec=int4"
        )
    if "head" not in description.groups:
        raise SpecError(
            f"Target {target.name!r} must keep the LM head in ROM to be built as RTL; "
            f'set head = "rom" in its [embedding]'
        )


def _check_rows(description: Description, config: LSideConfig) -> None:
    """Refuse groups that share a vector and do not meet at a beat."""
    for group in description.groups.values():
        at = first_row(group, description.spec)
        beat = min(config.n_lanes, group.mapping.rows_per_step)
        if at % beat:
            raise SpecError(
                f"First row of group {group.name!r} in its vector must be a multiple of the "
                f"{beat} rows of a beat to be built as RTL, not {at}; choose fewer vector lanes "
                f"or one format for the fused matrices"
            )
