"""Audit: everything burnt, read back through the placement and compared with the model file.

The cycle model and the RTL read the images, the integer reference the file; all of them could agree
on a fault of this compiler that they share. So the audit walks the ROM words address by address,
from the placement in the description, and compares what they hold with the file, read anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.audit_report import AuditReport, Difference, Tally
from romsim_compiler.encoded import BLOCK_WEIGHTS, RowSource, from_encoded
from romsim_compiler.formats import SHIPPED_FORMATS, WeightFormat, parse_format
from romsim_compiler.gains import GainVector, gain_vector
from romsim_compiler.grid import choose_grid
from romsim_compiler.program import PlacedGroup
from romsim_compiler.quantize import WHOLE_WEIGHTS, open_tensor, quantize_tensor
from romsim_compiler.rom_image import unpack_fields
from romsim_compiler.rope import phase_increments, query_scale
from romsim_compiler.tables import tables
from romsim_compiler.target import Array
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import EncodedTensor
from romsim_models.errors import DescriptionError, FormatError

if TYPE_CHECKING:
    from romsim_compiler.description import Description

__all__ = ["AuditReport", "Difference", "audit", "audit_description"]

_INVALID = 127
"""Stands for a ternary code 3, which no weight has."""


def audit(
    groups: Iterable[PlacedGroup],
    rom_words_of: Callable[[int, int], NDArray[np.uint8]],
    gains: Iterable[GainVector],
    checkpoint: Checkpoint,
    choices: Callable[[str], WeightFormat],
    *,
    array: Array,
    progress: Callable[[str, float], None] | None = None,
) -> AuditReport:
    """Read every code, scale, minimum and gain back and compare with the model file.

    A matrix that the file has in floating point is quantised again. Groups are streamed.

    Parameters
    ----------
    groups
        Placed groups.
    rom_words_of
        ROM words by first address and number: uint8 [n_words, n_tiles, n_cells, word_bytes].
    gains
        Norms; a norm's tensor is its name with ``.weight``.
    checkpoint
        The model file, read anew.
    choices
        Format of a tensor by canonical name.
    array
        Geometry of the ROM cells.
    progress
        Called with a group's name and the finished fraction.

    Raises
    ------
    DescriptionError
        If the model has other shapes than the description.
    RomsimError
        If the model file cannot be read.
    """
    tally = Tally()
    _audit_all(tally, groups, rom_words_of, gains, checkpoint, choices, array, progress)
    return tally.report()


def audit_description(
    description: Description,
    checkpoint: Checkpoint,
    *,
    progress: Callable[[str, float], None] | None = None,
) -> AuditReport:
    """Audit a compiled description, its tables and rotary constants included.

    Parameters
    ----------
    description
        As loaded from its folder.
    checkpoint
        The model file that it was compiled from.
    progress
        As `audit`.

    Raises
    ------
    DescriptionError, RomsimError
        As `audit`; also if the description has no images.
    """
    description.rom_words(0, 0)  # refuses a description without images
    chosen: Mapping[str, str] = description.manifest["model"]["choices"]
    shipped = checkpoint.formats()

    def format_of(tensor: str) -> WeightFormat:
        if tensor in chosen:
            return parse_format(chosen[tensor])
        fmt = SHIPPED_FORMATS.get(shipped[tensor])
        if fmt is None:
            raise DescriptionError(
                f"Format of tensor {tensor!r} must be recorded in the description where the file "
                f"has it in {shipped[tensor]!r}, but it is not; compile again from this file"
            )
        return fmt

    tally = Tally()
    _audit_all(
        tally,
        description.groups.values(),
        description.rom_words,
        description.gains.values(),
        checkpoint,
        format_of,
        description.target.array,
        progress,
    )
    spec = checkpoint.spec
    _audit_complete(tally, description, checkpoint)
    expected: dict[str, NDArray[np.int64]] = {
        **tables(),
        "phase increments": phase_increments(spec).astype(np.int64),
    }
    found: dict[str, NDArray[np.int64]] = {
        **description.tables,
        "phase increments": description.phase_increments.astype(np.int64),
    }
    for name, table in expected.items():
        held = found.get(name)
        if held is None or held.shape != table.shape:
            tally.add(name, "length", len(table), 0 if held is None else len(held))
            continue
        tally.compare(name, "entry", table, held)
        tally.count("constants", len(table))
    tally.constant("head_dim", "query scale", query_scale(spec.head_dim), description.query_scale)
    return tally.report()


def _audit_complete(tally: Tally, description: Description, checkpoint: Checkpoint) -> None:
    """Compare which tensors are there: of one that is not, no value can differ."""
    home, tied = description.target.embedding, checkpoint.spec.tie_embeddings
    off_chip = set()
    if home.input != "rom" and not (tied and home.head == "rom"):
        off_chip.add("token_embd.weight")
    if home.head != "rom":
        off_chip.add("output.weight")
    found = Counter(m[0] for g in description.groups.values() for m in g.members)
    found.update(f"{name}.weight" for name in description.gains)
    tensors = checkpoint.names()
    for name in [*tensors, *sorted(set(found) - set(tensors))]:
        expected = int(name in tensors and name not in off_chip)
        if found[name] != expected:
            tally.add(name, "number of places", expected, found[name])


def _audit_all(
    tally: Tally,
    groups: Iterable[PlacedGroup],
    rom_words_of: Callable[[int, int], NDArray[np.uint8]],
    gains: Iterable[GainVector],
    checkpoint: Checkpoint,
    choices: Callable[[str], WeightFormat],
    array: Array,
    progress: Callable[[str, float], None] | None,
) -> None:
    for gain in gains:
        _audit_gain(tally, gain, checkpoint)
    groups = list(groups)
    total = sum(g.mapping.n_rows * g.mapping.n_cols for g in groups)
    done = 0
    for group in groups:
        if progress is not None:
            progress(f"reading {group.name}", done / total)
        _audit_group(tally, group, rom_words_of, checkpoint, choices, array)
        done += group.mapping.n_rows * group.mapping.n_cols


class _FileMatrix:
    """A matrix of the model file, in the description's format."""

    def __init__(self, checkpoint: Checkpoint, name: str, fmt: WeightFormat) -> None:
        self.name = name
        self._checkpoint = checkpoint
        self._encoded: EncodedTensor | None = None
        if math.prod(checkpoint.shape(name)) > WHOLE_WEIGHTS or fmt.name == "ternary-exact":
            self._is_shipped = checkpoint.formats()[name] == fmt.name
            self.source: RowSource = open_tensor(checkpoint, name, fmt)
            return
        tensor = checkpoint.read(name)
        self._is_shipped = tensor.format == fmt.name
        if self._is_shipped and isinstance(tensor, EncodedTensor):
            self._encoded = tensor
            self.source = from_encoded(tensor)
        else:
            self.source = quantize_tensor(name, tensor.dequantize(), fmt)

    def rows(
        self, first: int, last: int
    ) -> tuple[NDArray[np.int16], NDArray[np.uint16], NDArray[np.uint16] | None]:
        """Return signed code values, scale words and minimum words of some rows."""
        if not self._is_shipped:
            block = self.source.rows(first, last)
            return block.values(), block.scale_bits, block.minimum_bits
        # As the file has them, not by way of `from_encoded`.
        encoded = self._encoded.rows(first, last) if self._encoded is not None else None
        if encoded is None:
            tensor = self._checkpoint.read_rows(self.name, first, last)
            assert isinstance(tensor, EncodedTensor)  # the checkpoint said so in `formats`
            encoded = tensor
        values = encoded.codes.astype(np.int16) - np.int16(encoded.code_offset)
        return values, encoded.scale_bits, encoded.minimum_bits


