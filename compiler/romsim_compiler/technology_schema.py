"""The form of a technology file: which keys there are, and the unit of each."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "FACT_UNITS",
    "SCALES",
    "CellsModel",
    "FileModel",
    "InstanceModel",
    "LogicRomModel",
    "MacrosModel",
    "ValueModel",
]

_LANES = (
    "ternary_mxint8", "ternary_int4", "int2_mxint8", "int4_mxint8", "int4_int16", "int8_mxint8",
    "ternary_fp8_e4m3", "int2_fp8_e4m3", "int4_fp8_e4m3", "int8_fp8_e4m3", "fp8_e4m3_fp8_e4m3",
)  # fmt: skip

FACT_UNITS: dict[str, dict[str, str]] = {
    "clock": {
        "fo4_ps": "ps",
        "wire_factor": "1",
        "overhead_fo4": "FO4",
        "sram_access": "ps",
        "rom_access": "ps",
    },
    "logic": {"utilisation": "1", "periphery_fraction": "1"},
    "lane": dict.fromkeys(_LANES, "um2"),
    "energy": {
        "logic_per_um2": "pJ/um2",
        "vector_op": "pJ",
        "rom_read_bit": "pJ/bit",
        "sram_read_bit": "pJ/bit",
        "sram_write_bit": "pJ/bit",
        "buffer_read_bit": "pJ/bit",
        "buffer_write_bit": "pJ/bit",
        "wire_bit_mm": "pJ/bit/mm",
        "wake_per_um2": "pJ/um2",
        "flop_cycle": "pJ",
    },
    "leakage": {"rom": "W/mm2", "sram": "W/mm2", "logic": "W/mm2", "gated_share": "1"},
    "wire": {"delay": "ps/mm"},
}
"""Keys that a technology has, by section, and the unit that each must be given in."""

_Text = Annotated[str, Field(min_length=1)]
_Grade = Literal["published", "measured", "derived", "assumed"]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ValueModel(_Model):
    """A constant with its range."""

    low: _Positive
    mid: _Positive
    high: _Positive
    unit: _Text
    grade: _Grade
    source: _Text


class InstanceModel(_Model):
    """A memory macro of known density."""

    words: int = Field(ge=1)
    bits: int = Field(ge=1)
    mbit_per_mm2: _Positive
    grade: _Grade
    source: _Text


class MacrosModel(_Model):
    """Macros of one kind."""

    bit_cell_um2: ValueModel
    band: ValueModel
    max_words: int = Field(ge=1)
    instances: tuple[InstanceModel, ...] = Field(min_length=1)


class LogicRomModel(_Model):
    """Measured banks of synthesised ROM."""

    style: Literal["plain", "shared", "patterns"]
    grade: _Grade
    source: _Text
    words: int = Field(ge=1)
    um2_per_bit: tuple[tuple[float, _Positive], ...] = Field(min_length=2)


class CellsModel(_Model):
    """Standard cells."""

    unit: Literal["um2"]
    grade: _Grade
    source: _Text
    area: dict[str, _Positive] = Field(min_length=1)
    function: dict[str, str]


class FileModel(_Model):
    """A technology file."""

    name: _Text
    summary: _Text
    node_nm: int = Field(ge=1)
    rom_style: Literal["compiler", "logic"]
    sources: dict[str, _Text]
    base: str | None = None
    scale: dict[str, ValueModel] = Field(default_factory=dict)
    clock: dict[str, ValueModel] = Field(default_factory=dict)
    logic: dict[str, ValueModel] = Field(default_factory=dict)
    lane: dict[str, ValueModel] = Field(default_factory=dict)
    energy: dict[str, ValueModel] = Field(default_factory=dict)
    leakage: dict[str, ValueModel] = Field(default_factory=dict)
    wire: dict[str, ValueModel] = Field(default_factory=dict)
    rom: MacrosModel | None = None
    sram: MacrosModel | None = None
    logic_rom: tuple[LogicRomModel, ...] = ()
    cells: CellsModel | None = None


SCALES = ("logic_area", "rom_area", "sram_area", "energy", "leakage", "delay")
