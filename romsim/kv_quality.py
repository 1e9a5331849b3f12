"""What KV configurations cost in quality and give in room: one row each, one model, one text."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from romsim.kv_windows import ScoredWindow, WindowScorer
from romsim_compiler.description import Description
from romsim_compiler.kv import KvConfig, parse_kv
from romsim_compiler.kv_sram import check_kv, element_bits
from romsim_compiler.memory_map import kv_bytes_per_token, max_context
from romsim_compiler.pipeline import serial_prefill
from romsim_models.errors import SpecError

if TYPE_CHECKING:
    from romsim.reference import IntegerDecoder
    from romsim_models.reference import FloatDecoder

__all__ = [
    "BASELINE",
    "DEFAULT_CONFIGS",
    "KvEvaluation",
    "KvRow",
    "evaluate_kv",
    "kv_eval",
    "room_and_rate",
]

BASELINE = "fp16"
"""The configuration that changes are counted from: 16-bit words, every token kept."""

_LAST = 128  # tokens whose mean time is taken: KIVI encodes a window of keys once in as many

DEFAULT_CONFIGS = (
    "int8",
    "kivi-4bit",
    "kivi-k4v2",
    "int4",
    "kivi-2bit",
    "kivi-2bit-sinks",
    "h2o,heavy=128,window=128",
    "streaming-llm,window=252",
    "window,window=256",
    "kvc-q",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRow:
    """One configuration."""

    config: str  # as it was asked for
    bits_per_element: float  # of an encoded element, scales counted
    bytes_per_token: float  # of all layers and heads
    slots: int | None  # tokens held at most; None: all
    tokens_fit: int | None  # of one sequence, in the chip's SRAM; None: no end
    tokens_per_s: float  # of one sequence, mean of a window's last 128 tokens
    perplexity: float
    change_percent: float  # of the perplexity, from the baseline's
    change_error_percent: float  # standard error of the change, over tokens
    agreement: float  # fraction of tokens at which the likeliest is the baseline's
    saturations: int

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return asdict(self)

    def sentence(self) -> str:
        """Return the quality as one sentence."""
        return (
            f"{self.config}: perplexity {self.perplexity:.3f}, {self.change_percent:+.2f} +- "
            f"{self.change_error_percent:.2f} % of {BASELINE}, the same token at "
            f"{100 * self.agreement:.1f} %"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEvaluation:
    """All configurations on one text; the first row is the baseline."""

    n_tokens: int
    n_scored: int
    window: int  # tokens; windows do not overlap and know nothing of each other
    skip: int  # tokens at the start of a window that are not scored
    float_perplexity: float  # of the float decoder with its float cache
    context: int  # tokens at which the rates are
    rows: tuple[KvRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        return {**asdict(self), "rows": [row.to_json() for row in self.rows]}

    def lines(self) -> list[str]:
        """Return what a person reads: one line a configuration under a header."""
        head = (
            f"{'KV cache':<28} {'bit/elem':>8} {'B/token':>8} {'tokens fit':>10} {'tok/s':>9} "
            f"{'ppl':>8} {'change':>9} {'+-':>6} {'agree':>7}"
        )
        result = [
            f"{self.n_tokens} tokens in windows of {self.window}, {self.n_scored} scored; float "
            f"decoder {self.float_perplexity:.3f}; tokens/s: mean of the last 128 before "
            f"{self.context}; change and agreement against {BASELINE}",
            head,
        ]
        for row in self.rows:
            room = "no end" if row.tokens_fit is None else f"{row.tokens_fit}"
            result.append(
                f"{row.config:<28} {row.bits_per_element:>8.2f} {row.bytes_per_token:>8.0f} "
                f"{room:>10} {row.tokens_per_s:>9.0f} {row.perplexity:>8.3f} "
                f"{row.change_percent:>+8.2f}% {row.change_error_percent:>6.2f} "
                f"{100 * row.agreement:>6.1f}%"
            )
        return result

    def to_csv(self) -> str:
        """Return the rows as CSV, a header first; an empty field has no limit."""
        text = io.StringIO()
        names = [field.name for field in fields(KvRow)]
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.to_json() for row in self.rows)
        return text.getvalue()


def evaluate_kv(
    description: Description,
    float_decoder: FloatDecoder,
    decoder: IntegerDecoder,
    tokens: Sequence[int],
    *,
    configs: Sequence[str] = DEFAULT_CONFIGS,
    window: int = 1024,
    skip: int = 256,
    keep: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
    done: Callable[[KvRow], None] | None = None,
) -> KvEvaluation:
    """Score a text under each configuration with the chip's arithmetic.

    Parameters
    ----------
    description
        The chip; its own KV configuration does not matter.
    decoder
        Integer reference of the same model.
    tokens
        Text to score.
    configs
        As for ``--kv``; the baseline comes first whether it is among them or not.
    window
        Tokens of one window.
    skip
        Tokens at the start of a window that are not scored: they have little past to lose.
    keep
        Folder for the scores of each finished window: a run that was stopped goes on with them.
    progress
        Called with what is under way and the fraction done.
    done
        Called with each row as it is finished.

    Raises
    ------
    SpecError
        If a configuration is none that the chip can have, or nothing is left to score.
    """
    if window < 2:
        raise SpecError(f"Window must be at least 2 tokens, not {window}")
    if not 1 <= skip < window:
        raise SpecError(f"Tokens to skip must be 1 to {window - 1}, not {skip}")
    windows = [list(tokens[at : at + window]) for at in range(0, len(tokens), window)]
    windows = [part for part in windows if len(part) > skip]
    if not windows:
        raise SpecError(
            f"Text must have more than {skip} tokens, not {len(tokens)}; give a longer one, or "
            f"lower --skip"
        )
    names = [BASELINE, *(name for name in configs if name != BASELINE)]
    chosen = [parse_kv(name) for name in names]
    for kv in chosen:
        check_kv(description.spec, replace(description.target, kv=kv))
    longest, known = max(map(len, windows)), description.spec.max_seq_len
    if longest > known:
        raise SpecError(
            f"Windows must have at most the {known} tokens that model {description.spec.name!r} "
            f"was made for, not {longest}; lower --window"
        )
    report = progress or (lambda stage, fraction: None)
    score = WindowScorer(description, decoder, context=window, folder=keep)
    # What earlier runs have kept takes no time, so that the time left is told from the rest alone.
    missing = [(k, n) for k in chosen for n, w in enumerate(windows) if not score.is_kept(k, w)]
    n_done = 0
    rows: list[KvRow] = []
    baseline: list[ScoredWindow] = []
    for name, kv in zip(names, chosen, strict=True):
        scored: list[ScoredWindow] = []
        for number, part in enumerate(windows):
            report(f"{name}, window {number + 1} of {len(windows)}", n_done / (len(missing) + 1))
            scored.append(score(kv, part))
            n_done += (kv, number) in missing
        baseline = baseline or scored
        sizes = room_and_rate(description, kv, window)
        rows.append(_row(name, sizes, scored, baseline, skip))
        if done is not None:
            done(rows[-1])
    report("float", n_done / (len(missing) + 1))
    exact = [
        float(loss)
        for part in windows
        for loss in float_decoder.token_nll(part, window=len(part), batch=1)[skip - 1 :]
    ]
    return KvEvaluation(
        n_tokens=sum(map(len, windows)),
        n_scored=len(exact),
        window=window,
        skip=skip,
        context=window,
        float_perplexity=math.exp(math.fsum(exact) / len(exact)),
        rows=tuple(rows),
    )


def _row(
    name: str,
    sizes: dict[str, Any],
    scored: Sequence[ScoredWindow],
    baseline: Sequence[ScoredWindow],
    skip: int,
) -> KvRow:
    """Return a configuration's figures from its windows and the baseline's."""

    def losses(windows: Sequence[ScoredWindow]) -> list[float]:
        return [loss for window in windows for loss in window.losses[skip - 1 :]]

    def likeliest(windows: Sequence[ScoredWindow]) -> list[int]:
        return [token for window in windows for token in window.likeliest[skip - 1 :]]

    mine, first = losses(scored), losses(baseline)
    n = len(mine)
    more = [a - b for a, b in zip(mine, first, strict=True)]
    mean = math.fsum(more) / n
    ratio = math.exp(mean)
    variance = math.fsum((x - mean) ** 2 for x in more) / max(1, n - 1)
    pairs = zip(likeliest(scored), likeliest(baseline), strict=True)
    return KvRow(
        config=name,
        **sizes,
        perplexity=math.exp(math.fsum(mine) / n),
        change_percent=100 * (ratio - 1),
        change_error_percent=100 * ratio * math.sqrt(variance / n),
        agreement=sum(a == b for a, b in pairs) / n,
        saturations=sum(window.saturations for window in scored),
    )


def room_and_rate(description: Description, kv: KvConfig, context: int) -> dict[str, Any]:
    """Return what a configuration takes and how fast it is on the description's chip.

    Nothing is executed: the first fields of a `KvRow` behind its name, without quality.
    """
    from romsim.description_point import point_of_description

    spec = description.spec
    target, _ = serial_prefill(replace(description.target, kv=kv))
    point = replace(point_of_description(description), target=target)
    bits = element_bits(kv, spec)
    positions = range(max(0, context - _LAST), context)
    cycles = sum(point.decode_cycles(positions)) / len(positions)
    return {
        "bits_per_element": bits,
        "bytes_per_token": kv_bytes_per_token(spec, bits),
        "slots": kv.slots,
        "tokens_fit": None if kv.slots is not None else max_context(spec, target),
        "tokens_per_s": target.clock_mhz * 1e6 / cycles,
    }


def kv_eval(
    description: str | Path | Description,
    *,
    text: Path | None = None,
    n_tokens: int = 4096,
    window: int = 1024,
    skip: int = 256,
    configs: Sequence[str] = DEFAULT_CONFIGS,
    model: str | None = None,
    keep: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
    done: Callable[[KvRow], None] | None = None,
) -> KvEvaluation:
    """Measure perplexity and agreement of KV configurations on a text, with the chip's arithmetic.

    Parameters
    ----------
    text
        UTF-8 file; ``None`` takes the start of a novel.
    n_tokens
        Tokens read, at most.
    window, skip, configs, keep, progress, done
        As for :func:`evaluate_kv`.
    model
        Model file; ``None`` for the built-in model of the description's name.

    Raises
    ------
    SpecError
        If the text cannot be read or is too short, a configuration is impossible, or the model file
        is needed and not given.
    """
    from romsim.api import load
    from romsim.comparison import make_reference
    from romsim.engines import open_source, require_images
    from romsim.quality import default_text
    from romsim.simulate import load_tokenizer
    from romsim_models.reference import FloatDecoder

    if n_tokens < 2:
        raise SpecError(f"Tokens to read must be at least 2, not {n_tokens}")
    loaded = description if isinstance(description, Description) else load(description)
    require_images(loaded, "Quality of KV caches")
    try:
        content = default_text() if text is None else text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"Text {text} must be a readable UTF-8 file, not {error}") from None
    tokens = load_tokenizer(loaded, ids=None).encode(content, add_special=False)[:n_tokens]
    checkpoint = open_source(loaded, model)
    return evaluate_kv(
        loaded,
        FloatDecoder(checkpoint),
        make_reference(loaded, checkpoint),
        tokens,
        configs=configs,
        window=window,
        skip=skip,
        keep=keep,
        progress=progress,
        done=done,
    )
