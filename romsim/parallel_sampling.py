"""Several answers to one prompt on one chip: samples and beams that share pages (kv-sharing.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.sampling import Sampler
from romsim.simulate import check_length, load_tokenizer
from romsim_compiler.description import Description
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.sequences import SequencePool

__all__ = ["Answer", "Samples", "sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One continuation of the prompt."""

    text: str
    tokens: tuple[int, ...]
    log2_probability: float | None  # of a beam; None of a sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Answers and what they cost."""

    prompt: tuple[int, ...]
    answers: tuple[Answer, ...]
    prefill_cycles: int  # of the prompt, once for all
    decode_cycles: int  # of all decoded tokens, copies and forks included
    copy_cycles: int
    fork_cycles: int
    n_decoded: int  # tokens that the chip decoded, pruned beams' too
    clock_hz: float
    page_tokens: int
    pages: int  # taken at most at a time
    pages_unshared: int  # at most at a time, if each had its own
    copied: tuple[int, ...]  # tokens moved by each copy of a page
    saturations: int

    @property
    def tokens_per_s(self) -> float | None:
        """Decoded tokens per second of the chip, all sequences together."""
        if not self.decode_cycles:
            return None
        return self.clock_hz * self.n_decoded / self.decode_cycles

    @property
    def saved_percent(self) -> float:
        """Pages that sharing saves, of those that unshared sequences would take."""
        return 100 * (1 - self.pages / self.pages_unshared)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {
            **asdict(self),
            "prompt": list(self.prompt),
            "answers": [{**asdict(a), "tokens": list(a.tokens)} for a in self.answers],
            "copied": list(self.copied),
            "tokens_per_s": self.tokens_per_s,
            "saved_percent": self.saved_percent,
        }


class _Run:
    """Counts what a pool's sequences cost."""

    def __init__(self, pool: SequencePool, progress: Callable[[str, float], None], n_all: int):
        self.pool = pool
        self.cycles = self.n_decoded = 0
        self.pages = self.unshared = 0
        self._progress, self._n_all = progress, n_all

    def look(self) -> None:
        self.pages = max(self.pages, self.pool.pages_in_use)
        self.unshared = max(self.unshared, self.pool.pages_unshared)

    def step(self, slot: int, token: int) -> NDArray[np.int32]:
        done = self.pool.step(slot, token)
        self.cycles += done.cycles
        self.n_decoded += 1
        self.look()
        self._progress("decode", min(1.0, self.n_decoded / self._n_all))
        return done.logits


