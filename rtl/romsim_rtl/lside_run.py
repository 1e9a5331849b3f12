"""The run of a matrix through unit L, cycle by cycle, and of a row of the embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value

from romsim_rtl.attention_command import delay
from romsim_rtl.encoding import FIELDS
from romsim_rtl.instruction import cut_fields
from romsim_rtl.memory import address_bits
from romsim_rtl.primitives import wire

__all__ = ["MATVEC_CYCLES", "EmbedRun", "MatrixRun", "build_embed", "build_run"]

MATVEC_CYCLES = 11
"""λ_matvec: activations and word (2), products, planes, scale, grid, sum (5), row (3), collect."""

_KEPT = (
    *("token", "base", "wpc", "planes", "ks_log2", "n_rows", "n_cols", "grid", "out_shift"),
    *("offset", "has_scales", "is_head", "pre_shift", "multiplier", "first_row", "steps"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRun:
    """State of the current instruction.

    Parameters
    ----------
    start
        It is started.
    held
        Its fields, from the cycle after it was started.
    step_words
        ``wpc · planes``.
    last_beat
        ``db - 1``.
    rom_en, address
        Read this address of all cells.
    v_rows
        A step's rows are on the tiles' outputs, for ``db`` cycles from this one.
    """

    start: Value
    held: dict[str, Signal]
    step_words: Signal
    last_beat: Signal
    rom_en: Signal
    address: Signal
    v_rows: Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRun:
    """A row of the embedding on its way out of the ROM.

    Parameters
    ----------
    reading, address
        Read this address.
    there, tile, cell
        The word is in the register behind the ROM: whose it is.
    valid, word, plane
        One cycle later, the word is in the tiles' output registers: its number and plane.
    """

    reading: Signal
    address: Signal
    there: Signal
    tile: Signal
    cell: Signal
    valid: Signal
    word: Signal
    plane: Signal


def build_run(m: Module, unit: Any, drive: Any, adders: Any) -> MatrixRun:
    """Step through words, planes and steps; drive the pipeline of all tiles.

    Parameters
    ----------
    adders
        The `AdderSide`, whose runs are as those of ``matvec``; or ``None``.
    """
    config = unit.config
    instr = cut_fields(unit.instr)
    start: Value = unit.start
    if adders is not None:
        start = wire(m, adders.run | (unit.start & ~adders.start), "begins_run")
        instr |= _run_fields(m, adders, instr)
    held = {
        name: Signal(instr[name].shape(), name=f"held_{name}", reset_less=True) for name in _KEPT
    }
    with m.If(start | unit.embed):
        m.d.sync += [held[name].eq(instr[name]) for name in _KEPT]

    step_words = Signal(12, reset_less=True)
    words = (instr["wpc"] * instr["planes"])[:12]
    beats = _drain_beats(config, instr)
    beat_bits = len(beats)
    last_beat, last_cycle = Signal(beat_bits, reset_less=True), Signal(12, reset_less=True)
    with m.If(start | unit.embed):
        m.d.sync += step_words.eq(words)
    with m.If(start):
        m.d.sync += [
            last_beat.eq(beats - 1),
            last_cycle.eq(Mux(words > beats, words, beats) - 1),
        ]

    running, active = Signal(), Signal()
    cycle = Signal(12, reset_less=True)
    step = Signal(FIELDS["steps"][0], reset_less=True)
    word, plane = Signal(8, reset_less=True), Signal(4, reset_less=True)
    is_last_plane, is_last_word, ends_step = Signal(), Signal(), Signal()
    m.d.comb += [
        is_last_plane.eq(plane + 1 == held["planes"]),
        is_last_word.eq(word + 1 == held["wpc"]),
        ends_step.eq(cycle == last_cycle),
    ]
    tail = Signal(16, reset_less=True)
    busy = Signal()
    if adders is None:
        m.d.comb += unit.busy.eq(busy)
    else:
        m.d.comb += [unit.busy.eq(busy | adders.busy), adders.running.eq(busy)]
    with m.If(start):
        m.d.sync += [busy.eq(1), running.eq(1), active.eq(1)]
        m.d.sync += [cycle.eq(0), step.eq(0), word.eq(0), plane.eq(0), tail.eq(0)]
    with m.Elif(running):
        m.d.sync += cycle.eq(cycle + 1)
        with m.If(active):
            m.d.sync += plane.eq(plane + 1)
            with m.If(is_last_plane):
                m.d.sync += [plane.eq(0), word.eq(word + 1)]
                with m.If(is_last_word):
                    m.d.sync += [word.eq(0), active.eq(0)]
        with m.If(ends_step):
            m.d.sync += [cycle.eq(0), step.eq(step + 1), active.eq(1)]
            with m.If(step + 1 == held["steps"]):
                m.d.sync += [running.eq(0), active.eq(0)]
                rest = MATVEC_CYCLES + config.collect_cycles - 1
                m.d.sync += tail.eq(last_beat + held["ks_log2"] + rest)
    with m.Elif(busy):
        m.d.sync += tail.eq(tail - 1)
        with m.If(tail == 1):
            m.d.sync += busy.eq(0)

    _drive_words(m, unit, drive, instr, start, held, active, word, plane, is_last_plane)
    v_rows = _drive_stages(m, unit, drive, held, active, word, plane, is_last_plane, is_last_word)
    bits = address_bits(max(config.tile.rom_rows, config.tile.trit_words))
    address = Signal(bits, name="rom_address", reset_less=True)
    rom_en: Value = active
    with m.If(start):
        m.d.sync += address.eq(instr["base"])
    with m.Elif(active):
        m.d.sync += address.eq(address + 1)
    if adders is not None:
        m.d.comb += [drive.trit_en.eq(rom_en & adders.busy), drive.trit_addr.eq(address)]
        rom_en = wire(m, rom_en & ~adders.busy, "reads_matrix")
    return MatrixRun(
        start=start,
        held=held,
        step_words=step_words,
        last_beat=last_beat,
        rom_en=rom_en,
        address=address,
        v_rows=v_rows,
    )


def _run_fields(m: Module, adders: Any, instr: dict[str, Value]) -> dict[str, Value]:
    """Take the fields of a run from the adapter table in the cycle in which it gives an entry."""
    constants = ("planes", "grid", "offset", "has_scales", "is_head")
    values: dict[str, Value] = {name: Const(int(name == "planes"), 1) for name in constants}
    values["token"] = adders.held_token
    for name in _KEPT:
        if name not in values and name != "n_cols":  # columns are of an embedding's row
            values[name] = getattr(adders, name)
    return {
        name: wire(m, Mux(adders.looks, value, instr[name]), f"run_{name}")
        for name, value in values.items()
    }


def _drain_beats(config: Any, instr: dict[str, Value]) -> Value:
    """``db``: beats of a step's rows, or of all rows if they are fewer."""
    whole: Value = Const(config.step_beats(0), address_bits(config.step_beats(0) + 1))
    for log in config.tile.ks_logs:
        whole = Mux(instr["ks_log2"] == log, config.step_beats(log), whole)
    rows = (instr["n_rows"] + (config.n_lanes - 1)) >> config.lanes_log2
    return Mux(rows < whole, rows[: len(whole)], whole)


