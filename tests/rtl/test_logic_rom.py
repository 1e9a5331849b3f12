from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from romsim_compiler.technology_file import load_technology
from romsim_models.errors import SpecError
from romsim_rtl import logic_rom
from romsim_rtl.cell_library import CellLibrary
from romsim_rtl.logic_bank_cache import BankTask, bank_folder, synthesise_all, synthesise_cached
from romsim_rtl.logic_netlist import Gate, LogicNetlist, read_mapped_blif
from romsim_rtl.logic_rom import STYLES, check_contents, synthesise
from romsim_rtl.or_trees import HIGH, LOW, Emitter, OrTrees
from romsim_rtl.pattern_rom import pattern_netlist
from romsim_rtl.toolchain import ToolError, lint
from romsim_rtl.verilated import verilate

LIBRARY = CellLibrary.of(load_technology("asap7"))


def ternary_bits(
    rows: int, n_weights: int, zero_weights: float, seed: int = 1
) -> NDArray[np.uint8]:
    share = (1 - zero_weights) / 2
    random = np.random.default_rng(seed)
    weights = random.choice(3, p=[zero_weights, share, share], size=(rows, n_weights))
    bits = np.zeros((rows, 2 * n_weights), dtype=np.uint8)
    bits[:, 0::2] = weights == 1
    bits[:, 1::2] = weights == 2
    return bits


def random_bits(rows: int, width: int, ones: float, seed: int = 3) -> NDArray[np.uint8]:
    return (np.random.default_rng(seed).random((rows, width)) < ones).astype(np.uint8)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "bits",
    [
        random_bits(1, 1, 1.0),
        random_bits(2, 3, 0.5),
        random_bits(5, 4, 0.6),
        random_bits(9, 7, 0.5),
        np.zeros((4, 3), dtype=np.uint8),
        np.ones((4, 3), dtype=np.uint8),
        np.eye(8, dtype=np.uint8),
        ternary_bits(33, 8, 0.4),
    ],
    ids=lambda b: f"{b.shape[0]}x{b.shape[1]}-{int(b.sum())}",
)
def test_every_style_holds_its_contents(style: str, bits: NDArray[np.uint8]) -> None:
    bank = synthesise(bits, style, LIBRARY)
    assert (bank.netlist.contents(LIBRARY, len(bits)) == bits).all()
    counts = bank.netlist.cell_counts()
    assert bank.area_um2 == pytest.approx(
        sum(n * LIBRARY.cells[c].area_um2 for c, n in counts.items())
    )
    assert bank.n_cells == sum(counts.values())
    assert (bank.area_um2 == 0) == (bank.n_cells == 0)
    json.dumps(bank.to_json(), allow_nan=False)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70),
    width=st.integers(1, 24),
    ones=st.floats(0, 1),
    field_bits=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_patterns_hold_any_contents(
    rows: int, width: int, ones: float, field_bits: int, seed: int
) -> None:
    bits = random_bits(rows, width, ones, seed)
    netlist = pattern_netlist(bits, LIBRARY, field_bits=field_bits)
    check_contents(netlist, LIBRARY, bits)


def test_verilog_says_what_the_netlist_says() -> None:
    bits = ternary_bits(20, 6, 0.4)
    netlist = synthesise(bits, "patterns", LIBRARY).netlist
    text = netlist.to_verilog("bank", LIBRARY)
    assert text.startswith(
        "module bank (\n  input wire [4:0] a,\n  input wire on,\n  output reg [11:0] d\n);\n"
        "  function automatic [11:0] word(input [4:0] i);\n"
    )
    # one integer per signal: bit k is its value at address k
    values = {f"i[{i}]": sum((n >> i & 1) << n for n in range(32)) for i in range(5)}
    for name, expression in re.findall(r"^      (\S+) = (.*);$", text, re.MULTILINE):
        assert name not in values
        python = re.sub(r"\bi\[\d+\]|\bn\d+", r"values['\g<0>']", expression.replace("1'b0", "0"))
        values[name] = eval(python, {"values": values}) & (2**32 - 1)
    for bit in range(12):
        wanted = sum(int(word[bit]) << address for address, word in enumerate(bits))
        assert values[f"word[{bit}]"] == wanted


def test_gates_stand_in_others_while_that_is_short() -> None:
    gates = [Gate("NAND2xp33", ("a0", "a1"), "x0")]
    gates += [Gate("NAND2xp33", (f"x{k}", "a0"), f"x{k + 1}") for k in range(11)]
    lines = LogicNetlist(2, tuple(gates), ("x11", "x11", "ONE")).to_verilog("m", LIBRARY)
    statements = re.findall(r"^      (\S+) = (.*);$", lines, re.MULTILINE)
    assert [name for name, _ in statements] == ["n8", "n11", "word[0]", "word[1]", "word[2]"]
    assert max(len(value) for _, value in statements) == 128
    assert [value for _, value in statements[2:]] == ["n11", "n11", "1'b1"]


