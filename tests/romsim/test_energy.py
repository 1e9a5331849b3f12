from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from romsim.area import estimate_area
from romsim.design_point import DesignPoint
from romsim.energy import GATING, EnergyReport, estimate_energy
from romsim.energy_prices import Price, event_prices
from romsim.events import count_events
from romsim.synthesis_table import module_um2, module_value
from romsim_compiler.formats import parse_format
from romsim_compiler.program import Instruction
from romsim_compiler.target import Power
from romsim_compiler.target_file import load_target
from romsim_compiler.technology import GRADES, Range
from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_models.shapes import SHAPES, TINY
from tests.romsim.random_points import random_point


def tiny() -> DesignPoint:
    return DesignPoint.uniform(TINY["tiny-int4"], load_target("small"), parse_format("int4g32"))


def tom() -> DesignPoint:
    return DesignPoint.uniform(
        SHAPES["bitnet-2b-4t"], load_target("tom-7nm"), parse_format("ternary")
    )


def find(point: DesignPoint, op: str, operand: str = "") -> Instruction:
    for block in point.blocks():
        for one in block.instructions:
            if one.op == op and one.operand.endswith(operand):
                return one
    raise AssertionError((op, operand))


def row(report: EnergyReport, unit: str, event: str) -> float:
    return next(r.energy_pj.mid for r in report.rows if (r.unit, r.event) == (unit, event))


def test_reports_of_150_random_points_are_finite_and_sum_up() -> None:
    rng = random.Random(31)
    for _ in range(150):
        point = random_point(rng)
        report = estimate_energy(
            point,
            rng.randint(1, 300),
            rank=rng.choice([0, 8]),
            gating=rng.choice(GATING),
        )
        total = Range(0, 0, 0)
        for one in report.rows:
            assert 0 <= one.energy_pj.low <= one.energy_pj.mid <= one.energy_pj.high < math.inf
            assert one.formula
            assert one.source
            assert one.grade in GRADES
            total = total + one.energy_pj
        assert total.mid == pytest.approx(report.token_pj.mid, rel=1e-12)
        assert sum(r.mid for r in report.by_unit().values()) == pytest.approx(total.mid, rel=1e-12)
        assert 0 < report.power_w.low <= report.power_w.mid <= report.power_w.high < math.inf
        json.dumps(report.to_json(), allow_nan=False)


def test_dynamic_energy_of_the_blocks_is_that_of_the_rows() -> None:
    report = estimate_energy(tom(), 100)
    dynamic = sum(r.energy_pj.mid for r in report.rows if r.unit not in ("clock", "leakage"))
    assert sum(n * energy for _, n, energy in report.by_block) == pytest.approx(dynamic, rel=1e-9)
    assert [(first, n) for first, n, _ in report.by_block] == [(-1, 1), (0, 30), (-1, 1)]


def test_power_is_energy_over_time() -> None:
    report = estimate_energy(tiny(), 10)
    seconds = report.cycles / report.clock_hz
    assert report.power_w.mid == pytest.approx(report.token_pj.mid * 1e-12 / seconds)


def test_weight_reads_are_counted_word_by_word() -> None:
    point = tiny()
    instruction = find(point, "matvec", "gu")
    mapping = point.mappings["L0.gu"]
    array = point.target.array
    events = count_events(point, instruction, position=0, ranks={})
    words = mapping.steps * mapping.wpc * mapping.planes * array.n_tiles * array.n_cells
    assert events["rom_bits"] == words * array.word_bits
    assert events["weight_macs"] == words * 32 >= mapping.n_rows * mapping.n_cols
    assert events["collect_bits"] == 64 * 2 * 192


def test_attention_counts_grow_with_the_context() -> None:
    point = tiny()
    spec = point.spec
    instruction = find(point, "attn")
    one, many = (count_events(point, instruction, position=p, ranks={}) for p in (0, 99))
    assert many["kv_macs"] == 100 * one["kv_macs"] == 2 * 100 * spec.n_heads * spec.head_dim
    # K and V: every KV head's words of every token, 32 codes and a shift each.
    assert one["sram_read_bits"] == 2 * spec.n_kv_heads * (32 * 8 + 8)


def test_adapter_counts_its_weights() -> None:
    point = tiny()
    instruction = find(point, "lora", "down")
    assert count_events(point, instruction, position=0, ranks={}) == {}
    events = count_events(point, instruction, position=0, ranks={"down": (8,)})
    assert events["lora_macs"] == 8 * (192 + 64)


def test_longer_context_and_adapters_cost_energy() -> None:
    base = estimate_energy(tom(), 64).token_pj.mid
    assert estimate_energy(tom(), 1024).token_pj.mid > base
    assert estimate_energy(tom(), 64, rank=16).token_pj.mid > base


def test_gating_lowers_power_step_by_step() -> None:
    switching, isolated, gated = (
        estimate_energy(tom(), 1024, gating=gating).power_w.mid for gating in GATING
    )
    assert switching > 5 * isolated
    assert isolated > gated


