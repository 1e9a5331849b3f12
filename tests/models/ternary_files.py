"""One small BitNet model, written in every layout in which ternary weights are shipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_models.hf_names import huggingface_name
from romsim_models.spec import ModelSpec
from romsim_models.tensors import expected_shapes
from tests.models.gguf_files import F16, F32, Written, write_gguf
from tests.models.hf_files import write_safetensors

SPEC = ModelSpec(
    name="bit", arch="bitnet", dim=256, n_layers=1, n_heads=4, n_kv_heads=2, head_dim=64,
    hidden_dim=256, vocab_size=40, norm_eps=2.0**-17, rope_theta=10000.0, max_seq_len=64,
    tie_embeddings=True, activation="relu2", has_sub_norms=True,
)  # fmt: skip
CONFIG: dict[str, Any] = {
    "architectures": ["BitNetForCausalLM"],
    "model_type": "bitnet",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 40,
    "rms_norm_eps": 2.0**-17,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "hidden_act": "relu2",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TQ1_0, TQ2_0, I2_S = 34, 35, 36
SCALE = 2.0**-4  # exact as its own reciprocal and in binary16: every layout then holds one model


def signs(seed: int = 0) -> dict[str, NDArray[np.int8]]:
    """Values -1, 0, +1 of each projection, by canonical name, about 0.4 of them 0."""
    generator = np.random.RandomState(seed)
    return {
        name: (generator.randint(0, 5, shape).astype(np.int8) % 3 - 1).astype(np.int8)
        for name, shape in expected_shapes(SPEC).items()
        if is_projection(name)
    }


def is_projection(name: str) -> bool:
    """Whether a tensor is one of a block's seven matrices."""
    return name.startswith("blk.") and "norm" not in name


def others(seed: int = 1) -> dict[str, NDArray[np.float32]]:
    """Embedding and norms."""
    generator = np.random.RandomState(seed)
    return {
        name: (
            generator.standard_normal(shape) if len(shape) == 2 else 1 + generator.rand(*shape)
        ).astype(np.float32)
        for name, shape in expected_shapes(SPEC).items()
        if not is_projection(name)
    }


def in_halves(name: str, rows: NDArray[Any]) -> NDArray[Any]:
    """Rows in transformers' order: the first of each rotary pair, then the second, by heads."""
    if not name.endswith(("attn_q.weight", "attn_k.weight")):
        return rows
    order = [
        head * SPEC.head_dim + 2 * pair + side
        for head in range(len(rows) // SPEC.head_dim)
        for side in (0, 1)
        for pair in range(SPEC.head_dim // 2)
    ]
    return np.ascontiguousarray(rows[order])


def pack_rows(values: NDArray[np.int8]) -> NDArray[np.uint8]:
    """transformers' packing, one code after another."""
    n_rows, n_cols = len(values) // 4, values.shape[1]
    packed = np.zeros((n_rows, n_cols), dtype=np.uint8)
    for row in range(len(values)):
        place, byte_row = divmod(row, n_rows)
        packed[byte_row] |= ((values[row] + 1) << (2 * place)).astype(np.uint8)
    return packed


def write_hf(
    folder: Path,
    *,
    quantization: Mapping[str, Any] | None,
    weights: Callable[[NDArray[np.int8]], NDArray[Any]],
    scale: float | None,
    config: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, NDArray[Any]]], None] | None = None,
) -> Path:
    """Write a directory; ``weights`` turns values into what the file holds."""
    folder.mkdir(exist_ok=True)
    tensors: dict[str, NDArray[Any]] = {}
    for name, values in signs().items():
        theirs = huggingface_name(name)
        tensors[theirs] = weights(in_halves(name, values))
        if scale is not None:
            tensors[f"{theirs}_scale"] = np.array([scale], dtype=np.float32)
    for name, floats in others().items():
        tensors[huggingface_name(name)] = floats
    if change is not None:
        change(tensors)
    values_of = {**CONFIG, **(config or {})}
    if quantization is not None:
        values_of["quantization_config"] = {"quant_method": "bitnet", **quantization}
    (folder / "config.json").write_text(json.dumps(values_of))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


