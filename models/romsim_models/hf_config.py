"""``config.json`` of a Hugging Face directory -> `ModelSpec`.

Source: transformers' ``LlamaConfig`` and ``BitNetConfig`` for keys and defaults; versions below 5
write ``rope_theta`` and ``rope_scaling``, version 5 writes ``rope_parameters``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from romsim_models.config_keys import ConfigKeys, build_spec, read_json_object
from romsim_models.errors import FormatError, SpecError
from romsim_models.hf_quantization import bitnet_quantization
from romsim_models.spec import MAX_COUNT, ModelSpec, RopeScaling

__all__ = ["spec_from_huggingface"]

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "BitNetForCausalLM": "bitnet",
    "BitnetForCausalLM": "bitnet",  # spelling of the first published checkpoints
}
_KEYS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "max_seq_len": "max_position_embeddings",
    "tie_embeddings": "tie_word_embeddings",
    "activation": "hidden_act",
    "bos_id": "bos_token_id",
    "eos_ids": "eos_token_id",
}
# Keys that change what the model computes, with the values under which nothing is changed.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
}
# Keys that matter to training, to storage or to text alone.
_SILENT = frozenset(
    {
        "_name_or_path", "architectures", "attention_dropout", "chunk_size_feed_forward", "dtype",
        "id2label", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id",
        "model_type", "output_attentions", "output_hidden_states", "pad_token_id",
        "pretraining_tp", "problem_type", "return_dict", "torch_dtype", "transformers.js_config",
        "transformers_version", "use_cache",
    }
)  # fmt: skip


def spec_from_huggingface(directory: Path) -> tuple[ModelSpec, tuple[str, ...]]:
    """Read the specification of a Hugging Face directory.

    Parameters
    ----------
    directory
        Holds ``config.json`` and perhaps ``generation_config.json``.

    Returns
    -------
    tuple
        The specification, and notes about defaults taken and keys not used.

    Raises
    ------
    FormatError
        If a file is no JSON object, a key is missing or impossible, or asks for something that a
        LLaMA or BitNet decoder does not do.
    """
    path = directory / "config.json"
    where = str(path)
    keys = ConfigKeys(read_json_object(path), where=where)
    arch = _architecture(keys, where)
    quantization = bitnet_quantization(keys.peek("quantization_config"), where)
    if quantization is not None:
        keys.notes.extend(quantization.notes)
    keys.require_neutral(_NEUTRAL, "only models without biases can be compiled")
    # transformers reads it at the top level too, and turns part of a head only.
    keys.require_neutral(
        {"partial_rotary_factor": (1.0,)}, "partial rotary positions cannot be compiled"
    )
    default_activation = "silu" if arch == "llama" else "relu2"
    activation = keys.optional("hidden_act", default_activation, "the architecture's default")
    dim = keys.required("hidden_size")
    n_heads = keys.required("num_attention_heads")
    n_kv_heads = keys.optional("num_key_value_heads", n_heads, "num_attention_heads")
    head_dim = _head_dim(keys, where, dim, n_heads)
    theta, scaling, factors = _rope(keys, where, head_dim)
    spec = build_spec(
        {
            "name": directory.resolve().name,
            "arch": arch,
            "dim": dim,
            "n_layers": keys.required("num_hidden_layers"),
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "head_dim": head_dim,
            "hidden_dim": keys.required("intermediate_size"),
            "vocab_size": keys.required("vocab_size"),
            "norm_eps": keys.required("rms_norm_eps"),
            "rope_theta": theta,
            "rope_scaling": scaling,
            "rope_factors": factors,
            "max_seq_len": keys.optional("max_position_embeddings", 2048, "transformers' default"),
            "tie_embeddings": _tie(keys, where),
            "activation": "silu" if activation == "swish" else activation,
            "has_sub_norms": arch == "bitnet",
            "bos_id": keys.optional("bos_token_id", None, "no token"),
            "eos_ids": _eos_ids(keys, directory),
        },
        where=where,
        keys=_KEYS,
    )
    return spec, keys.finish(_SILENT)


def _architecture(keys: ConfigKeys, where: str) -> str:
    """``"llama"`` or ``"bitnet"``, from ``architectures``, else from ``model_type``."""
    listed = keys.peek("architectures")
    model_type = keys.peek("model_type")
    if listed is None and model_type in ("llama", "bitnet"):
        keys.notes.append(
            f"{Path(where).name}: key 'architectures' is missing; taken from model_type "
            f"{model_type!r}"
        )
        return str(model_type)
    name = listed[0] if isinstance(listed, list) and len(listed) == 1 else listed
    arch = _ARCHITECTURES.get(name) if isinstance(name, str) else None
    if arch is None or model_type not in (None, arch):
        allowed = ", ".join(_ARCHITECTURES)
        found = f"{name!r} with model_type {model_type!r}"
        raise FormatError(
            f"{where}: key 'architectures' must be one of {allowed} with a model_type to match, "
            f"not {found}; only decoders of the LLaMA family can be compiled"
        )
    return arch


def _head_dim(keys: ConfigKeys, where: str, dim: Any, n_heads: Any) -> Any:
    if "head_dim" in keys or not all(isinstance(each, int) and each > 0 for each in (dim, n_heads)):
        return keys.peek("head_dim", 1)  # what is wrong with the others is said by ModelSpec
    if dim % n_heads:
        raise FormatError(
            f"{where}: key 'hidden_size' must be a multiple of the {n_heads} heads where "
            f"'head_dim' is missing, not {dim!r}"
        )
    return keys.optional("head_dim", dim // n_heads, "hidden_size / num_attention_heads")


def _tie(keys: ConfigKeys, where: str) -> bool:
    default_is = "transformers' default"
    tie = keys.optional("tie_word_embeddings", False, default_is)
    if not isinstance(tie, bool):
        raise FormatError(f"{where}: key 'tie_word_embeddings' must be true or false, not {tie!r}")
    return tie


def _rope(
    keys: ConfigKeys, where: str, head_dim: Any
) -> tuple[Any, RopeScaling | None, tuple[float, ...] | None]:
    """Read the base of the rotary frequencies, and how they are scaled."""
    scaling = keys.peek("rope_scaling")
    parameters = keys.peek("rope_parameters", scaling)
    if scaling is not None and scaling != parameters:
        raise FormatError(
            f"{where}: keys 'rope_scaling' and 'rope_parameters' must agree, not be "
            f"{scaling!r} and {parameters!r}; keep one of the two"
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise FormatError(f"{where}: key 'rope_scaling' must be an object, not {parameters!r}")
    prefix = "rope_scaling." if scaling is not None else "rope_parameters."
    inner = ConfigKeys(parameters or {}, where=where, prefix=prefix)
    if "rope_theta" in inner:
        theta = inner.required("rope_theta")
        if keys.peek("rope_theta", theta) != theta:
            raise FormatError(
                f"{where}: keys 'rope_theta' and {inner.full('rope_theta')!r} must agree, not be "
                f"{keys.peek('rope_theta')!r} and {theta!r}; keep one of the two"
            )
    else:
        theta = keys.optional("rope_theta", 10000.0, "transformers' default")
    inner.require_neutral(
        {"partial_rotary_factor": (1.0,)}, "partial rotary positions cannot be compiled"
    )
    old_kind = inner.peek("type")  # the spelling before transformers 4.43
    kind = inner.peek("rope_type", old_kind or "default")
    if old_kind not in (None, kind):
        raise FormatError(
            f"{where}: keys {inner.full('type')!r} and {inner.full('rope_type')!r} must agree, "
            f"not be {old_kind!r} and {kind!r}; keep one of the two"
        )
    rope_scaling, factors = None, None
    if kind == "llama3":
        rope_scaling = _llama3(inner, where)
    elif kind == "linear":
        # What is wrong with head_dim itself is said by ModelSpec.
        n_pairs = head_dim // 2 if isinstance(head_dim, int) and head_dim <= MAX_COUNT else 0
        factor = inner.required("factor")
        if not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise FormatError(
                f"{where}: key {inner.full('factor')!r} must be a positive number, not {factor!r}"
            )
        factors = (float(factor),) * n_pairs
    elif kind != "default":
        raise FormatError(
            f"{where}: key {inner.full('rope_type')!r} must be 'default', 'linear' or 'llama3', "
            f"not {kind!r}; this scaling of rotary positions cannot be compiled"
        )
    keys.notes.extend(inner.finish(frozenset()))
    return theta, rope_scaling, factors


def _llama3(inner: ConfigKeys, where: str) -> RopeScaling:
    values = {
        "factor": inner.required("factor"),
        "low_freq_factor": inner.required("low_freq_factor"),
        "high_freq_factor": inner.required("high_freq_factor"),
        "original_max_position": inner.required("original_max_position_embeddings"),
    }
    try:
        return RopeScaling(**values)
    except SpecError as error:
        raise FormatError(f"{where}: {error}") from None


def _eos_ids(keys: ConfigKeys, directory: Path) -> Any:
    """Tokens that end a generation: those of both configuration files."""
    found = keys.optional("eos_token_id", [], "no token")
    tokens = list(found) if isinstance(found, list) else [found]
    generation = directory / "generation_config.json"
    if generation.is_file():
        more = read_json_object(generation).get("eos_token_id")
        if more is not None:
            tokens += more if isinstance(more, list) else [more]
    return tuple(token for index, token in enumerate(tokens) if token not in tokens[:index])
