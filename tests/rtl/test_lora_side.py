# amaranth: UnusedElaboratable=no
"""Adapters in unit H, Verilated, against Python integers, in values and in cycles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from romsim_compiler.durations import lora_cycles
from romsim_compiler.lora_blocks import block_grid
from romsim_compiler.lora_image import LoraImage, LoraProjection
from romsim_compiler.lora_words import pack_lora
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.encoding import OPS, pack
from romsim_rtl.hside import HSide
from romsim_rtl.lora_sizes import (
    CHUNK_BITS,
    LORA_CYCLES,
    LORA_OFF_CYCLES,
    LoraSizes,
    entry_of,
    pack_entry,
)
from romsim_rtl.toolchain import lint
from tests.rtl.attention_golden import Block
from tests.rtl.lora_golden import apply
from tests.rtl.poke import Script, Simulation

pytestmark = pytest.mark.verilator


def make_sizes(tiles: int, lanes: int, word: int, **more: int) -> AttentionSizes:
    values: dict[str, Any] = {
        "heads_parallel": 1,
        "attn_block": 16,
        "n_heads": 2,
        "n_kv_heads": 1,
        "head_dim": 32,
        "n_layers": 1,
        "context": 16,
        "n_inflight": 2,
        "broadcast_cycles": 1,
        "collect_cycles": 1,
    }
    return AttentionSizes(n_tiles=tiles, n_lanes=lanes, word_elems=word, **(values | more))


LORA = LoraSizes(max_rank=32, n_entries=8, a_words=512, b_words=512, n_cols=150, n_rows=200)
LORA_MANY = LoraSizes(max_rank=32, n_entries=16, a_words=512, b_words=512, n_cols=150, n_rows=200)
CHIPS = {
    "two tiles, words of 64": (
        make_sizes(2, 32, 64),
        LoraSizes(max_rank=64, n_entries=8, a_words=512, b_words=512, n_cols=150, n_rows=200),
    ),
    "words of 32": (make_sizes(4, 64, 32, broadcast_cycles=2, collect_cycles=0), LORA_MANY),
}
SLOW_CHIPS = {
    "one tile": (make_sizes(1, 32, 32, n_inflight=1, broadcast_cycles=0, collect_cycles=2), LORA),
    "more tiles than rows": (make_sizes(8, 64, 32, collect_cycles=0), LORA_MANY),
}


def lora_target(sizes: AttentionSizes) -> Any:
    latency = SimpleNamespace(lora=LORA_CYCLES, lora_off=LORA_OFF_CYCLES)
    return SimpleNamespace(
        attention=sizes, array=sizes, network=sizes, vector=sizes, latency=latency
    )


def random_projection(
    rng: random.Random, first_row: int, n_rows: int, n_cols: int, rank: int, spread: int
) -> LoraProjection:
    generator = np.random.default_rng(rng.randrange(2**32))
    block = min(32, rank)

    def codes(*shape: int) -> Any:
        return generator.integers(-127, 128, shape).astype(np.int8)

    def exps(*shape: int) -> Any:
        return generator.integers(-8 - spread // 2, -8 + spread // 2, shape).astype(np.int8)

    a_codes, a_exps = codes(rank, n_cols), exps(rank, -(-n_cols // 32))
    b_codes, b_exps = codes(n_rows, rank), exps(n_rows, rank // block)
    b_codes[: n_rows // 8] = 0
    # rows of z of every size, so that single ones give their block its exponent
    a_codes >>= generator.integers(0, 7, (rank, 1)).astype(np.int8)
    return LoraProjection(
        tensor=f"t{first_row}",
        operator="q",
        first_row=first_row,
        n_rows=n_rows,
        rank=rank,
        a_codes=a_codes,
        a_exps=a_exps,
        b_codes=b_codes,
        b_exps=b_exps,
        # raised by 3: some terms are rounded
        grid_a=block_grid(a_codes, a_exps, 32) + 3,
        grid_b=block_grid(b_codes, b_exps, block) + 3,
        error=0.0,
    )


def make_image(
    rng: random.Random, heights: tuple[int, ...], ranks: tuple[int, ...], n_cols: int, spread: int
) -> LoraImage:
    projections, first = [], 0
    for height, rank in zip(heights, ranks, strict=True):
        if rank:
            projections.append(random_projection(rng, first, height, n_cols, rank, spread))
        first += height
    return LoraImage(
        name="L0.qkv",
        layer=0,
        n_rows=first,
        n_cols=n_cols,
        ranks=ranks,
        projections=tuple(projections),
    )


def configure(script: Script, kind: int, tile: int, address: int, data: bytes) -> None:
    """Write a word chunk by chunk."""
    step = CHUNK_BITS // 8
    script.set("cfg_kind", kind)
    script.set("cfg_tile", tile)
    script.set("cfg_addr", address)
    for chunk in range(-(-len(data) // step)):
        script.set("cfg_chunk", chunk)
        part = data[chunk * step : (chunk + 1) * step]
        script.set("cfg_data", int.from_bytes(part, "little"))
        script.tick()
    script.set("cfg_kind", 0)
    script.tick()


def load(
    script: Script,
    chip: tuple[AttentionSizes, LoraSizes],
    image: LoraImage,
    entry: int,
    bases: tuple[int, int],
    fracs: tuple[int, int],
) -> tuple[int, int]:
    """Load an adapter; return where the next one may begin."""
    sizes, lora = chip
    words = pack_lora(image, lora_target(sizes))
    for kind, base, banks in ((2, bases[0], words.a_words), (3, bases[1], words.b_words)):
        for tile in range(sizes.n_tiles):
            for index, word in enumerate(banks[tile]):
                configure(script, kind, tile, base + index, word.tobytes())
    values = entry_of(
        image,
        sizes=sizes,
        lora=lora,
        a_base=bases[0],
        b_base=bases[1],
        in_frac=fracs[0],
        out_frac=fracs[1],
    )
    configure(script, 1, 0, entry, pack_entry(values).to_bytes(64, "little")[:40])
    return bases[0] + words.layout.n_a_words, bases[1] + words.layout.n_b_words


def send_x(script: Script, sizes: AttentionSizes, x: list[Block], token: int) -> None:
    script.set("bc_kind", 1)
    script.set("bc_token", token)
    for first in range(0, len(x), sizes.n_groups):
        script.set("bc_block", first)
        script.set("bc_mask", (1 << len(x[first : first + sizes.n_groups])) - 1)
        for group, (codes, shift) in enumerate(x[first : first + sizes.n_groups]):
            word = sum((code & 255) << 8 * index for index, code in enumerate(codes))
            script.set(f"bc_codes__{group}", word)
            script.set(f"bc_shift__{group}", shift)
        script.tick()
    script.set("bc_kind", 0)
    script.tick()


def start(script: Script, *, token: int, entry: int, is_adapted: bool) -> int:
    script.set("start", 1)
    script.set("instr", pack({"op": OPS["lora"], "unit": 2, "token": token, "base": entry}))
    script.set("is_adapted", int(is_adapted))
    script.tick()
    script.set("start", 0)
    return script.wait_low("busy", 10_000)


def make_simulation(name: str, folder: Path, kind: type[Simulation] = Simulation) -> Simulation:
    sizes, lora = (CHIPS | SLOW_CHIPS)[name]
    component = HSide(sizes=sizes, n_rows=lora.n_rows, block_bits=8, lora=lora)
    return kind(component, "romsim_hside", folder, opt="-O0")


@pytest.fixture(scope="module")
def simulations(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Simulation] = {}

    def get(name: str) -> Simulation:
        if name not in made:
            made[name] = make_simulation(name, tmp_path_factory.mktemp("lora"))
        return made[name]

    return get


GROUPS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "one matrix": ((96,), (16,), 128),
    "q, k and v": ((96, 32, 32), (8, 8, 8), 96),
    "k without": ((64, 32, 40), (16, 0, 16), 64),
    "ranks that differ": ((70, 30, 50), (3, 16, 8), 150),
    "rank 32": ((50, 33), (32, 32), 40),
    "rank 2": ((100, 27), (2, 2), 96),
}
# All rows, columns and ranks that the memories have room for; words of many rows.
FULL: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "all ranks": ((70, 60, 70), (32, 32, 32), 150),
    "ranks 2 and 1": ((140, 60), (2, 1), 70),
    "ranks 4 and 2": ((90, 60, 50), (4, 2, 4), 150),
    "a row of each": ((1, 1, 1), (5, 32, 1), 33),
}
# Few rows: tiles share them, in twos, fours and eights, not all with a word of each.
SHARED: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "a row for all tiles": ((70,), (1,), 150),
    "a row of each of two": ((40, 30), (1, 1), 140),
    "three rows": ((20, 30, 20), (1, 1, 1), 100),
    "two rows, three words": ((90,), (2,), 96),
    "four rows": ((50, 20), (2, 2), 130),
}
FULL_64 = FULL | {"all ranks": ((70, 60, 70), (64, 64, 64), 150)}
RANK_64 = {"rank 64": ((50, 33), (64, 32), 100)}


def check_groups(
    simulation: Simulation,
    chip: tuple[AttentionSizes, LoraSizes],
    groups: Any,
    *,
    large: bool,
    small: bool = False,
    shifts: Sequence[int] = (),
) -> int:
    """Run adapters of groups, on one input or on one of each of some shifts.

    With small inputs z has codes of no shift, and rows are rounded.
    """
    sizes, lora = chip
    rng = random.Random(len(groups) + large)
    script = simulation.script()
    bases = (3, 5)
    images, fracs = [], (20, 14)
    for entry, (heights, ranks, n_cols) in enumerate(groups.values()):
        images.append(make_image(rng, heights, ranks, n_cols, 14 if large else 6))
        bases = load(script, chip, images[-1], entry, bases, fracs)
    assert bases[0] <= lora.a_words
    assert bases[1] <= lora.b_words
    asked, total = [], 0
    runs = [(*one, shift) for one in enumerate(images) for shift in shifts or (None,)]
    for entry, image, shift in runs:
        token = rng.randrange(sizes.n_inflight)
        x: list[Block] = [
            ([rng.randrange(-127, 128) for _ in range(32)], rng.randrange(0, 26 if large else 14))
            for _ in range(-(-image.n_cols // 32))
        ]
        if shift is not None:
            x = [(codes, shift) for codes, _ in x]
        if small:
            x = [([rng.randrange(-1, 2) for _ in codes], 0) for codes, _ in x]
        rest = image.n_cols % 32 or 32
        x[-1] = ([*x[-1][0][:rest], *[0] * (32 - rest)], x[-1][1])
        send_x(script, sizes, x, token)
        cycles = start(script, token=token, entry=entry, is_adapted=True)
        script.set("rd_token", token)
        script.set("d_en", 1)
        got = []
        for beat in range(-(-image.n_rows // sizes.n_lanes)):
            script.set("d_addr", beat)
            script.tick()
            got += [script.get(f"d_data__{lane}") for lane in range(sizes.n_lanes)]
        is_valid = script.get("d_valid")
        script.tick(2)
        expected = [0] * image.n_rows
        for p in image.projections:
            values, clips = apply(p, x, *fracs)
            total += clips
            expected[p.first_row : p.first_row + p.n_rows] = values
        asked.append((image, cycles, got, is_valid, script.get("sat_count"), expected, total))
    answers = simulation.run(script)
    for image, cycles, got, is_valid, count, expected, clips in asked:
        shape = (image.ranks, image.n_rows, image.n_cols)
        found = [answers[index] for index in got[: image.n_rows]]
        assert found == [value & (2**32 - 1) for value in expected], shape
        assert small or any(expected)
        length = lora_cycles(image.n_rows, image.n_cols, image.ranks, target=lora_target(sizes))
        assert answers[cycles] + 1 == length, shape
        assert answers[is_valid] == 1
        assert answers[count] == clips, shape
    return total


def groups_for(chip: tuple[AttentionSizes, LoraSizes]) -> Any:
    shared = SHARED if chip[0].n_tiles > 2 else {}
    return GROUPS | shared | (RANK_64 if chip[1].max_rank == 64 else {})


@pytest.mark.parametrize("name", CHIPS)
def test_adapters_have_the_pages_values_and_cycles(simulations: Any, name: str) -> None:
    check_groups(simulations(name), CHIPS[name], groups_for(CHIPS[name]), large=False)


@pytest.mark.parametrize("name", CHIPS)
def test_adapters_saturate_and_are_counted(simulations: Any, name: str) -> None:
    total = check_groups(simulations(name), CHIPS[name], groups_for(CHIPS[name]), large=True)
    assert total > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_CHIPS)
@pytest.mark.parametrize("large", [False, True])
def test_adapters_on_more_chips(simulations: Any, name: str, large: bool) -> None:
    check_groups(simulations(name), SLOW_CHIPS[name], groups_for(SLOW_CHIPS[name]), large=large)


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_adapters_that_fill_the_memories(simulations: Any, name: str, size: str) -> None:
    groups = FULL_64 if CHIPS[name][1].max_rank == 64 else FULL
    large, small = size == "large", size == "small"
    check_groups(simulations(name), CHIPS[name], groups, large=large, small=small)


@pytest.mark.parametrize("name", CHIPS)
def test_adapters_on_inputs_of_every_size(simulations: Any, name: str) -> None:
    """Codes of z have every shift, and rows of each size are rounded and clipped."""
    groups = {key: GROUPS[key] for key in ("q, k and v", "ranks that differ", "rank 32")}
    check_groups(simulations(name), CHIPS[name], groups, large=False, shifts=range(26))


@pytest.mark.parametrize("name", CHIPS)
def test_without_an_adapter_nothing_is_done_in_two_cycles(simulations: Any, name: str) -> None:
    sizes, _ = CHIPS[name]
    rng = random.Random(3)
    simulation = simulations(name)
    script = simulation.script()
    image = make_image(rng, (32,), (8,), 64, 6)
    load(script, CHIPS[name], image, 1, (0, 0), (20, 14))
    configure(script, 1, 0, 2, bytes(40))  # an entry that is not enabled
    asked = []
    script.set("rd_token", 1)
    for entry, is_adapted in ((1, True), (1, False), (1, True), (2, True)):
        length = start(script, token=1, entry=entry, is_adapted=is_adapted)
        asked.append((length, script.get("d_valid")))
    answers = simulation.run(script)
    long = lora_cycles(32, 64, (8,), target=lora_target(sizes))
    off = LORA_OFF_CYCLES
    found = [(answers[length] + 1, answers[valid]) for length, valid in asked]
    assert found == [(long, 1), (off, 0), (long, 1), (off, 0)]


@pytest.mark.parametrize("name", CHIPS)
def test_lint_has_nothing_to_say(simulations: Any, name: str) -> None:
    assert lint(simulations(name).files, "romsim_hside").messages == ()
