# amaranth: UnusedElaboratable=no
"""Mutants that tests catch, mutants that blunt tests do not, and proofs that are none for them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module, Mux, Signal

from benchmarks.mutation import main, measure_design
from benchmarks.mutation_report import Component, Report, Tried
from benchmarks.mutation_rules import CODE_BITS
from benchmarks.mutation_sources import digest_of, files_of
from benchmarks.mutation_tests import (
    Call,
    Design,
    Outcome,
    SteppedRunner,
    designs_of,
    try_in_a_fork,
)
from romsim_compiler.formats import SHIPPED_FORMATS, parse_format
from romsim_models.errors import SpecError
from romsim_rtl.equivalence import prove_equivalent
from romsim_rtl.mutant_design import Look, Rule
from romsim_rtl.mutants import Mutant, Netlist, netlist_of, plant_mutants
from romsim_rtl.recip import RECIP_CYCLES, Recip
from tests.rtl.stepped import simulate
from tests.rtl.vector_bench import TABLES

COUNT = 20


@pytest.fixture(scope="module")
def design() -> Design:
    (found,) = designs_of("tests.rtl.test_recip")
    return found


def only_when_and_not_what() -> None:
    """A blunt test: that a result comes in its cycle, whatever it is."""
    recip = Recip(table=TABLES["RCP"])

    async def bench(context: Any) -> None:
        for cycle in range(3 * RECIP_CYCLES):
            context.set(recip.start, cycle == 0)
            context.set(recip.l, 77)
            assert context.get(recip.done) == (cycle == RECIP_CYCLES)
            await context.tick()

    simulate(recip, bench)


def test_design_is_found_with_the_tests_that_simulate_it(design: Design) -> None:
    assert design.component == "recip"
    assert [call.name for call in design.calls] == ["test_reciprocals_of_sums_of_every_length"]


@pytest.mark.verilator
def test_the_components_tests_catch_what_blunt_ones_let_live(design: Design) -> None:
    sharp = measure_design(design, count=COUNT, seed=1, is_proved=False)
    assert len(sharp.tried) == COUNT
    blunt = Design(
        component=design.component,
        netlist=design.netlist,
        ports=design.ports,
        calls=[Call(name="blunt", run=only_when_and_not_what)],
    )
    dull = measure_design(blunt, count=COUNT, seed=1, is_proved=False)
    assert [one.mutant for one in dull.tried] == [one.mutant for one in sharp.tried]
    assert sharp.count("caught") > 2 * dull.count("caught")
    assert 0 < dull.count("caught") < dull.count("survived")
    text = Report(count=COUNT, seed=1, components=(dull,)).to_text()
    assert len(re.findall(r"^survived: recip #\d+ .* in dut, \S+\.py:\d+", text, re.M)) == (
        dull.count("survived")
    )


@pytest.mark.verilator
def test_tests_that_fail_without_a_mutant_are_refused(design: Design) -> None:
    def fails() -> None:
        raise IndexError

    broken = Design(
        component="recip",
        netlist=design.netlist,
        ports=design.ports,
        calls=[Call(name="wrong", run=fails)],
    )
    message = (
        r"^The tests of recip must pass on the design without a mutant, not fail in 'wrong' "
        r"with 'IndexError'$"
    )
    with pytest.raises(SpecError, match=message):
        measure_design(broken, count=COUNT, seed=1)


def test_a_run_that_was_interrupted_goes_on_where_it_was(
    design: Design, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    run, limit = SteppedRunner.run, 8

    def count(self: SteppedRunner, mutant: int) -> Outcome:
        if len(tried) == limit:
            raise KeyboardInterrupt
        tried.append(mutant)
        return run(self, mutant)

    monkeypatch.setattr("benchmarks.mutation.make_safe_folder", lambda: tmp_path)
    monkeypatch.setattr("benchmarks.mutation._KEPT", 3)
    monkeypatch.setattr(SteppedRunner, "run", count)
    with pytest.raises(KeyboardInterrupt):
        measure_design(design, count=12, seed=1, is_proved=False, sources="those of today")
    assert tried == [1, 2, 3, 4, 5, 6, 7, 8]
    tried.clear()
    limit = COUNT
    part = measure_design(design, count=12, seed=1, is_proved=False, sources="those of today")
    assert tried == [7, 8, 9, 10, 11, 12]
    tried.clear()
    again = measure_design(design, count=12, seed=1, is_proved=False, sources="those of today")
    assert (tried, again) == ([], part)
    assert part == measure_design(design, count=12, seed=1, is_proved=False)


def test_mutants_are_taken_evenly_from_the_files_that_are_asked_for(
    design: Design, tmp_path: Path
) -> None:
    files = ("recip", "primitives")
    planted = plant_mutants(design.netlist, tmp_path, count=8, seed=1, files=files, each=4)
    first = [
        next(place for place in mutant.places if place.startswith(files)).partition(":")[0]
        for mutant in planted.mutants
    ]
    assert Counter(first) == {"recip.py": 4, "primitives.py": 4}


def mutant_of(number: int, command: str) -> Mutant:
    return Mutant(
        number=number,
        mode="",
        module="dut",
        cell="",
        port="",
        bit=0,
        wire="",
        places=(),
        command=command,
    )


def test_what_a_test_tells_apart_is_never_proved_equivalent(design: Design, tmp_path: Path) -> None:
    planted = plant_mutants(design.netlist, tmp_path, count=COUNT, seed=1)
    again = plant_mutants(design.netlist, tmp_path, count=COUNT, seed=1)
    assert again.mutants == planted.mutants
    assert plant_mutants(design.netlist, tmp_path, count=COUNT, seed=2).mutants != planted.mutants
    register = next(m for m in planted.mutants if m.wire == "length")
    assert prove_equivalent(planted, [register], top="dut", seconds=1) == [""]


def test_a_bit_that_counts_in_no_case_is_proved_equivalent(design: Design, tmp_path: Path) -> None:
    planted = plant_mutants(design.netlist, tmp_path, count=COUNT, seed=1)
    # it is inverted where bit 12 of the 16 is 1, and then the lower 8 are not read
    mutant = next(m for m in planted.mutants if (m.cell, m.port, m.bit) == ("$29", "B", 4))
    assert prove_equivalent(planted, [mutant], top="dut", seconds=5) == ["combinational"]


UP_TO_7 = (Rule(when="valid", port="x", bits=4, most=7),)
UP_TO_8 = (Rule(when="valid", port="x", bits=4, most=8),)
FROM_8 = (Rule(when="valid", port="x", bits=4, most=15, least=8),)
FROM_7 = (Rule(when="valid", port="x", bits=4, most=15, least=7),)


def kept() -> Netlist:
    """A word that is kept where it is valid, and seen one cycle later."""
    m = Module()
    valid, x, y = Signal(), Signal(4), Signal(4)
    word, was_valid = Signal(4, reset_less=True), Signal()
    m.d.sync += was_valid.eq(valid)
    with m.If(valid):
        m.d.sync += word.eq(x)
    m.d.comb += y.eq(Mux(was_valid, word, 0))
    return netlist_of(m, "dut", ports={"valid": (valid, "i"), "x": (x, "i"), "y": (y, "o")})


@pytest.mark.parametrize(
    ("kind", "fault", "rules", "proof"),
    [
        # loaded in every cycle, but only seen in the cycle after a valid one
        ("$dffe", "const1 -port EN -portbit 0", (), "induction"),
        ("$dffe", "const0 -port EN -portbit 0", (), ""),
        ("$dffe", "const0 -port D -portbit 3", (), ""),
        (
            "$dffe",
            "const0 -port D -portbit 3",
            UP_TO_7,
            "combinational",
        ),
        ("$dffe", "const0 -port D -portbit 2", UP_TO_7, ""),
        ("$dffe", "const0 -port D -portbit 3", UP_TO_8, ""),
        ("$dffe", "const1 -port D -portbit 3", FROM_8, "combinational"),
        ("$dffe", "const1 -port D -portbit 3", FROM_7, ""),
        ("$dff", "inv -port D -portbit 0", (), ""),
    ],
)
def test_proofs_cross_registers_and_take_rules_into_account(
    kind: str, fault: str, rules: tuple[Rule, ...], proof: str, tmp_path: Path
) -> None:
    planted = plant_mutants(kept(), tmp_path, count=1, seed=1)
    (cell,) = re.findall(rf"cell {re.escape(kind)} (\S+)", planted.netlist.read_text())
    mode, _, where = fault.partition(" ")
    mutant = mutant_of(1, f"-mode {mode} -module dut -cell {cell} {where}")
    found = prove_equivalent(planted, [mutant], top="dut", rules=rules, seconds=5)
    assert found == [proof]


def shown() -> Netlist:
    """A bit, and what was added up, of which users look at words by a mask."""
    m = Module()
    x, total, mask, y = Signal(4), Signal(4), Signal(2), Signal(4)
    m.d.comb += [mask.eq(x[:2]), total.eq(Mux(x[0], x, 0)), y.eq(Mux(x[1], x, 0))]
    ports = {"x": (x, "i"), "total": (total, "o"), "mask": (mask, "o"), "y": (y, "o")}
    return netlist_of(m, "dut", ports=ports)


@pytest.mark.parametrize(
    ("looks", "proof"),
    [
        ((), ""),
        ([Look(port="y", when="mask", at=1)], "combinational"),
        ([Look(port="y", when="mask", at=0)], ""),
        ([Look(port="y", when="mask")], ""),
        ([Look(port="total", when="mask", at=1)], ""),
    ],
)
def test_outputs_count_where_users_look(looks: list[Look], proof: str, tmp_path: Path) -> None:
    planted = plant_mutants(shown(), tmp_path, count=1, seed=1)
    text = planted.netlist.read_text()
    (cell,) = [
        name
        for name, body in re.findall(r"cell \$mux (\S+)\n(.*?)\n  end", text, re.S)
        if "\\x [1]" in body
    ]
    mutant = mutant_of(1, f"-mode const1 -module dut -cell {cell} -port S -portbit 0")
    assert prove_equivalent(planted, [mutant], top="dut", looks=looks, seconds=5) == [proof]


def test_no_format_has_more_bits_than_the_rules_say() -> None:
    formats = [*SHIPPED_FORMATS.values(), *map(parse_format, ("int8", "int4", "ternary"))]
    assert max(one.code_bits for one in formats) == CODE_BITS


def test_outcomes_depend_on_the_files_of_the_tests_and_of_what_these_import() -> None:
    found = {path.name for path in files_of(["tests.rtl.test_lora_side"])}
    assert {"test_lora_side.py", "lora_golden.py", "attention_golden.py", "poke.py"} <= found
    assert "test_hside.py" not in found
    assert digest_of(["tests.rtl.test_recip"]) != digest_of(["tests.rtl.test_rsqrt"])


def test_outcomes_of_a_child_that_crashes_hangs_or_leaves() -> None:
    def leave() -> Outcome:
        raise SystemExit(3)

    def hang() -> Outcome:
        while True:
            pass

    assert try_in_a_fork(lambda: Outcome(test="t", how="x"), 5) == Outcome(test="t", how="x")
    assert try_in_a_fork(leave, 5) == Outcome(how="exit status 1")
    assert try_in_a_fork(hang, 1) == Outcome(how="timeout")


def test_score_leaves_out_what_is_proved_and_counts_what_is_not() -> None:
    tried = (
        Tried(mutant=mutant_of(1, ""), test="t", how="AssertionError"),
        Tried(mutant=mutant_of(2, ""), proof="induction"),
        Tried(mutant=mutant_of(3, "")),
        Tried(mutant=mutant_of(4, ""), test="t", how="timeout"),
    )
    part = Component(component="a", tests=("t",), tried=tried)
    values = Report(count=4, seed=1, components=(part,)).to_json()
    assert values["total"] == {
        "component": "total",
        "designs": 1,
        "mutants": 4,
        "caught": 2,
        "equivalent": 1,
        "survived": 1,
        "score": 2 / 3,
    }
    assert [one["number"] for one in values["survivors"]] == [3]


def test_tests_that_there_are_not_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nothing"]) == 2
    assert capsys.readouterr().err == (
        "error: Tests must be among argmax, cell, exact_shift, htile_softmax, ltile, memory, "
        "mx_quantizer, primitives, recip, rsqrt, sequencer, sincos, hside, lora_side, "
        "lside, vector_unit, not 'nothing'\n"
    )


def test_counts_that_do_not_fit_the_selecting_input_are_refused(tmp_path: Path) -> None:
    netlist = netlist_of(Recip(table=TABLES["RCP"]), "dut")
    with pytest.raises(SpecError, match=r"^Mutants of a design must be from 1 to 65535, not 0$"):
        plant_mutants(netlist, tmp_path, count=0, seed=1)
