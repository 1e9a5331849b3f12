"""Rows of the KV-cache survey that are about the machine: heads, banks, sums, ternary weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import romsim
from romsim.comparison import compare_values, make_reference
from romsim.cycle import CycleModel
from romsim.cycle.kv_reads import kv_reads, read_conflicts
from romsim.cycle.kv_rows import PagePool, RowMap
from romsim.kv_room import attention_macs
from romsim.reference.integer_matrix import whole_matrix
from romsim.reference.matvec import Linear
from romsim.reference.primitives import Saturation, quantise
from romsim_compiler.description import Description
from romsim_compiler.formats import parse_format
from romsim_compiler.memory_map import kv_bytes_per_token
from romsim_compiler.quantize import quantize_tensor
from romsim_compiler.rom_encodings import ENCODINGS, encode
from romsim_models.registry import open_model
from romsim_models.shapes import SHAPES
from romsim_models.spec import ModelSpec
from tests.models.hf_files import config_with, weights_of, write_model
from tests.romsim.kv_chips import CONFIGS, Recorded, text, with_kv

REPEATABLE = settings(deadline=None, derandomize=True, database=None, max_examples=25)


@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_t1_02_heads_share_keys_and_values_by_groups(n_kv_heads: int, tmp_path: Path) -> None:
    """MHA, GQA and MQA of one model; query head h reads KV head h // g."""
    spec = ModelSpec(
        name="heads", arch="llama", dim=64, n_layers=1, n_heads=4, n_kv_heads=n_kv_heads,
        head_dim=32, hidden_dim=96, vocab_size=40, norm_eps=2.0**-17, rope_theta=10000.0,
        max_seq_len=64, tie_embeddings=True,
    )  # fmt: skip
    config = config_with(num_attention_heads=4, num_key_value_heads=n_kv_heads)
    folder = write_model(tmp_path / "model", config, weights_of(spec))
    chip = romsim.compile(
        folder, tmp_path / "chip", target="small", quantize=["*=int4g32"], context=32
    )
    group = 4 // n_kv_heads
    assert kv_bytes_per_token(chip.spec, 16) * group == kv_bytes_per_token(
        replace(chip.spec, n_kv_heads=4), 16
    )
    tokens = [int(t) for t in np.random.default_rng(0).integers(3, 40, 20)]
    done = compare_values(chip, open_model(folder), tokens, n_new=4)
    assert done.passed
    seen = Recorded()
    model = CycleModel(chip, threads=1, record=seen)
    for token in tokens:
        model.step(token)
    # Attention once more in float64, from the words that were compared above.
    keys, values = (
        np.stack(
            [
                words(seen, name, position, 32).reshape(n_kv_heads, 32)
                for position in range(len(tokens))
            ]
        )
        for name in ("k", "v")
    )
    query = words(seen, "q", len(tokens) - 1, 32).reshape(4, 32)
    found = seen.values["L0.attn", len(tokens) - 1].astype(float).reshape(4, 32) * 2.0**-16
    for head in range(4):
        scores = np.exp2(keys[:, head // group] @ query[head])
        expected = scores @ values[:, head // group] / scores.sum()
        assert np.abs(found[head] - expected).max() < 2e-3 * np.abs(values).max()


def words(seen: Recorded, name: str, position: int, block: int) -> np.ndarray:
    """MXINT8 words of frac 16 as numbers."""
    codes = seen.values[f"L0.{name}.codes", position].astype(float).reshape(-1, block)
    shifts = seen.values[f"L0.{name}.shifts", position].astype(float).reshape(-1, 1)
    return codes * 2.0 ** (shifts - 16)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("n_tiles", [4, 16, 64])
def test_t1_05_no_two_reads_meet_in_a_bank(head_dim: int, block: int, n_tiles: int) -> None:
    """Whatever free pages are handed out, pages of the right colour keep each slot in its tile."""
    n_pages = 16
    colours = max(1, n_tiles // block)
    order = [int(page) for page in np.random.default_rng(block).permutation(n_pages)]
    rows = RowMap(
        n_pages * block, block=block, pool=PagePool(n_pages, n_colours=colours, order=order)
    )
    rows.reach(n_pages * block - 1)
    assert len(set(rows.rows.tolist())) == n_pages * block
    sizes = {"attn_block": 64, "n_tiles": n_tiles, "n_words": head_dim // 32}
    assert read_conflicts(rows.rows, **sizes) == 0
    # The counter counts: without colours pages put two slots of a step into one tile.
    if colours > 1:
        wrong = RowMap(n_pages * block, block=block, pool=PagePool(n_pages, order=order))
        wrong.reach(n_pages * block - 1)
        assert read_conflicts(wrong.rows, **sizes) > 0
    same = np.zeros(32, np.int64)
    assert read_conflicts(same, **sizes) == (32 - -(-32 // n_tiles)) * head_dim // 32


@pytest.mark.parametrize("kv", [kv for kv in CONFIGS if "block" in kv or "h2o" in kv])
def test_t1_05_every_layout_reads_without_conflicts_at_every_step(
    kv: str, tiny: Description
) -> None:
    chip = with_kv(tiny, kv)
    model = CycleModel(chip, threads=1)
    for step, token in enumerate(text(40)):
        model.step(token)
        reads = kv_reads(model)
        assert reads.conflicts == 0
        assert reads.words == chip.target.kv.held(step + 1) * chip.spec.n_kv_heads


def test_t1_17_a_step_multiplies_once_for_each_token_that_is_kept(tiny: Description) -> None:
    model = CycleModel(tiny, threads=1)
    total = 0
    for step, token in enumerate(text(24), 1):
        model.step(token)
        made = kv_reads(model).multiplications
        assert made == attention_macs(tiny.spec, step)
        total += made
        assert attention_macs(tiny.spec, step, cached=False) == total
    windowed = CycleModel(with_kv(tiny, "streaming-llm,sinks=2,window=6"), threads=1)
    for token in text(24):
        windowed.step(token)
    assert kv_reads(windowed).multiplications == attention_macs(tiny.spec, 8)


@REPEATABLE
@given(
    n_tokens=st.integers(1, 70),
    cuts=st.sets(st.integers(1, 69)),
    seed=st.integers(0, 999),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_t1_07_partial_results_merge_to_the_dense_softmax(
    n_tokens: int, cuts: set[int], seed: int, spread: float
) -> None:
    """The recurrence in float64, over any partition of the tokens."""
    rng = np.random.default_rng(seed)
    scores, values = rng.normal(0, spread, n_tokens), rng.normal(0, 1, (n_tokens, 8))
    m, mass, o = -np.inf, 0.0, np.zeros(8)
    for part in np.split(np.arange(n_tokens), sorted(cut for cut in cuts if cut < n_tokens)):
        top = scores[part].max()
        p = np.exp2(scores[part] - top)
        joined = max(m, top)
        mass = mass * np.exp2(m - joined) + p.sum() * np.exp2(top - joined)
        o = o * np.exp2(m - joined) + p @ values[part] * np.exp2(top - joined)
        m = joined
    dense = np.exp2(scores - scores.max())
    assert np.abs(o / mass - dense @ values / dense.sum()).max() <= 1e-12


@pytest.mark.parametrize("attn_block", [1, 4, 32])
def test_t1_07_the_chips_blocks_give_the_dense_softmax_but_for_their_words(
    attn_block: int, tiny: Description
) -> None:
    """Blocks of any length: the same attention to the numerators' 15 bits."""
    numerics = replace(tiny.numerics, attn_block=attn_block)
    chip = Description(tiny.path, {**tiny.manifest, "numerics": numerics.to_json()})
    decoder = make_reference(chip, open_model("tiny-int4"))
    seen: dict[str, np.ndarray] = {}
    decoder.forward(text(50), record=lambda name, position, values: seen.update({name: values}))
    spec = chip.spec

    def numbers(name: str, heads: int) -> np.ndarray:
        codes = seen[f"L0.{name}.codes"].astype(float).reshape(50, heads, -1, 32)
        shifts = seen[f"L0.{name}.shifts"].astype(float).reshape(50, heads, -1, 1)
        return (codes * 2.0 ** (shifts - 16)).reshape(50, heads, -1)

    query, keys = numbers("q", spec.n_heads), numbers("k", spec.n_kv_heads)
    values = numbers("v", spec.n_kv_heads)
    found = seen["L0.attn"].astype(float).reshape(50, spec.n_heads, -1) * 2.0**-16
    for head in range(spec.n_heads):
        kv = head // spec.n_groups
        p = np.exp2(query[:, head] @ keys[:, kv].T) * np.tri(50)
        expected = p @ values[:, kv] / p.sum(axis=1, keepdims=True)
        assert np.abs(found[:, head] - expected).max() < 2e-3 * np.abs(values).max()


def test_t1_15_gaussian_weights_made_ternary_have_65_5_percent_zero_bits() -> None:
    """Absmean leaves 31 % of the weights zero; a sign takes two bits of which one is set."""
    values = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    tensor = quantize_tensor("w", values, parse_format("ternary"))
    encoding = next(e for e in ENCODINGS if e.kind == "ternary")
    zero_weights = float((tensor.codes == tensor.fmt.offset).mean())
    bits = encode(tensor.codes, encoding)
    zero_bits = 1 - float(bits.mean())
    assert zero_bits == pytest.approx((1 + zero_weights) / 2, abs=1e-12)
    assert zero_weights == pytest.approx(0.310, abs=0.003)
    assert zero_bits == pytest.approx(0.655, abs=0.0015)
    assert kv_bytes_per_token(SHAPES["bitnet-2b-4t"], 16) == 75 * 1024


@REPEATABLE
@given(seed=st.integers(0, 999), size=st.sampled_from([1, 40, 2.0**20]))
def test_t1_16_ternary_products_are_additions_and_subtractions(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(-1, 2, (6, 64)).astype(np.int16)
    x = torch.from_numpy(np.rint(rng.normal(0, size, (3, 64))))
    coded = quantise(x, block=32, frac=16)
    linear = Linear(whole_matrix("w", weights, 1, 0), grid=0, block=32)
    clips = Saturation()
    found = linear(coded, frac=16, saturation=clips)
    seen = coded.codes.to(torch.int64) << coded.element_shifts().to(torch.int64)
    for token in range(3):
        for row in range(6):
            total = 0
            for weight, value in zip(weights[row].tolist(), seen[token].tolist(), strict=True):
                if weight == 1:
                    total += value
                elif weight == -1:
                    total -= value
            assert int(found[token, row]) == total
    assert clips.count == 0
