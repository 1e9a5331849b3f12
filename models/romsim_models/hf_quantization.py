"""``quantization_config`` of a Hugging Face directory: how BitNet's weights and scales are meant.

``weight_scale`` divides the product in a ``BitLinear`` (the file holds 1/scale) and multiplies it
in an ``AutoBitLinear`` (the file holds the scale). The two cannot be told apart by the numbers, so
the configuration decides.

Source: transformers ``integrations/bitnet.py`` and ``BitNetQuantConfig``, for keys and defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from romsim_models.config_keys import ConfigKeys
from romsim_models.errors import FormatError

__all__ = ["BitNetQuantization", "bitnet_quantization"]

# (linear_class, quantization_mode) to what weight_scale does.
_CONVENTIONS = {
    ("bitlinear", "offline"): "divides",
    ("autobitlinear", "offline"): "multiplies",
    ("autobitlinear", "online"): "absent",
}
_UNUSED = frozenset({"rms_norm_eps"})  # of a norm that use_rms_norm = false leaves out


@dataclass(frozen=True, slots=True, kw_only=True)
class BitNetQuantization:
    """How the matrices of a directory are to be read.

    Parameters
    ----------
    scale
        What ``weight_scale`` does to the product: ``"divides"``, ``"multiplies"``, or ``"absent"``
        (the file holds floats, which are made ternary by their mean magnitude).
    kept
        Modules that stay in floating point, as ``modules_to_not_convert`` has them.
    notes
        Defaults taken and keys not used.
    """

    scale: str
    kept: tuple[str, ...]
    notes: tuple[str, ...]

    def keeps(self, module: str) -> bool:
        """Whether a module (``model.layers.0.mlp.up_proj``) stays in floating point."""
        return any(
            module == each or module.startswith(f"{each}.") or module.endswith(f".{each}")
            for each in self.kept
        )


def bitnet_quantization(values: Any, where: str) -> BitNetQuantization | None:
    """Read the value of ``quantization_config``; ``None`` where it is missing.

    Raises
    ------
    FormatError
        If it is of another method, or does not say what ``weight_scale`` does.
    """
    if values is None:
        return None
    method = values.get("quant_method") if isinstance(values, dict) else values
    if method != "bitnet":
        raise FormatError(
            f"{where}: key 'quantization_config' must be absent or of quant_method 'bitnet', not "
            f"{method!r}; give the model in bf16, f16 or f32, or as GGUF"
        )
    keys = ConfigKeys(values, where=where, prefix="quantization_config.")
    keys.peek("quant_method")
    keys.require_neutral({"use_rms_norm": (False,)}, "a norm before each matrix cannot be compiled")
    linear = keys.optional("linear_class", "bitlinear", "transformers' default")
    mode = keys.optional("quantization_mode", "offline", "transformers' default")
    are_texts = isinstance(linear, str) and isinstance(mode, str)
    scale = _CONVENTIONS.get((linear, mode)) if are_texts else None
    if scale is None:
        raise FormatError(
            f"{where}: keys {keys.full('linear_class')!r} and {keys.full('quantization_mode')!r} "
            "must be 'bitlinear' with 'offline' (weight_scale divides), 'autobitlinear' with "
            "'offline' (it multiplies) or 'autobitlinear' with 'online' (there is none), not "
            f"{linear!r} with {mode!r}; what the scales mean is not known"
        )
    kept = keys.peek("modules_to_not_convert", [])
    if not isinstance(kept, list) or not all(isinstance(each, str) for each in kept):
        raise FormatError(
            f"{where}: key {keys.full('modules_to_not_convert')!r} must be a list of modules, "
            f"not {kept!r}"
        )
    return BitNetQuantization(scale=scale, kept=tuple(kept), notes=keys.finish(_UNUSED))
