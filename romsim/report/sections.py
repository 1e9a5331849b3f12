"""The order of a report: which plots and tables stand under which heading."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from romsim.report.model import Report, Table

__all__ = ["SECTIONS", "Section", "shared_tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One heading with what stands under it."""

    key: str
    title: str
    intro: str
    plots: tuple[str, ...]
    tables: tuple[str, ...]  # of each chip
    shared: tuple[str, ...] = ()  # of the report, or patterns of their names


SECTIONS = (
    Section(
        key="silicon",
        title="Silicon",
        intro="What the die is made of, from a bottom-up model of its parts.",
        plots=("treemap", "floorplan"),
        tables=("area", "floorplan", "technology"),
    ),
    Section(
        key="speed",
        title="Speed",
        intro="Cycles come from the issue rule and closed forms; tokens/s from the target's clock.",
        plots=("rates", "ttft"),
        tables=("rates", "ttft", "adapters"),
    ),
    Section(
        key="time",
        title="Where a token's time goes",
        intro="Every cycle of a token belongs to one instruction on the critical path.",
        plots=("layers", "resources", "roofline"),
        tables=("operations", "utilisation", "layers", "resources", "roofline", "limits"),
    ),
    Section(
        key="energy",
        title="Energy",
        intro="Events counted from the program, priced by the technology, with clocks and leakage.",
        plots=("energy", "energy_context"),
        tables=("energy_units", "energy", "energy_layers", "energy_context"),
    ),
    Section(
        key="memory",
        title="ROM and KV cache",
        intro="What the weights take of the ROM, and what the SRAM holds.",
        plots=("rom_map", "kv_codecs"),
        tables=("rom", "rom_banks", "kv_codecs"),
    ),
    Section(
        key="kv_quality",
        title="KV caches: quality against room",
        intro="Perplexity with the chip's arithmetic, from `romsim kv-eval`.",
        plots=("kv_quality",),
        tables=(),
        shared=("kv_eval_*",),
    ),
    Section(
        key="gpus",
        title="Beside GPU decode",
        intro="The same model at the same context, from `romsim compare`.",
        plots=("comparison",),
        tables=(),
        shared=("compare_*",),
    ),
    Section(
        key="published",
        title="Published chips",
        intro="The same models on published chips, so that a reader can judge the models.",
        plots=("published",),
        tables=(),
        shared=("published", "fitted", "other_chips", "contradictions"),
    ),
    Section(
        key="results",
        title="Verification",
        intro="What `romsim verify` printed.",
        plots=(),
        tables=(),
        shared=("verify_*",),
    ),
)
"""All headings; one under which a report has nothing is left out."""


def shared_tables(report: Report, section: Section) -> tuple[Table, ...]:
    """Return the tables of the report that stand under a heading."""
    return tuple(
        table
        for pattern in section.shared
        for table in report.tables
        if fnmatchcase(table.key, pattern)
    )
