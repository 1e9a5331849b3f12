# amaranth: UnusedElaboratable=no
"""A module of many lanes from those of two and four, against the whole one synthesised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from romsim_compiler.technology_file import load_technology
from romsim_rtl import synthesis_cache
from romsim_rtl.memory import Sram, replicate
from romsim_rtl.primitives import add_tree
from romsim_rtl.synthesis import rtlil_modules
from romsim_rtl.synthesis_cache import synthesise_modules
from romsim_rtl.synthesis_lanes import widen

ASAP7 = load_technology("asap7")


class Lanes(wiring.Component):
    """Products of lanes, kept in an SRAM as well, their sum, and whether any lane is odd."""

    def __init__(self, n_lanes: int) -> None:
        self.n_lanes = n_lanes
        words = In(5).array(n_lanes)
        super().__init__(
            {"x": words, "y": words, "en": In(1), "total": Out(14), "is_odd": Out(1)}
            | {"product": Out(10).array(n_lanes)}
        )

    def with_lanes(self, n_lanes: int) -> Lanes:
        return Lanes(n_lanes)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = memory = Sram(depth=8, n_lanes=self.n_lanes, lane_bits=5)
        m.d.comb += [
            memory.w_en.eq(self.en),
            memory.w_mask.eq(-1),
            memory.w_data.eq(Cat(*self.x)),
            memory.r_en.eq(1),
        ]
        products = [Signal(10, name=f"product{i}") for i in range(self.n_lanes)]
        with m.If(self.en):
            for lane, product in enumerate(products):
                word = memory.r_data.word_select(lane, 5)
                m.d.sync += product.eq(word * self.y[lane])
        m.d.sync += self.total.eq(add_tree(list(products)))
        m.d.comb += [self.product[lane].eq(product) for lane, product in enumerate(products)]
        m.d.comb += self.is_odd.eq(Cat(self.x[lane][0] for lane in range(self.n_lanes)).any())
        return m


class Around(wiring.Component):
    """Lanes as a module of their own, read by a register."""

    def __init__(self, n_lanes: int) -> None:
        self.n_lanes = n_lanes
        super().__init__({"a": In(5), "odd": Out(1), "last": Out(10)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        (lanes,) = replicate(m, platform, "lanes", "lanes", lambda: Lanes(self.n_lanes), 1)
        for lane in range(self.n_lanes):
            m.d.comb += [lanes.x[lane].eq(self.a), lanes.y[lane].eq(~self.a)]
        m.d.sync += [self.odd.eq(lanes.is_odd), self.last.eq(lanes.product[self.n_lanes - 1])]
        m.d.comb += lanes.en.eq(1)
        return m


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "rtl"))
    return tmp_path


def test_lanes_that_are_not_mapped_are_as_if_they_were() -> None:
    (module,) = rtlil_modules("lanes", Lanes(16))
    assert [few.name for few in module.fewer] == ["lanes_2", "lanes_4"]
    assert module.lanes == (2, 4, 16)
    found = synthesise_modules([module], ASAP7)
    assert list(found) == ["lanes"]
    wide = found["lanes"]
    whole = replace(module, text=whole_text(16), fewer=(), lanes=(), ports=())
    exact = synthesise_modules([whole], ASAP7)["lanes"]
    assert wide.area_um2(ASAP7.cell_um2) == pytest.approx(exact.area_um2(ASAP7.cell_um2), rel=0.02)
    # the sum of two lanes has 11 bits, of four 12: it is taken to have 18 for 16, but has 14
    assert wide.n_flops == exact.n_flops + 4 == 160 + 18
    assert wide.memories == exact.memories
    # each doubling deepens the sum's and the OR's trees
    for mine, theirs in ((wide.delays, exact.delays), (wide.gates, exact.gates)):
        assert set(mine.arcs) == set(theirs.arcs)
        assert set(mine.inputs) == set(theirs.inputs)
        assert mine.inner == pytest.approx(theirs.inner, rel=0.15)
        assert mine.arcs["x__15", "is_odd"] == pytest.approx(theirs.arcs["x__0", "is_odd"], abs=2)
    assert wide.delays.loads["en"] == pytest.approx(exact.delays.loads["en"], rel=0.1)
    assert wide.delays.loads["x__9"] == pytest.approx(exact.delays.loads["x__9"], rel=0.1)


def whole_text(n_lanes: int) -> str:
    class Whole(Lanes):
        with_lanes = property()  # as if there were none

    (module,) = rtlil_modules("lanes", Whole(n_lanes))
    assert not module.fewer
    return module.text


def test_what_holds_such_a_module_is_timed_through_its_ports() -> None:
    modules = rtlil_modules("around", Around(16))
    assert [m.name for m in modules] == ["lanes", "around"]
    found = synthesise_modules(modules, ASAP7)
    assert found["around"].children == {"lanes": 1}
    inside = found["lanes"].delays
    assert found["around"].delays.inputs["a"] > inside.arcs["x__15", "is_odd"]
    leaves = inside.outputs["product__15"][0]
    assert leaves < found["around"].delays.inner[0] < leaves + 2  # an inverter, a flip-flop's pin
    # both smaller modules are kept, and nothing of the large one
    kept = list(synthesis_cache.synthesis_folder().iterdir())
    assert len(kept) == 3
    assert synthesise_modules(modules, ASAP7) == found


def test_rare_cells_never_become_fewer_than_none() -> None:
    (module,) = rtlil_modules("lanes", Lanes(64))
    few, more = (synthesise_modules([one], ASAP7)[one.name] for one in module.fewer)
    odd = replace(few, cells={**few.cells, "XNOR2xp5": 9 + more.cells.get("XNOR2xp5", 0)})
    wide = widen("lanes", odd, more, (2, 4, 64), module.ports)
    assert "XNOR2xp5" not in wide.cells
    assert wide.name == "lanes"
