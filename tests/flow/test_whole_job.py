"""The main job on tiny models: compile, audit, verify, let it speak."""

from __future__ import annotations

from pathlib import Path

import pytest

import romsim
from romsim.engines import make_engine
from romsim.sampling import Sampler
from romsim.simulate import simulate
from romsim_compiler.description import Description
from tests.tiny_chips import TARGETS, compile_tiny, tiny_spec

PROMPT = "Once upon a time"
MIXED = {
    "tiny-int4": ["blk.0.attn_k.weight=int2g32", "blk.1.ffn_*=int8g64", "blk.1.ffn_up*=int4g64"],
    "tiny-int2": ["blk.1.*=int4g128", "output.weight=int4g64", "blk.2.attn_v.weight=int8g32"],
    "tiny-ternary": ["blk.1.ffn_gate.weight=int2g32", "blk.0.attn_*=int4g64"],
}


def check_equal(
    chip: Description, *, adapter: str | None = None, folder: Path | None = None
) -> None:
    loras = None if adapter is None or folder is None else {adapter: folder}
    report = romsim.verify(
        chip, prompt=PROMPT, n_new=40, level="values", adapter=adapter, loras=loras
    ).reference
    assert (report.passed, report.n_mismatches, report.first) == (True, 0, None)
    assert report.saturations == 0
    assert report.n_tokens == 40 + len(PROMPT)
    spec = chip.spec
    n_layers, n = spec.n_layers, report.n_tokens
    n_blocks = spec.head_dim // 32
    assert report.counts["q"] == n * n_layers * spec.n_heads * spec.head_dim
    for what in ("k", "v"):  # every word of the KV cache
        assert report.counts[f"{what}.codes"] == n * n_layers * spec.n_kv_heads * spec.head_dim
        assert report.counts[f"{what}.shifts"] == n * n_layers * spec.n_kv_heads * n_blocks
    assert report.counts["x_ffn"] == n * n_layers * spec.dim
    assert report.counts["logits"] == 41 * spec.vocab_size  # of the prompt its last token's


@pytest.mark.parametrize("name", TARGETS)
def test_burnt_as_in_the_model_and_equal_to_the_reference(
    name: str, chips: dict[str, Description]
) -> None:
    report = romsim.audit(chips[name])
    assert (report.n_differences, report.differences) == (0, ())
    spec = chips[name].spec
    per_layer = spec.dim * (2 * spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
    per_layer += 3 * spec.dim * spec.hidden_dim
    tables = 1 if spec.tie_embeddings else 2
    assert report.n_codes == spec.n_layers * per_layer + tables * spec.vocab_size * spec.dim
    assert report.n_gains >= (2 * spec.n_layers + 1) * spec.dim
    check_equal(chips[name])


@pytest.mark.parametrize("name", TARGETS)
def test_mixed_formats_are_burnt_and_equal(name: str, tmp_path: Path) -> None:
    chip = compile_tiny(name, tmp_path / "mixed", quantize=MIXED[name])
    formats = chip.manifest["model"]["formats"]
    assert len(formats["weights"]) >= 3
    assert romsim.audit(chip).n_differences == 0
    check_equal(chip)


def test_adapters_are_equal_to_the_reference_and_change_what_is_said(
    adapted: Description, adapter_folder: Path
) -> None:
    check_equal(adapted, adapter="story", folder=adapter_folder)
    check_equal(adapted, adapter="small", folder=adapted.path.parent / "small")
    check_equal(adapted)
    said = {
        adapter: simulate(
            adapted,
            make_engine("cycle", adapted, adapter=adapter),
            list(range(40, 60)),
            n_new=24,
        ).tokens
        for adapter in (None, "story", "small")
    }
    assert len(set(said.values())) == 3


@pytest.mark.parametrize("sampler", [Sampler(), Sampler(temperature=0.8, top_k=20, seed=7)])
def test_engines_say_the_same(sampler: Sampler, adapted: Description, adapter_folder: Path) -> None:
    prompt = list(b"Once")
    runs = [
        simulate(
            adapted,
            make_engine(name, adapted, adapter="story", loras=loras),
            prompt,
            n_new=20,
            sampler=sampler,
            ignore_eos=True,
        )
        for name, loras in (("cycle", None), ("reference", {"story": adapter_folder}))
    ]
    assert runs[0].tokens == runs[1].tokens
    assert len(runs[0].tokens) == 20
    assert runs[0].text == runs[1].text != ""


def test_a_description_can_be_moved(chips: dict[str, Description], tmp_path: Path) -> None:
    import shutil

    moved = tmp_path / "path with a space" / "chip é"
    shutil.copytree(chips["tiny-int4"].path, moved)
    assert romsim.verify(moved, tokens=[5, 6], n_new=2, level="values").passed
    assert romsim.audit(moved).n_differences == 0


def test_specification_survives_the_folder(chips: dict[str, Description]) -> None:
    for name, chip in chips.items():
        assert chip.spec == tiny_spec(name)
