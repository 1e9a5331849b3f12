# amaranth: UnusedElaboratable=no
"""Emission: the same function as Amaranth's simulator, clean, and the same bytes every time."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_rtl import yosys_lowering
from romsim_rtl.gated_verilog import write_verilog
from romsim_rtl.primitives import round_shift, round_shift_by, saturate32, wire
from romsim_rtl.toolchain import ToolError, lint
from tests.rtl.poke import Simulation
from tests.rtl.stepped import simulate


class Mixed(wiring.Component):
    """Signed and unsigned operands of all widths, stages with and without enable and reset."""

    def __init__(self) -> None:
        super().__init__(
            {
                "en": In(1),
                "a": In(signed(20)),
                "b": In(11),
                "by": In(4),
                "y": Out(signed(32)),
                "z": Out(9),
                "n": Out(4),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        then = Signal()
        m.d.sync += then.eq(self.en)
        product = Signal(signed(40), reset_less=True)
        shifted = Signal(signed(40), reset_less=True)
        with m.If(self.en):
            m.d.sync += [product.eq(self.a * self.b), shifted.eq(self.a << self.by)]
        total = wire(m, product - shifted + self.b, "total")
        value, clipped = saturate32(wire(m, (total << 5) + round_shift(product, 3), "wide"))
        with m.If(then):
            m.d.sync += [self.y.eq(value), self.z.eq(round_shift_by(shifted, self.by)[:9])]
            with m.If(clipped | (self.a > self.b) | (self.b == 77)):
                m.d.sync += self.n.eq(self.n + 1)
        return m


class Loop(wiring.Component):
    """Logic that depends on itself."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "y": Out(4)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        mixed = wire(m, self.y ^ self.a, "mixed")
        m.d.comb += self.y.eq(mixed + 1)
        return m


def stimuli() -> list[tuple[int, int, int, int]]:
    rnd = random.Random(8)
    return [
        (
            rnd.random() < 0.8,
            rnd.choice([-(1 << 19), (1 << 19) - 1, rnd.randrange(-(1 << 19), 1 << 19)]),
            rnd.choice([0, 77, 2047, rnd.randrange(2048)]),
            rnd.randrange(16),
        )
        for _ in range(150)
    ]


def simulated() -> list[int]:
    mixed = Mixed()
    seen: list[int] = []

    async def bench(context: Any) -> None:
        for en, a, b, by in stimuli():
            for port, value in ((mixed.en, en), (mixed.a, a), (mixed.b, b), (mixed.by, by)):
                context.set(port, int(value))
            await context.tick()
            seen.extend(
                [context.get(mixed.y) & 0xFFFFFFFF, context.get(mixed.z), context.get(mixed.n)]
            )

    simulate(mixed, bench)
    return seen


@pytest.mark.verilator
def test_verilog_does_what_amaranths_simulator_does(tmp_path: Path) -> None:
    simulation = Simulation(Mixed(), "mixed", tmp_path, reset=0)
    script = simulation.script()
    for en, a, b, by in stimuli():
        script.set("en", int(en))
        script.set("a", a)
        script.set("b", b)
        script.set("by", by)
        script.tick()
        for name in ("y", "z", "n"):
            script.get(name)
    assert simulation.run(script) == simulated()


@pytest.mark.verilator
def test_verilog_is_clean_without_a_waiver(tmp_path: Path) -> None:
    path = tmp_path / "mixed.v"
    path.write_text(write_verilog(Mixed(), "mixed"))
    report = lint([path], "mixed")
    assert report.messages == ()
    assert report.n_waivers == 0


def test_the_same_component_gives_the_same_bytes() -> None:
    first = write_verilog(Mixed(), "mixed")
    write_verilog(Mixed(), "another")
    assert write_verilog(Mixed(), "mixed") == first


def test_a_failing_yosys_is_an_error_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yosys_lowering, "__file__", "/nowhere.py")
    message = (
        r"^Verilog of 'mixed' must come out of yosys, not exit status 2: "
        r"\".*can't open file '/nowhere.py': \[Errno 2\] No such file or directory\"$"
    )
    with pytest.raises(ToolError, match=message):
        write_verilog(Mixed(), "mixed")


def test_logic_that_depends_on_itself_is_refused() -> None:
    message = (
        r"^Verilog of 'looped' must come out of yosys, not exit status 1: 'ValueError: "
        r"combinational logic must not depend on itself, but yosys Warning: found logic loop in "
        r"module looped: .*'$"
    )
    with pytest.raises(ToolError, match=message):
        write_verilog(Loop(), "looped")


def test_arithmetic_of_a_stage_stands_in_its_block() -> None:
    text = write_verilog(Mixed(), "mixed")
    before, _, blocks = text.partition("begin : gated$")
    assert "*" not in before.partition("module mixed")[2]
    assert "*" in blocks
