"""Faults in the ROM images of a chip: flipped bits, scales one off, swapped heads, program fields.

A fault changes the image files that the RTL reads and nothing else, so that no simulation is built
anew. Bits that no hardware reads, the padding of a word or of a matrix, are never chosen.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from romsim_compiler.description import Description
from romsim_compiler.program import PlacedGroup
from romsim_models.errors import SpecError
from romsim_rtl.encoding import FIELDS, OPS, WORD_BITS
from romsim_rtl.rom_files import PROGRAMS, program_words

__all__ = ["FAULT_KINDS", "Fault", "choose_faults", "write_faulty"]

# Fields that place or count something, by operator; the rest of a word is not read by it.
_FIELDS_READ: Mapping[str, tuple[str, ...]] = {
    "matvec": ("base", "steps", "wpc", "planes", "n_rows", "grid", "out_shift", "first_row"),
    "embed": ("base", "wpc", "planes"),
    "norm": ("gain_base", "gain_shift", "n_cols"),
    "attn": ("layer",),
}
_GAIN_BITS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Parameters
    ----------
    kind
        One of `FAULT_KINDS`.
    what
        Where it is and what it changes.
    edits
        Image file, byte offset, and the bits to invert there.
    gain
        Of a gain: its norm, its index and the bits; None for all others.
    """

    kind: str
    what: str
    edits: tuple[tuple[str, int, int], ...]
    gain: tuple[str, int, int] | None = None


