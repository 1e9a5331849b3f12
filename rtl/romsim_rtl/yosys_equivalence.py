"""Proofs that mutants change nothing: miters of what each reaches, as AIGs, given to ABC.

Run as a program, ``yosys_equivalence.py plan.json``, by :mod:`romsim_rtl.equivalence`. Both copies
of a miter begin in the same state, any state, with a cycle of reset. Larger and larger parts of the
design are tried, until one proves that nothing differs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from romsim_rtl.mutant_design import CONTROL, Design, Look, Rule
from romsim_rtl.mutant_miter import Cut, build_miter

__all__ = ["prove"]

_SMALL_MEMORY = 1 << 14  # bits; larger ones are shared by the copies
_CONTROL_BITS = 16
_CUTS = tuple(
    Cut(depth=depth, behind=behind, keeps_control=keeps, multiplies=multiplies)
    for depth, behind, keeps, multiplies in (
        (0, 0, True, False),
        (0, 1, True, True),
        (1, 1, True, False),
        (3, 2, True, True),
    )
)
_LARGEST = 3_000  # cells of a miter that is still solved; larger ones are divided
_PARTS = 16
_MOST_PRODUCTS = 1_500  # bits times bits of its multipliers, which are slow to solve
Run = Callable[[str], str]


def prove(plan_file: str) -> None:
    """Try to prove mutants equivalent, and write how it was done, or nothing, for each.

    Parameters
    ----------
    plan_file
        JSON: ``netlist``, ``top``, ``commands`` (the mutants in yosys' words), ``rules`` (fields
        of `Rule`), ``looks`` (of `Look`), ``seconds`` (of one search), ``result``: a file for a
        JSON list, in their order.
    """
    plan: dict[str, Any] = json.loads(Path(plan_file).read_text())
    import pyosys.libyosys as ys  # a native library of 100 MB that only this needs

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)  # where ABC leaves its files
        design = ys.Design()

        def run(command: str) -> str:
            ys.Pass.call(design, f"tee -q -o {folder}/log {command}")
            return Path(folder, "log").read_text()

        flat = _flatten(run, plan, folder)
        rules = [Rule(**fields) for fields in plan["rules"]]
        looks = [Look(**fields) for fields in plan["looks"]]
        proofs = {
            number: "" if number in flat.selects else "combinational"  # nothing comes of the bit
            for number in range(1, len(plan["commands"]) + 1)
        }
        for cut in _CUTS:
            pending = [number for number, proof in proofs.items() if not proof]
            proofs |= _prove(run, flat, pending, rules, looks, cut, plan["seconds"])
        Path(plan["result"]).write_text(json.dumps(list(proofs.values())))


def _flatten(run: Run, plan: Mapping[str, Any], folder: Path) -> Design:
    """Plant the mutants, and give the design as one module."""
    run(f"read_rtlil {plan['netlist']}")
    for number, command in enumerate(plan["commands"], 1):
        run(f"mutate -ctrl {CONTROL} {_CONTROL_BITS} {number} {command}")
    run("setattr -mod -unset keep_hierarchy *")
    run(f"hierarchy -top {plan['top']}")
    run("flatten -noscopeinfo")
    run("memory_collect")
    run("opt_clean")
    for memory in _small_memories(run):
        run(f"memory_map {memory}")
    for cleaning in ("opt_expr -fine", "opt_dff -nodffe -nosdff", "opt_clean -purge"):
        run(cleaning)
    file = folder / "flat.json"
    run(f"write_json {file}")
    flat = Design(json.loads(file.read_text())["modules"][plan["top"]])
    run("design -reset")
    return flat


def _prove(
    run: Run,
    flat: Design,
    numbers: Sequence[int],
    rules: Sequence[Rule],
    looks: Sequence[Look],
    cut: Cut,
    seconds: int,
) -> dict[int, str]:
    """Prove what can be proved with one cut: miters of many mutants are mapped at once."""
    how: dict[int, str] = {}
    parts: dict[int, int] = {}
    for number in numbers:
        n_parts, n_states = _divide(flat, number, cut, rules, looks)
        if n_parts and (n_states or not cut.depth):  # else no more is reached than with another
            parts[number] = n_parts
            how[number] = "induction" if n_states else "combinational"
    for part in range(max(parts.values(), default=0)):
        if not how:
            break
        modules = {}
        for number in [one for one in how if part < parts[one]]:
            modules[f"miter{number}"], _ = build_miter(
                flat, number, cut, rules, looks, part=part, n_parts=parts[number]
            )
        _map(run, modules)
        for number in [one for one in how if part < parts[one]]:
            if not _is_proved(run, f"miter{number}", seconds):
                del how[number]
    return how


def _map(run: Run, modules: Mapping[str, Any]) -> None:
    Path("miters.json").write_text(json.dumps({"creator": "romsim", "modules": modules}))
    run("design -reset")
    run("read_json miters.json")
    # simplemap first: techmap makes a template for every width of a cell
    for command in ("opt_expr", "opt_clean", "alumacc", "simplemap", "techmap", "opt_clean"):
        run(command)
    run("aigmap")


def _divide(
    flat: Design, number: int, cut: Cut, rules: Sequence[Rule], looks: Sequence[Look]
) -> tuple[int, int]:
    """Say into how many parts a miter is divided, 0 if it is too large; and its state bits."""
    n_states = 0
    for n_parts in (1, _PARTS) if cut.depth <= 1 else (1,):
        module, n_states = build_miter(flat, number, cut, rules, looks, n_parts=n_parts)
        products = sum(
            len(cell["connections"]["A"]) * len(cell["connections"]["B"])
            for cell in module["cells"].values()
            if cell["type"] == "$mul"
        )
        if products <= _MOST_PRODUCTS and len(module["cells"]) <= _LARGEST:
            return n_parts, n_states
    return 0, n_states


def _is_proved(run: Run, module: str, seconds: int) -> bool:
    run("setattr -mod -unset top *")
    run(f"setattr -mod -set top 1 {module}")
    run("write_aiger -zinit miter.aig")
    return _holds(seconds)


def _holds(seconds: int) -> bool:
    """Whether the output of ``miter.aig`` is never 1."""
    if _is_constant("miter.aig"):
        return True
    # the copies are equal nearly everywhere: to find where leaves little to search
    for finding in ("fraig", "scorr"):
        Path("found.aig").unlink(missing_ok=True)
        said = _search(f"{finding}; write_aiger found.aig; pdr", seconds)
        if "Property proved" in said or _is_constant("found.aig"):
            return True
        if "was asserted" in said:
            return False
    return False


def _search(steps: str, seconds: int) -> str:
    """Let ABC take steps on ``miter.aig``; return what it says."""
    import pyosys

    def limit() -> None:  # processor time: what else the machine does must not matter
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    abc = str(Path(pyosys.__file__).parent / "yosys-abc")
    done = subprocess.run(
        [abc, "-c", f"read_aiger miter.aig; {steps}"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    return done.stdout


def _is_constant(file: str) -> bool:
    """Whether an AIG's output is 0: ABC's ``pdr`` says nothing of a constant."""
    if not Path(file).is_file():
        return False
    lines = Path(file).read_bytes().split(b"\n")
    n_registers = int(lines[0].split()[3])
    return lines[1 + n_registers : 2 + n_registers] == [b"0"]


def _small_memories(run: Run) -> list[str]:
    listed = run("select -list t:$mem_v2").split()
    small = []
    for name in listed:
        text = run(f"dump {name}")
        sizes = {
            word: int(line.split()[-1])
            for line in text.splitlines()
            for word in ("SIZE", "WIDTH")
            if line.strip().startswith(f"parameter \\{word} ")
        }
        if sizes and sizes["SIZE"] * sizes["WIDTH"] <= _SMALL_MEMORY:
            small.append(name)
    return small


if __name__ == "__main__":
    prove(*sys.argv[1:])