def test_waking_is_charged_and_keeps_the_next_matrix_on() -> None:
    point = tom()
    at_once = estimate_energy(point, 64, gating="gated")
    charged = row(at_once, "leakage", "banks woken")
    area = estimate_area(point.target, spec=point.spec).by_kind()["rom"].mid
    share = point.rom_words / point.target.array.rom_rows
    assert charged == pytest.approx(area * share * 0.0005)
    waits = replace(point, target=replace(point.target, power=Power(wake_cycles=100)))
    gated = estimate_energy(waits, 64, gating="gated")
    assert row(gated, "leakage", "banks woken") == charged
    leak = row(at_once, "leakage", "rom") * gated.cycles / at_once.cycles
    assert row(gated, "leakage", "rom") > leak  # two matrices are on, not one
    assert row(gated, "leakage", "rom") < row(estimate_energy(waits, 64), "leakage", "rom") / 5
    assert "banks woken" not in {r.event for r in estimate_energy(waits, 64).rows}


def test_idle_banks_switch_only_in_a_rom_of_logic() -> None:
    point = tom()
    array = point.target.array
    report = estimate_energy(point, 1, gating="switching")
    banks = -(-array.rom_rows // 1024) * array.n_cells * array.n_tiles
    expected = banks * array.word_bits * report.cycles * 0.01
    assert row(report, "L", "all banks switching") == pytest.approx(expected)
    compiler = replace(point.target, technology="n7-compiler")
    other = DesignPoint.uniform(point.spec, compiler, parse_format("ternary"))
    events = {r.event for r in estimate_energy(other, 1, gating="switching").rows}
    assert "all banks switching" not in events


def test_leakage_is_area_times_time() -> None:
    point = tom()
    area = estimate_area(point.target, spec=point.spec)
    report = estimate_energy(point, 1, area=area)
    sram = area.by_kind()["sram"].mid * 1e-6  # mm2
    expected = sram * 0.005 * report.cycles / 500e6 * 1e12
    assert row(report, "leakage", "sram") == pytest.approx(expected)


def test_price_of_a_published_chip_replaces_ours() -> None:
    price = Price(Range.exact(2.0), "2 pJ", "a paper", "published")
    report = estimate_energy(tiny(), 1, prices={"weight_macs": price})
    one = next(r for r in report.rows if r.event == "weight_macs")
    assert one.energy_pj.mid == 2.0 * one.count
    assert one.grade == "published"


def test_targets_with_rtl_are_priced_by_its_gates() -> None:
    """Gates of a cell, and half of those of a tile for each of scores and values."""
    target = load_target("rtl-1k")
    asap7 = load_technology("asap7")
    flop, per_um2 = asap7.cell_um2["DFFHQNx1"], asap7["energy.logic_per_um2"].mid
    prices = event_prices(asap7, target, 5.0)
    cell = module_um2("cell", encoding="int4", blocks=1, max_planes=2)
    flops = module_value("n_flops", "cell", encoding="int4", blocks=1, max_planes=2)
    gates = (cell - flops * flop) / 32
    assert prices["weight_macs"].pj.mid == pytest.approx(gates * per_um2)
    assert prices["scale_products"].pj == Range.exact(0.0)
    assert prices["scale_products"].formula == "in weight_macs: gates of the RTL"
    one, two = (
        module_um2("htile", blocks=1, heads=n)
        - flop * module_value("n_flops", "htile", blocks=1, heads=n)
        for n in (1, 2)
    )
    assert prices["kv_macs"].pj.mid == pytest.approx((two - one) / 64 * per_um2)
    # the ratios that docs/area.md states
    expected = {
        "roma-7nm-g32": 1.436,
        "rtl-1k": 1.317,
        "small-ternary": 1.634,
        "tom-7nm-int8": 1.698,
    }
    for name, ratio in expected.items():
        chip = load_target(name)
        rtl, parts = (
            event_prices(load_technology(chip.technology), one, 5.0)
            for one in (chip, replace(chip, executable=False))
        )
        a_lane = parts["scale_products"].pj.mid * chip.array.n_scales / chip.array.word_codes
        counted = parts["weight_macs"].pj.mid + a_lane
        assert rtl["weight_macs"].pj.mid / counted == pytest.approx(ratio, abs=0.005)
        assert rtl["kv_macs"].pj.mid / parts["kv_macs"].pj.mid == pytest.approx(2.275, abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": 0}, r"Context must be at least 1 token, not 0"),
        (
            {"context": 1, "gating": "off"},
            r"Gating must be one of switching, isolated, gated, not 'off'",
        ),
        (
            {"context": 1, "prices": {"macs": Price(Range(1, 1, 1), "", "", "assumed")}},
            r"Event must be one of weight_macs, scale_products, .*, not 'macs'",
        ),
    ],
)
def test_impossible_request_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=rf"^{message}$"):
        estimate_energy(tiny(), **arguments)  # type: ignore[arg-type]


def test_halving_the_tiles_keeps_the_reads_and_shortens_the_wires() -> None:
    point = DesignPoint.uniform(
        SHAPES["llama-3.2-3b"], load_target("roma-7nm"), parse_format("sym4g128")
    )
    array = replace(point.target.array, n_tiles=128, rom_rows=7168)
    half = DesignPoint.uniform(
        point.spec, replace(point.target, array=array), parse_format("sym4g128")
    )
    before, after = estimate_energy(point, 1), estimate_energy(half, 1)
    # Fewer rows a step are padded with less.
    assert 0.9 < row(after, "L", "rom_bits") / row(before, "L", "rom_bits") <= 1
    assert row(after, "network", "broadcast_bits") < row(before, "network", "broadcast_bits")
    assert after.cycles > before.cycles
