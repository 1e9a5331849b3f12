"""The sequencer: host commands, program ROM, the issue rule, positions, counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError
from romsim_rtl.encoding import OPS, WORD_BITS
from romsim_rtl.instruction import cut_fields
from romsim_rtl.memory import Rom, address_bits

__all__ = ["TOKEN_CYCLES", "Sequencer", "SequencerConfig", "sequence_members"]

TOKEN_CYCLES = 6
"""λ_token: from the cycle in which all units are idle to the first issue of the next program, if
the host takes the result and gives a command as soon as it can."""

_RESULT_WAIT = 3
"""Cycles until the running argmax has seen the last logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencerConfig:
    """What the sequencer is built for.

    Parameters
    ----------
    starts
        First word of each program in the program ROM.
    n_tokens
        Tokens of each program.
    n_words
        Words of the program ROM.
    n_inflight
        Tokens of the longest program.
    n_slots
        Slots of the KV cache where it wants a token's slot from here; else 0.
    is_ring, sinks
        Whether the newest tokens take the slots of the oldest, but for the first ``sinks``; else
        a token's slot is its position.
    n_sequences
        Sequences with a position (and a slot) of their own.
    wake_cycles
        From the switching on of a matrix's banks to the first read of them.
    counter_bits
        Width of the performance counters, which begin anew when they are full.

    Raises
    ------
    SpecError
        If the programs do not fit together.
    """

    starts: tuple[int, ...]
    n_tokens: tuple[int, ...]
    n_words: int
    n_inflight: int
    n_slots: int = 0
    is_ring: bool = False
    sinks: int = 0
    wake_cycles: int = 0
    n_sequences: int = 1
    counter_bits: int = 48

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.n_tokens):
            raise SpecError(
                f"programs of the sequencer must have a start and a token count each, not "
                f"{len(self.starts)} starts and {len(self.n_tokens)} counts"
            )
        if max(self.starts) >= self.n_words:
            raise SpecError(
                f"programs of the sequencer must begin in its {self.n_words} words, "
                f"not at {max(self.starts)!r}"
            )
        if not 1 <= min(self.n_tokens) <= max(self.n_tokens) <= self.n_inflight <= 8:
            raise SpecError(
                f"programs of the sequencer must have from 1 to {min(self.n_inflight, 8)} tokens, "
                f"not {max(self.n_tokens)!r}"
            )
        if self.is_ring and max(self.n_tokens) > 1:
            raise SpecError(
                f"programs of a sequencer whose slots are reused must have 1 token, not "
                f"{max(self.n_tokens)!r}"
            )


