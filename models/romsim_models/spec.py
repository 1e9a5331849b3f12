"""Hyperparameters of a decoder of the LLaMA family: `ModelSpec`, and its rotary frequencies."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from romsim_models.errors import SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "ACTIVATIONS",
    "ARCHITECTURES",
    "MAX_COUNT",
    "ModelSpec",
    "RopeScaling",
    "rope_frequencies",
]

ARCHITECTURES = ("llama", "bitnet")
ACTIVATIONS = ("silu", "relu2")

# Far above any model, and low enough that a corrupt file cannot make us list tensors for ever.
MAX_COUNT = 2**24
_COUNTS = {
    "dim": MAX_COUNT,
    "n_layers": 4096,
    "n_heads": MAX_COUNT,
    "n_kv_heads": MAX_COUNT,
    "head_dim": MAX_COUNT,
    "hidden_dim": MAX_COUNT,
    "vocab_size": MAX_COUNT,
    "max_seq_len": MAX_COUNT,
}


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3's scaling of the rotary frequencies ("llama3" in Hugging Face configurations).

    Parameters
    ----------
    factor
        Divisor of the lowest frequencies, at least 1.
    low_freq_factor
        Frequencies whose wavelength is over ``original_max_position / low_freq_factor`` positions
        are divided by ``factor``.
    high_freq_factor
        Frequencies whose wavelength is under ``original_max_position / high_freq_factor`` positions
        are kept; those in between are blended.
    original_max_position
        Context length of the model's pre-training, in positions.

    Raises
    ------
    SpecError
        If a value is out of its range.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def __post_init__(self) -> None:
        _require_number(self.factor, "rope_scaling.factor", minimum=1.0)
        _require_number(self.low_freq_factor, "rope_scaling.low_freq_factor", above=0.0)
        _require_number(
            self.high_freq_factor, "rope_scaling.high_freq_factor", above=self.low_freq_factor
        )
        _require_count(self.original_max_position, "rope_scaling.original_max_position")


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything about a decoder but its weights.

    Parameters
    ----------
    name
        Name for reports; not a path.
    arch
        ``"llama"`` or ``"bitnet"``.
    dim
        Width of the residual stream, in elements.
    n_layers, n_heads, n_kv_heads
        Counts of blocks, query heads, and key/value heads; the last divides ``n_heads``.
    head_dim
        Elements of one head, even; independent of ``dim / n_heads``.
    hidden_dim
        Width of the feed-forward layer, in elements.
    vocab_size
        Rows of the embedding and of the LM head.
    norm_eps
        Added to the mean square in RMSNorm.
    rope_theta
        Base of the rotary frequencies.
    rope_scaling
        Llama 3 scaling of the rotary frequencies, or ``None``.
    rope_factors
        Divisors of the rotary frequencies as a file ships them (GGUF's ``rope_freqs.weight``, or
        Hugging Face's "linear" scaling), ``head_dim / 2`` of them, or ``None``. Not together with
        ``rope_scaling``.
    max_seq_len
        Positions that the model was made for.
    tie_embeddings
        Whether the LM head is the embedding matrix.
    activation
        ``"silu"`` (gate) or ``"relu2"`` (squared ReLU, BitNet).
    has_sub_norms
        Whether an RMSNorm stands before the attention's and the feed-forward's last matrix
        (BitNet).
    bos_id
        Token put before a text, or ``None``.
    eos_ids
        Tokens that end a generation.

    Raises
    ------
    SpecError
        If a value is impossible or contradicts another.
    """

    name: str
    arch: str
    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_dim: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    max_seq_len: int
    tie_embeddings: bool
    rope_scaling: RopeScaling | None = None
    rope_factors: tuple[float, ...] | None = None
    activation: str = "silu"
    has_sub_norms: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SpecError(f"name must be a text of at least one character, not {self.name!r}")
        for field, choices in (("arch", ARCHITECTURES), ("activation", ACTIVATIONS)):
            value = getattr(self, field)
            if value not in choices:
                listed = " or ".join(repr(choice) for choice in choices)
                raise SpecError(f"{field} must be {listed}, not {value!r}")
        for field, limit in _COUNTS.items():
            _require_count(getattr(self, field), field, limit)
        _require_number(self.norm_eps, "norm_eps", above=0.0)
        _require_number(self.rope_theta, "rope_theta", above=1.0)
        if self.n_heads % self.n_kv_heads:
            raise SpecError(
                f"n_heads must be a multiple of n_kv_heads={self.n_kv_heads}, "
                f"not {self.n_heads!r}; each key/value head serves the same number of query heads"
            )
        if self.head_dim % 2:
            raise SpecError(
                f"head_dim must be even, not {self.head_dim!r}; rotary positions turn pairs of "
                "elements"
            )
        self._check_rope_factors()
        for token in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if not isinstance(token, int) or not 0 <= token < self.vocab_size:
                raise SpecError(
                    f"bos_id and eos_ids must be tokens below vocab_size={self.vocab_size}, "
                    f"not {token!r}"
                )

    def _check_rope_factors(self) -> None:
        if self.rope_factors is None:
            return
        if self.rope_scaling is not None:
            raise SpecError(
                "rope_factors must be None where rope_scaling is given, "
                f"not {len(self.rope_factors)!r} factors; keep one of the two"
            )
        if len(self.rope_factors) != self.head_dim // 2:
            raise SpecError(
                f"rope_factors must be head_dim/2={self.head_dim // 2} numbers, "
                f"not {len(self.rope_factors)!r}"
            )
        for factor in self.rope_factors:
            _require_number(factor, "each of rope_factors", above=0.0)

    @property
    def q_dim(self) -> int:
        """Rows of the query matrix: all query heads, in elements."""
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Rows of the key matrix, and of the value matrix, in elements."""
        return self.n_kv_heads * self.head_dim

    @property
    def n_groups(self) -> int:
        """Query heads that share one key/value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def kv_elements_per_token(self) -> int:
        """Elements that the KV cache keeps for one token: keys and values of all layers."""
        return 2 * self.n_layers * self.kv_dim

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a JSON object; `from_dict` reads them back."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """One JSON object with sorted keys, the same bytes for the same specification."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=2)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelSpec:
        """Read back what `to_dict` gave.

        Raises
        ------
        SpecError
            If a key is missing or unknown, or a value is not allowed.
        """
        known = {field.name: field for field in dataclasses.fields(cls)}
        for key in values:
            if key not in known:
                raise SpecError(
                    f"key of a model specification must be one of {', '.join(known)}, not {key!r}"
                )
        for key, field in known.items():
            if key not in values and field.default is dataclasses.MISSING:
                raise SpecError(
                    f"model specification must have the key {key!r}, not only {', '.join(values)}"
                )
        values = dict(values)
        scaling = values.get("rope_scaling")
        if isinstance(scaling, dict):
            try:
                values["rope_scaling"] = RopeScaling(**scaling)
            except TypeError:
                expected = ", ".join(field.name for field in dataclasses.fields(RopeScaling))
                raise SpecError(
                    f"rope_scaling must have exactly the keys {expected}, "
                    f"not {', '.join(map(str, scaling))}"
                ) from None
        for key in ("rope_factors", "eos_ids"):
            if isinstance(values.get(key), list):
                values[key] = tuple(values[key])
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Read back what `to_json` gave.

        Raises
        ------
        SpecError
            If the text is not a JSON object, or `from_dict` refuses it.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise SpecError(
                f"model specification must be a JSON object, not text with an error in line "
                f"{error.lineno}, column {error.colno}: {error.msg}"
            ) from None
        if not isinstance(values, dict):
            raise SpecError(
                f"model specification must be a JSON object, not {type(values).__name__!r}"
            )
        return cls.from_dict(values)


