"""A chip with some of its instructions, or with other fields in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from romsim_compiler.description import Description
from romsim_compiler.gains import GainVector
from romsim_compiler.program import UNITS, Instruction, Program
from romsim_compiler.schedule import minimal_waits

__all__ = ["ReducedDescription", "distinct_layers", "one_layer", "with_gain"]


@dataclass(frozen=True)
class ReducedDescription(Description):
    """A description whose programs keep some of the instructions; all else is the whole chip's.

    Parameters
    ----------
    full
        The whole.
    keep
        Whether an instruction stays.
    is_serial
        Whether every instruction waits for all units, so that it is alone on the chip.
    gain
        A norm whose scalars, which stand in its instructions, take the place of the whole's; its
        gains, which are in the ROM, must be those of the whole.
    """

    full: Description
    keep: Callable[[Instruction], bool]
    is_serial: bool = False
    gain: GainVector | None = None

    @cached_property
    def gains(self) -> dict[str, GainVector]:
        """Norm gains by name, with the scalars that were given."""
        gain = self.gain
        return self.full.gains | ({} if gain is None else {gain.name: gain})

    @property
    def whole(self) -> Description:
        """The chip with all its instructions."""
        return self.full

    @cached_property
    def decode(self) -> Program:
        """The program of one decoded token."""
        return self._reduced(self.full.decode)

    def prefill(self, n_tokens: int, with_head: bool) -> Program:
        """Return the program of ``n_tokens`` interleaved prompt tokens."""
        return self._reduced(self.full.prefill(n_tokens, with_head))

    def _reduced(self, program: Program) -> Program:
        kept = tuple(minimal_waits(self._with_all_waits(program)))
        if self.is_serial:
            kept = tuple(
                replace(i, wait=tuple(unit for unit in UNITS if unit != i.unit)) for i in kept
            )
        return replace(program, instructions=kept)

    def _with_all_waits(self, program: Program) -> list[Instruction]:
        """Return what stays, waiting for all units that it depends on.

        In the whole, an instruction may have no wait since one that is dropped here, of another
        layer's token, has stood between.
        """
        waits = {_place(i): i.wait for i in self.full.decode.instructions}
        kept = [i for i in program.instructions if self.keep(i)]
        return [replace(i, wait=waits[_place(i)]) for i in kept]


def _place(instruction: Instruction) -> tuple[str, int, str]:
    return instruction.op, instruction.layer, instruction.operand


def one_layer(
    description: Description, layer: int, *, is_serial: bool = False
) -> ReducedDescription:
    """Return a chip that runs one layer between the embedding and the LM head.

    Dependencies stay: what an instruction waits for is either of its own layer or of the
    embedding, or is not there.
    """
    return ReducedDescription(
        path=description.path,
        manifest=description.manifest,
        full=description,
        keep=lambda instruction: instruction.layer in (-1, layer),
        is_serial=is_serial,
    )


def with_gain(description: Description, gain: GainVector) -> ReducedDescription:
    """Return a chip with all its instructions and other scalars of one norm."""
    return ReducedDescription(
        path=description.path,
        manifest=description.manifest,
        full=description,
        keep=lambda instruction: True,
        gain=gain,
    )


def distinct_layers(description: Description) -> list[int]:
    """Return the first layer of each shape: its matrices' formats and places, and its adapters."""
    seen: dict[Any, int] = {}
    for layer in range(description.spec.n_layers):
        groups = [
            (
                group.mapping,
                (group.code_bits, group.kind, group.offset, group.group, group.has_minimum),
                tuple((operator, first, n) for _, operator, first, n in group.members),
            )
            for group in description.groups.values()
            if group.layer == layer
        ]
        adapted = [
            (name, sorted(image.ranks for key, image in lora.groups.items() if _of(key) == layer))
            for name, lora in sorted(description.loras.items())
        ]
        seen.setdefault(repr((groups, adapted)), layer)
    return sorted(seen.values())


def _of(name: str) -> int:
    """Return the layer of a group's name, such as ``L3.qkv``."""
    return int(name.partition(".")[0].removeprefix("L"))