class _Images:
    """The words of the images, by the formulas of docs/machine.md, section 2."""

    def __init__(self, description: Description, programs: Sequence[str]) -> None:
        self.description = description
        self.array = description.target.array
        starts, self.program = program_words(description)
        ends = [*starts[1:], len(self.program)]
        self.executed = [
            number
            for name, start, end in zip(PROGRAMS, starts, ends, strict=True)
            if name in programs
            for number in range(start, end)
        ]

    def word(self, group: PlacedGroup, row: int, word: int, plane: int) -> tuple[str, int]:
        """Give the file and the address of a word of a row."""
        mapping, array = group.mapping, self.array
        step, inside = divmod(row, mapping.rows_per_step)
        tile, local = divmod(inside, array.n_cells // mapping.ks)
        cell = local * mapping.ks + word // mapping.wpc
        address = group.base + (step * mapping.wpc + word % mapping.wpc) * mapping.planes + plane
        return f"t{tile}_c{cell}.bin", address

    def value(self, group: PlacedGroup, row: int, word: int, plane: int) -> int:
        """Give the whole word."""
        file, address = self.word(group, row, word, plane)
        tile, cell = map(int, file[1:-4].split("_c"))
        raw = self.description.rom_words(address, 1)[0, tile, cell]
        return int.from_bytes(raw.tobytes(), "little")

    def edits(self, file: str, word_bytes: int, address: int, mask: int) -> list[_Edit]:
        """Invert the bits of a mask in a word; words stand most significant byte first."""
        last = (address + 1) * word_bytes - 1
        return [
            (file, last - place, mask >> 8 * place & 255)
            for place in range(word_bytes)
            if mask >> 8 * place & 255
        ]

    def rom_edits(
        self, group: PlacedGroup, row: int, word: int, plane: int, mask: int
    ) -> list[_Edit]:
        file, address = self.word(group, row, word, plane)
        return self.edits(file, self.array.word_bytes, address, mask)


_Edit = tuple[str, int, int]


def _place(images: _Images, rng: random.Random) -> tuple[PlacedGroup, int, int, int]:
    """Choose a matrix by its size, a row, a column and a plane."""
    groups = list(images.description.groups.values())
    sizes = [g.mapping.n_rows * g.mapping.n_cols * g.mapping.planes for g in groups]
    group = rng.choices(groups, sizes)[0]
    mapping = group.mapping
    return (
        group,
        rng.randrange(mapping.n_rows),
        rng.randrange(mapping.n_cols),
        rng.randrange(mapping.planes),
    )


def _code(images: _Images, rng: random.Random) -> Fault:
    group, row, column, plane = _place(images, rng)
    word, lane = divmod(column, images.array.word_codes)
    bit = rng.randrange(images.array.lane_bits)
    return Fault(
        kind="code",
        what=f"bit {bit} of plane {plane} of {group.name}[{row}, {column}]",
        edits=tuple(
            images.rom_edits(group, row, word, plane, 1 << lane * images.array.lane_bits + bit)
        ),
    )


def _scale(images: _Images, rng: random.Random) -> Fault | None:
    group, row, column, _ = _place(images, rng)
    array = images.array
    if not group.group:
        return None  # one scale for the matrix: it stands in the program
    word, lane = divmod(column, array.word_codes)
    field = lane // array.scale_group
    is_minimum = group.has_minimum and rng.random() < 0.5
    at = array.word_codes * array.lane_bits + 16 * field
    if is_minimum:
        at += 16 * array.n_scales
    before = images.value(group, row, word, 0) >> at & 0xFFFF
    by = 1 if before & 0x3FF == 0 else -1 if before & 0x3FF == 0x3FF else rng.choice((1, -1))
    name = "minimum" if is_minimum else "scale"
    return Fault(
        kind="scale",
        what=f"{name} of {group.name}[{row}, {column}] {by:+d}",
        edits=tuple(images.rom_edits(group, row, word, 0, (before ^ before + by) << at)),
    )


def _gain(images: _Images, rng: random.Random) -> Fault:
    description = images.description
    lanes = description.target.vector.n_lanes
    name = rng.choice(list(description.gains))
    first = 0
    for other, gain in description.gains.items():
        if other == name:
            break
        first += -(-gain.values.size // lanes)
    index = rng.randrange(description.gains[name].values.size)
    bit = rng.randrange(_GAIN_BITS)
    mask = 1 << 32 * (index % lanes) + bit
    return Fault(
        kind="gain",
        what=f"bit {bit} of {name}[{index}]",
        edits=tuple(images.edits("gains.bin", 4 * lanes, first + index // lanes, mask)),
        gain=(name, index, 1 << bit),
    )


def _program(images: _Images, rng: random.Random) -> Fault | None:
    number = rng.choice(images.executed)
    word = images.program[number]
    values, places, at = {}, {}, 0
    for name, (bits, _) in FIELDS.items():
        values[name], places[name] = word >> at & (1 << bits) - 1, at
        at += bits
    op = list(OPS)[values["op"]]
    if op not in _FIELDS_READ:
        return None
    field = rng.choice(_FIELDS_READ[op])
    bits, _ = FIELDS[field]
    by = rng.choice((1, -1))
    if field == "n_rows" and by == 1:
        cells = images.array.n_tiles * images.array.n_cells
        if values["n_rows"] == values["steps"] * (cells >> values["ks_log2"]):
            return None  # every row that the steps make is there: one more is never made
    after = values[field] + by & (1 << bits) - 1
    mask = (values[field] ^ after) << places[field]
    return Fault(
        kind="program",
        what=f"{field} of instruction {number} ({op}) {by:+d}, from {values[field]}",
        edits=tuple(images.edits("program.bin", -(-WORD_BITS // 8), number, mask)),
    )


def _heads(images: _Images, rng: random.Random) -> Fault | None:
    spec = images.description.spec
    groups = [
        (group, first, rows // spec.head_dim, part)
        for group in images.description.groups.values()
        for _, part, first, rows in group.members
        if part in ("q", "k", "v") and rows >= 2 * spec.head_dim
    ]
    if not groups:
        return None
    group, first, n_heads, part = rng.choice(groups)
    one, other = rng.sample(range(n_heads), 2)
    edits: list[_Edit] = []
    n_words = -(-group.mapping.n_cols // images.array.word_codes)
    for index in range(spec.head_dim):
        rows = [first + head * spec.head_dim + index for head in (one, other)]
        for word in range(n_words):
            for plane in range(group.mapping.planes):
                mask = images.value(group, rows[0], word, plane)
                mask ^= images.value(group, rows[1], word, plane)
                for row in rows:
                    edits += images.rom_edits(group, row, word, plane, mask)
    return Fault(
        kind="heads",
        what=f"heads {one} and {other} of {part} of {group.name} swapped",
        edits=tuple(edits),
    )


_CHOICES: Mapping[str, Callable[[_Images, random.Random], Fault | None]] = {
    "code": _code,
    "scale": _scale,
    "gain": _gain,
    "program": _program,
    "heads": _heads,
}
FAULT_KINDS = tuple(_CHOICES)
"""Kinds of faults: bits of codes and gains, scales and minima and program fields one off, heads."""


def choose_faults(
    description: Description,
    *,
    count: int,
    seed: int,
    kinds: Sequence[str] = FAULT_KINDS,
    programs: Sequence[str] = PROGRAMS,
) -> list[Fault]:
    """Choose different faults, as many of each kind; the same seed gives the same ones.

    Parameters
    ----------
    description
        A compiled chip with images.
    count
        Faults of each kind; fewer where there are no more (swapped heads).
    seed
        Of the choice.
    kinds
        Some of `FAULT_KINDS`.
    programs
        Programs whose instructions are changed: those that will be executed.

    Raises
    ------
    SpecError
        If a kind is unknown or the count is not positive.
    """
    if count < 1:
        raise SpecError(f"Faults of each kind must be at least 1, not {count!r}")
    unknown = [kind for kind in kinds if kind not in FAULT_KINDS]
    if unknown:
        raise SpecError(f"Kind of fault must be of {', '.join(FAULT_KINDS)}, not {unknown[0]!r}")
    images = _Images(description, programs)
    faults: list[Fault] = []
    for kind in kinds:
        rng = random.Random(f"{seed} {kind}")
        found: dict[tuple[_Edit, ...], Fault] = {}
        for _ in range(20 * count):
            fault = _CHOICES[kind](images, rng)
            if fault is not None and fault.edits and len(found) < count:
                found.setdefault(tuple(sorted(fault.edits)), fault)
        faults += found.values()
    return faults


def write_faulty(images: Path, fault: Fault, folder: Path) -> None:
    """Fill a folder with a chip's images, one fault in them; what is unchanged is linked.

    Parameters
    ----------
    images
        The chip's own binary images.
    fault
        What to change.
    folder
        An empty folder.
    """
    changed = {file for file, _, _ in fault.edits}
    for path in sorted(images.iterdir()):
        if path.name not in changed:
            (folder / path.name).symlink_to(path)
            continue
        shutil.copyfile(path, folder / path.name)
        with (folder / path.name).open("r+b") as stream:
            for file, offset, mask in fault.edits:
                if file == path.name:
                    stream.seek(offset)
                    byte = stream.read(1)[0]
                    stream.seek(offset)
                    stream.write(bytes([byte ^ mask]))
