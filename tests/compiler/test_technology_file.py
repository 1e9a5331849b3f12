from __future__ import annotations

import re
from importlib import resources

import pytest

from romsim_compiler.technology_file import (
    list_technologies,
    load_technology,
    parse_technology,
)
from romsim_models.errors import SpecError

ASAP7 = (resources.files("romsim_compiler") / "technologies" / "asap7.toml").read_text()
N5 = (resources.files("romsim_compiler") / "technologies" / "n5.toml").read_text()


def changed(text: str, pattern: str, replacement: str) -> str:
    result, n = re.subn(pattern, replacement, text, count=1, flags=re.MULTILINE)
    assert n == 1
    return result


def test_technologies_of_the_package_are_listed_and_load() -> None:
    assert list_technologies() == ("28nm", "asap7", "n5", "n6", "n7-compiler", "sky130")
    assert [load_technology(name).name for name in list_technologies()] == list(list_technologies())
    assert load_technology("asap7") is load_technology("asap7")


def test_unknown_technology_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        SpecError,
        match=r"^Technology must be one of 28nm, asap7, n5, n6, n7-compiler, sky130, not "
        r"'asap'; did you mean 'asap7'\?$",
    ):
        load_technology("asap")


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"^name = .*$", "name = = 1", r"t\.toml must be TOML: Invalid value \(at line 4, .*\)"),
        (
            r'(utilisation = .*), unit = "1"',
            r"\1",
            r"t\.toml: key 'logic\.utilisation\.unit' is missing; every value needs one",
        ),
        (
            r'(utilisation = .*), source = "design"',
            r"\1",
            r"t\.toml: key 'logic\.utilisation\.source' is missing; every value needs one",
        ),
        (
            r'(utilisation = .*), grade = "assumed"',
            r'\1, grade = "guessed"',
            r"t\.toml: logic\.utilisation\.grade must be valid, not 'guessed': input should be "
            r"'published', 'measured', 'derived' or 'assumed'",
        ),
        (
            r'(utilisation = .*)source = "design"',
            r'\1source = "hearsay"',
            r"t\.toml: source of logic\.utilisation must be one of orfs, .*, roma-pie, not "
            r"'hearsay'; add it to \[sources\]",
        ),
        (
            r'(utilisation = .*)unit = "1"',
            r'\1unit = "%"',
            r"t\.toml: unit of logic\.utilisation must be '1', not '%'",
        ),
        (
            r"utilisation = \{ low = 0\.70",
            "utilisation = { low = 0.79",
            r"t\.toml: logic\.utilisation must have low <= mid <= high, not 0\.79, 0\.75, 0\.8",
        ),
        (
            r"utilisation = \{ low = 0\.70",
            "utilisation = { low = -1.0",
            r"t\.toml: logic\.utilisation\.low must be valid, not -1\.0: input should be greater "
            r"than 0",
        ),
        (
            r"utilisation = \{ low = 0\.70, mid = 0\.75",
            "utilisation = { low = 0.70, mid = nan",
            r"t\.toml: logic\.utilisation\.mid must be valid, not nan: input should be a finite "
            r"number",
        ),
        (
            r"^utilisation = .*$",
            "",
            r"t\.toml: key 'logic\.utilisation' is missing; add it with its source",
        ),
        (
            r"^utilisation = ",
            "utilization = ",
            r"t\.toml: key 'logic\.utilization' is unknown; known keys: utilisation, "
            r"periphery_fraction",
        ),
        (
            r"^\[clock\]$",
            "[clocks]",
            r"t\.toml: key 'clocks' is unknown; remove it or correct its spelling",
        ),
        (
            r'^style = "shared"$',
            'style = "plain"',
            r"t\.toml: logic_rom must have the styles 'plain', 'shared' and 'patterns', not "
            r"\['plain', 'plain', 'patterns'\]",
        ),
        (
            r"\[\[0\.500, 0\.00968\], \[0\.650",
            "[[0.700, 0.00968], [0.650",
            r"t\.toml: logic_rom of style 'plain' must have ascending shares of zero bits from 0 "
            r"to below 1, not \[0\.7, 0\.65, 0\.699, 0\.938\]",
        ),
        (
            r"mbit_per_mm2 = 10\.53",
            "mbit_per_mm2 = 105.3",
            r"t\.toml: sram macro instances must fit a model with positive terms, not 0\.0\d+ um2 "
            r"a bit and -\d\.\d+ um2 a column; check their densities",
        ),
    ],
)
def test_wrong_file_is_refused_with_file_and_key(
    pattern: str, replacement: str, message: str
) -> None:
    with pytest.raises(SpecError, match=rf"^{message}$"):
        parse_technology(changed(ASAP7, pattern, replacement), "t.toml")


@pytest.mark.parametrize("section", ["cells", "rom", "sram"])
def test_technology_without_base_needs_every_section(section: str) -> None:
    kept, dropping = [], False
    for line in ASAP7.splitlines():
        if match := re.match(r"\[+([a-z_]+)", line):
            dropping = match[1] == section
        if not dropping:
            kept.append(line)
    what = "its instances" if section != "cells" else "it with its source"
    message = rf"^t\.toml: section '{section}' is missing; add {what}$"
    with pytest.raises(SpecError, match=message):
        parse_technology("\n".join(kept), "t.toml")


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (
            r"^energy = .*$",
            "",
            r"t\.toml: key 'scale\.energy' is missing; a technology with a base says how it is "
            r"scaled",
        ),
        (
            r"^energy = ",
            "power = ",
            r"t\.toml: key 'scale\.power' is unknown; known keys: logic_area, rom_area, sram_area, "
            r"energy, leakage, delay",
        ),
        (
            r'^base = "n7-compiler"$',
            'base = "n3"',
            r"Technology must be one of .*, not 'n3'",
        ),
    ],
)
def test_wrong_scaling_is_refused(pattern: str, replacement: str, message: str) -> None:
    with pytest.raises(SpecError, match=rf"^{message}$"):
        parse_technology(changed(N5, pattern, replacement), "t.toml")
