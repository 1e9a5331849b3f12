"""Sizing a chip to its model: tiles, cells, vector lanes, ROM depth and SRAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from romsim.area import chip_area_mm2
from romsim.timing import TimingModel
from romsim_compiler.choices import choose_formats, shape_formats
from romsim_compiler.groups import Group, build_groups, tensor_shapes
from romsim_compiler.kv_sram import page_meets_tiles
from romsim_compiler.lora_words import lora_bits
from romsim_compiler.memory_map import kv_sram_bytes, vector_bytes
from romsim_compiler.pipeline import CompileOptions, check_model
from romsim_compiler.place import size_groups
from romsim_compiler.schedule import build_decode
from romsim_compiler.target import Target
from romsim_models.checkpoint import Checkpoint
from romsim_models.errors import CapacityError, SpecError
from romsim_models.spec import ModelSpec

__all__ = ["DEFAULT_CONTEXT", "Candidate", "candidates", "fit_target"]

DEFAULT_CONTEXT = 2048
"""Tokens that a fitted chip holds when the user names no context (or the model knows fewer)."""

_MOST_ROWS = 1 << 24  # words of a ROM cell, as in a target file


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One sized chip."""

    target: Target
    cycles: int  # of one token at half the context
    area_mm2: float

    @property
    def cost(self) -> float:
        """Area times time: the inverse of tokens/s per mm2, in mm2 x cycles."""
        return self.area_mm2 * self.cycles


