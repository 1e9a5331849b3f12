"""Which pages of the KV cache a host gives to a sequence that is alone on the chip."""

from __future__ import annotations

from collections.abc import Sequence

from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.attention_sizes import AttentionSizes

__all__ = ["block_table"]


def block_table(description: Description, order: Sequence[int] | None) -> list[tuple[int, int]]:
    """Return (logical page, physical page) of a sequence that takes pages in an order.

    The next free page of a logical page's colour, as sequences of the cycle model take them;
    nothing without a block table.

    Raises
    ------
    SpecError
        If the order is no permutation of the pages, or there are none.
    """
    sizes = AttentionSizes.of(
        description.target,
        description.spec,
        context=description.context,
        linear_frac=description.numerics.linear_frac,
    )
    if not sizes.block:
        if order is not None:
            raise SpecError(
                f"Order of pages must be given with KV layout paged, not with "
                f"{description.target.kv.layout!r}"
            )
        return []
    pages = list(range(sizes.n_pages)) if order is None else [int(page) for page in order]
    if sorted(pages) != list(range(sizes.n_pages)):
        raise SpecError(
            f"Order of pages must be a permutation of 0 to {sizes.n_pages - 1}, not {pages!r}"
        )
    colours = [
        [page for page in pages if page % sizes.colours == colour]
        for colour in range(sizes.colours)
    ]
    return [
        (page, colours[page % sizes.colours][page // sizes.colours])
        for page in range(sizes.sequence_pages)
    ]
