"""Speed of the cycle model's decoding under KV configurations, beside the plain cache.

``python -m benchmarks.kv_speed build/x [--context 512] [--configs kivi-2bit ...]``

Processor time of one thread, so that other work on the machine counts little; the fastest of the
last tokens before the context is full, since a token's work does not depend on its value.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from romsim.cycle import CycleModel
from romsim.kv_windows import with_kv
from romsim_compiler.description import Description
from romsim_compiler.kv import parse_kv

__all__ = ["main", "step_seconds"]

CONFIGS = ("fp16", "int4", "kivi-2bit", "vllm", "kvc-q", "streaming-llm", "h2o")
_LAST = 16


def step_seconds(description: Description, kv: str, context: int) -> float:
    """Return processor seconds of a decoded token when ``context`` tokens are there."""
    model = CycleModel(with_kv(description, parse_kv(kv), context=context), threads=1)
    vocabulary = description.spec.vocab_size
    tokens = [(7 * index + index * index) % vocabulary for index in range(context)]
    times = []
    for token in tokens:
        start = time.process_time()
        model.step(token)
        times.append(time.process_time() - start)
    return min(times[-_LAST:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("description", type=Path)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--configs", nargs="*", default=list(CONFIGS))
    options = parser.parse_args(arguments)
    description = Description.load(options.description)
    plain = step_seconds(description, "int8", options.context)
    sys.stdout.write(f"int8: {1000 * plain:.1f} ms a token at {options.context} tokens\n")
    for kv in options.configs:
        one = step_seconds(description, kv, options.context)
        sys.stdout.write(f"{kv}: {1000 * one:.1f} ms, {plain / one:.2f} of the plain speed\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
