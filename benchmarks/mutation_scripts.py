"""Tests that drive a Verilated unit by a script: the same tests, on a unit with mutants in it."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.mutation_tests import Outcome, calls_of, try_in_a_fork
from romsim_models.errors import SpecError
from romsim_rtl.emit import verilog_texts
from romsim_rtl.memory import VerilogPlatform
from romsim_rtl.mutants import CONTROL, CONTROL_BITS, Netlist, Planted, netlist_of, plant_mutants
from tests.rtl.poke import Script, Simulation

__all__ = ["UNITS", "ScriptRunner", "Unit", "UnitDesign", "unit_design"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit, the tests that drive it, and the golden models that they compute.

    Parameters
    ----------
    component
        Name for the report.
    module
        The test module.
    shapes
        Name of its table of shapes that are not slow.
    goldens
        Functions of the module that compute what is expected; they depend on their arguments
        alone, so they are computed once and not for every mutant.
    files
        How the names of the files begin whose lines these tests are for.
    tests
        How the names of the tests begin that are run: those that drive the whole unit.
    is_top_only
        Whether what the unit shares, as its tiles, is left whole.
    """

    component: str
    module: str
    shapes: str
    goldens: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    tests: tuple[str, ...] = ("test_",)
    is_top_only: bool = False

    def netlist(self, component: Any, name: str) -> Netlist:
        """Give what is mutated."""
        platform = VerilogPlatform()
        return netlist_of(component, name, platform=platform, is_top_only=self.is_top_only)


_N_FILES = 16  # no unit has more
UNITS = {
    "hside": Unit(
        component="hside",
        module="tests.rtl.test_hside",
        shapes="SHAPES",
        goldens=("attention",),
        files=("attention_", "hside", "htile", "merge"),
        tests=(
            *("test_attention_has", "test_scores_saturate", "test_sums_of_values"),
            *("test_close_scores", "test_last_positions"),
        ),
    ),
    "lora_side": Unit(
        component="lora_side",
        module="tests.rtl.test_lora_side",
        shapes="CHIPS",
        goldens=("apply",),
        files=("lora_",),
        tests=("test_adapters", "test_without_an_adapter"),
    ),
    "lside": Unit(
        component="lside",
        module="tests.rtl.test_lside_chip",
        shapes="CHIPS",
        files=("lside",),
        is_top_only=True,
    ),
}


class _Recorded:
    """A function whose results are kept, in the order of its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._kept: list[tuple[Any, Any]] = []
        self._next: int | None = None

    def rewind(self) -> None:
        """Begin anew: from now on, give what was kept."""
        self._next = 0

    def __call__(self, *arguments: Any) -> Any:
        if self._next is not None and self._next < len(self._kept):
            given, result = self._kept[self._next]
            self._next += 1
            if given == repr(arguments):
                return result
        result = self._function(*arguments)
        if self._next is None:
            self._kept.append((repr(arguments), result))
        return result


class ScriptRunner:
    """Runs a unit's tests on its mutants; see `benchmarks.mutation_tests.SteppedRunner`.

    Parameters
    ----------
    unit
        What to run.
    shape
        Name of the shape.
    folder
        An empty folder.
    count, seed
        Of the mutants.

    Raises
    ------
    SpecError
        If a test fails without a mutant.
    """

    def __init__(self, unit: Unit, shape: str, folder: Path, *, count: int, seed: int) -> None:
        module: Any = importlib.import_module(unit.module)
        self._unit = unit
        self.top = ""
        self._mutant = 0
        self._plan = (folder, count, seed)
        self._goldens = {name: _Recorded(getattr(module, name)) for name in unit.goldens}
        self._module = module
        simulation = module.make_simulation(shape, folder, self._simulation_class())
        fixtures = {"simulations": lambda _: simulation}
        self.calls = [
            call
            for call in calls_of(module, fixtures=fixtures, only={"name": shape})
            if call.name.startswith(unit.tests)
        ]
        outcome = self._run()
        if outcome.how:
            raise SpecError(
                f"The tests of {unit.component} must pass on the design without a mutant, not "
                f"fail in {outcome.test!r} with {outcome.how!r}"
            )

    def run(self, mutant: int, *, seconds: int = 240) -> Outcome:
        """Run the tests until one fails."""

        def work() -> Outcome:
            self._mutant = mutant
            return self._run()

        return try_in_a_fork(work, seconds)

    def _run(self) -> Outcome:
        with ExitStack() as stack:
            for name, recorded in self._goldens.items():
                if self._mutant:
                    recorded.rewind()
                stack.enter_context(mock.patch.object(self._module, name, recorded))
            for call in self.calls:
                try:
                    call.run()
                except Exception as error:
                    if self._mutant == 0:
                        traceback.print_exc()
                    return Outcome(test=call.name, how=type(error).__name__)
        return Outcome()

    def _plant(self, component: Any, name: str) -> Path:
        folder, count, seed = self._plan
        self.top = name
        self.netlist = self._unit.netlist(component, name)
        self.planted: Planted = _plant(self.netlist, folder, self._unit.files, count, seed)
        return self.planted.verilog

    def _simulation_class(self) -> type[Simulation]:
        runner = self

        class Mutated(Simulation):
            def emit(self, component: Any, name: str, folder: Path) -> list[Path]:
                files = [runner._plant(component, name)]
                self.ports[CONTROL] = (len(self.ports), CONTROL_BITS)
                texts = verilog_texts(component, name) if runner.netlist.whole else {}
                for module in runner.netlist.whole:
                    files.append(folder / f"{module}.v")
                    files[-1].write_text(texts[files[-1].name])
                return files

            def script(self) -> Script:
                script = super().script()
                script.set(CONTROL, runner._mutant)
                return script

        return Mutated


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitDesign:
    """A unit of one shape; see `benchmarks.mutation_tests.Design`."""

    unit: Unit
    shape: str
    netlist: Netlist

    @property
    def component(self) -> str:
        """Name of the unit."""
        return self.unit.component

    @property
    def tests(self) -> tuple[str, ...]:
        """The test module and the shape."""
        return (f"{self.unit.module.rpartition('.')[2]}[{self.shape}]",)

    def plant(self, folder: Path, *, count: int, seed: int) -> Planted:
        """Plant the mutants without building anything."""
        return _plant(self.netlist, folder, self.unit.files, count, seed)

    def make_runner(self, folder: Path, *, count: int, seed: int) -> ScriptRunner:
        """Build the unit with mutants in it."""
        return ScriptRunner(self.unit, self.shape, folder, count=count, seed=seed)


def _plant(
    netlist: Netlist, folder: Path, files: tuple[str, ...], count: int, seed: int
) -> Planted:
    """Plant ``count`` mutants in each file."""
    return plant_mutants(
        netlist, folder, count=count * _N_FILES, seed=seed, files=files, each=count
    )


def unit_design(name: str) -> UnitDesign:
    """Give a unit in the first of its shapes: a unit takes minutes to build."""
    unit = UNITS[name]
    module: Any = importlib.import_module(unit.module)
    shape = next(iter(getattr(module, unit.shapes)))
    component, top = module.make_simulation(shape, Path(), lambda *given, **_: given[:2])
    return UnitDesign(unit=unit, shape=shape, netlist=unit.netlist(component, top))
