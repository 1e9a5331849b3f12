"""The RTL's side of a verification: which chips and programs run, and what none of them covers."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.rtl_parts import build_seconds, full_width_tile, scaled_chip, sizes, whole_cost
from romsim.verification import RtlPart, Waves
from romsim.verify_rtl import compare_rtl
from romsim.verify_rtl_sequences import ACTIONS, compare_sequences, page_order
from romsim_compiler.formats import parse_format
from romsim_compiler.pipeline import CompileOptions, compile_model
from romsim_compiler.reduced import distinct_layers, one_layer
from romsim_models.errors import RomsimError, SpecError
from romsim_rtl.driver_build import BuildOptions, write_chip
from romsim_rtl.driver_prerequisites import check_tools, has_zlib
from romsim_rtl.toolchain import ToolError

if TYPE_CHECKING:
    from romsim.verification import Progress
    from romsim_compiler.description import Description
    from romsim_compiler.target import Target
    from romsim_models.checkpoint import Checkpoint
    from romsim_models.lora import LoraAdapter

__all__ = ["SRAM_SEED", "RtlSide"]

SRAM_SEED = 1
"""The RTL's memories hold random bits of this seed before the first program."""

_SMALL = 512  # lanes up to which a quick build outweighs a quick run


class RtlSide:
    """Comparisons of RTL and cycle model for one description.

    Parameters
    ----------
    description
        The compiled chip.
    max_lanes
        Lanes above which it is run by parts; ``None`` takes the table's.
    """

    def __init__(self, description: Description, *, max_lanes: int | None = None) -> None:
        self._description = description
        self._cost = whole_cost(description, max_lanes=max_lanes)

    def obstacle(self) -> RomsimError | None:
        """Return why nothing can be run: a missing tool, or no hardware for the description.

        Raises
        ------
        ToolError
            If the chip should be writable and is not.
        """
        try:
            check_tools()
        except ToolError as error:
            return error
        try:
            if self._cost.fits:
                write_chip(self._description)
        except SpecError as error:
            return error
        return None

    def run(
        self,
        checkpoint: Checkpoint,
        prompt: Sequence[int],
        *,
        n_new: int,
        level: str,
        adapter: str | None,
        loras: Mapping[str, LoraAdapter],
        waves: Waves | None,
        options: BuildOptions | None,
        say: Progress,
    ) -> dict[str, Any]:
        """Compare at a level.

        Returns
        -------
        dict
            ``rtl``, ``notes``, ``not_covered`` and ``whole`` of a `Verification`.

        Raises
        ------
        SpecError
            If no part of a large chip has RTL, or the waveform would be empty.
        ToolError
            If a build or a simulation fails.
        """
        notes: list[str] = []
        if waves is not None and waves.form == "fst" and not has_zlib():
            notes.append(
                "waves are VCD and not FST, which needs zlib's header; apt-get install zlib1g-dev"
            )
            waves = Waves(form="vcd", first=waves.first, last=waves.last, folder=waves.folder)
        one = _Pieces(list(prompt), n_new, waves, options, say)
        if self._cost.fits:
            parts = one.run(self._description, level, "", adapter)
            return {"rtl": parts, "notes": tuple(notes)}
        notes.append(self._cost.sentence())
        parts, missing = self._by_parts(one, checkpoint, level, adapter, loras)
        return {
            "rtl": parts,
            "notes": tuple(notes),
            "not_covered": tuple(missing),
            "whole": self._cost,
        }

    def _by_parts(
        self,
        one: _Pieces,
        checkpoint: Checkpoint,
        level: str,
        adapter: str | None,
        loras: Mapping[str, LoraAdapter],
    ) -> tuple[tuple[RtlPart, ...], list[str]]:
        """Run smaller chips with the same model: a tile at full width, and a scaled target."""
        description = self._description
        target = description.target
        missing = [
            f"the {target.array.n_tiles} tiles of {target.name} side by side: where its rows and "
            f"tokens stand, and the cycles that follow from the number of tiles"
        ]
        if adapter is not None and adapter not in loras:
            missing.append(f"adapter {adapter} in RTL: give its folder with --lora")
            adapter = None
        parts: list[RtlPart] = []
        smaller: list[tuple[str, str, Target]] = []
        if level != "layer":
            tile = full_width_tile(description, self._cost.max_lanes)
            smaller.append(("full-width tile", "unit", tile))
        if level != "unit":
            scaled = scaled_chip(description, self._cost.max_lanes)
            smaller.append(("scaled target", level, scaled))
        missing += _narrower(target, [chip for _, _, chip in smaller])
        for name, inner, chip in smaller:
            try:
                parts += self._smaller(one, checkpoint, name, inner, chip, adapter, loras)
            except SpecError as error:
                missing.append(f"{name}: {error}")
        if not parts:
            raise SpecError(
                f"A part of {target.name!r} must be one that the RTL has hardware for, "
                f"not none; {missing[-1]}"
            )
        return tuple(parts), missing

    def _smaller(
        self,
        one: _Pieces,
        checkpoint: Checkpoint,
        name: str,
        level: str,
        target: Target,
        adapter: str | None,
        loras: Mapping[str, LoraAdapter],
    ) -> tuple[RtlPart, ...]:
        choices: Mapping[str, str] = self._description.manifest["model"]["choices"]
        with tempfile.TemporaryDirectory() as folder:
            built = compile_model(
                checkpoint,
                target,
                Path(folder, "chip"),
                options=CompileOptions(
                    context=min(one.n_tokens, self._description.context),
                    rules=tuple((tensor, parse_format(fmt)) for tensor, fmt in choices.items()),
                    adapters=() if adapter is None else ((adapter, loras[adapter]),),
                    force_ternary_adapter=adapter is not None and target.lora.path == "adders",
                ),
                progress=lambda _, fraction: one.say(f"{name}: compiling the model", fraction),
            )
            write_chip(built)
            return one.run(built, level, f"{name}, ", adapter)


