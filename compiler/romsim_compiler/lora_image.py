"""LoRA adapters as the chip has them: quantised, measured, saved (docs/numerics.md, section 6)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.formats import SHIPPED_FORMATS
from romsim_compiler.groups import Group, layer_groups
from romsim_compiler.lora_blocks import (
    block_grid,
    block_values,
    product_squares,
    quantize_blocks,
    relative_error,
)
from romsim_compiler.lora_ternary import (
    TernaryProjection,
    ternary_from_json,
    ternary_projections,
    ternary_to_json,
)
from romsim_compiler.lora_words import check_lora_capacity, lora_bits
from romsim_compiler.target import MX_BLOCK, Target
from romsim_models.errors import DescriptionError, SpecError
from romsim_models.lora import LoraAdapter, LoraTarget
from romsim_models.spec import ModelSpec

__all__ = [
    "LoraAdapterImage",
    "LoraImage",
    "LoraProjection",
    "build_lora",
    "load_lora",
    "save_lora",
]

_INDEX, _CODES = "lora.json", "lora.bin"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoraProjection:
    """The adapter of one matrix: ``y += B (A x)``, the scaling folded into B.

    Parameters
    ----------
    tensor, operator
        Canonical name and operator of the matrix.
    first_row, n_rows
        Rows of its group.
    rank
        Rank of the float adapter.
    a_codes, a_exps
        int8 [padded rank, K] and int8 [padded rank, ceil(K / 32)].
    b_codes, b_exps
        int8 [n_rows, padded rank] and int8 [n_rows, padded rank / block].
    grid_a, grid_b
        Grids ``γ_A`` and ``γ_B``.
    error
        Relative root-mean-square error of B·A against the float adapter, to six digits.
    """

    tensor: str
    operator: str
    first_row: int
    n_rows: int
    rank: int
    a_codes: NDArray[np.int8]
    a_exps: NDArray[np.int8]
    b_codes: NDArray[np.int8]
    b_exps: NDArray[np.int8]
    grid_a: int
    grid_b: int
    error: float

    def __post_init__(self) -> None:
        for array in (self.a_codes, self.a_exps, self.b_codes, self.b_exps):
            array.flags.writeable = False

    @property
    def block(self) -> int:
        """Elements of B's blocks: ``min(32, rank)``."""
        return min(MX_BLOCK, self.rank)

    @property
    def padded_rank(self) -> int:
        """Rank, padded to whole blocks."""
        return int(self.a_codes.shape[0])

    @property
    def size_bits(self) -> int:
        """Bits of all codes and exponents."""
        return 8 * sum(a.size for a in (self.a_codes, self.a_exps, self.b_codes, self.b_exps))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoraImage:
    """The adapter of one group, such as ``L0.qkv``.

    Parameters
    ----------
    name, layer
        Of the group.
    n_rows, n_cols
        Shape of the group.
    ranks
        Padded rank of each of the group's matrices, 0 for one without an adapter.
    projections
        Matrices with an adapter in MXINT8, in order of their rows.
    ternary
        Those with one in the adder arrays instead.
    """

    name: str
    layer: int
    n_rows: int
    n_cols: int
    ranks: tuple[int, ...]
    projections: tuple[LoraProjection, ...] = ()
    ternary: tuple[TernaryProjection, ...] = ()

    @property
    def adapted(self) -> tuple[LoraProjection | TernaryProjection, ...]:
        """Matrices with an adapter, on whichever path."""
        return (*self.projections, *self.ternary)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoraAdapterImage:
    """A resident adapter.

    Parameters
    ----------
    name
        Name by which a run chooses it.
    groups
        Group name to `LoraImage`; groups without an adapter are left out.
    error
        Relative root-mean-square error over all matrices together, to six digits.
    """

    name: str
    groups: Mapping[str, LoraImage]
    error: float

    @property
    def projections(self) -> tuple[LoraProjection | TernaryProjection, ...]:
        """All matrices with an adapter, in model order."""
        return tuple(p for image in self.groups.values() for p in image.adapted)

    @property
    def ranks(self) -> dict[str, int]:
        """Padded rank of each matrix with an adapter."""
        return {p.tensor: p.padded_rank for p in self.projections}

    @property
    def size_bits(self) -> int:
        """Bits of all codes and exponents, without what SRAM words leave unused."""
        return sum(p.size_bits for p in self.projections)

    def sram_bits(self, spec: ModelSpec, target: Target) -> int:
        """Bits of the SRAM words that the adapter takes in all tiles of a target."""
        return lora_bits(spec, self.ranks, target)

    def summary(self) -> dict[str, Any]:
        """Return ranks, sizes and errors as JSON-ready values."""
        projections = self.projections
        ternary = [p for image in self.groups.values() for p in image.ternary]
        factors: dict[str, Any] = {}
        if ternary:
            factors = {
                "forced": [p.tensor for p in ternary if p.is_forced],
                "factor_errors": {p.tensor: [p.a.error, p.b.error] for p in ternary},
            }
        return {
            **factors,
            "n_matrices": len(projections),
            "ranks": {p.tensor: p.rank for p in projections},
            "max_rank": max(p.rank for p in projections),
            "size_bits": self.size_bits,
            "error": self.error,
            "errors": {p.tensor: p.error for p in projections},
        }


