from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from romsim_compiler.lora_image import (
    LoraAdapterImage,
    LoraProjection,
    build_lora,
    load_lora,
    save_lora,
)
from romsim_models.errors import CapacityError, DescriptionError, SpecError
from romsim_models.lora import LoraAdapter, LoraTarget
from romsim_models.spec import ModelSpec
from romsim_models.tensors import layer_tensor, projection_shapes
from tests.compiler.rom_arrays import make_spec, make_target


def make_adapter(spec: ModelSpec, ranks: dict[str, int], *, scaling: float = 2.0) -> LoraAdapter:
    """Adapter of the given rank on each named projection of every layer."""
    rng = np.random.default_rng(11)
    targets = {}
    for layer in range(spec.n_layers):
        for part, rank in ranks.items():
            n_rows, n_cols = projection_shapes(spec)[part]
            name = layer_tensor(layer, part)
            targets[name] = LoraTarget(
                name=name,
                alpha=scaling * rank,
                scaling=scaling,
                a=rng.standard_normal((rank, n_cols)).astype(np.float32) * np.float32(0.1),
                b=rng.standard_normal((n_rows, rank)).astype(np.float32) * np.float32(0.02),
            )
    return LoraAdapter(name="story", base_name="tiny", targets=targets)


def held(p: LoraProjection) -> np.ndarray:
    a = p.a_codes.astype(np.float64)
    a *= 2.0 ** np.repeat(p.a_exps.astype(float), 32, axis=1)[:, : a.shape[1]]
    b = p.b_codes.astype(np.float64)
    b *= 2.0 ** np.repeat(p.b_exps.astype(float), p.block, axis=1)
    return b @ a


def test_groups_and_ranks_follow_the_base() -> None:
    spec = make_spec(n_layers=2)
    adapter = make_adapter(spec, {"attn_q": 8, "attn_v": 40, "ffn_down": 3})
    image = build_lora("story", adapter, spec=spec, target=make_target())
    assert list(image.groups) == ["L0.qkv", "L0.down", "L1.qkv", "L1.down"]
    qkv = image.groups["L1.qkv"]
    assert (qkv.layer, qkv.n_rows, qkv.n_cols, qkv.ranks) == (1, 128, 64, (8, 0, 64))
    q, v = qkv.projections
    assert (q.operator, q.first_row, q.n_rows, q.rank, q.block, q.padded_rank) == (
        "q", 0, 64, 8, 8, 8,
    )  # fmt: skip
    assert (v.operator, v.first_row, v.n_rows, v.rank, v.block, v.padded_rank) == (
        "v", 96, 32, 40, 32, 64,
    )  # fmt: skip
    assert (q.b_codes.shape, q.b_exps.shape) == ((64, 8), (64, 1))
    assert (v.a_codes.shape, v.a_exps.shape) == ((64, 64), (64, 2))
    assert (v.b_codes.shape, v.b_exps.shape) == ((32, 64), (32, 2))
    assert not v.a_codes[40:].any()
    assert not v.b_codes[:, 40:].any()
    assert image.ranks == {p.tensor: p.padded_rank for p in image.projections}


@pytest.mark.parametrize("rank", [1, 8, 12, 32, 33])
def test_the_error_is_that_of_the_product(rank: int) -> None:
    spec = make_spec()
    adapter = make_adapter(spec, {"ffn_up": rank, "attn_output": rank}, scaling=0.37)
    image = build_lora("story", adapter, spec=spec, target=make_target())
    errors, wholes = [], []
    for p in image.projections:
        assert isinstance(p, LoraProjection)
        delta = adapter.targets[p.tensor].delta()
        errors.append(((held(p) - delta) ** 2).sum())
        wholes.append((delta**2).sum())
        assert p.error == pytest.approx(np.sqrt(errors[-1] / wholes[-1]), rel=1e-5)
        assert 0 < p.error < 0.02
    assert image.error == pytest.approx(np.sqrt(sum(errors) / sum(wholes)), rel=1e-5)


def test_the_scaling_is_folded_into_b() -> None:
    spec = make_spec()
    once = build_lora(
        "s", make_adapter(spec, {"attn_q": 4}, scaling=1.0), spec=spec, target=make_target()
    )
    eight = build_lora(
        "s", make_adapter(spec, {"attn_q": 4}, scaling=8.0), spec=spec, target=make_target()
    )
    (p,), (r,) = once.projections, eight.projections
    assert isinstance(p, LoraProjection)
    assert isinstance(r, LoraProjection)
    assert np.array_equal(p.a_codes, r.a_codes)
    assert np.array_equal(p.a_exps, r.a_exps)
    assert np.array_equal(p.b_codes, r.b_codes)
    assert np.array_equal(p.b_exps + 3, r.b_exps)
    assert (p.grid_a, p.grid_b + 3) == (r.grid_a, r.grid_b)


