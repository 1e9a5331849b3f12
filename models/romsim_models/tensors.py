"""Canonical tensor names of a `ModelSpec`, their shapes, and which are matrices.

The names are GGUF's. Rows of ``attn_q`` and ``attn_k`` are in interleaved rotary order: elements 2i
and 2i+1 of a head are one pair, as GGUF's ``llama`` architecture ships them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from romsim_models.spec import ModelSpec

__all__ = [
    "EMBEDDING",
    "LM_HEAD",
    "OUTPUT_NORM",
    "PROJECTIONS",
    "expected_shapes",
    "layer_tensor",
    "lm_head_name",
    "n_parameters",
    "projection_shapes",
]

EMBEDDING = "token_embd.weight"
LM_HEAD = "output.weight"
OUTPUT_NORM = "output_norm.weight"

# The seven matrices of a block, in the order in which a token passes them.
PROJECTIONS = (
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)


def layer_tensor(layer: int, part: str) -> str:
    """Name of one tensor of one block, for example ``blk.3.attn_q.weight``."""
    return f"blk.{layer}.{part}.weight"


def lm_head_name(spec: ModelSpec) -> str:
    """Name of the tensor that serves as LM head: the embedding where the two are tied."""
    return EMBEDDING if spec.tie_embeddings else LM_HEAD


def projection_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """Shapes (n_rows, n_cols) = (outputs, inputs) of the seven matrices of a block."""
    return {
        "attn_q": (spec.q_dim, spec.dim),
        "attn_k": (spec.kv_dim, spec.dim),
        "attn_v": (spec.kv_dim, spec.dim),
        "attn_output": (spec.dim, spec.q_dim),
        "ffn_gate": (spec.hidden_dim, spec.dim),
        "ffn_up": (spec.hidden_dim, spec.dim),
        "ffn_down": (spec.dim, spec.hidden_dim),
    }


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this specification has, with its shape, in model order.

    Returns
    -------
    dict
        Canonical name to shape: (n_rows, n_cols) of a matrix, (n,) of a norm.
    """
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, spec.dim)}
    matrices = projection_shapes(spec)
    for layer in range(spec.n_layers):
        block: dict[str, tuple[int, ...]] = {"attn_norm": (spec.dim,)}
        for part in PROJECTIONS[:3]:
            block[part] = matrices[part]
        if spec.has_sub_norms:
            block["attn_sub_norm"] = (spec.q_dim,)
        block["attn_output"] = matrices["attn_output"]
        block["ffn_norm"] = (spec.dim,)
        block["ffn_gate"] = matrices["ffn_gate"]
        block["ffn_up"] = matrices["ffn_up"]
        if spec.has_sub_norms:
            block["ffn_sub_norm"] = (spec.hidden_dim,)
        block["ffn_down"] = matrices["ffn_down"]
        shapes.update({layer_tensor(layer, part): shape for part, shape in block.items()})
    shapes[OUTPUT_NORM] = (spec.dim,)
    if not spec.tie_embeddings:
        shapes[LM_HEAD] = (spec.vocab_size, spec.dim)
    return shapes


def n_parameters(spec: ModelSpec) -> int:
    """Count the weights of a specification, a tied embedding once."""
    return sum(math.prod(shape) for shape in expected_shapes(spec).values())
