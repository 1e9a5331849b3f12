from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from romsim_compiler.lora_image import LoraImage, LoraProjection
from romsim_models.errors import SpecError
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.lora_sizes import ENTRY_BITS, ENTRY_FIELDS, LoraSizes, entry_of, pack_entry

LORA = LoraSizes(max_rank=16, n_entries=4, a_words=8, b_words=8, n_cols=64, n_rows=64)
SIZES = AttentionSizes(
    n_tiles=2,
    n_lanes=32,
    word_elems=64,
    heads_parallel=1,
    attn_block=16,
    n_heads=1,
    n_kv_heads=1,
    head_dim=32,
    n_layers=1,
    context=16,
    n_inflight=1,
    broadcast_cycles=1,
    collect_cycles=1,
)


def image(*ranks: int) -> LoraImage:
    projections = tuple(
        LoraProjection(
            tensor=f"t{index}",
            operator="q",
            first_row=40 * index,
            n_rows=40,
            rank=rank,
            a_codes=np.zeros((rank, 100), np.int8),
            a_exps=np.zeros((rank, 4), np.int8),
            b_codes=np.zeros((40, rank), np.int8),
            b_exps=np.zeros((40, 1), np.int8),
            grid_a=-20 - index,
            grid_b=-10 - index,
            error=0.0,
        )
        for index, rank in enumerate(ranks)
        if rank
    )
    n_rows = 40 * len(ranks)
    return LoraImage(
        name="L0.qkv", layer=0, n_rows=n_rows, n_cols=100, ranks=ranks, projections=projections
    )


def entry(*ranks: int) -> dict[str, int]:
    return entry_of(
        image(*ranks), sizes=SIZES, lora=LORA, a_base=3, b_base=4, in_frac=22, out_frac=14
    )


@pytest.mark.parametrize("name", ["max_rank", "n_entries", "a_words", "b_words", "n_cols"])
def test_memories_have_a_size(name: str) -> None:
    values: Any = {name: 0}
    with pytest.raises(SpecError, match=f"^{name} must be at least 1, not 0$"):
        replace(LORA, **values)


def test_the_largest_rank_is_a_power_of_two() -> None:
    with pytest.raises(SpecError, match=r"^max_rank must be a power of two, not 12$"):
        replace(LORA, max_rank=12)


def test_a_row_of_b_fits_a_word() -> None:
    sentence = (
        r"^max_rank of the RTL must be at most word_elems, 64, not 128; "
        r"raise attention\.word_elems$"
    )
    with pytest.raises(SpecError, match=sentence):
        replace(LORA, max_rank=128).check_fits(SIZES)


def test_there_are_no_more_tiles_than_lanes() -> None:
    sizes = replace(SIZES, n_tiles=64, attn_block=64)
    sentence = r"^n_tiles of the RTL must be at most n_lanes, 32, with adapters, not 64$"
    with pytest.raises(SpecError, match=sentence):
        LORA.check_fits(sizes)


@pytest.mark.parametrize("rank", [1, 6, 32])
def test_ranks_that_the_lanes_cannot_serve_are_refused(rank: int) -> None:
    sentence = (
        "Adapter of 'L0.qkv' must have a largest rank that is a power of two from 2 to 16 in "
        f"RTL, not {rank}; pad A and B with zeros"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        entry(rank)


def test_an_entry_has_the_groups_loops_and_shifts() -> None:
    values = entry(4, 0, 8)
    assert values["rank_sum"] == 12
    assert values["last_row"] == 5  # 12 rows on 2 tiles
    assert values["last_word"] == 1  # 100 columns
    assert values["slot_log2"] == 3
    assert values["last_step"] == 7  # 120 rows, 2 tiles of 8
    assert (values["offset1"], values["first1"]) == (4, 80)
    assert values["offset2"] > 12
    assert values["first2"] > 120
    assert (values["out_a0"], values["out_b1"]) == (22 - 16 + 20, 16 - 14 + 12)


def test_an_entry_is_packed_in_the_fields_order() -> None:
    values = entry(4, 0, 8)
    word, at = pack_entry(values), 0
    for name, (bits, is_signed) in ENTRY_FIELDS.items():
        field = word >> at & ((1 << bits) - 1)
        if is_signed and field >> (bits - 1):
            field -= 1 << bits
        assert field == values.get(name, 0), name
        at += bits
    assert at == ENTRY_BITS


def test_a_field_that_does_not_fit_is_refused() -> None:
    sentence = r"^Adapter table field 'grid_a0' must be from -256 to 255, not 256$"
    with pytest.raises(SpecError, match=sentence):
        pack_entry({"grid_a0": 256})
