"""GGUF metadata of the ``llama`` architecture -> `ModelSpec`.

Source: ggml-org/ggml ``docs/gguf.md`` and llama.cpp ``src/llama-arch.cpp`` for the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from romsim_models.errors import FormatError, SpecError
from romsim_models.spec import ModelSpec

__all__ = ["spec_from_gguf"]

_PREFIX = "llama."

# Keys that change what the model computes, with the only value under which it is plain LLaMA.
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
_SILENT = {"vocab_size", "rope.scaling.original_context_length", "rope.scaling.finetuned"}


class _Keys:
    """Metadata of one architecture: every key that is used is ticked off."""

    def __init__(self, metadata: Mapping[str, Any], where: str, notes: list[str]) -> None:
        self._values = {
            key.removeprefix(_PREFIX): value
            for key, value in metadata.items()
            if key.startswith(_PREFIX)
        }
        self._unused = set(self._values)
        self._where = where
        self._notes = notes

    def required(self, key: str) -> Any:
        if key not in self._values:
            raise FormatError(
                f"{self._where}: metadata key '{_PREFIX}{key}' must be present, not missing; "
                "convert the model again with a current llama.cpp"
            )
        return self.optional(key, None, "")

    def optional(self, key: str, default: Any, default_is: str) -> Any:
        """Value of a key, or a default that is written into the notes."""
        self._unused.discard(key)
        if key in self._values:
            return self._values[key]
        self._notes.append(
            f"{self._where}: metadata key '{_PREFIX}{key}' is missing; "
            f"taken as {default!r} ({default_is})"
        )
        return default

    def peek(self, key: str, default: Any) -> Any:
        """Value of a key whose absence needs no note."""
        self._unused.discard(key)
        return self._values.get(key, default)

    def finish(self) -> None:
        """Refuse keys that would change the arithmetic; note those that are not used."""
        for key in sorted(self._unused - _SILENT):
            value = self._values[key]
            if key not in _NEUTRAL:
                self._notes.append(f"{self._where}: metadata key '{_PREFIX}{key}' is not used")
            elif value not in _NEUTRAL[key]:
                allowed = " or ".join(repr(each) for each in _NEUTRAL[key])
                raise FormatError(
                    f"{self._where}: metadata key '{_PREFIX}{key}' must be {allowed}, "
                    f"not {value!r}; only the plain LLaMA decoder can be compiled"
                )


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
        If a key is missing, or asks for something that a LLaMA decoder does not do.
    """
    arch = metadata.get("general.architecture")
    if arch != "llama":
        raise FormatError(
            f"{where}: general.architecture must be 'llama', not {arch!r}; "
            "only decoders of the LLaMA family can be compiled"
        )
    notes: list[str] = []
    keys = _Keys(metadata, where, notes)
    dim = keys.required("embedding_length")
    n_heads = keys.required("attention.head_count")
    n_kv_heads = keys.optional("attention.head_count_kv", n_heads, "as many as query heads")
    if all(isinstance(value, int) and value > 0 for value in (dim, n_heads)):
        head_dim = keys.peek("attention.key_length", dim // n_heads)
        if "llama.attention.key_length" not in metadata and dim % n_heads:
            raise FormatError(
                f"{where}: 'llama.embedding_length' must be a multiple of the {n_heads} heads "
                f"where 'llama.attention.key_length' is missing, not {dim!r}"
            )
    else:
        head_dim = 0  # refused with its own message by ModelSpec, after dim or n_heads
    for key in ("attention.value_length", "rope.dimension_count"):
        value = keys.peek(key, head_dim)
        if value != head_dim:
            raise FormatError(
                f"{where}: metadata key '{_PREFIX}{key}' must be the head's width {head_dim}, "
                f"not {value!r}; partial or unequal heads cannot be compiled"
            )
    rope_factors = _rope_factors(keys, where, rope_factors, head_dim)
    values: dict[str, Any] = {
        "name": str(metadata.get("general.name") or default_name),
        "arch": "llama",
        "dim": dim,
        "n_layers": keys.required("block_count"),
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "hidden_dim": keys.required("feed_forward_length"),
        "vocab_size": vocab_size,
        "norm_eps": keys.required("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.optional("rope.freq_base", 10000.0, "LLaMA's base"),
        "max_seq_len": keys.required("context_length"),
        "tie_embeddings": tie_embeddings,
        "rope_factors": rope_factors,
        "bos_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_ids": _eos_ids(metadata),
    }
    keys.finish()
    try:
        return ModelSpec(**values), tuple(notes)
    except SpecError as error:
        raise FormatError(f"{where}: {error}") from None


def _rope_factors(
    keys: _Keys, where: str, shipped: tuple[float, ...] | None, head_dim: int
) -> tuple[float, ...] | None:
    kind = keys.peek("rope.scaling.type", "none")
    factor = keys.peek("rope.scaling.factor", None)
    if kind == "none":
        return shipped
    if kind == "linear" and shipped is None and isinstance(factor, float) and factor > 0:
        return (factor,) * (head_dim // 2)
    raise FormatError(
        f"{where}: metadata key '{_PREFIX}rope.scaling.type' must be 'none' (scaling then comes "
        f"from the tensor rope_freqs.weight) or 'linear' with a factor, not {kind!r} "
        f"with factor {factor!r}"
    )


def _eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens that end a text: end of sequence, and end of turn where a file has one."""
    found = [
        metadata[key]
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if key in metadata
    ]
    return tuple(dict.fromkeys(found))
