# amaranth: UnusedElaboratable=no
from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError
from romsim_rtl.gated_verilog import write_verilog
from romsim_rtl.memory import Rom, Sram, VerilogPlatform, address_bits, replicate
from tests.rtl.poke import Simulation
from tests.rtl.stepped import simulate


def accesses(n: int) -> list[tuple[int, int, int, int, int, int]]:
    """(w_en, w_addr, w_mask, w_data, r_en, r_addr) of each cycle, with many collisions."""
    rnd = random.Random(6)
    return [
        (
            rnd.random() < 0.7,
            rnd.randrange(3),
            rnd.choice([15, rnd.randrange(16)]),
            rnd.getrandbits(32),
            rnd.random() < 0.7,
            rnd.randrange(3),
        )
        for _ in range(n)
    ]


def wanted(cycles: list[tuple[int, int, int, int, int, int]]) -> list[int]:
    """What stands at the output after each cycle."""
    words, output, seen = [0, 0, 0], 0, []
    for w_en, w_addr, w_mask, w_data, r_en, r_addr in cycles:
        if r_en:
            output = words[r_addr]
        if w_en:
            keep = sum(0xFF << 8 * k for k in range(4) if not w_mask >> k & 1)
            words[w_addr] = words[w_addr] & keep | w_data & ~keep
        seen.append(output)
    return seen


PORTS = ("w_en", "w_addr", "w_mask", "w_data", "r_en", "r_addr")


def test_sram_masks_lanes_and_reads_the_old_word_on_a_collision() -> None:
    sram = Sram(depth=3, n_lanes=4, lane_bits=8)
    cycles = accesses(200)

    async def bench(context: Any) -> None:
        for values, output in zip(cycles, wanted(cycles), strict=True):
            for name, value in zip(PORTS, values, strict=True):
                context.set(getattr(sram, name), int(value))
            await context.tick()
            assert context.get(sram.r_data) == output

    simulate(sram, bench)


@pytest.mark.verilator
def test_sram_macro_does_what_amaranths_memory_does(tmp_path: Path) -> None:
    simulation = Simulation(Sram(depth=3, n_lanes=4, lane_bits=8), "sram", tmp_path, reset=0)
    script = simulation.script()
    cycles = accesses(200)
    for values in cycles:
        for name, value in zip(PORTS, values, strict=True):
            script.set(name, int(value))
        script.tick()
        script.get("r_data")
    assert simulation.run(script) == wanted(cycles)


def test_rom_gives_its_words_in_simulation_and_names_its_file_in_verilog() -> None:
    rom = Rom(depth=4, width=12, file="gains.hex", init=[5, 6, 7, 4095])

    async def bench(context: Any) -> None:
        context.set(rom.r_en, 1)
        for address, word in enumerate(rom.init):
            context.set(rom.r_addr, address)
            await context.tick()
            assert context.get(rom.r_data) == word
        context.set(rom.r_en, 0)
        context.set(rom.r_addr, 0)
        await context.tick()
        assert context.get(rom.r_data) == 4095

    simulate(rom, bench)
    text = write_verilog(
        Rom(depth=4, width=12, file="gains.hex", init=[5, 6, 7, 4095]), "rom", VerilogPlatform()
    )
    assert '.FILE("gains.hex")' in text
    assert "romsim_rom" in text
    assert "4095" not in text


class Doubler(wiring.Component):
    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": Out(5)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.d.sync += self.b.eq(self.a << 1)
        return m


class Pair(wiring.Component):
    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": Out(5).array(2)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        for index, one in enumerate(replicate(m, platform, "part", "doubler", Doubler, 2)):
            m.d.comb += [one.a.eq(self.a + index), self.b[index].eq(one.b)]
        return m


def test_copies_are_components_in_simulation() -> None:
    pair = Pair()

    async def bench(context: Any) -> None:
        context.set(pair.a, 3)
        await context.tick()
        assert (context.get(pair.b[0]), context.get(pair.b[1])) == (6, 8)

    simulate(pair, bench)


def test_copies_are_one_module_by_name_in_verilog() -> None:
    platform = VerilogPlatform()
    text = write_verilog(Pair(), "pair", platform)
    assert text.count("\n  doubler ") == 2
    assert text.count("\nmodule ") == 1
    assert list(platform.shared) == ["doubler"]
    assert "\nmodule doubler(" in write_verilog(platform.shared["doubler"], "doubler", platform)


def test_addresses_have_at_least_one_bit() -> None:
    assert [address_bits(depth) for depth in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"depth": 0, "n_lanes": 1, "lane_bits": 8},
            "SRAM depth must be a positive integer, not 0",
        ),
        (
            {"depth": 1, "n_lanes": -1, "lane_bits": 8},
            "SRAM n_lanes must be a positive integer, not -1",
        ),
        (
            {"depth": 1, "n_lanes": 1, "lane_bits": "8"},
            "SRAM lane_bits must be a positive integer, not '8'",
        ),
    ],
)
def test_sram_refuses_impossible_sizes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=rf"^{message}$"):
        Sram(**arguments)


@pytest.mark.parametrize(("depth", "width", "name"), [(0, 8, "depth"), (4, 0, "width")])
def test_rom_refuses_impossible_sizes(depth: int, width: int, name: str) -> None:
    with pytest.raises(SpecError, match=rf"^ROM {name} must be a positive integer, not 0$"):
        Rom(depth=depth, width=width, file="x.hex")
