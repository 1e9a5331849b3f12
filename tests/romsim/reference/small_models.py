"""Small random models for the reference's tests, and the same models for the scalar reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim.reference import IntegerDecoder, NumericsConfig, WeightChoice
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import EncodedTensor, FloatTensor
from romsim_models.lora import LoraAdapter, LoraTarget
from romsim_models.spec import ModelSpec, rope_frequencies
from romsim_models.tensors import expected_shapes, projection_shapes
from tests.romsim.reference.scalar_decoder import Adapter, ScalarDecoder, Shape
from tests.romsim.reference.scalar_weights import scalar_matrix

SPEC = ModelSpec(
    name="small", arch="llama", dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16,
    hidden_dim=96, vocab_size=40, norm_eps=1e-5, rope_theta=10000.0, max_seq_len=256,
    tie_embeddings=True,
)  # fmt: skip

Tensors = dict[str, EncodedTensor | FloatTensor]


class Store:
    """Tensors in memory."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def formats(self) -> dict[str, str]:
        return {name: tensor.format for name, tensor in self.tensors.items()}

    def read(self, name: str) -> EncodedTensor | FloatTensor:
        return self.tensors[name]

    def read_rows(self, name: str, first: int, last: int) -> EncodedTensor | FloatTensor:
        raise NotImplementedError

    def digest(self) -> str:
        return "0" * 64


def encode(name: str, values: NDArray[np.float32], kind: str, group: int = 32) -> EncodedTensor:
    """Any matrix in a file format's form: "q4_0", "q4_1" or "q8_0"; how well does not matter."""
    n_rows, n_cols = values.shape
    groups = values.reshape(n_rows, n_cols // group, group)
    low = groups.min(axis=2)
    offset, top = {"q4_0": (8, 15), "q4_1": (0, 15), "q8_0": (0, 127)}[kind]
    if kind == "q4_1":
        scale = ((groups.max(axis=2) - low) / 15).astype(np.float16)
        raw = (groups - low[..., None]) / scale[..., None].astype(np.float32)
    else:
        scale = (np.abs(groups).max(axis=2) / (7 if kind == "q4_0" else 127)).astype(np.float16)
        raw = groups / scale[..., None].astype(np.float32) + offset
    codes = np.clip(np.rint(raw), -127 if kind == "q8_0" else 0, top).reshape(n_rows, n_cols)
    return EncodedTensor(
        name=name, shape=(n_rows, n_cols), format=kind, code_bits=8 if kind == "q8_0" else 4,
        code_offset=offset, group_size=group,
        codes=codes.astype(np.int8 if kind == "q8_0" else np.uint8),
        scale_bits=scale.view(np.uint16),
        minimum_bits=low.astype(np.float16).view(np.uint16) if kind == "q4_1" else None,
    )  # fmt: skip


def floats(name: str, values: NDArray[np.float32]) -> FloatTensor:
    return FloatTensor(name=name, shape=values.shape, format="f32", values=values)


def random_tensors(spec: ModelSpec, *, seed: int, kind: str = "q4_1", gain: float = 1.0) -> Tensors:
    """Tensors of a model; matrices as `encode` makes them, or floats for kind "f32"."""
    generator = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in expected_shapes(spec).items():
        drawn = generator.standard_normal(shape).astype(np.float32)
        if len(shape) == 1:
            tensors[name] = floats(name, (1 + drawn / 4).astype(np.float32))
            continue
        values = drawn * np.float32(gain / np.sqrt(shape[1]) * (8 if "token_embd" in name else 2))
        tensors[name] = floats(name, values) if kind == "f32" else encode(name, values, kind)
    return tensors


def checkpoint_of(spec: ModelSpec, tensors: Tensors) -> Checkpoint:
    return Checkpoint(spec=spec, kind="synthetic", name=spec.name, store=Store(tensors))


def scalar_of(
    spec: ModelSpec,
    tensors: Tensors,
    *,
    choices: Mapping[str, WeightChoice] | None = None,
    config: NumericsConfig | None = None,
    adapter: LoraAdapter | None = None,
) -> ScalarDecoder:
    config = config or NumericsConfig()
    matrices, norms = {}, {}
    for name, tensor in tensors.items():
        if len(tensor.shape) == 1:
            assert isinstance(tensor, FloatTensor)
            norms[name] = [float(w) for w in tensor.values]
            continue
        choice = (choices or {}).get(name) or WeightChoice(kind="shipped")
        matrices[name] = scalar_matrix(tensor, choice.kind, choice.group)
    shape = Shape(
        n_layers=spec.n_layers, n_heads=spec.n_heads, n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim, activation=spec.activation, has_sub_norms=spec.has_sub_norms,
        epsilon=spec.norm_eps, theta=[float(t) for t in rope_frequencies(spec)],
        tied=spec.tie_embeddings, f_r=config.residual_frac, f_a=config.linear_frac,
        f_l=config.logit_frac, attn_block=config.attn_block,
    )  # fmt: skip
    adapters = {
        name: Adapter.of(target.a.tolist(), target.b.tolist(), target.scaling)
        for name, target in (adapter.targets if adapter else {}).items()
    }
    return ScalarDecoder(shape=shape, matrices=matrices, norms=norms, adapters=adapters)


def random_adapter(spec: ModelSpec, *, rank: int, seed: int, parts: tuple[str, ...]) -> LoraAdapter:
    generator = np.random.default_rng(seed)
    targets = {}
    for layer in range(spec.n_layers):
        for part in parts:
            n_rows, n_cols = projection_shapes(spec)[part]
            name = f"blk.{layer}.{part}.weight"
            targets[name] = LoraTarget(
                name=name, alpha=16.0, scaling=16.0 / rank,
                a=(generator.standard_normal((rank, n_cols)) / 8).astype(np.float32),
                b=(generator.standard_normal((n_rows, rank)) / 16).astype(np.float32),
            )  # fmt: skip
    return LoraAdapter(name="random", base_name="", targets=targets)


class Recorder:
    """Collects what a decoder reports: name -> array [tokens, n]."""

    def __init__(self) -> None:
        self.parts: dict[str, list[tuple[int, NDArray[Any]]]] = {}

    def __call__(self, name: str, position: int, values: NDArray[Any]) -> None:
        self.parts.setdefault(name, []).append((position, values.copy()))

    def arrays(self) -> dict[str, NDArray[Any]]:
        joined = {}
        for name, parts in self.parts.items():
            expected = parts[0][0]
            for position, values in parts:
                assert position == expected, name
                expected += len(values)
            joined[name] = np.concatenate([values for _, values in parts])
        return joined


def compare_with_scalar(
    decoder: IntegerDecoder, scalar: ScalarDecoder, tokens: list[int], *, adapter: str | None = None
) -> None:
    """Every operator of every token, and the count of clips."""
    recorder = Recorder()
    decoder.forward(tokens, adapter=adapter, record=recorder, all_logits=True)
    found = recorder.arrays()
    expected: dict[str, list[list[int]]] = {}
    for token in tokens:
        scalar.step(token, lambda name, v: expected.setdefault(name, []).append(v))
    assert set(found) == set(expected)
    for name, rows in expected.items():
        np.testing.assert_array_equal(found[name], np.array(rows), err_msg=name)
    assert decoder.saturations == scalar.clips.count


def changed(**changes: Any) -> ModelSpec:
    return replace(SPEC, **changes)
