"""The README's picture: tokens/s against context, and where a token's time goes.

``python reports/readme_picture.py``: needs no weights; same input, same bytes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

import romsim
from romsim.rates import decode_rates
from romsim.timeline import timeline_rows
from romsim_compiler.description import Description

OUT = Path(__file__).resolve().parent.parent / "docs" / "img" / "token.svg"
CASES = (
    ("llama-3.2-3b", "roma-7nm", "sym4g128", "LLaMA-3.2-3B, 4 bits, roma-7nm"),
    ("llama-3-8b", "roma-7nm", "sym2g128", "LLaMA-3-8B, 2 bits, roma-7nm"),
    ("llama-3.2-1b", "roma-7nm-g32", "int4g32", "LLaMA-3.2-1B, 4 bits, roma-7nm-g32"),
)
KINDS = {
    "matvec": "matrices",
    "attn": "attention",
    "norm": "norms",
    "attn_out": "attention output",
    "rope": "rotary, KV",
    "glu": "activation",
    "resid": "residual",
}


def _shares(description: Description, position: int) -> dict[str, int]:
    """Return a layer's cycles by kind of instruction; adapters off, so units never overlap."""
    shares: dict[str, int] = {}
    for row in timeline_rows(description, position):
        if row["layer"] == 1 and row["op"] in KINDS:
            kind = KINDS[str(row["op"])]
            shares[kind] = shares.get(kind, 0) + int(str(row["cycles"]))
    return shares


def main() -> int:
    """Write the picture."""
    plt.rcParams.update(
        {
            "svg.hashsalt": "romsim",
            "svg.fonttype": "none",
            "font.size": 9,
            "font.family": "sans-serif",
        }
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
    names: list[str] = []
    bottoms: dict[str, list[int]] = {kind: [] for kind in KINDS.values()}
    with tempfile.TemporaryDirectory() as folder:
        for model, target, weights, label in CASES:
            description = romsim.compile(
                model, Path(folder) / model, target=target, weights=weights, context=4096
            )
            rows = decode_rates(description, list(range(0, 4096, 32)))
            left.plot(
                [r["context"] for r in rows], [r["tokens_per_s"] / 1e3 for r in rows], label=label
            )
            names.append(label.split(",")[0])
            shares = _shares(description, 1024)
            for kind in KINDS.values():
                bottoms[kind].append(shares.get(kind, 0))
    left.set(xlabel="tokens in the KV cache", ylabel="thousand tokens/s, one stream", ylim=(0, 92))
    left.grid(alpha=0.3)
    left.legend(frameon=False)
    start = [0] * len(names)
    for kind, values in bottoms.items():
        right.barh(names, values, left=start, label=kind)
        start = [a + b for a, b in zip(start, values, strict=True)]
    right.set(xlabel="cycles of one layer at 1,024 tokens")
    right.invert_yaxis()
    right.legend(frameon=False, ncols=2, fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, metadata={"Date": None, "Creator": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