def sample(
    description: str | Path | Description,
    prompt: Sequence[int],
    *,
    n: int = 4,
    n_new: int = 64,
    beams: bool = False,
    sampler: Sampler | None = None,
    adapter: str | None = None,
    ignore_eos: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Samples:
    """Answer a prompt several times on the cycle model; the prompt's pages are shared.

    Parameters
    ----------
    prompt
        Token ids.
    n
        Answers, each in a slot of the chip.
    beams
        Whether the answers are the ``n`` likeliest that a beam of that width finds, instead of
        samples drawn independently.
    sampler
        Of samples: number ``i`` draws with its seed plus ``i``. Not greedy, or all would be one.

    Raises
    ------
    SpecError
        If the chip's cache is not paged, or an argument is impossible.
    CapacityError
        If there are fewer slots than answers, or the run passes the context.
    """
    from romsim.api import load
    from romsim.cycle import CycleModel
    from romsim.cycle.sequences import SequencePool

    loaded = description if isinstance(description, Description) else load(description)
    if n < 1:
        raise SpecError(f"Number of answers must be at least 1, not {n}")
    drawn = sampler or Sampler(temperature=1.0)
    if not beams and n > 1 and drawn.temperature == 0:
        raise SpecError(
            f"Temperature of {n} samples must be above 0, not 0: greedy choice gives one answer; "
            f"raise --temperature, or ask for --beams"
        )
    check_length(loaded, len(prompt), n_new)
    pool = SequencePool(CycleModel(loaded))
    pool.check_width(n)
    run = _Run(pool, progress or (lambda stage, fraction: None), max(1, n * (n_new - 1)))
    slot, first = pool.start(prompt, adapter=adapter)
    run.look()
    stop = () if ignore_eos else loaded.spec.eos_ids
    if beams:
        found = _search(run, slot, first.logits, n, n_new, stop)
    else:
        exp_table = loaded.tables["EXP"]
        found = _draw(run, slot, first.logits, n, n_new, stop, drawn, exp_table)
    for living in pool.slots:
        pool.free(living)
    has_text = loaded.tokenizer_file() is not None
    tokenizer = load_tokenizer(loaded) if has_text else None
    answers = tuple(
        Answer(
            text="" if tokenizer is None else tokenizer.decode(tokens),
            tokens=tuple(tokens),
            log2_probability=score,
        )
        for tokens, score in found
    )
    return Samples(
        prompt=tuple(prompt),
        answers=answers,
        prefill_cycles=first.cycles,
        decode_cycles=run.cycles + pool.fork_cycles,
        copy_cycles=pool.copy_cycles,
        fork_cycles=pool.fork_cycles,
        n_decoded=run.n_decoded,
        clock_hz=loaded.target.clock_mhz * 1e6,
        page_tokens=loaded.target.kv.block,
        pages=run.pages,
        pages_unshared=run.unshared,
        copied=pool.copied,
        saturations=pool.saturations,
    )


_Found = list[tuple[list[int], float | None]]


def _draw(
    run: _Run,
    slot: int,
    logits: NDArray[np.int32],
    n: int,
    n_new: int,
    stop: Sequence[int],
    sampler: Sampler,
    exp_table: Any,
) -> _Found:
    """Draw samples, one token of each in turn."""
    position = len(run.pool.tokens(slot)) - 1
    samplers = [replace(sampler, seed=sampler.seed + index) for index in range(n)]
    slots = [slot, *(run.pool.fork(slot) for _ in range(n - 1))]
    texts = [[one.choose(logits, position, exp_table)] for one in samplers]
    for step in range(1, n_new):
        for index, one in enumerate(samplers):
            if texts[index][-1] not in stop:
                new = run.step(slots[index], texts[index][-1])
                texts[index].append(one.choose(new, position + step, exp_table))
    return [(text, None) for text in texts]


@dataclass(slots=True)
class _Beam:
    score: float  # log2 of the probability
    tokens: list[int]
    slot: int | None  # None when it has ended


def _search(
    run: _Run, slot: int, logits: NDArray[np.int32], n: int, n_new: int, stop: Sequence[int]
) -> _Found:
    """Keep the likeliest beams; those that descend from one parent share its pages."""
    beams = [_Beam(0.0, [], slot)]
    outputs = {0: logits}
    for step in range(n_new):
        candidates: list[tuple[float, int, int | None]] = []  # -score, parent, token
        for index, beam in enumerate(beams):
            if beam.slot is None:
                candidates.append((-beam.score, index, None))
                continue
            scores = _log2_probabilities(outputs[index])
            best = np.lexsort((np.arange(len(scores)), -scores))[:n]
            candidates += [(-(beam.score + float(scores[t])), index, int(t)) for t in best]
        chosen = sorted(candidates, key=lambda c: (c[0], c[1], -1 if c[2] is None else c[2]))[:n]
        beams = _descend(run.pool, beams, chosen, stop)
        if step + 1 == n_new or all(beam.slot is None for beam in beams):
            break
        outputs = {
            index: run.step(beam.slot, beam.tokens[-1])
            for index, beam in enumerate(beams)
            if beam.slot is not None
        }
    return [(beam.tokens, beam.score) for beam in beams]


def _descend(
    pool: SequencePool,
    parents: Sequence[_Beam],
    chosen: Sequence[tuple[float, int, int | None]],
    stop: Sequence[int],
) -> list[_Beam]:
    """Return the children: the first that goes on keeps its parent's slot, others are forked."""
    goes_on = {index for _, index, token in chosen if token is not None and token not in stop}
    for index, parent in enumerate(parents):
        if parent.slot is not None and index not in goes_on:
            pool.free(parent.slot)
    children = []
    used: set[int] = set()
    for negative, index, token in chosen:
        parent = parents[index]
        if token is None:
            children.append(parent)
            continue
        slot = parent.slot
        if token in stop:
            slot = None
        elif index in used:
            assert parent.slot is not None
            slot = pool.fork(parent.slot)
        used |= {index} if slot is not None else set()
        children.append(_Beam(-negative, [*parent.tokens, token], slot))
    return children


def _log2_probabilities(logits: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return log2 of the softmax of logits of frac 16."""
    values = (logits.astype(np.float64) - float(logits.max())) / 65536
    result: NDArray[np.float64] = (values - np.log(np.exp(values).sum())) / np.log(2)
    return result
