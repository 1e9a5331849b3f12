import re

import pytest

from romsim_compiler.target import Power
from romsim_compiler.target_file import list_targets, load_target, parse_target, write_target
from romsim_models.errors import SpecError

SMALL = write_target(load_target("small"))


def refused(text: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}"):
        parse_target(text, "chip.toml")


@pytest.mark.parametrize("name", list_targets())
def test_every_built_in_target_survives_writing_and_reading(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert parse_target(write_target(target), "x.toml") == target


def test_misspelt_key_names_line_and_nearest_key() -> None:
    text = SMALL.replace("n_tiles = 2", "n_tilse = 2")
    line = text.splitlines().index("n_tilse = 2") + 1
    refused(
        text, f"chip.toml:{line}: key 'array.n_tilse' is unknown; did you mean 'n_tiles'? (1 more)"
    )


def test_unknown_section_lists_what_is_known() -> None:
    refused(SMALL + "\n[zzz]\nx = 1\n", "chip.toml:")
    with pytest.raises(SpecError, match=r"key 'zzz' is unknown; known keys: name, summary,"):
        parse_target(SMALL + "\n[zzz]\nx = 1\n", "chip.toml")


def test_missing_key_is_named() -> None:
    text = SMALL.replace("n_tiles = 2\n", "")
    line = text.splitlines().index("[array]") + 1
    refused(text, f"chip.toml:{line}: key 'array.n_tiles' is missing; add it to the file")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("n_tiles = 2", "n_tiles = 0", "array.n_tiles must be valid, not 0: input should be"),
        ("n_tiles = 2", "n_tiles = -3", "array.n_tiles must be valid, not -3: input should be"),
        ("n_tiles = 2", 'n_tiles = "2"', "array.n_tiles must be valid, not '2': input should be"),
        ("n_tiles = 2", "n_tiles = 2.5", "array.n_tiles must be valid, not 2.5: input should be"),
        ("word_codes = 32", "word_codes = 33", "array.word_codes must be valid, not 33: input"),
        ("clock_mhz = 500.0", "clock_mhz = nan", "clock_mhz must be valid, not nan: input should"),
    ],
)
def test_value_out_of_range_is_named(old: str, new: str, sentence: str) -> None:
    text = SMALL.replace(old, new)
    line = text.splitlines().index(new) + 1
    refused(text, f"chip.toml:{line}: {sentence}")


def test_text_that_is_no_toml_is_refused() -> None:
    refused("name = ", "chip.toml must be TOML: ")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "n_cells = 2",
            "n_cells = 3",
            "chip.toml: array.n_cells must be a power of two, not 3, since cells that share a row "
            "are summed in a binary tree",
        ),
        (
            "[network]",
            '[lora]\npath = "adders"\n[network]',
            "chip.toml: array.encoding of target 'small' must be 'ternary' with lora.path "
            "'adders', not 'unsigned'; use a target such as 'small-ternary', or lora.path 'int8'",
        ),
        (
            "lane_bits = 4",
            "lane_bits = 1",
            "chip.toml: array.lane_bits must be 2, 4 or 8 in an executable target, not 1",
        ),
        (
            "scale_group = 32",
            "scale_group = 64",
            "chip.toml: array.word_codes must be a multiple of array.scale_group, not 32 with 64",
        ),
        (
            "attn_block = 16",
            "attn_block = 24",
            "chip.toml: attention.attn_block must be a power of two, not 24",
        ),
        (
            'kv = "mxint8"',
            'kv = "fp8_e4m3"',
            "chip.toml: executable must be false with formats mxint8, fp8_e4m3, mxint8: only "
            "mxint8 has exact arithmetic on this chip; set formats to 'mxint8' or executable = "
            "false",
        ),
        (
            'encoding = "unsigned"',
            'encoding = "ternary"',
            "chip.toml: array.lane_bits must be 2 with array.encoding 'ternary', not 4",
        ),
    ],
)
def test_contradictions_are_refused(old: str, new: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        parse_target(SMALL.replace(old, new), "chip.toml")


def test_unknown_name_suggests_the_nearest() -> None:
    listed = ", ".join(list_targets())
    sentence = (
        f"Target must be one of {listed} or a .toml file, not 'roma-7nm-g23'; did you mean "
        f"'roma-7nm-g32'?"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        load_target("roma-7nm-g23")


def test_unreadable_file_is_named() -> None:
    sentence = (
        "Target file nowhere.toml must be readable, not 'No such file or directory'; check the path"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        load_target("nowhere.toml")


def test_published_roma_words_hold_the_published_model_sizes() -> None:
    target = load_target("roma-7nm")
    # 128 two-bit codes, one FP16 scale and one UInt2 zero point per word.
    assert target.array.word_bits == 128 * 2 + 16 + 2
    assert target.array.n_lanes == 2_097_152


def test_power_gating_is_written_only_where_there_is_some() -> None:
    assert "power" not in parse_target(SMALL, "chip.toml").to_json()
    assert parse_target(SMALL + "\n[power]\nwake_cycles = 0\n", "chip.toml") == load_target("small")
    gated = parse_target(SMALL + "\n[power]\nwake_cycles = 40\n", "chip.toml")
    assert gated.power == Power(wake_cycles=40)
    assert gated.to_json()["power"] == {"wake_cycles": 40}
    assert parse_target(write_target(gated), "chip.toml") == gated
    refused(
        SMALL + "\n[power]\nwake_cycles = -1\n",
        f"chip.toml:{len(SMALL.splitlines()) + 3}: power.wake_cycles must be valid, not -1: input "
        f"should be greater than or equal to 0",
    )


def test_adapters_in_the_adder_arrays_are_ternary() -> None:
    text = write_target(load_target("small-ternary")) + '\n[lora]\npath = "adders"\n'
    refused(
        text,
        "chip.toml: formats.lora of target 'small-ternary' must be 'ternary' with lora.path "
        "'adders', not 'mxint8'; change one of them",
    )
    ternary = text.replace('lora = "mxint8"', 'lora = "ternary"')
    target = parse_target(ternary, "chip.toml")
    assert target == load_target("small-ternary").with_lora_path("adders")
    assert target.lora_unit == "L"
    assert parse_target(write_target(target), "chip.toml") == target
    # the other path has no arithmetic for trits
    other = ternary.replace('path = "adders"', 'path = "int8"')
    refused(other, "chip.toml: executable must be false with formats mxint8, mxint8, ternary: only")
    line = ternary.splitlines().index('path = "adders"') + 1
    refused(
        ternary.replace('"adders"', '"both"'),
        f"chip.toml:{line}: lora.path must be valid, not 'both': input should be 'int8' or",
    )
