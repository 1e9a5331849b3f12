from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from romsim_compiler.kv import DEFAULT_KV
from romsim_models.errors import SpecError
from romsim_rtl.attention_sizes import ATTN_CYCLES, BLOCK_CYCLES, AttentionSizes

GOOD = AttentionSizes(
    n_tiles=4,
    n_lanes=32,
    word_elems=64,
    heads_parallel=2,
    attn_block=16,
    n_heads=6,
    n_kv_heads=2,
    head_dim=96,
    n_layers=3,
    context=50,
    n_inflight=2,
    broadcast_cycles=1,
    collect_cycles=1,
)

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"n_tiles": 3}, "n_tiles of the RTL must be a power of two of at least 1, not 3"),
    ({"n_lanes": 16}, "n_lanes of the RTL must be a power of two of at least 32, not 16"),
    ({"word_elems": 96}, "word_elems of the RTL must be a power of two of at least 32, not 96"),
    ({"attn_block": 24}, "attn_block of the RTL must be a power of two of at least 1, not 24"),
    ({"attn_block": 2}, "attn_block of the RTL must be a multiple of the 4 tiles, not 2"),
    ({"head_dim": 48}, "head_dim of the RTL must be a multiple of 32, not 48"),
    ({"n_heads": 5}, "n_heads must be a multiple of the 2 KV heads, not 5"),
    ({"context": 65537}, "context of the RTL must be from 1 to 65536, not 65537"),
    ({"heads_parallel": 0}, "heads_parallel must be at least 1, not 0"),
    ({"n_layers": 0}, "n_layers must be at least 1, not 0"),
    ({"n_inflight": 0}, "n_inflight must be at least 1, not 0"),
    ({"broadcast_cycles": -1}, "broadcast_cycles must be at least 0, not -1"),
    ({"collect_cycles": -1}, "collect_cycles must be at least 0, not -1"),
    ({"linear_frac": 8}, "linear_frac of the RTL must be from 9 to 24, not 8"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG, ids=lambda value: str(value)[:40])
def test_impossible_sizes_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        replace(GOOD, **change)


def test_derived_sizes() -> None:
    assert (GOOD.row_words, GOOD.last_blocks, GOOD.head_blocks) == (2, 1, 3)
    assert (GOOD.heads_per_kv, GOOD.n_passes, GOOD.last_lanes, GOOD.n_entries) == (3, 2, 1, 4)
    assert (GOOD.tile_tokens, GOOD.block_slots, GOOD.kv_row) == (13, 4, 26)
    assert (GOOD.layer_words, GOOD.bank_words) == (52, 156)
    assert (GOOD.beats, GOOD.n_levels) == (18, 3)
    assert [GOOD.place_head(head) for head in range(6)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 0),
        (2, 1),
        (3, 0),
    ]


def test_a_beat_may_meet_a_word_only_if_all_is_aligned() -> None:
    assert GOOD.is_aligned
    wide = replace(GOOD, n_lanes=64)
    assert not wide.is_aligned  # heads of 3 blocks, words of 2
    assert wide.n_banks == 2
    assert replace(wide, head_dim=64).is_aligned
    assert not replace(wide, head_dim=64, n_lanes=128).is_aligned


class FakeTarget:
    """The parts of a target that the sizes come from."""

    name = "chip"

    def __init__(self, attn: int, block: int) -> None:
        self.array = self.vector = self.attention = self.network = GOOD
        self.kv = DEFAULT_KV
        self.schedule = type("S", (), {"n_inflight": GOOD.n_inflight, "n_slots": 1})
        self.latency = type("L", (), {"attn": attn, "block": block})


def test_sizes_come_from_target_and_model() -> None:
    target: Any = FakeTarget(ATTN_CYCLES, BLOCK_CYCLES)
    spec: Any = GOOD
    assert AttentionSizes.of(target, spec, context=50) == GOOD


def test_a_target_with_other_depths_is_refused() -> None:
    spec: Any = GOOD
    for values, name, depth, got in (
        ((ATTN_CYCLES + 1, BLOCK_CYCLES), "attn", ATTN_CYCLES, ATTN_CYCLES + 1),
        ((ATTN_CYCLES, BLOCK_CYCLES + 1), "block", BLOCK_CYCLES, BLOCK_CYCLES + 1),
    ):
        target: Any = FakeTarget(*values)
        sentence = f"latency.{name} of target 'chip' must be {depth}, the RTL's depth, not {got}"
        with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
            AttentionSizes.of(target, spec, context=50)
