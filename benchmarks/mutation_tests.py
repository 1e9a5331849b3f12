"""The components' own tests as scenarios: which design each simulates, run on one mutant each."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from benchmarks.mutation_model import Context, Model, Port, build_model
from romsim_models.errors import SpecError
from romsim_rtl.mutants import Netlist, Planted, netlist_of, plant_mutants
from tests.rtl.stepped import Bench, Ports, run_by

__all__ = ["Call", "Design", "Outcome", "SteppedRunner", "calls_of", "designs_of", "try_in_a_fork"]

_SLACK = 10  # a mutant that takes this many times the cycles of the design hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A test function with its arguments."""

    name: str
    run: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the tests said of one mutant: the test that failed and how, or neither."""

    test: str = ""
    how: str = ""


@dataclass(slots=True, kw_only=True)
class Design:
    """A design and every test that simulates it."""

    component: str
    netlist: Netlist
    ports: tuple[Port, ...]
    calls: list[Call] = field(default_factory=list)

    @property
    def tests(self) -> tuple[str, ...]:
        """Names of the tests."""
        return tuple(call.name for call in self.calls)

    def plant(self, folder: Path, *, count: int, seed: int) -> Planted:
        """Plant the mutants without building anything."""
        return plant_mutants(self.netlist, folder, count=count, seed=seed)

    def make_runner(self, folder: Path, *, count: int, seed: int) -> SteppedRunner:
        """Build the design with mutants in it."""
        return SteppedRunner(self, folder, count=count, seed=seed)


class _Captured(BaseException):
    """Unwinds a test up to where its component is asked for; no error."""

    def __init__(self, component: Any, ports: Ports) -> None:
        super().__init__()
        self.component, self.ports = component, ports


def calls_of(
    module: ModuleType,
    *,
    fixtures: Mapping[str, Any] = MappingProxyType({}),
    only: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Call]:
    """Give a module's tests that are not slow, one for each parameter set.

    Parameters
    ----------
    fixtures
        Values of the fixtures that there are; tests that need others are left out.
    only
        Values that parameters must have.
    """
    for name, function in vars(module).items():
        if not name.startswith("test_") or function.__module__ != module.__name__:
            continue
        axes = []
        marks = getattr(function, "pytestmark", ())
        if any(mark.name == "slow" for mark in marks):
            continue
        for mark in marks:
            if mark.name == "parametrize":
                names, values = mark.args
                axes.append(list(_settings(names, values)))
        given = {key for axis in axes for setting in axis[:1] for key in setting}
        code = function.__code__
        needed = set(code.co_varnames[: code.co_argcount]) - given
        if not needed <= set(fixtures) or not set(only) <= given:
            continue
        for settings in itertools.product(*axes):
            arguments = {k: v for setting in settings for k, v in setting.items()}
            if any(arguments[key] != value for key, value in only.items()):
                continue
            label = f"[{', '.join(map(str, arguments.values()))}]" if arguments else ""
            yield Call(
                name=f"{name}{label}",
                run=_bound(function, arguments | {key: fixtures[key] for key in needed}),
            )


def _settings(names: Any, values: Sequence[Any]) -> Iterator[dict[str, Any]]:
    keys = [one.strip() for one in names.split(",")] if isinstance(names, str) else list(names)
    for value in values:
        if any(mark.name == "slow" for mark in getattr(value, "marks", ())):
            continue
        value = getattr(value, "values", value) if hasattr(value, "marks") else value
        row = value if isinstance(value, tuple) and (len(keys) > 1 or len(value) == 1) else (value,)
        yield dict(zip(keys, row, strict=True))


def _bound(function: Callable[..., None], arguments: Mapping[str, Any]) -> Callable[[], None]:
    return lambda: function(**arguments)


def _capture(component: Any, bench: Bench, ports: Ports) -> None:
    raise _Captured(component, ports)


def designs_of(test_module: str) -> list[Design]:
    """Find the designs that a test module simulates through ``tests.rtl.stepped``.

    Tests of the same netlist stand together: each of them is a chance to catch its mutants.
    """
    module = importlib.import_module(test_module)
    found: dict[str, Design] = {}
    for call in calls_of(module):
        try:
            with run_by(_capture):
                call.run()
        except _Captured as captured:
            design = _design(module, captured)
            found.setdefault(design.netlist.key, design).calls.append(call)
    return list(found.values())


def _design(module: ModuleType, captured: _Captured) -> Design:
    owner = type(captured.component).__module__
    is_ours = owner.startswith("romsim_rtl.")
    component = owner if is_ours else module.__name__.replace(".test_", ".")
    signals = _signals(captured.component, captured.ports)
    return Design(
        component=component.rpartition(".")[2],
        netlist=netlist_of(captured.component, "dut", ports=captured.ports),
        ports=tuple(Port.of(name, value, way) for name, (value, way) in signals.items()),
    )


def _signals(component: Any, ports: Ports) -> Mapping[str, tuple[Any, str]]:
    if ports is not None:
        return ports
    return {
        "__".join(map(str, path)): (value, "o" if member.flow.name == "Out" else "i")
        for path, member, value in component.signature.flatten(component)
    }


class SteppedRunner:
    """Runs a design's tests on its mutants, one model built for all of them."""

    def __init__(self, design: Design, folder: Path, *, count: int, seed: int) -> None:
        self.design = design
        self.planted: Planted = design.plant(folder, count=count, seed=seed)
        if not self.planted.mutants:
            return  # all of it is the tests' own
        self.model: Model = build_model(
            self.planted.verilog,
            design.netlist.name,
            design.ports,
            folder,
            has_clock=design.netlist.has_clock,
        )
        self._limit = 1_000_000_000
        cycles = try_in_a_fork(lambda: self._run(0), 600)
        if cycles.how != "cycles":
            raise SpecError(
                f"The tests of {design.component} must pass on the design without a mutant, not "
                f"fail in {cycles.test!r} with {cycles.how!r}"
            )
        self._limit = _SLACK * int(cycles.test) + 100

    def run(self, mutant: int, *, seconds: int = 120) -> Outcome:
        """Run the tests until one fails."""
        outcome = try_in_a_fork(lambda: self._run(mutant), seconds)
        return Outcome() if outcome.how == "cycles" else outcome

    def _run(self, mutant: int) -> Outcome:
        n_cycles = 0

        def runner(component: Any, bench: Bench, ports: Ports) -> None:
            nonlocal n_cycles
            self.model.open(mutant)
            signals = {name: s for name, (s, _) in _signals(component, ports).items()}
            context = Context(self.model, signals, limit=self._limit)
            try:
                bench(context).__await__().send(None)
            except StopIteration:
                n_cycles = max(n_cycles, context.n_cycles)

        for call in self.design.calls:
            try:
                with run_by(runner):
                    call.run()
            except Exception as error:
                if mutant == 0:
                    traceback.print_exc()
                return Outcome(test=call.name, how=type(error).__name__)
        return Outcome(test=str(n_cycles), how="cycles")


def try_in_a_fork(work: Callable[[], Outcome], seconds: int) -> Outcome:
    """Do something in a child process: a mutant may crash or never end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(seconds)
            outcome = work()
            os.write(writer, json.dumps([outcome.test, outcome.how]).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = "timeout" if number == signal.SIGALRM else signal.Signals(number).name
        return Outcome(test="", how=how)
    if not text:
        return Outcome(test="", how=f"exit status {os.waitstatus_to_exitcode(status)}")
    test, how = json.loads(text)
    return Outcome(test=test, how=how)
