"""Unit V's scenarios, with the mutants of every part of it in one Verilated unit."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutation_tests import Outcome, try_in_a_fork
from romsim_models.errors import SpecError
from romsim_rtl.memory import VerilogPlatform
from romsim_rtl.mutants import CONTROL, Netlist, Planted, netlist_of, plant_mutants
from tests.rtl.test_vector_unit import SEEDS, SHAPES, scenarios
from tests.rtl.vector_bench import VERILOG, Bench, Shape
from tests.rtl.vector_scenario import Scenario

__all__ = ["VectorDesign", "VectorRunner", "vector_design"]


_FILES = ("vector_", "primitives")
_N_FILES = 13


class _Mutated(Bench):
    """A bench whose unit has mutants, of which an argument selects one."""

    ARGS = ("-Wno-fatal", "-Wno-lint")
    OPT = "-O0"
    PREPARE = (
        f"static void prepare(Top& top, VerilatedContext& context) {{\n"
        f'  top.{CONTROL} = std::atoi(context.commandArgsPlusMatch("{CONTROL}=") + '
        f"{len(CONTROL) + 2});\n}}\n"
    )

    def __init__(self, shape: Shape, folder: Path, planted: Planted) -> None:
        self._planted = planted
        super().__init__(shape, folder)

    def emit(self, folder: Path) -> list[Path]:
        return [self._planted.verilog, VERILOG / "romsim_sram.v", VERILOG / "romsim_rom.v"]


class VectorRunner:
    """Runs unit V's scenarios on its mutants; see `benchmarks.mutation_tests.SteppedRunner`.

    What is expected is computed once, and of a mutant's log only the instructions are checked of
    which it says something else than that of the unharmed unit.

    Raises
    ------
    SpecError
        If a scenario fails without a mutant.
    """

    def __init__(self, shape: Shape, planted: Planted, folder: Path) -> None:
        self.planted = planted
        self._bench = _Mutated(shape, folder / "bench", planted)
        self._mutant = 0
        self._queued: list[tuple[Scenario, bytes, str]] = []
        for scenario in scenarios(self._bench, SEEDS):
            data = bytes(self._bench.data)
            self._queued.append((scenario, data, self._simulate(scenario, data)))
        for number, (scenario, _, log) in enumerate(self._queued):
            try:
                scenario.check(*self._bench.parse(log))
            except AssertionError as error:
                traceback.print_exc()
                raise SpecError(
                    f"The scenarios of unit V must pass on the design without a mutant, not fail "
                    f"in scenario {number}"
                ) from error

    def run(self, mutant: int, *, seconds: int = 240) -> Outcome:
        """Run the scenarios until one fails."""

        def work() -> Outcome:
            self._mutant = mutant
            return self._run()

        return try_in_a_fork(work, seconds)

    def _simulate(self, scenario: Scenario, data: bytes) -> str:
        bench = self._bench
        bench.arguments = [f"+romdir={bench.folder}", f"+{CONTROL}={self._mutant}"]
        bench.data = bytearray(data)
        return bench.simulate(scenario.gains)

    def _run(self) -> Outcome:
        for number, (scenario, data, expected) in enumerate(self._queued):
            try:
                self._check(scenario, self._simulate(scenario, data), expected)
            except Exception as error:
                return Outcome(test=f"scenario {number}", how=type(error).__name__)
        return Outcome()

    def _check(self, scenario: Scenario, log: str, expected: str) -> None:
        """Check what differs: an instruction's part of the log begins with a line S."""
        parts, wanted = log.split("S\n"), expected.split("S\n")
        assert len(parts) == len(wanted)
        for number, (part, clean) in enumerate(zip(parts[1:], wanted[1:], strict=True)):
            if part != clean:
                (run,), answers = self._bench.parse(f"S\n{part}")
                scenario.check_run(number, run)
                if number == len(scenario.checks) - 1:
                    scenario.check_answers(answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorDesign:
    """Unit V in a shape; see `benchmarks.mutation_tests.Design`."""

    shape: str
    netlist: Netlist

    @property
    def component(self) -> str:
        """Name of the unit."""
        return "vector_unit"

    @property
    def tests(self) -> tuple[str, ...]:
        """The test module and the shape."""
        return (f"test_vector_unit[{self.shape}]",)

    def plant(self, folder: Path, *, count: int, seed: int) -> Planted:
        """Plant ``count`` mutants in each file of the unit without building anything."""
        return plant_mutants(
            self.netlist, folder, count=count * _N_FILES, seed=seed, files=_FILES, each=count
        )

    def make_runner(self, folder: Path, *, count: int, seed: int) -> VectorRunner:
        """Build the unit with mutants in it."""
        planted = self.plant(folder, count=count, seed=seed)
        return VectorRunner(SHAPES[self.shape], planted, folder)


def vector_design() -> VectorDesign:
    """Give unit V in the first of its shapes."""
    shape = next(iter(SHAPES))
    netlist = netlist_of(SHAPES[shape].unit(), "romsim_vector", platform=VerilogPlatform())
    return VectorDesign(shape=shape, netlist=netlist)
