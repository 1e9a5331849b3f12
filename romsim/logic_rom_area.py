"""Area of a whole model in logic ROM, from banks that were synthesised.

Banks are drawn from every matrix without replacement, by a seed of the matrix's own; each is
synthesised from its contents and proved equal to them. What zeros save is told against a bank of
random bits of the same shape that was synthesised the same way, since sharing alone saves much.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim.logic_rom_report import EncodingArea, LogicRomReport, MatrixArea
from romsim.logic_rom_sampling import (
    AreaFit,
    Estimate,
    estimate_total,
    fit_area,
    sum_estimates,
)
from romsim_compiler.description import Description
from romsim_compiler.program import PlacedGroup
from romsim_compiler.rom_encodings import ENCODINGS, Encoding, encode
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_bank_cache import BankTask, synthesise_all
from romsim_rtl.logic_rom import check_style
from romsim_rtl.model_banks import (
    BANK_WORDS,
    BankPlace,
    bank_bits,
    bank_places,
    block_rows,
    digit_bits,
    stored_columns,
)
from romsim_rtl.path_depth import path_depth_fo4

__all__ = ["logic_rom"]

_ADDRESSES_AT_A_TIME = 4096


def logic_rom(
    description: str | Path | Description,
    *,
    style: str = "patterns",
    sample: int = 4,
    bank_words: int = BANK_WORDS,
    with_encodings: bool = False,
    jobs: int = 1,
    progress: Callable[[float], None] | None = None,
) -> LogicRomReport:
    """Synthesise banks of every matrix and estimate the ROM of the whole model.

    Parameters
    ----------
    description
        A compiled chip, or its folder.
    style
        How banks are built, one of `romsim_rtl.logic_rom.STYLES`.
    sample
        Banks of each matrix; 0 for all of them.
    bank_words
        Words of a bank, a power of two.
    with_encodings
        Whether to build the sampled banks of ternary or 4-bit matrices in other encodings as well.
    jobs
        Banks built at once.

    Raises
    ------
    SpecError
        If an option is impossible, there are no weights, or no encodings for these codes.
    DescriptionError
        If the folder holds no description.
    ToolError
        If yosys or ABC is missing or fails.
    """
    check_style(style)
    if sample < 0:
        raise SpecError(f"Banks to sample must be 0 (all) or more, not {sample}")
    if not isinstance(description, Description):
        description = Description.load(description)
    if not description.has_images:
        raise SpecError(
            f"{description.path} must have ROM images to be synthesised, but it was compiled from "
            f"a shape without weights; compile a model with weights"
        )
    technology = load_technology(description.target.technology)
    if not technology.cell_function:
        raise SpecError(
            f"Technology {technology.name!r} must have cells with functions for logic ROM, but "
            f"has none; use a target in a technology with a cell table, such as asap7"
        )
    library = CellLibrary.of(technology)
    work = _Work(description, library, style, bank_words, jobs, progress)
    if with_encodings:
        work.check_encodings()
    work.draw(sample)
    work.run()
    depth = work.depth_fo4()
    return LogicRomReport(
        description=description.name,
        technology=technology.name,
        style=style,
        bank_words=bank_words,
        matrices=tuple(work.matrix(name) for name in work.places),
        joining_um2=work.joining_um2(),
        utilisation=technology["logic.utilisation"].range,
        depth_fo4=depth,
        period_ps=technology.clock_period_ps(depth),
        clock_mhz=description.target.clock_mhz,
        fit=work.fit(),
        encodings=tuple(work.encoding(e) for e in work.encodings),
    )


class _Work:
    """Banks drawn, built and added up."""

    def __init__(
        self,
        description: Description,
        library: CellLibrary,
        style: str,
        bank_words: int,
        jobs: int,
        progress: Callable[[float], None] | None,
    ) -> None:
        self._description = description
        self._array = description.target.array
        self._library, self._style, self._bank_words = library, style, bank_words
        self._jobs, self._progress = jobs, progress
        self.places = bank_places(description, bank_words)
        self._drawn: dict[str, list[BankPlace]] = {}
        self._areas: dict[tuple[str, Any], float] = {}  # by encoding's name, "" as burnt
        self._zeros: dict[tuple[str, BankPlace], tuple[int, int]] = {}  # zero bits of code bits
        self.encodings: tuple[Encoding, ...] = ()
        self._encoded: list[str] = []  # matrices whose codes are encoded anew

    def check_encodings(self) -> None:
        """Choose the matrices whose codes have other encodings; refuse if there are none."""
        groups = self._description.groups.values()
        # where a code is cut into planes, its bits stand in several words
        kinds = {(g.kind, g.code_bits) for g in groups if g.mapping.planes == 1}
        kinds &= {(e.kind, e.code_bits) for e in ENCODINGS}
        if len(kinds) != 1:
            found = sorted({f"{g.kind} codes of {g.code_bits} bits" for g in groups})
            raise SpecError(
                f"Encodings must be of matrices of ternary codes, or of codes of 4 bits in one "
                f"word each, not of {', '.join(found)}; leave the encodings out"
            )
        kind, code_bits = kinds.pop()
        self.encodings = tuple(e for e in ENCODINGS if (e.kind, e.code_bits) == (kind, code_bits))
        self._encoded = [
            g.name
            for g in groups
            if (g.kind, g.code_bits, g.mapping.planes) == (kind, code_bits, 1)
        ]

    def draw(self, sample: int) -> None:
        """Choose banks, by a seed that is the matrix's name."""
        for name, places in self.places.items():
            digest = hashlib.sha256(name.encode()).digest()
            random = np.random.default_rng(int.from_bytes(digest[:8], "little"))
            n = len(places) if sample == 0 else min(sample, len(places))
            chosen = sorted(random.choice(len(places), n, replace=False).tolist())
            self._drawn[name] = [places[index] for index in chosen]

    def run(self) -> None:
        """Build all drawn banks, the dense ones they are compared with, and the decoders."""
        tasks: dict[tuple[str, Any], BankTask] = {}
        for name, drawn in self._drawn.items():
            group = self._description.groups[name]
            for place in drawn:
                bits = self._bits(place)
                tasks["", place] = self._task(bits, place, digit_bits(group, self._array))
                dense = ("dense", self._shape(place))
                if dense not in tasks:
                    random = np.random.default_rng(place.rows).integers(0, 2, bits.shape)
                    tasks[dense] = self._task(random.astype(np.uint8), place, 1)
                if name in self._encoded:
                    self._encode(tasks, group, place, bits)
        for encoding in self.encodings:
            if encoding.codes_per_field > 1:
                tasks["decoder", encoding.name] = self._decoder(encoding)
        banks = synthesise_all(
            list(tasks.values()), self._library, jobs=self._jobs, progress=self._progress
        )
        self._areas = {key: bank.area_um2 for key, bank in zip(tasks, banks, strict=True)}
        self._depth = max(
            path_depth_fo4(bank.netlist, self._library)
            for (what, _), bank in zip(tasks, banks, strict=True)
            if what == ""
        )

    def _columns(self, name: str) -> NDArray[np.int64]:
        return stored_columns(self._description.groups[name], self._array)

    def _bits(self, place: BankPlace) -> NDArray[np.uint8]:
        words = bank_bits(self._description, place, self._bank_words)
        return np.ascontiguousarray(words[:, self._columns(place.group)])

    def _shape(self, place: BankPlace) -> tuple[int, int, int]:
        return place.first, place.rows, len(self._columns(place.group))

    def _task(self, bits: NDArray[np.uint8], place: BankPlace, field_bits: int) -> BankTask:
        """Put a bank's words where they are in their block: the address is decoded there."""
        after = block_rows(self._description, self._bank_words) - place.first - place.rows
        block = np.pad(bits, ((place.first, after), (0, 0)))
        return BankTask(bits=block, style=self._style, field_bits=field_bits)

    def _encode(
        self,
        tasks: dict[tuple[str, Any], BankTask],
        group: PlacedGroup,
        place: BankPlace,
        bits: NDArray[np.uint8],
    ) -> None:
        n_code_bits = self._array.word_codes * self._array.lane_bits
        lanes = bits[:, :n_code_bits].reshape(len(bits), -1, self._array.lane_bits)
        codes = np.packbits(lanes, axis=2, bitorder="little")[..., 0]
        for encoding in self.encodings:
            words = encode(codes, encoding)
            self._zeros[encoding.name, place] = (int(words.size - words.sum()), words.size)
            words = np.concatenate([words, bits[:, n_code_bits:]], axis=1)
            tasks[encoding.name, place] = self._task(words, place, encoding.field_bits)

    def _decoder(self, encoding: Encoding) -> BankTask:
        """Return the table that turns a field back into codes of the lanes."""
        n, bits = encoding.codes_per_field, self._array.lane_bits
        n_fields = 3**n
        codes = np.arange(n_fields)[:, None] // 3 ** np.arange(n) % 3
        lanes = (codes[..., None] >> np.arange(bits)) & 1
        return BankTask(bits=lanes.reshape(n_fields, -1).astype(np.uint8), style="shared3")

    def _total(self, name: str, key: str) -> Estimate:
        """Estimate one matrix's area in an encoding, or with random bits."""
        drawn, places = self._drawn[name], self.places[name]
        areas = [self._areas[key, self._shape(p) if key == "dense" else p] for p in drawn]
        rows = [place.rows for place in drawn]
        return estimate_total(areas, rows, len(places), sum(p.rows for p in places))

    def matrix(self, name: str) -> MatrixArea:
        """Return one matrix's row."""
        group, places = self._description.groups[name], self.places[name]
        width = len(self._columns(name))
        n_bits = width * sum(place.rows for place in places)
        zero_bits, zero_weights = self._count_zeros(group)
        return MatrixArea(
            name=name,
            n_weights=group.mapping.n_rows * group.mapping.n_cols,
            n_bits=n_bits,
            zero_weights=zero_weights,
            zero_bits=zero_bits / n_bits,
            n_banks=len(places),
            n_sampled=len(self._drawn[name]),
            bank_rows=max(place.rows for place in places),
            bank_width=width,
            area=self._total(name, ""),
            dense=self._total(name, "dense").total,
        )

    def _count_zeros(self, group: PlacedGroup) -> tuple[int, float | None]:
        """Count zero bits, and the share of weights that are zero, over the whole matrix."""
        array = self._array
        n_weights = group.mapping.n_rows * group.mapping.n_cols
        n_code_bits = array.word_codes * array.lane_bits
        zero_code = 0 if group.kind == "ternary" else group.offset
        zero_bits = n_zero = n_codes = 0
        for first in range(0, group.mapping.n_words, _ADDRESSES_AT_A_TIME):
            n = min(_ADDRESSES_AT_A_TIME, group.mapping.n_words - first)
            words = np.asarray(self._description.rom_words(group.base + first, n))
            bits = np.unpackbits(words, axis=-1, bitorder="little")
            stored = bits[..., self._columns(group.name)]
            zero_bits += int(stored.size - np.count_nonzero(stored))
            lanes = bits[..., :n_code_bits].reshape(-1, array.lane_bits)
            codes = np.packbits(lanes, axis=1, bitorder="little")[:, 0]
            n_zero += int(np.count_nonzero(codes == zero_code))
            n_codes += codes.size
        if group.has_minimum or group.mapping.planes > 1:
            return zero_bits, None
        if zero_code == 0:  # lanes without a weight hold code 0
            n_zero -= n_codes - n_weights
        return zero_bits, n_zero / n_weights

    def depth_fo4(self) -> float:
        """Return the slowest drawn bank's depth, and that of the gates that join a cell's banks."""
        cells = Counter((p.tile, p.cell) for places in self.places.values() for p in places)
        n_banks = max(cells.values())
        # the block's select and a tree of two-input ORs, each driving one like it: (1 + 2 + 2) / 5
        return self._depth + (1 + math.ceil(math.log2(n_banks)) if n_banks > 1 else 0)

    def joining_um2(self) -> float:
        """Return the gates that join the banks of each cell.

        An OR for each bit and further bank; where there are several blocks, an AND with what says
        whether the bank is on as well.
        """
        gates = {"OR": self._library.smallest(2, 0b1110), "AND": self._library.smallest(2, 0b1000)}
        area = {}
        for what, gate in gates.items():
            if gate is None:
                raise SpecError(
                    f"Cell table {self._library.name!r} must have an {what} of two inputs to join "
                    f"banks, but has none; add it with its area"
                )
            area[what] = gate.area_um2
        banks: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for name, places in self.places.items():
            width = len(self._columns(name))
            for place in places:
                banks.setdefault((place.tile, place.cell), []).append((place.block, width))
        total = 0.0
        for listed in banks.values():
            total += area["OR"] * (sum(w for _, w in listed) - max(w for _, w in listed))
            if len({block for block, _ in listed}) > 1:
                total += area["AND"] * sum(w for _, w in listed)
        return total

    def fit(self) -> AreaFit | None:
        """Fit the drawn banks' area of a bit against zero bits and depth."""
        per_bit, zeros, rows = [], [], []
        for drawn in self._drawn.values():
            for place in drawn:
                bits = self._bits(place)
                per_bit.append(self._areas["", place] / bits.size)
                zeros.append(1 - float(bits.mean()))
                rows.append(place.rows)
        return fit_area(per_bit, zeros, rows)

    def encoding(self, encoding: Encoding) -> EncodingArea:
        """Return one encoding's row."""
        area = sum_estimates(self._total(name, encoding.name) for name in self._encoded)
        drawn = [place for name in self._encoded for place in self._drawn[name]]
        counts = [self._zeros[encoding.name, place] for place in drawn]
        decoder = 0.0
        if encoding.codes_per_field > 1:
            n_fields = -(-self._array.word_codes // encoding.codes_per_field)
            n_cells = self._array.n_tiles * self._array.n_cells
            decoder = self._areas["decoder", encoding.name] * n_fields * n_cells
        mappings = [self._description.groups[name].mapping for name in self._encoded]
        n_weights = sum(m.n_rows * m.n_cols for m in mappings)
        return EncodingArea(
            encoding=encoding.name,
            summary=encoding.summary,
            bits_per_weight=encoding.bits_per_code,
            zero_bits=sum(c[0] for c in counts) / sum(c[1] for c in counts),
            area=area,
            decoder_um2=decoder,
            um2_per_weight=(area.total + decoder) / n_weights,
        )
