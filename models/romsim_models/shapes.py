"""Specifications of the built-in models.

Source: the ``config.json`` that the authors published with each model; BitNet: microsoft/BitNet
``gpu/model.py``. Bytes of KV cache per token that follow are tested against published figures.
"""

from __future__ import annotations

from romsim_models.spec import ModelSpec, RopeScaling

__all__ = ["SHAPES", "STORIES", "TINY"]

_LLAMA_3_2_SCALING = RopeScaling(
    factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
)

_SHAPES = (
    ModelSpec(
        name="smollm2", arch="llama", dim=576, n_layers=30, n_heads=9, n_kv_heads=3, head_dim=64,
        hidden_dim=1536, vocab_size=49152, norm_eps=1e-5, rope_theta=100000.0, max_seq_len=8192,
        tie_embeddings=True, bos_id=1, eos_ids=(2,),
    ),
    ModelSpec(
        name="llama-3.2-1b", arch="llama", dim=2048, n_layers=16, n_heads=32, n_kv_heads=8,
        head_dim=64, hidden_dim=8192, vocab_size=128256, norm_eps=1e-5, rope_theta=500000.0,
        max_seq_len=131072, tie_embeddings=True, rope_scaling=_LLAMA_3_2_SCALING, bos_id=128000,
        eos_ids=(128001,),
    ),
    ModelSpec(
        name="llama-3.2-3b", arch="llama", dim=3072, n_layers=28, n_heads=24, n_kv_heads=8,
        head_dim=128, hidden_dim=8192, vocab_size=128256, norm_eps=1e-5, rope_theta=500000.0,
        max_seq_len=131072, tie_embeddings=True, rope_scaling=_LLAMA_3_2_SCALING, bos_id=128000,
        eos_ids=(128001,),
    ),
    ModelSpec(
        name="llama-3-8b", arch="llama", dim=4096, n_layers=32, n_heads=32, n_kv_heads=8,
        head_dim=128, hidden_dim=14336, vocab_size=128256, norm_eps=1e-5, rope_theta=500000.0,
        max_seq_len=8192, tie_embeddings=False, bos_id=128000, eos_ids=(128001,),
    ),
    ModelSpec(
        name="llama-3-70b", arch="llama", dim=8192, n_layers=80, n_heads=64, n_kv_heads=8,
        head_dim=128, hidden_dim=28672, vocab_size=128256, norm_eps=1e-5, rope_theta=500000.0,
        max_seq_len=8192, tie_embeddings=False, bos_id=128000, eos_ids=(128001,),
    ),
    ModelSpec(
        name="bitnet-2b-4t", arch="bitnet", dim=2560, n_layers=30, n_heads=20, n_kv_heads=5,
        head_dim=128, hidden_dim=6912, vocab_size=128256, norm_eps=1e-5, rope_theta=500000.0,
        max_seq_len=4096, tie_embeddings=True, activation="relu2", has_sub_norms=True,
        bos_id=128000, eos_ids=(128001,),
    ),
    # OPT-13B's width, depth, heads and vocabulary in LLaMA blocks, without shared key/value heads.
    # OPT's two feed-forward matrices of 20480 become three of 13824 (LLaMA-2-13B's), which is the
    # same number of weights within 1.3 %.
    ModelSpec(
        name="opt-13b-mha", arch="llama", dim=5120, n_layers=40, n_heads=40, n_kv_heads=40,
        head_dim=128, hidden_dim=13824, vocab_size=50272, norm_eps=1e-5, rope_theta=10000.0,
        max_seq_len=2048, tie_embeddings=True, bos_id=2, eos_ids=(2,),
    ),
)  # fmt: skip

# Small enough for whole chips in RTL: head_dim of its own, shared key/value heads, a vocabulary of
# 256 bytes and 32 special tokens.
_TINY = (
    ModelSpec(
        name="tiny-int4", arch="llama", dim=64, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=32,
        hidden_dim=192, vocab_size=288, norm_eps=1e-5, rope_theta=10000.0, max_seq_len=512,
        tie_embeddings=True, bos_id=1, eos_ids=(2,),
    ),
    ModelSpec(
        name="tiny-int2", arch="llama", dim=128, n_layers=3, n_heads=4, n_kv_heads=1, head_dim=32,
        hidden_dim=256, vocab_size=288, norm_eps=1e-5, rope_theta=10000.0, max_seq_len=512,
        tie_embeddings=False, bos_id=1, eos_ids=(2,),
    ),
    ModelSpec(
        name="tiny-ternary", arch="bitnet", dim=128, n_layers=2, n_heads=4, n_kv_heads=2,
        head_dim=32, hidden_dim=256, vocab_size=288, norm_eps=1e-5, rope_theta=10000.0,
        max_seq_len=512, tie_embeddings=True, activation="relu2", has_sub_norms=True, bos_id=1,
        eos_ids=(2,),
    ),
)  # fmt: skip

# The models that the scripts in models/training make: columns are multiples of 256, as TQ2_0 asks.
_STORIES = tuple(
    ModelSpec(
        name=name, arch="llama", dim=256, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=64,
        hidden_dim=512, vocab_size=1024, norm_eps=1e-5, rope_theta=10000.0, max_seq_len=512,
        tie_embeddings=True, eos_ids=(0,),
    )
    for name in ("stories-ternary", "stories-int4", "stories-int2")
)  # fmt: skip

SHAPES: dict[str, ModelSpec] = {spec.name: spec for spec in _SHAPES}
STORIES: dict[str, ModelSpec] = {spec.name: spec for spec in _STORIES}
TINY: dict[str, ModelSpec] = {spec.name: spec for spec in _TINY}
