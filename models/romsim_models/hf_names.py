"""Hugging Face's tensor names, and the order of rotary rows.

transformers keeps the rows of a query or key head as two halves: element i turns with element
i + head_dim/2. Here, as in GGUF and in Meta's own files, the two elements of a pair are neighbours.
So with ``half = head_dim / 2`` the canonical row ``h * head_dim + 2 * i + s`` (head h, pair i,
side s = 0 or 1) is Hugging Face's row ``h * head_dim + s * half + i``. This permutes the rows of
``q_proj`` and ``k_proj`` alone; scores are sums over a head, so no result changes.

Source: transformers ``modeling_llama.py::rotate_half``; llama.cpp ``convert_hf_to_gguf.py``
(``LlamaModel.permute``) permutes in the same way.
"""

from __future__ import annotations

import re
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from romsim_models.encoded import EncodedTensor, FloatTensor, Tensor
from romsim_models.tensors import EMBEDDING, LM_HEAD, OUTPUT_NORM

__all__ = [
    "HF_PROJECTIONS",
    "ROTARY_PROJECTIONS",
    "canonical_name",
    "huggingface_name",
    "interleave_rotary_rows",
    "interleave_rotary_tensor",
    "is_rotary",
]

_Element = TypeVar("_Element", bound=np.generic)

# Our name of a projection to transformers' module inside a layer.
HF_PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROTARY_PROJECTIONS = ("attn_q", "attn_k")

_PARTS = {
    **HF_PROJECTIONS,
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
}
_PARTS_BACK = {module: part for part, module in _PARTS.items()}
_GLOBAL = {
    EMBEDDING: "model.embed_tokens.weight",
    OUTPUT_NORM: "model.norm.weight",
    LM_HEAD: "lm_head.weight",
}
_GLOBAL_BACK = {theirs: ours for ours, theirs in _GLOBAL.items()}
_CANONICAL_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
# One spelling of each number: "00" would be a second name of layer 0.
_HF_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]*)\.([\w.]+)\.weight")


def canonical_name(name: str) -> str | None:
    """Canonical name of transformers' tensor; ``None`` if a decoder has no such tensor."""
    if name in _GLOBAL_BACK:
        return _GLOBAL_BACK[name]
    match = _HF_LAYER.fullmatch(name)
    if match is None or match[2] not in _PARTS_BACK:
        return None
    return f"blk.{int(match[1])}.{_PARTS_BACK[match[2]]}.weight"


def huggingface_name(name: str) -> str:
    """Return transformers' name of a canonical tensor; any other name comes back unchanged."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    match = _CANONICAL_LAYER.fullmatch(name)
    if match is None or match[2] not in _PARTS:
        return name
    return f"model.layers.{match[1]}.{_PARTS[match[2]]}.weight"


def is_rotary(name: str) -> bool:
    """Whether rotary positions turn what a tensor (by canonical name) gives."""
    return any(name.endswith(f".{part}.weight") for part in ROTARY_PROJECTIONS)


def interleave_rotary_rows(rows: NDArray[_Element], head_dim: int) -> NDArray[_Element]:
    """Bring whole heads from transformers' order of rows into the canonical one.

    Parameters
    ----------
    rows
        [n_heads * head_dim, n_cols], in halves; values, codes or words.
    head_dim
        Rows of one head.

    Returns
    -------
    [n_heads * head_dim, n_cols]
        In interleaved pairs; a copy.
    """
    n_heads = rows.shape[0] // head_dim
    halves = rows.reshape(n_heads, 2, head_dim // 2, rows.shape[1])  # [head, side, pair, column]
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def interleave_rotary_tensor(tensor: Tensor, head_dim: int) -> Tensor:
    """Do the same with a tensor of whole heads: its values, or its codes, scales and minima."""
    if isinstance(tensor, FloatTensor):
        values = interleave_rotary_rows(tensor.values, head_dim)
        return FloatTensor(
            name=tensor.name, shape=tensor.shape, format=tensor.format, values=values
        )
    minima, codes = tensor.minimum_bits, tensor.codes
    is_signed = codes.dtype == np.int8
    turned = interleave_rotary_rows(codes.view(np.uint8), head_dim)
    return EncodedTensor(
        name=tensor.name,
        shape=tensor.shape,
        format=tensor.format,
        code_bits=tensor.code_bits,
        code_offset=tensor.code_offset,
        group_size=tensor.group_size,
        codes=turned.view(np.int8) if is_signed else turned,
        scale_bits=interleave_rotary_rows(tensor.scale_bits, head_dim),
        minimum_bits=None if minima is None else interleave_rotary_rows(minima, head_dim),
        matrix_scale=tensor.matrix_scale,
    )
