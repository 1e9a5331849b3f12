"""KV configurations: presets, text, and the rules of docs/kv.md, section 6."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from romsim_compiler.kv import CODECS, DEFAULT_KV, KV_PRESETS, KvConfig, make_kv, parse_kv
from romsim_compiler.kv_sram import check_kv
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target, parse_target, write_target
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES


def refused(sentence: str) -> pytest.RaisesExc[SpecError]:
    return pytest.raises(SpecError, match=f"^{re.escape(sentence)}$")


@pytest.mark.parametrize(
    "name", [*KV_PRESETS, "kvc-q,wide_heads=7", "kvc-q,value_bits=4,head_table=0.2+3.1"]
)
def test_every_preset_reads_back_from_its_own_text_and_from_a_target_file(name: str) -> None:
    kv = parse_kv(name)
    assert parse_kv(kv.text()) == kv
    assert make_kv(kv.to_json()) == kv
    target = replace(load_target("small"), kv=kv)
    assert parse_target(write_target(target), "x.toml") == target
    assert Target.from_json(target.to_json()) == target


def test_plain_cache_is_the_default_and_leaves_no_trace_in_a_target() -> None:
    assert parse_kv("int8") == DEFAULT_KV == KvConfig()
    assert DEFAULT_KV.is_default
    assert "kv" not in load_target("small").to_json()
    assert "[kv]" not in write_target(load_target("small"))
    assert not parse_kv("int8,layout=paged").is_default


def test_systems_are_their_axes() -> None:
    assert parse_kv("vllm") == KvConfig(codec="fp16", layout="paged", block=16)
    assert parse_kv("kivi-k4v2") == KvConfig(
        codec="kivi", key_bits=4, value_bits=2, group=32, residual=128
    )
    assert parse_kv("streaming-llm") == KvConfig(
        codec="fp16", retention="stream", layout="ring", sinks=4, window=508
    )
    assert parse_kv("h2o,heavy=8,window=9,codec=int8").slots == 18
    assert {parse_kv(name).codec for name in KV_PRESETS} == set(CODECS)


def test_changing_an_axis_drops_what_its_old_value_used() -> None:
    assert parse_kv("kivi-2bit,codec=int4") == parse_kv("int4")
    assert parse_kv("streaming-llm,retention=all,layout=contiguous") == parse_kv("fp16")
    assert parse_kv("h2o,codec=int8").heavy == parse_kv("kvc-q").window * 2
    assert parse_kv("kvc-q,codec=int4") == parse_kv("int4")
    assert parse_kv("vllm,layout=slotmap") == KvConfig(codec="fp16", layout="slotmap")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "kivi-2bits",
            f"KV preset must be one of {', '.join(KV_PRESETS)}, or KEY=VALUE pairs, not "
            f"'kivi-2bits'; did you mean 'kivi-2bit'?",
        ),
        ("int8,int4", "--kv must have KEY=VALUE after the preset's name, not 'int4'"),
        (
            "kvc-q,head_table=3",
            "kv.head_table must be LAYER.HEAD+LAYER.HEAD..., as in 0.2+3.1, not '3'",
        ),
        (
            "kvc-q,head_table=3.1+0.2",
            "kv.head_table must be kv.wide_heads = 2 different heads in ascending order, not "
            "[[3, 1], [0, 2]]",
        ),
        (
            "kvc-q,wide_heads=1,head_table=0.2+3.1",
            "kv.head_table must be kv.wide_heads = 1 different heads in ascending order, not "
            "[[0, 2], [3, 1]]",
        ),
        (
            "kvc-q,key_bits=4,value_bits=4,wide_heads=2",
            "kv.wide_heads must be 0 with key_bits and value_bits 4, not 2: no head is wider than "
            "that",
        ),
        (
            "int4,wide_heads=2",
            "kv.wide_heads must be left out with codec 'int4', retention 'all' and layout "
            "'contiguous', which do not use it, not 2",
        ),
        ("int4,groups=32", "KV key 'groups' is unknown; did you mean 'group'?"),
        ("int4,group=x", "kv.group must be a number of at least 0, not 'x'"),
        (
            "codec=fp8",
            "kv.codec must be one of fp16, int8, int4, int2, kivi, tiered, commvq, not 'fp8'",
        ),
        ("commvq-2bit,stages=0", "kv.stages must be 1 to 64, not 0"),
        (
            "commvq-2bit,value_bits=3",
            "kv.value_bits must be 1 or 2 with codec 'commvq', not 3",
        ),
        ("commvq-1bit,residual=0", "kv.residual must be at least 1, not 0"),
        (
            "commvq-2bit,retention=stream",
            "kv.retention must be 'all' with codec 'commvq', not 'stream': words of the newest 128 "
            "tokens are encoded together (rule 2)",
        ),
        (
            "h2o,codec=tiered",
            "kv.retention must be 'all' with codec 'tiered', not 'h2o': attention mass chooses the "
            "width of tokens there, not which are kept (rule 2)",
        ),
        (
            "kvc-q,window=0",
            "kv.window must be at least 1, not 0: the new token attends to itself (rule 3)",
        ),
        ("int4,group=48", "kv.group must be a multiple of 32, not 48"),
        ("int4,group=0", "kv.group must be a multiple of 32, not 0"),
        ("kivi-2bit,key_bits=3", "kv.key_bits must be 2 or 4, not 3"),
        ("vllm,block=129", "kv.block must be 1 to 128, not 129 (rule 1)"),
        ("vllm,block=0", "kv.block must be 1 to 128, not 0 (rule 1)"),
        (
            "kivi-2bit,layout=paged,block=16",
            "kv.block must be a multiple of the codec's 32 tokens, not 16; raise it to 32 (rule 1)",
        ),
        (
            "kivi-2bit,residual=100",
            "kv.residual must be a multiple of kv.group, and both at least 1, not 100 with 32 "
            "(rule 1)",
        ),
        (
            "kivi-2bit,retention=h2o,heavy=4,window=4",
            "kv.retention must be 'all' with codec 'kivi', not 'h2o': a dropped token would leave "
            "a hole in a group of 32 keys; use a codec per token such as int4 (rule 2)",
        ),
        (
            "streaming-llm,sinks=64,window=32",
            "kv.window must be at least kv.sinks, not 32 with 64 (rule 3)",
        ),
        (
            "h2o,window=0",
            "kv.window must be at least 1, not 0: the new token attends to itself (rule 3)",
        ),
        (
            "streaming-llm,sinks=0,window=0",
            "kv.window must be at least 1, not 0: the new token attends to itself (rule 3)",
        ),
        ("h2o,heavy=65536", "KV budget must be at most 65536 tokens, not 65793 (rule 3)"),
        (
            "commvq-2bit,residual=65537",
            "kv.residual must be at most 65536, not 65537: no sequence is read over more tokens "
            "(rule 3)",
        ),
        (
            f"kivi-2bit,plain_sinks={10**20}",
            f"kv.plain_sinks must be at most 65536, not {10**20}: no sequence is read over more "
            f"tokens (rule 3)",
        ),
        (
            "streaming-llm,layout=contiguous",
            "kv.layout must be paged, ring, slotmap with retention 'stream', not 'contiguous' "
            "(rule 4)",
        ),
        (
            "h2o,layout=ring",
            "kv.layout must be paged, slotmap with retention 'h2o', not 'ring' (rule 4)",
        ),
        (
            "int8,window=4",
            "kv.window must be left out with codec 'int8', retention 'all' and layout "
            "'contiguous', which do not use it, not 4",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_rule(text: str, sentence: str) -> None:
    with refused(sentence):
        parse_kv(text)


def test_chip_and_model_are_asked_too() -> None:
    spec = SHAPES["smollm2"]
    small = load_target("small")
    with refused(
        "kv.group must divide head_dim of model 'smollm2-135m', 64, not 128: values share a scale "
        "per 128 channels (rule 5)".replace("smollm2-135m", spec.name)
    ):
        check_kv(spec, replace(small, kv=parse_kv("int4,group=128")))
    with refused(
        "kv.block must divide array.n_tiles of target 'small', 2, or be a multiple of it, not 3: "
        "a page's tokens must meet all tiles alike (rule 6)"
    ):
        check_kv(spec, replace(small, kv=parse_kv("vllm,block=3")))
    paper = load_target("tom-7nm")
    with refused(
        "formats.kv of target 'tom-7nm' must be 'mxint8' with a [kv] section, not 'fp8_e4m3': the "
        "section chooses the codec (rule 5)"
    ):
        check_kv(spec, replace(paper, kv=parse_kv("int4")))


def test_target_file_says_where_a_kv_key_is_wrong() -> None:
    text = write_target(load_target("small")) + '\n[kv]\ncodec = "int4"\nwindows = 4\n'
    line = text.splitlines().index("windows = 4") + 1
    with refused(f"x.toml:{line}: key 'kv.windows' is unknown; did you mean 'window'?"):
        parse_target(text, "x.toml")
    with refused("x.toml: kv.window must be at least kv.sinks, not 2 with 4 (rule 3)"):
        parse_target(
            write_target(load_target("small")) + '\n[kv]\nretention = "stream"\nwindow = 2\n',
            "x.toml",
        )
