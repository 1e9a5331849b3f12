"""Streams of the vector unit: which word each buffer reads when, and what counts in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from romsim_rtl.vector_control import VectorSizes

__all__ = ["Streams", "build_streams", "up_masks"]

_N_STAGES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Stages that the rest of the unit hangs on.

    Parameters
    ----------
    main
        A beat of the main stream is issued.
    s
        ``s[i]``: it was issued ``i + 1`` cycles ago.
    p
        The same for the first pass of a norm.
    sums
        Heads' sums are asked for.
    """

    main: Signal
    s: tuple[Signal, ...]
    p: tuple[Signal, ...]
    sums: Signal


def up_masks(sizes: VectorSizes) -> tuple[int, int, int]:
    """Masks of the up half's words: read in advance, last but one, last; all others are whole.

    The up half of Y holds rows ``hidden_dim`` to ``2 · hidden_dim - 1``. Where these do not begin
    on a word, their first word is read in advance and each beat takes lanes of two words.
    """
    n_lanes, hidden = sizes.n_lanes, sizes.hidden_dim
    base, rest = divmod(hidden, n_lanes)

    def mask(word: int) -> int:
        rows = range(word * n_lanes, (word + 1) * n_lanes)
        return sum(1 << k for k, row in enumerate(rows) if hidden <= row < 2 * hidden)

    first = base + (1 if rest else 0)
    n_beats = sizes.beats(hidden)
    words = [mask(first + beat) for beat in range(n_beats)]
    whole = (1 << n_lanes) - 1
    return (
        mask(base) if rest else 0,
        words[-2] if n_beats > 1 else whole,
        words[-1],
    )


def build_streams(m: Module, unit: Any, control: Any, groups: list[Any]) -> Streams:
    """Add the streams to the vector unit.

    Parameters
    ----------
    unit
        The `VectorUnit`.
    control
        Its `VectorControl`.
    groups
        Its lane groups.
    """
    sizes: VectorSizes = unit.sizes
    main, up = Signal(name="main_issue"), Signal(name="up_issue")
    first_pass, sums = Signal(name="pass_issue"), Signal(name="sums_issue")
    sum_issue = Signal()
    m.d.comb += [
        # words of up have odd numbers, and number 0 is the one read in advance
        up.eq(control.run1 & control.is_glu & (control.c1[0] | (control.c1 == 0))),
        sum_issue.eq(control.run1 & (control.is_resid | control.is_rope | control.is_glu)),
        main.eq((sum_issue & ~up) | (control.run2 & (control.is_norm | control.is_attn_out))),
        first_pass.eq(control.run1 & control.is_norm),
        sums.eq(control.run1 & control.is_attn_out),
    ]
    s = tuple(Signal(name=f"s{index}") for index in range(_N_STAGES))
    p = tuple(Signal(name=f"p{index}") for index in range(5))
    for chain, source in ((s, main), (p, first_pass)):
        for after, before in zip(chain, (source, *chain), strict=False):
            # an operator that ends before the last stage must not run on into the next one
            m.d.sync += after.eq(before & ~unit.start)
    u0, u1, sum_en = Signal(), Signal(), Signal()
    m.d.sync += [u0.eq(up), u1.eq(u0), sum_en.eq(sum_issue)]

    in_mask = _masks(m, sizes, control, up, u0)
    y_word = _y_word(sizes, control, up)
    at_sinks = Signal(name="sum_at_sinks")
    if sizes.sink_position:
        m.d.sync += at_sinks.eq(control.is_rope & control.at_sinks)
    from_y = control.from_y if unit.spec.has_sub_norms else Const(0, 1)
    norm_issue = Signal()
    m.d.comb += norm_issue.eq((control.run1 | control.run2) & control.is_norm)
    resid_issue = Signal()
    m.d.comb += resid_issue.eq(s[0] & control.is_resid)
    c1_before = Signal.like(control.c1, reset_less=True)
    with m.If(sum_issue):
        m.d.sync += c1_before.eq(control.c1)
    x_word = Mux(resid_issue, c1_before, Mux(control.run2, control.c2, control.c1))
    m.d.comb += [
        unit.d_en.eq(sum_issue),
        unit.d_addr.eq(y_word),
        unit.o_en.eq(control.run2 & control.is_attn_out),
        unit.o_addr.eq(control.c2),
        unit.l_en.eq(sums),
        unit.l_addr.eq(control.c1),
    ]
    for index, group in enumerate(groups):
        m.d.comb += [
            group.s.eq(Cat(*s[:6])),
            group.p.eq(Cat(*p[:4])),
            group.sum_en.eq(sum_en),
            group.u1.eq(u1),
            group.in_mask.eq(in_mask[32 * index : 32 * index + 32]),
            group.is_norm.eq(control.is_norm),
            group.is_rope.eq(control.is_rope),
            group.is_attn.eq(control.is_attn_out),
            group.is_resid.eq(control.is_resid),
            group.is_glu.eq(control.is_glu),
            group.x_r_en.eq(resid_issue | (norm_issue & ~from_y)),
            group.x_r_addr.eq(unit.x_address(x_word, control.token)),
            group.y_r_en.eq(sum_issue | (norm_issue & from_y)),
            group.y_r_addr.eq(unit.y_address(y_word, control.token)),
            group.d_valid.eq(unit.d_valid),
        ]
        if sizes.sink_position:
            m.d.comb += group.at_sinks.eq(at_sinks)
        if unit.spec.has_sub_norms:
            m.d.comb += group.from_y.eq(control.from_y)
        if unit.group_config.y_banks > 1:
            m.d.comb += group.y_r_bank.eq(control.token)
        for lane in range(32):
            m.d.comb += [
                group.d[lane].eq(unit.d_data[32 * index + lane]),
                group.o[lane].eq(unit.o_data[32 * index + lane]),
            ]
    _turn(m, sizes, groups)
    return Streams(main=main, s=s, p=p, sums=sums)


