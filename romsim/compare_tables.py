"""The comparison with GPUs as lines for people, and its rows as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from romsim.cost import NOTES, TokenCost
from romsim.gpu_compare import GpuComparison
from romsim.rate_rows import BATCHED, SINGLE, RateRow, Roofline
from romsim_compiler.technology import Range

__all__ = ["comparison_lines", "rows_csv"]

_FORMATS = ("fp16", "4-bit")  # of the tables for people; JSON and CSV have the chip's bits too


def _short(value: float) -> str:
    """Return a figure of three digits, without an exponent where people would not write one."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def _range(value: Range) -> str:
    if value.low == value.high:
        return _short(value.mid)
    return f"{_short(value.mid)} ({_short(value.low)} to {_short(value.high)})"


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return aligned lines: the first ``left`` columns to the left, the others to the right."""
    widths = [max(len(line[n]) for line in (head, *rows)) for n in range(len(head))]
    lines = []
    for line in (head, *rows):
        cells = [
            cell.ljust(width) if n < left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return lines


def comparison_lines(comparison: GpuComparison) -> list[str]:
    """Return the comparison as lines for people."""
    chip = comparison.chip
    lines = [
        f"{comparison.spec.name} at {comparison.context:,} tokens of context: {chip.target} "
        f"against GPUs",
        "",
        *_chip(comparison),
        "",
        "Rooflines, one sequence. Share: of the bandwidth, assumed. J: at rated power, which makes",
        "the joules and their ratio upper limits.",
        *_gpu_bytes(comparison),
        *_rooflines(comparison, SINGLE),
        "",
        "Rooflines, best batch that fits the memory: tokens/s of all sequences, and of one.",
        *_rooflines(comparison, BATCHED),
        *_roof_sources(comparison),
    ]
    for kind in ("measured", "published"):
        rows = [row for row in comparison.rows if row.kind == kind]
        if rows:
            lines += ["", f"{kind.capitalize()}", *_observed(rows)]
            lines += [f"    {text}" for text in dict.fromkeys(row.source for row in rows)]
    lines += ["", *_costs(comparison), ""]
    lines += [f"note: {note}" for note in comparison.notes]
    lines += [f"missing: {note}" for note in comparison.missing]
    warned = dict.fromkeys(
        f"{w}" for row in comparison.rows if row.kind == "roofline" for w in row.warnings
    )
    lines += [f"warning: {text}" for text in warned]
    return lines


def _chip(comparison: GpuComparison) -> list[str]:
    chip = comparison.chip
    millijoules = _range(chip.joules_per_token * 1e3)
    items = ", ".join(f"{item.name} {_bytes(item.bytes)}" for item in chip.items)
    spent = sorted(chip.cycles_by_resource.items(), key=lambda entry: -entry[1])
    cycles = ", ".join(f"{name} {n:,}" for name, n in spent if n)
    units = ", ".join(f"{unit} {_short(mm2.mid)}" for unit, mm2 in chip.area_by_unit_mm2.items())
    gating = ", ".join(f"{name} {_short(j.mid * 1e3)}" for name, j in chip.gating_joules.items())
    weights = f"{chip.bits_per_weight:.3g} b a weight"
    if chip.head_bits_per_weight is not None:
        weights += f", LM head {chip.head_bits_per_weight:.3g} b"
    return [
        "Chip",
        f"  rate    {chip.tokens_per_s:,.0f} tokens/s, one sequence ({chip.cycles:,} cycles at "
        f"{chip.clock_mhz:g} MHz); sequences take turns: {chip.aggregate_tokens_per_s:,.0f} in all",
        f"  energy  {millijoules} mJ a token, {_range(chip.power_w)} W, an estimate "
        f"({chip.technology}); by gating: {gating} mJ",
        f"  area    {_range(chip.area_mm2)} mm2, an estimate: {units}",
        f"  bytes   {_bytes(chip.bytes_per_token)} a token: {items} ({weights})",
        f"  cycles  {cycles}",
        f"  KV      {comparison.kv_sentence}",
    ]


def _rooflines(comparison: GpuComparison, streams: str) -> list[str]:
    rows = [
        (roof, row)
        for roof, row in _paired(comparison)
        if roof.streams == streams and roof.weight_format in _FORMATS
    ]
    head = ["GPU", "weights", "bound", "share"]
    if streams == SINGLE:
        head += ["limit", "tokens/s", "J a token", "chip is faster by", "and takes less J by"]
        cells = [
            [
                *_common(roof),
                _short(roof.decode.limit_tokens_per_s),
                _range(row.tokens_per_s),
                _range(roof.decode.joules_per_token),
                _times(row.chip_times_faster),
                _times(row.chip_times_joules),
            ]
            for roof, row in rows
        ]
    else:
        head += [
            "batch",
            "tokens/s, all",
            "one",
            "J a token",
            "chip over all",
            "and takes less J by",
        ]
        cells = [
            [
                *_common(roof),
                f"{roof.decode.batch:,}",
                _range(row.aggregate_tokens_per_s),
                _short(row.tokens_per_s.mid),
                _range(roof.decode.joules_per_token),
                _times(row.chip_times_aggregate),
                _times(row.chip_times_joules),
            ]
            for roof, row in rows
        ]
    return _table(head, cells, left=3)


def _gpu_bytes(comparison: GpuComparison) -> list[str]:
    """Return what a step of one sequence moves, which is the same on every part."""
    lines = []
    for fmt in _FORMATS:
        roof = next(r for r in comparison.rooflines if r.weight_format == fmt)
        items = ", ".join(f"{item.name} {_bytes(item.bytes)}" for item in roof.decode.items)
        lines.append(f"  bytes, {fmt}: {_bytes(roof.decode.bytes_per_step)} a token: {items}")
    return lines


def _roof_sources(comparison: GpuComparison) -> list[str]:
    """Return where the shares of bandwidth and the parts' figures come from."""
    decodes = [roof.decode for roof in comparison.rooflines]
    shares = dict.fromkeys(f"{d.fraction.source} ({d.fraction.grade})" for d in decodes)
    parts = dict.fromkeys(f"{d.gpu.source} ({d.gpu.grade})" for d in decodes)
    return [f"    share: {s}" for s in shares] + [f"    parts: {p}" for p in parts]