def _halvings(value: int, least: int = 1) -> list[int]:
    result = [value]
    while result[-1] % 2 == 0 and result[-1] // 2 >= least:
        result.append(result[-1] // 2)
    return result


def _sized(
    template: Target,
    spec: ModelSpec,
    groups: list[Group],
    context: int,
    adapters: Sequence[dict[str, int]],
) -> Iterator[Target]:
    """Yield the template in every size, ROM and SRAM just large enough.

    Parameters
    ----------
    adapters
        Rank of each matrix by canonical name, for each adapter to leave room for.
    """
    context = max(context, template.kv.slots or 0)  # a policy's slots must all be there
    for n_tiles in _halvings(template.array.n_tiles):
        tiled = replace(template, array=replace(template.array, n_tiles=n_tiles))
        if not page_meets_tiles(template.kv, n_tiles):
            continue
        tile_tokens = -(-context // n_tiles)
        kv_bytes = kv_sram_bytes(spec, tiled, tile_tokens * n_tiles) / n_tiles
        plain_bytes = _adapter_bytes(spec, tiled, adapters)
        for n_cells in _halvings(template.array.n_cells):
            for n_lanes in _halvings(template.vector.n_lanes, 32):
                vector = replace(template.vector, n_lanes=n_lanes)
                array = replace(template.array, n_tiles=n_tiles, n_cells=n_cells)
                sized = replace(template, array=array, vector=vector)
                tile_bytes = kv_bytes + plain_bytes
                if template.lora.path == "adders":  # words as wide as the cells of a tile
                    tile_bytes = kv_bytes + _adapter_bytes(spec, sized, adapters)
                sram_kib = max(1, -(-int(tile_bytes + 1) // 1024))
                sized = replace(sized, attention=replace(template.attention, sram_kib=sram_kib))
                sized = replace(
                    sized,
                    vector=replace(vector, sram_kib=-(-vector_bytes(spec, sized) // 1024)),
                )
                rows = sum(m.n_words for m in size_groups(groups, sized))
                if rows <= _MOST_ROWS:
                    yield replace(sized, array=replace(array, rom_rows=rows))


def _adapter_bytes(spec: ModelSpec, target: Target, adapters: Sequence[dict[str, int]]) -> int:
    """Return bytes of adapters in each tile.

    In words of the target's tiles: a small adapter on many tiles leaves much of them empty.
    """
    lora_bytes = sum(lora_bits(spec, ranks, target) for ranks in adapters) // 8
    return -(-lora_bytes // target.array.n_tiles)


def candidates(
    checkpoint: Checkpoint, template: Target, *, options: CompileOptions, rank: int = 0
) -> list[Candidate]:
    """Return every size of the template that holds the model, with its area and speed.

    Raises
    ------
    SpecError
        If the model cannot run on the template in any size, or a number is impossible.
    """
    if rank < 0:
        raise SpecError(f"LoRA rank to leave room for must be at least 0, not {rank}")
    spec = checkpoint.spec
    context = _context(options, spec)
    check_model(spec, template)
    if checkpoint.has_weights:
        choices = choose_formats(spec, checkpoint.formats(), template, options.rules)
    else:
        choices = shape_formats(spec, template, options.weights)
    groups = build_groups(
        spec,
        lambda tensor: choices[tensor].fmt,
        input_in_rom=template.embedding.input == "rom",
        head_in_rom=template.embedding.head == "rom",
    )
    adapters = [
        {name: target.rank for name, target in adapter.targets.items()}
        for _, adapter in options.adapters
    ]
    if rank:
        outside = ("token_embd.weight", "output.weight")
        adapters.append({name: rank for name in tensor_shapes(spec) if name not in outside})
    decode = build_decode(spec, groups, lora_unit=template.lora_unit)
    result = []
    for sized in _sized(template, spec, groups, context, adapters):
        mappings = dict(zip((g.name for g in groups), size_groups(groups, sized), strict=True))
        timing = TimingModel(spec=spec, target=sized, mappings=mappings, decode=decode)
        cycles = timing.decode_cycles([context // 2])[0]
        area = chip_area_mm2(sized, spec)
        result.append(Candidate(target=sized, cycles=cycles, area_mm2=area))
    return result


def _context(options: CompileOptions, spec: ModelSpec) -> int:
    """Return the tokens that the chip shall hold."""
    if options.context is None:
        return min(spec.max_seq_len, DEFAULT_CONTEXT)
    if options.context < 1:
        raise SpecError(f"Context must be at least 1 token, not {options.context}")
    return options.context


def fit_target(
    checkpoint: Checkpoint,
    template: Target,
    *,
    options: CompileOptions,
    rank: int = 0,
    area_mm2: float | None = None,
) -> Target:
    """Return the template sized for a model.

    Within ``area_mm2`` the fastest chip is chosen; without a limit the one with the most tokens/s
    per mm2. Ties: the smaller area, then the fewer tiles.

    Raises
    ------
    CapacityError
        If no size is within the area limit: the smallest area is named.
    SpecError
        If the model cannot run on the template in any size, or a number is impossible.
    """
    if area_mm2 is not None and not area_mm2 > 0:
        raise SpecError(f"Area limit must be a positive number of mm2, not {area_mm2!r}")
    found = candidates(checkpoint, template, options=options, rank=rank)
    if not found:
        raise CapacityError(
            f"Model {checkpoint.spec.name!r} must fit {_MOST_ROWS} words a cell on the template "
            f"{template.name!r} in some size, but it fits in none; use fewer bits or a template "
            f"with more tiles"
        )
    allowed = [c for c in found if area_mm2 is None or c.area_mm2 <= area_mm2]
    if not allowed:
        smallest = min(c.area_mm2 for c in found)
        raise CapacityError(
            f"Area limit must be at least {smallest:.2f} mm2 for {checkpoint.spec.name!r} on the "
            f"template {template.name!r}, not {area_mm2}; raise --area, lower --context, or use "
            f"fewer bits"
        )
    best = min(
        allowed,
        key=lambda c: (
            c.cost if area_mm2 is None else c.cycles,
            c.area_mm2,
            c.target.array.n_tiles,
        ),
    )
    context = _context(options, checkpoint.spec)
    return replace(
        best.target,
        name=f"{template.name}-fit",
        summary=(
            f"{template.name} sized for {checkpoint.spec.name}, {context} tokens, LoRA rank {rank}"
        ),
    )
