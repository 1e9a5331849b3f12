"""A target: the parameters that turn the machine template into one chip (docs/machine.md).

Plain frozen dataclasses, so that reading a compiled description needs no validation library; the
files that users write are validated by :mod:`romsim_compiler.target_file`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from romsim_compiler.kv import DEFAULT_KV, KvConfig, make_kv
from romsim_models.errors import SpecError

__all__ = [
    "TEMPLATE_LATENCY",
    "Array",
    "Attention",
    "Embedding",
    "Formats",
    "Latency",
    "Lora",
    "Network",
    "Power",
    "Schedule",
    "Target",
    "VectorUnit",
]

MX_BLOCK = 32
"""Elements that share one exponent in MXINT8 (OCP Microscaling formats v1.0)."""


@dataclass(frozen=True, kw_only=True)
class Array:
    """The L-units: ROM cells with low-precision multiply lanes."""

    n_tiles: int
    n_cells: int  # per tile, a power of two
    rom_rows: int  # words per cell
    word_codes: int  # weight codes per word = lanes per cell
    lane_bits: int  # bits of one stored code digit
    encoding: str  # "unsigned" or "ternary" (00, 01 = +1, 10 = -1)
    scale_group: int  # codes of a word that share one scale field
    scale_bits: int
    min_bits: int  # 0: the array has no minima
    zero_bits: int = 0  # bits of a zero point per scale field (ROMA's format)

    @property
    def n_scales(self) -> int:
        """Number of scale fields in a word."""
        return self.word_codes // self.scale_group

    @property
    def word_bits(self) -> int:
        """Number of bits in a ROM word: codes, scales, minima and zero points."""
        meta = self.scale_bits + self.min_bits + self.zero_bits
        return self.word_codes * self.lane_bits + self.n_scales * meta

    @property
    def word_bytes(self) -> int:
        """Number of bytes of a word in a ROM image."""
        return -(-self.word_bits // 8)

    @property
    def n_lanes(self) -> int:
        """Number of multiply lanes of the chip."""
        return self.n_tiles * self.n_cells * self.word_codes

    @property
    def rom_bits(self) -> int:
        """Capacity of all ROM cells, in bits."""
        return self.n_tiles * self.n_cells * self.rom_rows * self.word_bits

    @property
    def plane_shift(self) -> int:
        """Binary weight of one code plane over the one below it, as a shift."""
        return 1 if self.encoding == "ternary" else self.lane_bits


@dataclass(frozen=True, kw_only=True)
class VectorUnit:
    """The vector unit and its activation SRAM."""

    n_lanes: int
    sram_kib: int


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The H-units: KV and LoRA in SRAM, with int8 multiply lanes."""

    sram_kib: int  # per tile
    word_elems: int  # KV codes read per cycle and bank, a multiple of 32
    heads_parallel: int  # query heads multiplied with one KV word
    attn_block: int  # tokens of one softmax block: numerics, not capacity


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Number formats of activations, KV cache and adapters."""

    activation: str
    kv: str
    lora: str


@dataclass(frozen=True, kw_only=True)
class Network:
    """Register stages of the wires between tiles and the vector unit, in cycles."""

    broadcast_cycles: int
    collect_cycles: int


@dataclass(frozen=True, kw_only=True)
class Power:
    """Power gating of ROM banks: only those of the matrix being read, and of the next, are on."""

    wake_cycles: int = 0  # from the switch to the first read


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Where adapters run: ``int8`` in the H-units, or ``adders``, as trits in unit L."""

    path: str = "int8"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many tokens and sequences the sequencer holds."""

    n_inflight: int  # prompt tokens interleaved in prefill
    n_slots: int = 1
    n_batch: int = 1


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Where the input embedding and the LM head live: ``rom`` or ``off-chip``."""

    input: str
    head: str


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Pipeline depths of the template, in cycles; the same for every target."""

    embed: int = 8
    sincos: int = 6
    norm: int = 25
    matvec: int = 11
    rope: int = 11
    attn: int = 6
    block: int = 19
    attn_out: int = 14
    resid: int = 4
    glu: int = 14
    lora: int = 23
    lora_off: int = 2
    token: int = 6


TEMPLATE_LATENCY = Latency()


@dataclass(frozen=True, kw_only=True)
class Target:
    """One chip."""

    name: str
    summary: str
    executable: bool
    technology: str
    clock_mhz: float
    array: Array
    vector: VectorUnit
    attention: Attention
    formats: Formats
    network: Network
    schedule: Schedule
    embedding: Embedding
    power: Power = field(default=Power())
    lora: Lora = field(default=Lora())
    kv: KvConfig = field(default=DEFAULT_KV)
    latency: Latency = field(default=TEMPLATE_LATENCY)

    @property
    def lora_unit(self) -> str:
        """Unit that executes ``lora``: H, or L where adapters run in the adder arrays."""
        return "L" if self.lora.path == "adders" else "H"

    @property
    def lora_format(self) -> str:
        """Number format of adapters that the path has exact arithmetic for."""
        return "ternary" if self.lora.path == "adders" else "mxint8"

    def with_lora_path(self, path: str) -> Target:
        """Return the target with adapters on another path, in its number format."""
        moved = replace(self, lora=Lora(path=path))
        return replace(moved, formats=replace(self.formats, lora=moved.lora_format))

    def check_lora_path(self) -> None:
        """Refuse ternary adapters in unit L where its lanes or the format are not ternary.

        Raises
        ------
        SpecError
            With the key that does not go with the path.
        """
        if self.lora.path not in ("int8", "adders"):
            raise SpecError(f"lora.path must be 'int8' or 'adders', not {self.lora.path!r}")
        if self.lora.path == "int8":
            return
        if self.array.encoding != "ternary":
            raise SpecError(
                f"array.encoding of target {self.name!r} must be 'ternary' with lora.path "
                f"'adders', not {self.array.encoding!r}; use a target such as 'small-ternary', or "
                f"lora.path 'int8'"
            )
        if self.formats.lora != "ternary":
            raise SpecError(
                f"formats.lora of target {self.name!r} must be 'ternary' with lora.path 'adders', "
                f"not {self.formats.lora!r}; change one of them"
            )

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values; ``kv``, ``power`` and ``lora`` where they are not plain."""
        values = asdict(self)
        del values["kv"]
        if self.power == Power():
            del values["power"]
        if self.lora == Lora():
            del values["lora"]
        return values if self.kv.is_default else {**values, "kv": self.kv.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Target:
        """Build a target from :meth:`to_json`'s values."""
        parts = {
            "array": Array,
            "vector": VectorUnit,
            "attention": Attention,
            "formats": Formats,
            "network": Network,
            "power": Power,
            "lora": Lora,
            "schedule": Schedule,
            "embedding": Embedding,
            "latency": Latency,
        }
        made = {k: parts[k](**v) if k in parts else v for k, v in values.items()}
        if "kv" in made:
            made["kv"] = make_kv(made["kv"])
        return cls(**made)
