"""How many faults in the RTL its own tests catch: mutants of every component, proofs, a score.

``python -m benchmarks.mutation`` plants mutants in the netlists that the component tests simulate
(:mod:`romsim_rtl.mutants`) and runs those tests, unchanged, on each of them. A mutant that no test
catches is either proved equivalent by SAT or counts against the score: caught / (all - proved).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from benchmarks.mutation_report import Component, Report, Tried, place
from benchmarks.mutation_rules import LOOKS, RULES
from benchmarks.mutation_scripts import UNITS, unit_design
from benchmarks.mutation_sources import digest_of
from benchmarks.mutation_tests import Outcome, designs_of
from benchmarks.mutation_vector import vector_design
from romsim_models.errors import RomsimError, SpecError
from romsim_rtl.equivalence import prove_equivalent
from romsim_rtl.mutants import Netlist, Planted
from romsim_rtl.toolchain import make_safe_folder

__all__ = ["main", "measure", "measure_design"]

TESTS = (
    "argmax",
    "cell",
    "exact_shift",
    "htile_softmax",
    "ltile",
    "memory",
    "mx_quantizer",
    "primitives",
    "recip",
    "rsqrt",
    "sequencer",
    "sincos",
)
LARGE = (*UNITS, "vector_unit")  # units: mutants of each of their files
_SHARE = 4  # a file of a unit has this part of a component's mutants
_HELPERS = ("exact_shift.py", "memory.py", "primitives.py")  # made for whoever calls them


_KEPT = 20  # outcomes after which what was found is kept


class Runner(Protocol):
    """A design with planted mutants, and its tests."""

    planted: Planted

    def run(self, mutant: int) -> Outcome:
        """Run the tests on a mutant until one fails."""


class Subject(Protocol):
    """A design, with or without a component of its own name, and its tests."""

    @property
    def component(self) -> str:
        """Name for the report."""

    @property
    def netlist(self) -> Netlist:
        """What is mutated."""

    @property
    def tests(self) -> tuple[str, ...]:
        """Names of the tests."""

    def plant(self, folder: Path, *, count: int, seed: int) -> Planted:
        """Plant the mutants without building anything."""

    def make_runner(self, folder: Path, *, count: int, seed: int) -> Runner:
        """Build the design with mutants in it."""


def measure_design(
    design: Subject,
    *,
    count: int,
    seed: int,
    seconds: int = 10,
    is_proved: bool = True,
    sources: str = "",
    say: Callable[[str], None] = lambda text: None,
) -> Component:
    """Run a design's tests on its mutants; try to prove those that survive equivalent.

    Parameters
    ----------
    design
        The netlist and its tests.
    count, seed
        Of the mutants.
    seconds
        Longest search of the solver for one proof.
    is_proved
        Whether survivors are proved at all.
    sources
        Digest of everything else that the outcome depends on; outcomes are kept by it, unless it
        is empty.
    """
    content = json.dumps([design.netlist.key, count, seed, design.tests, sources])
    kept = make_safe_folder() / "mutation" / hashlib.sha256(content.encode()).hexdigest()
    with tempfile.TemporaryDirectory(prefix="mutation-", dir=make_safe_folder()) as name:
        folder = Path(name)
        outcomes, is_whole = [], False
        if sources and kept.is_file():
            found = json.loads(kept.read_text())
            outcomes = [Outcome(**one) for one in found["outcomes"]]
            is_whole = found["is_whole"]
        if is_whole:
            planted = design.plant(folder, count=count, seed=seed)
        else:
            runner = design.make_runner(folder, count=count, seed=seed)
            planted = runner.planted
            for mutant in planted.mutants[len(outcomes) :]:
                outcomes.append(runner.run(mutant.number))
                is_whole = len(outcomes) == len(planted.mutants)
                if sources and (is_whole or len(outcomes) % _KEPT == 0):
                    rows = [asdict(one) for one in outcomes]
                    _keep(kept, json.dumps({"is_whole": is_whole, "outcomes": rows}))
                    say(f"{design.component}: {len(outcomes)} of {len(planted.mutants)} tried")
        lived = [
            mutant
            for mutant, outcome in zip(planted.mutants, outcomes, strict=True)
            if not outcome.how
        ]
        proofs: dict[int, str] = {}
        if is_proved and lived:
            say(f"{design.component}: looking for proofs of {len(lived)} that no test caught")
            found = prove_equivalent(
                planted,
                lived,
                top=design.netlist.name,
                rules=RULES.get(design.component, ()),
                looks=LOOKS.get(design.component, ()),
                seconds=seconds,
            )
            proofs = {mutant.number: one for mutant, one in zip(lived, found, strict=True)}
        tried = []
        for mutant, outcome in zip(planted.mutants, outcomes, strict=True):
            proof = proofs.get(mutant.number, "")
            if not outcome.how and not proof:
                say(f"{design.component}: survived: {place(mutant.to_json())}")
            tried.append(Tried(mutant=mutant, test=outcome.test, how=outcome.how, proof=proof))
    return Component(
        component=design.component,
        tests=design.tests,
        tried=tuple(tried),
    )


def _by_file(part: Component) -> list[Component]:
    """Divide a unit's mutants among the modules of the package that made them."""
    files: dict[str, list[Tried]] = {}
    for one in part.tried:
        names = [place.partition(":")[0] for place in one.mutant.places]
        own = [name for name in names if name not in _HELPERS] or names
        files.setdefault(own[0].removesuffix(".py"), []).append(one)
    return [
        Component(component=name, tests=part.tests, tried=tuple(files[name]))
        for name in sorted(files)
    ]


