"""Constants that keep their form in emitted Verilog."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Const, Instance, Module, Signal, Value

from romsim_rtl.memory import VerilogPlatform

__all__ = ["opaque_mask"]


def opaque_mask(m: Module, platform: Any, name: str, value: int) -> Value:
    """Return a mask of 64 bits that yosys does not turn into a list of slices.

    Parameters
    ----------
    name
        Name of the instance.
    value
        The mask.
    """
    if not isinstance(platform, VerilogPlatform):
        return Const(value, 64)
    mask = Signal(64, name=name)
    m.submodules[f"{name}_constant"] = Instance(
        "romsim_constant", p_WIDTH=64, p_VALUE=Const(value, 64), o_value=mask
    )
    return mask