def _audit_group(
    tally: Tally,
    group: PlacedGroup,
    rom_words_of: Callable[[int, int], NDArray[np.uint8]],
    checkpoint: Checkpoint,
    choices: Callable[[str], WeightFormat],
    array: Array,
) -> None:
    mapping = group.mapping
    fmt = choices(group.members[0][0])
    for name in ("code_bits", "kind", "offset", "group", "has_minimum"):
        tally.constant(group.name, name, getattr(fmt, name), getattr(group, name))
    matrices = []
    for tensor, _, _, n_rows in group.members:
        if checkpoint.shape(tensor) != (n_rows, mapping.n_cols):
            raise DescriptionError(
                f"Shape of tensor {tensor!r} must be {[n_rows, mapping.n_cols]} as in the "
                f"description, not {list(checkpoint.shape(tensor))}; audit against the model that "
                f"was compiled"
            )
        matrices.append(_FileMatrix(checkpoint, tensor, choices(tensor)))
    _audit_constants(tally, group, [matrix.source for matrix in matrices])
    step_words = mapping.wpc * mapping.planes
    n_steps = max(1, BLOCK_WEIGHTS // (mapping.rows_per_step * mapping.n_cols))
    for step in range(0, mapping.steps, n_steps):
        n_here = min(n_steps, mapping.steps - step)
        first = step * mapping.rows_per_step
        last = min(first + n_here * mapping.rows_per_step, mapping.n_rows)
        words = rom_words_of(group.base + step * step_words, n_here * step_words)
        fields = unpack_fields(words, mapping, array, fmt, last - first, mapping.n_cols)
        if fields.n_stray:
            tally.add(group.name, "padding", "0", f"set in {fields.n_stray} words")
        for (_, _, member_row, n_rows), matrix in zip(group.members, matrices, strict=True):
            low, high = max(first, member_row), min(last, member_row + n_rows)
            if low >= high:
                continue
            here = slice(low - first, high - first)
            at = low - member_row
            values, scales, minima = matrix.rows(at, high - member_row)
            tally.compare(
                matrix.name, "code", values, _code_values(fields.codes[here], fmt), first_row=at
            )
            tally.count("codes", values.size)
            if not fmt.group:
                continue
            repeats = fmt.group // array.scale_group
            tally.compare(
                matrix.name,
                "scale",
                np.repeat(scales, repeats, axis=1),
                fields.scales[here],
                first_row=at,
            )
            tally.count("scales", scales.size)
            if minima is not None:
                tally.compare(
                    matrix.name,
                    "minimum",
                    np.repeat(minima, repeats, axis=1),
                    fields.minima[here],
                    first_row=at,
                )
                tally.count("minima", minima.size)


def _audit_constants(tally: Tally, group: PlacedGroup, sources: list[RowSource]) -> None:
    grid = choose_grid(sources)
    tally.constant(group.name, "grid", grid.grid, group.grid)
    tally.constant(group.name, "pre-shift", grid.pre_shift, group.pre_shift)
    expected = (sources[0].multiplier, sources[0].exponent)
    if not group.group:
        tally.count("scales", 1)
    if expected != (group.multiplier, group.multiplier_exp):
        tally.add(
            group.name,
            "scale",
            f"{expected[0]} * 2^{expected[1]}",
            f"{group.multiplier} * 2^{group.multiplier_exp}",
        )


def _code_values(codes: NDArray[np.uint8], fmt: WeightFormat) -> NDArray[np.int16]:
    if fmt.kind == "ternary":
        return np.array([0, 1, -1, _INVALID], dtype=np.int16)[codes]
    return codes.astype(np.int16) - np.int16(fmt.offset)


def _audit_gain(tally: Tally, gain: GainVector, checkpoint: Checkpoint) -> None:
    tensor = checkpoint.read(f"{gain.name}.weight")
    if isinstance(tensor, EncodedTensor):
        raise FormatError(
            f"Norm {gain.name!r} must be in floating point, not {tensor.format!r}; "
            "convert the file anew"
        )
    expected = gain_vector(
        gain.name, tensor.values, eps=checkpoint.spec.norm_eps, in_frac=gain.in_frac
    )
    for name, value in expected.scalars().items():
        tally.constant(gain.name, name, value, gain.scalars()[name])
    if expected.values.shape != gain.values.shape:
        tally.add(gain.name, "length", expected.values.size, gain.values.size)
        return
    tally.compare(gain.name, "gain", expected.values, gain.values)
    tally.count("gains", expected.values.size)
