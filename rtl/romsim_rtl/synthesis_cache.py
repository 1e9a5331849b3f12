"""Modules synthesised in parallel and kept by content: an interrupted run goes on where it was.

An entry is named by the SHA-256 of everything that it depends on and appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from romsim_compiler.technology import Technology
from romsim_models.errors import SpecError
from romsim_rtl import yosys_synthesis
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_bank_cache import write_entry
from romsim_rtl.module_timing import PortTiming
from romsim_rtl.path_depth import timed_genlib
from romsim_rtl.synthesis import (
    BLACK_BOX,
    MAPPINGS,
    Memory,
    ModuleSynthesis,
    RtlilModule,
    check_technology,
    map_module,
    module_waves,
)
from romsim_rtl.synthesis_lanes import widen
from romsim_rtl.toolchain import cache_folder

__all__ = ["check_options", "synthesis_folder", "synthesise_alone", "synthesise_modules"]

_LAYOUT = 1  # raise when what is made of the same module, or how it is timed, changes


def synthesis_folder() -> Path:
    """Name the folder of synthesised modules, beside that of built simulations."""
    return cache_folder().parent / "synthesis"


def check_options(mapping: str, jobs: int) -> None:
    """Refuse options of `synthesise_modules`, before the modules are made.

    Raises
    ------
    SpecError
        If the mapping is unknown or there are no jobs.
    """
    if jobs < 1:
        raise SpecError(f"Jobs must be 1 or more, not {jobs}")
    if mapping not in MAPPINGS:
        raise SpecError(f"Mapping must be one of {', '.join(MAPPINGS)}, not {mapping!r}")


def synthesise_modules(
    modules: Sequence[RtlilModule],
    technology: Technology,
    *,
    mapping: str = "area",
    jobs: int = 1,
    progress: Callable[[float], None] | None = None,
) -> dict[str, ModuleSynthesis]:
    """Synthesise modules, ``jobs`` at a time.

    Parameters
    ----------
    modules
        With every module that one of them holds.
    mapping
        One of `romsim_rtl.synthesis.MAPPINGS`.
    progress
        Called with the finished fraction, by the size of the modules.

    Raises
    ------
    SpecError
        If ``jobs`` is below 1, or as `romsim_rtl.synthesis.map_module`.
    ToolError
        As `romsim_rtl.synthesis.map_module`, or if the cache cannot be written.
    """
    check_options(mapping, jobs)
    check_technology(technology)
    done: dict[str, ModuleSynthesis] = {}
    keys: dict[str, str] = {}
    small = [few for module in modules for few in module.fewer]
    total = sum(len(module.text) for module in (*small, *modules))
    finished = 0
    for wave in (small, *module_waves(modules)):
        pending: list[RtlilModule] = []
        for module in wave:
            kept: ModuleSynthesis | None
            keys[module.name] = _key(module, technology, mapping, keys)
            if module.fewer:
                few, more = (done.pop(one.name) for one in module.fewer)
                kept = widen(module.name, few, more, module.lanes, module.ports)
            else:
                kept = _read(_path(keys[module.name]))
            if kept is None:
                pending.append(module)
            else:
                done[module.name] = kept
                finished += len(module.text)
        for name, result in _map_all(pending, technology, done, mapping, jobs):
            write_entry(_path(keys[name]), _to_json(result))
            done[name] = result
            finished += next(len(m.text) for m in wave if m.name == name)
            if progress is not None:
                progress(finished / total)
    return done


def synthesise_alone(
    module: RtlilModule, technology: Technology, *, mapping: str = "area"
) -> ModuleSynthesis:
    """Synthesise one module whose modules inside are black boxes: for its area, not its paths.

    Raises
    ------
    SpecError, ToolError
        As `synthesise_modules`.
    """
    check_options(mapping, 1)
    check_technology(technology)
    inside = dict.fromkeys(module.children, BLACK_BOX)
    path = _path(_key(module, technology, mapping, dict.fromkeys(inside, "black box")))
    result = _read(path)
    if result is None:
        result = map_module(module, technology, inside, mapping=mapping)
        write_entry(path, _to_json(result))
    return result


def _map_all(
    modules: Sequence[RtlilModule],
    technology: Technology,
    done: Mapping[str, ModuleSynthesis],
    mapping: str,
    jobs: int,
) -> Any:
    """Yield name and result of each module as it is ready."""
    inside = {m.name: {child: done[child] for child in m.children} for m in modules}
    if jobs == 1 or len(modules) < 2:
        for module in modules:
            yield module.name, map_module(module, technology, inside[module.name], mapping=mapping)
        return
    # spawn: a fork would copy the threads' locks of whatever the caller has loaded
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(modules)), mp_context=context) as pool:
        futures = {
            pool.submit(_map, module, technology.name, inside[module.name], mapping): module.name
            for module in sorted(modules, key=lambda m: -len(m.text))
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _map(
    module: RtlilModule,
    technology: str,
    children: Mapping[str, ModuleSynthesis],
    mapping: str,
) -> ModuleSynthesis:
    from romsim_compiler.technology_file import load_technology

    return map_module(module, load_technology(technology), children, mapping=mapping)


def _key(module: RtlilModule, technology: Technology, mapping: str, keys: Mapping[str, str]) -> str:
    facts = {
        "layout": _LAYOUT,
        "module": module.text,
        "children": [keys[child] for child in module.children],
        **({"fewer": [keys[few.name] for few in module.fewer]} if module.fewer else {}),
        "cells": timed_genlib(CellLibrary.of(technology)),
        "passes": yosys_synthesis.PASSES,
        "mapping": MAPPINGS[mapping],
        "pyosys": _pyosys_version(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _pyosys_version() -> str:
    try:
        return importlib.metadata.version("pyosys")
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _path(key: str) -> Path:
    return synthesis_folder() / f"{key}.json"


def _to_json(result: ModuleSynthesis) -> dict[str, Any]:
    return {
        "name": result.name,
        "cells": dict(result.cells),
        "memories": [asdict(memory) for memory in result.memories],
        "children": dict(result.children),
        "delays": _timing_to_json(result.delays),
        "gates": _timing_to_json(result.gates),
    }


def _timing_to_json(timing: PortTiming) -> dict[str, Any]:
    return {
        "inner": _finite(timing.inner),
        "worst": timing.worst,
        "outputs": {name: _finite(values) for name, values in timing.outputs.items()},
        "inputs": dict(timing.inputs),
        "arcs": [[i, o, delay] for (i, o), delay in timing.arcs.items()],
        "loads": dict(timing.loads),
    }


def _finite(values: Sequence[float]) -> list[float | None]:
    """JSON has no infinity: no path is null."""
    return [value if math.isfinite(value) else None for value in values]


def _infinite(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(-math.inf if value is None else value for value in values)


def _read(path: Path) -> ModuleSynthesis | None:
    try:
        values = json.loads(path.read_text())
        return ModuleSynthesis(
            name=values["name"],
            cells=values["cells"],
            memories=tuple(Memory(**memory) for memory in values["memories"]),
            children=values["children"],
            delays=_timing(values["delays"]),
            gates=_timing(values["gates"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing or damaged


def _timing(values: Mapping[str, Any]) -> PortTiming:
    return PortTiming(
        inner=_infinite(values["inner"]),
        worst=tuple((first, last) for first, last in values["worst"]),
        outputs={name: _infinite(found) for name, found in values["outputs"].items()},
        inputs=values["inputs"],
        arcs={(i, o): delay for i, o, delay in values["arcs"]},
        loads=values["loads"],
    )
