"""Traced words put back together are the recorded operators, at the page's addresses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from romsim.cycle import CycleModel, SramWrite
from romsim.cycle.trace import ALL_TILES, kv_address
from romsim_compiler.program import Instruction
from tests.romsim.cycle.chips import BITNET, LLAMA, Chip, make_chip, make_model, make_target

CONTEXT = 11


@pytest.fixture(scope="module")
def chip() -> Chip:
    model = make_model(LLAMA, lambda t: "int8g32" if "embd" in t else "int4g32")
    return make_chip(model, make_target(n_tiles=4, n_slots=2), context=CONTEXT)


def traced(
    chip: Chip, tokens: list[int], *, slot: int = 0
) -> tuple[list[SramWrite], dict[tuple[int, str], NDArray[Any]]]:
    writes: list[SramWrite] = []
    found: dict[tuple[int, str], NDArray[Any]] = {}
    model = CycleModel(
        chip, trace=writes.append, record=lambda n, p, v: found.__setitem__((p, n), v)
    )
    for token in tokens:
        model.step(token, slot=slot)
    return writes, found


def test_kv_words_lie_where_the_page_says(chip: Chip) -> None:
    tokens = [3, 1, 4, 1, 5, 9]
    for slot in (0, 1):
        writes, found = traced(chip, tokens, slot=slot)
        spec, n_tiles = chip.spec, 4
        rows = 3  # ceil(11 / 4)
        memory = {(w.memory, w.tile, w.address): w.data for w in writes if w.memory in "KV"}
        assert len(memory) == 2 * len(tokens) * spec.n_layers * spec.n_kv_heads
        size = spec.n_layers * spec.n_kv_heads * rows
        for position in range(len(tokens)):
            for layer in range(spec.n_layers):
                for head in range(spec.n_kv_heads):
                    row = (layer * spec.n_kv_heads + head) * rows + position // n_tiles
                    for bank in "KV":
                        data = memory[bank, position % n_tiles, slot * size + row]
                        name = f"L{layer}.{bank.lower()}"
                        codes = found[position, f"{name}.codes"].reshape(-1, 32)[head]
                        shift = found[position, f"{name}.shifts"][head]
                        assert data.tolist() == [*codes.tolist(), shift]


def test_kv_addresses_never_collide() -> None:
    seen = Counter(
        kv_address(
            layer=layer, head=head, row=row, word=word, n_kv_heads=3, n_rows=CONTEXT,
            n_tiles=4, words_per_head=2, slot=slot, n_layers=2,
        )
        for slot in range(2)
        for layer in range(2)
        for head in range(3)
        for row in range(CONTEXT)
        for word in range(2)
    )  # fmt: skip
    assert max(seen.values()) == 1
    assert max(address for _, address in seen) < 2 * 2 * 3 * 3 * 2


def collect(writes: list[SramWrite], memory: str, length: int, lanes: int) -> NDArray[np.int64]:
    values = np.full(length, 2**40)
    for write in writes:
        if write.memory == memory:
            first = write.address * lanes + write.lane
            assert len(write.data) <= lanes - write.lane
            values[first : first + len(write.data)] = write.data
    return values


def per_instruction(chip: Chip, writes: list[SramWrite]) -> dict[Instruction, list[SramWrite]]:
    model = CycleModel(chip)
    times = {issue: i for i, issue, _ in model.step(3).timeline}
    parts: dict[Instruction, list[SramWrite]] = {}
    for write in writes:
        parts.setdefault(times[write.issue], []).append(write)
    return parts


def test_buffers_put_together_are_the_operators(chip: Chip) -> None:
    writes, found = traced(chip, [3])
    parts = per_instruction(chip, writes)
    spec = chip.spec
    checked = 0
    for instruction, mine in parts.items():
        name = f"L{instruction.layer}"
        match instruction.op, instruction.operand.rpartition(".")[2]:
            case "embed", _:
                values = collect(mine, "X", spec.dim, 32)
                assert np.array_equal(values, found[0, "embed"])
            case "resid", kind:
                after = {"o": "x_attn", "down": "x_ffn"}[kind]
                values = collect(mine, "X", spec.dim, 32)
                assert np.array_equal(values, found[0, f"{name}.{after}"])
            case "matvec", "qkv":
                whole = [found[0, f"{name}.{part}"] for part in "qkv"]
                values = collect(mine, "Y", 256, 32)
                assert np.array_equal(values, np.concatenate(whole))
                assert len(mine) == 256 // chip.groups[instruction.operand].mapping.rows_per_step
            case "matvec", "gu":
                whole = [found[0, f"{name}.gate"], found[0, f"{name}.up"]]
                assert np.array_equal(collect(mine, "Y", 192, 32), np.concatenate(whole))
            case "matvec", "o" | "down" as kind:
                values = collect(mine, "Y", spec.dim, 32)
                assert np.array_equal(values, found[0, f"{name}.{kind}"])
            case "matvec", "head":
                values = collect(mine, "LOGITS", spec.vocab_size, 32)
                assert np.array_equal(values, found[0, "logits"])
            case ("norm" | "attn_out" | "glu") as op, kind:
                record = {"attn_out": f"{name}.attn", "glu": f"{name}.act"}.get(op)
                record = record or (f"{name}.{kind}" if instruction.layer >= 0 else kind)
                codes, shifts = found[0, f"{record}.codes"], found[0, f"{record}.shifts"]
                assert [w.address for w in mine] == list(range(len(shifts)))
                for block, write in enumerate(mine):
                    inside = codes[32 * block : 32 * block + 32].tolist()
                    assert write.memory == "XB"
                    assert write.data.tolist() == [*inside, shifts[block], sum(inside)]
            case "rope", _:
                q = [w for w in mine if w.memory == "Q"]
                codes = np.concatenate([w.data[:32] for w in q])
                assert np.array_equal(codes, found[0, f"{name}.q.codes"])
                assert [w.data[32] for w in q] == found[0, f"{name}.q.shifts"].tolist()
            case "attn", _:
                # one token: its numerator is 2^15 or less, and the sums are that times its value
                weights = [int(w.data[0]) for w in mine if w.memory == "OL"]
                sums = collect(mine, "O", spec.q_dim, 32).reshape(spec.n_heads, -1)
                v = found[0, f"{name}.v.codes"].reshape(spec.n_kv_heads, -1).astype(np.int64)
                v <<= found[0, f"{name}.v.shifts"].astype(np.int64)[:, None]
                for head, weight in enumerate(weights):
                    assert np.array_equal(sums[head], weight * v[head // 2])
            case other:
                pytest.fail(f"unexpected writes of {other}")
        checked += 1
    assert checked == len(chip.decode.instructions) - 1 - 4 * spec.n_layers  # sincos, lora off


def test_sub_norms_leave_the_vector_unit_in_y() -> None:
    model = make_model(BITNET, lambda t: "ternary", seed=3)
    chip = make_chip(model, make_target(lane_bits=2))
    writes, found = traced(chip, [3])
    parts = per_instruction(chip, writes)
    (mine,) = [w for i, w in parts.items() if i.op == "attn_out"]
    assert np.array_equal(collect(mine, "Y", chip.spec.q_dim, 32), found[0, "L0.attn"])
    (mine,) = [w for i, w in parts.items() if i.op == "norm" and "attn_sub" in i.operand]
    codes = np.concatenate([w.data[:32] for w in mine])
    assert np.array_equal(codes, found[0, "L0.attn.codes"])


def test_writes_carry_their_instruction_and_no_invented_cycle(chip: Chip) -> None:
    writes, _ = traced(chip, [3])
    assert all(w.cycle is None for w in writes)
    assert all(0 <= w.issue < w.idle for w in writes)
    assert all(w.tile == ALL_TILES for w in writes if w.memory not in "KV")


def test_beat_times_give_the_cycle_of_every_word(chip: Chip) -> None:
    writes: list[SramWrite] = []
    calls: Counter[tuple[str, int]] = Counter()

    def beat_times(instruction: Instruction, memory: str, beat: int, n_beats: int) -> int | None:
        assert 0 <= beat < n_beats
        calls[memory, n_beats] += 1
        return 10 + beat if memory == "X" else None

    model = CycleModel(chip, trace=writes.append, beat_times=beat_times)
    model.step(3)
    x = [w for w in writes if w.memory == "X"]
    assert [w.cycle for w in x] == [w.issue + 10 + w.beat for w in x]
    assert [w.beat for w in x] == [0, 1] * 5
    assert all(w.cycle is None for w in writes if w.memory != "X")
    assert calls["X", 2] == 10
    assert calls["K", 2] == 2 * chip.spec.n_layers


def test_tracing_prefill_names_the_buffer_of_each_token(chip: Chip) -> None:
    writes: list[SramWrite] = []
    model = CycleModel(chip, trace=writes.append)
    model.prefill([1, 2, 3, 4])
    assert {w.token for w in writes} == {0, 1}
    tiles = [w.tile for w in writes if w.memory == "K" and w.address % 3 == 0]
    assert sorted(set(tiles)) == [0, 1, 2, 3]
