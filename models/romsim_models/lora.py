"""A PEFT directory (adapter_config.json, adapter_model.safetensors) -> `LoraAdapter`.

Factors are kept as shipped, in float32, beside their scaling; the compiler folds the scaling into B
in float64 before it quantises. Rows of B of ``attn_q`` and ``attn_k`` are brought into the
canonical interleaved order, like the rows of the matrices they are added to.

Source: huggingface/peft ``src/peft/tuners/lora`` (config, layer) and ``utils/other.py``
(``get_pattern_key``).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_models.config_keys import ConfigKeys, read_json_object
from romsim_models.encoded import check_finite
from romsim_models.errors import FormatError, SpecError
from romsim_models.hf_names import HF_PROJECTIONS, ROTARY_PROJECTIONS, interleave_rotary_rows
from romsim_models.safetensors_file import SafetensorsFile
from romsim_models.spec import ModelSpec
from romsim_models.tensors import layer_tensor, projection_shapes

__all__ = ["LoraAdapter", "LoraTarget", "read_adapter"]

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PROJECTION_OF = {module: part for part, module in HF_PROJECTIONS.items()}
# "model." is there in adapters of a causal LM, and not in those of a bare decoder.
_FACTOR = re.compile(
    r"base_model\.model\.((?:model\.)?layers\.(0|[1-9][0-9]*)\.([\w.]+))\.lora_([AB])\.weight"
)

# Options that change what is added to the base, with the values that change nothing (besides null,
# an empty list and an empty object).
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "lora_bias": (False,),
    "use_bdlora": (False,),
    "use_dora": (False,),
    "use_qalora": (False,),
    "alora_invocation_tokens": (None,),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "layer_replication": (None,),
    "modules_to_save": (None,),
    "monteclora_config": (None,),
    "target_parameters": (None,),
    "trainable_token_indices": (None,),
    # The others start from a base whose weights were changed; after PEFT's conversion of such an
    # adapter the key is true.
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}
# Keys that matter to training or to bookkeeping alone.
_SILENT = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying",
        "eva_config", "exclude_modules", "inference_mode", "layers_pattern",
        "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config",
        "megatron_config", "megatron_core", "peft_version", "qalora_group_size", "revision",
        "runtime_config", "task_type", "velora_config",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoraTarget:
    """The low-rank addition to one matrix: ``y += scaling * B (A x)``.

    Parameters
    ----------
    name
        Canonical name of the matrix.
    alpha
        As the adapter's author set it.
    scaling
        ``alpha / rank``, or ``alpha / sqrt(rank)`` with rsLoRA.
    a
        float32 [rank, n_cols of the matrix]; set read-only here.
    b
        float32 [n_rows of the matrix, rank]; set read-only here.
    """

    name: str
    alpha: float
    scaling: float
    a: NDArray[np.float32]
    b: NDArray[np.float32]

    def __post_init__(self) -> None:
        self.a.flags.writeable = False
        self.b.flags.writeable = False

    @property
    def rank(self) -> int:
        """Rows of A and columns of B."""
        return int(self.a.shape[0])

    def delta(self) -> NDArray[np.float64]:
        """Multiply out what is added to the matrix: float64 [n_rows, n_cols]."""
        return self.scaling * (self.b.astype(np.float64) @ self.a.astype(np.float64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoraAdapter:
    """A LoRA adapter.

    Parameters
    ----------
    name
        Name of its directory.
    base_name
        What the adapter says that it was trained on; empty if it does not say.
    targets
        Canonical matrix name to `LoraTarget`, in model order.
    notes
        Keys not used and the like, one sentence each, to be shown to the user.
    """

    name: str
    base_name: str
    targets: Mapping[str, LoraTarget]
    notes: tuple[str, ...] = ()

    @property
    def max_rank(self) -> int:
        """Largest rank of all targets."""
        return max(target.rank for target in self.targets.values())

    @property
    def sha256(self) -> str:
        """Digest of every factor and scaling, hexadecimal; names and notes take no part."""
        digest = hashlib.sha256()
        for name, target in self.targets.items():
            head = f"{name} {target.rank} {target.scaling.hex()}\n"
            digest.update(head.encode())
            digest.update(np.ascontiguousarray(target.a, dtype="<f4").tobytes())
            digest.update(np.ascontiguousarray(target.b, dtype="<f4").tobytes())
        return digest.hexdigest()

    def check_fits(self, spec: ModelSpec) -> None:
        """Check that every target is a matrix of a model, with factors of its shape.

        Raises
        ------
        SpecError
            If one is not.
        """
        shapes = projection_shapes(spec)
        expected = {
            layer_tensor(layer, part): shape
            for layer in range(spec.n_layers)
            for part, shape in shapes.items()
        }
        for name, target in self.targets.items():
            found = (target.b.shape[0], target.a.shape[1])
            if expected.get(name) != found:
                listed = list(expected[name]) if name in expected else "absent"
                raise SpecError(
                    f"matrix {name!r} of model {spec.name!r} must have the shape {list(found)} of "
                    f"adapter {self.name!r}, not {listed!r}; the adapter was made for another base"
                )


def read_adapter(directory: Path, spec: ModelSpec) -> LoraAdapter:
    """Read a LoRA adapter that PEFT saved, for a model.

    Parameters
    ----------
    directory
        Holds ``adapter_config.json`` and ``adapter_model.safetensors``.
    spec
        The model that the adapter will be added to.

    Returns
    -------
    LoraAdapter
        Every tensor of the file is in it.

    Raises
    ------
    FormatError
        If a file is missing or corrupt, the adapter is of a kind that is not supported (DoRA, saved
        modules, biases), has a target that is none of the seven projections, or has nothing to
        apply.
    SpecError
        If the adapter was made for a base of another shape.
    """
    path = directory / _CONFIG
    where = str(path)
    keys = ConfigKeys(
        {
            key: None if value in ([], {}) else value
            for key, value in read_json_object(path).items()
        },
        where=where,
    )
    kind = keys.required("peft_type")
    if kind != "LORA":
        raise FormatError(f"{where}: key 'peft_type' must be 'LORA', not {kind!r}")
    keys.require_neutral(_NEUTRAL, "such an adapter cannot be applied; merge it into its base")
    pairs = _pair_factors(directory)
    ranks = _Pattern(keys, "r", "rank_pattern", where)
    alphas = _Pattern(keys, "lora_alpha", "alpha_pattern", where)
    is_rslora = keys.optional("use_rslora", False, "PEFT's default")
    if not isinstance(is_rslora, bool):
        raise FormatError(f"{where}: key 'use_rslora' must be true or false, not {is_rslora!r}")
    targets = {}
    for (layer, part), (module, a, b) in sorted(pairs.items()):
        rank, alpha = ranks.value(module), alphas.value(module)
        if a.shape[0] != rank or b.shape[1] != rank:
            raise FormatError(
                f"{directory / _WEIGHTS}: rank of {module!r} must be {rank} as in {_CONFIG}, "
                f"not {a.shape[0]!r} (A) and {b.shape[1]!r} (B)"
            )
        name = layer_tensor(layer, part)
        targets[name] = LoraTarget(
            name=name,
            alpha=float(alpha),
            scaling=alpha / math.sqrt(rank) if is_rslora else alpha / rank,
            a=a,
            b=b,
        )
    _check_targets_used(keys.peek("target_modules"), pairs, where)
    notes = list(keys.finish(_SILENT))
    base_name = str(keys.peek("base_model_name_or_path", ""))
    if base_name:  # only shapes can be checked, and other bases have the same
        notes.append(
            f"{directory.resolve().name}: adapter says that it was trained on "
            f"{_without_folders(base_name)!r}"
        )
    if not any(target.b.any() for target in targets.values()):
        notes.append(f"{directory.resolve().name}: every B is zero; the adapter changes nothing")
    adapter = LoraAdapter(
        name=directory.resolve().name,
        base_name=base_name,
        targets=targets,
        notes=tuple(notes),
    )
    adapter.check_fits(spec)
    return _interleave(adapter, spec)


def _without_folders(name: str) -> str:
    """Leave ``owner/model`` as it is; of a path, give the last part: notes go into descriptions."""
    if re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name):
        return name
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


class _Pattern:
    """A number for each module: a default, and exceptions by regular expression."""

    def __init__(self, keys: ConfigKeys, default_key: str, pattern_key: str, where: str) -> None:
        self._default = keys.required(default_key)
        self._exceptions = keys.peek(pattern_key, {})
        if not isinstance(self._exceptions, dict):
            raise FormatError(
                f"{where}: key {pattern_key!r} must be an object, not {self._exceptions!r}"
            )
        for pattern in self._exceptions:
            try:
                re.compile(pattern)
            except re.error as error:
                raise FormatError(
                    f"{where}: each key of {pattern_key!r} must be a regular expression, "
                    f"not {pattern!r} ({error})"
                ) from None
        values = [(default_key, self._default)]
        values += [(f"{pattern_key}.{key}", each) for key, each in self._exceptions.items()]
        for key, value in values:
            is_whole = isinstance(value, int) or default_key == "lora_alpha"
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not is_whole or not 0 < value < math.inf:
                condition = "a positive number" if default_key == "lora_alpha" else "at least 1"
                raise FormatError(f"{where}: key {key!r} must be {condition}, not {value!r}")

    def value(self, module: str) -> Any:
        """Return the number of one module, as PEFT's ``get_pattern_key`` finds it."""
        for pattern, value in self._exceptions.items():
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        return self._default