def _drive_words(
    m: Module,
    unit: Any,
    drive: Any,
    instr: dict[str, Value],
    start: Value,
    held: dict[str, Signal],
    active: Signal,
    word: Signal,
    plane: Signal,
    is_last_plane: Signal,
) -> None:
    """Address the x buffer: port ``j`` reads words from ``(j mod ks) · wpc`` on."""
    x = unit.config.tile.x
    last = word + 1 == held["wpc"]
    m.d.comb += drive.x_en.eq(active & (plane == 0))
    if x.token_bits:
        m.d.comb += drive.x_token.eq(held["token"])
    for port in range(unit.config.tile.n_ports):
        at = Signal(x.word_bits, name=f"x_word{port}", reset_less=True)
        first = Signal(x.word_bits, name=f"x_first{port}", reset_less=True)
        share: Value = Const(0)
        for log in unit.config.tile.ks_logs:
            share = Mux(instr["ks_log2"] == log, port % (1 << log), share)
        begin = (share * instr["wpc"])[: x.word_bits]
        with m.If(start):
            m.d.sync += [first.eq(begin), at.eq(begin)]
        with m.Elif(active & is_last_plane):
            m.d.sync += at.eq(Mux(last, first, at + 1))
        m.d.comb += drive.x_word[port].eq(at)


