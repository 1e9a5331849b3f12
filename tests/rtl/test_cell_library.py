from __future__ import annotations

import itertools

import numpy as np
import pytest

from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_rtl.cell_library import CellLibrary, parse_function

AREA = {"INV": 1.0, "BUF": 2.0, "NAND2": 1.5, "FA": 9.0}
FUNCTION = {"INV": "!A", "BUF": "A", "NAND2": "!(A & B)"}


@pytest.mark.parametrize(
    ("function", "python"),
    [
        ("A & B | C", "(a and b) or c"),
        ("A | B & C", "a or (b and c)"),
        ("A ^ B & C", "a != (b and c)"),
        ("A ^ B | C", "(a != b) or c"),
        ("!A & B | C", "((not a) and b) or c"),
        ("!((A | B) & !C)", "not ((a or b) and not c)"),
    ],
)
def test_functions_bind_as_in_liberty(function: str, python: str) -> None:
    library = CellLibrary("t", AREA | {"X": 1.0}, FUNCTION | {"X": function})
    cell = library.cells["X"]
    for a, b, c in itertools.product((False, True), repeat=3):
        values = [np.array([-int(v) & (2**64 - 1)], dtype=np.uint64) for v in (a, b, c)]
        wanted = eval(python, {"a": a, "b": b, "c": c})
        assert bool(cell.evaluate(values)[0] & np.uint64(1)) == wanted
        assert cell.truth >> (a + 2 * b + 4 * c) & 1 == wanted


def test_verilog_and_genlib_of_a_cell() -> None:
    library = CellLibrary("t", AREA | {"X": 1.25}, FUNCTION | {"X": "!(A ^ B)"})
    cell = library.cells["X"]
    assert cell.verilog(["n1", "a[2]"]) == "~((n1 ^ a[2]))"
    assert cell.genlib() == (
        "GATE X 1.25000 Y=!((((A)*!(B))+(!(A)*(B)))); PIN * UNKNOWN 1 999 1 0 1 0"
    )


def test_smallest_cell_of_a_function() -> None:
    library = CellLibrary.of(load_technology("asap7"))
    xor = library.smallest(2, 0b0110)
    assert xor is not None
    assert (xor.name, xor.area_um2) == ("XOR2xp5", 0.13122)
    assert library.smallest(2, 0b0100) is None


@pytest.mark.parametrize(
    ("area", "function", "message"),
    [
        (
            AREA,
            {"BUF": "A", "NAND2": "!(A & B)"},
            "Cell table 't' must have an inverter for synthesis, but none of its 2 cells with a "
            "function is one; add it with its area",
        ),
        (
            AREA,
            {"INV": "!A", "NAND2": "!(A & B)"},
            "Cell table 't' must have a buffer for synthesis, but none of its 2 cells with a "
            "function is one; add it with its area",
        ),
        (
            AREA,
            FUNCTION | {"OR2": "A | B"},
            "Cell 'OR2' of the cell table 't' must have an area, not a function alone; add its um2",
        ),
        (
            AREA,
            FUNCTION | {"FA": "A & B & C & D & E & F & G"},
            "Cell 'FA' of the cell table 't' must have at most 6 inputs, not 7; remove its "
            "function",
        ),
    ],
)
def test_refused_tables(area: dict[str, float], function: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        CellLibrary("t", area, function)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["", "A &", "(A", "A B", "A + B", "& A", "A)", "1 & A"])
def test_refused_functions(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_function(text, "X")
    assert str(caught.value) == (
        "Function of cell 'X' must be an expression of names, '!', '&', '^', '|' and "
        f"parentheses, not {text!r}; correct the cell table"
    )
