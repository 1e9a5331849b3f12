"""A tile's adapter path: rows of A times the x buffer, rows of B times z."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.target import MX_BLOCK
from romsim_rtl.attention_command import delay, held, valid_chain
from romsim_rtl.attention_sizes import CODES_BITS, SHIFT_BITS, AttentionSizes, log2
from romsim_rtl.exact_shift import shift_either, shift_to_saturate
from romsim_rtl.htile_banks import BlockBank
from romsim_rtl.lora_command import (
    configuration_signature,
    input_signature,
    lora_command_signature,
    parameter_signature,
    z_signature,
)
from romsim_rtl.lora_sizes import CHUNK_BITS, N_PROJECTIONS, LoraSizes, rows_out
from romsim_rtl.lora_z import ProjectionCodes
from romsim_rtl.memory import Sram, address_bits
from romsim_rtl.primitives import add_tree, popcount, saturate32, wire

__all__ = ["ROW_CYCLES", "SUM_CYCLES", "TileLora"]

ROW_CYCLES = 7
"""Cycles from a row's last address to its result."""

SUM_CYCLES = 5
"""Cycles from the last address of a row of A to its sum, which is rounded and clipped elsewhere."""

_SUM_BITS = 21
_AMOUNT_BITS = 11  # γ of 9 bits less two exponents