def _drive_stages(
    m: Module,
    unit: Any,
    drive: Any,
    held: dict[str, Signal],
    active: Signal,
    word: Signal,
    plane: Signal,
    is_last_plane: Signal,
    is_last_word: Signal,
) -> Signal:
    """Delay what the counters say to the stages of cell, tree and row."""
    tile = unit.config.tile

    def after(value: Value, name: str, stages: int = 1) -> Value:
        for _ in range(stages):
            delayed = Signal(len(value), name=name)
            m.d.sync += delayed.eq(value)
            value = delayed
        return value

    read = after(active, "v_read")
    dot = after(read, "v_dot")
    total = after(dot, "v_sum")
    first_read = after(active & (plane == 0), "first_read")
    first_dot = after(first_read, "first_dot")
    last_sum = after(active & is_last_plane, "last_sum", 3)
    times = after(last_sum, "v_mul")
    moved = after(times, "v_shift")
    added = after(moved, "v_acc")
    m.d.comb += [
        drive.v_unpack.eq(first_read),
        drive.v_dot.eq(dot),
        drive.first_plane.eq(first_dot),
        drive.v_sum.eq(total),
        drive.v_mul.eq(times),
        drive.v_shift.eq(moved),
        drive.v_acc.eq(added),
        drive.first_word.eq(after(active & (word == 0), "first_acc", 6)),
        drive.offset.eq(held["offset"]),
        drive.grid.eq(held["grid"]),
        *(
            getattr(drive, name).eq(held[name])
            for name in ("ks_log2", "pre_shift", "multiplier", "out_shift")
        ),
    ]
    if tile.cell.max_planes > 1:
        m.d.comb += drive.first_sum.eq(after(first_dot, "first_sum"))
        place = Signal(3, name="plane_place", reset_less=True)
        plane_dot = after(plane, "plane_dot", 2)
        with m.If(dot):
            m.d.sync += place.eq(plane_dot * tile.cell.plane_shift)
        m.d.comb += drive.plane_place.eq(place)
    if tile.cell.has_plain:
        m.d.comb += drive.plain.eq(~held["has_scales"])
    complete = after(after(active & is_last_plane & is_last_word, "ends_row", 6), "v_row")
    pre: Value = Const(0, 1)
    for level in range(tile.ks_logs[-1] + 1):
        if level in tile.ks_logs:
            pre = Mux(held["ks_log2"] == level, complete, pre)
        if level < tile.ks_logs[-1]:
            more = complete & (held["ks_log2"] > level)
            m.d.comb += drive.v_tree[level].eq(more)
            complete = after(more, "v_tree")
    second = after(pre, "v_times")
    third = after(second, "v_round")
    m.d.comb += [drive.v_pre.eq(pre), drive.v_times.eq(second), drive.v_round.eq(third)]
    return after(third, "v_rows")


def build_embed(m: Module, unit: Any, run: MatrixRun) -> EmbedRun:
    """Read a row's words, one a cycle: of a cell in order, then of the next cell that shares it."""
    config, held = unit.config, run.held
    cells_log2, rows_log2 = config.tile.n_cells.bit_length() - 1, config.rows_log2
    located = Signal(name="embed_located")
    row = Signal(20, name="embed_row", reset_less=True)
    m.d.sync += located.eq(unit.embed)
    with m.If(unit.embed):
        m.d.sync += row.eq(unit.row)

    bits = address_bits(config.tile.rom_rows)
    first = Signal(bits, name="embed_first", reset_less=True)
    at = Signal(bits, name="embed_address", reset_less=True)
    tile = Signal(address_bits(config.n_tiles), name="embed_tile", reset_less=True)
    cell = Signal(config.tile.cell_bits, name="embed_cell", reset_less=True)
    reading = Signal(name="reads_embed")
    word, plane = Signal(10, name="embed_word", reset_less=True), Signal(4, reset_less=True)
    local, n_words = Signal(8, reset_less=True), Signal(10, reset_less=True)
    share_log2 = held["ks_log2"]
    step_log2 = (rows_log2 - share_log2)[:4]
    inside = row & ((Const(1, rows_log2 + 1) << step_log2) - 1)[:20]
    cell_log2 = (cells_log2 - share_log2)[:4]
    code_log2 = config.tile.cell.word_codes.bit_length() - 1
    begin = (held["base"] + (row >> step_log2) * run.step_words)[:bits]
    is_last_plane = plane + 1 == held["planes"]
    is_last_local = local + 1 == held["wpc"]
    with m.If(located):
        m.d.sync += [
            *(reading.eq(1), first.eq(begin), at.eq(begin)),
            tile.eq(inside >> cell_log2),
            cell.eq((inside << share_log2)[:cells_log2]),  # no bit at all where a tile has one
            *(word.eq(0), plane.eq(0), local.eq(0)),
            n_words.eq((held["n_cols"] + (config.tile.cell.word_codes - 1)) >> code_log2),
        ]
    with m.Elif(reading):
        m.d.sync += [plane.eq(plane + 1), at.eq(at + 1)]
        with m.If(is_last_plane):
            m.d.sync += [plane.eq(0), word.eq(word + 1), local.eq(local + 1)]
            with m.If(is_last_local):
                m.d.sync += [local.eq(0), cell.eq(cell + 1), at.eq(first)]
            with m.If(word + 1 == n_words):
                m.d.sync += reading.eq(0)

    of_word = {"cell": cell, "word": word, "plane": plane}
    read, of_word = delay(m, reading, of_word, 1, "embed_read")
    there, there_of = delay(m, read, of_word, 1, "embed_there")
    valid, valid_of = delay(m, there, there_of, 1, "embed_valid")
    return EmbedRun(
        reading=reading,
        address=at,
        there=there,
        tile=tile,
        cell=there_of["cell"],
        valid=valid,
        word=valid_of["word"],
        plane=valid_of["plane"],
    )