_Pairs = dict[tuple[int, str], tuple[str, NDArray[np.float32], NDArray[np.float32]]]


def _pair_factors(directory: Path) -> _Pairs:
    """Read all factors: (layer, projection) -> (PEFT's module name, A, B)."""
    path = directory / _WEIGHTS
    if not path.is_file():
        raise FormatError(
            f"{directory}: adapter directory must hold {_WEIGHTS}, not only "
            f"{', '.join(sorted(each.name for each in directory.iterdir()))}; "
            "save the adapter with save_pretrained(..., safe_serialization=True)"
        )
    file = SafetensorsFile(path)
    factors: dict[tuple[int, str], dict[str, NDArray[np.float32]]] = {}
    modules: dict[tuple[int, str], str] = {}
    for name in file.entries:
        match = _FACTOR.fullmatch(name)
        part = _PROJECTION_OF.get(match[3]) if match else None
        if match is None or part is None:
            raise FormatError(
                f"{path}: tensor {name!r} must be a LoRA factor of one of "
                f"{', '.join(_PROJECTION_OF)}, not of something else; train the adapter on these "
                "modules only"
            )
        values = file.read(name)
        if values.ndim != 2:
            raise FormatError(
                f"{path}: tensor {name!r} must be a matrix, not of shape {list(values.shape)!r}"
            )
        try:
            check_finite(values, name)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
        target = (int(match[2]), part)
        if modules.setdefault(target, match[1]) != match[1]:
            raise FormatError(
                f"{path}: factors of layer {target[0]} must be of one module, not of both "
                f"{modules[target]!r} and {match[1]!r}; save the adapter again"
            )
        factors.setdefault(target, {})[match[4]] = values
    if not factors:
        raise FormatError(
            f"{path}: adapter must have factors to apply, not 0 tensors; it was saved before it "
            "was trained, or by another program"
        )
    for target, found in factors.items():
        if len(found) != 2:
            raise FormatError(
                f"{path}: module {modules[target]!r} must have lora_A and lora_B, "
                f"not only lora_{next(iter(found))}"
            )
    return {target: (modules[target], found["A"], found["B"]) for target, found in factors.items()}


def _check_targets_used(listed: Any, pairs: _Pairs, where: str) -> None:
    """Refuse a target module that no tensor is for: it would be dropped in silence."""
    if not isinstance(listed, list):
        return  # a regular expression, or "all-linear"
    modules = [module for module, _, _ in pairs.values()]
    for target in listed:
        if not any(module == target or module.endswith(f".{target}") for module in modules):
            raise FormatError(
                f"{where}: each of target_modules must have factors in {_WEIGHTS}, "
                f"not {target!r} without any"
            )


def _interleave(adapter: LoraAdapter, spec: ModelSpec) -> LoraAdapter:
    """Bring rows of B of queries and keys into the canonical order."""
    targets = {}
    for name, target in adapter.targets.items():
        if name.split(".")[-2] in ROTARY_PROJECTIONS:
            target = LoraTarget(
                name=name,
                alpha=target.alpha,
                scaling=target.scaling,
                a=target.a,
                b=interleave_rotary_rows(target.b, spec.head_dim),
            )
        targets[name] = target
    return LoraAdapter(
        name=adapter.name, base_name=adapter.base_name, targets=targets, notes=adapter.notes
    )