def test_bits_count_codes_and_exponents_of_the_padded_rank() -> None:
    spec = make_spec()
    image = build_lora("s", make_adapter(spec, {"attn_q": 33}), spec=spec, target=make_target())
    assert image.size_bits == 8 * (64 * 64 + 64 * 2 + 64 * 64 + 64 * 2)
    summary = image.summary()
    assert summary["ranks"] == {"blk.0.attn_q.weight": 33}
    assert (summary["max_rank"], summary["n_matrices"]) == (33, 1)
    assert summary["size_bits"] == image.size_bits
    assert summary["errors"] == {"blk.0.attn_q.weight": image.projections[0].error}


def same(left: LoraAdapterImage, right: LoraAdapterImage) -> bool:
    fields = ("tensor", "operator", "first_row", "n_rows", "rank", "grid_a", "grid_b", "error")
    arrays = ("a_codes", "a_exps", "b_codes", "b_exps")
    return (
        (left.name, left.error, list(left.groups)) == (right.name, right.error, list(right.groups))
        and all(
            (g.name, g.layer, g.n_rows, g.n_cols, g.ranks)
            == (h.name, h.layer, h.n_rows, h.n_cols, h.ranks)
            for g, h in zip(left.groups.values(), right.groups.values(), strict=True)
        )
        and all(
            all(getattr(p, f) == getattr(q, f) for f in fields)
            and all(np.array_equal(getattr(p, f), getattr(q, f)) for f in arrays)
            for p, q in zip(left.projections, right.projections, strict=True)
        )
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    spec = make_spec(n_layers=2)
    adapter = make_adapter(spec, {"attn_k": 8, "ffn_gate": 40, "ffn_down": 3})
    image = build_lora("story", adapter, spec=spec, target=make_target())
    save_lora(image, tmp_path / "lora" / "story")
    assert same(load_lora(tmp_path / "lora" / "story"), image)
    save_lora(image, tmp_path / "again")
    for file in ("lora.json", "lora.bin"):
        first = (tmp_path / "lora" / "story" / file).read_bytes()
        assert first == (tmp_path / "again" / file).read_bytes()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    spec = make_spec()
    image = build_lora("s", make_adapter(spec, {"attn_q": 4}), spec=spec, target=make_target())
    save_lora(image, tmp_path / "s")
    (tmp_path / "s" / "lora.bin").write_bytes(b"\0" * 7)
    with pytest.raises(
        DescriptionError,
        match=r"^.*/s/lora\.bin must have 584 bytes, not 7; compile again$",
    ):
        load_lora(tmp_path / "s")
    (tmp_path / "s" / "lora.json").write_text("{")
    with pytest.raises(
        DescriptionError,
        match=r"^.*/s: adapter must be readable from lora\.json and lora\.bin, not fail with "
        r"JSONDecodeError; compile again$",
    ):
        load_lora(tmp_path / "s")


def test_an_adapter_larger_than_the_sram_is_refused() -> None:
    spec = make_spec()
    adapter = make_adapter(spec, {"attn_q": 64, "ffn_down": 8})
    with pytest.raises(
        CapacityError,
        match=r"^Adapter 'story' \(ranks up to 64\) must fit the SRAM of a tile of target 'test': "
        r"it needs 7020 bytes, not the 2048 available; lower the rank or the context, or raise "
        r"attention\.sram_kib to at least 7$",
    ):
        build_lora("story", adapter, spec=spec, target=make_target(sram_kib=2))


def test_an_adapter_that_applies_to_nothing_is_refused() -> None:
    spec = make_spec()
    adapter = LoraAdapter(name="story", base_name="tiny", targets={})
    with pytest.raises(
        SpecError, match=r"^Adapter 'story' must have a matrix to apply to, not none$"
    ):
        build_lora("story", adapter, spec=spec, target=make_target())


def test_an_adapter_of_another_base_is_refused() -> None:
    adapter = make_adapter(make_spec(dim=96), {"attn_q": 4})
    with pytest.raises(
        SpecError,
        match=r"^matrix 'blk\.0\.attn_q\.weight' of model 'tiny' must have the shape \[64, 96\] of "
        r"adapter 'story', not \[64, 64\]; the adapter was made for another base$",
    ):
        build_lora("story", adapter, spec=make_spec(), target=make_target())
