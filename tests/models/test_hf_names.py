from __future__ import annotations

import numpy as np
import pytest

from romsim_models.hf_names import canonical_name, huggingface_name, interleave_rotary_rows
from romsim_models.shapes import SHAPES
from romsim_models.tensors import expected_shapes


@pytest.mark.parametrize("name", ["llama-3-8b", "bitnet-2b-4t"])
def test_names_go_there_and_back(name: str) -> None:
    for ours in expected_shapes(SHAPES[name]):
        theirs = huggingface_name(ours)
        assert theirs != ours
        assert canonical_name(theirs) == ours


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.qkv_proj.weight",
        "layers.0.self_attn.q_proj.weight",
        "model.layers.x.mlp.up_proj.weight",
        "model.embed_positions.weight",
    ],
)
def test_other_names_have_no_canonical_name(name: str) -> None:
    assert canonical_name(name) is None
    assert huggingface_name(name) == name


def test_rows_are_interleaved_as_documented() -> None:
    n_heads, head_dim = 3, 8
    half = head_dim // 2
    rows = np.arange(n_heads * head_dim, dtype=np.float32)[:, None] * [1, 100]
    ours = interleave_rotary_rows(rows.astype(np.float32), head_dim)
    for head in range(n_heads):
        for pair in range(half):
            for side in range(2):
                canonical = head * head_dim + 2 * pair + side
                theirs = head * head_dim + side * half + pair
                np.testing.assert_array_equal(ours[canonical], rows[theirs])
