"""Reading what a traced simulation wrote: every SRAM write, every issue, every unit's state."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from romsim_rtl.toolchain import ToolError

__all__ = ["Issue", "Memory", "ProgramTrace", "TraceReader", "Writes"]

_UNITS = "VLH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """An SRAM of the chip.

    Parameters
    ----------
    name
        Its place in the hierarchy, from the top module's instances on.
    n_lanes, lane_bits
        Lanes of a word, and bits of a lane.
    """

    name: str
    n_lanes: int
    lane_bits: int

    @property
    def mask_words(self) -> int:
        """Words of 32 bits of a write's mask."""
        return -(-self.n_lanes // 32)

    @property
    def data_words(self) -> int:
        """Words of 32 bits of a write's data."""
        return -(-self.n_lanes * self.lane_bits // 32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Writes:
    """Writes into one memory, in order of time.

    Parameters
    ----------
    memory
        Where.
    cycles
        int64 [n]: the cycle at whose end the word is written, from the program's first possible
        issue.
    addresses
        int64 [n].
    masks
        bool [n, n_lanes].
    bits
        uint8 [n, n_lanes, lane_bits], least significant first.
    """

    memory: Memory
    cycles: NDArray[np.int64]
    addresses: NDArray[np.int64]
    masks: NDArray[np.bool_]
    bits: NDArray[np.uint8]

    def field(self, first: int, width: int, *, is_signed: bool = False) -> NDArray[np.int64]:
        """Return ``width`` bits of every lane as numbers, int64 [n, n_lanes]."""
        part = self.bits[:, :, first : first + width].astype(np.int64)
        value = part @ (np.int64(1) << np.arange(width, dtype=np.int64))
        if is_signed and width < 64:
            value -= part[:, :, -1] << width
        return np.asarray(value, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """An instruction's issue, and the cycle from which its unit is idle again."""

    unit: str
    issue: int
    idle: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramTrace:
    """What happened in one program.

    Parameters
    ----------
    begin
        Cycle of the simulation in which its first instruction may issue.
    issues
        In order.
    writes
        By the memory's name.
    """

    begin: int
    issues: tuple[Issue, ...]
    writes: dict[str, Writes]


class TraceReader:
    """Reads a trace file piece by piece while the simulation writes it.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0  # bytes read
        self._memories: list[Memory] = []

    def read(self) -> list[ProgramTrace]:
        """Read the records of the programs that have ended since the last call.

        Raises
        ------
        ToolError
            If the file does not hold whole records.
        """
        with self._path.open("rb") as file:
            file.seek(self._at)
            raw = np.frombuffer(file.read(), dtype="<u4")
        self._at += 4 * len(raw)
        programs: list[_Records] = []
        at = 0
        while at < len(raw):
            kind = int(raw[at])
            if kind == 1:
                at = self._take_memory(raw, at)
            elif kind == 4:
                programs.append(_Records(begin=_wide(raw, at + 1)))
                at += 3
            elif kind == 2:
                number = int(raw[at + 1])
                if programs:  # before the first one, adapters are loaded
                    programs[-1].places.setdefault(number, []).append(at)
                memory = self._memories[number]
                at += 5 + memory.mask_words + memory.data_words
            elif kind == 3:
                event = (_wide(raw, at + 1), int(raw[at + 3]), int(raw[at + 4]))
                if programs:
                    programs[-1].events.append(event)
                at += 5
            else:
                raise self._broken(at)
        if at != len(raw):
            raise self._broken(at)
        result = []
        for records in programs:
            writes = {}
            for number, where in records.places.items():
                memory = self._memories[number]
                writes[memory.name] = _gather(memory, raw, np.array(where), records.begin)
            issues = _issues(records.events, records.begin)
            result.append(ProgramTrace(begin=records.begin, issues=issues, writes=writes))
        return result

    def _take_memory(self, raw: NDArray[np.uint32], at: int) -> int:
        lanes, bits, size = map(int, raw[at + 3 : at + 6])
        n_words = -(-size // 4)
        name = raw[at + 6 : at + 6 + n_words].tobytes()[:size].decode()
        name = name.removeprefix("TOP.romsim_top.").removesuffix(".macro")
        self._memories.append(Memory(name=name, n_lanes=lanes, lane_bits=bits))
        return at + 6 + n_words

    def _broken(self, at: int) -> ToolError:
        return ToolError(
            f"Trace {self._path.name!r} must hold whole records, not end or change after {at} words"
        )


@dataclass(slots=True, kw_only=True)
class _Records:
    begin: int
    places: dict[int, list[int]] = field(default_factory=dict)
    events: list[tuple[int, int, int]] = field(default_factory=list)


def _wide(raw: NDArray[np.uint32], at: int) -> int:
    return int(raw[at]) | int(raw[at + 1]) << 32


def _gather(
    memory: Memory, raw: NDArray[np.uint32], where: NDArray[np.int64], begin: int
) -> Writes:
    low, high = raw[where + 2].astype(np.int64), raw[where + 3].astype(np.int64)

    def bits(first: int, n_words: int, n_bits: int) -> NDArray[np.uint8]:
        words = raw[where[:, None] + first + np.arange(n_words)]
        return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :n_bits]

    masks = bits(5, memory.mask_words, memory.n_lanes).astype(bool)
    data = bits(5 + memory.mask_words, memory.data_words, memory.n_lanes * memory.lane_bits)
    return Writes(
        memory=memory,
        cycles=(low | high << 32) - begin,
        addresses=raw[where + 4].astype(np.int64),
        masks=masks,
        bits=data.reshape(len(where), memory.n_lanes, memory.lane_bits),
    )


def _issues(events: list[tuple[int, int, int]], begin: int) -> tuple[Issue, ...]:
    """Pair each issue with the first cycle in which the unit is not busy any more."""
    issues: list[tuple[str, int]] = []
    idle: dict[int, int] = {}
    running: dict[int, int] = {}  # unit: number of its current instruction
    for cycle, start, busy in events:
        for unit, number in list(running.items()):
            if not busy >> unit & 1 and cycle > issues[number][1]:
                idle[number] = cycle
                del running[unit]
        for unit in range(3):
            if start >> unit & 1:
                running[unit] = len(issues)
                issues.append((_UNITS[unit], cycle))
    return tuple(
        Issue(unit=unit, issue=cycle - begin, idle=idle.get(number, -1) - begin)
        for number, (unit, cycle) in enumerate(issues)
    )
