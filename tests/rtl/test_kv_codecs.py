# amaranth: UnusedElaboratable=no
"""KV codecs in RTL: ``romsim verify`` on tiny chips, write for write and cycle for cycle."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import romsim
from romsim_compiler.kv import KvConfig, parse_kv
from romsim_compiler.kv_cycles import CODEC_CYCLES
from romsim_models.errors import SpecError
from romsim_rtl.affine_encoder import ENCODER_CYCLES
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.kivi_sizes import KiviSizes
from romsim_rtl.kv_hardware import check_kv_hardware
from romsim_rtl.kv_words import KV_WORDS
from romsim_rtl.mx_quantizer import QUANTIZER_CYCLES
from tests.tiny_chips import compile_tiny, sized_target

OPTIONS = BuildOptions(opt="-O0", trace=True)

WIDE: dict[str, Any] = {"n_tiles": 4, "n_lanes": 64, "word_elems": 64, "n_inflight": 3}
"""Words of two blocks, which two heads of 32 do not fill; prompts three tokens at a time."""
MIXED: dict[str, Any] = {"n_tiles": 4, "n_lanes": 128, "broadcast_cycles": 0, "attn_block": 8}
"""A broadcast beat has blocks of queries and of keys."""
ONE: dict[str, Any] = {"n_tiles": 1, "heads_parallel": 4, "n_inflight": 1, "collect_cycles": 1}


def verified(kv: str, folder: Path, *, name: str = "tiny-int4", n: int = 9, **sizes: Any) -> None:
    """Fill a chip's context: prompt, then two decoded tokens."""
    target = sized_target("small", **sizes)
    chip = compile_tiny(name, folder / "chip", target=target, kv=kv, context=n + 2)
    rng = np.random.default_rng(1)
    ids = [int(token) for token in rng.integers(3, chip.spec.vocab_size, n)]
    done = romsim.verify(chip, tokens=ids, n_new=2, level="chip", options=OPTIONS)
    (part,) = done.rtl
    assert done.passed
    assert part.report.n_tokens == n + 2
    memories = {"K", "V", "Q", "O"}
    if "kivi" in kv:
        memories |= {"KC", "VC", "KG"}
    if "h2o" in kv:
        memories |= {"MASS", "NEWEST", "FREE"}
    assert min(part.report.by_memory[memory] for memory in memories) > 0


@pytest.mark.verilator
def test_three_machines_agree(tmp_path: Path) -> None:
    verified("int4", tmp_path)


@pytest.mark.slow
@pytest.mark.verilator
@pytest.mark.parametrize(
    ("kv", "sizes", "name", "n"),
    [
        ("int2", {}, "tiny-int4", 33),
        ("int2", WIDE, "tiny-int2", 17),
        ("int4", MIXED, "tiny-int2", 9),
        ("int4", ONE, "tiny-int4", 19),
        ("h2o,heavy=5,window=4,codec=int8", {}, "tiny-int4", 40),
        ("fp16", {}, "tiny-int4", 33),
        ("fp16", WIDE, "tiny-int2", 17),
        ("fp16", MIXED, "tiny-int2", 9),
        ("fp16,retention=stream,sinks=0,window=6", ONE, "tiny-int4", 19),
        ("fp16,retention=stream,sinks=3,window=6", ONE | MIXED, "tiny-int4", 19),
        ("kivi-4bit,residual=32", {"n_inflight": 1}, "tiny-int4", 70),
        ("kivi-k4v2,residual=32,plain_sinks=4", {}, "tiny-int4", 70),
        ("kivi-2bit,residual=64,plain_sinks=8", WIDE, "tiny-int2", 140),
        ("kivi-2bit,residual=32", ONE, "tiny-int4", 70),
    ],
)
def test_three_machines_agree_on_other_chips(
    kv: str, sizes: dict[str, Any], name: str, n: int, tmp_path: Path
) -> None:
    verified(kv, tmp_path, name=name, n=n, **sizes)


def test_pipelines_are_as_deep_as_the_closed_forms_say() -> None:
    for codec, words in KV_WORDS.items():
        in_rope, in_block = CODEC_CYCLES[codec]
        assert words.encode_cycles == in_rope
        assert words.score_cycles + words.value_cycles == in_block
        if words.is_affine:
            assert QUANTIZER_CYCLES + words.encode_cycles == ENCODER_CYCLES


def test_a_kivi_chip_of_odd_rows_is_refused() -> None:
    def sizes(n_tiles: int, plain_sinks: int) -> KiviSizes:
        return KiviSizes(
            n_tiles=n_tiles,
            context=256,
            n_inflight=2,
            plain_sinks=plain_sinks,
            residual=64,
            key_bits=4,
            value_bits=2,
        )

    sentence = (
        "kv.plain_sinks of an RTL target must be a multiple of its 8 tiles, not 4: all tiles read "
        "words or codes of keys"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        sizes(8, 4)
    sentence = (
        "Tiles of an RTL target with KV codec kivi must divide the 32 tokens of a group, not be "
        "64; choose fewer tiles"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        sizes(64, 0)
    sentence = (
        "kv.plain_sinks of an RTL target must be a multiple of 32 with layout paged, not 8: a "
        "group of keys would lie in two pages"
    )
    paged = parse_kv("kivi-4bit,residual=64,plain_sinks=8,layout=paged,block=32")
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        KiviSizes.of(paged, n_tiles=4, context=100, n_inflight=2)
    # four pages of eight rows in a tile, sinks' among them
    kivi = KiviSizes.of(replace(paged, plain_sinks=32), n_tiles=4, context=100, n_inflight=2)
    assert (kivi.code_rows, kivi.n_groups, kivi.first_code_row, kivi.sink_rows) == (32, 4, 0, 8)
    # four tiles, eight sinks: keys take 16 rows in turn and one ahead, values one more
    kivi = sizes(4, 8)
    assert kivi.places == {"k": 19, "v": 20}
    assert [kivi.place("k", row) for row in (0, 1, 2, 18, 19)] == [0, 1, 2, 18, 2]
    assert [kivi.place("v", row) for row in (0, 1, 2, 19, 20)] == [0, 1, 2, 19, 2]
    assert [kivi.coded_rows(row) for row in (0, 2, 17, 18, 33, 34)] == [2, 2, 2, 18, 18, 34]
    assert (kivi.code_rows, kivi.n_groups, kivi.first_code_row) == (62, 8, 2)


def test_groups_that_the_encoders_do_not_take_are_refused() -> None:
    sentence = (
        "kv.group of an RTL target must divide its 32 vector lanes, which encode a group at a "
        "time, not be 64; compile with --kv int4,group=32"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        check_kv_hardware(parse_kv("int4-g64"), n_lanes=32)
    sentence = (
        "kv.group of an RTL target must be 32 with codec kivi, the values that its encoder takes, "
        "not 64; compile with --kv group=32 beside the rest"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        check_kv_hardware(parse_kv("kivi-4bit,group=64"), n_lanes=64)
    check_kv_hardware(parse_kv("int4-g64"), n_lanes=64)
    check_kv_hardware(KvConfig(), n_lanes=32)