MAIN = """#include "Vbank.h"
#include <cstdio>
int main() {
  Vbank bank;
  for (int on = 0; on < 2; ++on) {
    for (int a = 0; a < 64; ++a) {
      bank.on = on;
      bank.a = a;
      bank.eval();
      std::printf("%llx\\n", static_cast<unsigned long long>(bank.d));
    }
  }
}
"""


@pytest.mark.verilator
def test_a_simulator_reads_every_word_and_none_of_a_bank_that_is_off(tmp_path: Path) -> None:
    bits = ternary_bits(50, 17, 0.4)
    bank = tmp_path / "bank.v"
    bank.write_text(synthesise(bits, "patterns", LIBRARY).netlist.to_verilog("bank", LIBRARY))
    assert not lint([bank], "bank").messages
    main = tmp_path / "main.cpp"
    main.write_text(MAIN)
    built = verilate([bank], "bank", cpp=[main], opt="-O0")
    done = subprocess.run([built.executable], capture_output=True, text=True, check=True)
    words = [int(line, 16) for line in done.stdout.split()]
    assert words[:64] == [0] * 64
    stored = [sum(int(bit) << k for k, bit in enumerate(word)) for word in bits]
    assert words[64:] == stored + [0] * 14


@pytest.mark.parametrize("polarity", [LOW, HIGH])
@pytest.mark.parametrize(("n_low", "n_high"), [(1, 0), (0, 1), (7, 0), (0, 9), (3, 4), (1, 12)])
def test_or_trees_cost_what_they_say(n_low: int, n_high: int, polarity: int) -> None:
    trees = OrTrees(LIBRARY, 16)
    emitter = Emitter(trees)
    n = n_low + n_high
    names = [f"a{i}" for i in range(n)]
    output = emitter.any_of(names[:n_low], names[n_low:], polarity)
    netlist = LogicNetlist.of(n, emitter.gates, [output])
    assert netlist.area_um2(LIBRARY) == pytest.approx(trees.cost(n_low, n_high, polarity), abs=1e-4)
    cases = np.arange(1 << n)
    yes = [(cases >> i & 1) == (0 if i < n_low else 1) for i in range(n)]
    wanted = np.any(yes, axis=0) == bool(polarity)
    assert (netlist.contents(LIBRARY, 1 << n)[:, 0] == wanted).all()


def test_or_trees_need_a_gate_for_each_polarity() -> None:
    library = CellLibrary("t", {"I": 1, "B": 1, "N": 1}, {"I": "!A", "B": "A", "N": "!(A & B)"})
    with pytest.raises(SpecError) as caught:
        OrTrees(library, 4)
    assert str(caught.value) == (
        "Cell table 't' must have a gate of two inputs that ORs active-high signals (NOR or OR), "
        "but has none; add it"
    )


def test_density_of_a_small_bank() -> None:
    bits = ternary_bits(256, 32, 0.42)
    areas = {style: synthesise(bits, style, LIBRARY).mib_per_mm2 for style in STYLES}
    assert areas["patterns"] > areas["shared3"] > areas["plain"] > 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "kind", "zeros", "least", "most"),
    [
        ("plain", "ternary", 0.40, 15.2 * 0.95, 15.2 * 1.05),
        ("shared3", "random", 0.50, 15.0 * 0.95, 15.0 * 1.10),
        ("shared3", "ternary", 0.42, 16.9 * 0.95, 16.9 * 1.05),
        ("patterns", "ternary", 0.42, 24.0, 27.0),
        ("patterns", "random", 0.50, 19.0, 22.0),
    ],
)
def test_density_of_a_bank_of_1024_words(
    style: str, kind: str, zeros: float, least: float, most: float
) -> None:
    is_ternary = kind == "ternary"
    bits = ternary_bits(1024, 64, zeros) if is_ternary else random_bits(1024, 128, 1 - zeros)
    bank = synthesise(bits, style, LIBRARY, field_bits=2 if is_ternary else 1)
    assert least < bank.mib_per_mm2 < most


def test_same_contents_same_gates() -> None:
    bits = ternary_bits(64, 16, 0.42)
    for style in STYLES:
        assert synthesise(bits, style, LIBRARY).netlist == synthesise(bits, style, LIBRARY).netlist


def test_one_wrong_gate_is_found() -> None:
    bits = ternary_bits(64, 8, 0.4)
    netlist = synthesise(bits, "patterns", LIBRARY).netlist
    for index, gate in enumerate(netlist.gates):
        if gate.cell == "NAND2xp33":
            wrong = replace(gate, cell="AND2x2")
            gates = (*netlist.gates[:index], wrong, *netlist.gates[index + 1 :])
            with pytest.raises(ToolError, match="must hold its contents, not"):
                check_contents(replace(netlist, gates=gates), LIBRARY, bits)
            break
    else:
        pytest.fail("no gate to exchange")


