"""Scalars that the lane groups' operators need: norm scale, rotary angles, softmax reciprocals."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib.memory import Memory

from romsim_rtl.memory import Rom, address_bits
from romsim_rtl.primitives import add_tree, bit_length, round_shift_by
from romsim_rtl.recip import Recip
from romsim_rtl.rsqrt import Rsqrt
from romsim_rtl.sincos import SinCos
from romsim_rtl.vector_control import NORM_GAP
from romsim_rtl.vector_streams import Streams

__all__ = ["build_attn_scalars", "build_norm_scalars", "build_rope_scalars"]

_SUM_TO_TOTAL = 6  # from the last beat's issue to the sum of squares in its register


def build_norm_scalars(
    m: Module, unit: Any, control: Any, groups: list[Any], streams: Streams
) -> None:
    """Add what a norm computes once: t from the largest magnitude, the sum of squares, R, gains.

    The OR of magnitudes of X and of Y is kept for each token while they are written, so that no
    pass is spent on it.
    """
    sizes = unit.sizes
    m.submodules.rsqrt = rsqrt = Rsqrt(table=unit.tables["RSQ"])
    starts = Signal(name="norm_starts")
    m.d.comb += starts.eq(control.first & control.is_norm)

    length = bit_length(m, _kept_magnitude(m, unit, control, groups), "norm_length")
    u_left, u_right = Signal(4, reset_less=True), Signal(4, reset_less=True)
    with m.If(starts):
        with m.If(length >= 24):
            m.d.sync += [u_left.eq(0), u_right.eq(length - 24)]
        with m.Else():
            m.d.sync += [u_left.eq(Mux(length < 14, 10, 24 - length)), u_right.eq(0)]
    t_plus_10 = (u_right + 10 - u_left)[:5]

    # one cycle after the start; it is needed no earlier than 7 later
    started = Signal(name="norm_started")
    m.d.sync += started.eq(starts)
    eps = Signal(63, reset_less=True)
    widened = Cat(control.eps_term, Const(0, 1)).as_signed()
    with m.If(started):
        m.d.sync += eps.eq(round_shift_by(widened, Cat(Const(0, 1), t_plus_10)))

    total = Signal(63, name="norm_total", reset_less=True)
    with m.If(starts):
        m.d.sync += total.eq(0)
    with m.Elif(streams.p[4]):
        m.d.sync += total.eq(total + add_tree([group.squares for group in groups]))
    sums_up = Signal()
    m.d.comb += sums_up.eq(
        control.is_norm & (control.age + (NORM_GAP - _SUM_TO_TOTAL) == control.second)
    )
    n = Signal(63, name="norm_n_term", reset_less=True)
    with m.If(sums_up):
        m.d.sync += n.eq(total + eps)
    chain = [Signal(name=f"norm_after{index}") for index in range(3)]
    for after, before in zip(chain, (sums_up, *chain), strict=False):
        m.d.sync += after.eq(before)
    m.d.comb += [rsqrt.start.eq(chain[0]), rsqrt.n.eq(n), rsqrt.root.eq(control.multiplier)]

    # h + t - 2, shared out between the shift of x to the left and of x · R to the right
    exponent = rsqrt.half_length + t_plus_10
    x_left, n_right = Signal(4, reset_less=True), Signal(6, reset_less=True)
    with m.If(chain[2]):
        m.d.sync += [
            x_left.eq(Mux(exponent < 12, 12 - exponent, 0)),
            n_right.eq(Mux(exponent > 12, exponent - 12, 0)),
        ]
    gain_right = Signal(6, reset_less=True)
    with m.If(starts):
        m.d.sync += gain_right.eq(
            Mux(control.gain_shift < 0, 0, Mux(control.gain_shift > 62, 62, control.gain_shift))
        )
    m.submodules.gains = gains = Rom(
        depth=unit.n_gain_words,
        width=32 * sizes.n_lanes,
        file="gains.hex",
        init=unit.gain_words,
    )
    asks = Signal(name="gain_asked")
    address = Signal(len(gains.r_addr), name="gain_address", reset_less=True)
    m.d.comb += [
        asks.eq(streams.s[1] & control.is_norm),
        gains.r_en.eq(asks),
        gains.r_addr.eq(address),
    ]
    with m.If(starts):
        m.d.sync += address.eq(control.gain_base)
    with m.Elif(asks):
        m.d.sync += address.eq(address + 1)
    # a gain's multiplication does not wait for the memory
    is_read = Signal(name="gains_read")
    held_gains = Signal(32 * sizes.n_lanes, reset_less=True)
    m.d.sync += is_read.eq(asks)
    with m.If(is_read):
        m.d.sync += held_gains.eq(gains.r_data)
    for index, group in enumerate(groups):
        m.d.comb += [
            group.u_left.eq(u_left),
            group.u_right.eq(u_right),
            group.x_left.eq(x_left),
            group.n_right.eq(n_right),
            group.scale.eq(rsqrt.scale),
            group.gain_right.eq(gain_right),
        ]
        for lane in range(32):
            m.d.comb += group.gain[lane].eq(held_gains.word_select(32 * index + lane, 32))


def _kept_magnitude(m: Module, unit: Any, control: Any, groups: list[Any]) -> Value:
    """Keep the OR of the magnitudes in X and in Y, for each token; return the norm's input's."""
    has_y = unit.spec.has_sub_norms
    together = groups[0].magnitude
    for group in groups[1:]:
        together = together | group.magnitude
    measured_x, measured_y = Signal(), Signal()
    m.d.sync += measured_x.eq(groups[0].v_x)
    buffers = [
        ("x", measured_x, control.is_embed | control.is_resid),
    ]
    if has_y:
        m.d.sync += measured_y.eq(groups[0].v_y)
        writes_y = (control.is_attn_out | control.is_glu) & control.to_y
        buffers.append(("y", measured_y, writes_y))
    chosen: list[Value] = []
    for name, measured, rewrites in buffers:
        kept = [
            Signal(32, name=f"{name}_magnitude{token}", reset_less=True)
            for token in range(unit.sizes.n_inflight)
        ]
        mine: Value = kept[0]
        for token, register in enumerate(kept):
            is_token = control.token == token
            with m.If(control.first & rewrites & is_token):
                m.d.sync += register.eq(0)
            with m.Elif(measured & is_token):
                m.d.sync += register.eq(register | together)
            if token:
                mine = Mux(is_token, register, mine)
        chosen.append(mine)
    return Mux(control.from_y, chosen[1], chosen[0]) if has_y else chosen[0]


def build_rope_scalars(
    m: Module, unit: Any, control: Any, groups: list[Any], streams: Streams, pos: Signal
) -> None:
    """Add sine and cosine: their making by sincos, their reading by rope."""
    sizes = unit.sizes
    n_groups = sizes.n_groups
    head_blocks = sizes.head_dim // 32
    m.submodules.sincos = sincos = SinCos(
        table=unit.tables["SIN"], increments=unit.increments, n_parallel=n_groups
    )
    token_word: Any = (control.token * head_blocks)[: address_bits(sizes.n_inflight * head_blocks)]
    index, position = control.c1, pos
    begins: Any = control.first
    count = control.c1
    if sizes.sink_position:  # one token in flight
        count = control.c1_own
        index, position, at_sinks, ends = _sink_query(m, sizes, control, pos)
        token_word = Mux(at_sinks, 0, head_blocks)
        begins = begins | (streams.s[0] & ends)
    per_word = 16 // n_groups
    # one set of registers for all groups: as wires these copies would be made in every cycle
    angles = Signal(16 * 44, name="angles", reset_less=True)
    mask = Signal(16, name="angles_mask", reset_less=True)
    written = Signal(8, name="angles_written", reset_less=True)
    place = written[: (per_word - 1).bit_length()]
    word = Signal(max(1, len(written) - len(place)), name="angles_word", reset_less=True)
    is_filled = Signal(name="angles_filled")
    m.d.sync += is_filled.eq(sincos.done)
    with m.If(control.first):
        m.d.sync += written.eq(0)
    with m.Elif(sincos.done):
        m.d.sync += written.eq(written + 1)
    with m.If(sincos.done):
        m.d.sync += [
            word.eq(written[len(place) :]),
            mask.eq(
                Cat(
                    (place == lane // n_groups) if per_word > 1 else Const(1, 1)
                    for lane in range(16)
                )
            ),
            angles.eq(
                Cat(
                    Cat(sincos.sin[lane % n_groups], sincos.cos[lane % n_groups])
                    for lane in range(16)
                )
            ),
        ]
    m.d.comb += [
        sincos.start.eq(control.run1 & control.is_sincos),
        sincos.index.eq(index),
        sincos.pos.eq(position),
    ]
    q_blocks = sizes.q_dim // 32
    turned_blocks = q_blocks + sizes.n_kv_heads * head_blocks
    reads = Signal(name="angles_read")
    m.d.comb += reads.eq(streams.s[0] & control.is_rope)
    for number, group in enumerate(groups):
        block = (count * n_groups + number)[: len(unit.bc_block) + 1]
        is_q = Signal(name=f"is_q{number}", reset_less=True)
        turns = Signal(name=f"turns{number}", reset_less=True)
        with m.If(streams.main):
            m.d.sync += [is_q.eq(block < q_blocks), turns.eq(block < turned_blocks)]
        within = Signal(address_bits(head_blocks), name=f"head_block{number}", reset_less=True)
        step = n_groups % head_blocks
        stepped = within + step
        wrapped = Mux(stepped >= head_blocks, stepped - head_blocks, stepped)
        with m.If(begins):
            m.d.sync += within.eq(number % head_blocks)
        with m.Elif(reads):
            m.d.sync += within.eq(wrapped)
        m.d.comb += [
            group.is_q.eq(is_q),
            group.turns.eq(turns),
            group.sc_r_en.eq(reads),
            group.sc_r_addr.eq(token_word + within),
            group.sc_w_en.eq(is_filled),
            group.sc_w_addr.eq(word if sizes.sink_position else token_word + word),
            group.sc_w_mask.eq(mask),
            group.sc_w_data.eq(angles),
        ]


def _sink_query(
    m: Module, sizes: Any, control: Any, pos: Signal
) -> tuple[Value, Value, Signal, Signal]:
    """Say what the angles and the beats of the query for the sinks take.

    Returns
    -------
    tuple
        Word of the increments; position, one cycle later; of the word in ``s[0]``, whether it is
        the sinks' query's, and whether it is the last one of those.
    """
    at_sinks, ends = Signal(name="rope_at_sinks"), Signal(name="rope_ends_sinks")
    m.d.sync += [
        at_sinks.eq(control.at_sinks),
        ends.eq(control.is_rope & (control.c1 == sizes.sink_beats - 1)),
    ]
    last = sizes.sink_position
    inside = Mux(pos < last, pos, last)[: len(pos)]
    return control.c1_own, Mux(at_sinks, inside, pos), at_sinks, ends


def build_attn_scalars(
    m: Module, unit: Any, control: Any, groups: list[Any], streams: Streams
) -> None:
    """Add the reciprocals of the heads' sums, and each group's choice among them."""
    sizes = unit.sizes
    head_blocks = sizes.head_dim // 32
    m.submodules.recip = recip = Recip(table=unit.tables["RCP"])
    asked = Signal(name="sum_asked")
    m.d.sync += asked.eq(streams.sums)
    m.d.comb += [recip.start.eq(asked), recip.l.eq(unit.l_data)]
    lengths = Memory(shape=unsigned(6), depth=sizes.n_heads, init=[])
    recips = Memory(shape=unsigned(32), depth=sizes.n_heads, init=[])
    m.submodules.lengths, m.submodules.recips = lengths, recips
    bits = address_bits(sizes.n_heads)
    for name, memory, valid, value in (
        ("length", lengths, recip.length_valid, recip.length),
        ("recip", recips, recip.next_done, recip.next_y),
    ):
        head = Signal(bits, name=f"{name}_head", reset_less=True)
        with m.If(control.first):
            m.d.sync += head.eq(0)
        with m.Elif(valid):
            m.d.sync += head.eq(head + 1)
        port = memory.write_port()
        m.d.comb += [port.en.eq(valid), port.addr.eq(head), port.data.eq(value)]

    issue, follows = Signal(name="sum_issue_main"), Signal(name="sum_follows")
    m.d.comb += [
        issue.eq(streams.main & control.is_attn_out),
        follows.eq(streams.s[0] & control.is_attn_out),
    ]
    whole, part = divmod(sizes.n_groups, head_blocks)
    for index, group in enumerate(groups):
        head = Signal(bits + 1, name=f"group_head{index}", reset_less=True)
        before = Signal(bits, name=f"group_head_before{index}", reset_less=True)
        within = Signal(address_bits(2 * head_blocks), name=f"group_block{index}", reset_less=True)
        carries = within + part >= head_blocks
        with m.If(control.first):
            m.d.sync += [head.eq(index // head_blocks), within.eq(index % head_blocks)]
        with m.Elif(issue):
            m.d.sync += [
                head.eq(head + whole + carries),
                within.eq(Mux(carries, within + part - head_blocks, within + part)),
                before.eq(head),
            ]
        length_port, recip_port = lengths.read_port(), recips.read_port()
        m.d.comb += [
            length_port.en.eq(issue),
            length_port.addr.eq(head),
            recip_port.en.eq(follows),
            recip_port.addr.eq(before),
            group.l_length.eq(length_port.data),
            group.l_recip.eq(recip_port.data),
        ]
