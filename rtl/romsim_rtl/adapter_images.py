"""Resident adapters in the chip: memories that they need, and the host's writes that load them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from romsim_compiler.description import Description
from romsim_compiler.lora_words import pack_lora
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.encoding import LORA_GROUPS, group_fracs
from romsim_rtl.lora_sizes import CHUNK_BITS, ENTRY_BITS, LoraSizes, entry_of, pack_entry

__all__ = ["ConfigurationWrite", "adapter_bases", "configuration_writes", "lora_sizes"]

_TABLE, _A, _B = 1, 2, 3
_CHUNK_BYTES = CHUNK_BITS // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationWrite:
    """One cycle of the configuration port; see `romsim_rtl.lora_side.configuration_members`."""

    kind: int
    tile: int
    address: int
    chunk: int
    data: int


def lora_sizes(description: Description) -> LoraSizes | None:
    """Return the memories of unit H that the resident adapters need, or ``None`` if none."""
    adapters = list(description.loras.values())
    if not adapters or description.target.lora.path == "adders":
        return None
    spec = description.spec
    n_a = n_b = 1
    rank = 1
    for adapter in adapters:
        for image in adapter.groups.values():
            words = pack_lora(image, description.target)
            n_a += words.layout.n_a_words
            n_b += words.layout.n_b_words
            rank = max(rank, words.layout.slot)
    longest = max(spec.q_dim + 2 * spec.kv_dim, 2 * spec.hidden_dim, spec.dim)
    return LoraSizes(
        max_rank=1 << (rank - 1).bit_length(),
        n_entries=len(adapters) * spec.n_layers * len(LORA_GROUPS),
        a_words=n_a,
        b_words=n_b,
        n_cols=max(spec.dim, spec.q_dim, spec.hidden_dim),
        n_rows=longest,
    )


def adapter_bases(description: Description) -> dict[str, int]:
    """Return each resident adapter's first entry of the adapter table, by its name."""
    per_adapter = description.spec.n_layers * len(LORA_GROUPS)
    return {name: number * per_adapter for number, name in enumerate(description.loras)}


def configuration_writes(
    description: Description, sizes: AttentionSizes, lora: LoraSizes
) -> Iterator[ConfigurationWrite]:
    """Give the writes that load all resident adapters.

    Entries of groups without an adapter are written too: memories begin with anything.

    Raises
    ------
    SpecError
        If an adapter's ranks are not ones that the RTL has.
    """
    spec = description.spec
    a_base = b_base = 0
    for name, first in adapter_bases(description).items():
        adapter = description.loras[name]
        for layer in range(spec.n_layers):
            for number, kind in enumerate(LORA_GROUPS):
                entry = first + layer * len(LORA_GROUPS) + number
                image = adapter.groups.get(f"L{layer}.{kind}")
                if image is None:
                    yield from _chunks(_TABLE, 0, entry, bytes(-(-ENTRY_BITS // 8)))
                    continue
                words = pack_lora(image, description.target)
                for bank, banks, base in (
                    (_A, words.a_words, a_base),
                    (_B, words.b_words, b_base),
                ):
                    for tile in range(sizes.n_tiles):
                        for index, word in enumerate(banks[tile]):
                            yield from _chunks(bank, tile, base + index, word.tobytes())
                in_frac, out_frac = group_fracs(description, layer, kind)
                values = entry_of(
                    image,
                    sizes=sizes,
                    lora=lora,
                    a_base=a_base,
                    b_base=b_base,
                    in_frac=in_frac,
                    out_frac=out_frac,
                )
                packed = pack_entry(values).to_bytes(-(-ENTRY_BITS // 8), "little")
                yield from _chunks(_TABLE, 0, entry, packed)
                a_base += words.layout.n_a_words
                b_base += words.layout.n_b_words


def _chunks(kind: int, tile: int, address: int, data: bytes) -> Iterator[ConfigurationWrite]:
    for chunk in range(-(-len(data) // _CHUNK_BYTES)):
        part = data[chunk * _CHUNK_BYTES : (chunk + 1) * _CHUNK_BYTES]
        yield ConfigurationWrite(
            kind=kind,
            tile=tile,
            address=address,
            chunk=chunk,
            data=int.from_bytes(part, "little"),
        )
