"""The errata of KV-cache arithmetic: what is said, what is right, and the figures recomputed."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from romsim.kv_formulas import FORMULAS, Figure, kv_bytes

__all__ = ["VERDICTS", "Erratum", "KvModel", "check", "kv_models", "to_json"]

VERDICTS = ("ok", "wrong", "misleading", "unverified", "impossible", "incomplete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Erratum:
    """One claim, the verdict on it, and what is right."""

    id: str
    claim: str
    verdict: str
    correct: str
    figures: tuple[Figure, ...]

    @property
    def agrees(self) -> bool:
        """Whether every figure of the correction is what its formula gives."""
        return all(figure.agrees for figure in self.figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvModel:
    """A model's KV cache per token, in FP16: stated and recomputed."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_token: int

    @property
    def recomputed(self) -> float:
        """Bytes per token from the formula."""
        return kv_bytes(layers=self.layers, kv_heads=self.kv_heads, head_dim=self.head_dim)


@cache
def _tables() -> dict[str, list[dict[str, Any]]]:
    source = resources.files("romsim") / "tables" / "kv_errata.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


def check() -> tuple[Erratum, ...]:
    """Return all errata in order of their ids, figures recomputed."""
    return tuple(Erratum(figures=FORMULAS.get(e["id"], ()), **e) for e in _tables()["errata"])


def kv_models() -> tuple[KvModel, ...]:
    """Return the models whose bytes per token articles quote."""
    return tuple(KvModel(**m) for m in _tables()["models"])


def to_json() -> dict[str, Any]:
    """Return errata and models as JSON-ready values."""
    return {
        "errata": [
            {
                **{k: v for k, v in asdict(erratum).items() if k != "figures"},
                "agrees": erratum.agrees,
                "figures": [{**asdict(f), "agrees": f.agrees} for f in erratum.figures],
            }
            for erratum in check()
        ],
        "models": [{**asdict(m), "recomputed": m.recomputed} for m in kv_models()],
    }
