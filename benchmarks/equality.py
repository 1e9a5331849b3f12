"""Cycle model against integer reference on whole prompts: every value, at full size.

``python -m benchmarks.equality build/x [--json FILE]``: at least 64 decoded tokens after each of
four prompts, one of them of 1,024 tokens or more; 0 mismatches wanted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.corpora import two_texts
from romsim.comparison import compare_values
from romsim.engines import open_source
from romsim_compiler.description import Description

__all__ = ["main"]

N_NEW = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per prompt; fail on any mismatch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("description", type=Path)
    parser.add_argument("--long", type=int, default=1024, help="tokens of the long prompt")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # two threads that wait for each other lose to one on a busy machine
    description = Description.load(options.description)
    checkpoint = open_source(description, None)
    tokenizer = checkpoint.tokenizer()
    assert tokenizer is not None
    first, second, _ = two_texts()
    prompts = {
        "story": tokenizer.encode("Once upon a time, there was a little girl who"),
        "chat": tokenizer.encode_chat("What is a read-only memory?"),
        second.name: tokenizer.encode(second.text[50_000:52_000])[:256],
        first.name: tokenizer.encode(first.text[20_000 : 20_000 + 8 * options.long])[
            : options.long
        ],
    }
    results: dict[str, Any] = {}
    failed = False
    for name, prompt in prompts.items():
        started = time.perf_counter()
        report = compare_values(description, checkpoint, prompt, n_new=N_NEW)
        results[name] = {"prompt_tokens": len(prompt), **report.to_json()}
        failed |= not report.passed
        sys.stdout.write(
            f"{name}: {len(prompt)} + {N_NEW} tokens, {report.n_values:,} values, "
            f"{report.n_mismatches} mismatches, {report.saturations} saturations, "
            f"{time.perf_counter() - started:.0f} s\n"
        )
        if report.first is not None:
            sys.stdout.write(f"  first: {report.first.sentence()}\n")
        sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
