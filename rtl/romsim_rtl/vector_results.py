"""Results of the vector unit: masks and addresses of what is written, counts, the broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal

from romsim_rtl.kv_words import KV_WORDS
from romsim_rtl.mx_quantizer import QUANTIZER_CYCLES
from romsim_rtl.primitives import add_tree
from romsim_rtl.vector_control import VectorSizes
from romsim_rtl.vector_embed_input import EmbedInput
from romsim_rtl.vector_streams import Streams

__all__ = ["Results", "build_broadcast", "build_results"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Stages of the result register.

    Parameters
    ----------
    quantised
        The values in it are being quantised.
    """

    quantised: Signal


def build_results(
    m: Module,
    unit: Any,
    control: Any,
    groups: list[Any],
    streams: Streams,
    embedded: EmbedInput,
) -> Results:
    """Say when the result register is loaded, what counts in it and where it goes."""
    sizes, s = unit.sizes, streams.s
    load, own = Signal(name="load_result"), Signal(name="load_own")
    m.d.comb += [
        own.eq(
            (control.is_resid & s[1])
            | (control.is_attn_out & s[2])
            | ((control.is_norm | control.is_rope) & s[4])
            | (control.is_glu & s[6])
        ),
        load.eq(own | embedded.result),
    ]
    beat = Signal.like(control.c1, name="result_beat", reset_less=True)
    with m.If(control.first):
        m.d.sync += beat.eq(0)
    with m.Elif(own):
        m.d.sync += beat.eq(beat + 1)
    whole: Any = Const((1 << sizes.n_lanes) - 1, sizes.n_lanes)
    if sizes.sink_position:
        ends = control.is_rope & (beat == sizes.sink_beats - 1)
        whole = Mux(ends, sizes.lanes_of(sizes.q_dim), whole)
    mask = Signal(sizes.n_lanes, name="result_mask")
    m.d.comb += mask.eq(
        Mux(
            embedded.result,
            embedded.mask,
            Mux(beat == control.n_last, control.tail, whole),
        )
    )
    valid, quantised = Signal(name="v_valid"), Signal(name="v_quantised")
    to_x, to_y = Signal(name="v_to_x"), Signal(name="v_to_y")
    writes_y = control.to_y if unit.spec.has_sub_norms else Const(0, 1)
    gives = control.is_attn_out | control.is_glu
    m.d.sync += [
        valid.eq(load),
        quantised.eq(own & (control.is_norm | control.is_rope | (gives & ~writes_y))),
        to_x.eq(embedded.result | (own & control.is_resid)),
        to_y.eq(own & gives & writes_y),
    ]
    word = Signal(max(unit.x_bits, unit.y_bits), name="v_word", reset_less=True)
    with m.If(load):
        m.d.sync += word.eq(Mux(embedded.result, embedded.x_word, beat))
    for index, group in enumerate(groups):
        m.d.comb += [
            group.res_en.eq(load),
            group.out_mask.eq(mask[32 * index : 32 * index + 32]),
            group.v_valid.eq(valid),
            group.v_quant.eq(quantised),
            group.v_x.eq(to_x),
            group.x_w_addr.eq(unit.x_address(word[: unit.x_bits], control.token)),
        ]
        if unit.spec.has_sub_norms:
            m.d.comb += [
                group.v_y.eq(to_y),
                group.y_w_addr.eq(unit.y_address(word[: unit.y_bits], control.token)),
            ]
        if unit.group_config.y_banks > 1:
            m.d.comb += group.y_w_bank.eq(control.token)

    clips = Signal(32, name="clip_count")
    clipped = Signal(name="is_clipped")
    m.d.comb += clipped.eq(Cat(group.n_sat.any() for group in groups).any())
    with m.If(clipped):
        m.d.sync += clips.eq(clips + add_tree([group.n_sat for group in groups]))
    m.d.comb += unit.sat_count.eq(clips)
    return Results(quantised=quantised)


