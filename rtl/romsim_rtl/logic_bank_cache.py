"""Banks synthesised in parallel and kept by content: an interrupted run goes on where it was.

An entry is named by the SHA-256 of everything that it depends on and appears whole or not at all.
What is read back is evaluated at every address again, so that a damaged entry is made anew.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_models.errors import SpecError
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_netlist import Gate, LogicNetlist
from romsim_rtl.logic_rom import LogicBank, check_contents, check_style, synthesise
from romsim_rtl.toolchain import ToolError, cache_folder

__all__ = ["BankTask", "bank_folder", "synthesise_all", "synthesise_cached", "write_entry"]

_LAYOUT = 1  # raise when what a style makes of the same contents changes


@dataclass(frozen=True, kw_only=True, eq=False)
class BankTask:
    """One bank to build; parameters as `romsim_rtl.logic_rom.synthesise`."""

    bits: NDArray[np.uint8]
    style: str
    field_bits: int = 2

    def key(self, library: CellLibrary) -> str:
        """Return the SHA-256 of all that the result depends on, in hexadecimal."""
        facts = {
            "layout": _LAYOUT,
            "style": self.style,
            "field_bits": self.field_bits,
            "shape": list(self.bits.shape),
            "cells": library.genlib(),
            "pyosys": "" if self.style == "patterns" else _pyosys_version(),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        digest.update(np.packbits(self.bits, axis=1).tobytes())
        return digest.hexdigest()


def _pyosys_version() -> str:
    try:
        return importlib.metadata.version("pyosys")
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def bank_folder() -> Path:
    """Name the folder of synthesised banks, beside that of built simulations."""
    return cache_folder().parent / "logic-rom"


def synthesise_cached(task: BankTask, library: CellLibrary) -> LogicBank:
    """Return a bank from the cache, or build it and keep it.

    Raises
    ------
    SpecError, ToolError
        As `romsim_rtl.logic_rom.synthesise`; `ToolError` if the cache cannot be written.
    """
    check_style(task.style)
    path = bank_folder() / f"{task.key(library)}.json"
    netlist = _read(path, library)
    if netlist is not None:
        try:
            check_contents(netlist, library, task.bits)
        except ToolError:
            netlist = None  # damaged
    if netlist is None:
        bank = synthesise(task.bits, task.style, library, field_bits=task.field_bits)
        _write(path, bank.netlist)
        return bank
    return LogicBank(
        style=task.style,
        rows=task.bits.shape[0],
        width=task.bits.shape[1],
        n_zero_bits=int(task.bits.size - np.count_nonzero(task.bits)),
        area_um2=netlist.area_um2(library),
        netlist=netlist,
    )


def synthesise_all(
    tasks: Sequence[BankTask],
    library: CellLibrary,
    *,
    jobs: int = 1,
    progress: Callable[[float], None] | None = None,
) -> list[LogicBank]:
    """Build banks, ``jobs`` at a time; the results are in the order of the tasks.

    Parameters
    ----------
    progress
        Called with the finished fraction after each bank.

    Raises
    ------
    SpecError
        If ``jobs`` is below 1, or as `synthesise_cached`.
    ToolError
        As `synthesise_cached`.
    """
    if jobs < 1:
        raise SpecError(f"Jobs must be 1 or more, not {jobs}")
    banks: dict[int, LogicBank] = {}

    def finish(index: int, bank: LogicBank) -> None:
        banks[index] = bank
        if progress is not None:
            progress(len(banks) / len(tasks))

    if jobs == 1 or len(tasks) < 2:
        for index, task in enumerate(tasks):
            finish(index, synthesise_cached(task, library))
    else:
        # spawn: a fork would copy the threads' locks of whatever the caller has loaded
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context) as pool:
            futures = {pool.submit(synthesise_cached, t, library): i for i, t in enumerate(tasks)}
            try:
                for future in as_completed(futures):
                    finish(futures[future], future.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [banks[index] for index in range(len(tasks))]


def _read(path: Path, library: CellLibrary) -> LogicNetlist | None:
    try:
        values = json.loads(path.read_text())
        gates = tuple(
            Gate(cell, tuple(inputs), output) for cell, output, *inputs in values["gates"]
        )
        netlist = LogicNetlist(values["n_address_bits"], gates, tuple(values["outputs"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return netlist if all(gate.cell in library.cells for gate in gates) else None


def _write(path: Path, netlist: LogicNetlist) -> None:
    values = {
        "n_address_bits": netlist.n_address_bits,
        "outputs": netlist.outputs,
        "gates": [[gate.cell, gate.output, *gate.inputs] for gate in netlist.gates],
    }
    write_entry(path, values)


def write_entry(path: Path, values: Mapping[str, Any]) -> None:
    """Write an entry of a cache of synthesis as JSON, whole or not at all.

    Raises
    ------
    ToolError
        If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(prefix=f"{path.name}.partial-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(values, file, separators=(",", ":"))
            Path(aside).replace(path)
        finally:
            Path(aside).unlink(missing_ok=True)
    except OSError as error:
        raise ToolError(
            f"Cache folder {str(path.parent)!r} must be writable, not {error.strerror!r}; set "
            "ROMSIM_CACHE to a folder that is"
        ) from None