def _paired(comparison: GpuComparison) -> list[tuple[Roofline, RateRow]]:
    rows = [row for row in comparison.rows if row.kind == "roofline"]
    return list(zip(comparison.rooflines, rows, strict=True))


def _common(roof: Roofline) -> list[str]:
    decode = roof.decode
    share = decode.fraction
    return [
        decode.device,
        roof.weight_format,
        decode.bound,
        f"{share.mid:.0%} ({share.low:.0%} to {share.high:.0%})",
    ]


def _times(value: Range | None) -> str:
    return "does not fit" if value is None else f"{_range(value)} x"


def _observed(rows: Sequence[RateRow]) -> list[str]:
    head = ["device", "weights", "framework", "context", "batch", "tokens/s, one", "all", "J"]
    head += ["share", "chip is faster by"]
    cells = [
        [
            row.device,
            row.weight_format,
            row.framework,
            "not stated" if row.context is None else f"{row.context:,}",
            f"{row.batch}",
            _range(row.tokens_per_s),
            _range(row.aggregate_tokens_per_s),
            "-" if row.joules_per_token is None else _range(row.joules_per_token),
            "-" if row.bandwidth_share is None else f"{row.bandwidth_share.mid:.0%}",
            "other context"
            if row.chip_times_faster is None
            else f"{_range(row.chip_times_faster)} x",
        ]
        for row in rows
    ]
    return _table(head, cells, left=3)


def _costs(comparison: GpuComparison) -> list[str]:
    bill = comparison.bill
    parts = {
        "silicon": bill.silicon_usd,
        "package and test": bill.package_usd,
        "board": bill.board_usd,
        "masks": bill.masks_usd,
        "development": bill.development_usd,
    }
    rows = [one for one in comparison.costs if one.side == "chip" or one.format == _FORMATS[0]]
    return [
        "Cost, in US dollars: a calculation from inputs that --cost FILE may replace. GPUs with",
        "fp16 weights; the other formats are in --json.",
        f"  one chip  {_range(bill.total_usd)}: "
        + ", ".join(f"{name} {_short(part.mid)}" for name, part in parts.items()),
        f"            {bill.n_dies} {'die' if bill.n_dies == 1 else 'dies'} a chip, "
        f"{_range(bill.dies_per_wafer)} a wafer, yield "
        f"{bill.yield_share.mid:.0%} ({comparison.cost_inputs.yield_model})",
        *_table(
            ["device", "weights", "basis", "streams", "batch", "a million tokens", "a year"],
            [_cost(one) for one in rows],
            left=4,
        ),
        *(f"    {note}" for note in NOTES),
    ]


def _cost(one: TokenCost) -> list[str]:
    return [
        one.device,
        one.format,
        one.basis,
        one.streams,
        f"{one.batch:,}",
        _range(one.usd_per_million_tokens),
        _range(one.usd_per_year),
    ]


_RANGES = (
    "tokens_per_s",
    "aggregate_tokens_per_s",
    "joules_per_token",
    "bandwidth_share",
    "chip_times_faster",
    "chip_times_aggregate",
    "chip_times_joules",
)
_WORDS = ("side", "device", "kind", "framework", "model", "weight_format", "streams")


def rows_csv(comparison: GpuComparison) -> str:
    """Return every row of rates as CSV: three columns for each figure, empty where there is none.

    Costs stand in the columns at the end, of the row's own device, weights and batch, owned.
    """
    head = [*_WORDS, "context", "batch"]
    head += [f"{name}_{end}" for name in _RANGES for end in ("low", "mid", "high")]
    head += ["joules_basis", "usd_per_million_tokens_mid", "usd_per_year_mid", "grade", "source"]
    head += ["warnings"]
    costs = {
        (one.device, one.format, one.batch): one for one in comparison.costs if one.basis == "owned"
    }
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(head)
    for row in comparison.rows:
        cost = costs.get((row.device, row.weight_format, row.batch or 0))
        is_ours = row.kind in ("roofline", "compiled program")
        line: list[object] = [getattr(row, name) for name in _WORDS]
        line += [row.context, row.batch]
        for name in _RANGES:
            value: Range | None = getattr(row, name)
            line += ["", "", ""] if value is None else [value.low, value.mid, value.high]
        line.append(row.joules_basis)
        if cost is not None and is_ours:
            line += [cost.usd_per_million_tokens.mid, cost.usd_per_year.mid]
        else:
            line += ["", ""]
        writer.writerow([*line, row.grade, row.source, "; ".join(row.warnings)])
    return buffer.getvalue()
