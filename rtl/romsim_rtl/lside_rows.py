"""Rows on their way from the tiles to unit V, and words of the embedding."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from romsim_rtl.lside_run import EmbedRun, MatrixRun
from romsim_rtl.primitives import popcount

__all__ = ["build_collect"]


def build_collect(
    m: Module, unit: Any, tiles: list[Any], run: MatrixRun, embed: EmbedRun, adders: Any
) -> None:
    """Take a step's rows beat by beat, and send them through the wires' registers.

    Parameters
    ----------
    unit
        The `LSide`.
    tiles
        Its tiles, or their faces.
    adders
        The `AdderSide`, which takes the rows of its own runs; or ``None``.
    """
    clipped = Cat(*(tile.clipped for tile in tiles))
    count = Signal(32, name="clip_count")
    with m.If(run.v_rows):
        m.d.sync += count.eq(count + popcount(clipped))
    m.d.comb += unit.sat_count.eq(count)

    draining, beat = _beats(m, unit, run)
    row, mask, is_there = _numbers(m, unit, run, draining)
    data = [Signal(32, name=f"row_{lane}", reset_less=True) for lane in range(unit.config.n_lanes)]
    with m.If(draining):
        for lane, register in enumerate(data):
            m.d.sync += register.eq(_source(unit.config, tiles, run, beat, lane))
    valid = Signal(name="rows_valid")
    m.d.sync += valid.eq(draining & is_there)
    values: list[Value] = [row, mask, *data]
    hops = unit.config.collect_cycles - 1
    valid, values = _wires(m, "rows", valid, values, hops)
    if adders is None:
        m.d.comb += unit.ly_valid.eq(valid)
    else:
        m.d.comb += [
            unit.ly_valid.eq(valid & ~adders.busy),
            adders.rows_valid.eq(valid & adders.busy),
        ]
    m.d.comb += [
        unit.ly_token.eq(run.held["token"]),
        unit.ly_head.eq(run.held["is_head"]),
        unit.ly_row.eq(values[0]),
        unit.ly_mask.eq(values[1]),
        *(unit.ly_data[lane].eq(value) for lane, value in enumerate(values[2:])),
    ]

    word: Value = tiles[0].em_word
    for tile in tiles[1:]:
        word = word | tile.em_word
    valid, values = _wires(m, "embed", embed.valid, [embed.word, embed.plane, word], hops)
    m.d.comb += [
        unit.em_valid.eq(valid),
        unit.em_word.eq(values[0]),
        unit.em_plane.eq(values[1]),
        unit.em_data.eq(values[2]),
    ]


def _beats(m: Module, unit: Any, run: MatrixRun) -> tuple[Value, Value]:
    """Count a step's beats, the first in the cycle in which its rows are there."""
    if max(unit.config.step_beats(log) for log in unit.config.tile.ks_logs) == 1:
        return run.v_rows, Const(0)
    more = Signal(name="more_beats")
    beat = Signal.like(run.last_beat, name="beat", reset_less=True)
    current = Mux(run.v_rows, 0, beat)
    draining = run.v_rows | more
    m.d.sync += more.eq(draining & (current != run.last_beat))
    with m.If(draining):
        m.d.sync += beat.eq(current + 1)
    return draining, current


def _numbers(m: Module, unit: Any, run: MatrixRun, draining: Value) -> tuple[Signal, Signal, Value]:
    """Give a beat's first row, the mask of its lanes, and whether there are rows left for it."""
    config, held = unit.config, run.held
    lanes, lanes_log2 = config.n_lanes, config.lanes_log2
    at, rest = Signal(20, name="next_row"), Signal(20, name="rows_left")
    begins = Signal(name="begins_rows")
    m.d.sync += begins.eq(run.start)
    chunk: Value = Const(lanes, lanes_log2 + 1)
    for log in config.tile.ks_logs:
        rows = 1 << config.rows_log2 - log
        if rows < lanes:
            chunk = Mux(held["ks_log2"] == log, rows, chunk)
    row = Signal(20, name="beat_row", reset_less=True)
    mask = Signal(lanes, name="beat_mask", reset_less=True)
    with m.If(begins):
        m.d.sync += [at.eq(held["first_row"]), rest.eq(held["n_rows"])]
    with m.Elif(draining):
        n_rows = Mux(rest < chunk, rest[: len(chunk)], chunk)
        ones = ((Const(1, lanes + 1) << n_rows) - 1)[:lanes]
        m.d.sync += [
            at.eq(at + chunk),
            rest.eq(rest - n_rows),
            row.eq(Cat(Const(0, lanes_log2), at[lanes_log2:])),
            mask.eq((ones << at[:lanes_log2])[:lanes]),
        ]
    return row, mask, rest != 0


def _source(config: Any, tiles: list[Any], run: MatrixRun, beat: Value, lane: int) -> Value:
    """Choose the row of a lane by cells a row and beat."""
    chosen: Value | None = None
    for log in config.tile.ks_logs:
        n_beats = config.step_beats(log)
        for number in range(n_beats):
            tile, row = config.row_place(log, number, lane)
            value = tiles[tile].rows[row]
            if chosen is None:
                chosen = value
                continue
            is_it: Value = run.held["ks_log2"] == log
            if n_beats > 1:
                is_it = is_it & (beat == number)
            chosen = Mux(is_it, value, chosen)
    assert chosen is not None  # ks_logs is not empty
    return chosen


def _wires(
    m: Module, name: str, valid: Value, values: list[Value], hops: int
) -> tuple[Value, list[Value]]:
    """Put registers into a bus that move only where something passes."""
    for hop in range(hops):
        after = [
            Signal(value.shape(), name=f"{name}_wire{hop}_{index}", reset_less=True)
            for index, value in enumerate(values)
        ]
        with m.If(valid):
            m.d.sync += [register.eq(value) for register, value in zip(after, values, strict=True)]
        passed = Signal(name=f"{name}_wire{hop}_valid")
        m.d.sync += passed.eq(valid)
        valid, values = passed, list(after)
    return valid, values