class TileLora(wiring.Component):
    """Adapter banks and lanes of one tile (docs/numerics.md, section 6).

    Parameters
    ----------
    sizes, lora
        Loop sizes and memories.

    Members
    -------
    tile : In
        Number of the tile, constant; if there are several.
    parameters, command, x, z, configuration : In
        The buses of :mod:`romsim_rtl.lora_command`.
    row : Out(signed(64))
        Sum of a row of A, or of the tile's part of it, 5 cycles after its last word's command.
    rows : Out(32 * VL)
        Rows of B in their lanes of the beat, 0 elsewhere, 7 cycles after the command.
    saturations : Out(32)
        Rows that were clipped.
    """

    def __init__(self, *, sizes: AttentionSizes, lora: LoraSizes) -> None:
        self.sizes, self.lora = sizes, lora
        members: dict[str, Any] = {
            "parameters": In(parameter_signature(lora)),
            "command": In(lora_command_signature(sizes, lora)),
            "x": In(input_signature(sizes, lora)),
            "z": In(z_signature(sizes, lora)),
            "configuration": In(configuration_signature(sizes, lora)),
            "row": Out(signed(64)),
            "rows": Out(32 * sizes.n_lanes),
            "saturations": Out(32),
        }
        if sizes.n_tiles > 1:
            members["tile"] = In(log2(sizes.n_tiles))
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        """Build the pipeline: words, products, sums, shifts, rows, results."""
        m = Module()
        sizes, command = self.sizes, self.command
        self._tile: Any = self.tile if sizes.n_tiles > 1 else Const(0, 1)
        self._units = rows_out(sizes)
        words = {kind: self._bank(m, kind) for kind in ("a", "b")}
        x_codes, x_shifts = self._inputs(m)
        m.submodules.codes = codes = ProjectionCodes(sizes=sizes, lora=self.lora)
        for (_, _, source), (_, _, target) in zip(
            self.z.signature.flatten(self.z), codes.z.signature.flatten(codes.z), strict=True
        ):
            m.d.comb += target.eq(source)
        for name in ("slot_log2", "offset1", "offset2"):
            m.d.comb += getattr(codes, name).eq(getattr(self.parameters, name))

        start = Signal()
        m.d.comb += start.eq(command.a | command.b)
        valid = valid_chain(m, start, 6, "lora")
        stage = {
            "is_b": command.b,
            "first": command.first,
            "beat": command.beat,
        } | self._projections(m)
        stages = [stage]
        for index in range(6):
            stages.append(delay(m, valid[index], stages[-1], 1, f"lora_stage{index}")[1])

        products = self._products(m, valid[1], stages[1], words, x_codes, codes.codes)
        sums, amounts = self._sums(m, valid, stages, words, x_shifts, products)
        terms = []
        for unit in range(self._units):
            term = Signal(signed(64), name=f"term{unit}", reset_less=True)
            with m.If(valid[3]):
                m.d.sync += term.eq(shift_either(m, f"term{unit}", sums[unit], amounts[unit]))
            terms.append(term)
        shifted = self._rows(m, valid, stages, terms)
        self._results(m, valid[6], stages[6], shifted)
        return m

    def _bank(self, m: Module, kind: str) -> Any:
        """Make a bank that the configuration port writes, codes first; return its word."""
        sizes, lora = self.sizes, self.lora
        depth = lora.a_words if kind == "a" else lora.b_words
        exponents = sizes.word_blocks if kind == "a" else rows_out(sizes)
        bus = self.configuration
        # registers of its own, or the copies would be made in every cycle
        wanted = Signal(name=f"{kind}_wanted")
        writes = Signal(name=f"{kind}_writes")
        is_mine: Any = Const(1, 1) if sizes.n_tiles == 1 else bus.tile == self._tile
        m.d.comb += wanted.eq(getattr(bus, kind) & is_mine)
        m.d.sync += writes.eq(wanted)
        address = Signal(address_bits(depth), name=f"{kind}_address", reset_less=True)
        with m.If(wanted):
            m.d.sync += address.eq(bus.address)
        words = []
        first = 0
        for part, n_bytes in (("codes", sizes.word_elems), ("exps", exponents)):
            bits = min(CHUNK_BITS, 8 * n_bytes)
            chunks = 8 * n_bytes // bits
            sram = Sram(depth=depth, n_lanes=chunks, lane_bits=bits)
            m.submodules[f"{kind}_{part}"] = sram
            mask = Signal(chunks, name=f"{kind}_{part}_mask", reset_less=True)
            data = Signal(8 * n_bytes, name=f"{kind}_{part}_data", reset_less=True)
            with m.If(wanted):
                m.d.sync += [
                    mask.eq(Cat(bus.chunk == first + index for index in range(chunks))),
                    data.eq(bus.data[:bits].replicate(chunks)),
                ]
            m.d.comb += [
                sram.w_en.eq(writes),
                sram.w_addr.eq(address),
                sram.w_mask.eq(mask),
                sram.w_data.eq(data),
                sram.r_en.eq(getattr(self.command, kind)),
                sram.r_addr.eq(self.command.address),
            ]
            words.append(sram.r_data)
            first += chunks
        return Cat(*words)

    def _inputs(self, m: Module) -> tuple[Any, Any]:
        """Make the x buffer; return a word of W codes and its exponents."""
        sizes, command, x = self.sizes, self.command, self.x
        blocks = max(sizes.word_blocks, sizes.n_groups)
        m.submodules.x_buffer = bank = BlockBank(depth=1 << len(x.addr), n_blocks=blocks, n_banks=1)
        parts = log2(blocks // sizes.word_blocks)
        x_address = wire(m, command.x_address | self._first_word(), "x_address")
        m.d.comb += [
            bank.w_en[0].eq(x.en),
            bank.w_addr[0].eq(x.addr),
            bank.w_mask[0].eq(x.mask),
            bank.w_codes[0].eq(x.codes),
            bank.w_shifts[0].eq(x.shifts),
            bank.r_en.eq(command.a),
            bank.r_addr.eq(x_address >> parts),
        ]
        if parts == 0:
            return bank.codes, bank.shifts
        part = Signal(parts, name="x_part", reset_less=True)
        with m.If(command.a):
            m.d.sync += part.eq(x_address)
        return (
            bank.codes.word_select(part, CODES_BITS * sizes.word_blocks),
            bank.shifts.word_select(part, SHIFT_BITS * sizes.word_blocks),
        )

    def _first_word(self) -> Any:
        """Say which of the tiles that share a row of A this one is: they take words in turn."""
        levels = log2(self.sizes.n_tiles)
        number: Any = Const(0, 1)
        for parts_log2 in range(1, levels + 1):
            is_this = self.parameters.parts_log2 == parts_log2
            number = Mux(is_this, self._tile >> (levels - parts_log2), number)
        return number

    def _projections(self, m: Module) -> dict[str, Any]:
        """Find the projections of a row of A, and where in a word of B they change."""
        sizes, command, parameters = self.sizes, self.command, self.parameters
        # of tiles that share rows of A each has but one
        position = self._tile & (Const(sizes.n_tiles - 1, 8) >> parameters.parts_log2)
        index = ((command.row[:10] << log2(sizes.n_tiles)) + position)[:10]
        rows_log2 = (log2(sizes.word_elems) - parameters.slot_log2)[:3]
        first = wire(m, (command.row + (self._tile << rows_log2))[:20], "first_row")
        values: dict[str, Any] = {"row": first}
        for number in (1, 2):
            start = getattr(parameters, f"first{number}")
            values[f"is_after{number}"] = index >= getattr(parameters, f"offset{number}")
            ahead = wire(m, (start - first)[:21], f"ahead{number}")
            near = Mux(ahead[7:20].any(), 127, ahead[:7])
            values[f"change{number}"] = Mux(ahead[20], 0, near)[:7]
        return values

    def _owner(self, m: Module, name: str, row: Any, stage: dict[str, Any]) -> tuple[Any, Any]:
        """Say whether a row of a word of B is after the first, and after the second projection."""
        return (
            wire(m, row >= stage["change1"], f"{name}_after1"),
            wire(m, row >= stage["change2"], f"{name}_after2"),
        )

    def _products(
        self,
        m: Module,
        valid: Any,
        stage: dict[str, Any],
        words: dict[str, Any],
        x_codes: Any,
        z_codes: Any,
    ) -> list[Any]:
        sizes = self.sizes
        products = []
        for element in range(sizes.word_elems):
            part = slice(8 * element, 8 * element + 8)
            row = (Const(element, 7) >> self.parameters.slot_log2)[:7]
            owner = self._owner(m, f"element{element}", row, stage)
            z = _choose(owner, [z_codes[p][part] for p in range(N_PROJECTIONS)])
            weight = Mux(stage["is_b"], words["b"][part], words["a"][part]).as_signed()
            code = Mux(stage["is_b"], z, x_codes[part]).as_signed()
            product = Signal(signed(16), name=f"lora_product{element}", reset_less=True)
            with m.If(valid):
                m.d.sync += product.eq(weight * code)
            products.append(product)
        return products

    def _sums(
        self,
        m: Module,
        valid: list[Any],
        stages: list[dict[str, Any]],
        words: dict[str, Any],
        x_shifts: Any,
        products: list[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Add up products within blocks; find how far each sum is shifted."""
        sizes, parameters = self.sizes, self.parameters
        stage = stages[2]
        levels: list[list[Any]] = [products]
        while len(levels) <= log2(MX_BLOCK):
            last = levels[-1]
            pairs = zip(last[::2], last[1::2], strict=True)
            name = f"level{len(levels)}_"
            levels.append([wire(m, a + b, f"{name}{i}") for i, (a, b) in enumerate(pairs)])
        least = log2(-(-sizes.word_elems // sizes.n_lanes))
        sums, amounts = [], []
        for unit in range(self._units):
            total = levels[-1][unit] if unit < sizes.word_blocks else Const(0, signed(_SUM_BITS))
            for level in range(least, log2(MX_BLOCK)):
                if unit < len(levels[level]):
                    is_level = stage["is_b"] & (parameters.slot_log2 == level)
                    total = Mux(is_level, levels[level][unit], total)
            result = Signal(signed(_SUM_BITS), name=f"sum{unit}", reset_less=True)
            amount = Signal(signed(_AMOUNT_BITS), name=f"amount{unit}", reset_less=True)
            at = 8 * sizes.word_elems + 8 * unit
            exponent = Signal(signed(8), name=f"exponent{unit}", reset_less=True)
            other = Signal(SHIFT_BITS, name=f"other{unit}", reset_less=True)
            grid = Signal(signed(9), name=f"grid{unit}", reset_less=True)
            a_grid, x_shift, a_exponent = (Const(0, 1) for _ in range(3))
            if unit < sizes.word_blocks:
                a_grid = self._of_a(stages[1], "grid_a")
                x_shift = x_shifts[SHIFT_BITS * unit : SHIFT_BITS * (unit + 1)]
                a_exponent = words["a"][at : at + 8]
            row, block = self._place(m, unit)
            owner = self._owner(m, f"unit{unit}", row, stages[1])
            b_grids = [getattr(parameters, f"grid_b{p}") for p in range(N_PROJECTIONS)]
            with m.If(valid[1]):
                m.d.sync += [
                    exponent.eq(Mux(stages[1]["is_b"], words["b"][at : at + 8], a_exponent)),
                    other.eq(
                        Mux(
                            stages[1]["is_b"],
                            _choose(owner, self._z_shifts(block)),
                            x_shift,
                        )
                    ),
                    grid.eq(Mux(stages[1]["is_b"], _choose(owner, b_grids), a_grid)),
                ]
            with m.If(valid[2]):
                m.d.sync += [result.eq(total), amount.eq(grid - exponent - other)]
            sums.append(result)
            amounts.append(amount)
        return sums, amounts

    def _of_a(self, stage: dict[str, Any], name: str) -> Any:
        values = [getattr(self.parameters, f"{name}{p}") for p in range(N_PROJECTIONS)]
        return _choose((stage["is_after1"], stage["is_after2"]), values)

    def _place(self, m: Module, unit: int) -> tuple[Any, Any]:
        """Row of the word and block of the row that a unit works on for B."""
        row: Any = Const(unit, 7)
        block: Any = Const(0, 2)
        for level in range(log2(MX_BLOCK) + 1, log2(self.lora.max_rank) + 1):
            apart = level - log2(MX_BLOCK)
            is_level = self.parameters.slot_log2 == level
            row = Mux(is_level, unit >> apart, row)
            block = Mux(is_level, unit & ((1 << apart) - 1), block)
        return wire(m, row, f"unit{unit}_row"), wire(m, block, f"unit{unit}_block")

    def _z_shifts(self, block: Any) -> list[Any]:
        choices = []
        for p in range(N_PROJECTIONS):
            value = self.parameters.z_shift[p][0]
            for index in range(1, self.lora.rank_blocks):
                value = Mux(block == index, self.parameters.z_shift[p][index], value)
            choices.append(value)
        return choices

    def _rows(
        self, m: Module, valid: list[Any], stages: list[dict[str, Any]], terms: list[Any]
    ) -> list[Any]:
        """Add up the blocks of each row, and shift the row to its frac."""
        sizes, parameters = self.sizes, self.parameters
        stage = stages[4]
        blocks = terms[: sizes.word_blocks]
        shifted = []
        for unit in range(self._units):
            total = terms[unit]
            for level in range(log2(MX_BLOCK) + 1, log2(self.lora.max_rank) + 1):
                apart = 1 << level - log2(MX_BLOCK)
                if (unit + 1) * apart <= len(blocks):
                    joined = add_tree(blocks[unit * apart : (unit + 1) * apart])[:64].as_signed()
                    total = Mux(parameters.slot_log2 == level, joined, total)
            row = Signal(signed(64), name=f"row{unit}", reset_less=True)
            if unit == 0:
                so_far = Mux(stage["first"], 0, row)
                of_a = add_tree([so_far, *blocks])[:64].as_signed()
                total = Mux(stage["is_b"], total, of_a)
                m.d.comb += self.row.eq(row)
            out_b = [getattr(parameters, f"out_b{p}") for p in range(N_PROJECTIONS)]
            # rows of several blocks are the first units' alone
            owner = self._owner(m, f"out{unit}", Const(unit, 7), stages[5])
            amount = _choose(owner, out_b)
            result = Signal(signed(64), name=f"shifted{unit}", reset_less=True)
            with m.If(valid[4]):
                m.d.sync += row.eq(total)
            with m.If(valid[5]):
                m.d.sync += result.eq(shift_to_saturate(m, f"row{unit}", row, amount))
            shifted.append(result)
        return shifted

    def _results(self, m: Module, valid: Any, stage: dict[str, Any], shifted: list[Any]) -> None:
        """Saturate, and put rows of B into their lanes of the beat."""
        sizes, parameters = self.sizes, self.parameters
        lanes_log2 = log2(sizes.n_lanes)
        rows_log2 = Signal(3)
        m.d.comb += rows_log2.eq(log2(sizes.word_elems) - parameters.slot_log2)
        pairs = [saturate32(value) for value in shifted]
        results = [wire(m, v[:32], f"result{unit}") for unit, (v, _) in enumerate(pairs)]
        is_here = wire(m, stage["row"] >> lanes_log2 == stage["beat"], "is_here")
        place = wire(m, (stage["row"][:lanes_log2] >> rows_log2)[:lanes_log2], "place")
        lanes = []
        for lane in range(sizes.n_lanes):
            value = results[0]
            for level in range(1, log2(self._units) + 1):
                source = lane & ((1 << level) - 1)
                value = Mux(rows_log2 == level, results[source], value)
            is_mine = is_here & ((Const(lane, lanes_log2) >> rows_log2)[:lanes_log2] == place)
            lanes.append(Mux(is_mine, value, 0))
        counted = Signal(range(self._units + 1))
        with m.If(valid):
            m.d.sync += held(m, self.rows).eq(Cat(*lanes))
            n_rows = Const(1, 7) << rows_log2
            clips = Cat(
                clip & stage["is_b"] & is_here & (unit < n_rows)
                for unit, (_, clip) in enumerate(pairs)
            )
            m.d.sync += counted.eq(popcount(clips))
        (seen,) = valid_chain(m, valid, 1, "lora_count")[1:]
        with m.If(seen):
            m.d.sync += self.saturations.eq(self.saturations + counted)


def _choose(owner: tuple[Any, Any], options: list[Any]) -> Any:
    """Choose by projection."""
    return Mux(owner[1], options[2], Mux(owner[0], options[1], options[0]))
