"""Which format each tensor gets: shipped, unless the user or the target says otherwise."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from romsim_compiler.formats import SHIPPED_FORMATS, WeightFormat, check_format, parse_format
from romsim_compiler.groups import tensor_shapes
from romsim_compiler.target import Target
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec

__all__ = ["FormatChoice", "choose_formats", "parse_rules", "shape_formats"]

_EXACT = "ternary-exact"
_GROUPED_TERNARY = ("tq1_0", "tq2_0")

Rule = tuple[str, WeightFormat]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatChoice:
    """The format of one tensor, and how it came about."""

    tensor: str
    fmt: WeightFormat
    shipped: str  # format in the file
    requantised: bool  # the values were rounded here

    @property
    def is_recorded(self) -> bool:
        """Whether the format does not follow from the file's own."""
        return self.fmt != SHIPPED_FORMATS.get(self.shipped)


def parse_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """Read rules ``pattern=format``; the last that matches a tensor wins.

    A pattern is a shell pattern over canonical names, such as ``blk.*.ffn_down.weight=int4g64``.

    Raises
    ------
    SpecError
        If a rule has no ``=`` or names no format.
    """
    rules = []
    for text in texts:
        pattern, equals, name = text.rpartition("=")
        if not equals or not pattern:
            raise SpecError(
                f"Quantisation rule must be PATTERN=FORMAT such as "
                f"'blk.*.ffn_down.weight=int4g32', not {text!r}"
            )
        rules.append((pattern, parse_format(name)))
    return tuple(rules)


def _default(tensor: str, target: Target) -> WeightFormat:
    """Return the format of a float tensor that no rule names."""
    array = target.array
    if tensor in ("token_embd.weight", "output.weight"):
        return parse_format(f"int8g{max(32, min(128, array.scale_group))}")
    if array.encoding == "ternary":
        return parse_format("ternary")
    bits = 2 if array.lane_bits == 2 and array.scale_group == 128 else 4
    if array.min_bits == 0:
        return parse_format(f"sym{bits}g{array.scale_group}")
    return parse_format(f"int{bits}g{max(32, array.scale_group)}")


def choose_formats(
    spec: ModelSpec,
    shipped: Mapping[str, str],
    target: Target,
    rules: Sequence[Rule] = (),
) -> dict[str, FormatChoice]:
    """Return the choice for every matrix of the model.

    Parameters
    ----------
    shipped
        Format of each tensor in the file.

    Raises
    ------
    SpecError
        If a rule matches nothing, or a format does not fit the target or the tensor's axis.
    """
    shapes = tensor_shapes(spec)
    for pattern, _ in rules:
        if not fnmatch.filter(shapes, pattern):
            raise SpecError(
                f"Quantisation rule {pattern!r} must match a matrix of the model, not none; "
                f"names are such as {next(iter(shapes))!r} and 'blk.0.attn_q.weight'"
            )
    choices = {}
    for tensor, (_, n_cols) in shapes.items():
        wanted = [fmt for pattern, fmt in rules if fnmatch.fnmatchcase(tensor, pattern)]
        held = shipped[tensor]
        if wanted:
            fmt, requantised = wanted[-1], wanted[-1].name != _EXACT
        elif held in _GROUPED_TERNARY and target.array.encoding == "ternary":
            # The words of ternary lanes have one scale for the matrix: its groups must agree on it.
            fmt, requantised = parse_format(_EXACT), False
        elif held in SHIPPED_FORMATS:
            fmt, requantised = SHIPPED_FORMATS[held], False
        else:
            fmt, requantised = _default(tensor, target), True
        if fmt.group and n_cols % fmt.group:
            legal = ", ".join(str(g) for g in (32, 64, 128) if n_cols % g == 0) or "none"
            raise SpecError(
                f"Group of format {fmt.name!r} must divide the {n_cols} columns of tensor "
                f"{tensor!r}, not leave {n_cols % fmt.group}; legal groups: {legal}"
            )
        if _in_rom(tensor, spec, target):
            check_format(fmt, target, tensor)
        choices[tensor] = FormatChoice(
            tensor=tensor, fmt=fmt, shipped=held, requantised=requantised
        )
    return choices


def _in_rom(tensor: str, spec: ModelSpec, target: Target) -> bool:
    """Return whether the target keeps a matrix in ROM; a tied embedding is there for either use."""
    home = target.embedding
    if tensor == "token_embd.weight":
        return home.input == "rom" or (spec.tie_embeddings and home.head == "rom")
    return tensor != "output.weight" or home.head == "rom"


def shape_formats(
    spec: ModelSpec, target: Target, weights: WeightFormat | None
) -> dict[str, FormatChoice]:
    """Return the choice for every matrix of a shape without weights.

    Parameters
    ----------
    weights
        Format of all matrices; ``None`` takes the target's own.
    """
    choices = {}
    for tensor, (_, n_cols) in tensor_shapes(spec).items():
        fmt = weights or _default(tensor, target)
        if fmt.group and n_cols % fmt.group:
            raise SpecError(
                f"Group of format {fmt.name!r} must divide the {n_cols} columns of tensor "
                f"{tensor!r}, not leave {n_cols % fmt.group}; use a smaller group"
            )
        if _in_rom(tensor, spec, target):
            check_format(fmt, target, tensor)
        choices[tensor] = FormatChoice(tensor=tensor, fmt=fmt, shipped="shape", requantised=False)
    return choices
