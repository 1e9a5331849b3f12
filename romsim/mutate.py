"""How many faults in a chip's ROM images the comparison with the cycle model finds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from romsim.cycle import CycleModel
from romsim.gain_stimulus import GainStimuli
from romsim.image_faults import FAULT_KINDS, Fault, choose_faults, write_faulty
from romsim.verify_rtl import RtlPrompt, compare_rtl_prompts
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.driver_build import BuildOptions, build_chip
from romsim_rtl.toolchain import ToolError

__all__ = ["FaultOutcome", "FaultReport", "mutate"]

_SLACK = 20  # a program that takes this many times its cycles hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOutcome:
    """A fault and the first difference that it makes; None if the comparison found none.

    Parameters
    ----------
    fault
        What was changed.
    found
        The difference.
    stimulus
        What it showed on: ``prompt``, or ``epsilon`` for another epsilon of the fault's norm; None
        if nothing was found.
    """

    fault: Fault
    found: str | None
    stimulus: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready values."""
        return {
            "kind": self.fault.kind,
            "what": self.fault.what,
            "found": self.found,
            "stimulus": self.stimulus,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """What became of every fault."""

    name: str
    seed: int
    tokens: tuple[int, ...]
    n_new: int
    outcomes: tuple[FaultOutcome, ...]

    @property
    def passed(self) -> bool:
        """Whether there were faults and every one was found."""
        return bool(self.outcomes) and all(o.found is not None for o in self.outcomes)

    def by_kind(self) -> dict[str, tuple[int, int, int]]:
        """Give the faults of each kind, how many were found, and of them on the prompt itself."""
        kinds: dict[str, tuple[int, int, int]] = {}
        for outcome in self.outcomes:
            n, found, plain = kinds.get(outcome.fault.kind, (0, 0, 0))
            kinds[outcome.fault.kind] = (
                n + 1,
                found + (outcome.found is not None),
                plain + (outcome.stimulus == "prompt"),
            )
        return kinds

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "name": self.name,
            "seed": self.seed,
            "tokens": list(self.tokens),
            "n_new": self.n_new,
            "n_faults": len(self.outcomes),
            "n_found": sum(o.found is not None for o in self.outcomes),
            "by_kind": {
                kind: {"faults": n, "found": found, "found_on_prompt": plain}
                for kind, (n, found, plain) in self.by_kind().items()
            },
            "faults": [outcome.to_json() for outcome in self.outcomes],
            "passed": self.passed,
        }

    def to_text(self) -> str:
        """Return a table, and the faults that went unnoticed."""
        lines = [f"{'fault':<10}{'injected':>10}{'found':>8}{'on the prompt':>15}"]
        for kind, (n, found, plain) in self.by_kind().items():
            lines.append(f"{kind:<10}{n:>10}{found:>8}{plain:>15}")
        if any(outcome.stimulus == "epsilon" for outcome in self.outcomes):
            lines.append("the others found: on the prompt with another epsilon of the gain's norm")
        missed = [o.fault for o in self.outcomes if o.found is None]
        lines += [f"unnoticed: {fault.kind}: {fault.what}" for fault in missed]
        return "\n".join(lines)


def mutate(
    description: str | Path | Description,
    *,
    tokens: Sequence[int] = (1, 5, 9, 20, 7),
    n_new: int = 3,
    count: int = 20,
    seed: int = 1,
    kinds: Sequence[str] = FAULT_KINDS,
    options: BuildOptions | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> FaultReport:
    """Inject faults into the ROM images that the RTL reads, and verify it against the cycle model.

    The cycle model reads the description as it is; the chip is built once. A gain's fault that the
    prompt does not show is tried once more, with an epsilon of its norm for which the cycle model
    gives another code with the fault than without (`romsim.gain_stimulus`).

    Parameters
    ----------
    description
        A compiled chip.
    tokens, n_new
        Prompt and tokens to decode after it, for each fault; then the prompt's first chunk alone.
    count
        Faults of each kind.
    seed
        Of the choice of faults.
    kinds
        Some of `romsim.image_faults.FAULT_KINDS`.
    options
        How the simulation is compiled.

    Raises
    ------
    SpecError
        If the RTL has no hardware for the description, a kind is unknown, or RTL and cycle model
        differ without any fault.
    ToolError
        If the build fails.
    """
    if not isinstance(description, Description):
        description = Description.load(Path(description))
    base = options or BuildOptions()
    options = BuildOptions(opt=base.opt, threads=base.threads, trace=True)
    images = build_chip(description, options, progress=progress).images
    size = description.target.schedule.n_inflight
    # a whole chunk has a program of its own for the last tokens of a prompt
    prompts = [
        RtlPrompt(tokens=tuple(tokens), n_new=n_new),
        RtlPrompt(tokens=tuple(tokens[:size]), n_new=0),
    ]
    programs = {name for prompt in prompts for name in _executed(prompt, size)}
    faults = choose_faults(
        description, count=count, seed=seed, kinds=kinds, programs=sorted(programs)
    )
    _check_equal(description, prompts, options)
    limit = _SLACK * CycleModel(description).prefill(tokens).cycles
    stimuli = GainStimuli(description, tokens)
    outcomes = []
    for number, fault in enumerate(faults):
        if progress is not None:
            progress("injecting faults", number / len(faults))
        found = _injected(description, prompts, fault, images, options, limit)
        stimulus = None if found is None else "prompt"
        chip = None
        if found is None and fault.gain is not None:
            chip = stimuli.chip_for(*fault.gain)
        if chip is not None:
            once = [RtlPrompt(tokens=tuple(tokens))]
            _check_equal(chip, once, options)
            found = _injected(chip, once, fault, build_chip(chip, options).images, options, limit)
            stimulus = None if found is None else "epsilon"
        outcomes.append(FaultOutcome(fault=fault, found=found, stimulus=stimulus))
    if progress is not None:
        progress("injecting faults", 1.0)
    return FaultReport(
        name=description.name,
        seed=seed,
        tokens=tuple(tokens),
        n_new=n_new,
        outcomes=tuple(outcomes),
    )


def _check_equal(
    description: Description, prompts: Sequence[RtlPrompt], options: BuildOptions
) -> None:
    difference = _difference(description, prompts, options=options)
    if difference is not None:
        raise SpecError(
            f"RTL of {description.name!r} must equal its cycle model before faults are "
            f"injected, not differ in {difference}"
        )


def _injected(
    description: Description,
    prompts: Sequence[RtlPrompt],
    fault: Fault,
    images: Path,
    options: BuildOptions,
    limit: int,
) -> str | None:
    """Give the first difference that a fault makes."""
    with tempfile.TemporaryDirectory() as name:
        write_faulty(images, fault, Path(name))
        return _difference(description, prompts, options=options, images=Path(name), limit=limit)


def _executed(prompt: RtlPrompt, size: int) -> Iterator[str]:
    """Name the programs of a prompt in chunks of ``size``, and of decoding."""
    left = len(prompt.tokens)
    while left > 0:
        n = size if left >= size else 1
        left -= n
        if n == 1:
            yield "prefill_1" if left else "decode"
        else:
            yield "prefill_n" if left else "prefill_n_head"
    if prompt.n_new:
        yield "decode"


def _difference(
    description: Description,
    prompts: Sequence[RtlPrompt],
    *,
    options: BuildOptions,
    **simulation: Any,
) -> str | None:
    """Give the first difference between RTL and cycle model; None if there is none."""
    try:
        report = compare_rtl_prompts(description, prompts, options=options, **simulation)
    except ToolError as error:
        return str(error)  # it hangs
    return None if report.first is None else report.first.sentence()
