"""What became of mutants: rows by component, their sum, and the survivors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from romsim_rtl.mutants import Mutant

__all__ = ["Component", "Report", "Tried", "place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A mutant and what became of it.

    Parameters
    ----------
    mutant
        The fault.
    test, how
        The test that caught it and by which exception or signal; empty if none did.
    proof
        How it was proved equivalent; empty if it was not.
    """

    mutant: Mutant
    test: str = ""
    how: str = ""
    proof: str = ""

    @property
    def verdict(self) -> str:
        """Which it is: "caught", "equivalent" or "survived"."""
        return "caught" if self.how else "equivalent" if self.proof else "survived"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One design of a component, and its mutants."""

    component: str
    tests: tuple[str, ...]
    tried: tuple[Tried, ...]

    def count(self, verdict: str) -> int:
        """Mutants with a verdict."""
        return sum(one.verdict == verdict for one in self.tried)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was measured."""

    count: int
    seed: int
    components: tuple[Component, ...]

    def to_json(self) -> dict[str, Any]:
        """Give rows by component, their sum, and every survivor."""
        names = sorted({one.component for one in self.components})
        rows = [_row(n, [c for c in self.components if c.component == n]) for n in names]
        return {
            "count": self.count,
            "seed": self.seed,
            "components": rows,
            "total": _row("total", self.components),
            "survivors": [
                {"component": part.component, "tests": list(part.tests), **one.mutant.to_json()}
                for part in self.components
                for one in part.tried
                if one.verdict == "survived"
            ],
        }

    def to_text(self) -> str:
        """Give a table and the survivors."""
        values = self.to_json()
        lines = [
            f"{'component':<16}{'designs':>8}{'mutants':>9}{'caught':>8}{'equivalent':>12}"
            f"{'survived':>10}{'score':>9}"
        ]
        for row in [*values["components"], values["total"]]:
            score = "-" if row["score"] is None else f"{100 * row['score']:.1f} %"
            lines.append(
                f"{row['component']:<16}{row['designs']:>8}{row['mutants']:>9}{row['caught']:>8}"
                f"{row['equivalent']:>12}{row['survived']:>10}{score:>9}"
            )
        for one in values["survivors"]:
            lines.append(f"survived: {one['component']} {place(one)}")
        return "\n".join(lines)


def place(mutant: Mapping[str, Any]) -> str:
    """Say where a mutant is, in words."""
    name = f" ({mutant['wire']})" if mutant["wire"] else ""
    return (
        f"#{mutant['number']} {mutant['mode']} of {mutant['cell']}.{mutant['port']}"
        f"[{mutant['bit']}]{name} in {mutant['module']}, {', '.join(mutant['places'])}"
    )


def _row(name: str, parts: Sequence[Component]) -> dict[str, Any]:
    numbers = {
        verdict: sum(part.count(verdict) for part in parts)
        for verdict in ("caught", "equivalent", "survived")
    }
    real = numbers["caught"] + numbers["survived"]
    return {
        "component": name,
        "designs": len(parts),
        "mutants": sum(len(part.tried) for part in parts),
        **numbers,
        "score": numbers["caught"] / real if real else None,
    }
