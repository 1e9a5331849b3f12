"""Speed of the chip's RTL in Verilator beside its own array of MACs alone, in one run.

``python -m benchmarks.rtl_speed [CHIP] [--context 512]``: CHIP is a description, SmolLM2 on
``rtl-1k`` compiled into a temporary folder by default. The chip answers a ChatML question (the
prompt counts); the bare array is its unit L, group scales included, that runs the same program's
matrix instructions back to back on the same ROM images. Both count the same products, those of
matrices alone, in CPU seconds of the simulation. They take turns, since caches and clocks that are
shared with other machines change from one minute to the next.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import romsim
from romsim.simulate import prompt_tokens
from romsim_compiler.description import Description
from romsim_compiler.target import MX_BLOCK
from romsim_rtl.driver import ProgramResult, RtlRun
from romsim_rtl.driver_build import build_chip
from romsim_rtl.emit import verilog_texts
from romsim_rtl.encoding import WORD_BITS, encode
from romsim_rtl.lside import LSide, LSideConfig
from romsim_rtl.verilated import verilate

__all__ = ["bare_command", "cpu_seconds", "main", "products_per_token", "run_bare", "run_chip"]

MODULE = "romsim_lside"
QUESTION = "What is a read-only memory?"
NEW_TOKENS = 32
TURNS = 3
PASSES = 8  # of the bare array in a turn


def products_per_token(description: Description) -> int:
    """Return a token's products of lanes: a weight of two planes takes two."""
    operands = [i.operand for i in description.decode.instructions if i.op == "matvec"]
    mappings = [description.groups[name].mapping for name in operands]
    return sum(m.n_rows * m.n_cols * m.planes for m in mappings)


def bare_command(description: Description, folder: Path) -> list[str]:
    """Build unit L alone; return the command that runs a token's matrix instructions on it."""
    config = LSideConfig.of(description)
    texts = verilog_texts(LSide(config=config), MODULE)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    groups = range(config.n_lanes // MX_BLOCK)
    source = Path(__file__).with_name("bare_array.cpp").read_text(encoding="utf-8")
    for mark, port in (("@CODES@", "&top.bc_codes___05F"), ("@SHIFTS@", "&top.bc_shift___05F")):
        source = source.replace(mark, ", ".join(f"{port}{group}" for group in groups))
    (folder / "bare_array.cpp").write_text(source)
    built = verilate(
        [folder / name for name in texts],
        MODULE,
        cpp=[folder / "bare_array.cpp"],
        args=["-Wno-fatal", "-Wno-lint"],
    )
    size = -(-WORD_BITS // 32)
    words = [encode(i, description) for i in description.decode.instructions if i.op == "matvec"]
    program = folder / "program.bin"
    program.write_bytes(b"".join(word.to_bytes(4 * size, "little") for word in words))
    images = build_chip(description).images
    n_blocks = config.tile.x.n_words * config.tile.x.word_blocks
    command = [str(built.executable), str(program), str(size), str(PASSES), str(n_blocks)]
    return [*command, f"+romdir={images}", "+rombin"]


def run_bare(command: Sequence[str]) -> float:
    """Return the CPU seconds of a token's matrix instructions on unit L alone."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    _, seconds, rows = done.stdout.split()
    if not int(rows):
        raise SystemExit("the bare array gave no row")
    return float(seconds) / PASSES


def run_chip(description: Description, *, context: int | None) -> None:
    """Let the chip answer, in turns with the bare array, and print what it took."""
    products = products_per_token(description)
    with tempfile.TemporaryDirectory() as folder, RtlRun(description) as chip:
        command = bare_command(description, Path(folder))
        process = chip.process_id
        prompt = prompt_tokens(description, chat=QUESTION)
        n_tokens = len(prompt) + NEW_TOKENS
        # only the prompt's last token goes through the head
        head = description.groups["head"].mapping if "head" in description.groups else None
        skipped = head.n_rows * head.n_cols * head.planes if head else 0
        done = n_tokens * products - (len(prompt) - 1) * skipped
        ratios = []
        for turn in range(TURNS):
            before = run_bare(command)
            started, used = time.perf_counter(), cpu_seconds(process)
            results = chip.prefill(prompt, begin=True)
            results += decode(chip, results[-1], NEW_TOKENS)
            wall, cpu = time.perf_counter() - started, cpu_seconds(process) - used
            bare = 2 * products / (before + run_bare(command))
            ratios.append(done / cpu / bare)
            say(
                f"turn {turn + 1}: chip, {len(prompt)} prompt tokens and {NEW_TOKENS} more, "
                f"{sum(r.cycles for r in results):,} cycles: {n_tokens / wall:.2f} tokens/s by the "
                f"clock, {n_tokens / cpu:.2f} by CPU time; {done / cpu / 1e6:,.0f} M MAC/s, bare "
                f"array {bare / 1e6:,.0f}: {ratios[-1]:.2f}"
            )
        say(
            f"chip beside its bare array: median {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
        if context is None:
            return
        filler = (prompt * (1 + context // len(prompt)))[:context]
        last = chip.prefill(filler, begin=True)[-1]
        started, used = time.perf_counter(), cpu_seconds(process)
        results = decode(chip, last, 8)
        wall, cpu = time.perf_counter() - started, cpu_seconds(process) - used
        say(
            f"chip at context {context}: {8 / wall:.2f} tokens/s by the clock, "
            f"{8 / cpu:.2f} by CPU time, {sum(r.cycles for r in results) // 8:,} cycles a token"
        )


def decode(chip: RtlRun, last: ProgramResult, n_tokens: int) -> list[ProgramResult]:
    """Decode greedily after a result."""
    results = []
    for _ in range(n_tokens):
        last = chip.step(last.token)
        results.append(last)
    return results


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds that a process has used (Linux: the number of its clock)."""
    return time.clock_gettime(~process << 3 | 2)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chip", nargs="?")
    parser.add_argument("--context", type=int, help="also time decoding at that context")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if options.chip is None:
            chip = romsim.compile("smollm2", Path(folder, "chip"), target="rtl-1k")
        else:
            chip = Description.load(options.chip)
        started = time.perf_counter()
        built = build_chip(chip)
        say(
            f"build: {time.perf_counter() - started:.0f} s"
            + (" (in the cache)" if built.is_cached else "")
        )
        run_chip(chip, context=options.context)
    return 0


if __name__ == "__main__":
    sys.exit(main())
