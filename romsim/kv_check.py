"""The errata of KV-cache arithmetic: what is said, what is right, and the figures recomputed."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from romsim.kv_formulas import FORMULAS, Figure, kv_bytes
from romsim_models.errors import SpecError

__all__ = ["VERDICTS", "Erratum", "KvModel", "KvReport", "check", "kv_models", "kv_report"]

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

    @property
    def agrees(self) -> bool:
        """Whether the stated bytes are exactly the recomputed ones."""
        return self.recomputed == self.bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class KvReport:
    """Errata and models with every figure recomputed."""

    errata: tuple[Erratum, ...]
    models: tuple[KvModel, ...]

    @property
    def n_figures(self) -> int:
        """Figures that were recomputed, models' bytes included."""
        return sum(len(erratum.figures) for erratum in self.errata) + len(self.models)

    def disagreements(self) -> tuple[str, ...]:
        """Return each stated figure that its formula does not give, as a sentence."""
        found = [
            f"{e.id}: {f.name} is stated as {f.stated:g} {f.unit}, but {f.formula} gives "
            f"{f.value:.6g} {f.unit}"
            for e in self.errata
            for f in e.figures
            if not f.agrees
        ]
        found += [
            f"{m.name}: KV per token is stated as {m.bytes_per_token:,} B, but 2 x {m.layers} x "
            f"{m.kv_heads} x {m.head_dim} x 2 gives {m.recomputed:,.0f} B"
            for m in self.models
            if not m.agrees
        ]
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return errata and models as JSON-ready values."""
        found = self.disagreements()
        return {
            "n_figures": self.n_figures,
            "passed": not found,
            "disagreements": list(found),
            "errata": [
                {
                    **{k: v for k, v in asdict(erratum).items() if k != "figures"},
                    "agrees": erratum.agrees,
                    "figures": [{**asdict(f), "agrees": f.agrees} for f in erratum.figures],
                }
                for erratum in self.errata
            ],
            "models": [
                {**asdict(m), "recomputed": m.recomputed, "agrees": m.agrees} for m in self.models
            ],
        }


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


def kv_report(ids: Sequence[str] = ()) -> KvReport:
    """Return the errata and the models, every figure recomputed.

    Parameters
    ----------
    ids
        Errata wanted, such as ``"E29"``; all of them and the models where none is named.

    Raises
    ------
    SpecError
        If there is no erratum of that id.
    """
    if not ids:
        return KvReport(errata=check(), models=kv_models())
    known = {erratum.id: erratum for erratum in check()}
    for one in ids:
        if one.upper() not in known:
            near = difflib.get_close_matches(one.upper(), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            first, last = min(known), max(known)
            raise SpecError(f"Erratum must be one of {first} to {last}, not {one!r}{hint}")
    wanted = {one.upper() for one in ids}
    return KvReport(errata=tuple(e for e in known.values() if e.id in wanted), models=())
