from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest

from romsim_compiler.tables import LOG2_E, PI, TABLES, round_decimal, tables

FLOATS = {
    "SIN": [2**20 * math.sin(math.pi / 2 * i / 256) for i in range(257)],
    "EXP": [2**20 * 2 ** (-i / 256) for i in range(257)],
    "SIG": [2**20 / (1 + math.exp(-i / 64)) for i in range(1025)],
    "RSQ": [2**15 / math.sqrt((i + 0.5) / 128) for i in range(32, 128)],
    "RCP": [2**15 / ((128 + i + 0.5) / 256) for i in range(128)],
}


@pytest.mark.parametrize("name", list(FLOATS))
def test_entries_are_the_nearest_integers(name: str) -> None:
    """Float64 is wrong by less than 1e-8 here, and no entry lies so near a tie."""
    entries, values = tables()[name], FLOATS[name]
    assert len(entries) == len(values)
    for entry, value in zip(entries.tolist(), values, strict=True):
        assert abs(value - entry) < 0.5 - 1e-8


def test_corner_entries() -> None:
    table = tables()
    assert (table["SIN"][0], table["SIN"][256]) == (0, 2**20)
    assert table["SIN"][128] == round(2**20 / math.sqrt(2))
    assert (table["EXP"][0], table["EXP"][128], table["EXP"][256]) == (2**20, 741455, 2**19)
    assert (table["SIG"][0], table["SIG"][1024]) == (2**19, 2**20)
    assert (table["RCP"][0], table["RCP"][127]) == (65281, 32832)
    assert (table["RSQ"][0], table["RSQ"][95]) == (65030, 32832)


def test_tables_are_made_once_and_cannot_be_changed() -> None:
    assert tables() is TABLES()
    for table in tables().values():
        assert table.dtype == np.int64
        assert not table.flags.writeable


def test_constants_are_right_to_their_last_digit() -> None:
    with localcontext() as context:
        context.prec = 90

        def arctangent(inverse: int) -> Decimal:
            power, total, n = Decimal(1) / inverse, Decimal(0), 1
            while abs(power) > Decimal("1e-95"):
                total += power / n
                power, n = -power / inverse**2, n + 2
            return total

        machin = 16 * arctangent(5) - 4 * arctangent(239)
        assert abs(machin - PI) < Decimal("1e-80")
        assert abs(1 / Decimal(2).ln() - LOG2_E) < Decimal("1e-79")


def test_ties_round_to_even() -> None:
    assert [round_decimal(Decimal(x)) for x in ("0.5", "1.5", "-0.5", "2.51")] == [0, 2, 0, 3]
