"""Yosys passes over one design: enables inferred, widths explicit, plain Verilog written.

Run as a program, ``yosys_lowering.py in.il out.v …``, by :mod:`romsim_rtl.gated_verilog`: yosys
orders things by counters that live as long as its process, so that only a fresh one gives the same
bytes for the same design. Loading its library takes as long as lowering a small module: it is
loaded once, and each design is lowered in a fork.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["lower", "lower_each"]

_PASSES = (
    "proc -noopt",
    "flatten",
    "opt_expr",
    "opt_merge",
    "wreduce",
    "opt_clean",
    # a lane's mask is no reset: a stage that had one of its own would not share an enable
    "opt_dff -simple-dffe -nosdff",
    "opt_merge",
    "opt_clean",
    "splitnets -driver",  # or parts of one wire that depend on each other look like a loop
    "opt_clean",
)
_ARITHMETIC = ("$add", "$sub", "$mul", "$and", "$or", "$xor")
_COMPARISONS = ("$eq", "$ne", "$lt", "$le", "$gt", "$ge")
_RIGHT_SHIFTS = ("$shr", "$sshr")
_UNARY = ("$shl", "$sshl", "$not", "$neg", *_RIGHT_SHIFTS)


def lower(source: str, result: str) -> None:
    """Read RTLIL, write Verilog.

    Parameters
    ----------
    source, result
        Paths of files.

    Raises
    ------
    ValueError
        If combinational logic depends on itself.
    """
    import pyosys.libyosys as ys  # a native library of 100 MB that only emission needs

    design = ys.Design()

    def run(command: str) -> None:
        ys.Pass.call(design, f"tee -q -o /dev/null {command}")

    run(f"read_rtlil {source}")
    for command in _PASSES:
        run(command)
    log = f"{result}.log"
    ys.Pass.call(design, f"tee -q -o {log} check")
    lines = Path(log).read_text(errors="replace").split("\n")
    loops = [index for index, line in enumerate(lines) if "found logic loop" in line]
    if loops:
        where = " ".join(" ".join(lines[loops[0] :][:3]).split())
        raise ValueError(f"combinational logic must not depend on itself, but yosys {where}")
    for module in design.all_selected_modules():
        _fix_widths(ys, module)
    run("opt_clean -purge")
    run("setattr -unset init w:*")
    run(f"write_verilog -noattr {result}")


def _fix_widths(ys: Any, module: Any) -> None:
    """Give operators operands of the result's width, so that nothing is extended in silence."""

    def resize(cell: Any, port: str, width: int, is_signed: bool) -> None:
        signal = cell.getPort(ys.IdString(f"\\{port}"))
        if signal.size() > width:
            signal = signal.extract(0, width)
        else:
            signal = ys.SigSpec(signal)
            signal.extend_u0(width, is_signed)
        cell.setPort(ys.IdString(f"\\{port}"), signal)
        cell.setParam(ys.IdString(f"\\{port}_WIDTH"), ys.Const(width, 32))

    for cell in list(module.selected_cells()):
        kind = cell.type.str()
        if kind not in _ARITHMETIC + _COMPARISONS + _UNARY:
            continue
        is_signed = cell.getParam(ys.IdString("\\A_SIGNED")).as_bool()
        a = cell.getPort(ys.IdString("\\A")).size()
        y = cell.getPort(ys.IdString("\\Y")).size()
        if kind in _UNARY:
            if a < y or (a > y and kind not in _RIGHT_SHIFTS):
                resize(cell, "A", y, is_signed)
            continue
        b = cell.getPort(ys.IdString("\\B")).size()
        width = max(a, b) if kind in _COMPARISONS else y
        if (a, b) != (width, width):
            resize(cell, "A", width, is_signed)
            resize(cell, "B", width, is_signed)
        if kind in _ARITHMETIC:
            # operands of the result's width: the sign no longer matters modulo 2^width
            for port in "AB":
                cell.setParam(ys.IdString(f"\\{port}_SIGNED"), ys.Const(0, 1))


def lower_each(paths: Sequence[str]) -> int:
    """Lower designs, each in a process of its own.

    Parameters
    ----------
    paths
        RTLIL and Verilog, RTLIL and Verilog …

    Returns
    -------
    int
        0, or the exit status of the first that fails; those after it are left out.
    """
    import pyosys.libyosys  # noqa: F401  # loaded before the forks

    for source, result in zip(paths[::2], paths[1::2], strict=True):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                lower(source, result)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)  # nothing of the parent's is to be ended twice
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(lower_each(sys.argv[1:]))
