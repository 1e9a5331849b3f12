"""GGUF metadata of the ``llama`` and ``bitnet`` architectures -> `ModelSpec`.

Source: ggml-org/ggml ``docs/gguf.md`` and llama.cpp ``src/llama-arch.cpp`` for the keys; for the
BitNet architectures ``build_bitnet`` of llama.cpp and ``build_bitnet_158`` of microsoft/BitNet's
fork: both have sub-norms, the first a SiLU, the second a squared ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from romsim_models.config_keys import ConfigKeys, build_spec
from romsim_models.errors import FormatError
from romsim_models.spec import MAX_COUNT, ModelSpec

__all__ = ["spec_from_gguf"]

# Architecture in the file to ours, its activation, and whether it has sub-norms.
_ARCHITECTURES = {
    "llama": ("llama", "silu", False),
    "bitnet": ("bitnet", "silu", True),
    "bitnet-b1.58": ("bitnet", "relu2", True),
    "bitnet-25": ("bitnet", "relu2", True),  # the name of bitnet-b1.58 in early files
}
_KEYS = {
    "dim": "embedding_length",
    "n_layers": "block_count",
    "n_heads": "attention.head_count",
    "n_kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "hidden_dim": "feed_forward_length",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_seq_len": "context_length",
}
_KEYS_WITHOUT_PREFIX = {
    "rope_factors": "rope_freqs.weight",
    "bos_id": "tokenizer.ggml.bos_token_id",
    "eos_ids": "tokenizer.ggml.eos_token_id",
}
# Keys that change what the model computes, with the values under which it is the plain decoder.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "embedding_scale": (0.0, 1.0),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "rope.scaling.attn_factor": (1.0,),
    "use_parallel_residual": (False,),
}
# Keys that say nothing about the arithmetic, or nothing new.
_SILENT = frozenset({"rope.scaling.original_context_length", "rope.scaling.finetuned"})


def spec_from_gguf(
    metadata: Mapping[str, Any],
    *,
    where: str,
    default_name: str,
    vocab_size: int,
    tie_embeddings: bool,
    rope_factors: tuple[float, ...] | None,
) -> tuple[ModelSpec, tuple[str, ...]]:
    """Build the specification of a GGUF file.

    Parameters
    ----------
    metadata
        The file's keys and values.
    where
        The file, for messages.
    default_name
        Name if the metadata have none.
    vocab_size
        Rows of the embedding tensor.
    tie_embeddings
        Whether the file has no LM head of its own.
    rope_factors
        Contents of ``rope_freqs.weight``, or ``None``.

    Returns
    -------
    tuple
        The specification, and notes about defaults taken and keys not used.

    Raises
    ------
    FormatError
        If a key is missing or impossible, or asks for something that a LLaMA decoder does not do.
    """
    named = metadata.get("general.architecture")
    if not isinstance(named, str) or named not in _ARCHITECTURES:
        raise FormatError(
            f"{where}: key 'general.architecture' must be one of {', '.join(_ARCHITECTURES)}, "
            f"not {named!r}; only decoders of the LLaMA family can be compiled"
        )
    arch, activation, has_sub_norms = _ARCHITECTURES[named]
    prefix = f"{named}."
    keys = ConfigKeys(
        {key.removeprefix(prefix): metadata[key] for key in metadata if key.startswith(prefix)},
        where=where,
        prefix=prefix,
    )
    dim = keys.required("embedding_length")
    n_heads = keys.required("attention.head_count")
    head_dim = keys.peek("attention.key_length")
    if head_dim is None and all(isinstance(each, int) and each > 0 for each in (dim, n_heads)):
        if dim % n_heads:
            raise FormatError(
                f"{where}: key {keys.full('embedding_length')!r} must be a multiple of the "
                f"{n_heads} heads where {keys.full('attention.key_length')!r} is missing, "
                f"not {dim!r}"
            )
        head_dim = dim // n_heads
    for key in ("attention.value_length", "rope.dimension_count"):
        value = keys.peek(key, head_dim)
        if value != head_dim:
            raise FormatError(
                f"{where}: key {keys.full(key)!r} must be the head's width {head_dim}, "
                f"not {value!r}; partial or unequal heads cannot be compiled"
            )
    keys.require_neutral(_NEUTRAL, "only the plain decoder can be compiled")
    if keys.peek("vocab_size", vocab_size) != vocab_size:
        raise FormatError(
            f"{where}: key {keys.full('vocab_size')!r} must be {vocab_size}, as the embedding has "
            f"rows, not {keys.peek('vocab_size')!r}; the file is corrupt"
        )
    eos_ids = [
        metadata[key]
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if key in metadata
    ]
    spec = build_spec(
        {
            "name": str(metadata.get("general.name") or default_name),
            "arch": arch,
            "activation": activation,
            "has_sub_norms": has_sub_norms,
            "dim": dim,
            "n_layers": keys.required("block_count"),
            "n_heads": n_heads,
            "n_kv_heads": keys.optional("attention.head_count_kv", n_heads, "as many as heads"),
            "head_dim": head_dim,
            "hidden_dim": keys.required("feed_forward_length"),
            "vocab_size": vocab_size,
            "norm_eps": keys.required("attention.layer_norm_rms_epsilon"),
            "rope_theta": keys.optional("rope.freq_base", 10000.0, "llama.cpp's default"),
            "max_seq_len": keys.required("context_length"),
            "tie_embeddings": tie_embeddings,
            "rope_factors": _rope_factors(keys, where, rope_factors, head_dim),
            "bos_id": metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_ids": tuple(eos_ids[:1] if eos_ids[1:] == eos_ids[:1] else eos_ids),
        },
        where=where,
        keys={field: keys.full(key) for field, key in _KEYS.items()} | _KEYS_WITHOUT_PREFIX,
    )
    return spec, keys.finish(_SILENT)


def _rope_factors(
    keys: ConfigKeys, where: str, shipped: tuple[float, ...] | None, head_dim: Any
) -> tuple[float, ...] | None:
    kind = keys.peek("rope.scaling.type", "none")
    factor = keys.peek("rope.scaling.factor")
    if kind == "none":
        return shipped
    if kind == "linear" and shipped is None and isinstance(factor, float):
        # What is wrong with head_dim itself is said by ModelSpec.
        is_possible = isinstance(head_dim, int) and 0 < head_dim <= MAX_COUNT
        return (factor,) * (head_dim // 2 if is_possible else 0)
    raise FormatError(
        f"{where}: key {keys.full('rope.scaling.type')!r} must be 'none' (scaling then comes from "
        f"the tensor rope_freqs.weight) or 'linear' with a factor, not {kind!r} with factor "
        f"{factor!r}"
    )
