# amaranth: UnusedElaboratable=no
"""KV caches other than the plain one in RTL: equal to the cycle model in writes and cycles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from romsim.rtl_report import RtlReport
from romsim.verify_rtl import RtlPrompt, compare_rtl_prompts
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.top import Top
from tests.romsim.kv_chips import text, with_kv
from tests.rtl.sweep_chips import SweepChip, compile_chip

OPTIONS = BuildOptions(opt="-O0", trace=True)
SIZES: dict[str, Any] = {
    "n_tiles": 4,
    "n_cells": 1,
    "width": "32/32",
    "word_elems": 32,
    "heads_parallel": 1,
    "attn_block": 8,
    "n_inflight": 1,
    "hop": 1,
    "codes": "int4 on 4",
    "group": 32,
    "wide": "none",
    "family": "llama",
    "heads": "4/2",
    "head_dim": 32,
    "dim": 64,
    "hidden_dim": 64,
    "vocab_size": 64,
    "is_tied": True,
    "n_layers": 2,
    "context": 96,
    "rank": 0,
}
"""Four tiles, two queries for each of two KV heads, attention in blocks of 8 slots."""


def make_chip(folder: Path, kv: str, *, context: int = 96, **sizes: Any) -> Description:
    """A chip of random weights with a KV cache."""
    plain = compile_chip(SweepChip(**{**SIZES, **sizes}), folder)
    return with_kv(plain, kv, context=context)


def prompts(*lengths: tuple[int, int]) -> list[RtlPrompt]:
    """Prompts and numbers of tokens decoded after each."""
    return [
        RtlPrompt(tokens=tuple(token % 64 for token in text(n, seed=seed)), n_new=new)
        for seed, (n, new) in enumerate(lengths)
    ]


def run(chip: Description, *lengths: tuple[int, int]) -> RtlReport:
    """Compare, from memories that hold anything."""
    return compare_rtl_prompts(chip, prompts(*lengths), options=OPTIONS, sram_seed=5)


@pytest.mark.slow
@pytest.mark.verilator
@pytest.mark.parametrize(
    ("window", "sinks", "sizes"),
    [
        (7, 0, {}),
        (12, 0, {"head_dim": 64, "heads": "3/1", "width": "32/64", "n_layers": 1}),
        (12, 3, {}),
        (9, 9, {"head_dim": 96, "heads": "3/1", "width": "32/64", "n_layers": 1, "hop": 3}),
        (6, 4, {"n_tiles": 1, "heads_parallel": 3, "word_elems": 64, "n_layers": 1}),
    ],
)
def test_a_window_equals_the_cycle_model_over_many_windows(
    tmp_path: Path, window: int, sinks: int, sizes: dict[str, Any]
) -> None:
    """Windows and sinks that divide neither tiles nor blocks; a beat of several heads."""
    chip = make_chip(tmp_path, f"streaming-llm,sinks={sinks},window={window},codec=int8", **sizes)
    assert 5 * (sinks + window) <= 3 + 87
    report = run(chip, (3, 87), (sinks + window + 2, 3), (1, 1))
    assert report.first is None, report.first.sentence()
    assert report.by_memory["K"] > 0


@pytest.mark.parametrize(
    ("kv", "sentence"),
    [
        (
            "kvc-q",
            "kv.codec of an RTL target must be one of int8, int4, int2, fp16, not 'tiered', for "
            "which there is no hardware yet; compile with --kv codec=int8",
        ),
        (
            "h2o,heavy=4,window=4,codec=int8",
            "kv.retention of an RTL target must be one of all, stream, not 'h2o', for which there "
            "is no hardware yet; compile with --kv retention=all",
        ),
        (
            "int8,layout=slotmap",
            "kv.layout of an RTL target must be one of contiguous, ring, paged, not 'slotmap', for "
            "which there is no hardware yet; compile with --kv layout=contiguous",
        ),
    ],
)
def test_what_has_no_hardware_is_refused_by_its_axis(
    tmp_path: Path, kv: str, sentence: str
) -> None:
    chip = make_chip(tmp_path, kv)
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        Top(description=chip)
