"""What a KV configuration takes of the SRAM, and what is refused for want of room."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from romsim_compiler.kv import KV_PRESETS, parse_kv
from romsim_compiler.kv_sram import fitting_tokens, kv_summary, sequence_bits
from romsim_compiler.memory_map import map_memory, max_context
from romsim_compiler.pipeline import serial_prefill
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_models.errors import CapacityError
from romsim_models.shapes import SHAPES

SPEC = SHAPES["smollm2"]


def small(kv: str, *, sram_kib: int = 2048) -> Target:
    target = load_target("small")
    attention = replace(target.attention, sram_kib=sram_kib)
    vector = replace(target.vector, sram_kib=1024)
    return replace(target, kv=parse_kv(kv), attention=attention, vector=vector)


@pytest.mark.parametrize("kv", [n for n in KV_PRESETS if "g64" not in n and n != "int8"])
def test_the_limit_fits_and_one_step_more_does_not(kv: str) -> None:
    target = small(kv, sram_kib=16384)
    limit = max_context(SPEC, target)
    free = 8 * target.attention.sram_kib * 1024 * target.array.n_tiles
    assert sequence_bits(SPEC, target, limit) <= free
    if target.kv.slots is None:
        step = max(target.array.n_tiles, target.kv.block)
        assert limit > 0
        assert limit % step == 0
        assert sequence_bits(SPEC, target, limit + step) > free


def test_slots_of_several_sequences_share_the_sram() -> None:
    one = small("int4")
    two = replace(one, schedule=replace(one.schedule, n_slots=2))
    assert fitting_tokens(SPEC, two, 2**21) == fitting_tokens(SPEC, one, 2**20)
    bits = kv_summary(SPEC, replace(two, kv=parse_kv("vllm")), 32)["table_bits"]
    assert bits == 2 * 2 * 1  # two sequences of two pages, a bit each


def test_a_window_may_be_longer_than_any_other_context_and_holds_its_slots() -> None:
    target = small("streaming-llm,window=60")
    memory = map_memory(SPEC, target)
    assert memory.context == 65_536
    assert memory.kv_bytes == 64 * 23_040
    assert map_memory(SPEC, target, context=1 << 24).kv_bytes == memory.kv_bytes
    assert kv_summary(SPEC, target, 1 << 24)["slots"] == 64
    with pytest.raises(
        CapacityError, match=r"^Context of 16777217 tokens must fit the SRAM of target 'small': "
    ):
        map_memory(SPEC, target, context=(1 << 24) + 1)
    with pytest.raises(
        CapacityError, match=r"^Context must be at most 65536 tokens, not 65537; lower --context$"
    ):
        map_memory(SPEC, small("int2", sram_kib=1 << 22), context=65537)
    assert map_memory(SPEC, small("h2o,heavy=9,window=9")).context == SPEC.max_seq_len


@pytest.mark.parametrize(
    ("kv", "least", "n_bytes", "remedy"),
    [
        ("streaming-llm", "512 tokens", 512 * 23_040, "lower kv.sinks or kv.window"),
        ("window", "512 tokens", 512 * 23_040, "lower kv.window"),
        (
            "streaming-llm,layout=paged",
            "512 tokens",
            512 * 23_040 + 20,
            "lower kv.sinks or kv.window",
        ),
        ("vllm", "16 tokens", 16 * 23_040, "lower kv.block"),
        ("fp16", "one token", 23_040, "choose a codec of fewer bits with --kv"),
    ],
)
def test_sram_too_small_for_what_must_be_there_is_refused(
    kv: str, least: str, n_bytes: int, remedy: str
) -> None:
    target = small(kv, sram_kib=1)
    sentence = (
        f"Adapters and the KV cache of {least} must fit the SRAM of target 'small': they need 0 "
        f"and {n_bytes} bytes, not the 2048 available; {remedy}, or raise attention.sram_kib"
    )
    with pytest.raises(CapacityError, match=f"^{re.escape(sentence)}$"):
        map_memory(SPEC, target)


def test_where_slots_are_reused_one_token_is_in_flight_and_that_is_said() -> None:
    target = small("h2o")
    serial, notes = serial_prefill(target)
    assert (target.schedule.n_inflight, serial.schedule.n_inflight) == (2, 1)
    assert notes == (
        "prompts run one token at a time, not 2: KV retention 'h2o' reuses slots that a token in "
        "flight still reads",
    )
    assert serial_prefill(serial) == (serial, ())
    assert serial_prefill(small("int4")) == (small("int4"), ())
