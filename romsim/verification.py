"""Verification of a description: RTL = cycle model = integer reference, at a level or by parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from romsim.comparison import ValueReport, compare_values
from romsim.engines import open_adapters, open_source, require_images
from romsim.simulate import check_length, prompt_tokens
from romsim_compiler.description import Description
from romsim_models.errors import RomsimError, SpecError

if TYPE_CHECKING:
    from romsim.rtl_parts import WholeCost
    from romsim.rtl_report import RtlReport
    from romsim_models.checkpoint import Checkpoint
    from romsim_models.lora import LoraAdapter
    from romsim_rtl.driver_build import BuildOptions

__all__ = [
    "LEVELS",
    "RtlPart",
    "Verification",
    "Waves",
    "check_request",
    "verify",
    "verify_description",
]

LEVELS = ("values", "unit", "layer", "chip")
"""``values`` needs no RTL: the cycle model against the integer reference alone."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """Waveforms that are asked for.

    Parameters
    ----------
    form
        ``fst`` or ``vcd``.
    first, last
        Cycles of the simulation, both included.
    folder
        Where the files go, one for each part.
    """

    form: str
    first: int
    last: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RtlPart:
    """A comparison of RTL and cycle model.

    Parameters
    ----------
    name
        What ran: the whole chip, a layer, instructions one by one; of the chip or a smaller one.
    chip
        Sizes of the chip that ran.
    report
        The outcome.
    waves
        The waveform that was written, or ``None``.
    """

    name: str
    chip: str
    report: RtlReport
    waves: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the part as JSON-ready values; paths as they were given."""
        return {
            "name": self.name,
            "chip": self.chip,
            "waves": None if self.waves is None else str(self.waves),
            **self.report.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Outcome of ``romsim verify``.

    Parameters
    ----------
    level
        What was run, one of `LEVELS`.
    reference
        The cycle model against the integer reference: the whole model, every value.
    rtl
        The RTL against the cycle model, part by part.
    notes
        What was done otherwise than asked, and why.
    not_covered
        What no part compared.
    whole
        What a chip that is too large would cost; ``None`` for one that was simulated.
    """

    level: str
    reference: ValueReport
    rtl: tuple[RtlPart, ...] = ()
    notes: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    whole: WholeCost | None = None

    @property
    def passed(self) -> bool:
        """Whether every part compared something and nothing differed."""
        enough = self.level == "values" or bool(self.rtl)
        return enough and self.reference.passed and all(part.report.passed for part in self.rtl)

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready values."""
        return {
            "level": self.level,
            "passed": self.passed,
            "n_mismatches": self.reference.n_mismatches
            + sum(part.report.n_mismatches for part in self.rtl),
            "reference": self.reference.to_json(),
            "rtl": [part.to_json() for part in self.rtl],
            "notes": list(self.notes),
            "not_covered": list(self.not_covered),
            "whole": None if self.whole is None else self.whole.to_json(),
        }


def check_request(
    n_new: int, level: str | None, waves: Waves | None, max_lanes: int | None = None
) -> None:
    """Refuse what cannot be verified, before anything is read.

    Raises
    ------
    SpecError
        If no token is to be decoded, or the level, the waves or the lanes are impossible.
    """
    if n_new < 1:
        raise SpecError(f"Tokens to decode must be at least 1, not {n_new!r}")
    if level is not None and level not in LEVELS:
        raise SpecError(f"Level must be one of {', '.join(LEVELS)}, not {level!r}")
    if max_lanes is not None and max_lanes < 1:
        raise SpecError(f"Lanes of a chip that is simulated must be at least 1, not {max_lanes!r}")
    if waves is None:
        return
    if level == "values":
        raise SpecError(
            "Waves must be asked of RTL, with level unit, layer or chip, not with 'values'"
        )
    if waves.form not in ("fst", "vcd"):
        raise SpecError(f"Waves must be one of fst, vcd, not {waves.form!r}")
    if not 0 <= waves.first <= waves.last:
        raise SpecError(
            f"Waves must be from a cycle of at least 0 to one not before it, "
            f"not from {waves.first} to {waves.last}"
        )


def verify(
    description: str | Path | Description,
    *,
    model: str | None = None,
    prompt: str | None = None,
    chat: str | None = None,
    tokens: Sequence[int] | None = None,
    n_new: int = 8,
    level: str | None = None,
    adapter: str | None = None,
    loras: Mapping[str, str | Path] | None = None,
    waves: Waves | None = None,
    options: BuildOptions | None = None,
    max_lanes: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Verification:
    """Compare RTL, cycle model and integer reference on a prompt and decoded tokens.

    Parameters
    ----------
    prompt, chat, tokens
        At most one of them: a text, a user's message or token ids; a fixed text if none is given.
    n_new
        Tokens to decode; each is fed back, so that its own values are compared too.
    level
        ``chip``: whole programs; ``layer``: one layer of each shape; ``unit``: their instructions
        one by one; ``values``: no RTL. ``None`` is ``chip``, or ``values`` with a note where there
        is no RTL for the description or a tool is missing.
    adapter
        Resident adapter to run with.
    loras
        Name to PEFT folder of that adapter, which the reference reads.
    waves
        Waveforms to write on the way.
    options
        How the RTL is compiled.
    max_lanes
        Lanes above which a chip is verified by parts.
    progress
        Called with a stage and the finished fraction.

    Raises
    ------
    RomsimError
        If a machine cannot run the description, or the run would pass the context.
    """
    from romsim.api import DEFAULT_PROMPT, load

    check_request(n_new, level, waves, max_lanes)
    loaded = description if isinstance(description, Description) else load(description)
    require_images(loaded, "Comparison of values")
    if prompt is None and chat is None and tokens is None:
        prompt = DEFAULT_PROMPT
    ids = prompt_tokens(loaded, prompt=prompt, chat=chat, tokens=tokens)
    check_length(loaded, len(ids), n_new, feeds_last=True)
    opened = open_adapters(loaded, adapter, loras)
    checkpoint = open_source(loaded, model)
    return verify_description(
        loaded,
        checkpoint,
        ids,
        n_new=n_new,
        level=level,
        adapter=adapter,
        loras=opened,
        waves=waves,
        options=options,
        max_lanes=max_lanes,
        progress=progress,
    )


def verify_description(
    description: Description,
    checkpoint: Checkpoint,
    prompt: Sequence[int],
    *,
    n_new: int,
    level: str | None = None,
    adapter: str | None = None,
    loras: Mapping[str, LoraAdapter] | None = None,
    waves: Waves | None = None,
    options: BuildOptions | None = None,
    max_lanes: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Run a prompt and decoded tokens on all machines, and compare.

    Parameters
    ----------
    level
        One of `LEVELS`; ``None`` for ``chip``, or for ``values``, with a note, where there is no
        RTL for the description or a tool is missing. `check_request` refuses others.
    adapter, loras
        Resident adapter to run with, and the float adapters for the reference.
    waves
        Waveforms to write on the way.
    options
        How the RTL is compiled; ``None`` chooses by its size.
    max_lanes
        Lanes above which a chip is verified by parts; ``None`` takes the limit of the table.

    Raises
    ------
    SpecError
        If a given level needs RTL that there is not.
    ToolError
        If a tool that a given level needs is missing, or a build fails.
    """
    say = progress or (lambda stage, fraction: None)
    reference = compare_values(
        description,
        checkpoint,
        prompt,
        n_new=n_new,
        adapter=adapter,
        loras=loras,
        progress=lambda done, total: say("cycle model and reference", done / total),
    )
    if level == "values":
        return Verification(level=level, reference=reference)
    side, obstacle = _rtl_side(description, max_lanes)
    if obstacle is not None:
        if level is not None or waves is not None:
            raise obstacle
        return Verification(level="values", reference=reference, notes=(f"no RTL: {obstacle}",))
    done = side.run(
        checkpoint,
        prompt,
        n_new=n_new,
        level=level or "chip",
        adapter=adapter,
        loras=loras or {},
        waves=waves,
        options=options,
        say=say,
    )
    return Verification(level=level or "chip", reference=reference, **done)


def _rtl_side(description: Description, max_lanes: int | None) -> tuple[Any, RomsimError | None]:
    """Return what runs the RTL, and why it cannot."""
    try:
        from romsim.verification_rtl import RtlSide
    except ModuleNotFoundError as error:
        return None, SpecError(
            f"RTL must have the Python package {error.name!r}, not be without it; "
            f"pip install 'romsim[rtl]'"
        )
    side = RtlSide(description, max_lanes=max_lanes)
    return side, side.obstacle()
