"""Yosys passes over one module: flip-flops and gates of a cell table, memories as black boxes.

Run as a program, ``yosys_synthesis.py plan.json`` in the folder of its files, by
:mod:`romsim_rtl.synthesis`, for the reason that :mod:`romsim_rtl.yosys_lowering` gives.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["PASSES", "synthesise_module"]

PASSES = (
    "proc",
    "flatten",
    "opt_expr",
    "opt_clean",
    "opt -nodffe -nosdff",
    "wreduce",
    "peepopt",
    "opt_clean",
    "alumacc",  # multipliers and chains of sums become carry-save trees, adders parallel prefix
    "opt",
    "memory -nomap",
    "opt_clean",
    "opt -fast -full",
    "memory_map",
    "opt -full",
    "opt_dff -simple-dffe -nosdff",
    "opt_clean",
    "setattr -unset init w:*",  # what reset does not clear begins with anything
    "simplemap t:$dffe",  # the next pass takes single flip-flops only
    "clockgate -pos {gate} ENA:CLK:GCLK -min_net_size {gated}",
    "techmap",
    "opt_clean",
    "dfflibmap -liberty flops.lib",
    "simplemap",
    "opt_clean -purge",
    "abc -exe ./abc -genlib cells.genlib -script {script}",
    "opt_clean -purge",
    "write_json mapped.json",
)
"""What is done to a module after it is read; with the plan's names put in."""


def synthesise_module(plan_file: str) -> None:
    """Read RTLIL, write the mapped netlist as JSON.

    Parameters
    ----------
    plan_file
        JSON: ``gate`` (the clock gate's cell), ``gated`` (flip-flops of one enable that get one),
        ``script`` (of ABC, in the form of yosys's option).
    """
    import pyosys.libyosys as ys  # a native library of 100 MB that only this needs

    plan: dict[str, Any] = json.loads(Path(plan_file).read_text())
    design = ys.Design()
    for command in ("read_rtlil in.il", "read_verilog constant.v", *PASSES):
        ys.Pass.call(design, f"tee -q -o /dev/null {command.format(**plan)}")


if __name__ == "__main__":
    synthesise_module(*sys.argv[1:])
