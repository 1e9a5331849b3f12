"""A bank as a Verilog ``case`` statement, taken apart by yosys: the plain style of logic ROM.

Run as a program, ``case_rom.py in.v out.blif``, by :mod:`romsim_rtl.logic_rom`: yosys numbers
things by counters that live as long as its process.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["case_verilog", "lower_case"]

_PASSES = (
    "proc -norom",  # or the case becomes a memory, which maps to flip-flops
    "opt_expr",
    "opt_clean",
    "techmap",
    "opt_clean",
)


def case_verilog(bits: NDArray[np.uint8]) -> str:
    """Return a module ``rom`` with a case of all words.

    Parameters
    ----------
    bits
        uint8 [rows, width] of 0 and 1, bit 0 of each word first.
    """
    rows, width = bits.shape
    n_address_bits = max(1, (rows - 1).bit_length())
    lines = [
        f"module rom(input [{n_address_bits - 1}:0] a, output reg [{width - 1}:0] d);",
        "  always @* case (a)",
    ]
    digits = np.where(bits[:, ::-1], "1", "0")
    for address in np.flatnonzero(bits.any(axis=1)):
        word = "".join(digits[address])
        lines.append(f"    {n_address_bits}'d{address}: d = {width}'b{word};")
    lines += [f"    default: d = {width}'b0;", "  endcase", "endmodule", ""]
    return "\n".join(lines)


def lower_case(source: str, result: str) -> None:
    """Read Verilog, write BLIF of gates.

    Parameters
    ----------
    source, result
        Paths of files.
    """
    import pyosys.libyosys as ys  # a native library of 100 MB that only synthesis needs

    design: Any = ys.Design()
    for command in (f"read_verilog {source}", *_PASSES, f"write_blif {result}"):
        ys.Pass.call(design, f"tee -q -o /dev/null {command}")


if __name__ == "__main__":
    lower_case(*sys.argv[1:])
