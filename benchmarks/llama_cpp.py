"""Greedy decoding speed beside llama.cpp and a float decoder in torch, in one run.

All engines decode the same prompt of the same file with the same number of threads, in turns, so
that whatever else the machine does meets each of them; the median of the turns counts. Only decode
steps are timed: the prompt and the first token are not.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from romsim_models.errors import RomsimError, SpecError

__all__ = ["Decode", "compare_decoding", "cycle_model", "float_decoder", "main", "time_steps"]

# From the tokens of a prompt to its greedy continuation, one token at a time and without an end.
Decode = Callable[[Sequence[int]], Iterator[int]]

PROMPT = "Once upon a time, there was a little girl who"


def time_steps(
    decode: Decode, prompt: Sequence[int], n_tokens: int, *, clock: Callable[[], float]
) -> tuple[float, list[int]]:
    """Time the decode steps after the first token.

    Parameters
    ----------
    decode
        The engine.
    prompt
        Tokens.
    n_tokens
        Steps to time.
    clock
        Seconds, monotonic.

    Returns
    -------
    tuple
        Seconds of ``n_tokens`` steps, and the ``n_tokens + 1`` tokens that were made.

    Raises
    ------
    SpecError
        If the engine stops early.
    """
    stream = decode(prompt)
    tokens = list(itertools.islice(stream, 1))
    start = clock()
    tokens += itertools.islice(stream, n_tokens)
    seconds = clock() - start
    if len(tokens) != n_tokens + 1:
        raise SpecError(f"engine must give {n_tokens + 1} tokens, not {len(tokens)!r}")
    return seconds, tokens


def float_decoder(checkpoint: Any, *, n_threads: int, max_tokens: int) -> Decode:
    """Make an engine of the float decoder in torch, float32.

    Parameters
    ----------
    checkpoint
        The model.
    n_threads
        Threads of torch, for the whole process.
    max_tokens
        Length of the cache: prompt and continuation.
    """
    import torch  # heavy, and only here

    from romsim_models.reference import FloatDecoder

    torch.set_num_threads(n_threads)
    decoder = FloatDecoder(checkpoint)

    def decode(prompt: Sequence[int]) -> Iterator[int]:
        cache = decoder.new_cache(max_tokens=max_tokens)
        logits = decoder.forward([list(prompt)], cache=cache, last_only=True)[0, -1]
        while True:
            token = int(logits.argmax())
            yield token
            logits = decoder.step([token], cache)[0]

    return decode


def cycle_model(chip: Path) -> Decode:
    """Make an engine of the cycle-level model of a compiled chip."""
    from romsim.api import load  # brings numba, which a run without a chip does not need
    from romsim.engines import make_engine

    description = load(chip)

    def decode(prompt: Sequence[int]) -> Iterator[int]:
        engine = make_engine("cycle", description)
        logits = engine.prefill(prompt)
        while True:
            token = int(logits.argmax())  # NumPy, too, takes the first of equals
            yield token
            logits = engine.step(token)

    return decode


def compare_decoding(
    model: Path,
    prompt: str,
    *,
    n_tokens: int = 64,
    n_threads: int = 2,
    n_turns: int = 3,
    simulators: Mapping[str, Decode] | None = None,
) -> dict[str, Any]:
    """Time llama.cpp, the float decoder in torch, and any simulators on one prompt.

    Parameters
    ----------
    model
        A GGUF file with its tokenizer.
    prompt
        Text, taken as it is: no chat template.
    n_tokens
        Decode steps in each turn.
    n_threads
        Threads of llama.cpp and torch.
    n_turns
        Turns; the median counts.
    simulators
        More engines by name. Each is warmed up by three steps first.

    Returns
    -------
    dict
        ``engines``: tokens/s (median and each turn) and text of each; ``ratios``: each simulator's
        speed over llama.cpp's and torch's; and what is needed to read them.

    Raises
    ------
    SpecError
        If a number is not positive or the model has no tokenizer.
    RomsimError
        If the model cannot be read.
    """
    for name, value in (("n_tokens", n_tokens), ("n_threads", n_threads), ("n_turns", n_turns)):
        if value < 1:
            raise SpecError(f"{name} must be 1 or more, not {value!r}")
    from romsim_models.registry import open_model

    checkpoint = open_model(model)
    tokenizer = checkpoint.tokenizer()
    if tokenizer is None:
        raise SpecError(f"model {str(model)!r} must have a tokenizer, not none")
    tokens = tokenizer.encode(prompt)
    torch_engine = float_decoder(
        checkpoint, n_threads=n_threads, max_tokens=len(tokens) + n_tokens + 2
    )
    engines = {"torch float32": torch_engine, **(simulators or {})}
    rates: dict[str, list[float]] = {"llama.cpp": [], **{name: [] for name in engines}}
    texts: dict[str, str] = {}
    load_before = os.getloadavg()[0]
    for engine in engines.values():
        time_steps(engine, tokens, 3, clock=time.perf_counter)
    with _llama_server(model, n_threads=n_threads, context=len(tokens) + n_tokens + 8) as server:
        _llama_rate(server, tokens, 3)
        for _ in range(n_turns):
            rate, texts["llama.cpp"] = _llama_rate(server, tokens, n_tokens)
            rates["llama.cpp"].append(rate)
            for name, engine in engines.items():
                seconds, made = time_steps(engine, tokens, n_tokens, clock=time.perf_counter)
                rates[name].append(n_tokens / seconds)
                texts[name] = tokenizer.decode(made)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    return {
        "model": model.name,
        "prompt": prompt,
        "n_prompt_tokens": len(tokens),
        "n_tokens": n_tokens,
        "n_threads": n_threads,
        "n_turns": n_turns,
        "load_average_before": load_before,
        "versions": {name: metadata.version(name) for name in ("xllamacpp", "torch")},
        "engines": {
            name: {"tokens_per_s": medians[name], "turns": rates[name], "text": texts[name]}
            for name in rates
        },
        "ratios": {
            name: {other: medians[name] / medians[other] for other in medians if other != name}
            for name in (simulators or ["torch float32"])
        },
    }


@contextlib.contextmanager
def _llama_server(model: Path, *, n_threads: int, context: int) -> Iterator[Any]:
    import xllamacpp  # an oracle: only this benchmark needs it

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx = context
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = n_threads
    parameters.cpuparams_batch.n_threads = n_threads
    parameters.verbosity = 0
    yield xllamacpp.Server(parameters)


def _llama_rate(server: Any, prompt: Sequence[int], n_tokens: int) -> tuple[float, str]:
    answer = server.handle_completions(
        {
            "prompt": list(prompt),
            "n_predict": n_tokens + 1,
            "temperature": 0.0,
            "cache_prompt": False,
            "ignore_eos": True,
        }
    )
    timings = answer["timings"]
    if timings["predicted_n"] != n_tokens + 1:
        raise SpecError(
            f"llama.cpp must give {n_tokens + 1} tokens, not {timings['predicted_n']!r}"
        )
    # Its clock starts when the prompt is done: the first token costs no step of the model.
    return 1000 * n_tokens / timings["predicted_ms"], str(answer["choices"][0]["text"])


def to_text(result: Mapping[str, Any]) -> str:
    """Write a result as a table for people."""
    lines = [
        f"{result['model']}, {result['n_prompt_tokens']} prompt tokens, median of "
        f"{result['n_turns']} turns of {result['n_tokens']} decode steps, "
        f"{result['n_threads']} threads, load average before {result['load_average_before']:.1f}",
    ]
    for name, engine in result["engines"].items():
        turns = ", ".join(f"{rate:.2f}" for rate in engine["turns"])
        lines.append(f"  {name:<16} {engine['tokens_per_s']:7.2f} tokens/s  ({turns})")
    for name, ratios in result["ratios"].items():
        for other, ratio in ratios.items():
            lines.append(f"  {name} / {other}: {ratio:.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line; 2 for a user's error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llama_cpp", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="GGUF file, or a model's name")
    parser.add_argument("--chip", type=Path, help="compiled chip, for the cycle model")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=64, help="decode steps in each turn")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    # Before NumPy and numba are loaded: they read this once.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(options.threads)
    try:
        from romsim_models.registry import find

        model = Path(options.model)
        model = model if model.suffix == ".gguf" else find(options.model)
        simulators = {} if options.chip is None else {"cycle model": cycle_model(options.chip)}
        result = compare_decoding(
            model,
            options.prompt,
            n_tokens=options.tokens,
            n_threads=options.threads,
            n_turns=options.turns,
            simulators=simulators,
        )
    except RomsimError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result, indent=1) if options.json else to_text(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
