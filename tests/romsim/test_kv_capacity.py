"""``romsim kv-capacity``: the survey's figures of room, rates that are the chip's own, refusals."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import romsim
from romsim.chip_decode import decode_on_chip
from romsim.cycle import CycleModel
from romsim.description_point import point_of_description
from romsim.kv_formulas import kv_bytes
from romsim.kv_room import KvCapacity, attention_macs, closed_form_tokens, recompute_ratio
from romsim.throughput import decode_rates
from romsim_compiler.description import Description
from romsim_compiler.kv import KV_PRESETS, parse_kv
from romsim_compiler.kv_sram import stored_bits
from romsim_compiler.memory_map import lora_bits, max_context
from romsim_compiler.target_file import load_target
from romsim_models.errors import CapacityError, SpecError
from romsim_models.shapes import SHAPES
from tests.command_line import run_command
from tests.romsim.kv_chips import with_kv
from tests.tiny_chips import sized_target

Capture = pytest.CaptureFixture[str]
SRAM = 288 * 2**20
SPEC_3B = SHAPES["llama-3.2-3b"]


@pytest.fixture(scope="module")
def roma() -> KvCapacity:
    return romsim.kv_capacity()


@pytest.fixture(scope="module")
def tom() -> KvCapacity:
    return romsim.kv_capacity("bitnet-2b-4t", target="tom-7nm-int8", contexts=(64, 400))


def test_t1_13_romas_sram_holds_as_many_tokens_as_the_survey_counts(roma: KvCapacity) -> None:
    assert roma.sram_bytes == SRAM
    rows = {row.config: row for row in roma.rows}
    assert list(rows) == list(KV_PRESETS)
    assert rows["fp16"].tokens_in_sram == rows["vllm"].tokens_in_sram == 2633
    assert rows["kivi-2bit"].tokens_in_sram == 13_542
    # The same with 8 and 4 bits and no scales, which no codec here is.
    for bits, tokens in ((16, 2633), (8, 5266), (4, 10532)):
        token = kv_bytes(layers=28, kv_heads=8, head_dim=128, bits=bits)
        assert int(SRAM // token) == tokens
    assert rows["int8"].tokens_in_sram == int(5266.3 * 8 / 8.25)
    # One bit: CommVQ's keys 12 * 11/128 + 16/1024 and values 1 + 16/1024 bits an element.
    one_bit = (12 * 11 / 128 + 1) / 2 + 16 / 1024
    token = kv_bytes(layers=28, kv_heads=8, head_dim=128, bits=one_bit)
    assert round(SRAM / token, -2) == 40_900
    for row in roma.rows:
        if row.tokens_fit is None:
            assert row.slots is not None
        else:
            assert row.tokens_in_sram is not None
            assert 0.9 * row.tokens_in_sram < row.tokens_fit <= row.tokens_in_sram


def test_no_shorter_sequence_takes_more_than_the_sram(roma: KvCapacity) -> None:
    for name in ("kivi-2bit", "kivi-4bit", "kivi-2bit-sinks", "int4", "kvc-q"):
        kv = parse_kv(name)
        bits = 8 * SRAM // (28 * 8)
        tokens = closed_form_tokens(SPEC_3B, kv, SRAM)
        assert tokens is not None
        assert max(stored_bits(kv, 128, n) for n in range(tokens + 1)) <= bits
        assert stored_bits(kv, 128, tokens + 1) > bits
    kept = parse_kv("streaming-llm")
    assert closed_form_tokens(SPEC_3B, kept, 512 * 114_688) is None
    assert closed_form_tokens(SPEC_3B, kept, 512 * 114_688 - 1) == 0


def test_bandwidth_and_rates(roma: KvCapacity, tom: KvCapacity) -> None:
    rows = {row.config: row for row in roma.rows}
    assert [rate.context for rate in rows["int8"].rates] == [256, 1024, 4096]
    for row in (*roma.rows, *tom.rows):
        speeds = [rate.tokens_per_s for rate in row.rates]
        assert speeds == sorted(speeds, reverse=True)
        for rate in row.rates:
            assert rate.kv_tb_per_s == pytest.approx(rate.kv_bytes_read * rate.tokens_per_s / 1e12)
    # Near the end of the SRAM ROMA reads about 3.8 TB/s of KV.
    assert rows["int8"].rates[-1].kv_tb_per_s == pytest.approx(3.8, rel=0.05)
    assert rows["int8"].rates[0].kv_bytes_read == 256 * 59_136
    # BitNet's four query heads a KV head are two passes of TOM's two: everything is read twice.
    assert tom.rows[0].rates[0].kv_bytes_read == 2 * 64 * 39_600
    endless = rows["streaming-llm"].rates
    assert endless[-1].context == 16384
    assert endless[-1].tokens_per_s == endless[1].tokens_per_s


def test_t1_14_an_adapter_takes_the_tokens_of_its_bytes() -> None:
    plain = romsim.kv_capacity(configs=("fp16",), contexts=(100,))
    adapted = romsim.kv_capacity(configs=("fp16",), contexts=(100,), rank=16)
    assert adapted.adapter_bytes == lora_bits(SPEC_3B, 16) // 8
    before, after = plain.rows[0].tokens_in_sram, adapted.rows[0].tokens_in_sram
    assert before is not None
    assert after is not None
    assert after == (SRAM - adapted.adapter_bytes) // 114_688
    assert before - after in (
        adapted.adapter_bytes // 114_688,
        -(-adapted.adapter_bytes // 114_688),
    )
    target = replace(load_target("roma-7nm-int8"), kv=parse_kv("fp16"))
    assert adapted.rows[0].tokens_fit == max_context(SPEC_3B, target, adapted.adapter_bytes)
    assert adapted.rows[0].rates[0].tokens_per_s < plain.rows[0].rates[0].tokens_per_s


def test_rates_are_those_of_a_chip_that_runs(tiny: Description, tmp_path: Path) -> None:
    from romsim_compiler.target_file import write_target

    toml = tmp_path / "chip.toml"
    toml.write_text(write_target(tiny.target), encoding="utf-8")
    # a window of 8 tokens is encoded after the 16th, which takes longer
    spans = {"vllm,block=4": 1, "h2o,heavy=5,window=4": 1, "kivi-2bit,residual=8,group=8": 8}
    done = romsim.kv_capacity("tiny-int4", target=toml, configs=tuple(spans), contexts=(3, 16))
    for row, (kv, span) in zip(done.rows, spans.items(), strict=True):
        chip = with_kv(tiny, kv)
        model = CycleModel(chip, threads=1)
        cycles = [model.step(token).cycles for token in range(16)]
        means = [sum(part) / len(part) for part in (cycles[max(0, n - span) : n] for n in (3, 16))]
        speeds = [tiny.target.clock_mhz * 1e6 / mean for mean in means]
        assert [rate.tokens_per_s for rate in row.rates] == pytest.approx(speeds)
        if kv.startswith("kivi"):
            assert cycles[-1] > 1.1 * means[1]
            rates = decode_rates(point_of_description(chip), (3, 16))
            assert [rate.cycles for rate in rates] == [round(mean) for mean in means]
            assert rates[1].tokens_per_s == pytest.approx(speeds[1])
            decoded = decode_on_chip(chip, 16)
            assert decoded.cycles == cycles[-1]
            assert decoded.tokens_per_s == pytest.approx(speeds[1])
            assert (
                "Tokens/s is the mean over 8 tokens, since the KV cache encodes as many at once; "
                "cycles and energy are of the last one." in decoded.notes
            )


@pytest.mark.parametrize("n_tokens", [1, 2, 17, 40])
def test_t1_17_attention_with_a_cache_is_linear_and_without_quadratic(n_tokens: int) -> None:
    """Multiplications are counted where they are done, token by token."""
    spec = replace(SHAPES["smollm2"], n_heads=2, n_kv_heads=1, head_dim=4)
    counted = {True: 0, False: 0}
    for cached in counted:
        queries = [n_tokens] if cached else range(1, n_tokens + 1)  # without, all attend anew
        for position in queries:
            for _head in range(spec.n_heads):
                for _key in range(position):
                    counted[cached] += spec.head_dim  # the score
                for _value in range(position):
                    counted[cached] += spec.head_dim  # the sum
        assert attention_macs(spec, n_tokens, cached=cached) == counted[cached]
    assert counted[True] == n_tokens * 2 * spec.n_heads * spec.head_dim
    assert counted[False] / counted[True] == recompute_ratio(n_tokens) == (n_tokens + 1) / 2


def test_command(tmp_path: Path, capsys: Capture) -> None:
    table = tmp_path / "rows.csv"
    arguments = ["kv-capacity", "llama-3.2-3b", "--configs", "int8", "--configs", "vllm"]
    arguments += ["--contexts", "64,4096", "--csv", str(table)]
    done = run_command(capsys, *arguments, "--json")
    assert done.code == 0
    schema = Path(romsim.__file__).parent / "schemas" / "kv-capacity.schema.json"
    jsonschema.validate(json.loads(done.out), json.loads(schema.read_text()))
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [(r["config"], r["context"]) for r in rows] == [
        ("int8", "64"), ("int8", "4096"), ("vllm", "64"),
    ]  # fmt: skip
    done = run_command(capsys, *arguments)
    assert done.code == 0
    out = done.out
    assert out.splitlines()[0] == (
        "llama-3.2-3b on roma-7nm-int8: 288 MiB of SRAM, 0 MiB of it adapters; tokens/s of one "
        "sequence, KV read in TB/s; - where the context does not fit; +mm2 of logic beyond the "
        "plain cache's, - where the RTL has none"
    )
    assert out.splitlines()[3].split("|")[2].split() == ["-", "-"]
    assert out.splitlines()[4] == (
        "attention without a cache would take, in multiplications, 32.5 times @64, 2,048.5 times "
        "@4096"
    )


def test_logic_is_what_the_area_has_beyond_the_plain_cache() -> None:
    found = romsim.kv_capacity(
        target="rtl-1k", configs=("int8", "fp16", "int2", "kivi-2bit", "kvc-q"), contexts=(16,)
    )
    logic = [row.logic_mm2 for row in found.rows]
    assert logic[0] == 0
    assert logic[4] is None
    fp16, int2, kivi = (value for value in logic[1:4] if value is not None)
    assert int2 < 0 < fp16 < kivi
    column = [line.split("|")[0].split()[-1] for line in found.lines()[1:7]]
    assert column == ["+mm2", "+0.000", f"{fp16:+.3f}", f"{int2:+.3f}", f"{kivi:+.3f}", "-"]
    assert [
        row.logic_mm2 for row in romsim.kv_capacity(target="roma-7nm", configs=("int8",)).rows
    ] == [None]


def test_refusals(capsys: Capture) -> None:
    for options, told in (
        ({"contexts": (0,)}, "Context must be at least 1 token, not 0"),
        ({"rank": -1}, "Adapter rank must be 0 or more, not -1"),
        (
            {"target": "roma-7nm", "configs": ("vllm",)},
            "formats.kv of target 'roma-7nm' must be 'mxint8' with a [kv] section, not "
            "'fp8_e4m3': the section chooses the codec (rule 5)",
        ),
    ):
        with pytest.raises(SpecError, match=f"^{re.escape(told)}$"):
            romsim.kv_capacity(**options)
    done = run_command(capsys, "kv-capacity", "--contexts", "a")
    assert (done.code, done.err) == (
        2,
        "romsim: --contexts must be integers separated by commas, not 'a'\n",
    )


def test_an_sram_too_small_for_one_page_of_every_layer_is_refused(tmp_path: Path) -> None:
    target = sized_target("small", sram_kib=16)
    told = (
        "Adapters and the KV cache of 128 tokens must fit the SRAM of target 'small': they need 0 "
        "and 65536 bytes, not the 32768 available; lower kv.block, or raise attention.sram_kib"
    )
    with pytest.raises(CapacityError, match=f"^{re.escape(told)}$"):
        romsim.compile("tiny-int4", tmp_path / "chip", target=target, kv="vllm,block=128")


def test_an_adapter_in_the_adder_arrays_takes_its_words() -> None:
    target = sized_target("tom-7nm-int8", sram_kib=512).with_lora_path("adders")
    options: dict[str, Any] = {"target": target, "weights": "ternary", "configs": ("int8",)}
    plain = romsim.kv_capacity("bitnet-2b-4t", **options, contexts=(64,))
    adapted = romsim.kv_capacity("bitnet-2b-4t", **options, contexts=(64,), rank=16)
    assert plain.adapter_bytes == 0
    # 36 MiB of words, of 5.2 MiB of trits: a row of B takes a word
    assert adapted.adapter_bytes == pytest.approx(36.0 * 2**20, rel=1e-2)
    rates = [one.rows[0].rates[0].tokens_per_s for one in (plain, adapted)]
    assert 0.8 < rates[1] / rates[0] < 0.9
