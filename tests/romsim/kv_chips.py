"""Tiny chips under KV configurations, and stores that are written without a chip around them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from romsim import kv_windows
from romsim.cycle import CycleModel
from romsim.cycle.kv_rows import PagePool, RowMap
from romsim.cycle.kv_store import KvStore
from romsim_compiler.description import Description
from romsim_compiler.kv import KvConfig, parse_kv
from romsim_compiler.tables import tables
from romsim_models.shapes import TINY
from romsim_models.spec import ModelSpec

CONFIGS = (
    "int8,layout=paged,block=2",
    "fp16",
    "int4,layout=paged,block=4",
    "int2,layout=slotmap",
    "kivi-2bit,residual=8,group=4,plain_sinks=3",
    "kivi-k4v2,residual=16,group=16,layout=paged,block=16",
    "kvc-q,heavy=4,window=3,key_bits=4",
    "kvc-q,heavy=4,window=3,head_table=0.1",
    "streaming-llm,sinks=3,window=9",
    "streaming-llm,sinks=4,window=20,codec=int8,layout=paged,block=4",
    "window,window=8,codec=int4",
    "h2o,heavy=5,window=4",
    "h2o,heavy=8,window=1,codec=int4,layout=paged,block=8",
)
"""Every codec with every retention that it may have, and every layout."""


def with_kv(chip: Description, kv: str, *, context: int = 96) -> Description:
    """The same chip with another KV cache, without compiling anew."""
    return kv_windows.with_kv(chip, parse_kv(kv), context=context)


@dataclass
class Recorded:
    """Values of a run by name and position."""

    values: dict[tuple[str, int], NDArray[Any]] = field(default_factory=dict)

    def __call__(self, name: str, position: int, values: NDArray[Any]) -> None:
        self.values[name, position] = np.array(values)

    def of(self, name: str) -> dict[int, NDArray[Any]]:
        return {position: v for (n, position), v in self.values.items() if n == name}


def logits_of(
    chip: Description, tokens: Sequence[int], *, page_order: Sequence[int] | None = None
) -> NDArray[np.int32]:
    """Logits after every token, one decoded after another."""
    model = CycleModel(chip, threads=1, page_order=page_order)
    return np.stack([model.step(token).logits for token in tokens])


def text(n_tokens: int, *, seed: int = 0) -> list[int]:
    """Token ids that do not repeat a pattern."""
    rng = np.random.default_rng(seed)
    return [int(t) for t in rng.integers(3, 280, n_tokens)]


SPEC = replace(TINY["tiny-int4"], n_layers=1)


def make_store(
    kv: KvConfig, n_tokens: int, *, spec: ModelSpec = SPEC, order: Sequence[int] | None = None
) -> KvStore:
    """An empty cache of one layer for up to ``n_tokens``."""
    n_slots = kv.held(n_tokens)
    pool = None
    if kv.layout == "paged":
        pool = PagePool(-(-n_slots // kv.block), order=order)
    row_map = RowMap(n_slots, block=kv.block, pool=pool)
    rcp = np.array(tables()["RCP"], np.int64)
    return KvStore(spec, kv, row_map=row_map, rcp_table=rcp)


def filled(
    store: KvStore, n_tokens: int, *, spec: ModelSpec = SPEC, seed: int = 0
) -> Iterator[tuple[int, Recorded]]:
    """Write random tokens; yield each position and its words when its step is done."""
    rng = np.random.default_rng(seed)
    for position in range(n_tokens):
        words = Recorded()

        def note(name: str, values: NDArray[Any], words: Recorded = words) -> None:
            words(name, 0, values)

        k, v = (rng.normal(0, 2.0**15, spec.kv_dim).astype(np.int32) for _ in range(2))
        store.write(position, k, v, note)
        if store.mass.size:
            held = min(position + 1, store.mass.shape[1])
            store.mass[:, :held] += rng.integers(0, 9, (spec.n_kv_heads, held))
        store.after_attention(position, note)
        if store.kv.is_ranked:
            store.demote(position, store.kv.held(position + 1), note)
        yield position, words
