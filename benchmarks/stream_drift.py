"""Whether a StreamingLLM cache drifts: the same passages read early and late in a stream.

``python -m benchmarks.stream_drift build/x [--kv streaming-llm,window=252] [--times 10]``

The stream is ``--times`` as many tokens as the chip's SRAM holds in 16-bit words, and then
``--passages`` passages of as many tokens as there are slots. Each of those is scored with the
integer reference where it stands, behind everything, and by a decoder that begins anew: with the
stream's first tokens, which are its sinks, and the passage before, so that it is the first that a
full cache reads. Tokens, sinks and the text before are the same, so how hard the text is cancels,
and how well those sinks do. A third score is that of a decoder whose sinks are the first tokens of
the passage before: sinks of another text and a longer past at once.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from romsim.comparison import make_reference, reference_kv
from romsim.engines import open_source
from romsim.quality import default_text
from romsim.reference import score_window
from romsim_compiler.description import Description
from romsim_compiler.kv import KvConfig, parse_kv
from romsim_compiler.memory_map import max_context
from romsim_models.errors import SpecError

__all__ = ["Drift", "main", "measure_drift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The same tokens late in a stream and early in one."""

    kv: str
    slots: int
    capacity: int  # tokens of 16-bit words, all kept, in the chip's SRAM
    n_stream: int  # tokens of the whole stream
    n_scored: int
    early_perplexity: float
    late_perplexity: float
    change_percent: float
    error_percent: float  # standard error over tokens
    own_percent: float  # late against early with other sinks
    own_error_percent: float
    saturations: int

    def sentence(self) -> str:
        """Return the figures as one sentence."""
        return (
            f"{self.kv}: {self.n_stream} tokens, {self.n_stream / self.capacity:.1f} times the "
            f"{self.capacity} that the SRAM holds; {self.n_scored} tokens scored: perplexity "
            f"{self.late_perplexity:.3f} late, {self.early_perplexity:.3f} in the first full cache "
            f"({self.change_percent:+.2f} +- {self.error_percent:.2f} %; against sinks of the "
            f"passage's own {self.own_percent:+.2f} +- {self.own_error_percent:.2f} %); "
            f"{self.saturations} saturations"
        )


def measure_drift(
    description: Description, kv: KvConfig, tokens: Sequence[int], *, times: int, passages: int
) -> Drift:
    """Score the last passages of a stream there, and each after one passage alone.

    Raises
    ------
    SpecError
        If tokens are not dropped in that cache, or the text is too short.
    """
    if kv.retention != "stream":
        raise SpecError(f"KV retention of a stream must be 'stream', not {kv.retention!r}")
    slots = kv.held(2**30)
    words = replace(description.target, kv=parse_kv("fp16"))
    capacity = max_context(description.spec, words)
    n_stream = times * capacity + passages * slots
    if len(tokens) < n_stream:
        raise SpecError(
            f"Text must have at least {n_stream} tokens, not {len(tokens)}; give a longer one with "
            f"--text, or lower --times"
        )
    decoder = make_reference(description, open_source(description, None))
    decoder.change_kv(reference_kv(kv))
    stream = list(tokens[:n_stream])
    first = n_stream - passages * slots
    late, _, clipped = score_window(decoder, stream, first=first)
    assert decoder.position == n_stream
    scores: list[list[float]] = []
    for sinks in (stream[: kv.sinks], None):
        early: list[float] = []
        for start in range(first, n_stream, slots):
            alone = stream[start - slots : start + slots]
            if sinks is not None:
                alone[: kv.sinks] = sinks
            losses, _, clips = score_window(decoder, alone, first=slots)
            early += losses
            clipped += clips
        scores.append(early)
    same, own = (_more(late, early) for early in scores)
    n = len(late)
    return Drift(
        kv=kv.text(),
        slots=slots,
        capacity=capacity,
        n_stream=n_stream,
        n_scored=n,
        early_perplexity=math.exp(math.fsum(scores[0]) / n),
        late_perplexity=math.exp(math.fsum(late) / n),
        change_percent=same[0],
        error_percent=same[1],
        own_percent=own[0],
        own_error_percent=own[1],
        saturations=clipped,
    )


def _more(late: Sequence[float], early: Sequence[float]) -> tuple[float, float]:
    """Return by how much a perplexity is higher, and its standard error over tokens; percent."""
    more = [a - b for a, b in zip(late, early, strict=True)]
    n = len(more)
    mean = math.fsum(more) / n
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in more) / (n - 1) / n)
    return 100 * (math.exp(mean) - 1), 100 * math.exp(mean) * deviation


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("description", type=Path)
    parser.add_argument("--kv", default="streaming-llm,window=252")
    parser.add_argument("--text", type=Path, help="UTF-8 [default: the start of a novel]")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--passages", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    description = Description.load(options.description)
    text = default_text() if options.text is None else options.text.read_text(encoding="utf-8")
    tokenizer = open_source(description, None).tokenizer()
    assert tokenizer is not None
    drift = measure_drift(
        description,
        parse_kv(options.kv),
        tokenizer.encode(text, add_special=False),
        times=options.times,
        passages=options.passages,
    )
    sys.stdout.write(f"{drift.sentence()}\n")
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(drift), indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