def build_lora(
    name: str,
    adapter: LoraAdapter,
    *,
    spec: ModelSpec,
    target: Target,
    is_forced: bool = False,
) -> LoraAdapterImage:
    """Quantise an adapter, in the number format of the path that it takes on the target.

    Parameters
    ----------
    name
        Name by which a run will choose it.
    adapter
        Float factors of each matrix.
    spec, target
        Model that it belongs to, and chip whose SRAM it has to fit.
    is_forced
        Whether an adapter that is not ternary is made so where the adder arrays run it.

    Raises
    ------
    SpecError
        If the adapter belongs to another model, or applies to nothing.
    FormatError
        If a factor is out of MXINT8's range, or is not ternary where it has to be.
    CapacityError
        If the adapter alone does not fit the tiles' SRAM.
    """
    if not adapter.targets:
        raise SpecError(f"Adapter {name!r} must have a matrix to apply to, not none")
    adapter.check_fits(spec)
    images: dict[str, LoraImage] = {}
    squares: list[tuple[float, float]] = []
    for layer in range(spec.n_layers):
        # Any grouped format: adapters follow the fused groups whatever the base's formats.
        for group in layer_groups(spec, layer, lambda _: SHIPPED_FORMATS["q8_0"]):
            if target.lora.path == "adders":
                made = ternary_projections(group, adapter.targets, squares, is_forced=is_forced)
                image = _image(group, ternary=made)
            else:
                image = _image(group, projections=_quantised(group, adapter.targets, squares))
            if image.adapted:
                images[group.name] = image
    result = LoraAdapterImage(name=name, groups=images, error=relative_error(squares))
    check_lora_capacity(name, result.ranks, spec, target)
    return result


def _image(
    group: Group,
    *,
    projections: tuple[LoraProjection, ...] = (),
    ternary: tuple[TernaryProjection, ...] = (),
) -> LoraImage:
    made: tuple[LoraProjection | TernaryProjection, ...] = (*projections, *ternary)
    ranks = {p.tensor: p.padded_rank for p in made}
    return LoraImage(
        name=group.name,
        layer=group.layer,
        n_rows=group.n_rows,
        n_cols=group.n_cols,
        ranks=tuple(ranks.get(member.tensor, 0) for member in group.members),
        projections=projections,
        ternary=ternary,
    )


def _quantised(
    group: Group, targets: Mapping[str, LoraTarget], squares: list[tuple[float, float]]
) -> tuple[LoraProjection, ...]:
    projections = []
    for member in group.members:
        target = targets.get(member.tensor)
        if target is None:
            continue
        a, b = _padded_factors(target)
        block = min(MX_BLOCK, target.rank)
        a_codes, a_exps = quantize_blocks(a, MX_BLOCK, f"Factor A of {member.tensor!r}")
        b_codes, b_exps = quantize_blocks(b, block, f"Factor B of {member.tensor!r}, scaled")
        squares.append(
            product_squares(
                a, b, block_values(a_codes, a_exps, MX_BLOCK), block_values(b_codes, b_exps, block)
            )
        )
        projections.append(
            LoraProjection(
                tensor=member.tensor,
                operator=member.operator,
                first_row=member.first_row,
                n_rows=member.n_rows,
                rank=target.rank,
                a_codes=a_codes,
                a_exps=a_exps,
                b_codes=b_codes,
                b_exps=b_exps,
                grid_a=block_grid(a_codes, a_exps, MX_BLOCK),
                grid_b=block_grid(b_codes, b_exps, block),
                error=relative_error(squares[-1:]),
            )
        )
    return tuple(projections)