def build_broadcast(
    m: Module, unit: Any, control: Any, groups: list[Any], results: Results, pos: Signal
) -> None:
    """Count the quantised blocks; send them through the wires' registers."""
    sizes = unit.sizes
    chain = [Signal(name=f"quantised{index}") for index in range(QUANTIZER_CYCLES)]
    for after, before in zip(chain, (results.quantised, *chain), strict=False):
        m.d.sync += after.eq(before)
    ready: Any = chain[-1]
    beat, mask = _count_blocks(m, control, ready, sizes, "broadcast_beat")
    codes: list[Any] = [group.codes for group in groups]
    more: dict[str, list[Any]] = {}
    if KV_WORDS[unit.codec].has_halves:
        n_queries = sizes.sink_beats * sizes.n_groups + sizes.q_dim // 32
        half = KV_WORDS[unit.codec].read_bits
        more["second"] = [group.words[half:] for group in groups]
        for index, group in enumerate(groups):
            is_word = control.is_rope & (beat * sizes.n_groups + index >= n_queries)
            codes[index] = Mux(is_word, group.words[:half], group.codes)
    if sizes.encode_cycles:
        ready, beat, mask, is_late = _add_encoded(m, sizes, control, results, ready, beat, mask)
        codes = [Mux(is_late, group.affine_codes, group.codes) for group in groups]
        more["affine"] = [group.affine for group in groups]
    values: list[tuple[str, Any]] = [
        ("kind", Mux(control.is_rope, 2, 1)),
        ("token", control.token),
        ("layer", control.layer),
        ("pos", pos),
        ("block", (beat * sizes.n_groups)[: unit.block_bits]),
        ("mask", mask),
    ]
    targets: list[Any] = [getattr(unit, f"bc_{name}") for name, _ in values[1:]]
    for index, group in enumerate(groups):
        values += [
            (f"codes{index}", codes[index]),
            (f"shift{index}", group.shift),
            (f"sum{index}", group.total),
        ]
        targets += [unit.bc_codes[index], unit.bc_shift[index], unit.bc_sum[index]]
    for name, parts in more.items():
        values += [(f"{name}{index}", value) for index, value in enumerate(parts)]
        targets += list(getattr(unit, f"bc_{name}"))
    valid, at = ready, [value for _, value in values]
    for hop in range(sizes.broadcast_cycles):
        after = Signal(name=f"wire{hop}_valid")
        m.d.sync += after.eq(valid)
        registers = []
        for (name, _), value in zip(values, at, strict=True):
            width = 2 if name == "kind" else len(value)
            register = Signal(width, name=f"wire{hop}_{name}", reset_less=True)
            with m.If(valid):
                m.d.sync += register.eq(value)
            registers.append(register)
        valid, at = after, registers
    m.d.comb += unit.bc_kind.eq(Mux(valid, at[0], 0))
    m.d.comb += [target.eq(value) for target, value in zip(targets, at[1:], strict=True)]


def _count_blocks(
    m: Module, control: Any, ready: Any, sizes: VectorSizes, name: str
) -> tuple[Signal, Any]:
    """Count beats that are ready; return the number of this one, and its blocks that count."""
    beat = Signal.like(control.c1, name=name, reset_less=True)
    with m.If(control.first):
        m.d.sync += beat.eq(0)
    with m.Elif(ready):
        m.d.sync += beat.eq(beat + 1)
    # a block counts if its first lane does
    n_groups = sizes.n_groups
    tail = Cat(control.tail[32 * index] for index in range(n_groups))
    whole: Any = Const((1 << n_groups) - 1, n_groups)
    if sizes.sink_position:
        last = sizes.lanes_of(sizes.q_dim)
        present = sum((last >> 32 * index & 1) << index for index in range(n_groups))
        ends = control.is_rope & (beat == sizes.sink_beats - 1)
        whole = Mux(ends, Const(present, n_groups), whole)
    return beat, Mux(beat == control.n_last, tail, whole)


def _add_encoded(
    m: Module,
    sizes: VectorSizes,
    control: Any,
    results: Results,
    ready: Any,
    beat: Any,
    mask: Any,
) -> tuple[Any, Any, Any, Any]:
    """Send keys and values when they are encoded, later than the queries, which are all before.

    A beat with both is sent twice, each time with a part of its blocks.

    Returns
    -------
    tuple
        As given: whether a beat is ready, its number and blocks; and whether it is of encoded ones.
    """
    n_groups = sizes.n_groups
    n_queries = sizes.sink_beats * n_groups + sizes.q_dim // 32
    # other operators' beats stay out: theirs may still be on their way when a rope begins
    chain: list[Any] = [results.quantised & control.is_rope]
    for index in range(QUANTIZER_CYCLES + sizes.encode_cycles):
        after = Signal(name=f"encoded{index}")
        m.d.sync += after.eq(chain[-1])
        chain.append(after)
    late_beat, late_mask = _count_blocks(m, control, chain[-1], sizes, "encoded_beat")

    def queries(number: Any) -> Any:
        return Cat(number * n_groups + index < n_queries for index in range(n_groups))

    early, late = Signal(n_groups, name="early_blocks"), Signal(n_groups, name="late_blocks")
    m.d.comb += [
        early.eq(mask & Mux(control.is_rope, queries(beat), mask)),
        late.eq(late_mask & ~queries(late_beat)),
    ]
    is_late = Signal(name="is_late")
    m.d.comb += is_late.eq(chain[-1] & late.any())
    return (
        is_late | (ready & early.any()),
        Mux(is_late, late_beat, beat),
        Mux(is_late, late, early),
        is_late,
    )
