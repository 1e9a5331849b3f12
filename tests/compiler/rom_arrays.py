"""Arrays, mappings and random matrices for the tests of the ROM images."""

from __future__ import annotations

import numpy as np

from romsim_compiler.encoded import RomTensor
from romsim_compiler.formats import SHIPPED_FORMATS, WeightFormat, parse_format
from romsim_compiler.mapping import Mapping
from romsim_compiler.target import (
    Array,
    Attention,
    Embedding,
    Formats,
    Network,
    Schedule,
    Target,
    VectorUnit,
)
from romsim_models.spec import ModelSpec


def make_array(
    *,
    n_tiles: int = 2,
    n_cells: int = 4,
    word_codes: int = 32,
    lane_bits: int = 4,
    encoding: str = "unsigned",
    scale_group: int = 32,
    scale_bits: int = 16,
    min_bits: int = 16,
    zero_bits: int = 0,
) -> Array:
    return Array(
        n_tiles=n_tiles,
        n_cells=n_cells,
        rom_rows=4096,
        word_codes=word_codes,
        lane_bits=lane_bits,
        encoding=encoding,
        scale_group=scale_group,
        scale_bits=scale_bits,
        min_bits=min_bits,
        zero_bits=zero_bits,
    )


def make_mapping(n_rows: int, n_cols: int, fmt: WeightFormat, array: Array, ks: int) -> Mapping:
    rows_per_step = array.n_tiles * (array.n_cells // ks)
    n_words = -(-n_cols // array.word_codes)
    return Mapping(
        n_rows=n_rows,
        n_cols=n_cols,
        planes=fmt.planes(array),
        ks=ks,
        wpc=-(-n_words // ks),
        rows_per_step=rows_per_step,
        steps=-(-n_rows // rows_per_step),
    )


def make_format(name: str) -> WeightFormat:
    return SHIPPED_FORMATS[name] if name in SHIPPED_FORMATS else parse_format(name)


def random_words(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Finite binary16 words of every kind: both signs, subnormal, zero."""
    words = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
    is_special = (words & 0x7C00) == 0x7C00
    return np.where(is_special, words & 0x83FF, words).astype(np.uint16)


def random_tensor(
    rng: np.random.Generator, name: str, n_rows: int, n_cols: int, fmt: WeightFormat
) -> RomTensor:
    top = 3 if fmt.kind == "ternary" else 1 << fmt.code_bits
    n_groups = n_cols // fmt.group if fmt.group else 0
    return RomTensor(
        name=name,
        fmt=fmt,
        codes=rng.integers(0, top, (n_rows, n_cols), dtype=np.uint8),
        scale_bits=random_words(rng, (n_rows, n_groups)),
        minimum_bits=random_words(rng, (n_rows, n_groups)) if fmt.has_minimum else None,
        multiplier=1 if fmt.group else int(rng.integers(1 << 23, 1 << 24)),
        exponent=0 if fmt.group else -30,
    )


def make_target(
    *, n_tiles: int = 2, word_elems: int = 32, sram_kib: int = 256, array: Array | None = None
) -> Target:
    return Target(
        name="test",
        summary="for tests",
        executable=True,
        technology="none",
        clock_mhz=100.0,
        array=array or make_array(n_tiles=n_tiles),
        vector=VectorUnit(n_lanes=32, sram_kib=64),
        attention=Attention(
            sram_kib=sram_kib, word_elems=word_elems, heads_parallel=1, attn_block=32
        ),
        formats=Formats(activation="mxint8", kv="mxint8", lora="mxint8"),
        network=Network(broadcast_cycles=1, collect_cycles=1),
        schedule=Schedule(n_inflight=1),
        embedding=Embedding(input="rom", head="rom"),
    )


def make_spec(*, n_layers: int = 1, dim: int = 64, hidden_dim: int = 96) -> ModelSpec:
    return ModelSpec(
        name="tiny", arch="llama", dim=dim, n_layers=n_layers, n_heads=2, n_kv_heads=1,
        head_dim=32, hidden_dim=hidden_dim, vocab_size=300, norm_eps=1e-5, rope_theta=10000.0,
        max_seq_len=64, tie_embeddings=True,
    )  # fmt: skip
