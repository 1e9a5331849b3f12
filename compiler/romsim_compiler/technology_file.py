"""Technology files: TOML with a unit, a source and a grade on every value, or it is refused."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable
from functools import cache
from importlib import resources
from types import MappingProxyType

from pydantic import ValidationError

from romsim_compiler.technology import (
    GRADES,
    Fact,
    Instance,
    LogicRom,
    MacroModel,
    Range,
    Technology,
    calibrate,
)
from romsim_compiler.technology_schema import (
    FACT_UNITS,
    SCALES,
    FileModel,
    MacrosModel,
    ValueModel,
)
from romsim_models.errors import SpecError

__all__ = ["list_technologies", "load_technology", "parse_technology"]


def list_technologies() -> tuple[str, ...]:
    """Return the names of the technologies that come with the package."""
    folder = resources.files("romsim_compiler") / "technologies"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


@cache
def load_technology(name: str) -> Technology:
    """Return a technology by name; each file is read once per process.

    Raises
    ------
    SpecError
        If there is none of that name, or its file is wrong.
    """
    known = list_technologies()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"Technology must be one of {', '.join(known)}, not {name!r}{hint}")
    source = resources.files("romsim_compiler") / "technologies" / f"{name}.toml"
    return parse_technology(source.read_text(encoding="utf-8"), f"{name}.toml")


def parse_technology(text: str, file: str) -> Technology:
    """Return the technology that the TOML ``text`` describes.

    Parameters
    ----------
    file
        Name of the file, for messages.

    Raises
    ------
    SpecError
        If the text is no TOML, a key is unknown or missing, a value has no unit or source, its unit
        is another than the key's, or low, mid and high are not in order.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file} must be TOML: {error}") from None
    try:
        checked = FileModel.model_validate(values)
    except ValidationError as error:
        raise SpecError(_explain(error, file)) from None
    reader = _Reader(checked, file)
    return reader.technology()


def _explain(error: ValidationError, file: str) -> str:
    first = error.errors()[0]
    dotted = ".".join(str(k) for k in first["loc"])
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{file}: key {dotted!r} is unknown; remove it or correct its spelling{more}"
    if first["type"] == "missing":
        return f"{file}: key {dotted!r} is missing; every value needs one{more}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{file}: {dotted} must be valid, not {first['input']!r}: {message}{more}"