def _padded_factors(target: LoraTarget) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return A, and B times the scaling, in float64, the rank padded by zeros to whole blocks."""
    padding = -target.rank % min(MX_BLOCK, target.rank)
    a = np.pad(target.a.astype(np.float64), ((0, padding), (0, 0)))
    with np.errstate(over="ignore"):  # an infinity is refused by quantize_blocks
        b = np.pad(target.b.astype(np.float64) * target.scaling, ((0, 0), (0, padding)))
    return a, b


_ARRAYS = ("a_codes", "a_exps", "b_codes", "b_exps")


def save_lora(lora: LoraAdapterImage, folder: Path) -> None:
    """Write an adapter into a folder of its own: ``lora.json`` and the int8 arrays ``lora.bin``."""
    folder.mkdir(parents=True, exist_ok=True)
    at = 0
    groups = []
    with (folder / _CODES).open("wb") as file:

        def put(array: NDArray[np.int8]) -> dict[str, Any]:
            nonlocal at
            where = {"first": at, "shape": list(array.shape)}
            file.write(array.tobytes())
            at += array.size
            return where

        for image in lora.groups.values():
            entry: dict[str, Any] = {
                "name": image.name,
                "layer": image.layer,
                "n_rows": image.n_rows,
                "n_cols": image.n_cols,
                "ranks": list(image.ranks),
                "projections": [],
            }
            if image.ternary:
                entry["ternary"] = [ternary_to_json(each, put) for each in image.ternary]
            for p in image.projections:
                entry["projections"].append(
                    {
                        "tensor": p.tensor,
                        "operator": p.operator,
                        "first_row": p.first_row,
                        "n_rows": p.n_rows,
                        "rank": p.rank,
                        "grid_a": p.grid_a,
                        "grid_b": p.grid_b,
                        "error": p.error,
                        "arrays": {field: put(getattr(p, field)) for field in _ARRAYS},
                    }
                )
            groups.append(entry)
    index = {"name": lora.name, "error": lora.error, "n_bytes": at, "groups": groups}
    text = json.dumps(index, indent=1, sort_keys=True, allow_nan=False)
    (folder / _INDEX).write_text(text + "\n", encoding="utf-8", newline="\n")


def load_lora(folder: Path) -> LoraAdapterImage:
    """Read what `save_lora` wrote.

    Raises
    ------
    DescriptionError
        If a file is missing, or the arrays have another size than the index says.
    """
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        data = np.fromfile(folder / _CODES, dtype=np.int8)
    except (OSError, ValueError) as error:
        raise DescriptionError(
            f"{folder}: adapter must be readable from {_INDEX} and {_CODES}, not fail with "
            f"{error.__class__.__name__}; compile again"
        ) from None
    if data.size != index["n_bytes"]:
        raise DescriptionError(
            f"{folder / _CODES} must have {index['n_bytes']} bytes, not {data.size}; compile again"
        )

    def get(where: dict[str, Any]) -> NDArray[np.int8]:
        part: NDArray[np.int8] = data[where["first"] :][: math.prod(where["shape"])]
        return part.reshape(where["shape"])

    groups = {}
    for entry in index["groups"]:
        projections = []
        for values in entry.pop("projections"):
            arrays: dict[str, Any] = {f: get(where) for f, where in values.pop("arrays").items()}
            projections.append(LoraProjection(**values, **arrays))
        ternary = tuple(ternary_from_json(values, get) for values in entry.pop("ternary", ()))
        entry["ranks"] = tuple(entry["ranks"])
        groups[entry["name"]] = LoraImage(**entry, projections=tuple(projections), ternary=ternary)
    return LoraAdapterImage(name=index["name"], groups=groups, error=index["error"])
