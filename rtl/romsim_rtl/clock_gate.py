"""Clock gating: a unit that rests has no clock, and costs a simulator nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Instance, Module, ResetSignal, Signal

from romsim_rtl.memory import VerilogPlatform

__all__ = ["DRAIN_CYCLES", "gate_clock"]

DRAIN_CYCLES = 15
"""Cycles that suffice after anything: no register that is not under an instruction's ``busy`` is
further from its cause."""


def gate_clock(m: Module, platform: Any, domain: str, wakes: Sequence[tuple[Any, int]]) -> str:
    """Add a clock domain that ticks while a unit is awake.

    Parameters
    ----------
    domain
        Its name.
    wakes
        Whatever may change the unit's state (starts, ``busy``, reads, valid inputs), each with the
        cycles that the clock ticks on after it, at most `DRAIN_CYCLES`, longest first.

    Returns
    -------
    str
        The domain to put the unit in: ``sync`` itself in Amaranth's simulator, where no macro is.
    """
    if not isinstance(platform, VerilogPlatform):
        return "sync"
    m.domains += ClockDomain(domain, local=True)
    left = Signal(range(DRAIN_CYCLES + 1), name=f"{domain}_drain", init=DRAIN_CYCLES)
    with m.If(left.any()):
        m.d.sync += left.eq(left - 1)
    for wake, cycles in reversed(wakes):  # of two at once the longer holds: it is set last
        if cycles == DRAIN_CYCLES:
            with m.If(wake):
                m.d.sync += left.eq(cycles)
        elif cycles:
            with m.If(wake & (left <= cycles)):
                m.d.sync += left.eq(cycles)
    m.submodules[f"{domain}_clock"] = Instance(
        "romsim_clock_gate",
        i_clk=ClockSignal("sync"),
        i_en=Cat(*(wake for wake, _ in wakes), left.any(), ResetSignal("sync")).any(),
        o_gated=ClockSignal(domain),
    )
    m.d.comb += ResetSignal(domain).eq(ResetSignal("sync"))
    return domain
