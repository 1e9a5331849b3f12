"""The errata of KV-cache arithmetic as a page of Markdown: docs/kv-arithmetic.md."""

from __future__ import annotations

from romsim.kv_check import KvReport
from romsim.kv_formulas import Figure
from romsim_models.shapes import SHAPES

__all__ = ["render_markdown"]

_HEAD = """\
<!-- AUTO-GENERATED, do not edit: romsim kv-check --write docs/kv-arithmetic.md -->

# KV-cache arithmetic

A token takes

    2 x layers x KV heads x head_dim x bits / 8  bytes

of KV cache: keys and values, in every layer, of every *KV* head. Models with grouped-query
attention have fewer KV heads than query heads; the count of query heads, or the model's width,
gives sizes that are too large by their ratio. In this package a size is computed from a model's own
specification (`romsim_compiler.memory_map.kv_bytes_per_token`) and nowhere from its width or its
query heads.

`romsim kv-check` recomputes every figure of this page and ends with 1 if one differs;
`romsim kv-check E29` prints one entry."""


def render_markdown(report: KvReport) -> str:
    """Return the page.

    Parameters
    ----------
    report
        All errata and models.
    """
    lines = [_HEAD, "", "## Bytes per token, FP16", ""]
    lines += [
        "| model | layers | KV heads | head_dim | bytes per token | KiB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {m.name} | {m.layers} | {m.kv_heads} | {m.head_dim} | {m.bytes_per_token:,} | "
        f"{m.bytes_per_token / 1024:g} |"
        for m in report.models
    ]
    lines += [
        "",
        "## What a size from the query heads would get wrong",
        "",
        "| built-in model | query heads | KV heads | bytes per token, FP16 | too large by |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {s.n_heads} | {s.n_kv_heads} | "
        f"{4 * s.n_layers * s.n_kv_heads * s.head_dim:,} | {s.n_heads / s.n_kv_heads:g} x |"
        for name, s in SHAPES.items()
    ]
    lines += [
        "",
        "## Errata",
        "",
        "What three common articles (A, B, C) say, and what is right. *misleading*: true only",
        "under a condition that is left out. *unverified*: no source was found that says so.",
        "",
        "| id | claim | verdict | what is right | recomputed |",
        "|---|---|---|---|---|",
    ]
    for e in report.errata:
        figures = "; ".join(_figure(f) for f in e.figures) or "–"
        lines.append(
            f"| {e.id} | {_cell(e.claim)} | {e.verdict} | {_cell(e.correct)} | {figures} |"
        )
    lines += [
        "",
        f"{report.n_figures} figures are recomputed; an entry without one is a fact that no "
        f"formula gives.",
        "",
    ]
    return "\n".join(lines)


def _figure(figure: Figure) -> str:
    return _cell(f"{figure.name}: {figure.formula} = {figure.value:.6g} {figure.unit}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
