"""Perplexity of the chip's integer arithmetic beside the float decoder, on two natural texts.

``python -m benchmarks.perplexity build/x [--tokens 4096] [--window 512] [--json FILE]``

Both decoders read the same dequantised weights; the integer reference takes the formats, grids and
block sizes of the description, and equals the cycle model value for value (``romsim verify``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.corpora import two_texts
from romsim.comparison import make_reference
from romsim.engines import open_source
from romsim.quality import measure_quality
from romsim_compiler.description import Description
from romsim_models.reference import FloatDecoder

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line per text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("description", type=Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--skip", type=int, default=20_000, help="characters left out at the start")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    description = Description.load(options.description)
    checkpoint = open_source(description, None)
    tokenizer = checkpoint.tokenizer()
    assert tokenizer is not None
    first, second, note = two_texts()
    if note:
        sys.stdout.write(f"{note}\n")
    float_decoder = FloatDecoder(checkpoint)
    decoder = make_reference(description, checkpoint)
    results: dict[str, Any] = {}
    for corpus in (first, second):
        text = corpus.text[options.skip : options.skip + 8 * options.tokens]
        tokens = tokenizer.encode(text, add_special=False)[: options.tokens]
        n_bytes = len(tokenizer.decode(tokens).encode())
        quality = measure_quality(
            float_decoder, decoder, tokens, n_bytes=n_bytes, window=options.window
        )
        results[corpus.name] = quality.to_json()
        sys.stdout.write(f"{corpus.name}: {quality.sentence()}\n")
        sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
