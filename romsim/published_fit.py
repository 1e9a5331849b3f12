"""Fitting what the papers do not publish: a search over a few parameters of the template.

The template's own latencies are not touched: they are what the RTL takes. Run it again with
``python -m romsim.published --fit`` when they change, and write what it prints into the targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from romsim.published_figures import FIGURES, Chip
from romsim_compiler.target import Target

__all__ = ["Fit", "fit_roma", "fit_tom", "fit_tom_lane"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The best parameters found for a chip."""

    chip: str
    parameters: dict[str, float]
    differences: dict[str, float]  # ours over theirs, less 1
    worst: float  # largest share of a tolerance that a difference takes
    current: float  # the same with the target's present parameters
    n_evaluated: int


def _with(target: Target, lanes: int, heads: int, block: int, hop: int) -> Target:
    return replace(
        target,
        vector=replace(target.vector, n_lanes=lanes),
        attention=replace(target.attention, heads_parallel=heads, attn_block=block),
        network=replace(target.network, broadcast_cycles=hop // 2, collect_cycles=hop - hop // 2),
    )


def _parameters(target: Target) -> dict[str, float]:
    return {
        "vector.n_lanes": target.vector.n_lanes,
        "attention.heads_parallel": target.attention.heads_parallel,
        "attention.attn_block": target.attention.attn_block,
        "network.broadcast_cycles": target.network.broadcast_cycles,
        "network.collect_cycles": target.network.collect_cycles,
        "schedule.n_inflight": target.schedule.n_inflight,
    }


def _differences(chip: Chip, theirs: dict[str, float]) -> dict[str, float]:
    return {name: FIGURES[name](chip) / value - 1 for name, value in theirs.items()}


def _worst(differences: dict[str, float], tolerances: dict[str, float]) -> float:
    return max(abs(value) / tolerances[name] for name, value in differences.items())


def _candidates(target: Target, lanes: tuple[int, ...], heads: tuple[int, ...]) -> Iterator[Target]:
    for n_lanes, n_heads, block, hop in product(lanes, heads, (1024, 4096), range(0, 31, 2)):
        yield _with(target, n_lanes, n_heads, block, hop)


def _search(
    name: str,
    chip: Chip,
    candidates: Iterator[Target],
    weights: str,
    theirs: dict[str, float],
    tolerances: dict[str, float],
    quick: tuple[str, ...],
) -> Fit:
    """Rank candidates by the quick figures, then the best of them by all."""
    ranked: list[tuple[float, int, Chip]] = []
    for number, target in enumerate(candidates):
        one = Chip(target, chip.spec, weights, chip.constants)
        differences = _differences(one, {k: theirs[k] for k in quick})
        ranked.append((_worst(differences, tolerances), number, one))
    n_evaluated = len(ranked)
    # What the targets have stands for election too: the quick figures may have passed it over.
    finalists = [chip, *(one for _, _, one in sorted(ranked, key=lambda r: r[:2])[:12])]
    scored = []
    for number, one in enumerate(finalists):
        differences = _differences(one, theirs)
        scored.append((_worst(differences, tolerances), number, one, differences))
    worst, _, best, differences = min(scored, key=lambda s: s[:2])
    return Fit(
        chip=name,
        parameters=_parameters(best.target),
        differences=differences,
        worst=worst,
        current=_worst(_differences(chip, theirs), tolerances),
        n_evaluated=n_evaluated,
    )


def fit_roma(chip: Chip, theirs: dict[str, float], tolerances: dict[str, float]) -> Fit:
    """Return the parameters that bring ROMA's rates and first tokens nearest.

    Parameters
    ----------
    theirs, tolerances
        Published figures by name of ours, and how near they are to be met.
    """
    candidates = _candidates(chip.target, (256, 512, 1024, 1536, 2048), (3, 4))
    quick = ("roma_decode_empty", "roma_decode_1k")
    return _search("roma", chip, candidates, "sym4g128", theirs, tolerances, quick)


def fit_tom(chip: Chip, theirs: dict[str, float], tolerances: dict[str, float]) -> Fit:
    """Return the parameters that bring TOM's rate nearest."""
    candidates = _candidates(chip.target, (32, 64, 96, 128), (2,))
    return _search("tom", chip, candidates, "ternary", theirs, tolerances, ("tom_decode",))


def fit_tom_lane(chip: Chip, power_w: float) -> float:
    """Return the energy of a lane in pJ that gives TOM's power with gating: the two are linear."""

    def power(pj: float) -> float:
        constants = {**chip.constants, "tom_lane_pj": pj}
        return FIGURES["tom_power_gated"](Chip(chip.target, chip.spec, "ternary", constants))

    at_one, at_two = power(1.0), power(2.0)
    return 1.0 + (power_w - at_one) / (at_two - at_one)
