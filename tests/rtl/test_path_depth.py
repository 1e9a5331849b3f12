from __future__ import annotations

import pytest

from romsim_compiler.technology_file import load_technology
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_netlist import Gate, LogicNetlist
from romsim_rtl.path_depth import path_depth_fo4

LIBRARY = CellLibrary.of(load_technology("asap7"))


def depth(gates: list[Gate], outputs: list[str], n_address_bits: int = 4) -> float:
    return path_depth_fo4(LogicNetlist(n_address_bits, tuple(gates), tuple(outputs)), LIBRARY)


def inverters(n: int) -> list[Gate]:
    return [Gate("INVx1", ("x",), f"y{i}") for i in range(n)]


def test_an_inverter_of_four_is_one_fo4() -> None:
    gates = [Gate("INVx1", ("a0",), "x"), *inverters(4)]
    # four inverters hang on x; each of them drives one data bit: (1 + 1) / 5
    assert depth(gates, [f"y{i}" for i in range(4)]) == pytest.approx(1 + 0.4)


def test_large_loads_are_buffered_by_a_factor_of_four_each_fo4() -> None:
    gates = [Gate("INVx1", ("a0",), "x"), *inverters(64)]
    assert depth(gates, [f"y{i}" for i in range(64)]) == pytest.approx(1 + 2 + 0.4)


@pytest.mark.parametrize(
    ("cell", "n_inputs", "fo4"),
    [
        ("NAND2xp33", 2, (1 + 2) / 5),
        ("NAND4xp25", 4, (1 + 4) / 5),
        ("OR2x2", 2, (1 + 2) / 5 + 2 / 5),  # a NOR, its inverter of parasitic delay 1
        ("AOI22xp33", 4, (1 + 4) / 5),
        ("XOR2xp5", 2, (1 + 4) / 5),
    ],
)
def test_single_gates(cell: str, n_inputs: int, fo4: float) -> None:
    gate = Gate(cell, tuple(f"a{i}" for i in range(n_inputs)), "y")
    assert depth([gate], ["y"]) == pytest.approx(fo4)


def test_pins_load_by_their_effort() -> None:
    # a NOR2's pin loads 5 / 3, a NAND2's 4 / 3
    nor = [Gate("INVx1", ("a0",), "x"), Gate("NOR2xp33", ("x", "a1"), "y")]
    nand = [Gate("INVx1", ("a0",), "x"), Gate("NAND2xp33", ("x", "a1"), "y")]
    assert depth(nor, ["y"]) - depth(nand, ["y"]) == pytest.approx((5 / 3 - 4 / 3) / 5)


def test_no_gate_no_delay() -> None:
    assert depth([], ["a0", "ZERO"]) == 0