BITLINEAR = {"linear_class": "bitlinear", "quantization_mode": "offline"}
AUTO = {"linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE = {"linear_class": "autobitlinear", "quantization_mode": "online"}


def as_floats(values: NDArray[np.int8]) -> NDArray[np.float32]:
    """-1.0, 0.0, 1.0."""
    return values.astype(np.float32)


def metadata(arch: str = "bitnet-b1.58") -> dict[str, Any]:
    """GGUF keys."""
    keys: dict[str, Any] = {
        "embedding_length": SPEC.dim,
        "block_count": SPEC.n_layers,
        "attention.head_count": SPEC.n_heads,
        "attention.head_count_kv": SPEC.n_kv_heads,
        "attention.key_length": SPEC.head_dim,
        "feed_forward_length": SPEC.hidden_dim,
        "attention.layer_norm_rms_epsilon": SPEC.norm_eps,
        "rope.freq_base": SPEC.rope_theta,
        "context_length": SPEC.max_seq_len,
    }
    return {
        "general.architecture": arch,
        "general.name": SPEC.name,
        **{f"{arch}.{key}": value for key, value in keys.items()},
    }


def i2_s(values: NDArray[np.int8], scale: float = SCALE) -> Written:
    """bitnet.cpp's layout, one code after another, with rubbish behind the scale."""
    codes = (values.reshape(-1) + 1).astype(np.uint8)
    packed = np.zeros(codes.size // 4, dtype=np.uint8)
    for index, code in enumerate(codes.tolist()):
        block, place = divmod(index, 128)
        packed[block * 32 + place % 32] |= code << (6 - 2 * (place // 32))
    trailer = np.float32(scale).tobytes() + bytes([0xA5] * 28)
    return Written(values.shape, I2_S, packed.tobytes() + trailer)


def tq(values: NDArray[np.int8], type_id: int, scale: float = SCALE) -> Written:
    """TQ1_0 or TQ2_0 as the gguf package writes it."""
    import gguf

    kind = gguf.GGMLQuantizationType(type_id)
    raw = gguf.quants.quantize(values.astype(np.float32) * np.float32(scale), kind)
    return Written(values.shape, type_id, raw.tobytes())


def scaled_f16(values: NDArray[np.int8]) -> Written:
    """Floats -1, 0, 1, whose scale stands beside them."""
    return Written(values.shape, F16, values.astype("<f2").tobytes())


def write_bitnet_gguf(
    path: Path,
    encode: Callable[[NDArray[np.int8]], Written],
    *,
    scale: float | None = None,
    arch: str = "bitnet-b1.58",
    change: Callable[[dict[str, Written]], None] | None = None,
) -> Path:
    """Write a file; ``scale`` puts a scale tensor beside each matrix."""
    tensors = {}
    for name, values in signs().items():
        tensors[name] = encode(in_halves(name, values))
        if scale is not None:
            beside = f"{name.removesuffix('.weight')}.scale"
            tensors[beside] = Written((1,), F32, np.float32(scale).tobytes())
    for name, floats in others().items():
        tensors[name] = Written(floats.shape, F32, floats.tobytes())
    if change is not None:
        change(tensors)
    return write_gguf(path, metadata(arch), tensors)


def _gguf(
    encode: Callable[[NDArray[np.int8]], Written], scale: float | None = None
) -> Callable[[Path], Path]:
    return lambda folder: write_bitnet_gguf(folder / "m.gguf", encode, scale=scale)


def _hf(
    quantization: Mapping[str, Any] | None,
    weights: Callable[[NDArray[np.int8]], NDArray[Any]],
    scale: float | None,
    name: str = "BitNetForCausalLM",
) -> Callable[[Path], Path]:
    return lambda folder: write_hf(
        folder / "bit", quantization=quantization, weights=weights, scale=scale,
        config={"architectures": [name]},
    )  # fmt: skip


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "hf-packed-divides": _hf(BITLINEAR, pack_rows, 1 / SCALE, "BitnetForCausalLM"),
    "hf-packed-multiplies": _hf(AUTO, pack_rows, SCALE),
    "hf-unpacked": _hf(AUTO, as_floats, SCALE),
    "hf-values": _hf(None, lambda values: as_floats(values) * np.float32(SCALE), None),
    "tq1_0": _gguf(lambda values: tq(values, TQ1_0)),
    "tq2_0": _gguf(lambda values: tq(values, TQ2_0)),
    "i2_s": _gguf(i2_s),
    "i2_s-scale": _gguf(lambda values: i2_s(values, 1.0), SCALE),
    "f16-scale": _gguf(scaled_f16, SCALE),
}
"""Each writes the same model: codes of `signs` with `SCALE`, and `others`."""
