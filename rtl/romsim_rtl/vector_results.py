"""Results of the vector unit: masks and addresses of what is written, counts, the broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal

from romsim_rtl.mx_quantizer import QUANTIZER_CYCLES
from romsim_rtl.primitives import add_tree
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
    whole = Const((1 << sizes.n_lanes) - 1, sizes.n_lanes)
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
    ready = chain[-1]
    beat = Signal.like(control.c1, name="broadcast_beat", reset_less=True)
    with m.If(control.first):
        m.d.sync += beat.eq(0)
    with m.Elif(ready):
        m.d.sync += beat.eq(beat + 1)
    # a block counts if its first lane does
    tail = Cat(control.tail[32 * index] for index in range(sizes.n_groups))
    mask = Mux(beat == control.n_last, tail, Const((1 << sizes.n_groups) - 1, sizes.n_groups))
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
            (f"codes{index}", group.codes),
            (f"shift{index}", group.shift),
            (f"sum{index}", group.total),
        ]
        targets += [unit.bc_codes[index], unit.bc_shift[index], unit.bc_sum[index]]
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
