"""Rows of KIVI's banks in a tile: windows of 16-bit words, and codes (docs/kv.md, 2 and 7)."""

from __future__ import annotations

from dataclasses import dataclass

from romsim_compiler.kv import KvConfig
from romsim_compiler.target import MX_BLOCK
from romsim_models.errors import SpecError

__all__ = ["KiviSizes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KiviSizes:
    """Where the tokens of a row, one in each tile, lie.

    Row ``r`` has tokens ``r · n_tiles`` and on. Sinks come first in the windows' banks; behind them
    keys take the rows of one window in turn, values those of one row more, and both as many more as
    tokens in flight may reach ahead.

    Parameters
    ----------
    n_tiles, context, n_inflight
        Of the chip.
    plain_sinks, residual, key_bits, value_bits
        As in `KvConfig`.
    pool_rows
        Rows of codes of all pages in a tile, sinks' among them; 0 where a row is its number.

    Raises
    ------
    SpecError
        If a row would hold words and codes of keys, or keys of two groups, or a group would be in
        two pages.
    """

    n_tiles: int
    context: int
    n_inflight: int
    plain_sinks: int
    residual: int
    key_bits: int
    value_bits: int
    pool_rows: int = 0

    def __post_init__(self) -> None:
        if MX_BLOCK % self.n_tiles:
            raise SpecError(
                f"Tiles of an RTL target with KV codec kivi must divide the {MX_BLOCK} tokens of a "
                f"group, not be {self.n_tiles}; choose fewer tiles"
            )
        if self.plain_sinks % self.n_tiles:
            raise SpecError(
                f"kv.plain_sinks of an RTL target must be a multiple of its {self.n_tiles} tiles, "
                f"not {self.plain_sinks}: all tiles read words or codes of keys"
            )
        if self.pool_rows and self.plain_sinks % MX_BLOCK:
            raise SpecError(
                f"kv.plain_sinks of an RTL target must be a multiple of {MX_BLOCK} with layout "
                f"paged, not {self.plain_sinks}: a group of keys would lie in two pages"
            )

    @classmethod
    def of(cls, kv: KvConfig, *, n_tiles: int, context: int, n_inflight: int) -> KiviSizes:
        """Take the sizes from a configuration."""
        n_pages = -(-context // kv.block) if kv.block else 0
        return cls(
            n_tiles=n_tiles,
            context=context,
            n_inflight=n_inflight,
            plain_sinks=kv.plain_sinks,
            residual=kv.residual,
            key_bits=kv.key_bits,
            value_bits=kv.value_bits,
            pool_rows=n_pages * (kv.block // n_tiles),
        )

    @property
    def sink_rows(self) -> int:
        """Rows of sinks."""
        return self.plain_sinks // self.n_tiles

    @property
    def window_rows(self) -> int:
        """Rows of a window of keys."""
        return self.residual // self.n_tiles

    @property
    def group_rows(self) -> int:
        """Rows of a group of keys."""
        return MX_BLOCK // self.n_tiles

    @property
    def n_rows(self) -> int:
        """Rows of the context."""
        return -(-self.context // self.n_tiles)

    @property
    def places(self) -> dict[str, int]:
        """Rows of a head in the windows' banks, of keys and of values."""
        rows = self.sink_rows + self.window_rows - (1 - self.n_inflight) // self.n_tiles
        return {"k": rows, "v": rows + 1}

    @property
    def code_rows(self) -> int:
        """Rows of a head in the banks of codes."""
        return self.pool_rows or max(1, self.n_rows - self.sink_rows)

    @property
    def first_code_row(self) -> int:
        """Row of tokens whose codes are in row 0, where rows are in order."""
        return 0 if self.pool_rows else self.sink_rows

    @property
    def n_groups(self) -> int:
        """Groups of keys of a head and channel."""
        return -(-self.code_rows // self.group_rows)

    def place(self, side: str, row: int) -> int:
        """Return where the words of a row lie in the window's bank."""
        behind = row - self.sink_rows
        ring = self.places[side] - self.sink_rows
        return row if behind < 0 else self.sink_rows + behind % ring

    def coded_rows(self, row: int) -> int:
        """Return the row at which words of keys begin for a token of this row, sinks left out."""
        behind = max(0, row - self.sink_rows)
        return self.sink_rows + behind // self.window_rows * self.window_rows