class Sequencer(wiring.Component):
    """Issue programs in order (docs/machine.md, section 4; docs/rtl.md, section 2).

    The program ROM's output register holds the next instruction: the cycle that issues it reads
    the one after it, so one can issue in every cycle.

    Parameters
    ----------
    config
        Programs.
    words
        Contents of the program ROM, for simulation in Amaranth; never part of the Verilog.

    Members
    -------
    cmd_valid, cmd_ready
        A command is taken in a cycle in which both are 1; ready does not depend on valid.
    cmd_program, cmd_tokens, cmd_reset : In
        Program, its tokens (20 bits each, the first lowest), and whether the sequence begins anew
        at position 0 instead of after the last command's tokens.
    cmd_adapted, cmd_adapter : In(1), In(20)
        Whether an adapter is used, and its first entry of the adapter table.
    done_valid, done_ready
        A program is over; its result is taken in a cycle in which both are 1.
    start_v, start_l, start_h, instr, pos
        Issue.
    slot
        Slot of the running program's first token, where the KV cache wants it.
    begins
        The first cycle of a program, where the KV cache wants slots.
    cmd_sequence : In, sequence : Out
        Sequence of a command, and of the running program; if there are several.
    fork_en, fork_source, fork_target : In
        A sequence takes the position of another, between programs; if there are several.
    copying : In(1)
        Pages are being copied: no command is taken, and the cycle counts as a program's; if there
        are several sequences.
    start_embed, token
        ``embed`` is issued to unit V; its token.
    is_adapted, adapter_base
        The adapter of the running program.
    busy_v, busy_l, busy_h
        State of the units.
    count_cycles, count_wait, count_v, count_l, count_h : Out
        Cycles since reset: in programs, waiting for the host, and with each unit busy.
    count_issued : Out
        Instructions since reset.
    """

    def __init__(self, *, config: SequencerConfig, words: Sequence[int] = ()) -> None:
        self.config, self.words = config, words
        members: dict[str, Any] = {
            "cmd_valid": In(1),
            "cmd_ready": Out(1),
            "cmd_program": In(address_bits(len(config.starts))),
            "cmd_tokens": In(20 * config.n_inflight),
            "cmd_reset": In(1),
            "cmd_adapted": In(1),
            "cmd_adapter": In(20),
            "done_valid": Out(1),
            "done_ready": In(1),
            "instr": Out(WORD_BITS),
            "pos": Out(16),
            "start_embed": Out(1),
            "token": Out(20),
            "is_adapted": Out(1),
            "adapter_base": Out(20),
        }
        if config.n_slots:
            members |= {"slot": Out(address_bits(config.n_slots)), "begins": Out(1)}
        if config.n_sequences > 1:
            members |= sequence_members(config.n_sequences)
            members |= {"sequence": Out(address_bits(config.n_sequences)), "copying": In(1)}
        members |= {f"start_{unit}": Out(1) for unit in "vlh"}
        members |= {f"busy_{unit}": In(1) for unit in "vlh"}
        counted = ("cycles", "wait", "v", "l", "h", "issued")
        members |= {f"count_{name}": Out(config.counter_bits) for name in counted}
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Build the state machine around the program ROM."""
        m = Module()
        config = self.config
        m.submodules.program = program = Rom(
            depth=config.n_words, width=WORD_BITS, file="program.hex", init=self.words
        )
        word = program.r_data
        field = cut_fields(word)
        idle = Signal(init=1)
        running, finishing, done = Signal(), Signal(), Signal()
        tokens = [Signal(20, name=f"token{index}") for index in range(config.n_inflight)]
        position = Signal(16)
        length = Signal(4)

        busy = Cat(self.busy_v, self.busy_l, self.busy_h)
        unit = (Const(1, 3) << field["unit"])[:3]
        is_end = field["op"] == OPS["end"]
        issue = Signal()
        is_awake = Signal(init=1)
        m.d.comb += issue.eq(running & ~is_end & is_awake & ((busy & (field["wait"] | unit)) == 0))
        m.d.comb += [
            self.start_v.eq(issue & unit[0]),
            self.start_l.eq(issue & unit[1]),
            self.start_h.eq(issue & unit[2]),
            self.start_embed.eq(issue & (field["op"] == OPS["embed"])),
            self.instr.eq(word),
            self.pos.eq(position + field["token"]),
            self.token.eq(_chosen(tokens, field["token"])),
        ]

        takes = Signal()
        several = config.n_sequences > 1
        ready: Value = idle & ~self.copying if several else idle
        m.d.comb += [self.cmd_ready.eq(ready), takes.eq(ready & self.cmd_valid)]
        next_word = Signal(address_bits(config.n_words))
        start = _chosen(list(map(Const, config.starts)), self.cmd_program)
        m.d.comb += [
            program.r_en.eq(takes | issue),
            program.r_addr.eq(Mux(takes, start, next_word)),
        ]
        with m.If(takes | issue):
            m.d.sync += next_word.eq(program.r_addr + 1)

        if config.wake_cycles:
            sleep = Signal(range(config.wake_cycles + 1))
            m.d.comb += is_awake.eq(~field["rom"][1] | (sleep == 0))
            with m.If(takes):  # the program's first matrix
                m.d.sync += sleep.eq(config.wake_cycles)
            with m.Elif(issue & field["rom"][0]):
                m.d.sync += sleep.eq(config.wake_cycles - 1)
            with m.Elif(running & (sleep != 0)):
                m.d.sync += sleep.eq(sleep - 1)

        ends = running & is_end & (busy == 0)
        following: dict[str, Value] = {"position": position + length}
        if config.is_ring:
            is_last = self.slot == config.n_slots - 1
            following["slot"] = Mux(is_last, config.sinks, self.slot + 1)
        saved = self._sequences(m, takes, ends, following) if several else {}
        wait = Signal(range(_RESULT_WAIT + 1))
        m.d.comb += self.done_valid.eq(done)
        with m.If(takes):
            m.d.sync += [idle.eq(0), running.eq(1)]
            counts = list(map(Const, config.n_tokens))
            m.d.sync += length.eq(_chosen(counts, self.cmd_program))
            m.d.sync += [
                token.eq(self.cmd_tokens[20 * index : 20 * index + 20])
                for index, token in enumerate(tokens)
            ]
            m.d.sync += [
                self.is_adapted.eq(self.cmd_adapted),
                self.adapter_base.eq(self.cmd_adapter),
            ]
            if several:
                m.d.sync += position.eq(Mux(self.cmd_reset, 0, saved["position"]))
            else:
                with m.If(self.cmd_reset):
                    m.d.sync += position.eq(0)
        with m.If(ends):
            m.d.sync += [running.eq(0), finishing.eq(1), wait.eq(_RESULT_WAIT)]
            m.d.sync += position.eq(following["position"])
        if config.n_slots:
            m.d.sync += self.begins.eq(takes)
        if config.n_slots and not config.is_ring:
            m.d.comb += self.slot.eq(position)
        elif config.is_ring:
            with m.If(takes & self.cmd_reset):
                m.d.sync += self.slot.eq(0)
            if several:
                with m.Elif(takes):
                    m.d.sync += self.slot.eq(saved["slot"])
            with m.Elif(ends):
                m.d.sync += self.slot.eq(following["slot"])
        with m.If(finishing):
            m.d.sync += wait.eq(wait - 1)
            with m.If(wait == 1):
                m.d.sync += [finishing.eq(0), done.eq(1)]
        with m.If(done & self.done_ready):
            m.d.sync += [done.eq(0), idle.eq(1)]

        events = {
            "cycles": running | finishing | self.copying if several else running | finishing,
            "wait": (idle & ~self.copying) | done if several else idle | done,
            "v": self.busy_v,
            "l": self.busy_l,
            "h": self.busy_h,
            "issued": issue,
        }
        for name, event in events.items():
            counter = Signal(config.counter_bits, name=f"counter_{name}")
            with m.If(event):
                m.d.sync += counter.eq(counter + 1)
            m.d.comb += getattr(self, f"count_{name}").eq(counter)
        return m

    def _sequences(
        self, m: Module, takes: Value, ends: Value, following: dict[str, Value]
    ) -> dict[str, Value]:
        """Keep what each sequence goes on with; return that of a command's sequence."""
        with m.If(takes):
            m.d.sync += self.sequence.eq(self.cmd_sequence)
        result: dict[str, Value] = {}
        for name, value in following.items():
            kept = [
                Signal(16, name=f"{name}_of{number}", reset_less=True)
                for number in range(self.config.n_sequences)
            ]
            for number, register in enumerate(kept):
                with m.If(ends & (self.sequence == number)):
                    m.d.sync += register.eq(value)
                with m.Elif(self.fork_en & (self.fork_target == number)):
                    m.d.sync += register.eq(_chosen(kept, self.fork_source))
            result[name] = _chosen(kept, self.cmd_sequence)
        return result


def sequence_members(n_sequences: int) -> dict[str, Any]:
    """List the members of a host's port for several sequences; see `Sequencer`."""
    bits = address_bits(n_sequences)
    return {
        "cmd_sequence": In(bits),
        "fork_en": In(1),
        "fork_source": In(bits),
        "fork_target": In(bits),
    }


def _chosen(values: Sequence[Value], index: Value) -> Value:
    result = values[0]
    for number, value in enumerate(values[1:], start=1):
        result = Mux(index == number, value, result)
    return result