class _Pieces:
    """Runs a chip at a level, a piece after the other."""

    def __init__(
        self,
        prompt: list[int],
        n_new: int,
        waves: Waves | None,
        options: BuildOptions | None,
        say: Progress,
    ) -> None:
        self._prompt, self._n_new, self._waves = prompt, n_new, waves
        self._options, self.say = options, say

    @property
    def n_tokens(self) -> int:
        """Tokens of the run."""
        return len(self._prompt) + self._n_new

    def run(
        self, chip: Description, level: str, prefix: str, adapter: str | None
    ) -> tuple[RtlPart, ...]:
        """Compare the pieces of a level.

        Level ``unit`` issues the instructions of a layer one by one, each alone on the chip, for
        random tokens; level ``layer`` runs a layer as it is scheduled. Both take the first layer
        of each shape, between the embedding and the LM head. Where several sequences share pages,
        level ``chip`` lets some start, fork and end, too.
        """
        prompt = self._prompt
        pieces = [("whole chip", chip)]
        if level == "layer":
            pieces = [(f"layer {k}", one_layer(chip, k)) for k in distinct_layers(chip)]
        elif level == "unit":
            pieces = [
                (f"instructions of layer {k} one by one", one_layer(chip, k, is_serial=True))
                for k in distinct_layers(chip)
            ]
            rng = np.random.default_rng(0)
            prompt = [int(token) for token in rng.integers(chip.spec.vocab_size, size=len(prompt))]
        parts = [self._compare(f"{prefix}{name}", piece, prompt, adapter) for name, piece in pieces]
        target = chip.target
        if level == "chip" and target.schedule.n_slots > 1 and target.kv.layout == "paged":
            parts.append(self._fork(f"{prefix}sequences that fork", chip))
        return tuple(parts)

    def _fork(self, name: str, chip: Description) -> RtlPart:
        """Let sequences start, fork, step and end in an order drawn with a seed."""
        draw = random.Random(0)
        drawn = [(draw.choice(ACTIONS), draw.randrange(1 << 16)) for _ in range(2 * self._n_new)]
        report = compare_sequences(
            chip,
            [("step", 7), ("fork", 0), ("step", 11), ("step", 12), *drawn],
            options=self._chosen(chip),
            sram_seed=SRAM_SEED,
            page_order=page_order(chip, 0),
            progress=self._saying(name, chip),
        )
        return RtlPart(name=name, chip=sizes(chip.target).text, report=report)

    def _chosen(self, chip: Description) -> BuildOptions:
        opt = "-O0" if sizes(chip.target).lanes <= _SMALL else "-O3"
        return self._options or BuildOptions(opt=opt)

    def _saying(self, name: str, chip: Description) -> Progress:
        cost = f"compiling, about {build_seconds(chip.target) / 60:.0f} min of one processor"
        return lambda stage, fraction: self.say(
            f"{name}: {cost if stage == 'compiling' else stage}", fraction
        )

    def _compare(
        self, name: str, chip: Description, prompt: Sequence[int], adapter: str | None
    ) -> RtlPart:
        options = self._chosen(chip)
        final = aside = None
        waves = self._waves
        if waves is not None:
            options = replace(options, waves=waves.form)
            waves.folder.mkdir(parents=True, exist_ok=True)
            stem = name.replace(", ", "-").replace(" ", "-")
            final = waves.folder / f"{stem}.{waves.form}"
            aside = waves.folder / f".{stem}.{os.getpid()}.partial"
        try:
            report = compare_rtl(
                chip,
                prompt,
                n_new=self._n_new,
                adapter=adapter,
                options=options,
                sram_seed=SRAM_SEED,
                waves=None
                if waves is None or aside is None
                else (aside, waves.first, waves.last + 1),
                progress=self._saying(name, chip),
            )
            if waves is not None and aside is not None and final is not None:
                if waves.first >= report.n_cycles:
                    raise SpecError(
                        f"Waves must begin before cycle {report.n_cycles}, at which {name} ends, "
                        f"not at {waves.first}; give a smaller --from"
                    )
                aside.replace(final)
        finally:
            if aside is not None:
                aside.unlink(missing_ok=True)
        return RtlPart(name=name, chip=sizes(chip.target).text, report=report, waves=final)


def _narrower(target: Target, chips: Sequence[Target]) -> list[str]:
    """Say what of a tile and of the vector unit no smaller chip has."""
    missing = []
    for what, whole, part in (
        ("cells of a tile", target.array.n_cells, max(c.array.n_cells for c in chips)),
        ("lanes of the vector unit", target.vector.n_lanes, max(c.vector.n_lanes for c in chips)),
    ):
        if part < whole:
            missing.append(f"{whole - part} of the {whole} {what}")
    return missing
