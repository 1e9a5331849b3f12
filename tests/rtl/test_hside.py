# amaranth: UnusedElaboratable=no
"""Unit H, Verilated, against attention by Python integers, in values and in cycles."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from romsim_compiler.durations import attention_cycles
from romsim_compiler.kv import DEFAULT_KV
from romsim_rtl.attention_sizes import ATTN_CYCLES, BLOCK_CYCLES, AttentionSizes
from romsim_rtl.encoding import OPS, pack
from romsim_rtl.hside import HSide
from romsim_rtl.toolchain import lint
from tests.rtl.attention_golden import Block, attention
from tests.rtl.poke import Script, Simulation

pytestmark = pytest.mark.verilator


def make_sizes(
    tiles: int, lanes: int, word: int, parallel: int, block: int, heads: str, dim: int, **more: int
) -> AttentionSizes:
    n_heads, n_kv_heads = map(int, heads.split("/"))
    defaults: dict[str, Any] = {
        "context": 100,
        "n_inflight": 2,
        "broadcast_cycles": 1,
        "collect_cycles": 1,
    }
    return AttentionSizes(
        n_tiles=tiles,
        n_lanes=lanes,
        word_elems=word,
        heads_parallel=parallel,
        attn_block=block,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=dim,
        n_layers=2,
        **(defaults | more),
    )


SHAPES = {
    # every lane is used, but not all of them in a KV head's second pass
    "two tiles, 6/2 heads": make_sizes(2, 32, 64, 2, 16, "6/2", 64),
    "64 lanes, words of 32, one KV head": make_sizes(
        2, 64, 32, 2, 16, "4/1", 32, broadcast_cycles=2, collect_cycles=0
    ),
}
SLOW_SHAPES = {
    "one tile": make_sizes(1, 32, 32, 2, 16, "4/2", 32, n_inflight=1),
    "a pass that is not full": make_sizes(2, 32, 32, 2, 16, "6/2", 64),
    "64 lanes, words of 64": make_sizes(
        4, 64, 64, 2, 16, "4/4", 64, broadcast_cycles=0, collect_cycles=2
    ),
    "64 tiles": make_sizes(64, 32, 32, 1, 64, "2/1", 32, n_inflight=1),
    "heads of 96": make_sizes(2, 64, 64, 4, 64, "4/2", 96, n_inflight=1),
}


def duration(sizes: AttentionSizes, pos: int) -> int:
    target: Any = SimpleNamespace(
        attention=sizes,
        array=sizes,
        network=sizes,
        vector=sizes,
        latency=SimpleNamespace(attn=ATTN_CYCLES, block=BLOCK_CYCLES),
        kv=DEFAULT_KV,
    )
    spec: Any = sizes
    return attention_cycles([pos], spec=spec, target=target)[0]


def make_simulation(name: str, folder: Path, kind: type[Simulation] = Simulation) -> Simulation:
    component = HSide(sizes=(SHAPES | SLOW_SHAPES)[name], n_rows=64, block_bits=8)
    return kind(component, "romsim_hside", folder, opt="-O0")


@pytest.fixture(scope="module")
def simulations(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Simulation] = {}

    def get(name: str) -> Simulation:
        if name not in made:
            made[name] = make_simulation(name, tmp_path_factory.mktemp("hside"))
        return made[name]

    return get


def random_block(rng: random.Random, largest: int) -> Block:
    kind, shift = rng.random(), rng.randrange(0, largest)
    if kind < 0.05:
        return [0] * 32, 0
    if kind < 0.1:
        return [rng.choice((-127, 127)) for _ in range(32)], shift
    return [rng.randrange(-127, 128) for _ in range(32)], shift


Heads = list[list[Block]]


def random_heads(rng: random.Random, n: int, sizes: AttentionSizes, largest: int) -> Heads:
    return [[random_block(rng, largest) for _ in range(sizes.head_blocks)] for _ in range(n)]


def set_beat(
    script: Script, sizes: AttentionSizes, blocks: list[Block], first: int, **where: int
) -> None:
    """Put one broadcast beat on the bus, without a tick."""
    for name, value in where.items():
        script.set(f"bc_{name}", value)
    script.set("bc_kind", 2)
    script.set("bc_block", first)
    present = blocks[first : first + sizes.n_groups]
    script.set("bc_mask", (1 << len(present)) - 1)
    for group, (codes, shift) in enumerate(present):
        word = sum((code & 255) << 8 * index for index, code in enumerate(codes))
        script.set(f"bc_codes__{group}", word)
        script.set(f"bc_shift__{group}", shift)


def send(script: Script, sizes: AttentionSizes, heads: Heads, **where: int) -> None:
    blocks = [block for head in heads for block in head]
    rng = random.Random(len(blocks))
    for first in range(0, len(blocks), sizes.n_groups):
        if rng.random() < 0.2:  # for the x buffers, or nothing at all
            junk = [random_block(rng, 12) for _ in blocks]
            set_beat(script, sizes, junk, rng.randrange(first + 1), **where)
            script.set("bc_kind", rng.randrange(2))
            script.tick()
        set_beat(script, sizes, blocks, first, **where)
        script.tick()
    script.set("bc_kind", 0)
    script.tick()


def start(script: Script, *, token: int, layer: int, pos: int) -> None:
    script.set("start", 1)
    script.set("instr", pack({"op": OPS["attn"], "unit": 2, "token": token, "layer": layer}))
    script.set("pos", pos)
    script.tick()
    script.set("start", 0)


@dataclass
class Reading:
    """Answers that a script was asked for, and what they should be."""

    n_cycles: int
    o: list[int] = field(default_factory=list)
    l: list[int] = field(default_factory=list)  # noqa: E741  the page's name
    clips: int = 0
    expected: Any = None


def read(script: Script, sizes: AttentionSizes, token: int, reading: Reading) -> None:
    script.set("rd_token", token)
    script.set("o_en", 1)
    for beat in range(sizes.beats):
        script.set("o_addr", beat)
        script.tick()
        reading.o += [script.get(f"o_data__{lane}") for lane in range(sizes.n_lanes)]
    script.set("o_en", 0)
    script.set("l_en", 1)
    for head in range(sizes.n_heads):
        script.set("l_addr", head)
        script.tick()
        reading.l.append(script.get("l_data"))
    script.set("l_en", 0)
    script.tick()
    reading.clips = script.get("sat_count")


def check_positions(
    simulation: Simulation,
    sizes: AttentionSizes,
    checked: set[int],
    *,
    seed: int,
    largest: int,
    is_extreme: bool = False,
    is_close: bool = False,
    layer: int | None = None,
) -> int:
    """Fill a cache token by token and check some positions; return the clips that were seen.

    Extreme values stand as far from 0 as codes and shifts can, and all tokens weigh the same. Close
    scores are apart by so little that each token weighs something.
    """
    rng = random.Random(seed)
    script = simulation.script()
    readings: list[tuple[int, Reading]] = []
    keys: list[Heads] = []
    values: list[Heads] = []
    layer, clips = rng.randrange(sizes.n_layers) if layer is None else layer, 0
    for pos in range(max(checked) + 1):
        token = rng.randrange(sizes.n_inflight)
        q = random_heads(rng, sizes.n_heads, sizes, largest)
        keys.append(random_heads(rng, sizes.n_kv_heads, sizes, largest))
        values.append(random_heads(rng, sizes.n_kv_heads, sizes, largest))
        if is_close:
            q, keys[-1] = (
                [[(codes, rng.randrange(5, 10)) for codes, _ in head] for head in heads]
                for heads in (q, keys[-1])
            )
        if is_extreme:
            q = [[([0] * 32, 0)] * sizes.head_blocks for _ in q]
            signs = random.Random(sizes.head_dim)
            values[-1] = [
                [([signs.choice((-127, 127)) for _ in range(32)], 26) for _ in head]
                for head in values[-1]
            ]
        # another layer's words must not matter
        for where in (sizes.n_layers - 1 - layer, layer):
            heads = [*q, *keys[-1], *values[-1]]
            heads = heads if where == layer else heads[::-1]
            send(script, sizes, heads, token=token, layer=where, pos=pos)
        if pos not in checked:
            continue
        start(script, token=token, layer=layer, pos=pos)
        reading = Reading(script.wait_low("busy", 10_000))
        read(script, sizes, token, reading)
        expected = []
        for head in range(sizes.n_heads):
            kv = head // sizes.heads_per_kv
            result = attention(
                q[head], [k[kv] for k in keys], [v[kv] for v in values], sizes.attn_block
            )
            expected.append(result)
            clips += result[2]
        reading.expected = (expected, clips)
        readings.append((pos, reading))
    answers = simulation.run(script)
    assert readings
    for pos, reading in readings:
        expected, total = reading.expected
        o = [value & (2**64 - 1) for _, sums, _ in expected for value in sums]
        assert [answers[index] for index in reading.l] == [weight for weight, _, _ in expected], pos
        assert [answers[index] for index in reading.o][: len(o)] == o, pos
        assert answers[reading.n_cycles] + 1 == duration(sizes, pos), pos
        assert answers[reading.clips] == total, pos
    return clips


POSITIONS = {*range(6), 15, 16, 17, 31, 32, 47, 48, 63, 64, 66}


@pytest.mark.parametrize("name", SHAPES)
def test_attention_has_the_pages_values_and_cycles(simulations: Any, name: str) -> None:
    check_positions(simulations(name), SHAPES[name], POSITIONS, seed=1, largest=12)


@pytest.mark.parametrize("name", SHAPES)
def test_scores_saturate_and_are_counted(simulations: Any, name: str) -> None:
    clips = check_positions(simulations(name), SHAPES[name], {0, 5, 20}, seed=2, largest=26)
    assert clips > 0


@pytest.mark.parametrize("name", SHAPES)
def test_sums_of_values_at_their_largest(simulations: Any, name: str) -> None:
    positions = {0, 15, 16, 40, 66}
    check_positions(simulations(name), SHAPES[name], positions, seed=4, largest=26, is_extreme=True)


@pytest.mark.parametrize("name", SHAPES)
def test_close_scores_weigh_every_token(simulations: Any, name: str) -> None:
    positions = {1, 2, 14, 15, 16, 33, 48}
    check_positions(simulations(name), SHAPES[name], positions, seed=6, largest=12, is_close=True)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("name", SHAPES)
def test_last_positions_of_every_layer(simulations: Any, name: str, layer: int) -> None:
    sizes = SHAPES[name]
    positions = {79, sizes.context - 1}
    check_positions(
        simulations(name), sizes, positions, seed=7, largest=12, is_close=True, layer=layer
    )


@pytest.mark.slow
@pytest.mark.parametrize("largest", [12, 26])
@pytest.mark.parametrize("name", SLOW_SHAPES)
def test_attention_of_more_shapes(simulations: Any, name: str, largest: int) -> None:
    sizes = SLOW_SHAPES[name]
    check_positions(simulations(name), sizes, set(range(67)), seed=3, largest=largest)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("pos", [0, 16, 40])
def test_every_beat_is_written_in_its_cycle(simulations: Any, name: str, pos: int) -> None:
    sizes, simulation = SHAPES[name], simulations(name)
    rng = random.Random(pos)
    index = pos // sizes.attn_block
    steps = max(1, index.bit_count() + 1 - (index & 1))  # per beat of the last block
    length = duration(sizes, pos)
    script = simulation.script()
    for before in range(pos):  # or what the memories begin with outweighs every token
        heads = random_heads(rng, sizes.n_heads + 2 * sizes.n_kv_heads, sizes, 12)
        send(script, sizes, heads, token=1, layer=0, pos=before)
    seen: list[list[int]] = []
    for beat in range(sizes.beats):
        heads = random_heads(rng, sizes.n_heads + 2 * sizes.n_kv_heads, sizes, 12)
        send(script, sizes, heads, token=1, layer=0, pos=pos)
        script.set("rd_token", 1)
        script.set("o_en", 1)
        script.set("o_addr", beat)
        script.tick(2)
        start(script, token=1, layer=0, pos=pos)
        row = []
        for _ in range(length + 1):  # cycles t + 1 to t + D + 1
            row.append(script.get("o_data__0"))
            script.tick()
        seen.append(row)
    answers = simulation.run(script)
    for beat, row in enumerate(seen):
        values = [answers[i] for i in row]
        changes = [n + 1 for n in range(1, len(values)) if values[n] != values[n - 1]]
        # written in cycle w, seen in w + 2; the last beat's w is t + D - 1
        assert changes == [length + 1 - (sizes.beats - 1 - beat) * steps]


@pytest.mark.parametrize("name", SHAPES)
def test_a_key_can_be_read_two_cycles_after_it_came_and_no_sooner(
    simulations: Any, name: str
) -> None:
    sizes, simulation = SHAPES[name], simulations(name)
    rng = random.Random(5)
    q = random_heads(rng, sizes.n_heads, sizes, 12)
    before, after = (random_heads(rng, 2 * sizes.n_kv_heads, sizes, 12) for _ in range(2))
    after = [*after[: sizes.n_kv_heads], *before[sizes.n_kv_heads :]]  # keys differ
    new_blocks = [block for head in [*q, *after] for block in head]
    first = sizes.n_q_blocks  # KV head 0's first block
    expected = {
        name: attention(q[0], [kv[0]], [before[sizes.n_kv_heads]], sizes.attn_block)[0]
        for name, kv in (
            ("old", before),
            ("new", [[after[0][0], *before[0][1:]], *before[1:]]),
        )
    }
    assert expected["old"] != expected["new"]
    for lateness, which in ((0, "new"), (1, "old")):
        script = simulation.script()
        send(script, sizes, [*q, *before], token=0, layer=1, pos=0)
        start(script, token=0, layer=1, pos=0)  # cycle t; now t + 1
        # the first command is in t + 2, its key is read broadcast_cycles later
        script.tick(sizes.broadcast_cycles - 1 + lateness)  # the beat comes in t + bc (+ 1)
        set_beat(script, sizes, new_blocks[: first + 1], first, token=0, layer=1, pos=0)
        script.tick()
        script.set("bc_kind", 0)
        script.wait_low("busy", 10_000)
        script.set("rd_token", 0)
        script.set("l_en", 1)
        script.set("l_addr", 0)
        script.tick()
        answer = script.get("l_data")
        assert simulation.run(script)[answer] == expected[which], which


@pytest.mark.parametrize("name", SHAPES)
def test_lint_has_nothing_to_say(simulations: Any, name: str) -> None:
    assert lint(simulations(name).files, "romsim_hside").messages == ()
