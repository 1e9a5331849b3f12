"""The vector unit's controller: instruction register, busy, and the two runs of beats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import Latency
from romsim_models.errors import SpecError
from romsim_rtl.encoding import FIELDS, OPS, WORD_BITS

__all__ = [
    "ATTN_GAP",
    "LATENCY",
    "NORM_GAP",
    "VectorControl",
    "VectorSizes",
    "check_latency",
    "fields",
]

LATENCY = {
    "embed": 8,
    "sincos": 6,
    "norm": 25,
    "rope": 11,
    "attn_out": 14,
    "resid": 4,
    "glu": 14,
}
"""Pipeline depths of unit V, in cycles: the λ of docs/machine.md, section 5."""

NORM_GAP = 15
"""Cycles from the first beat of a norm's first pass, less its beats, to that of its second."""

ATTN_GAP = 6
"""The same from the first head's sum to the first beat of attention output, less the heads."""

_KEPT = (
    *("token", "layer", "to_y", "from_y", "planes", "out_shift", "offset", "has_scales"),
    *("has_minimum", "multiplier", "gain_base", "gain_shift", "eps_term"),
)


def fields(word: Value) -> dict[str, Value]:
    """Cut an instruction word into its fields."""
    result, at = {}, 0
    for name, (bits, is_signed) in FIELDS.items():
        part = word[at : at + bits]
        result[name] = part.as_signed() if is_signed else part
        at += bits
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSizes:
    """Sizes that the vector unit's loops come from.

    Parameters
    ----------
    n_lanes
        Lanes of the unit, a power of two from 32 to 512.
    dim, n_heads, n_kv_heads, head_dim, hidden_dim, vocab_size
        As in the model's specification.
    row_words
        ROM words of an embedding row, in one digit plane.
    n_inflight
        Tokens with buffers of their own.
    broadcast_cycles, collect_cycles
        Register stages of the wires to and from the tiles.
    encode_cycles
        Cycles that keys and values take longer to be encoded than queries.
    sink_position
        Largest position of the query that reads a window's sinks; 0 where there is
        one query only.

    Raises
    ------
    SpecError
        If the template cannot be built in these sizes.
    """

    n_lanes: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_dim: int
    vocab_size: int
    row_words: int
    n_inflight: int
    broadcast_cycles: int
    collect_cycles: int
    encode_cycles: int = 0
    sink_position: int = 0

    def __post_init__(self) -> None:
        if self.n_lanes not in (32, 64, 128, 256, 512):
            raise SpecError(
                "vector n_lanes of the RTL must be a power of two from 32 to 512, "
                f"not {self.n_lanes!r}"
            )
        if self.head_dim % 32:
            raise SpecError(
                f"head_dim of the RTL must be a multiple of 32, not {self.head_dim!r}; "
                "a lane group quantises whole blocks of 32"
            )
        if not 1 <= self.n_inflight <= 8:
            raise SpecError(
                f"n_inflight of the RTL must be from 1 to 8, not {self.n_inflight!r}; "
                "the instruction's token field has 3 bits"
            )
        if self.sink_position and self.n_inflight > 1:
            raise SpecError(
                f"n_inflight of an RTL target with sinks must be 1, not {self.n_inflight!r}; "
                "a window's slots are used anew"
            )

    @property
    def n_groups(self) -> int:
        """Lane groups of 32."""
        return self.n_lanes // 32

    @property
    def q_dim(self) -> int:
        """Elements of all query heads."""
        return self.n_heads * self.head_dim

    @property
    def qkv_rows(self) -> int:
        """Elements of queries, keys and values."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_dim

    def beats(self, length: int) -> int:
        """Return beats of a vector."""
        return -(-length // self.n_lanes)

    @property
    def sink_beats(self) -> int:
        """Beats of the query for the sinks, before those of queries, keys and values."""
        return self.beats(self.q_dim) if self.sink_position else 0

    @property
    def rope_beats(self) -> int:
        """Beats of rope."""
        return self.sink_beats + self.beats(self.qkv_rows)

    @property
    def n_turns(self) -> int:
        """Cycles in which the angles of one position are computed."""
        return -(-self.head_dim // 2 // self.n_groups)

    def lanes_of(self, length: int) -> int:
        """Return the mask of the lanes that count in a vector's last beat."""
        rest = length % self.n_lanes or self.n_lanes
        return (1 << rest) - 1


