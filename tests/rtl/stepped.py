"""Run a component in Amaranth's simulator, one testbench, one clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from amaranth.sim import Simulator


def simulate(component: Any, bench: Callable[[Any], Awaitable[None]]) -> None:
    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
