"""Run a component in Amaranth's simulator, one testbench, one clock; or where `run_by` says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from amaranth.sim import Simulator

Bench = Callable[[Any], Awaitable[None]]
Ports = Mapping[str, tuple[Any, str]] | None
Runner = Callable[[Any, Bench, Ports], None]


def _amaranth(component: Any, bench: Bench, ports: Ports) -> None:
    simulator = Simulator(component)
    simulator.add_clock(1e-6, if_exists=True)
    simulator.add_testbench(bench)
    simulator.run()


_runners: list[Runner] = [_amaranth]


def simulate(component: Any, bench: Bench, *, ports: Ports = None) -> None:
    """Run a testbench.

    ``ports`` are a plain module's signals with "i" or "o", by name, for want of a signature.
    """
    _runners[-1](component, bench, ports)


@contextmanager
def run_by(runner: Runner) -> Iterator[None]:
    """Give every component that is simulated meanwhile to another simulator."""
    _runners.append(runner)
    try:
        yield
    finally:
        _runners.pop()
