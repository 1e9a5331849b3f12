"""Costs: formulas against figures worked out by hand, directions, and what a file may not say."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from romsim.cost import (
    ChipBill,
    chip_bill,
    chip_token_cost,
    die_yield,
    dies_per_wafer,
    gpu_token_costs,
)
from romsim.cost_inputs import (
    CASES,
    YIELD_MODELS,
    CostInputs,
    cost_template,
    read_cost_inputs,
)
from romsim.gpu_roofline import decode_on_gpu
from romsim_compiler.technology import Fact, Range
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES

YEAR = 365.25 * 24 * 3600


def exact(**changes: float) -> CostInputs:
    """The built-in inputs with every range at its middle, some of them changed."""
    inputs = read_cost_inputs()

    def fixed(fact: Fact, value: float) -> Fact:
        return replace(fact, low=value, mid=value, high=value)

    known = {key.replace(".", "_"): key for key in inputs.facts}
    values = {key: fact.mid for key, fact in inputs.facts.items()}
    values |= {known[name]: value for name, value in changes.items()}
    return CostInputs(
        yield_model=inputs.yield_model,
        facts={key: fixed(fact, values[key]) for key, fact in inputs.facts.items()},
        prices={name: fixed(fact, fact.mid) for name, fact in inputs.prices.items()},
        rents={name: fixed(fact, fact.mid) for name, fact in inputs.rents.items()},
    )


def ranges(value: object) -> list[Range]:
    return [v for v in (getattr(value, n) for n in value.__slots__) if isinstance(v, Range)]  # type: ignore[attr-defined]


def test_dies_of_a_wafer() -> None:
    # pi 150^2 / 100 - pi 300 / sqrt(200) = 706.86 - 66.64
    assert dies_per_wafer(100, diameter=300, edge=0, scribe=0) == 640
    # d = 294, A = 10.1^2 = 102.01: 665.49 - 64.66
    assert dies_per_wafer(100, diameter=300, edge=3, scribe=0.1) == 600
    assert dies_per_wafer(80_000, diameter=300, edge=0, scribe=0) == 0


def test_yields() -> None:
    # 200 mm2 at 0.25 / cm2 are half a defect a die.
    assert die_yield(200, model="poisson", d0=0.25, alpha=3) == pytest.approx(0.606531)
    assert die_yield(200, model="murphy", d0=0.25, alpha=3) == pytest.approx(0.619272, abs=1e-6)
    assert die_yield(200, model="negative-binomial", d0=0.25, alpha=2) == pytest.approx(0.64)
    for model in YIELD_MODELS:
        assert die_yield(200, model=model, d0=0.0, alpha=3) == 1.0
    with pytest.raises(
        SpecError,
        match=r"^Yield model must be one of murphy, poisson, negative-binomial, not 'seeds'$",
    ):
        die_yield(200, model="seeds", d0=0.1, alpha=3)


def test_clustering_lies_between_no_defects_and_poisson() -> None:
    found = [die_yield(500, model="negative-binomial", d0=0.1, alpha=a) for a in (1, 3, 10, 1e6)]
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(die_yield(500, model="poisson", d0=0.1, alpha=1), rel=1e-4)


def test_bill_of_a_chip_is_its_parts() -> None:
    inputs = exact(
        wafer_price=10_000,
        wafer_edge=0,
        wafer_scribe=0,
        yield_d0=0,
        chip_package=20,
        chip_board=100,
        chip_mask_set=8e6,
        chip_development=30e6,
        chip_models=1,
        chip_volume=10_000,
    )
    bill = chip_bill(Range.exact(100), inputs)
    assert bill.silicon_usd.mid == pytest.approx(10_000 / 640)
    assert (bill.package_usd.mid, bill.board_usd.mid) == (20, 100)
    assert (bill.masks_usd.mid, bill.development_usd.mid) == (800, 3000)
    assert bill.total_usd.mid == pytest.approx(10_000 / 640 + 20 + 100 + 800 + 3000)
    assert (bill.n_dies, bill.yield_share.mid) == (1, 1)


def test_further_models_pay_their_own_masks_alone() -> None:
    inputs = exact(
        chip_mask_set=10e6,
        chip_model_masks=0.1,
        chip_models=5,
        chip_volume=1000,
        chip_development=40e6,
    )
    bill = chip_bill(Range.exact(100), inputs)
    assert bill.masks_usd.mid == pytest.approx(10e6 * 1.4 / 5000)
    assert bill.development_usd.mid == pytest.approx(40e6 / 5000)


def test_chip_above_the_reticle_is_cut() -> None:
    bill = chip_bill(Range(800, 900, 1800), exact())
    assert bill.n_dies == 3
    whole = chip_bill(Range.exact(300), exact())
    assert bill.silicon_usd.mid == pytest.approx(3 * whole.silicon_usd.mid)
    assert chip_bill(Range(700, 800, 858), exact()).n_dies == 1


def test_die_larger_than_the_wafer_is_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"^Wafer must hold a whole die, but none of 90000 mm2 fits 300 mm; change \[wafer\] "
        r"in the cost file$",
    ):
        chip_bill(Range.exact(90_000), exact(wafer_reticle=100_000))


def chip_cost(
    inputs: CostInputs, rate: float = 1000.0, joules: float = 1e-3
) -> tuple[Range, Range]:
    zero = Range.exact(0.0)
    bill = ChipBill(
        n_dies=1,
        dies_per_wafer=zero,
        yield_share=zero,
        silicon_usd=zero,
        package_usd=zero,
        board_usd=zero,
        masks_usd=zero,
        development_usd=zero,
        total_usd=Range.exact(600.0),
    )
    cost = chip_token_cost(
        bill,
        device="chip",
        weight_format="int4",
        tokens_per_s=rate,
        joules_per_token=Range.exact(joules),
        inputs=inputs,
    )
    return cost.usd_per_million_tokens, cost.usd_per_year


def test_token_on_a_chip_costs_capital_and_electricity() -> None:
    inputs = exact(
        chip_lifetime=3,
        operation_utilisation=0.5,
        operation_electricity=0.36,
        operation_pue=2,
    )
    million, year = chip_cost(inputs)
    tokens = 1000 * 0.5 * YEAR
    electricity = 1e-3 * 0.36 * 2 / 3.6e6  # of a token
    assert million.mid == pytest.approx(1e6 * (200 / tokens + electricity))
    assert year.mid == pytest.approx(200 + electricity * tokens)


def test_owned_gpu_pays_its_price_and_a_rented_one_its_hours() -> None:
    inputs = exact(
        gpu_lifetime=4, gpu_server=0.5, operation_utilisation=0.25, operation_electricity=0
    )
    decode = decode_on_gpu(SHAPES["llama-3-8b"], "H100", weight_bits=16, context=1024, batch=8)
    owned, rented = gpu_token_costs(
        decode, weight_format="fp16", streams="best batch", inputs=inputs
    )
    tokens = decode.aggregate_tokens_per_s.mid * 0.25 * YEAR
    price, rent = inputs.prices["H100"].mid, inputs.rents["H100"].mid
    assert (owned.basis, rented.basis) == ("owned", "rented")
    assert owned.usd_per_year.mid == pytest.approx(price * 1.5 / 4)
    assert owned.usd_per_million_tokens.mid == pytest.approx(1e6 * price * 1.5 / 4 / tokens)
    # Idle hours are paid too.
    assert rented.usd_per_year.mid == pytest.approx(rent * YEAR / 3600)
    assert rented.usd_per_million_tokens.mid == pytest.approx(1e6 * rent * YEAR / 3600 / tokens)


def test_batch_is_cheaper_a_token_and_no_cheaper_a_year() -> None:
    inputs = read_cost_inputs()
    one, many = (
        gpu_token_costs(
            decode_on_gpu(SHAPES["llama-3-8b"], "H100", weight_bits=16, context=1024, batch=batch),
            weight_format="fp16",
            streams="x",
            inputs=inputs,
        )[0]
        for batch in (1, 64)
    )
    assert many.usd_per_million_tokens.mid < one.usd_per_million_tokens.mid / 20
    assert many.usd_per_year == one.usd_per_year


def test_part_without_a_price_has_no_cost() -> None:
    inputs = replace(exact(), prices={}, rents={})
    decode = decode_on_gpu(SHAPES["smollm2"], "H100", weight_bits=16, context=1)
    assert gpu_token_costs(decode, weight_format="x", streams="x", inputs=inputs) == ()


def test_ends_of_every_cost_are_in_order() -> None:
    inputs, rng = read_cost_inputs(), random.Random(5)
    for _ in range(50):
        area = sorted(rng.uniform(5, 2500) for _ in range(3))
        bill = chip_bill(Range(*area), inputs)
        joules = sorted(rng.uniform(1e-6, 1e-2) for _ in range(3))
        costs = [
            chip_token_cost(
                bill,
                device="x",
                weight_format="x",
                tokens_per_s=rng.uniform(1, 1e6),
                joules_per_token=Range(*joules),
                inputs=inputs,
            )
        ]
        decode = decode_on_gpu(
            SHAPES["llama-3-8b"],
            rng.choice(list(inputs.prices)),
            weight_bits=rng.choice([4.5, 16]),
            context=rng.randint(1, 8192),
            batch=rng.randint(1, 500),
        )
        costs += gpu_token_costs(decode, weight_format="x", streams="x", inputs=inputs)
        for one in (bill, *costs):
            for value in ranges(one):
                assert 0 <= value.low <= value.mid * (1 + 1e-12), one
                assert value.mid <= value.high * (1 + 1e-12) < math.inf, one


RAISING = [
    "yield.d0", "wafer.price", "wafer.edge", "chip.development", "chip.mask_set", "chip.package",
    "chip.board", "operation.electricity", "operation.pue",
]  # fmt: skip
LOWERING = ["chip.models", "chip.volume", "chip.lifetime", "operation.utilisation"]


@pytest.mark.parametrize("key", RAISING + LOWERING)
def test_each_input_moves_the_chips_cost_in_its_direction(key: str) -> None:
    def cost(factor: float) -> float:
        inputs = exact()
        fact = inputs.facts[key]
        value = fact.mid * factor
        changed = replace(fact, low=value, mid=value, high=value)
        inputs = replace(inputs, facts={**inputs.facts, key: changed})
        bill = chip_bill(Range.exact(400), inputs)
        return chip_token_cost(
            bill,
            device="x",
            weight_format="x",
            tokens_per_s=1000,
            joules_per_token=Range.exact(1e-3),
            inputs=inputs,
        ).usd_per_million_tokens.mid

    assert (cost(1.5) > cost(1.0)) == (key in RAISING)
    assert cost(1.5) != cost(1.0)


def test_favourable_end_takes_the_end_that_makes_tokens_cheap() -> None:
    inputs = read_cost_inputs()
    low, mid, high = (inputs.at(case) for case in CASES)
    assert low["wafer.price"] < mid["wafer.price"] < high["wafer.price"]
    assert low["chip.volume"] > mid["chip.volume"] > high["chip.volume"]
    assert low["operation.utilisation"] > high["operation.utilisation"]
    assert low["price.H100"] < high["price.H100"]


def test_every_input_has_unit_grade_and_source() -> None:
    values = read_cost_inputs().to_json()
    assert len(values["inputs"]) == 20
    for group in ("inputs", "prices", "rents"):
        for one in values[group].values():
            assert one["unit"]
            assert one["source"]
            assert one["grade"] in ("published", "measured", "derived", "assumed")


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = cost_template()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    return path


def test_copy_of_the_file_gives_the_same_and_a_changed_one_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(cost_template())
    assert read_cost_inputs(path) == read_cost_inputs()
    path = changed(tmp_path, "mid = 9500", "mid = 9600")
    assert read_cost_inputs(path).facts["wafer.price"].mid == 9600


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[sources]", "[sources", "mine.toml must be TOML: "),
        (
            'model = "murphy"',
            'model = "seeds"',
            "mine.toml: yield.model must be valid: input should be 'murphy', 'poisson' or "
            "'negative-binomial'",
        ),
        (
            "mid = 9500",
            "mid = 95000",
            "mine.toml: wafer.price must be valid: low, mid, high must rise, not be 7000.0, "
            "95000.0, 12000.0",
        ),
        (
            'unit = "USD/kWh"',
            'unit = "EUR/kWh"',
            "mine.toml: unit of operation.electricity must be 'USD/kWh', not 'EUR/kWh'",
        ),
        ("[wafer.price]", "[wafer.cost]", "mine.toml: wafer.price must be present, not missing"),
        (
            '[gpus."H100".price]',
            '[gpus."H300".price]',
            "mine.toml: gpus.H100.price must be valid: field required",
        ),
        (
            "low = 0.2\nmid = 0.5\nhigh = 0.9",
            "low = 0.2\nmid = 0.5\nhigh = 1.9",
            "mine.toml: operation.utilisation must be at most 1, not 1.9",
        ),
        (
            "low = 1.1\nmid = 1.25",
            "low = 0.9\nmid = 1.25",
            "mine.toml: operation.pue must be at least 1, not 0.9",
        ),
        (
            "low = 10000\nmid = 30000",
            "low = 0\nmid = 30000",
            "mine.toml: chip.volume must be above 0, not 0",
        ),
        (
            "low = 2\nmid = 3\nhigh = 3",
            "low = 2\nmid = 3\nhigh = 150",
            "mine.toml: wafer.edge must leave something of wafer.diameter, not be 150 of 300 mm",
        ),
        (
            'grade = "assumed"\nsource = "hnlpu"',
            'grade = "assumed"\nsource = "rumour"',
            "mine.toml: source of chip.development must be one of memory, choice, geometry, hnlpu, "
            "taalas, not 'rumour'; add it to [sources]",
        ),
    ],
)
def test_wrong_file_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(message)}"):
        read_cost_inputs(changed(tmp_path, old, new))


def test_unknown_part_and_key_are_refused(tmp_path: Path) -> None:
    fact = 'low = 1\nmid = 1\nhigh = 1\nunit = "USD"\ngrade = "assumed"\nsource = "memory"\n'
    path = tmp_path / "mine.toml"
    path.write_text(cost_template() + f'[gpus."H300".price]\n{fact}')
    with pytest.raises(
        SpecError,
        match=r"^mine\.toml: GPU must be one of A100, H100, H200, B200, RTX 4090, Jetson Orin, "
        r"Jetson Thor, not 'H300'$",
    ):
        read_cost_inputs(path)
    path.write_text(cost_template() + f"[chip.paint]\n{fact}")
    with pytest.raises(
        SpecError, match=r"^mine\.toml: key must be one of yield\.d0, .*, not 'chip\.paint'$"
    ):
        read_cost_inputs(path)
    with pytest.raises(
        SpecError,
        match=r"^Cost file none\.toml must be a readable TOML file, not 'No such file or "
        r"directory'; get one to edit with `romsim compare CHIP --write-cost FILE`$",
    ):
        read_cost_inputs(Path("none.toml"))
