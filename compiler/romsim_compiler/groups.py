"""Groups: matrices that share an input, fused into one matrix instruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from romsim_compiler.formats import WeightFormat
from romsim_models.spec import ModelSpec

__all__ = ["Group", "Member", "build_groups", "layer_groups", "layer_shapes", "tensor_shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One matrix of a group: rows ``first_row`` to ``first_row + n_rows - 1``."""

    tensor: str
    operator: str  # "q", "k", "v", "o", "gate", "up", "down", "head", "embd"
    first_row: int
    n_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Matrices fused by concatenating rows."""

    name: str
    layer: int  # -1 outside the layers
    members: tuple[Member, ...]
    n_rows: int
    n_cols: int
    fmt: WeightFormat


_LAYER = (
    ("qkv", (("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"))),
    ("o", (("attn_output", "o"),)),
    ("gu", (("ffn_gate", "gate"), ("ffn_up", "up"))),
    ("down", (("ffn_down", "down"),)),
)


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """Return the shape [n_rows, n_cols] of a layer's matrices, by the stem of the name."""
    heads, kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    return {
        "attn_q": (heads, spec.dim),
        "attn_k": (kv, spec.dim),
        "attn_v": (kv, spec.dim),
        "attn_output": (spec.dim, heads),
        "ffn_gate": (spec.hidden_dim, spec.dim),
        "ffn_up": (spec.hidden_dim, spec.dim),
        "ffn_down": (spec.dim, spec.hidden_dim),
    }


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """Return the shape [n_rows, n_cols] of every matrix of the model, by canonical name."""
    shapes = {"token_embd.weight": (spec.vocab_size, spec.dim)}
    per_layer = layer_shapes(spec)
    for layer in range(spec.n_layers):
        for stem, shape in per_layer.items():
            shapes[f"blk.{layer}.{stem}.weight"] = shape
    if not spec.tie_embeddings:
        shapes["output.weight"] = (spec.vocab_size, spec.dim)
    return shapes


def _fuse(
    name: str, layer: int, parts: list[tuple[str, str, int, int]], fmt: WeightFormat
) -> Group:
    members, first = [], 0
    for tensor, operator, n_rows, _ in parts:
        members.append(Member(tensor=tensor, operator=operator, first_row=first, n_rows=n_rows))
        first += n_rows
    return Group(
        name=name,
        layer=layer,
        members=tuple(members),
        n_rows=first,
        n_cols=parts[0][3],
        fmt=fmt,
    )


def layer_groups(spec: ModelSpec, layer: int, fmt_of: Callable[[str], WeightFormat]) -> list[Group]:
    """Return the groups of one layer in program order."""
    shapes = layer_shapes(spec)
    groups = []
    for group, matrices in _LAYER:
        parts = []
        formats = []
        for stem, operator in matrices:
            tensor = f"blk.{layer}.{stem}.weight"
            parts.append((tensor, operator, *shapes[stem]))
            formats.append(fmt_of(tensor))
        # A whole-matrix scale belongs to one matrix, so such matrices share no accumulator grid.
        if all(f == formats[0] for f in formats) and (formats[0].group or len(parts) == 1):
            groups.append(_fuse(f"L{layer}.{group}", layer, parts, formats[0]))
        else:
            groups += [
                _fuse(f"L{layer}.{part[1]}", layer, [part], fmt)
                for part, fmt in zip(parts, formats, strict=True)
            ]
    return groups


def build_groups(
    spec: ModelSpec,
    fmt_of: Callable[[str], WeightFormat],
    *,
    input_in_rom: bool = True,
    head_in_rom: bool = True,
) -> list[Group]:
    """Return all groups in program order: layers, head, and the embedding unless it is tied.

    Parameters
    ----------
    fmt_of
        Format of a tensor by canonical name.
    input_in_rom, head_in_rom
        Whether the target keeps the input embedding and the LM head in ROM.
    """
    groups = [g for n in range(spec.n_layers) for g in layer_groups(spec, n, fmt_of)]
    head = "token_embd.weight" if spec.tie_embeddings else "output.weight"
    vocab = spec.vocab_size
    if head_in_rom:
        groups.append(_fuse("head", -1, [(head, "head", vocab, spec.dim)], fmt_of(head)))
    if input_in_rom and not (spec.tie_embeddings and head_in_rom):
        embd = "token_embd.weight"
        groups.append(_fuse("embd", -1, [(embd, "embd", vocab, spec.dim)], fmt_of(embd)))
    return groups