def rope_frequencies(spec: ModelSpec) -> NDArray[np.float64]:
    """Angle by which each rotary pair turns from one position to the next.

    Parameters
    ----------
    spec
        Gives ``head_dim``, ``rope_theta``, ``rope_scaling`` and ``rope_factors``.

    Returns
    -------
    float64 [head_dim / 2]
        Radians per position; element i belongs to the elements 2i and 2i+1 of a head.

    Source
    ------
    Su et al., RoFormer (arXiv 2104.09864), eq. 15: ``theta ** (-2i / head_dim)``. Llama 3 scaling:
    meta-llama/llama-models ``models/llama3/model.py::apply_scaling``, equal to transformers'
    ``_compute_llama3_parameters``. Factors: llama.cpp ``ggml_rope_ext``, frequency / factor.
    """
    import numpy as np  # here, so that listing models does not load NumPy

    exponents = np.arange(spec.head_dim // 2, dtype=np.float64) * (2.0 / spec.head_dim)
    frequencies = spec.rope_theta**-exponents
    if spec.rope_factors is not None:
        return np.asarray(frequencies / np.asarray(spec.rope_factors, dtype=np.float64))
    scaling = spec.rope_scaling
    if scaling is None:
        return np.asarray(frequencies)
    wavelengths = 2.0 * math.pi / frequencies  # positions per turn
    blend = (scaling.original_max_position / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blend = np.clip(blend, 0.0, 1.0)  # 0: long waves, divided; 1: short waves, kept
    return np.asarray((1.0 - blend) * frequencies / scaling.factor + blend * frequencies)


def _require_count(value: object, field: str, limit: int = MAX_COUNT) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise SpecError(f"{field} must be an integer from 1 to {limit}, not {value!r}")


def _require_number(
    value: object, field: str, *, above: float | None = None, minimum: float | None = None
) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and math.isfinite(value):  # type: ignore[arg-type]  # narrowed by is_number
        if above is not None and value > above:  # type: ignore[operator]  # as above
            return
        if minimum is not None and value >= minimum:  # type: ignore[operator]  # as above
            return
    bound = f"above {above:g}" if above is not None else f"of at least {minimum:g}"
    raise SpecError(f"{field} must be a finite number {bound}, not {value!r}")
