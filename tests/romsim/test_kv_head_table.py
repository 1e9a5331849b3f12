"""T2-02, KVC-Q: precision by head as well as by recency and importance."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from romsim.comparison import compare_values
from romsim_compiler.kv import parse_kv
from romsim_compiler.kv_heads import choose_heads, score_losses
from romsim_compiler.kv_sram import check_kv, element_bits, model_bits, sequence_bits, stored_bits
from romsim_compiler.pipeline import compile_model
from romsim_compiler.target_file import load_target
from romsim_models.errors import SpecError
from romsim_models.registry import open_model
from romsim_models.shapes import TINY
from tests.romsim.kv_chips import SPEC, logits_of, text, with_kv
from tests.tiny_chips import compile_tiny


def test_t2_02_bits_are_exact_with_a_table_of_heads() -> None:
    """Recency, importance and head: average bits are a function of (W, H, widths, table)."""
    spec = replace(SPEC, n_layers=3)  # of two KV heads of 32 elements
    plain = parse_kv("kvc-q,heavy=5,window=3")
    some = parse_kv("kvc-q,heavy=5,window=3,head_table=0.1+2.0")
    asked = parse_kv("kvc-q,heavy=5,window=3,wide_heads=2")
    for n_tokens in (8, 9, 100):
        narrow = max(0, n_tokens - 8)
        extra = 2 * narrow * (4 + 4 - 2 - 2) * 32  # two heads, two bits more a code
        assert model_bits(plain, spec, n_tokens) == 6 * stored_bits(plain, 32, n_tokens)
        for kv in (some, asked):
            assert model_bits(kv, spec, n_tokens) == model_bits(plain, spec, n_tokens) + extra
    assert element_bits(plain, spec) == 3
    assert element_bits(some, spec) == element_bits(asked, spec) == (4 * 3 + 2 * 5) / 6
    target = load_target("small")
    more = [
        sequence_bits(spec, replace(target, kv=kv), 100)
        - sequence_bits(spec, replace(target, kv=plain), 100)
        for kv in (some, asked)
    ]
    narrow = 100 - 5 - 3 - 1 - (target.schedule.n_inflight - 1)
    assert more == [2 * narrow * 4 * 32] * 2


def test_t2_02_the_heads_whose_scores_suffer_most_are_chosen() -> None:
    rng = np.random.default_rng(3)
    queries = [rng.normal(size=(20, 4, 32)) for _ in range(2)]
    keys = [rng.normal(size=(20, 2, 32)) for _ in range(2)]
    keys[1][:, 0] *= 3  # errors grow with the keys
    queries[0][:, 2:] *= 2  # and count as much as they are asked for
    kv = parse_kv("kvc-q,wide_heads=2")
    losses = score_losses(queries, keys, kv)
    assert losses.shape == (2, 2)
    assert losses[1, 0] > losses[0, 1] > 2 * max(losses[0, 0], losses[1, 1])
    assert choose_heads(losses, kv).head_table == ((0, 1), (1, 0))
    assert choose_heads(np.ones((2, 2)), kv).head_table == ((0, 0), (0, 1))
    exact = [np.round(key * 0) for key in keys]  # a group of one value is exact
    assert not score_losses(queries, exact, kv).any()


def test_t2_02_compiled_heads_are_in_the_description_and_in_both_machines(tmp_path: Path) -> None:
    chip = compile_tiny("tiny-int4", tmp_path / "chip", kv="kvc-q,heavy=4,window=3,wide_heads=2")
    kv = chip.target.kv
    assert len(kv.head_table) == 2
    again = compile_tiny("tiny-int4", tmp_path / "again", kv="kvc-q,heavy=4,window=3,wide_heads=2")
    assert again.target.kv == kv
    done = compare_values(chip, open_model("tiny-int4"), text(30), n_new=4)
    assert done.passed
    # another table gives other logits, of which both machines know
    others = [(layer, head) for layer in range(2) for head in range(2)]
    rest = "+".join(f"{n}.{h}" for n, h in others if (n, h) not in kv.head_table)
    turned = with_kv(chip, f"kvc-q,heavy=4,window=3,head_table={rest}")
    assert compare_values(turned, open_model("tiny-int4"), text(30), n_new=4).passed
    assert (logits_of(turned, text(30)) != logits_of(with_kv(chip, kv.text()), text(30))).any()


def test_t2_02_heads_must_be_chosen_and_be_the_models(tmp_path: Path) -> None:
    kv = parse_kv("kvc-q,wide_heads=2")
    target = replace(load_target("small"), kv=kv)
    sentence = (
        "kv.head_table of model 'tiny-int4' must say which 2 KV heads have wide codes, not be left "
        "out; choose them with romsim_compiler.kv_heads"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        compile_model(open_model("tiny-int4"), target, tmp_path / "chip")
    for text_of, found in (("head_table=1.1+2.0", "2.0"), ("wide_heads=5", "5")):
        other = replace(target, kv=parse_kv(f"kvc-q,{text_of}"))
        sentence = (
            f"kv.{text_of.split('=')[0]} of model 'tiny-int4' must be among its 2 layers of 2 KV "
            f"heads, not {found}"
        )
        with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
            check_kv(TINY["tiny-int4"], other)
