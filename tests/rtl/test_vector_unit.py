# amaranth: UnusedElaboratable=no
"""Unit V, Verilated, against the golden model: values, clips and cycles of every instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from romsim_compiler.numerics import Numerics
from romsim_models.errors import SpecError
from romsim_rtl.toolchain import lint
from romsim_rtl.vector_control import LATENCY, VectorSizes, check_latency
from romsim_rtl.vector_streams import up_masks
from romsim_rtl.vector_unit import VectorUnit
from tests.rtl.vector_bench import TABLES, Bench, Shape, emit
from tests.rtl.vector_scenario import Scenario

# No length is a multiple of its lanes where it need not be, so that tails and turns are met.
SHAPES = {
    "silu, 32 lanes": Shape(dim=72, hidden_dim=104, n_heads=3, vocab_size=1000),
    "squared relu, sub-norms, ternary": Shape(
        activation="relu2",
        has_sub_norms=True,
        encoding="ternary",
        lane_bits=2,
        dim=80,
        hidden_dim=136,
        n_heads=2,
        n_kv_heads=2,
        head_dim=64,
        broadcast_cycles=0,
        collect_cycles=0,
    ),
}
SLOW_SHAPES = {
    "64 lanes": Shape(
        n_lanes=64,
        dim=72,
        n_heads=3,
        hidden_dim=104,
        broadcast_cycles=2,
        collect_cycles=3,
    ),
    "128 lanes, heads of 96, words of 64": Shape(
        n_lanes=128,
        dim=96,
        n_heads=5,
        n_kv_heads=5,
        head_dim=96,
        hidden_dim=500,
        word_codes=64,
        n_inflight=3,
    ),
    "one token, no minima, words of 16": Shape(
        n_inflight=1,
        min_bits=0,
        word_codes=16,
        scale_group=16,
        dim=40,
        hidden_dim=64,
        n_heads=1,
        query_scale=1 << 17,
    ),
    "SmolLM2-135M": Shape(
        dim=576,
        n_heads=9,
        n_kv_heads=3,
        head_dim=64,
        hidden_dim=1536,
        vocab_size=49152,
        n_gain_words=144,
    ),
}


SEEDS = range(48)


def scenarios(bench: Bench, seeds: range) -> Iterator[Scenario]:
    """Queue every operator for every token, twice; the bench is empty before the next one."""
    shape = bench.shape
    for seed in seeds:
        scenario = Scenario(bench, seed)
        rnd = scenario.random
        pos = rnd.choice([0, 65536 - shape.n_inflight, rnd.randrange(65000)])
        planes = [1, 5, 8] if shape.encoding == "ternary" else [1, 2]
        for token in range(shape.n_inflight):
            scenario.embed(token, planes=rnd.choice(planes), whole_matrix=rnd.random() < 0.5)
            scenario.sincos(token, pos + token)
        for _ in range(2):
            for token in range(shape.n_inflight):
                scenario.layer(token, pos + token)
        scenario.finish()
        yield scenario


def run_seeds(shape: Shape, folder: Path, seeds: range) -> None:
    bench = Bench(shape, folder)
    assert len(bench.watched) > 20
    n_values = 0
    for scenario in scenarios(bench, seeds):
        scenario.check(*bench.run(scenario.gains))
        n_values += scenario.n_values
    assert n_values > 1000


@pytest.mark.verilator
@pytest.mark.parametrize("name", SHAPES)
def test_every_operator_in_values_and_cycles(name: str, tmp_path: Path) -> None:
    run_seeds(SHAPES[name], tmp_path, SEEDS)


@pytest.mark.slow
@pytest.mark.verilator
@pytest.mark.parametrize("name", SLOW_SHAPES)
def test_every_operator_on_more_shapes(name: str, tmp_path: Path) -> None:
    run_seeds(SLOW_SHAPES[name], tmp_path, range(4))


@pytest.mark.verilator
def test_verilog_is_clean_and_the_same_bytes_every_time(tmp_path: Path) -> None:
    shape = SHAPES["silu, 32 lanes"]
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    files = emit(shape, tmp_path / "first")
    report = lint(files, "romsim_vector")
    assert report.messages == ()
    assert report.n_waivers == 2  # the two blocking writes of romsim_sram.v
    again = emit(shape, tmp_path / "second", gain_words=[12345] * shape.n_gain_words)
    for first, second in zip(files, again, strict=True):
        assert second.read_text() == first.read_text(), first.name


# --- what is refused ---------------------------------------------------------------------------


def target_with(**more: Any) -> Callable[[Shape], Any]:
    def change(shape: Shape) -> Any:
        target = shape.target
        parts = {key: replace(getattr(target, key), **value) for key, value in more.items()}
        return replace(target, **parts)

    return change


REFUSED: dict[str, tuple[Callable[[Shape], Any], str]] = {
    "lanes": (
        target_with(vector={"n_lanes": 96}),
        r"vector n_lanes of the RTL must be a power of two from 32 to 512, not 96",
    ),
    "in flight": (
        target_with(schedule={"n_inflight": 9}),
        r"n_inflight of the RTL must be from 1 to 8, not 9; "
        r"the instruction's token field has 3 bits",
    ),
    "embedding": (
        target_with(embedding={"input": "off-chip"}),
        r"embedding.input of an RTL target must be 'rom', not 'off-chip'",
    ),
    "wide word": (
        target_with(array={"word_codes": 64, "scale_group": 64}),
        r"word_codes of an RTL target must be a power of two up to its 32 vector lanes, not 64",
    ),
    "odd word": (
        target_with(array={"word_codes": 24}),
        r"word_codes of an RTL target must be a power of two up to its 32 vector lanes, not 24",
    ),
    "small group": (
        target_with(array={"scale_group": 16}),
        r"scale_group of an RTL target must be 32 or more, or a whole word of 32 codes, not 16",
    ),
    "scales": (
        target_with(array={"scale_bits": 8}),
        r"scale_bits of an RTL target must be 16, not 8",
    ),
    "minima": (
        target_with(array={"min_bits": 8}),
        r"min_bits of an RTL target must be 0 or 16, not 8",
    ),
    "zero points": (
        target_with(array={"zero_bits": 2}),
        r"zero_bits of an RTL target must be 0, not 2",
    ),
    "latency": (
        target_with(latency={"norm": 26}),
        r"latency.norm of the target must be 25, the depth of the RTL's pipeline, not 26; "
        r"leave it out of the target",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_targets_without_hardware_for_them(name: str) -> None:
    change, message = REFUSED[name]
    shape = Shape()
    with pytest.raises(SpecError, match=rf"^{message}$"):
        make(shape, target=change(shape))


def make(shape: Shape, **more: Any) -> VectorUnit:
    arguments: dict[str, Any] = {
        "target": shape.target,
        "spec": shape.spec,
        "numerics": Numerics(),
        "tables": TABLES,
        "phase_increments": shape.increments,
        "query_scale": shape.query_scale,
        "n_gain_words": 4,
    }
    return VectorUnit(**(arguments | more))


@pytest.mark.parametrize(
    ("numerics", "message"),
    [
        (
            {"linear_frac": 15},
            r"linear_frac of a model with SiLU must be 16, for which its table is made, not 15",
        ),
        ({"act_block": 16}, r"act_block of the RTL must be 32, not 16"),
        ({"residual_frac": 24}, r"residual_frac of the RTL must be from 1 to 23, not 24"),
    ],
)
def test_refuses_numerics_without_hardware_for_them(numerics: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=rf"^{message}$"):
        make(Shape(), numerics=Numerics(**numerics))


def test_refuses_heads_that_are_no_whole_blocks() -> None:
    message = (
        r"^head_dim of the RTL must be a multiple of 32, not 48; "
        r"a lane group quantises whole blocks of 32$"
    )
    with pytest.raises(SpecError, match=message):
        make(Shape(head_dim=48))


def test_refuses_increments_that_are_not_one_for_each_pair() -> None:
    message = r"^phase_increments must be one for each of 16 pairs, not 3$"
    with pytest.raises(SpecError, match=message):
        make(Shape(), phase_increments=[1, 2, 3])


def test_template_has_the_latency_of_the_pipeline() -> None:
    check_latency(Shape().target.latency)
    template = replace(Shape().target.latency)
    assert {op: getattr(template, op) for op in LATENCY} == LATENCY


@pytest.mark.parametrize(
    ("n_lanes", "hidden"), [(32, 96), (32, 104), (64, 104), (128, 500), (64, 40)]
)
def test_every_row_of_up_is_in_exactly_one_word_that_is_read(n_lanes: int, hidden: int) -> None:
    sizes = VectorSizes(
        n_lanes=n_lanes,
        dim=64,
        n_heads=2,
        n_kv_heads=1,
        head_dim=32,
        hidden_dim=hidden,
        vocab_size=100,
        row_words=2,
        n_inflight=1,
        broadcast_cycles=1,
        collect_cycles=1,
    )
    advance, before, last = up_masks(sizes)
    base, rest = divmod(hidden, n_lanes)
    n_beats = -(-hidden // n_lanes)
    whole = (1 << n_lanes) - 1
    masks = {base: advance} if rest else {}
    first = base + bool(rest)
    for beat in range(n_beats):
        mask = last if beat == n_beats - 1 else before if beat == n_beats - 2 else whole
        masks[first + beat] = mask
    rows = sorted(
        word * n_lanes + lane
        for word, mask in masks.items()
        for lane in range(n_lanes)
        if mask >> lane & 1
    )
    assert rows == list(range(hidden, 2 * hidden))
