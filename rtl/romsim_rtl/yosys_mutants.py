"""Yosys passes over one design: many mutants planted in it, of which an input selects one.

Run as a program, ``yosys_mutants.py plan.json``, by :mod:`romsim_rtl.mutants`, for the reason that
:mod:`romsim_rtl.yosys_lowering` gives: only a fresh process gives the same bytes each time.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["plant"]

# As the emission lowers a design before it widens operands: a widened operand has bits that say
# the same, and each would be a site of its own.
_PASSES = (
    "opt_expr",
    "opt_merge",
    "wreduce",
    "opt_clean",
    "opt_dff -simple-dffe -nosdff",
    "opt_merge",
    "opt_clean -purge",
)

_OPTIONS = frozenset(
    ("-mode", "-module", "-cell", "-port", "-portbit", "-ctrlbit", "-wire", "-wirebit", "-src")
)


def plant(plan_file: str) -> None:
    """Read RTLIL, choose mutants, write Verilog that holds all of them.

    Parameters
    ----------
    plan_file
        JSON: ``sources`` (RTLIL files), ``top``, ``count`` of ``listed``, ``seed``, ``package``
        (folder whose source lines may be mutated), ``files`` (how the names of its files begin),
        ``each`` (most mutants of one file, 0 for no limit), ``control`` and ``width`` of the
        selecting input, and the files to write: ``netlist`` (RTLIL without mutants), ``mutants``
        (JSON), ``verilog`` (without attributes).
    """
    import pyosys.libyosys as ys  # a native library of 100 MB that only this needs

    plan: dict[str, Any] = json.loads(Path(plan_file).read_text())
    design = ys.Design()

    def run(command: str) -> None:
        ys.Pass.call(design, f"tee -q -o /dev/null {command}")

    for source in reversed(plan["sources"]):  # what the top holds comes before it
        run(f"read_rtlil {source}")
        run("setattr -mod -unset top *")  # or all but one would go
        run("proc -noopt")
        run("flatten")
        run("setattr -mod -set keep_hierarchy 1 *")  # what is shared stays one module
    run(f"hierarchy -top {plan['top']}")
    for command in _PASSES:
        run(command)
    run("setattr -unset init w:*")  # what reset does not clear begins with anything
    run(f"write_rtlil {plan['netlist']}")
    listed = Path(plan["mutants"]).with_suffix(".list")
    # contents of a memory are parameters, no signals; of modules and macros yosys does not know
    # which ports are inputs
    sites = "* t:$meminit* %d c:* t:$* %d %d"
    run(f"mutate -list {plan['listed']} -seed {plan['seed']} -o {listed} {sites}")
    chosen: list[dict[str, Any]] = []
    seen: set[str] = set()
    taken: Counter[str] = Counter()
    files = tuple(plan["files"]) or ("",)
    for line in listed.read_text().splitlines():
        mutant = _parse(line, files, plan["package"])
        if mutant is None or mutant["command"] in seen or len(chosen) == plan["count"]:
            continue
        file = next(place for place in mutant["places"] if place.startswith(files)).partition(":")[
            0
        ]
        if taken[file] == plan["each"] > 0:
            continue
        taken[file] += 1
        seen.add(mutant["command"])
        chosen.append(mutant)
    for number, mutant in enumerate(chosen, 1):
        control = f"-ctrl {plan['control']} {plan['width']} {number}"
        run(f"mutate {control} {mutant['command']}")
    run(f"write_verilog -noattr {plan['verilog']}")
    Path(plan["mutants"]).write_text(json.dumps(chosen, indent=1) + "\n")


def _parse(line: str, files: tuple[str, ...], package: str) -> dict[str, Any] | None:
    """Take one line of the list apart; None if it is no site."""
    words = line.split()
    if words[:1] != ["mutate"]:
        return None
    values: dict[str, str] = {}
    places: list[str] = []
    options: list[list[str]] = []
    for word in words[1:]:
        if word in _OPTIONS:
            options.append([word])
        else:
            options[-1].append(word)
    for option, *parts in options:
        value = parts[-1]  # what stands before is of a path with spaces
        if option == "-src":
            places += value.split("|")
        else:
            values[option] = value
    places = [p.partition("/")[2] for p in places if p.startswith(f"{package}/")]
    if values["-port"] == "CLK" or not any(place.startswith(files) for place in places):
        return None
    names = ("-mode", "-module", "-cell", "-port", "-portbit", "-ctrlbit")
    command = " ".join(f"{name} {values[name]}" for name in names if name in values)
    return {
        "command": command,
        "mode": values["-mode"],
        "module": values["-module"],
        "cell": values["-cell"],
        "port": values["-port"],
        "bit": int(values["-portbit"]),
        "wire": values.get("-wire", ""),
        "places": sorted(set(places)),
    }


if __name__ == "__main__":
    plant(*sys.argv[1:])
