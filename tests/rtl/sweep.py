"""Random chips and models: RTL against cycle model, every write, cycle, logit and token.

    python -m tests.rtl.sweep --count 500
    python -m tests.rtl.sweep --replay build/sweep/0123456789ab.json

Chip number N is always the same one, and ``--results`` keeps a line for each chip that is done, so
that a run goes on where another has stopped. The models of one build run one after the other, each
compared with a cycle model of its own. For each chip the prompts are drawn by hypothesis, which
also shrinks them; then the chip, alone on its build, is made simpler, an axis at a time, for as
long as it still fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from romsim.rtl_report import RtlReport
from romsim.verify_rtl import RtlPrompt, compare_rtl_prompts
from romsim.verify_rtl_sequences import ACTIONS, compare_sequences, page_order
from romsim_compiler.description import Description
from romsim_models.errors import CapacityError, RomsimError, SpecError
from romsim_rtl.die import Die
from romsim_rtl.driver_build import BuildOptions
from tests.rtl.sweep_chips import (
    SweepChip,
    chip_number,
    compile_chip,
    coverage_lines,
    die_number,
    simpler,
)

__all__ = [
    "Failure",
    "Outcome",
    "Stimulus",
    "check",
    "compile_die",
    "fixed_stimulus",
    "main",
    "replay",
    "run_range",
    "save",
    "shrink",
    "stimuli",
]

OPTIONS = BuildOptions(opt="-O0", trace=True)
EXAMPLES = 4  # of prompts for each chip, besides the fixed ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Stimulus:
    """What one run of a chip does, from reset."""

    prompts: tuple[RtlPrompt, ...]
    sram_seed: int | None  # of the memories' first contents; None for zeros
    page_seed: int | None = None  # of the order in which pages are taken; None for 0, 1, 2 ...
    actions: tuple[tuple[str, int], ...] = ()  # of sequences, after the prompts: what, and a number

    def to_json(self) -> dict[str, Any]:
        """Return the stimulus as JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Stimulus:
        """Build a stimulus from :meth:`to_json`'s values."""
        prompts = [RtlPrompt(**{**p, "tokens": tuple(p["tokens"])}) for p in values["prompts"]]
        actions = tuple((what, number) for what, number in values["actions"])
        return cls(**{**values, "prompts": tuple(prompts), "actions": actions})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A chip and a stimulus at which the machines part."""

    chip: SweepChip
    stimulus: Stimulus
    sentence: str
    die: tuple[SweepChip, ...] = ()  # chips of its build, if alone on one it is right

    def to_json(self) -> dict[str, Any]:
        """Return the failure as JSON-ready values."""
        return {
            "chip": self.chip.to_json(),
            "stimulus": self.stimulus.to_json(),
            "sentence": self.sentence,
            "die": [chip.to_json() for chip in self.die],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Failure:
        """Build a failure from :meth:`to_json`'s values."""
        return cls(
            chip=SweepChip(**values["chip"]),
            stimulus=Stimulus.from_json(values["stimulus"]),
            sentence=values["sentence"],
            die=tuple(SweepChip(**chip) for chip in values["die"]),
        )


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was compared on a chip, and where it failed."""

    n_runs: int = 0
    n_tokens: int = 0
    n_logits: int = 0
    n_writes: int = 0
    n_events: int = 0
    failure: Failure | None = None

    def add(self, report: RtlReport) -> None:
        """Count a run."""
        self.n_runs += 1
        self.n_tokens += report.n_tokens
        self.n_logits += report.n_logits
        self.n_writes += report.n_writes
        self.n_events += report.n_events


class _PartedError(Exception):
    def __init__(self, stimulus: Stimulus, sentence: str) -> None:
        super().__init__(sentence)
        self.stimulus, self.sentence = stimulus, sentence


def fixed_stimulus(chip: SweepChip) -> Stimulus:
    """Prompts that every chip is run with: adapters in turn, no reset, a context that fills up."""
    draw = random.Random(f"prompts of chip {chip.seed}")
    if chip.has_forks:
        steps = [(draw.choice(ACTIONS), draw.randrange(1 << 16)) for _ in range(10)]
        forks = [("step", 1), ("fork", 0), ("step", 0), ("fork", 1), ("step", 1), ("step", 2)]
        return Stimulus(
            prompts=(), sram_seed=1 + chip.seed, page_seed=chip.seed, actions=(*forks, *steps)
        )
    adapters = ("a", None, "b", "a") if chip.rank else (None,) * 4

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(chip.vocab_size) for _ in range(count))

    first, second = tokens(chip.n_inflight + 1), tokens(2)
    used = len(first) + 1 + len(second)
    return Stimulus(
        prompts=(
            RtlPrompt(tokens=first, n_new=1, adapter=adapters[0]),
            RtlPrompt(tokens=second, adapter=adapters[1], begin=False),
            RtlPrompt(tokens=tokens(chip.context - used), adapter=adapters[2], begin=False),
            RtlPrompt(tokens=tokens(1), n_new=1, adapter=adapters[3]),
        ),
        sram_seed=1 + chip.seed,
        page_seed=chip.seed if chip.kv_slots == "pages" else None,
    )


@st.composite
def stimuli(draw: st.DrawFn, chip: SweepChip) -> Stimulus:
    """Draw one to three prompts that fit the context, with and without reset; or forks."""
    sram_seed = draw(st.none() | st.integers(1, 1 << 20))
    has_pages = chip.kv_slots in ("pages", "forks")
    page_seed = draw(st.none() | st.integers(0, 1 << 20)) if has_pages else None
    if chip.has_forks:
        action = st.tuples(st.sampled_from(ACTIONS), st.integers(0, (1 << 16) - 1))
        actions = tuple(draw(st.lists(action, min_size=1, max_size=8)))
        return Stimulus(prompts=(), sram_seed=sram_seed, page_seed=page_seed, actions=actions)
    prompts: list[RtlPrompt] = []
    position = 0
    for number in range(draw(st.integers(1, 3))):
        begin = number == 0 or position >= chip.context or draw(st.booleans())
        position = 0 if begin else position
        room = chip.context - position
        length = draw(st.integers(1, min(room, 2 * chip.n_inflight + 2)) | st.just(room))
        n_new = draw(st.integers(0, min(2, room - length)))
        tokens = st.integers(0, chip.vocab_size - 1)
        prompts.append(
            RtlPrompt(
                tokens=tuple(draw(st.lists(tokens, min_size=length, max_size=length))),
                n_new=n_new,
                adapter=draw(st.sampled_from([None, "a", "b"])) if chip.rank else None,
                begin=begin,
            )
        )
        position += length + n_new
    return Stimulus(prompts=tuple(prompts), sram_seed=sram_seed, page_seed=page_seed)


Compare = Callable[[Description, Die, Stimulus], RtlReport]


def _compare(description: Description, die: Die, stimulus: Stimulus) -> RtlReport:
    order = page_order(description, stimulus.page_seed)
    if stimulus.actions:
        return compare_sequences(
            description,
            stimulus.actions,
            options=OPTIONS,
            die=die,
            sram_seed=stimulus.sram_seed,
            page_order=order,
        )
    return compare_rtl_prompts(
        description,
        stimulus.prompts,
        options=OPTIONS,
        die=die,
        sram_seed=stimulus.sram_seed,
        page_order=order,
    )


def _run(
    description: Description, die: Die, stimulus: Stimulus, compare: Compare | None
) -> RtlReport:
    """Run a stimulus.

    Raises
    ------
    _PartedError
        If the machines part, or the chip hangs or ends.
    """
    try:
        report = (compare or _compare)(description, die, stimulus)
    except RomsimError as error:
        raise _PartedError(stimulus, str(error)) from error
    if not report.passed:
        first = "nothing was compared" if report.first is None else report.first.sentence()
        raise _PartedError(stimulus, first)
    return report


def compile_die(chips: Sequence[SweepChip], folder: Path) -> Die:
    """Compile the models of one build, each into a folder of its own in ``folder``."""
    return Die.of(*(compile_chip(chip, folder / f"{chip.seed}") for chip in chips))


def check(
    chip: SweepChip,
    description: Description,
    die: Die,
    *,
    examples: int = EXAMPLES,
    compare: Compare | None = None,
) -> Outcome:
    """Compare RTL and cycle model on prompts.

    Parameters
    ----------
    description
        The chip, compiled.
    die
        What the RTL is built for: the chip, or several.
    examples
        Stimuli that hypothesis draws after the fixed one; on a difference it shrinks them.
    compare
        Runs one stimulus.

    Raises
    ------
    RomsimError
        If the chip cannot be built.
    """
    outcome = Outcome()

    def run(stimulus: Stimulus) -> None:
        outcome.add(_run(description, die, stimulus, compare))

    @settings(
        max_examples=max(1, examples),
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(stimulus=stimuli(chip))
    def run_drawn(stimulus: Stimulus) -> None:
        run(stimulus)

    parted: _PartedError | None = None
    try:
        run(fixed_stimulus(chip))
    except _PartedError as found:
        parted = found
    if examples:
        try:
            run_drawn()
        except _PartedError as found:
            parted = found  # the smaller one
    if parted is not None:
        outcome.failure = Failure(chip=chip, stimulus=parted.stimulus, sentence=parted.sentence)
    return outcome


def shrink(
    failure: Failure, check_one: Callable[[SweepChip], Failure | None], *, limit: int
) -> Failure:
    """Make a failing chip simpler, an axis at a time, with at most ``limit`` more chips."""
    tried = {failure.chip}
    best, left, is_better = failure, limit, True
    while is_better and left:
        is_better = False
        for chip in simpler(best.chip):
            if left and chip not in tried:
                tried.add(chip)
                left -= 1
                found = check_one(chip)
                if found is not None:
                    best, is_better = found, True
                    break
    return best


def save(failure: Failure, folder: Path) -> Path:
    """Write a reproducer, whole or not at all; return its path."""
    text = json.dumps(failure.to_json(), indent=1, sort_keys=True) + "\n"
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    folder.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    aside.write_text(text)
    aside.replace(path)
    return path


def replay(path: Path, *, compare: Compare | None = None) -> str | None:
    """Run a reproducer; return where the machines part, or ``None`` if they do not any more.

    Raises
    ------
    SpecError
        If the file is not one that `save` wrote.
    """
    try:
        failure = Failure.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SpecError(
            f"Reproducer {path} must be a file that the sweep wrote, not {error!r}"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        chips = failure.die or (failure.chip,)
        die = compile_die(chips, Path(folder))
        description = die.models[chips.index(failure.chip)]
        try:
            _run(description, die, failure.stimulus, compare)
        except _PartedError as parted:
            return parted.sentence
    return None


def run_range(
    numbers: Sequence[int],
    *,
    out: Path,
    limit: int,
    examples: int = EXAMPLES,
    compare: Compare | None = None,
) -> Iterator[tuple[int, SweepChip, Outcome]]:
    """Check chips by number; failures are shrunk and saved in ``out``."""

    def alone(chip: SweepChip) -> Failure | None:
        with tempfile.TemporaryDirectory() as folder:
            try:
                die = compile_die([chip], Path(folder))
            except CapacityError:  # fewer cells, say: no chip, and so no simpler one
                return None
            return check(chip, die.models[0], die, examples=examples, compare=compare).failure

    at = 0
    while at < len(numbers):
        chips = die_number(numbers[at])
        with tempfile.TemporaryDirectory() as folder:
            die = compile_die(chips, Path(folder))
            while at < len(numbers) and die_number(numbers[at]) == chips:
                chip = chip_number(numbers[at])
                description = die.models[chips.index(chip)]
                outcome = check(chip, description, die, examples=examples, compare=compare)
                if outcome.failure is not None:
                    found = replace(outcome.failure, die=chips)
                    save(found, out)  # before the shrinking, which takes long
                    single = alone(chip)
                    if single is not None:
                        found = shrink(single, alone, limit=limit)
                        save(found, out)
                    outcome = replace(outcome, failure=found)
                yield numbers[at], chip, outcome
                at += 1


_COUNTS = ("n_runs", "n_tokens", "n_logits", "n_writes", "n_events")


def _code() -> str:
    """Name the code that is compared: results of other code are no results of this one."""
    digest = hashlib.sha256()
    for package in ("romsim", "romsim_compiler", "romsim_models", "romsim_rtl"):
        root = Path(str(files(package)))
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".v", ".cpp", ".h", ".toml"):
                digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _kept(path: Path | None, code: str) -> dict[int, dict[str, Any]]:
    """Read the chips that are done, of those that are drawn now."""
    if path is None or not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        line["number"]: line
        for line in lines
        if line["code"] == code and line["chip"] == chip_number(line["number"]).to_json()
    }


def _keep(path: Path, code: str, number: int, chip: SweepChip, outcome: Outcome) -> dict[str, Any]:
    line: dict[str, Any] = {"number": number, "code": code, "chip": chip.to_json()}
    line |= {name: getattr(outcome, name) for name in _COUNTS}
    line["parted"] = None if outcome.failure is None else outcome.failure.sentence
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line, sort_keys=True) + "\n")
    return line


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep, or a reproducer; return 1 if RTL and cycle model part anywhere."""
    parser = argparse.ArgumentParser(prog="python -m tests.rtl.sweep")
    parser.add_argument("--count", type=int, default=25, help="chips")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--out", type=Path, default=Path("build/sweep"), help="reproducers")
    parser.add_argument("--limit", type=int, default=30, help="chips that a shrinking may build")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="drawn prompts of a chip")
    parser.add_argument(
        "--results", type=Path, help="a line for each chip; those that are there are done"
    )
    parser.add_argument("--replay", type=Path, help="run this reproducer alone")
    parsed = parser.parse_args(arguments)
    if parsed.replay is not None:
        found = replay(parsed.replay)
        _say(found or "RTL and cycle model are equal")
        return int(found is not None)
    if parsed.count < 1 or parsed.first < 0:
        parser.error("--count must be at least 1 and --first at least 0")
    wanted = range(parsed.first, parsed.first + parsed.count)
    code = _code()
    done = _kept(parsed.results, code)
    results = parsed.results or parsed.out / "results.jsonl"
    begun = _cpu_seconds()
    missing = [number for number in wanted if number not in done]
    for number, chip, outcome in run_range(
        missing, out=parsed.out, limit=parsed.limit, examples=parsed.examples
    ):
        done[number] = line = _keep(results, code, number, chip, outcome)
        said = f"chip {number}: {line['n_runs']} runs, {line['n_writes']} writes"
        if line["parted"] is not None:
            said += f": PARTED at {line['parted']}"
        sys.stderr.write(f"{said} ({_cpu_seconds() - begun:.0f} s of CPU)\n")
    lines = [done[number] for number in wanted]
    _say("\n".join(coverage_lines([SweepChip(**line["chip"]) for line in lines])))
    total = {name: sum(line[name] for line in lines) for name in _COUNTS}
    n_failed = sum(line["parted"] is not None for line in lines)
    _say(
        f"{len(lines)} chips, {total['n_runs']} runs, {total['n_tokens']} tokens, "
        f"{total['n_logits']} logits, {total['n_writes']} written elements, "
        f"{total['n_events']} instructions: {n_failed} chips with differences"
    )
    return int(n_failed > 0)


if __name__ == "__main__":
    # an exception ends the compilers that a build has started; the signal alone would not
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
