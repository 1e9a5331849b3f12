"""Amaranth components as Verilog in which a stage that is not enabled costs a simulator nothing.

``amaranth.back.verilog`` writes every register's next value as combinational logic that holds the
old value unless enabled; Verilator then evaluates and stores all of it in every cycle, and lint
warns of every operand that is narrower than its result. Here yosys first infers the enables and
makes all widths explicit; then combinational logic that only the registers of one enable read is
moved into that enable's clocked block, as variables of the block. The function of the netlist is
the same; unchanged input gives the same bytes.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from amaranth.back import rtlil
from amaranth.hdl import Fragment, _nir
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring

from romsim_rtl import yosys_lowering
from romsim_rtl.stage_gating import gate_stages
from romsim_rtl.toolchain import ToolError
from romsim_rtl.wide_registers import spare_copies

__all__ = ["convert", "lowered", "write_verilog"]


def write_verilog(
    component: Any,
    name: str,
    platform: Any = None,
    *,
    unread: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Convert a component to Verilog.

    Parameters
    ----------
    component
        A ``wiring.Component``; its signature gives the ports.
    name
        Name of the top module.
    platform
        Passed to ``elaborate``; see :mod:`romsim_rtl.memory`.
    unread
        Ports of which some bits are not read, and why; lint speaks of all others.

    Raises
    ------
    ToolError
        If yosys fails.
    """
    source = convert(component, name, platform)
    return lowered({name: source}, unread={name: unread})[name]


def convert(component: Any, name: str, platform: Any = None) -> str:
    """Convert a component to RTLIL, which `lowered` takes.

    Parameters
    ----------
    component, name, platform
        As `write_verilog`.
    """
    ports: dict[str, Any] = {}
    for path, member, value in component.signature.flatten(component):
        direction = PortDirection.Input if member.flow == wiring.In else PortDirection.Output
        ports["__".join(map(str, path))] = (value, direction)
    with _uncollected(), _unchecked():
        fragment = Fragment.get(component, platform)
        text: str = rtlil.convert_fragment(fragment, ports=ports, name=name, emit_src=False)[0]
    return text


def lowered(
    sources: Mapping[str, str], *, unread: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Lower modules to Verilog, with yosys in a process of its own.

    Parameters
    ----------
    sources
        RTLIL of each module, by name.
    unread
        For each module the ports of which some bits are not read, and why.

    Raises
    ------
    ToolError
        If yosys fails.
    """
    texts = _lower(sources)
    return {
        name: spare_copies(gate_stages(text, unread=unread.get(name, {})))
        for name, text in texts.items()
    }


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage among millions of nets that all stay: it takes half the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _unchecked() -> Iterator[None]:
    """Leave out what Amaranth checks of each net: half the time of a conversion.

    Loops of combinational logic are found by yosys, and that a value holds nets is Amaranth's own
    affair.
    """

    def value(cls: Any, nets: Any = ()) -> Any:
        return tuple.__new__(cls, (nets,) if isinstance(nets, _nir.Net) else nets)

    with (
        patch.object(_nir.Netlist, "check_comb_cycles", lambda netlist: None),
        patch.object(_nir.Value, "__new__", value),
    ):
        yield


def _lower(sources: Mapping[str, str]) -> dict[str, str]:
    """Run yosys; see :mod:`romsim_rtl.yosys_lowering`."""
    with tempfile.TemporaryDirectory() as folder:
        results = {}
        paths = []
        for number, (name, text) in enumerate(sources.items()):
            source, results[name] = Path(folder, f"{number}.il"), Path(folder, f"{number}.v")
            source.write_text(text)
            paths += [str(source), str(results[name])]
        done = subprocess.run(
            [sys.executable, yosys_lowering.__file__, *paths],
            capture_output=True,
            text=True,
            check=False,
        )
        missing = [name for name, result in results.items() if not result.is_file()]
        if done.returncode != 0 or missing:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["nothing was printed"]
            raise ToolError(
                f"Verilog of {(missing or list(results))[0]!r} must come out of yosys, not exit "
                f"status {done.returncode}: {lines[-1]!r}"
            )
        head = "/* Generated by romsim from an Amaranth component; do not edit. */"
        return {
            name: head + "\n" + result.read_text().split("\n", 1)[1]
            for name, result in results.items()
        }
