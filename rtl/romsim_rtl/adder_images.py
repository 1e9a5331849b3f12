"""Resident adapters of the adder arrays: the host's writes that load table and trits."""

from __future__ import annotations

from collections.abc import Iterator

from romsim_compiler.description import Description
from romsim_compiler.lora_adders import placed_runs
from romsim_compiler.lora_image import LoraImage
from romsim_compiler.trit_words import pack_trits
from romsim_rtl.adapter_images import ConfigurationWrite, adapter_bases
from romsim_rtl.adder_sizes import RUNS_LOG2, AdderSizes, pack_run, run_entries
from romsim_rtl.encoding import LORA_GROUPS
from romsim_rtl.memory import address_bits

__all__ = ["adder_writes"]

_TABLE, _TRITS = 1, 2
_CHUNK_BYTES = 8


def adder_writes(description: Description, sizes: AdderSizes) -> Iterator[ConfigurationWrite]:
    """Give the writes that load all resident adapters.

    The first entry of a group without an adapter is written too: memories begin with anything.

    Raises
    ------
    SpecError
        If an adapter is not one that the RTL has.
    """
    base = 0
    for name, first in adapter_bases(description).items():
        adapter = description.loras[name]
        for layer in range(description.spec.n_layers):
            for number, kind in enumerate(LORA_GROUPS):
                entry = first + layer * len(LORA_GROUPS) + number << RUNS_LOG2
                image = adapter.groups.get(f"L{layer}.{kind}")
                if image is None:
                    yield from _entry(entry, {}, sizes)
                    continue
                lanes = description.target.vector.n_lanes
                runs = run_entries(image, description, base=base, n_lanes=lanes)
                for index, values in enumerate(runs):
                    yield from _entry(entry + index, values, sizes)
                n_words = 0
                for write, end in _words(image, description, sizes, base):
                    yield write
                    n_words = end
                base += n_words


def _entry(entry: int, values: dict[str, int], sizes: AdderSizes) -> Iterator[ConfigurationWrite]:
    for chunk, data in enumerate(pack_run(values, sizes)):
        yield ConfigurationWrite(kind=_TABLE, tile=0, address=entry, chunk=chunk, data=data)


def _words(
    image: LoraImage, description: Description, sizes: AdderSizes, base: int
) -> Iterator[tuple[ConfigurationWrite, int]]:
    """Give a group's words, each with the words that all its runs take so far."""
    word_bits = address_bits(sizes.bank_words)
    factors = iter([factor for each in image.ternary for factor in (each.a, each.b)])
    for run, first in placed_runs(description.spec, image, description.target):
        if not run.is_there:
            continue
        words = pack_trits(next(factors).trits, run.mapping, description.target)
        n_words, n_tiles, n_cells, n_bytes = words.shape
        for word in range(n_words):
            for tile in range(n_tiles):
                for cell in range(n_cells):
                    data = words[word, tile, cell].tobytes()
                    for chunk in range(n_bytes // _CHUNK_BYTES):
                        part = data[chunk * _CHUNK_BYTES : (chunk + 1) * _CHUNK_BYTES]
                        write = ConfigurationWrite(
                            kind=_TRITS,
                            tile=tile,
                            address=cell << word_bits | base + first + word,
                            chunk=chunk,
                            data=int.from_bytes(part, "little"),
                        )
                        yield write, first + n_words
