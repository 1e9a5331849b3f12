"""Whether a mutant is no fault at all: a proof that nobody outside can tell it apart."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from romsim_rtl import mutant_design, mutant_gates, mutant_miter, yosys_equivalence
from romsim_rtl.mutant_design import Look, Rule
from romsim_rtl.mutants import Mutant, Planted
from romsim_rtl.toolchain import make_safe_folder

__all__ = ["prove_equivalent"]


def prove_equivalent(
    planted: Planted,
    mutants: Sequence[Mutant],
    *,
    top: str,
    rules: Sequence[Rule] = (),
    looks: Sequence[Look] = (),
    seconds: int = 10,
) -> list[str]:
    """Try to prove that mutants and their design cannot be told apart.

    Parameters
    ----------
    planted
        The design.
    mutants
        Some of its mutants.
    top
        Name of the top module.
    rules
        What every user of the design keeps to, as its interface says; after a breach nothing
        counts.
    looks
        Where users look at outputs, as the interface says. All others count in every cycle.
    seconds
        Longest single search of the solver, of processor time; there are several for each mutant.

    Returns
    -------
    list
        For each mutant "combinational" if registers and outputs get the same values from the same
        state, "induction" if outputs stay equal for ever after a reset from any common state;
        empty if neither was proved. What came of it is kept in the cache, by content.
    """
    parts = (mutant_design, mutant_gates, mutant_miter, yosys_equivalence)
    machinery = [Path(str(part.__file__)).read_text() for part in parts]
    said = [list(map(asdict, rules)), list(map(asdict, looks))]
    content = [planted.netlist.read_text(), *machinery, top, said, seconds]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    folder = make_safe_folder() / "equivalence"
    folder.mkdir(exist_ok=True)
    kept = []
    for mutant in mutants:
        own = digest.copy()
        own.update(mutant.command.encode())
        kept.append(folder / own.hexdigest())
    missing = [index for index, file in enumerate(kept) if not file.is_file()]
    if missing:
        asked = [mutants[index] for index in missing]
        found = _search(planted, asked, top, rules, looks, seconds)
        for index, proof in zip(missing, found, strict=False):
            with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as aside:
                aside.write(proof)
            Path(aside.name).replace(kept[index])
    return [file.read_text() if file.is_file() else "" for file in kept]


def _search(
    planted: Planted,
    mutants: Sequence[Mutant],
    top: str,
    rules: Sequence[Rule],
    looks: Sequence[Look],
    seconds: int,
) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        plan = {
            "netlist": str(planted.netlist),
            "top": top,
            "commands": [mutant.command for mutant in mutants],
            "rules": list(map(asdict, rules)),
            "looks": list(map(asdict, looks)),
            "seconds": seconds,
            "result": str(result),
        }
        file = Path(folder, "plan.json")
        file.write_text(json.dumps(plan))
        subprocess.run(
            [sys.executable, yosys_equivalence.__file__, str(file)],
            capture_output=True,
            check=False,
        )
        found: list[str] = json.loads(result.read_text()) if result.is_file() else []
        return found
