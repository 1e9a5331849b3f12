"""The sweep: its draw covers what it says, and what it finds is made small and kept."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from romsim.cycle import CycleModel
from romsim.rtl_report import RtlReport
from romsim.verify_rtl import RtlPrompt, compare_rtl_prompts
from romsim.verify_rtl_sequences import SequenceComparison, act, page_order
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.die import Die
from romsim_rtl.toolchain import ToolError
from tests.rtl.sweep import (
    OPTIONS,
    Failure,
    Stimulus,
    check,
    compile_die,
    fixed_stimulus,
    main,
    replay,
    run_range,
    save,
    shrink,
    stimuli,
)
from tests.rtl.sweep_chips import (
    AXES,
    BLOCK,
    DIE_AXES,
    DIES,
    FIRST,
    FIRST_DIES,
    LEAST,
    N_SEQUENCES,
    SweepChip,
    axes_of,
    block_of,
    chip_number,
    compile_chip,
    coverage,
    coverage_lines,
    die_number,
    draw_block,
    simpler,
)
from tests.tiny_chips import RomFile, copied, reseal


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Description:
    """A chip whose sequences fork."""
    return compile_chip(replace(SIMPLEST, kv_slots="forks"), tmp_path_factory.mktemp("forking"))


SIMPLEST = SweepChip(**{name: next(iter(values)) for name, values in AXES.items()})
GOOD = RtlReport(
    n_programs=1,
    n_tokens=2,
    n_logits=3,
    n_writes=4,
    n_events=5,
    n_mismatches=0,
    first=None,
    by_memory={},
    by_operator={},
    n_cycles=6,
    wall_s=0.0,
)
STIMULUS = Stimulus(prompts=(RtlPrompt(tokens=(1,)),), sram_seed=None)


def test_draws_together_cover_every_value() -> None:
    covered: dict[str, set[Any]] = {name: set() for name in AXES}
    for number in range(4):
        for name, values in axes_of(number).items():
            covered[name] |= set(values)
    assert covered == {name: set(values) for name, values in AXES.items()}
    assert axes_of(1) != axes_of(2)


@pytest.mark.parametrize("number", range(6))
def test_every_draw_covers_every_value_of_every_axis(number: int) -> None:
    dies = draw_block(number)
    chips = [chip for die in dies for chip in die]
    assert len(chips) == (BLOCK if number else FIRST)
    assert FIRST == 25
    assert len(dies) == (DIES if number else FIRST_DIES)
    for die in dies:
        for name in DIE_AXES:
            assert len({getattr(chip, name) for chip in die}) == 1, name
        assert len({chip.target() for chip in die}) == 1
    for name, counts in coverage(chips).items():
        assert all(counts[value] >= LEAST == 5 for value in axes_of(number)[name]), name
    assert Counter(chip.kind for chip in chips).keys() == {"MHA", "GQA", "MQA"}
    assert 2 * sum(chip.n_tiles > 1 and chip.n_layers > 1 for chip in chips) >= len(chips)
    first = chips[0].seed
    assert first == (FIRST + (number - 1) * BLOCK if number else 0)
    assert [chip.seed for chip in chips] == list(range(first, first + len(chips)))
    assert dies == draw_block(number)
    assert chips[13] == chip_number(first + 13)
    assert chips[13] in die_number(first + 13)
    assert block_of(first) == block_of(first + len(chips) - 1) == number


def test_chips_of_different_draws_are_different() -> None:
    chips = {replace(chip_number(number), seed=0) for number in range(500)}
    assert len(chips) == 500


# one cell with most words; least SRAM beside adapters; the largest activations
@pytest.mark.parametrize("number", [267, 302, 365, 392])
def test_the_largest_chips_have_room(number: int, tmp_path: Path) -> None:
    description = compile_chip(chip_number(number), tmp_path)
    assert description.has_images
    assert set(description.loras) == ({"a", "b"} if chip_number(number).rank else set())


@pytest.mark.slow
def test_every_chip_has_room(tmp_path: Path) -> None:
    for number in range(500):
        compile_chip(chip_number(number), tmp_path / f"{number}")


def test_coverage_is_printed_axis_by_axis() -> None:
    lines = coverage_lines([SIMPLEST, replace(SIMPLEST, n_tiles=8, n_layers=2, dim=192)])
    assert lines[0] == "n_tiles         1: 1, 2: 0, 4: 0, 8: 1"
    assert "dim             64: 1, 96: 0, 128: 0, 192: 1" in lines
    assert lines[-3:] == [
        "attention       MHA: 2",
        "several tiles and several layers: 1 of 2",
        "builds: 2",
    ]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(number=st.integers(0, 499), data=st.data())
def test_prompts_fit_the_chip(number: int, data: st.DataObject) -> None:
    chip = chip_number(number)
    fixed = fixed_stimulus(chip)
    for stimulus in (fixed, data.draw(stimuli(chip))):
        assert Stimulus.from_json(json.loads(json.dumps(stimulus.to_json()))) == stimulus
        assert bool(stimulus.prompts) != bool(stimulus.actions)
        assert bool(stimulus.actions) == chip.has_forks
        position = fullest = 0
        for prompt in stimulus.prompts:
            position = 0 if prompt.begin else position
            position += len(prompt.tokens) + prompt.n_new
            fullest = max(fullest, position)
            assert position <= chip.context
            assert 0 <= min(prompt.tokens) <= max(prompt.tokens) < chip.vocab_size
            assert prompt.adapter in ({None, "a", "b"} if chip.rank else {None})
        if stimulus.prompts:
            assert stimulus.prompts[0].begin
            assert stimulus is not fixed or fullest == chip.context


class Sequences:
    """Stands in for both machines: slots in use and their lengths, with every call checked."""

    def __init__(self, n_slots: int, context: int) -> None:
        self.n_slots, self.context = n_slots, context
        self.lengths: dict[int, int] = {}
        self.calls: Counter[str] = Counter()

    def start(self, prompt: list[int]) -> int:
        self.calls["start"] += 1
        return self._take(len(prompt))

    def fork(self, slot: int) -> int:
        self.calls["fork"] += 1
        return self._take(self.lengths[slot])

    def step(self, slot: int, token: int) -> int:
        self.calls["step"] += 1
        self.lengths[slot] += 1
        assert self.lengths[slot] <= self.context
        return token

    def free(self, slot: int) -> None:
        self.calls["free"] += 1
        del self.lengths[slot]

    def _take(self, length: int) -> int:
        slot = next(slot for slot in range(self.n_slots) if slot not in self.lengths)
        self.lengths[slot] = length
        return slot


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_only_what_sequences_can_do_is_done(forking: Description, data: st.DataObject) -> None:
    chip = replace(SIMPLEST, kv_slots="forks")
    for actions in (fixed_stimulus(chip).actions, data.draw(stimuli(chip)).actions):
        both = Sequences(forking.target.schedule.n_slots, forking.context)
        act(cast("SequenceComparison", both), forking, actions)
        assert 1 <= len(both.lengths) <= both.n_slots == N_SEQUENCES
        assert both.calls["start"] >= 1
        assert both.calls["step"] + both.calls["fork"] >= 1
    assert both.n_slots == 3
    assert sorted(page_order(forking, 4) or []) == list(range(9))
    assert page_order(forking, 4) == page_order(forking, 4) != page_order(forking, 5)
    assert page_order(forking, None) is None


def test_shrinking_leaves_only_what_the_fault_needs() -> None:
    tried = []

    def is_wrong(chip: SweepChip) -> Failure | None:
        tried.append(chip)
        wrong = chip.n_tiles > 1 and chip.codes == "ternary" and chip.head_dim > 32
        return Failure(chip=chip, stimulus=STIMULUS, sentence="wrong") if wrong else None

    (chip,) = [chip for die in draw_block(1) for chip in die if is_wrong(chip)][:1]
    tried.clear()
    failure = Failure(chip=chip, stimulus=STIMULUS, sentence="wrong")
    small = shrink(failure, is_wrong, limit=200).chip
    assert small == replace(SIMPLEST, n_tiles=2, codes="ternary", head_dim=64, seed=chip.seed)
    assert not any(is_wrong(one) for one in simpler(small))
    assert shrink(failure, is_wrong, limit=1).chip != small


def test_a_file_that_is_no_reproducer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    message = f"Reproducer {path} must be a file that the sweep wrote, not KeyError('chip')"
    with pytest.raises(SpecError, match=f"^{re.escape(message)}$"):
        replay(path)


@pytest.mark.verilator
def test_a_fault_is_found_shrunk_saved_and_replayed(tmp_path: Path) -> None:
    def with_a_flipped_bit(description: Description, die: Die, stimulus: Stimulus) -> RtlReport:
        folder = copied(description.path, Path(f"{description.path}-flipped"))
        rom = RomFile(folder)
        rom.flip_code_bit("L0.down", 3, 5, bit=2)
        rom.save()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "romsim.verify_rtl.CycleModel",
                lambda _, **more: CycleModel(description, **more),
            )
            flipped = Description.load(reseal(folder))
            report = compare_rtl_prompts(
                flipped,
                stimulus.prompts,
                options=OPTIONS,
                die=die,
                sram_seed=stimulus.sram_seed,
            )
        shutil.rmtree(folder)
        return report

    die = compile_die([SIMPLEST], tmp_path)
    found = check(SIMPLEST, die.models[0], die, compare=with_a_flipped_bit).failure
    assert found is not None
    assert found.chip == SIMPLEST
    assert found.stimulus == Stimulus(prompts=(RtlPrompt(tokens=(0,)),), sram_seed=None)
    assert found.sentence.startswith("value of L0.matvec down to Y[3], lane 3, cycle ")
    path = save(found, tmp_path / "found")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert Failure.from_json(json.loads(path.read_text())) == found
    assert replay(path, compare=with_a_flipped_bit) == found.sentence
    assert replay(path) is None


def test_a_chip_that_hangs_among_others_alone_is_kept_with_them(tmp_path: Path) -> None:
    chips = draw_block(0)[1]

    def hangs_among_others(description: Description, die: Die, stimulus: Stimulus) -> RtlReport:
        if len(die.models) > 1:
            raise ToolError("it hangs")
        return GOOD

    ((_, chip, outcome),) = run_range(
        [chips[2].seed], out=tmp_path, limit=3, examples=0, compare=hangs_among_others
    )
    assert chip == chips[2]
    assert outcome.failure is not None
    assert (outcome.failure.die, outcome.failure.sentence) == (chips, "it hangs")
    (path,) = tmp_path.iterdir()
    assert Failure.from_json(json.loads(path.read_text())) == outcome.failure
    assert replay(path, compare=hangs_among_others) == "it hangs"
    assert replay(path, compare=lambda *_: GOOD) is None


def test_a_chip_that_hangs_alone_too_is_made_small(tmp_path: Path) -> None:
    def hangs(description: Description, die: Die, stimulus: Stimulus) -> RtlReport:
        raise ToolError("it hangs")

    seed = draw_block(0)[1][2].seed
    ((_, _, outcome),) = run_range([seed], out=tmp_path, limit=100, examples=0, compare=hangs)
    assert outcome.failure is not None
    assert outcome.failure.chip == replace(SIMPLEST, seed=seed)
    assert outcome.failure.die == ()
    assert len(list(tmp_path.iterdir())) == 2  # as it was found, and small


@pytest.mark.verilator
@pytest.mark.parametrize("number", range(FIRST_DIES))
def test_rtl_equals_the_cycle_model_on_drawn_chips(number: int, tmp_path: Path) -> None:
    drawn = draw_block(0)[number]
    seen = []
    for _, chip, outcome in run_range([c.seed for c in drawn], out=tmp_path, limit=0, examples=1):
        assert outcome.failure is None, outcome.failure
        assert outcome.n_runs >= 2
        assert outcome.n_tokens > chip.context
        assert min(outcome.n_writes, outcome.n_logits, outcome.n_events) > 0
        seen.append(chip)
    assert tuple(seen) == drawn
    assert list(tmp_path.iterdir()) == []


def test_command_line_says_what_was_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.rtl.sweep._compare", lambda *_: GOOD)
    monkeypatch.chdir(tmp_path)
    arguments = ["--count", "2", "--first", "7", "--results", "kept.jsonl"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("n_tiles ")
    assert re.fullmatch(
        r"2 chips, (\d+) runs, .* written elements, \d+ instructions: 0 chips with differences",
        lines[-1],
    )
    assert re.match(r"chip 7: \d+ runs, \d+ writes \(\d+ s of CPU\)\nchip 8: ", err)
    kept = Path("kept.jsonl").read_text()
    assert [json.loads(line)["number"] for line in kept.splitlines()] == [7, 8]
    # nothing is done again, and a chip that is drawn otherwise by now is
    assert main(arguments) == 0
    assert capsys.readouterr() == (out, "")
    Path("kept.jsonl").write_text(kept.replace('"vocab_size": ', '"vocab_size": 1', 1))
    assert main(arguments) == 0
    assert re.match(r"chip 7: [^\n]*\n$", capsys.readouterr().err)