def _keep(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as aside:
        aside.write(text)
    Path(aside.name).replace(file)


def _sources(test: str) -> str:
    """Digest of a test, its golden models, and the machinery here."""
    runners = {"vector_unit": "mutation_vector"} | dict.fromkeys(UNITS, "mutation_scripts")
    return digest_of(
        [
            UNITS[test].module if test in UNITS else f"tests.rtl.test_{test}",
            f"benchmarks.{runners.get(test, 'mutation_tests')}",
            "romsim_rtl.yosys_mutants",
        ]
    )


def _designs(test: str) -> Sequence[Subject]:
    if test == "vector_unit":
        return [vector_design()]
    if test in UNITS:
        return [unit_design(test)]
    return designs_of(f"tests.rtl.test_{test}")


def measure(
    tests: Sequence[str] = TESTS,
    *,
    count: int = 80,
    max_designs: int = 2,
    seed: int = 1,
    seconds: int = 10,
    is_proved: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measure test modules.

    Parameters
    ----------
    tests
        Names of ``tests/rtl/test_<name>.py``.
    count
        Mutants of each component; its designs share them. Each file of a unit has a quarter.
    max_designs
        Designs of a component that are built, spread evenly over those that its tests simulate;
        one of a unit.
    seed
        Of the choice of mutants.
    """
    unknown = sorted(set(tests) - {*TESTS, *LARGE})
    if unknown:
        listed = ", ".join([*TESTS, *LARGE])
        raise SpecError(f"Tests must be among {listed}, not {unknown[0]!r}")
    parts = []
    for test in tests:
        sources = _sources(test)
        designs = _designs(test)
        for name in sorted({design.component for design in designs}):
            of_it = [design for design in designs if design.component == name]
            step = max(1.0, len(of_it) / max_designs)
            n_chosen = 1 if test in LARGE else min(len(of_it), max_designs)
            chosen = [of_it[int(k * step)] for k in range(n_chosen)]
            for number, design in enumerate(chosen):
                share = count * (number + 1) // len(chosen) - count * number // len(chosen)
                if test in LARGE:
                    share = -(-count // _SHARE)
                if share == 0:
                    continue
                say(f"{name}, design {number + 1} of {len(chosen)}: {share} mutants")
                part = measure_design(
                    design,
                    count=share,
                    seed=seed,
                    seconds=seconds,
                    is_proved=is_proved,
                    sources=sources,
                    say=say,
                )
                parts += _by_file(part) if test in LARGE else [part]
                say(
                    f"{name}: {part.count('caught')} caught, {part.count('equivalent')} proved "
                    f"equivalent, {part.count('survived')} survived"
                )
    # a netlist without a site of ours (the tests' own helpers) is no component
    return Report(count=count, seed=seed, components=tuple(p for p in parts if p.tried))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument(
        "tests",
        nargs="*",
        help=f"of: {', '.join([*TESTS, *LARGE])}; all by default",
    )
    parser.add_argument("--count", type=int, default=80, help="mutants of each component")
    parser.add_argument("--designs", type=int, default=2, help="designs built of a component")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=10, help="of the solver for one proof")
    parser.add_argument("--no-proofs", action="store_true", help="leave survivors unproved")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    # a test that is only asked for its component never elaborates the others that it made
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        report = measure(
            given.tests or (*TESTS, *LARGE),
            count=given.count,
            max_designs=given.designs,
            seed=given.seed,
            seconds=given.seconds,
            is_proved=not given.no_proofs,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except RomsimError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    values = report.to_json()
    print(json.dumps(values, indent=1, sort_keys=True) if given.json else report.to_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
