"""Formats of weights in ROM: how wide a code is, what it means, and what stands beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from romsim_compiler.target import Array, Target
from romsim_models.errors import SpecError

__all__ = ["SHIPPED_FORMATS", "WeightFormat", "check_format", "parse_format"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """One way to hold a matrix in ROM.

    ``value = scale * (code - offset) + minimum`` per group of ``group`` codes along the input
    axis; ``group = 0`` means one scale for the whole matrix.

    Raises
    ------
    SpecError
        If codes with one scale for the whole matrix have an offset: words that are absent from a
        row are all zeros, and a cell multiplies them by whatever its x buffer has there.
    """

    name: str
    code_bits: int
    kind: str  # "unsigned" or "ternary"
    offset: int
    group: int
    has_minimum: bool

    def __post_init__(self) -> None:
        if self.group == 0 and self.offset:
            raise SpecError(
                f"Offset of format {self.name!r} must be 0 with one scale for the whole matrix, "
                f"not {self.offset}; give its codes groups"
            )

    def planes(self, array: Array) -> int:
        """Return the number of words (one per code plane) that a group of lanes needs."""
        if self.kind == "ternary":
            return 1
        return -(-self.code_bits // array.plane_shift)

    def bits_per_weight(self) -> float:
        """Return bits per weight with scales and minima counted (whole-matrix scale: none)."""
        if self.group == 0:
            return float(self.code_bits)
        return self.code_bits + (32 if self.has_minimum else 16) / self.group


SHIPPED_FORMATS = {
    "q4_0": WeightFormat(
        name="q4_0", code_bits=4, kind="unsigned", offset=8, group=32, has_minimum=False
    ),
    "q4_1": WeightFormat(
        name="q4_1", code_bits=4, kind="unsigned", offset=0, group=32, has_minimum=True
    ),
    "q8_0": WeightFormat(
        name="q8_0", code_bits=8, kind="unsigned", offset=128, group=32, has_minimum=False
    ),
    "tq1_0": WeightFormat(
        name="tq1_0", code_bits=2, kind="unsigned", offset=1, group=256, has_minimum=False
    ),
    "tq2_0": WeightFormat(
        name="tq2_0", code_bits=2, kind="unsigned", offset=1, group=256, has_minimum=False
    ),
    "i2_s": WeightFormat(
        name="i2_s", code_bits=2, kind="ternary", offset=0, group=0, has_minimum=False
    ),
    "bitnet": WeightFormat(
        name="bitnet", code_bits=2, kind="ternary", offset=0, group=0, has_minimum=False
    ),
}

_NAME = re.compile(r"(int4|int2|int8|sym4|sym2)(?:g(\d+))?|ternary(-exact)?")


def parse_format(text: str) -> WeightFormat:
    """Return the format that ``text`` names.

    ``int4g32``, ``int2g128``, ``int8g32`` (group 32 when left out), ``ternary``; ``sym4g128`` and
    ``sym2g128`` have a scale and no minimum and are for shapes without weights. ``ternary`` makes
    weights ternary by their mean magnitude; ``ternary-exact`` refuses what is not ternary already.

    Raises
    ------
    SpecError
        If the text names no format.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise SpecError(
            f"Weight format must be int2, int4 or int8 with an optional group such as int4g64, "
            f"ternary or ternary-exact, not {text!r}"
        )
    if text.startswith("ternary"):
        return WeightFormat(
            name=text, code_bits=2, kind="ternary", offset=0, group=0, has_minimum=False
        )
    kind, group = match[1], int(match[2] or 32)
    if group not in (32, 64, 128):
        raise SpecError(f"Weight format group must be 32, 64 or 128, not {group} in {text!r}")
    bits = int(kind[3:])
    return WeightFormat(
        name=f"{kind}g{group}",
        code_bits=bits,
        kind="unsigned",
        offset=128 if bits == 8 else (1 << (bits - 1)) if kind.startswith("sym") else 0,
        group=group,
        has_minimum=kind in ("int4", "int2"),
    )


def check_format(fmt: WeightFormat, target: Target, tensor: str) -> None:
    """Refuse a format that the target's ROM words cannot hold.

    Raises
    ------
    SpecError
        If a group is smaller than the array's sub-sums, or the array has no minima.
    """
    array = target.array
    if fmt.group and fmt.group % array.scale_group:
        raise SpecError(
            f"Weight group of tensor {tensor!r} must be a multiple of {array.scale_group} codes on "
            f"target {target.name!r}, not {fmt.group} (format {fmt.name!r}); use a target with "
            f"smaller sub-sums such as 'roma-7nm-g32', or re-quantise the tensor with a group of "
            f"{array.scale_group}"
        )
    if fmt.group and array.scale_bits == 0:
        raise SpecError(
            f"Format {fmt.name!r} of tensor {tensor!r} must have one scale for the whole matrix on "
            f"target {target.name!r}, whose ROM words hold no scales; use 'ternary' or a target "
            f"with scale_bits = 16"
        )
    if fmt.has_minimum and array.min_bits == 0:
        raise SpecError(
            f"Format {fmt.name!r} of tensor {tensor!r} must have no minimum on target "
            f"{target.name!r}, whose ROM words hold scales only; use a target with minima such as "
            f"'roma-7nm-g32'"
        )
    if fmt.kind == "ternary" and array.encoding != "ternary":
        raise SpecError(
            f"Target {target.name!r} must have array.encoding 'ternary' for the ternary tensor "
            f"{tensor!r}, not {array.encoding!r}; use a target such as 'tom-7nm-int8' or "
            f"'small-ternary', or int2 codes"
        )
