"""The program: instructions in issue order, the contract between compiler and the machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from romsim_compiler.mapping import Mapping

__all__ = ["UNITS", "Instruction", "PlacedGroup", "Program"]

UNITS = ("V", "L", "H")


@dataclass(frozen=True, kw_only=True)
class PlacedGroup:
    """A group in ROM, with all that the array must know to multiply by it.

    Values follow docs/numerics.md, section 4; positions docs/machine.md, section 2.
    """

    name: str
    layer: int
    mapping: Mapping
    base: int  # first ROM address
    code_bits: int
    kind: str
    offset: int
    group: int
    has_minimum: bool
    grid: int  # gamma
    in_frac: int
    out_frac: int
    multiplier: int  # whole-matrix scale M, 1 when scales stand in the words
    multiplier_exp: int  # E
    pre_shift: int  # a
    members: tuple[tuple[str, str, int, int], ...]  # tensor, operator, first row, rows


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction.

    ``op`` is one of embed, sincos, norm, matvec, lora, rope, attn, attn_out, resid, glu
    (docs/machine.md, section 4). ``operand`` names the matrix group (matvec, lora), the gain
    vector (norm) or the matrix whose result is added (resid).
    ``source`` and ``target`` name vector buffers where an
    operator has a choice: a norm reads X or Y.
    """

    op: str
    unit: str
    wait: tuple[str, ...]
    layer: int
    token: int  # in-flight index
    slot: int
    operand: str = ""
    source: str = ""
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A flat program for ``n_tokens`` in-flight tokens."""

    kind: str  # "decode" or "prefill"
    n_tokens: int
    instructions: tuple[Instruction, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the program as JSON-ready values."""
        return {
            "kind": self.kind,
            "n_tokens": self.n_tokens,
            "instructions": [
                {k: v for k, v in asdict(i).items() if v not in ("", ())} for i in self.instructions
            ],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Program:
        """Build a program from :meth:`to_json`'s values."""
        return cls(
            kind=values["kind"],
            n_tokens=values["n_tokens"],
            instructions=tuple(
                Instruction(**{**i, "wait": tuple(i.get("wait", ()))})
                for i in values["instructions"]
            ),
        )
