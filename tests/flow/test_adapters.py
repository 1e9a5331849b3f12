"""LoRA from a PEFT folder to the chip: sizes, errors, times, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import romsim
from romsim.cycle import CycleModel
from romsim.rates import adapter_ranks, decode_rates, prefill_cycles, timing_model
from romsim.timeline import timeline_rows
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, FormatError, SpecError
from tests.command_line import run_command
from tests.tiny_chips import (
    compile_tiny,
    copied,
    sized_target,
    tiny_spec,
    tree,
    write_adapter,
)

SPEC = tiny_spec("tiny-int4")


def test_command_line_puts_an_adapter_into_the_chip_and_tells_its_error(
    adapter_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "chip"
    arguments = ["compile", "tiny-int4", "--target", "small", "-o", out]
    done = run_command(
        capsys, *arguments, "--lora", f"poet={adapter_folder}", "--lora", adapter_folder
    )
    assert (done.code, done.err) == (0, "")
    entry = romsim.load(out).manifest["adapters"]["poet"]
    assert 0 < entry["error"] < 0.02
    line = (
        f"  adapter   poet: 14 matrices of rank up to 8, {entry['sram_bytes'] / 1e6:.3f} MB of "
        f"SRAM, relative error against the float adapter {100 * entry['error']:.3f} %"
    )
    assert line in done.out.splitlines()
    assert sorted(romsim.load(out).manifest["adapters"]) == ["poet", "story"]
    done = run_command(
        capsys,
        "simulate",
        out,
        "--token-ids",
        "1,2",
        "--max-tokens",
        3,
        "--adapter",
        "poet",
        "--json",
    )
    assert (done.code, len(done.json()["tokens"])) == (0, 3)
    done = run_command(
        capsys, "verify", out, "--token-ids", "1,2", "--tokens", 2, "--adapter", "story", "--lora",
        adapter_folder, "--level", "values", "--json",
    )  # fmt: skip
    assert (done.code, done.json()["passed"]) == (0, True)


def test_manifest_says_what_was_put_in(adapted: Description, adapter_folder: Path) -> None:
    adapters = adapted.manifest["adapters"]
    assert sorted(adapters) == ["small", "story"]
    assert adapters["small"]["ranks"] == {
        "blk.1.attn_q.weight": 4,
        "blk.1.ffn_down.weight": 4,
    }
    assert adapters["story"]["source"]["name"] == "story"
    assert adapters["story"]["n_matrices"] == 7 * SPEC.n_layers
    assert adapted.manifest["memory"]["lora_bytes"] == sum(
        a["sram_bytes"] for a in adapters.values()
    )
    assert str(adapter_folder) not in json.dumps(adapted.manifest)


def test_notes_of_an_adapter_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_adapter(tmp_path / "odd", SPEC, rank=2, parts=("attn_v",), novel=3)
    done = run_command(
        capsys, "compile", "tiny-int4", "--target", "small", "-o", tmp_path / "c", "--lora", folder
    )
    assert "note: adapter_config.json: key 'novel' is not used" in done.out.splitlines()


@pytest.mark.parametrize("adapter", [None, "story", "small"])
def test_times_with_an_adapter_are_those_of_the_timing_model(
    adapter: str | None, adapted: Description
) -> None:
    ranks = adapter_ranks(adapted, adapter)
    assert (
        sorted(ranks)
        == {
            None: [],
            "story": [f"L{n}.{g}" for n in range(2) for g in ("down", "gu", "o", "qkv")],
            "small": ["L1.down", "L1.qkv"],
        }[adapter]
    )
    model = CycleModel(adapted, threads=1)
    prompt = list(range(50, 57))
    assert model.prefill(prompt, adapter=adapter).cycles == prefill_cycles(
        adapted, len(prompt), adapter=adapter
    )
    timing = timing_model(adapted)
    for position in range(7, 40):
        done = model.step(9, adapter=adapter)
        expected = timing.run(adapted.decode, position, ranks)
        assert [(issue, idle) for _, issue, idle in done.timeline] == list(expected.times)
        assert done.cycles == expected.cycles
        assert done.cycles == decode_rates(adapted, [position], adapter=adapter)[0]["cycles"]
    rows = timeline_rows(adapted, 39, adapter=adapter)
    assert [(r["issue_cycle"], r["idle_cycle"]) for r in rows] == [
        (issue, idle) for _, issue, idle in done.timeline
    ]


def test_an_adapter_takes_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {f"r{n}": write_adapter(tmp_path / f"r{n}", SPEC, rank=n) for n in (4, 32, 64)}
    chip = compile_tiny("tiny-int4", tmp_path / "chip", adapters=folders)
    cycles = {}
    for name in ("", *folders):
        more = ["--adapter", name] if name else []
        done = run_command(
            capsys, "simulate", chip.path, "--engine", "timing", "--positions", 10, "--json", *more
        )
        (row,) = done.json()["rows"]
        cycles[name] = row["cycles"]
    # A small one hides behind the matrix that it is added to.
    assert cycles[""] <= cycles["r4"] < cycles["r32"] < cycles["r64"]


def test_adapter_too_large_is_refused_with_sizes(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "wide", SPEC, rank=512)
    before = sorted(tmp_path.iterdir())
    sentence = (
        r"^Adapter 'wide' \(ranks up to 512\) must fit the SRAM of a tile of target 'small': it "
        r"needs (\d+) bytes, not the 262144 available; lower the rank or the context, or raise "
        r"attention\.sram_kib to at least \d+$"
    )
    with pytest.raises(CapacityError, match=sentence):
        romsim.compile("tiny-int4", tmp_path / "c", target="small", adapters={"wide": folder})
    assert sorted(tmp_path.iterdir()) == before


def test_adapters_too_large_together_are_refused_with_sizes(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", SPEC, rank=32)
    names = [f"a{n}" for n in range(20)]
    target = sized_target("small", sram_kib=128)
    sentence = (
        r"^Adapters and the KV cache of one token must fit the SRAM of target 'small': they need "
        r"\d+ and 264 bytes, not the 262144 available; lower the rank, leave out an adapter, or "
        r"raise attention\.sram_kib$"
    )
    with pytest.raises(CapacityError, match=sentence):
        romsim.compile(
            "tiny-int4", tmp_path / "c", target=target, adapters=dict.fromkeys(names, folder)
        )
    assert not (tmp_path / "c").exists()


def test_adapters_lower_the_context_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", SPEC, rank=32)
    target = sized_target("small", sram_kib=128)
    wide = compile_tiny("tiny-int4", tmp_path / "wide", target=target, context=None)
    less = compile_tiny(
        "tiny-int4",
        tmp_path / "less",
        target=target,
        context=None,
        adapters=dict.fromkeys(("a", "b"), folder),
    )
    assert 0 < less.context < wide.context
    used = less.manifest["memory"]
    assert used["kv_bytes"] + used["lora_bytes"] <= used["tile_sram_bytes"]
    sentence = (
        rf"^Context of {less.context + 2} tokens must fit the SRAM of target 'small': KV needs "
        rf"\d+ bytes and adapters {used['lora_bytes']}, not the 262144 available; at most "
        rf"{less.context} tokens fit; lower --context or the rank, or raise attention\.sram_kib$"
    )
    with pytest.raises(CapacityError, match=sentence):
        compile_tiny(
            "tiny-int4",
            tmp_path / "no",
            target=target,
            context=less.context + 2,
            adapters=dict.fromkeys(("a", "b"), folder),
        )


def test_fitted_chip_has_room_for_its_adapters(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", SPEC, rank=5)
    chip = romsim.compile(
        "tiny-int4",
        tmp_path / "c",
        target="roma-7nm-g32",
        fit=True,
        context=100,
        adapters={"a": folder},
    )
    assert chip.context >= 100
    options: dict[str, Any] = {"adapter": "a", "loras": {"a": folder}, "level": "values"}
    assert romsim.verify(chip, tokens=[1, 2, 3], n_new=2, **options).passed


@pytest.mark.parametrize(
    ("loras", "sentence"),
    [
        (["a/b=X"], "'a/b'"),
        (["../up=X"], "'../up'"),
        (["=X"], "''"),
        ([".x=X"], "'.x'"),
    ],
)
def test_names_that_are_no_folder_names_are_refused(
    loras: list[str],
    sentence: str,
    adapter_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = [x for lora in loras for x in ("--lora", lora.replace("X", str(adapter_folder)))]
    done = run_command(
        capsys, "compile", "tiny-int4", "--target", "small", "-o", tmp_path / "c", *more
    )
    assert done.code == 2
    assert done.sentence() == (
        f"romsim: Adapter name must be letters, digits, '.', '_' and '-' and begin with a letter "
        f"or digit, not {sentence}; give one with --lora NAME=FOLDER"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_name_given_twice_is_refused(
    adapter_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_command(
        capsys, "compile", "tiny-int4", "--target", "small", "-o", tmp_path / "c", "--lora",
        f"story={adapter_folder}", "--lora", adapter_folder,
    )  # fmt: skip
    assert (done.code, done.sentence()) == (
        2,
        "romsim: Adapter name must be given once, not twice: 'story'",
    )


def test_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path / "other", tiny_spec("tiny-int2"), layers=[0], parts=("attn_q",)
    )
    sentence = (
        "matrix 'blk.0.attn_q.weight' of model 'tiny-int4' must have the shape [128, 128] of "
        "adapter 'other', not [128, 64]; the adapter was made for another base"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        romsim.compile("tiny-int4", tmp_path / "c", target="small", adapters={"o": folder})


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"adapter_config\.json"):
        romsim.compile("tiny-int4", tmp_path / "c", adapters={"o": tmp_path / "none"})


def test_reference_wants_the_folder_that_was_compiled(
    adapted: Description, adapter_folder: Path, tmp_path: Path
) -> None:
    path = adapted.path

    def refused(sentence: str, adapter: str | None, **loras: Path) -> None:
        with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
            romsim.verify(adapted, tokens=[1], n_new=1, adapter=adapter, loras=loras)

    refused(
        "The folder of adapter 'story' must be given, since the reference reads its file: add "
        "--lora story=FOLDER",
        "story",
    )
    refused(
        f"Adapter must be one that is resident in {path} (small, story), not 'poet'; compile with "
        f"--lora poet=FOLDER",
        "poet",
        poet=adapter_folder,
    )
    refused(
        "--lora story=FOLDER must be given with --adapter NAME, not alone",
        None,
        story=adapter_folder,
    )
    other = copied(adapter_folder, tmp_path / "other")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 17}))
    with pytest.raises(
        SpecError,
        match=rf"^Adapter in {re.escape(str(other))} must be the one that {re.escape(str(path))} "
        rf"was compiled with as 'story' \(SHA-256 [0-9a-f]{{64}}\), not one with SHA-256 "
        rf"[0-9a-f]{{64}}; give the right folder or compile again$",
    ):
        romsim.verify(adapted, tokens=[1], n_new=1, adapter="story", loras={"story": other})


def test_adapters_are_in_the_folder_and_nowhere_else(adapted: Description) -> None:
    files = set(tree(adapted.path))
    assert {f for f in files if f.startswith("lora/")} == {
        f"lora/{name}/lora.{end}" for name in ("story", "small") for end in ("json", "bin")
    }
