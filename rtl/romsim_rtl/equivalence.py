"""Whether a mutant is no fault at all: a proof by SAT that nobody outside can tell it apart."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from romsim_rtl import yosys_equivalence
from romsim_rtl.mutants import Mutant, Planted
from romsim_rtl.toolchain import make_safe_folder

__all__ = ["prove_equivalent"]


def prove_equivalent(
    planted: Planted,
    mutant: Mutant,
    *,
    top: str,
    when: Mapping[str, str] = MappingProxyType({}),
    steps: int = 8,
    seconds: int = 10,
) -> str:
    """Try to prove that a mutant and its design cannot be told apart.

    Parameters
    ----------
    planted
        The design.
    mutant
        One of its mutants.
    top
        Name of the top module.
    when
        Outputs that mean something only while another output is 1, which is documented at the
        component; all other outputs count in every cycle.
    steps
        Longest induction that is tried.
    seconds
        Longest single search of the solver.

    Returns
    -------
    str
        "combinational" if registers and outputs get the same values from the same state,
        "induction" if outputs stay equal for ever after a reset from any common state; empty if
        neither was proved. What came of it is kept in the cache, by content.
    """
    content = [
        planted.netlist.read_text(),
        Path(yosys_equivalence.__file__).read_text(),
        mutant.command,
        top,
        dict(when),
        steps,
        seconds,
    ]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    kept = make_safe_folder() / "equivalence" / key
    if kept.is_file():
        return kept.read_text()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result")
        plan = {
            "netlist": str(planted.netlist),
            "top": top,
            "command": mutant.command,
            "when": dict(when),
            "steps": steps,
            "seconds": seconds,
            "result": str(result),
        }
        file = Path(folder, "plan.json")
        file.write_text(json.dumps(plan))
        found = ""
        # a netlist too large to be written as clauses in this time is not proved either
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, yosys_equivalence.__file__, str(file)],
                capture_output=True,
                check=False,
                timeout=4 * seconds + 60,
            )
        if result.is_file():
            found = result.read_text()
    kept.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as aside:
        aside.write(found)
    Path(aside.name).replace(kept)
    return found
