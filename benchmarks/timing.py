"""Timing-only decode of 4,096 tokens: seconds, beside Python's own start, and exactness.

``python -m benchmarks.timing``: compiles LLaMA-3-8B's shape for ``roma-7nm`` at 2 bits and two
other pairs, times ``romsim simulate --engine timing`` over 4,096 positions in a fresh process,
imports included, against ``python -c "import numpy"`` and ``python -c pass`` in the same run, and
steps every token through to compare.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import romsim
from romsim.rates import timing_model

__all__ = ["main"]

CASES = (
    ("llama-3-8b", "roma-7nm", "sym2g128"),
    ("llama-3.2-3b", "roma-7nm-int8", "int4g128"),
    ("llama-3.2-1b", "roma-7nm-g32", "int4g32"),
)

_RUN = """
import time, sys
start = time.perf_counter()
from romsim_compiler.description import Description
from romsim.rates import timing_model
description = Description.load(sys.argv[1])
cycles = timing_model(description).decode_cycles(range(4096))
print(time.perf_counter() - start, sum(cycles))
"""


def _seconds(command: list[str], repeats: int = 7) -> float:
    """Return the median wall time of a command."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> int:
    """Print one line per case."""
    bare = _seconds([sys.executable, "-c", "pass"])
    with tempfile.TemporaryDirectory() as folder:
        for model, target, weights in CASES:
            path = Path(folder) / f"{model}-{target}"
            description = romsim.compile(model, path, target=target, weights=weights, context=4096)
            whole = _seconds([sys.executable, "-c", _RUN, str(path)])
            timer = timing_model(description)
            folded = timer.decode_cycles(range(4096))
            different = sum(
                timer.run(description.decode, position).cycles != folded[position]
                for position in range(4096)
            )
            sys.stdout.write(
                f"{model} on {target}, {weights}: 4,096 tokens in {whole - bare:.3f} s beyond "
                f"Python's start of {bare:.3f} s; {different} of 4,096 tokens differ from "
                f"stepping through every instruction; {sum(folded):,} cycles\n"
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