def test_a_bit_that_differs_is_named() -> None:
    bits = np.array([[1, 0], [0, 1]], dtype=np.uint8)
    netlist = LogicNetlist(1, (Gate("INVx1", ("a0",), "x"),), ("x", "ZERO"))
    with pytest.raises(ToolError) as caught:
        check_contents(netlist, LIBRARY, bits)
    assert str(caught.value) == (
        "Logic of a bank must hold its contents, not 0 in place of 1 at address 1, bit 1 (1 bits "
        "differ); this is a fault of the synthesis, not of the model"
    )


@pytest.mark.parametrize(
    ("bits", "style", "message"),
    [
        (
            np.zeros((2, 2), dtype=np.uint8),
            "nand",
            "Logic ROM style must be one of plain, shared2, shared3, patterns, not 'nand'",
        ),
        (
            np.full((2, 2), 3, dtype=np.uint8),
            "plain",
            "Contents of a bank must be a table of bits, uint8 [rows, width] of 0 and 1, not "
            "uint8 [2, 2] with a 3",
        ),
        (
            np.zeros((0, 2), dtype=np.uint8),
            "plain",
            "Contents of a bank must be a table of bits, uint8 [rows, width] of 0 and 1, not "
            "uint8 [0, 2]",
        ),
    ],
)
def test_refused_banks(bits: NDArray[np.uint8], style: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        synthesise(bits, style, LIBRARY)
    assert str(caught.value) == message


def test_failing_tool_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "abc"
    tool.write_text("#!/bin/sh\necho out of luck\nexit 3\n")
    tool.chmod(0o755)
    monkeypatch.setattr(logic_rom, "yosys_abc", lambda: tool)
    with pytest.raises(ToolError) as caught:
        synthesise(ternary_bits(4, 2, 0.4), "shared2", LIBRARY)
    assert str(caught.value) == (
        "Synthesis must write 'mapped.blif', not end with exit status 3: 'out of luck'"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ".gate NAND9 A=a0 Y=d0",
            "ABC must use cells of 'asap7', not '.gate NAND9 A=a0 Y=d0'",
        ),
        (".gate INVx1 A=b7 Y=d0", "ABC must drive every signal, but 'b7' has no driver"),
        (
            ".names a0 a1 d0\n11 1",
            "ABC must write mapped gates, not '.names a0 a1 d0'; the run failed",
        ),
    ],
)
def test_refused_netlists(text: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        read_mapped_blif(text, LIBRARY, 2, 1)
    assert str(caught.value) == message


def test_banks_are_kept_and_damage_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "cache"))
    bits = ternary_bits(16, 4, 0.4)
    tasks = [BankTask(bits=bits, style=style) for style in ("shared2", "patterns")]
    done: list[float] = []
    first = synthesise_all(tasks, LIBRARY, progress=done.append)
    assert done == [0.5, 1.0]
    files = sorted(bank_folder().iterdir())
    assert len(files) == 2

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a bank was built again")

    with monkeypatch.context() as patch:
        patch.setattr("romsim_rtl.logic_bank_cache.synthesise", refuse)
        assert synthesise_all(tasks, LIBRARY) == first
        other = BankTask(bits=1 - bits, style="patterns")
        with pytest.raises(AssertionError, match="built again"):
            synthesise_cached(other, LIBRARY)
    for file in files:
        file.write_text(file.read_text().replace("NAND2xp33", "NOR2xp33"))
    assert synthesise_all(tasks, LIBRARY) == first
    files[0].write_text("{")
    assert synthesise_all(tasks, LIBRARY) == first
    assert sorted(bank_folder().iterdir()) == files


def test_workers_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [BankTask(bits=ternary_bits(16, 4, 0.4, s), style="patterns") for s in range(3)]
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "one"))
    one = synthesise_all(tasks, LIBRARY)
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "two"))
    assert synthesise_all(tasks, LIBRARY, jobs=2) == one
    with pytest.raises(SpecError) as caught:
        synthesise_all(tasks, LIBRARY, jobs=0)
    assert str(caught.value) == "Jobs must be 1 or more, not 0"


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ToolError) as caught:
        synthesise_cached(BankTask(bits=ternary_bits(4, 2, 0.4), style="patterns"), LIBRARY)
    assert str(caught.value) == (
        f"Cache folder {str(tmp_path / 'file' / 'logic-rom')!r} must be writable, not "
        "'Not a directory'; set ROMSIM_CACHE to a folder that is"
    )
