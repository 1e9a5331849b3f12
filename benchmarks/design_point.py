"""Seconds to evaluate a design point, beside SCALE-Sim on the same layer sizes, in one run.

A point is evaluated as a sweep would: another target every time, then area, energy and cycles at
two contexts, all layers and the LM head included. SCALE-Sim simulates the named matrices of one
layer of the same model (M = 1) on one systolic array of as many lanes, so the ratio is a lower
bound. It is no dependency of the project (and fails on NumPy 2.3 and later): give the interpreter
of an environment with ``pip install scalesim "numpy<2.3" "pandas<3"`` as ``--scalesim-python``.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from romsim.area import estimate_area
from romsim.design_point import DesignPoint
from romsim.energy import estimate_energy
from romsim_compiler.formats import WeightFormat, parse_format
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_models.errors import RomsimError
from romsim_models.shapes import SHAPES
from romsim_models.spec import ModelSpec

__all__ = ["evaluate", "main", "scalesim_seconds", "sweep_seconds", "targets"]

_CONFIG = """
[general]
run_name = decode
[architecture_presets]
ArrayHeight = 32
ArrayWidth = 32
IfmapSramSzkB = 64
FilterSramSzkB = 4096
OfmapSramSzkB = 64
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 90000000
Dataflow = ws
ReadRequestBuffer = 32
WriteRequestBuffer = 32
[layout]
IfmapCustomLayout = False
FilterCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = false
SparseRep = ellpack_block
OptimizedMapping = false
BlockSize = 8
RandomNumberGeneratorSeed = 40
[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False
"""

_RUN = """
import sys, time
from scalesim.scale_sim import scalesim
config, topology, layout, out = sys.argv[1:]
started, busy = time.perf_counter(), time.process_time()
run = scalesim(save_disk_space=True, verbose=False, config=config, topology=topology,
               layout=layout, input_type_gemm=True)
run.run_scale(top_path=out)
wall = time.perf_counter() - started
sys.stderr.write("seconds %.6f %.6f" % (wall, time.process_time() - busy))
"""


def targets(base: Target, n: int, seed: int = 1) -> Iterator[Target]:
    """Yield ``n`` variants of a target, in every resource."""
    rng = random.Random(seed)
    for _ in range(n):
        yield replace(
            base,
            array=replace(
                base.array,
                n_tiles=rng.choice([1, 2, 4, 8, 16, 32]),
                n_cells=rng.choice([4, 8, 16, 32]),
                rom_rows=rng.randrange(1 << 12, 1 << 19),
            ),
            vector=replace(base.vector, n_lanes=32 * rng.randrange(1, 33)),
            attention=replace(
                base.attention,
                sram_kib=rng.randrange(256, 16384),
                heads_parallel=rng.choice([1, 2, 3, 4]),
            ),
        )


def evaluate(spec: ModelSpec, target: Target, weights: WeightFormat) -> tuple[float, float, int]:
    """Return area in mm2, power in W and cycles of a token at 1,024, of one design point."""
    point = DesignPoint.uniform(spec, target, weights)
    area = estimate_area(target, spec=spec)
    energy = estimate_energy(point, 1024, area=area)
    (_, cycles) = point.decode_cycles([0, 1023])
    return area.total_mm2.mid, energy.power_w.mid, cycles


def sweep_seconds(spec: ModelSpec, base: Target, n: int, *, clock: Callable[[], float]) -> float:
    """Return the seconds that ``n`` design points take, the first few left out."""
    weights = parse_format("int4g32")
    for target in targets(base, 10, seed=2):
        evaluate(spec, target, weights)
    swept = list(targets(base, n))
    started = clock()
    for target in swept:
        evaluate(spec, target, weights)
    return clock() - started


def scalesim_seconds(spec: ModelSpec, python: str, matrices: Sequence[str]) -> tuple[float, float]:
    """Return the seconds, and those of the processor, of SCALE-Sim on matrices of one layer.

    Parameters
    ----------
    python
        Interpreter that has it.
    matrices
        Of ``qkv``, ``o``, ``gu`` and ``down``.

    Raises
    ------
    RomsimError
        If it is not installed for that interpreter, or fails, or a matrix is none of the four.
    """
    heads, kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    shapes = {
        "qkv": (heads + 2 * kv, spec.dim),
        "o": (spec.dim, heads),
        "gu": (2 * spec.hidden_dim, spec.dim),
        "down": (spec.dim, spec.hidden_dim),
    }
    for name in matrices:
        if name not in shapes:
            raise RomsimError(f"Matrix must be one of {', '.join(shapes)}, not {name!r}")
    rows = "".join(f"{name}, 1, {shapes[name][0]}, {shapes[name][1]},\n" for name in matrices)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "decode.cfg").write_text(_CONFIG, encoding="utf-8")
        (path / "decode.csv").write_text("Layer, M, N, K,\n" + rows, encoding="utf-8")
        (path / "layout.csv").write_text("Layer,\n", encoding="utf-8")
        names = ("decode.cfg", "decode.csv", "layout.csv", "out")
        done = subprocess.run(
            [python, "-c", _RUN, *(str(path / name) for name in names)],
            capture_output=True,
            text=True,
            check=False,
        )
    _, found, seconds = done.stderr.rpartition("seconds ")
    if done.returncode or not found:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise RomsimError(
            f"SCALE-Sim must run with {python}, but it failed ({' '.join(last)}); install it with "
            f"`pip install scalesim 'numpy<2.3' 'pandas<3'` in an environment of its own"
        )
    wall, busy = map(float, seconds.split())
    return wall, busy


def main(arguments: Sequence[str] | None = None) -> int:
    """Print seconds per point, and the ratio to SCALE-Sim where it is there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.design_point", description=__doc__)
    parser.add_argument("--points", type=int, default=10_000, help="design points of the sweep")
    parser.add_argument("--model", default="smollm2", choices=sorted(SHAPES))
    parser.add_argument("--scalesim-python", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--matrices", default="o", help="those that SCALE-Sim simulates: qkv,o,…")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else"
    )
    options = parser.parse_args(arguments)
    spec = SHAPES[options.model]
    busy = time.process_time()
    seconds = sweep_seconds(spec, load_target("rtl-1k"), options.points, clock=time.perf_counter)
    busy = time.process_time() - busy
    result: dict[str, Any] = {
        "model": spec.name,
        "points": options.points,
        "sweep_s": seconds,
        "point_s": seconds / options.points,
        "point_processor_s": busy / options.points,
    }
    try:
        matrices = options.matrices.split(",")
        peer, peer_busy = scalesim_seconds(spec, options.scalesim_python, matrices)
        result |= {
            "scalesim_matrices": matrices,
            "scalesim_s": peer,
            "scalesim_processor_s": peer_busy,
            "ratio": peer * options.points / seconds,
            "processor_ratio": peer_busy * options.points / busy,
        }
    except RomsimError as error:
        result["scalesim_missing"] = str(error)
    if options.json:
        print(json.dumps(result))
        return 0
    print(
        f"{options.points} design points of {spec.name} in {seconds:.2f} s: "
        f"{1e3 * seconds / options.points:.3f} ms a point, {1e3 * busy / options.points:.3f} ms of "
        f"the processor (area, energy, cycles at 2 contexts)"
    )
    if "ratio" in result:
        print(
            f"SCALE-Sim, {options.matrices} of one layer: {result['scalesim_s']:.2f} s, "
            f"{result['scalesim_processor_s']:.2f} s of the processor; ratio at least "
            f"{result['ratio']:,.0f} x, {result['processor_ratio']:,.0f} x of the processor's time"
        )
    else:
        print(result["scalesim_missing"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
