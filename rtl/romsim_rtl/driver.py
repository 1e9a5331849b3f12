"""Running the Verilated chip from Python, a program at a time."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, SpecError
from romsim_rtl.adapter_images import adapter_bases, configuration_writes
from romsim_rtl.adder_images import adder_writes
from romsim_rtl.die import Die
from romsim_rtl.driver_build import BuildOptions, ChipBuild, Progress, build_chip
from romsim_rtl.driver_pages import block_table
from romsim_rtl.rom_files import PROGRAMS
from romsim_rtl.toolchain import ToolError

__all__ = ["ProgramResult", "RtlRun", "adapter_words"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramResult:
    """An executed program.

    Parameters
    ----------
    token
        The lowest token among those with the largest logit; of the last program with a head.
    cycles
        From the first issue until the next program may begin.
    clipped
        Values clipped to 32 bits.
    issued
        Instructions.
    logits
        int32 [vocab_size], or [0] where the program has no head.
    """

    token: int
    cycles: int
    clipped: int
    issued: int
    logits: NDArray[np.int32]


def adapter_words(description: Description, die: Die | None = None) -> NDArray[np.uint32]:
    """Return what loads all resident adapters, uint32 [n, 5]: a cycle of ``cfg_*`` each.

    Kind and tile (from bit 8), address, chunk, lower and upper half of the data.
    """
    die = die or Die.of(description)
    if die.l_side.adders is not None:
        writes = adder_writes(description, die.l_side.adders)
    else:
        assert die.lora is not None
        writes = configuration_writes(description, die.attention, die.lora)
    return np.array(
        [
            (w.kind | w.tile << 8, w.address, w.chunk, w.data & 0xFFFFFFFF, w.data >> 32)
            for w in writes
        ],
        dtype="<u4",
    )


class RtlRun:
    """A chip in simulation, from reset; a context manager.

    Parameters
    ----------
    description
        The compiled chip.
    options
        How it is compiled.
    die
        What it is built for, if not for the description alone.
    trace
        File for every SRAM write and issue; needs ``options.trace``.
    waves
        File for a waveform, with the first cycle and the one after the last; needs
        ``options.waves``.
    sram_seed
        Fill memories and registers with random contents of this seed, which needs
        ``options.trace``; 0 without.
    page_order
        Physical pages in the order in which a sequence takes them, where its KV cache has a block
        table; ascending if ``None``.
    images
        Folder of ROM images to read in place of the description's own: faults, for a test.
    limit
        Cycles after which a program is taken to hang.
    progress
        Called while the chip is built.

    Raises
    ------
    SpecError
        If the description has no images, the RTL has no hardware for it, a file is asked for that
        the build cannot write, or the order of pages is no permutation of those that there are.
    ToolError
        If the build fails or the simulation ends before its time.
    """

    def __init__(
        self,
        description: Description,
        *,
        options: BuildOptions | None = None,
        die: Die | None = None,
        trace: Path | None = None,
        waves: tuple[Path, int, int] | None = None,
        sram_seed: int | None = None,
        page_order: Sequence[int] | None = None,
        images: Path | None = None,
        limit: int = 1 << 40,
        progress: Progress | None = None,
    ) -> None:
        options = options or BuildOptions()
        for name, wanted, option, remedy in (
            ("trace", trace, "trace", "True"),
            ("waves", waves, "waves", "'fst'"),
            ("sram_seed", sram_seed, "trace", "True"),
        ):
            if wanted is not None and not getattr(options, option):
                raise SpecError(
                    f"{name} must be asked of a build that has it, not of one with "
                    f"{option}={getattr(options, option)}; set BuildOptions({option}={remedy})"
                )
        table = block_table(description, page_order)
        self.description, self.die = description, die
        self.build: ChipBuild = build_chip(description, options, die=die, progress=progress)
        arguments = [f"+romdir={images or self.build.images}", "+rombin", "--limit", str(limit)]
        if trace is not None:
            arguments += ["--trace", str(trace)]
        if waves is not None:
            file, first, last = waves
            arguments += ["--waves", str(file), "--from", str(first), "--to", str(last)]
        if sram_seed is not None:
            arguments += ["--sram-seed", str(sram_seed)]
        self.sequence = 0
        """Sequence of the programs that follow; see `use_sequence`."""
        self._positions = [0] * description.target.schedule.n_slots
        self._process = subprocess.Popen(
            [str(self.build.executable), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if self._line() != ["ready"]:
            raise self._died()
        self._bases = adapter_bases(description)
        if self._bases:
            self._load_adapters()
        if table:
            self._send("pages " + " ".join(f"{page} {number}" for page, number in table))
        self._entry_bits = (max(1, len(table) - 1)).bit_length()
        if len(self._positions) > 1:
            self.use_sequence(0)  # with random memories the host's signals begin with anything

    def __enter__(self) -> RtlRun:
        """Give the run itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the simulation."""
        self.close()

    @property
    def position(self) -> int:
        """Tokens that the sequence has."""
        return self._positions[self.sequence]

    @property
    def process_id(self) -> int:
        """The simulation's process."""
        return self._process.pid

    def run(self, program: str, tokens: Sequence[int], *, begin: bool = False) -> ProgramResult:
        """Execute a program.

        Parameters
        ----------
        program
            One of `romsim_rtl.rom_files.PROGRAMS`.
        tokens
            As many as it takes.
        begin
            Begin a sequence at position 0.

        Raises
        ------
        SpecError
            If there is no such program, or a token does not exist.
        CapacityError
            If the KV cache has no room for the tokens.
        ToolError
            If the simulation ends.
        """
        if program not in PROGRAMS:
            raise SpecError(f"Program must be one of {', '.join(PROGRAMS)}, not {program!r}")
        wanted = self.description.target.schedule.n_inflight if "_n" in program else 1
        if len(tokens) != wanted:
            raise SpecError(f"Program {program!r} must be given {wanted} tokens, not {len(tokens)}")
        vocab = self.description.spec.vocab_size
        for token in tokens:
            if not 0 <= token < vocab:
                raise SpecError(f"Token must be 0 to {vocab - 1}, not {token!r}")
        position = 0 if begin else self.position
        context = self.description.context
        if position + len(tokens) > context:
            raise CapacityError(
                f"Sequence must fit the KV cache of {context} tokens, not {len(tokens)} more than "
                f"the {position} that are in it; begin a new one or compile with a larger context"
            )
        words = [PROGRAMS.index(program), int(begin), *tokens]
        self._send("run " + " ".join(map(str, words)))
        result = self._result()
        self._positions[self.sequence] = position + len(tokens)
        return result

    def prefill(self, tokens: Sequence[int], *, begin: bool = False) -> list[ProgramResult]:
        """Execute a prompt: chunks of ``n_inflight`` interleaved tokens, then single ones.

        The last program has the head.

        Raises
        ------
        SpecError
            If there is no token.
        """
        if not tokens:
            raise SpecError("Prompt must have at least 1 token, not 0")
        size = self.description.target.schedule.n_inflight
        results = []
        first = 0
        while first < len(tokens):
            n = size if len(tokens) - first >= size else 1
            is_last = first + n == len(tokens)
            if n == 1:
                program = "decode" if is_last else "prefill_1"
            else:
                program = "prefill_n_head" if is_last else "prefill_n"
            part = tokens[first : first + n]
            results.append(self.run(program, part, begin=begin and first == 0))
            first += n
        return results

    def step(self, token: int) -> ProgramResult:
        """Execute ``decode`` for one token."""
        return self.run("decode", [token])

    def use_adapter(self, name: str | None) -> None:
        """Choose a resident adapter for the programs that follow, or none.

        Raises
        ------
        SpecError
            If there is none of that name.
        """
        if name is None:
            self._send("adapter")
            return
        if name not in self._bases:
            listed = ", ".join(sorted(self._bases)) or "none"
            raise SpecError(f"Adapter must be a resident one: {listed}; not {name!r}")
        self._send(f"adapter {self._bases[name]}")

    def use_sequence(self, number: int) -> None:
        """Choose the sequence of the programs that follow, on a chip of several.

        Raises
        ------
        SpecError
            If there is none of that number.
        """
        self._check_sequence(number)
        self._send(f"sequence {number}")
        self.sequence = number

    def map_pages(self, pages: Mapping[int, int], *, sequence: int = 0) -> None:
        """Write entries of a sequence's block table: physical pages by logical page.

        Raises
        ------
        SpecError
            If there is no such sequence.
        """
        self._check_sequence(sequence)
        first = sequence << self._entry_bits
        entries = " ".join(f"{first + page} {number}" for page, number in pages.items())
        self._send(f"pages {entries}")

    def fork(self, source: int, target: int) -> None:
        """Let a sequence stand where another stands; its block table is the host's to write.

        Raises
        ------
        SpecError
            If there is no such sequence.
        """
        for number in (source, target):
            self._check_sequence(number)
        self._send(f"fork {source} {target}")
        self._positions[target] = self._positions[source]

    def copy_page(self, source: int, target: int, n_tokens: int) -> int:
        """Copy the first tokens of a page to another of its colour; return the cycles."""
        self._send(f"copy {source} {target} {n_tokens}")
        parts = self._line()
        if len(parts) != 2 or parts[0] != "copied":
            raise self._died()
        return int(parts[1])

    def _check_sequence(self, number: int) -> None:
        if not 0 <= number < len(self._positions):
            raise SpecError(
                f"Sequence must be 0 to {len(self._positions) - 1}, not {number!r}; compile with "
                f"--slots for more"
            )

    def _load_adapters(self) -> None:
        words = adapter_words(self.description, self.die)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "adapters")
            words.tofile(file)
            self._send(f"load {file}")
            if self._line() != ["loaded"]:
                raise self._died()

    def close(self) -> None:
        """End the simulation; every file that it writes is complete."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                if stream is self._process.stdout:
                    stream.read()
                stream.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _line(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().split()

    def _result(self) -> ProgramResult:
        assert self._process.stdout is not None
        parts = self._line()
        if len(parts) != 6 or parts[0] != "done":
            raise self._died()
        token, cycles, clipped, issued, n_logits = map(int, parts[1:])
        raw = self._process.stdout.read(4 * n_logits)
        return ProgramResult(
            token=token,
            cycles=cycles,
            clipped=clipped,
            issued=issued,
            logits=np.frombuffer(raw, dtype="<i4"),
        )

    def _died(self) -> ToolError:
        assert self._process.stderr is not None
        self._process.kill()
        said = self._process.stderr.read().decode(errors="replace").strip()
        status = self._process.wait()
        return ToolError(
            f"Simulation of {self.description.name!r} must go on until it is closed, "
            f"not end with status {status}; it said {said[-300:]!r}"
        )