class VectorControl(wiring.Component):
    """Take instructions and count their beats.

    A beat is issued in the cycle in which a buffer gets its address. ``run1`` starts in the first
    cycle after ``start``, ``run2`` a fixed number of cycles after ``run1``'s last beat.

    Parameters
    ----------
    sizes
        Loop sizes.

    Members
    -------
    start, instr : In
        One instruction of unit V, taken at the end of the cycle.
    busy : Out(1)
        As docs/rtl.md, section 2.
    first : Out(1)
        The first cycle of an instruction.
    age, second : Out(16)
        Cycles since ``start``, and the age at which ``run2`` begins.
    is_embed … is_glu : Out(1)
        The operator; holds until the next ``start``.
    run1, c1, last1, run2, c2, last2 : Out
        Runs, their counters, and whether this is the last beat.
    n_last : Out
        Number of the result's last beat.
    tail : Out(n_lanes)
        Lanes that count in that beat, valid from age 2 on.
    at_sinks, c1_own : Out
        With a query for the sinks, whose angles and beats come first: whether ``run1`` is at
        them, and its counter within them or behind them.
    """

    def __init__(self, *, sizes: VectorSizes) -> None:
        self.sizes = sizes
        longest = max(2 * sizes.hidden_dim, sizes.qkv_rows, sizes.dim) // sizes.n_lanes + 4
        n_angles = sizes.n_turns * (2 if sizes.sink_position else 1)
        most = max(longest, sizes.n_heads, sizes.rope_beats, n_angles)
        self.counter_bits = most.bit_length() + 1
        counter = unsigned(self.counter_bits)
        members: dict[str, Any] = {
            "start": In(1),
            "instr": In(WORD_BITS),
            "busy": Out(1),
            "first": Out(1),
            "age": Out(16),
            "second": Out(16),
            "n_last": Out(counter),
            "tail": Out(sizes.n_lanes),
        }
        members |= {f"is_{op}": Out(1) for op in LATENCY}
        for run in "12":
            members |= {f"run{run}": Out(1), f"c{run}": Out(counter), f"last{run}": Out(1)}
        if sizes.sink_position:
            members |= {"at_sinks": Out(1), "c1_own": Out(counter)}
        for name in _KEPT:
            bits, is_signed = FIELDS[name]
            members[name] = Out(signed(bits) if is_signed else unsigned(bits))
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Build the registers and counters."""
        m = Module()
        sizes = self.sizes
        word = fields(self.instr)
        for name in _KEPT:
            register = Signal.like(getattr(self, name), name=f"{name}_held", reset_less=True)
            with m.If(self.start):
                m.d.sync += register.eq(word[name])
            m.d.comb += getattr(self, name).eq(register)
        running = {}
        for op in LATENCY:
            running[op] = Signal(name=f"op_{op}")
            with m.If(self.start):
                m.d.sync += running[op].eq(word["op"] == OPS[op])
            m.d.comb += getattr(self, f"is_{op}").eq(running[op])

        busy = Signal()
        age = Signal(16, reset_less=True)
        end = Signal(16, reset_less=True)
        with m.If(self.start):
            m.d.sync += [busy.eq(1), age.eq(1)]
        with m.Elif(busy):
            m.d.sync += age.eq(age + 1)
            with m.If(age == end):
                m.d.sync += busy.eq(0)
        m.d.comb += [self.busy.eq(busy), self.age.eq(age), self.first.eq(busy & (age == 1))]
        self._runs(m, word, running, busy, age, end)

        rest_bits = (sizes.n_lanes - 1).bit_length()
        rest = Signal(rest_bits, reset_less=True)
        tail = Signal(sizes.n_lanes, reset_less=True)
        with m.If(self.start):
            m.d.sync += rest.eq(self._rest(word, rest_bits))
        with m.If(self.first):
            m.d.sync += tail.eq(
                Cat(
                    (rest == 0) | (rest > lane) if lane + 1 < sizes.n_lanes else rest == 0
                    for lane in range(sizes.n_lanes)
                )
            )
        m.d.comb += self.tail.eq(tail)
        return m

    def _select(self, word: dict[str, Value], values: dict[str, Any]) -> Value:
        chosen: Any = Const(0)
        for op, value in values.items():
            chosen = Mux(word["op"] == OPS[op], value, chosen)
        return chosen

    def _rest(self, word: dict[str, Value], bits: int) -> Value:
        sizes = self.sizes
        lengths: dict[str, Any] = {
            "embed": sizes.dim,
            "resid": sizes.dim,
            "rope": sizes.qkv_rows,
            "attn_out": sizes.q_dim,
            "glu": sizes.hidden_dim,
        }
        values = {op: Const(length % sizes.n_lanes, bits) for op, length in lengths.items()}
        return self._select(word, values | {"norm": word["n_cols"][:bits]})

    def _runs(
        self,
        m: Module,
        word: dict[str, Value],
        running: dict[str, Signal],
        busy: Signal,
        age: Signal,
        end: Signal,
    ) -> None:
        sizes = self.sizes
        bits = self.counter_bits
        hop = sizes.broadcast_cycles
        normed = ((word["n_cols"] + sizes.n_lanes - 1) >> (sizes.n_lanes - 1).bit_length())[:12]
        rope, attended = sizes.rope_beats, sizes.beats(sizes.q_dim)
        gated, resid = sizes.beats(sizes.hidden_dim), sizes.beats(sizes.dim)
        n_turns = sizes.n_turns * (2 if sizes.sink_position else 1)
        read = word["planes"] * sizes.row_words
        row = Mux(read > resid, read, resid)
        cycles = {
            "embed": row + (LATENCY["embed"] + sizes.collect_cycles - 1),
            "sincos": n_turns + LATENCY["sincos"] - 1,
            "norm": (normed << 1) + (LATENCY["norm"] + hop - 1),
            "rope": rope + LATENCY["rope"] + sizes.encode_cycles + hop - 1,
            "attn_out": sizes.n_heads + attended + LATENCY["attn_out"] + hop - 1,
            "resid": resid + LATENCY["resid"] - 1,
            "glu": 2 * gated + LATENCY["glu"] + hop - 1,
        }
        last_first = {
            "sincos": n_turns - 1,
            "norm": normed - 1,
            "rope": rope - 1,
            "attn_out": sizes.n_heads - 1,
            "resid": resid - 1,
            "glu": 2 * gated,
        }
        results = {
            "norm": normed - 1,
            "rope": rope - 1,
            "attn_out": attended - 1,
            "resid": resid - 1,
            "glu": gated - 1,
        }
        second = {"norm": normed + NORM_GAP, "attn_out": sizes.n_heads + ATTN_GAP}
        n1_last = Signal(bits, reset_less=True)
        n_last = Signal(bits, reset_less=True)
        second_age = Signal(16, reset_less=True)
        with m.If(self.start):
            m.d.sync += [
                end.eq(self._select(word, cycles)),
                n1_last.eq(self._select(word, last_first)),
                n_last.eq(self._select(word, results)),
                second_age.eq(self._select(word, second)),
            ]
        m.d.comb += [self.n_last.eq(n_last), self.second.eq(second_age)]

        run1, run2 = Signal(), Signal()
        self._sinks(m, running["sincos"])
        c1 = Signal(bits, reset_less=True)
        c2 = Signal(bits, reset_less=True)
        last1, last2 = Signal(), Signal()
        m.d.comb += [last1.eq(c1 == n1_last), last2.eq(c2 == n_last)]
        with m.If(self.start):
            m.d.sync += [run1.eq(word["op"] != OPS["embed"]), c1.eq(0)]
        with m.Elif(run1):
            m.d.sync += c1.eq(c1 + 1)
            with m.If(last1):
                m.d.sync += run1.eq(0)
        has_second = running["norm"] | running["attn_out"]
        begins = Signal()
        m.d.comb += begins.eq(busy & has_second & (age + 1 == second_age))
        with m.If(begins):
            m.d.sync += [run2.eq(1), c2.eq(0)]
        with m.Elif(run2):
            m.d.sync += c2.eq(c2 + 1)
            with m.If(last2):
                m.d.sync += run2.eq(0)
        m.d.comb += [
            *(self.run1.eq(run1), self.c1.eq(c1), self.last1.eq(last1)),
            *(self.run2.eq(run2), self.c2.eq(c2), self.last2.eq(last2)),
        ]

    def _sinks(self, m: Module, is_sincos: Signal) -> None:
        """Tell the first part of a run of sincos or rope, which is the sinks' query's."""
        sizes = self.sizes
        if sizes.sink_position:
            n_first = Mux(is_sincos, sizes.n_turns, sizes.sink_beats)
            m.d.comb += [
                self.at_sinks.eq(self.c1 < n_first),
                self.c1_own.eq(Mux(self.at_sinks, self.c1, self.c1 - n_first)),
            ]


def check_latency(latency: Latency) -> None:
    """Refuse a target whose latencies of unit V are not those of the pipeline.

    Raises
    ------
    SpecError
        If one differs.
    """
    for op, cycles in LATENCY.items():
        wanted = getattr(latency, op)
        if wanted != cycles:
            raise SpecError(
                f"latency.{op} of the target must be {cycles}, the depth of the RTL's pipeline, "
                f"not {wanted!r}; leave it out of the target"
            )