class _Reader:
    """Turns a validated file into a :class:`Technology`, taking the rest from its base."""

    def __init__(self, checked: FileModel, file: str) -> None:
        self._checked = checked
        self._file = file
        self._base = load_technology(checked.base) if checked.base else None
        self._scale = {
            key: self._fact("scale", key, value, "1") for key, value in checked.scale.items()
        }
        for key in self._scale:
            if key not in SCALES:
                raise SpecError(
                    f"{file}: key 'scale.{key}' is unknown; known keys: {', '.join(SCALES)}"
                )

    def technology(self) -> Technology:
        """Return the technology."""
        file, base = self._checked, self._base
        facts: dict[str, Fact] = {}
        for section, units in FACT_UNITS.items():
            given: dict[str, ValueModel] = getattr(file, section)
            for key in given:
                if key not in units:
                    raise SpecError(
                        f"{self._file}: key '{section}.{key}' is unknown; known keys: "
                        f"{', '.join(units)}"
                    )
            for key, unit in units.items():
                full = f"{section}.{key}"
                if key in given:
                    facts[full] = self._fact(section, key, given[key], unit)
                elif base is not None:
                    facts[full] = self._inherit(base[full])
                else:
                    raise SpecError(
                        f"{self._file}: key {full!r} is missing; add it with its source"
                    )
        cells = file.cells
        if cells is None and base is None:
            raise SpecError(f"{self._file}: section 'cells' is missing; add it with its source")
        cell_um2, function, cell_source, grade = (
            (cells.area, cells.function, self._source(cells.source, "cells"), cells.grade)
            if cells is not None
            else self._base_cells()
        )
        return Technology(
            name=file.name,
            summary=file.summary,
            node_nm=file.node_nm,
            rom_style=file.rom_style,
            facts=MappingProxyType(facts),
            rom=self._macros("rom", file.rom, lambda b: b.rom),
            sram=self._macros("sram", file.sram, lambda b: b.sram),
            logic_rom=MappingProxyType({t.style: t for t in self._logic_rom()}),
            cell_um2=MappingProxyType(dict(cell_um2)),
            cell_function=MappingProxyType(dict(function)),
            cell_source=cell_source,
            cell_grade=grade,
        )

    def _source(self, name: str, where: str) -> str:
        sources = self._checked.sources
        if name not in sources:
            raise SpecError(
                f"{self._file}: source of {where} must be one of {', '.join(sources)}, not "
                f"{name!r}; add it to [sources]"
            )
        return sources[name]

    def _fact(self, section: str, key: str, value: ValueModel, unit: str) -> Fact:
        full = f"{section}.{key}"
        if value.unit != unit:
            raise SpecError(f"{self._file}: unit of {full} must be {unit!r}, not {value.unit!r}")
        if not value.low <= value.mid <= value.high:
            raise SpecError(
                f"{self._file}: {full} must have low <= mid <= high, not {value.low:g}, "
                f"{value.mid:g}, {value.high:g}"
            )
        return Fact(
            key=full,
            low=value.low,
            mid=value.mid,
            high=value.high,
            unit=unit,
            grade=value.grade,
            source=self._source(value.source, full),
        )

    def _factor(self, name: str) -> Fact:
        if name not in self._scale:
            raise SpecError(
                f"{self._file}: key 'scale.{name}' is missing; a technology with a base says how "
                f"it is scaled"
            )
        return self._scale[name]

    def _inherit(self, fact: Fact) -> Fact:
        """Scale a fact of the base; what has no scale is taken over as it is."""
        section, _, key = fact.key.partition(".")
        name = {"lane": "logic_area", "energy": "energy", "leakage": "leakage"}.get(section)
        if key in ("fo4_ps", "sram_access", "rom_access"):
            name = "delay"
        if name is None or key in ("wire_bit_mm", "gated_share"):  # these are not of the node
            return fact
        scale = self._factor(name)
        factor = scale.range
        if key in (
            "logic_per_um2",
            "wake_per_um2",
        ):  # energy over the area it takes in this process
            factor = factor * (1 / self._factor("logic_area").mid)
        return self._scaled(fact, factor, scale)

    def _scaled(self, fact: Fact, factor: Range, scale: Fact) -> Fact:
        if factor == Range.exact(1.0):
            return fact
        scaled = fact.range.times(factor)
        return Fact(
            key=fact.key,
            low=scaled.low,
            mid=scaled.mid,
            high=scaled.high,
            unit=fact.unit,
            grade=_worst(fact.grade, scale.grade),
            source=f"{fact.source}; x {factor.mid:.4g}: {scale.source}",
        )

    def _base_cells(self) -> tuple[dict[str, float], dict[str, str], str, str]:
        base = self._base
        assert base is not None
        scale = self._factor("logic_area")
        return (
            {name: area * scale.mid for name, area in base.cell_um2.items()},
            dict(base.cell_function),
            f"{base.cell_source}; x {scale.mid:.4g}: {scale.source}",
            _worst(base.cell_grade, scale.grade),
        )

    def _logic_rom(self) -> list[LogicRom]:
        made = []
        for given in self._checked.logic_rom:
            shares = [share for share, _ in given.um2_per_bit]
            if shares != sorted(set(shares)) or not 0 <= shares[0] <= shares[-1] < 1:
                raise SpecError(
                    f"{self._file}: logic_rom of style {given.style!r} must have ascending shares "
                    f"of zero bits from 0 to below 1, not {shares}"
                )
            made.append(
                LogicRom(
                    style=given.style,
                    grade=given.grade,
                    source=self._source(given.source, f"logic_rom {given.style}"),
                    words=given.words,
                    um2_per_bit=given.um2_per_bit,
                    scale=Range.exact(1.0),
                )
            )
        if made or self._base is None:
            if {t.style for t in made} != {"plain", "shared", "patterns"}:
                raise SpecError(
                    f"{self._file}: logic_rom must have the styles 'plain', 'shared' and "
                    f"'patterns', not {[t.style for t in made]}"
                )
            return made
        scale = self._factor("logic_area")
        return [
            LogicRom(
                style=table.style,
                grade=_worst(table.grade, scale.grade),
                source=f"{table.source}; x {scale.mid:.4g}: {scale.source}",
                words=table.words,
                um2_per_bit=table.um2_per_bit,
                scale=table.scale.times(scale.range),
            )
            for table in self._base.logic_rom.values()
        ]

    def _macros(
        self, kind: str, given: MacrosModel | None, of: Callable[[Technology], MacroModel]
    ) -> MacroModel:
        if given is None:
            if self._base is None:
                raise SpecError(f"{self._file}: section {kind!r} is missing; add its instances")
            return self._scaled_macros(of(self._base), self._factor(f"{kind}_area"))
        cell = self._fact(kind, "bit_cell_um2", given.bit_cell_um2, "um2")
        instances = tuple(
            Instance(
                words=i.words,
                bits=i.bits,
                mbit_per_mm2=i.mbit_per_mm2,
                grade=i.grade,
                source=self._source(i.source, f"{kind}.instances"),
            )
            for i in given.instances
        )
        try:
            bit, column = calibrate(instances, bit_cell_um2=cell.mid, max_words=given.max_words)
        except SpecError as error:
            raise SpecError(f"{self._file}: {kind} {error}") from None
        return MacroModel(
            kind=kind,
            bit_cell=cell,
            band=self._fact(kind, "band", given.band, "1"),
            max_words=given.max_words,
            um2_per_bit=bit,
            um2_per_column=column,
            instances=instances,
        )

    def _scaled_macros(self, model: MacroModel, scale: Fact) -> MacroModel:
        spread = Range(scale.low / scale.mid, 1.0, scale.high / scale.mid)
        return MacroModel(
            kind=model.kind,
            bit_cell=self._scaled(model.bit_cell, scale.range, scale),
            band=self._scaled(model.band, spread, scale),
            max_words=model.max_words,
            um2_per_bit=model.um2_per_bit * scale.mid,
            um2_per_column=model.um2_per_column * scale.mid,
            instances=tuple(
                Instance(
                    words=i.words,
                    bits=i.bits,
                    mbit_per_mm2=i.mbit_per_mm2 / scale.mid,
                    grade=_worst(i.grade, scale.grade),
                    source=f"{i.source}; x {scale.mid:.4g}: {scale.source}",
                )
                for i in model.instances
            ),
        )


def _worst(first: str, second: str) -> str:
    """Return the grade of a product: derived at best."""
    return max(first, second, "derived", key=GRADES.index)
