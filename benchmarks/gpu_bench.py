"""Decoding speed and energy of this package's float decoder on a GPU, written as JSON.

The default model with its own weights, and the shapes of LLaMA-3.2-3B and LLaMA-3-8B with random
ones: a batch of 1 and larger ones, several contexts, CUDA graphs off and on, joules by NVML.
Nothing is downloaded. ``romsim compare CHIP --measured FILE`` shows a record beside a chip of the
same model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from romsim.commands.output import Progress
from romsim.decode_record import DecodeRecord, write_records
from romsim.whole_file import check_folder
from romsim_models.errors import RomsimError, SpecError
from romsim_models.registry import named_models, open_model

if TYPE_CHECKING:
    from romsim.decode_measure import Plan

__all__ = ["MODELS", "main", "measure", "plan_of", "to_text"]

MODELS = ("smollm2", "llama-3.2-3b", "llama-3-8b")
_CONTEXTS, _BATCHES = (256, 1024, 4096), (1, 8, 64, 256)


def plan_of(model: str, *, is_quick: bool) -> Plan:
    """Return what is measured of a model.

    Raises
    ------
    SpecError
        If the model is none that is known by name.
    """
    from romsim.decode_measure import Plan

    models = named_models()
    if model not in models:
        raise SpecError(f"Model to measure must be one of {', '.join(models)}, not {model!r}")
    limit = models[model].spec.max_seq_len
    if is_quick:
        return Plan(contexts=(min(64, limit),), batches=(1, 2), n_steps=2, n_turns=2, n_warmup=1)
    contexts = tuple(n for n in _CONTEXTS if n <= limit) or (limit,)
    return Plan(contexts=contexts, batches=_BATCHES, n_steps=16, n_turns=5)


def measure(
    model: str,
    *,
    device: str,
    is_quick: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> DecodeRecord:
    """Measure one model: its own weights where it has some, random ones otherwise.

    Raises
    ------
    RomsimError
        If the device, the model or its file is not there, or it does not fit the memory.
    """
    from romsim.decode_bench import repeated_checkpoint
    from romsim.decode_measure import measure_decode

    plan = plan_of(model, is_quick=is_quick)
    checkpoint = open_model(model)
    is_random = not checkpoint.has_weights
    if is_random:
        checkpoint = repeated_checkpoint(checkpoint.spec)
    return measure_decode(
        checkpoint,
        plan,
        device=device,
        is_random=is_random,
        progress=progress,
    )


def to_text(record: DecodeRecord) -> list[str]:
    """Write a record as lines for people."""
    lines = [
        f"{record.model.name}, {record.weights} weights in {record.number_format}, "
        f"{record.device.name}:"
    ]
    for step in record.steps:
        share = "" if step.bandwidth_share is None else f", {step.bandwidth_share:.0%} of bandwidth"
        joules = "" if step.joules_per_token is None else f", {step.joules_per_token:.3g} J a token"
        lines.append(
            f"  context {step.context:>5}, batch {step.batch:>3}"
            f"{', graphs' if step.graphs else ''}: {step.tokens_per_s:,.1f} tokens/s, "
            f"{step.aggregate_tokens_per_s:,.1f} in all{share}{joules}"
        )
    return [*lines, *(f"  missing: {text}" for text in record.missing)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line; 2 for a user's error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_bench", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument(
        "--model", action="append", help=f"a model's name [default: {', '.join(MODELS)}]"
    )
    parser.add_argument("--quick", action="store_true", help="few steps at one short context")
    parser.add_argument("--out", type=Path, help="file for the records")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no lines")
    options = parser.parse_args(arguments)
    progress = Progress()
    try:
        import_module("romsim_models.reference")  # which says what to install without PyTorch
        from romsim.decode_device import check_device

        check_device(options.device)
        if options.out is not None:
            check_folder(options.out, what="Record")
        records: list[DecodeRecord] = []
        models = options.model or MODELS
        for name in models:  # all of them, before minutes are spent on the first
            plan_of(name, is_quick=options.quick)
        for name in models:
            print(f"{name} on {options.device}", file=sys.stderr)
            records.append(
                measure(name, device=options.device, is_quick=options.quick, progress=progress)
            )
            if options.out is not None:  # after each model: what an interruption leaves is whole
                write_records(options.out, tuple(records))
    except RomsimError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        progress.clear()
    if options.json:
        print(json.dumps({"records": [r.to_json() for r in records]}, indent=1, sort_keys=True))
    else:
        print("\n".join(line for record in records for line in to_text(record)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