def _y_word(sizes: VectorSizes, control: Any, up: Signal) -> Value:
    """Word of Y, and of D, that is asked for."""
    base, rest = divmod(sizes.hidden_dim, sizes.n_lanes)
    up_word = ((control.c1 + (1 if rest else 0)) >> 1) + base
    gate_word = (control.c1 >> 1) - 1
    halves = Mux(up, up_word, gate_word)[: len(control.c1)]
    word: Value = control.c1
    if sizes.sink_position:
        word = Mux(control.is_rope, control.c1_own, word)
    return Mux(control.is_glu, halves, Mux(control.run2, control.c2, word))


def _masks(m: Module, sizes: VectorSizes, control: Any, up: Signal, u0: Signal) -> Value:
    """Lanes that count in the words that arrive."""
    whole = Const((1 << sizes.n_lanes) - 1, sizes.n_lanes)
    is_last = Signal()
    is_advance, is_up_last, is_up_before = Signal(), Signal(), Signal()
    m.d.sync += is_last.eq(Mux(control.run2, control.last2, control.last1))
    n_beats = sizes.beats(sizes.hidden_dim)
    with m.If(up):
        m.d.sync += [
            is_advance.eq(control.c1 == 0),
            is_up_last.eq(control.c1 == 2 * n_beats - 1),
            is_up_before.eq(control.c1 == 2 * n_beats - 3 if n_beats > 1 else 0),
        ]
    advance, before, last = (Const(mask, sizes.n_lanes) for mask in up_masks(sizes))
    up_mask = Mux(is_advance, advance, Mux(is_up_last, last, Mux(is_up_before, before, whole)))
    in_mask = Signal(sizes.n_lanes)
    inner: Value = whole
    if sizes.sink_position:
        inner = Mux(_ends_sinks(m, sizes, control), sizes.lanes_of(sizes.q_dim), whole)
    m.d.comb += in_mask.eq(Mux(u0, up_mask, Mux(is_last, control.tail, inner)))
    return in_mask


def _ends_sinks(m: Module, sizes: VectorSizes, control: Any) -> Signal:
    """Whether the word that arrives is the last of the query for the sinks."""
    ends = Signal(name="ends_sinks")
    m.d.sync += ends.eq(control.is_rope & (control.c1 == sizes.sink_beats - 1))
    return ends


def _turn(m: Module, sizes: VectorSizes, groups: list[Any]) -> None:
    """Bring the lanes of the up half to those of the gate half."""
    rest = sizes.hidden_dim % sizes.n_lanes
    if not rest:
        return
    for lane in range(sizes.n_lanes):
        source = (lane + rest) % sizes.n_lanes
        group = groups[source // 32]
        face = group.sums_before if lane + rest < sizes.n_lanes else group.sums
        m.d.comb += groups[lane // 32].turned[lane % 32].eq(face[source % 32])
