# amaranth: UnusedElaboratable=no
"""KV caches other than the plain one in RTL: equal to the cycle model in writes and cycles."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from romsim.cycle import CycleModel
from romsim.cycle.kv_rows import PagePool, RowMap
from romsim.rtl_report import RtlReport
from romsim.verify_rtl import RtlPrompt, compare_rtl_prompts
from romsim.verify_rtl_sequences import SequenceComparison
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.driver import RtlRun
from romsim_rtl.driver_build import BuildOptions
from romsim_rtl.driver_cocotb import build_cocotb
from romsim_rtl.kv_pages import AttentionPages, divided
from romsim_rtl.top import Top
from tests.romsim.kv_chips import text, with_kv
from tests.rtl.sweep_chips import SweepChip, compile_chip

OPTIONS = BuildOptions(opt="-O0", trace=True)
SIZES: dict[str, Any] = {
    "n_tiles": 4,
    "n_cells": 1,
    "width": "32/32",
    "word_elems": 32,
    "heads_parallel": 1,
    "attn_block": 8,
    "n_inflight": 1,
    "hop": 1,
    "codes": "int4 on 4",
    "group": 32,
    "wide": "none",
    "family": "llama",
    "heads": "4/2",
    "head_dim": 32,
    "dim": 64,
    "hidden_dim": 64,
    "vocab_size": 64,
    "is_tied": True,
    "n_layers": 2,
    "context": 96,
    "rank": 0,
}
"""Four tiles, two queries for each of two KV heads, attention in blocks of 8 slots."""


def make_chip(folder: Path, kv: str, *, context: int = 96, **sizes: Any) -> Description:
    """A chip of random weights with a KV cache."""
    plain = compile_chip(SweepChip(**{**SIZES, **sizes}), folder)
    return with_kv(plain, kv, context=context)


def with_sequences(chip: Description, n: int) -> Description:
    """The same chip for several sequences."""
    schedule = replace(chip.target.schedule, n_slots=n)
    target = replace(chip.target, schedule=schedule)
    return Description(chip.path, {**chip.manifest, "target": target.to_json()})


def run(
    chip: Description,
    *lengths: tuple[int, int],
    adapter: str | None = None,
    page_order: list[int] | None = None,
) -> RtlReport:
    """Compare prompts, and tokens decoded after each, from memories that hold anything."""
    prompts = [
        RtlPrompt(
            tokens=tuple(token % 64 for token in text(n, seed=seed)), n_new=new, adapter=adapter
        )
        for seed, (n, new) in enumerate(lengths)
    ]
    return compare_rtl_prompts(chip, prompts, options=OPTIONS, sram_seed=5, page_order=page_order)


def shuffled(n_pages: int, seed: int = 0) -> list[int]:
    """A permutation of the pages."""
    return [int(page) for page in np.random.default_rng(seed).permutation(n_pages)]


@pytest.fixture(scope="module")
def paged(tmp_path_factory: pytest.TempPathFactory) -> Description:
    """StreamingLLM in pages that are narrower than the row of tiles: all that the RTL has."""
    folder = tmp_path_factory.mktemp("paged")
    kv = "streaming-llm,sinks=3,window=13,codec=int8,layout=paged,block=2"
    return make_chip(folder, kv, n_layers=1, heads="2/1")


@pytest.mark.verilator
def test_sinks_and_a_window_in_pages_equal_the_cycle_model(paged: Description) -> None:
    """For more than five times the slots, in memories and tables that held anything."""
    report = run(paged, (3, 82), (18, 3), (1, 1), page_order=shuffled(8))
    assert report.first is None, report.first.sentence()
    assert report.by_memory["K"] > 0


@pytest.mark.verilator
def test_pages_give_what_rows_in_order_give_under_any_permutation(paged: Description) -> None:
    in_order = with_kv(paged, "streaming-llm,sinks=3,window=13,codec=int8", context=96)
    tokens = [token % 64 for token in text(40, seed=2)]
    expected = CycleModel(in_order, threads=1)
    logits = [expected.step(token).logits for token in tokens]
    for seed in range(3):
        order = shuffled(8, seed)
        model = CycleModel(paged, threads=1, page_order=order)
        with RtlRun(paged, options=OPTIONS, sram_seed=seed + 1, page_order=order) as chip:
            for number, token in enumerate(tokens):
                result = chip.run("decode", [token], begin=number == 0)
                np.testing.assert_array_equal(result.logits, logits[number])
                assert result.cycles == model.step(token).cycles


H2O: list[tuple[str, dict[str, Any]]] = [
    ("h2o,heavy=5,window=4,codec=int8", {}),
    (
        "h2o,heavy=9,window=9,codec=fp16",
        {"width": "32/64", "heads": "3/1", "heads_parallel": 2, "n_tiles": 2, "hop": 3},
    ),
    (
        "h2o,heavy=0,window=7,codec=int4",
        {"n_tiles": 1, "heads": "2/2", "width": "32/64", "word_elems": 64, "head_dim": 64,
         "rank": 4},
    ),
    ("h2o,heavy=5,window=4,codec=int8,layout=paged,block=2", {}),
    (
        "h2o,heavy=9,window=8,codec=fp16,layout=paged,block=6",
        {"n_tiles": 2, "heads": "3/1", "heads_parallel": 2, "width": "32/64", "n_layers": 1},
    ),
    ("h2o,heavy=1,window=12,codec=int2", {"n_tiles": 8, "heads": "4/4", "width": "32/128"}),
    (
        "h2o,heavy=20,window=1,codec=int8",
        {"heads_parallel": 3, "head_dim": 96, "word_elems": 64, "width": "32/64",
         "attn_block": 16},
    ),
]  # fmt: skip
"""Beats of several KV heads, passes that are not full, several blocks, one slot that may be dropped
and all but one."""


@pytest.mark.verilator
@pytest.mark.parametrize(
    ("kv", "sizes"),
    [
        ("h2o,heavy=4,window=3,codec=int8", {"n_layers": 1, "heads": "2/2", "n_tiles": 2}),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in H2O),
    ],
)
def test_heavy_hitters_equal_the_cycle_model(
    tmp_path: Path, kv: str, sizes: dict[str, Any]
) -> None:
    """Masses, slots, cycles and logits, for four times the budget; sequences anew and going on."""
    chip = make_chip(tmp_path, kv, **sizes)
    budget, block = chip.target.kv.budget, chip.target.kv.block
    assert budget is not None
    order = shuffled(-(-(budget + 1) // block)) if block else None
    adapter = "a" if sizes.get("rank") else None
    report = run(chip, (3, 4 * budget), (budget + 2, 3), (1, 1), adapter=adapter, page_order=order)
    assert report.first is None, report.first.sentence()
    assert min(report.by_memory[memory] for memory in ("K", "MASS", "NEWEST", "FREE")) > 0


@pytest.mark.slow
@pytest.mark.verilator
@pytest.mark.parametrize(
    ("kv", "sizes"),
    [
        ("window,window=7,codec=int8", {}),
        ("window,window=7,codec=int8,layout=slotmap", {"n_layers": 1}),
        (
            "window,window=12,codec=int8",
            {"head_dim": 64, "heads": "3/1", "width": "32/64", "n_layers": 1},
        ),
        ("streaming-llm,sinks=3,window=12,codec=int8", {}),
        (
            "streaming-llm,sinks=9,window=9,codec=int8",
            {"head_dim": 96, "heads": "3/1", "width": "32/64", "n_layers": 1, "hop": 3},
        ),
        (
            "streaming-llm,sinks=4,window=6,codec=int8",
            {"n_tiles": 1, "heads_parallel": 3, "word_elems": 64, "head_dim": 64, "rank": 4},
        ),
        ("streaming-llm,sinks=3,window=9,codec=int4,layout=paged,block=4", {"width": "32/64"}),
        ("int8,layout=paged,block=8", {"n_inflight": 3}),
        ("int8,layout=paged,block=12", {"heads": "3/1"}),
        ("int8,layout=paged,block=32", {"attn_block": 16, "n_tiles": 8, "rank": 4}),
        ("int4,layout=paged,block=1", {"n_inflight": 2, "attn_block": 16}),
        ("kivi-2bit,residual=32,plain_sinks=32,layout=paged,block=32", {"n_layers": 1}),
        (
            "kivi-k4v2,residual=64,layout=paged,block=64",
            {
                "n_tiles": 2,
                "head_dim": 96,
                "heads": "3/1",
                "width": "32/64",
                "word_elems": 64,
                "n_inflight": 3,
                "n_layers": 2,
            },
        ),
        ("int4-g64", {"head_dim": 64, "width": "32/64", "heads": "3/1", "n_inflight": 2}),
        (
            "h2o,heavy=6,window=6,codec=int2,group=128",
            {"head_dim": 128, "width": "32/128", "heads": "2/2", "n_layers": 1},
        ),
        ("streaming-llm,sinks=5,window=10,layout=paged,block=4", {"heads": "2/2"}),
        ("window,window=11", {"n_layers": 1}),
    ],
)
def test_windows_and_pages_equal_the_cycle_model(
    tmp_path: Path, kv: str, sizes: dict[str, Any]
) -> None:
    """Windows, sinks and pages that divide neither tiles nor blocks; beats of several heads."""
    chip = make_chip(tmp_path, kv, **sizes)
    config = chip.target.kv
    order = None
    if config.block:
        order = shuffled(-(-config.held(96) // config.block))
    adapter = "a" if sizes.get("rank") else None
    report = run(chip, (3, 92), (19, 3), (1, 1), adapter=adapter, page_order=order)
    assert report.first is None, report.first.sentence()
    assert report.by_memory["K"] > 0


def sequences(chip: Description, *, seed: int = 0, n_steps: int = 40) -> SequenceComparison:
    """Start, fork and step sequences in a random order on both machines; the finished run."""
    rng = np.random.default_rng(seed)
    n_slots = chip.target.schedule.n_slots
    pages = CycleModel(chip, threads=1).pages
    assert pages is not None
    order = shuffled(pages.n_pages, seed)
    with SequenceComparison(chip, options=OPTIONS, sram_seed=7, page_order=order) as both:
        both.start([5, 7, 11, 13, 17])
        for _ in range(n_steps):
            slots = both.pool.slots
            slot = slots[rng.integers(len(slots))]
            what = rng.random()
            if what < 0.35 and len(slots) < n_slots:
                both.fork(slot)
            elif what < 0.4 and len(slots) < n_slots:
                both.start([int(token) for token in rng.integers(64, size=3)])
            elif what < 0.5 and len(slots) > 1:
                both.free(slot)
            else:
                both.step(slot, int(rng.integers(64)))
        for slot in both.pool.slots:
            both.step(slot, 1)
        return both


@pytest.mark.verilator
@pytest.mark.parametrize(
    ("kv", "sizes"),
    [
        # a head's last word is half full
        pytest.param(
            "int8,layout=paged,block=2", {"heads": "1/1", "head_dim": 96, "word_elems": 64}
        ),
        pytest.param("int8,layout=paged,block=2", {"heads": "1/1"}, marks=pytest.mark.slow),
        pytest.param(
            "int4,layout=paged,block=4",
            {"head_dim": 96, "word_elems": 64},
            marks=pytest.mark.slow,
        ),
        pytest.param("int8,layout=paged,block=8", {"n_layers": 1}, marks=pytest.mark.slow),
        pytest.param(
            "streaming-llm,sinks=3,window=9,codec=int4,layout=paged,block=2",
            {"head_dim": 64},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "int8,layout=paged,block=4",
            {"n_inflight": 2, "hop": 3, "head_dim": 64, "word_elems": 64, "rank": 4},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_forks_and_copied_pages_equal_the_cycle_model(
    tmp_path: Path, kv: str, sizes: dict[str, Any]
) -> None:
    """Every write of every copy, its cycles, and sequences in turn."""
    chip = make_chip(tmp_path, kv, context=24, **sizes)
    chip = with_sequences(chip, 3)
    both = sequences(chip)
    report = both.report()
    assert report.first is None, report.first.sentence()
    assert report.passed
    assert len(both.pool.copied) >= 4
    assert report.by_operator["copy of a page"] > 0


def test_a_number_is_divided_by_any_block() -> None:
    m = Module()
    slot = Signal(10)
    pages = {block: Signal(10, name=f"page{block}") for block in range(1, 129)}
    for block, page in pages.items():
        inner = Module()  # names its product
        inner.d.comb += page.eq(divided(inner, slot, block))
        m.submodules += inner

    async def bench(ctx: Any) -> None:
        for value in range(0, 1024, 3):
            ctx.set(slot, value)
            for block, page in pages.items():
                assert ctx.get(page) == value // block

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize(
    ("n_tiles", "block", "attn_block", "held"),
    [(4, 1, 8, 21), (4, 2, 16, 50), (4, 4, 8, 24), (2, 6, 8, 45), (4, 24, 16, 61), (2, 64, 16, 90)],
)
def test_a_page_takes_one_cycle_in_each_block_that_it_meets(
    n_tiles: int, block: int, attn_block: int, held: int
) -> None:
    """The closed form of docs/kv.md, section 7, and every slot's words, block by block."""
    sizes = replace(
        AttentionSizes(
            n_tiles=n_tiles, n_lanes=32, word_elems=32, heads_parallel=1, attn_block=attn_block,
            n_heads=1, n_kv_heads=1, head_dim=64, n_layers=1, context=96, n_inflight=1,
            broadcast_cycles=0, collect_cycles=0,
        ),
        block=block,
    )  # fmt: skip
    n_pages = sizes.n_pages
    pool = PagePool(n_pages, n_colours=sizes.colours, order=shuffled(n_pages))
    rows = RowMap(96, block=block, pool=pool)
    rows.reach(95)
    pages = AttentionPages(sizes=sizes)

    async def bench(ctx: Any) -> None:
        for first in range(0, held, attn_block):
            last = min(held, first + attn_block)
            begins = pages.setup if first == 0 else pages.advance
            ctx.set(pages.rest, last - first - 1 if first == 0 else attn_block - 1)
            ctx.set(begins, 1)
            assert ctx.get(pages.r_en)
            asked = ctx.get(pages.r_page)
            await ctx.tick()
            ctx.set(begins, 0)
            ctx.set(pages.rest, last - first - 1)
            n_cycles, is_last = 0, False
            ctx.set(pages.reads, 1)
            while not is_last:
                ctx.set(pages.r_row, rows.table[asked] * block // n_tiles)
                asked, is_last = ctx.get(pages.r_page), bool(ctx.get(pages.is_last))
                n_cycles += 1
                await ctx.tick()
            ctx.set(pages.reads, 0)
            assert n_cycles == -(-last // block) - first // block
            for _ in range(2):  # keys, then values
                n_slots = -(-(last - first) // n_tiles)
                for tok in range(n_slots):
                    for tile in range(n_tiles):
                        slot = first + tok * n_tiles + tile
                        if slot < last:
                            words = ctx.get(pages.words[tile // block if sizes.colours > 1 else 0])
                            assert words == rows.rows[slot] // n_tiles * sizes.row_words
                    ctx.set(pages.next_slot, tok < n_slots - 1)
                    ctx.set(pages.rewinds, tok == n_slots - 1)
                    await ctx.tick()
                ctx.set(pages.rewinds, 0)

    simulator = Simulator(pages)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


def test_an_order_of_pages_that_does_not_fit_is_refused(paged: Description) -> None:
    for chip, order, sentence in (
        (paged, [0, 0], "Order of pages must be a permutation of 0 to 7, not [0, 0]"),
        (
            with_kv(paged, "int8", context=96),
            [0],
            "Order of pages must be given with KV layout paged, not with 'contiguous'",
        ),
    ):
        with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
            RtlRun(chip, options=OPTIONS, page_order=order)


def test_cocotbs_host_refuses_a_block_table(paged: Description) -> None:
    sentence = (
        "KV layout of a chip in cocotb must be contiguous, ring or slotmap, not 'paged', whose "
        "block table this host does not write; use romsim_rtl.driver"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        build_cocotb(paged)


@pytest.mark.parametrize(
    ("kv", "sentence"),
    [
        (
            "kvc-q",
            "kv.codec of an RTL target must be one of int8, int4, int2, fp16, kivi, not 'tiered', "
            "for which there is no hardware yet; compile with --kv codec=int8",
        ),
    ],
)
def test_what_has_no_hardware_is_refused_by_its_axis(
    tmp_path: Path, kv: str, sentence: str
) -> None:
    chip = make_chip(tmp_path, kv)
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        Top(description=chip)


@pytest.mark.parametrize(
    ("kv", "sentence"),
    [
        (
            "kivi-4bit,layout=paged,block=32",
            "schedule.n_slots of an RTL target must be 1 with KV codec kivi, not 2: its windows "
            "are of one sequence; compile with --kv codec=int4",
        ),
        (
            "h2o,heavy=4,window=4,layout=paged,block=4",
            "schedule.n_slots of an RTL target must be 1 with KV retention h2o, not 2: its masses "
            "are of one sequence; compile with --kv retention=all",
        ),
    ],
)
def test_sequences_that_would_share_what_is_of_one_are_refused(
    tmp_path: Path, kv: str, sentence: str
) -> None:
    chip = with_sequences(make_chip(tmp_path, kv), 2)
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        Top(description=chip)


def test_a_sequence_that_positions_do_not_count_is_refused(tmp_path: Path) -> None:
    chip = make_chip(tmp_path, "window,window=8,codec=int8", context=65537)
    sentence = (
        "Context of the RTL must be at most 65536 tokens, which its position registers count, not "
        "65537; compile with a smaller --context"
    )
    with pytest.raises(SpecError, match=f"^{re.escape(sentence)}$"):
        Top(description=chip)
