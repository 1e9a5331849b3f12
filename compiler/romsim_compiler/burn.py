"""Burning: weights become ROM images and the numbers that the arithmetic needs beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim_compiler.choices import FormatChoice
from romsim_compiler.encoded import RowSource
from romsim_compiler.gains import GainVector, gain_vector
from romsim_compiler.grid import choose_grid
from romsim_compiler.groups import Group
from romsim_compiler.mapping import Mapping
from romsim_compiler.numerics import Numerics
from romsim_compiler.place import Placement
from romsim_compiler.program import PlacedGroup
from romsim_compiler.quantize import open_tensor
from romsim_compiler.rom_image import iter_packed
from romsim_compiler.rope import phase_increments, query_scale
from romsim_compiler.target import Target
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import FloatTensor
from romsim_models.errors import FormatError
from romsim_models.spec import ModelSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BurntModel", "burn", "norm_names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurntModel:
    """What burning yields beside the image files."""

    groups: tuple[PlacedGroup, ...]
    gains: dict[str, dict[str, Any]]
    phase_increments: NDArray[np.uint32]
    query_scale: int
    accuracy: dict[str, Any]


def norm_names(spec: ModelSpec) -> list[str]:
    """Return the gain vectors in program order."""
    names = []
    for layer in range(spec.n_layers):
        kinds = ["attn_norm", "ffn_norm"]
        if spec.has_sub_norms:
            kinds = ["attn_norm", "attn_sub_norm", "ffn_norm", "ffn_sub_norm"]
        names += [f"blk.{layer}.{kind}" for kind in kinds]
    return [*names, "output_norm"]


def burn(
    checkpoint: Checkpoint,
    choices: dict[str, FormatChoice],
    placement: Placement,
    target: Target,
    numerics: Numerics,
    folder: Path,
    report: Callable[[str, float], None],
) -> BurntModel:
    """Write ``rom.bin`` and ``gains.bin``, one group after another.

    Peak memory is a few times the largest matrix.
    """
    spec = checkpoint.spec
    gains = {n: _gain(checkpoint, n, numerics) for n in norm_names(spec)}
    placed = []
    rounded: dict[str, int] = {}
    errors: dict[str, float] = {}
    widest = 0
    done, total = 0, sum(g.n_rows * g.n_cols for g, _, _ in placement.entries)
    with (folder / "rom.bin").open("wb") as file:
        for group, mapping, base in placement.entries:
            report(f"burning {group.name}", 0.95 * done / total)
            tensors = [
                open_tensor(checkpoint, m.tensor, choices[m.tensor].fmt) for m in group.members
            ]
            errors |= {t.name: t.error for t in tensors if t.error is not None}
            entry, bits, n_rounded = _place(group, mapping, base, tensors, gains, spec, numerics)
            placed.append(entry)
            widest = max(widest, bits)
            if n_rounded:
                rounded[group.name] = n_rounded
            for words in iter_packed(tensors, mapping, target.array):
                file.write(words.data)
            done += group.n_rows * group.n_cols
    return BurntModel(
        groups=tuple(placed),
        gains=_write_gains(folder / "gains.bin", gains),
        phase_increments=phase_increments(spec),
        query_scale=query_scale(spec.head_dim),
        accuracy={
            "accumulator_bits": widest,
            "terms_rounded_by_grid": sum(rounded.values()),
            "groups_with_rounded_terms": rounded,
            "quantisation_error": {k: round(v, 8) for k, v in sorted(errors.items())},
        },
    )


def _gain(checkpoint: Checkpoint, name: str, numerics: Numerics) -> GainVector:
    tensor = checkpoint.read(f"{name}.weight")
    if not isinstance(tensor, FloatTensor):
        raise FormatError(
            f"Norm {name!r} must be in floating point, not {tensor.format!r}; convert the file anew"
        )
    sub = name.endswith("sub_norm")
    return gain_vector(
        name,
        tensor.values,
        eps=checkpoint.spec.norm_eps,
        in_frac=numerics.linear_frac if sub else numerics.residual_frac,
    )


def _place(
    group: Group,
    mapping: Mapping,
    base: int,
    tensors: list[RowSource],
    gains: dict[str, GainVector],
    spec: ModelSpec,
    numerics: Numerics,
) -> tuple[PlacedGroup, int, int]:
    grid = choose_grid(tensors)
    operator = group.members[0].operator
    layer = f"blk.{group.layer}."
    if operator in ("q", "k", "v"):
        in_frac = gains[layer + "attn_norm"].out_frac
    elif operator in ("gate", "up"):
        in_frac = gains[layer + "ffn_norm"].out_frac
    elif operator in ("head", "embd"):
        in_frac = gains["output_norm"].out_frac
    elif spec.has_sub_norms:
        name = "attn_sub_norm" if operator == "o" else "ffn_sub_norm"
        in_frac = gains[layer + name].out_frac
    else:
        in_frac = numerics.linear_frac
    out_frac = {
        "o": numerics.residual_frac,
        "down": numerics.residual_frac,
        "head": numerics.logit_frac,
        "embd": numerics.residual_frac,
    }.get(operator, numerics.linear_frac)
    placed = PlacedGroup(
        name=group.name,
        layer=group.layer,
        mapping=mapping,
        base=base,
        code_bits=group.fmt.code_bits,
        kind=group.fmt.kind,
        offset=group.fmt.offset,
        group=group.fmt.group,
        has_minimum=group.fmt.has_minimum,
        grid=grid.grid,
        in_frac=in_frac,
        out_frac=out_frac,
        multiplier=tensors[0].multiplier,
        multiplier_exp=tensors[0].exponent,
        pre_shift=grid.pre_shift,
        members=tuple((m.tensor, m.operator, m.first_row, m.n_rows) for m in group.members),
    )
    return placed, grid.max_abs_bits, grid.n_rounded_terms


def _write_gains(path: Path, gains: dict[str, GainVector]) -> dict[str, dict[str, Any]]:
    index: dict[str, dict[str, Any]] = {}
    first = 0
    with path.open("wb") as file:
        for name, gain in gains.items():
            file.write(np.ascontiguousarray(gain.values, dtype="<i4").tobytes())
            index[name] = {
                "first": first,
                "length": gain.values.size,
                **gain.scalars(),
            }
            first += gain.values.size
    return index
