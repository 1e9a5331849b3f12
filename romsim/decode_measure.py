"""Measured decoding: the float decoder of this package in PyTorch, on the device that is there.

What a tuned server reaches is in the published rows and in the roofline's range, not here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from romsim.decode_bench import DecodeBench
from romsim.decode_device import check_device, describe_device
from romsim.decode_record import DecodeRecord, Device, MeasuredStep, NumberFormat, model_of
from romsim.gpu_tables import find_gpu
from romsim.nvml import NvmlError
from romsim_models.checkpoint import Checkpoint
from romsim_models.errors import CapacityError, SpecError

__all__ = ["FRAMEWORK", "Plan", "measure_decode"]

FRAMEWORK = "PyTorch, float decoder of this package"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured.

    Parameters
    ----------
    contexts, batches
        Every pair of them.
    n_steps, n_turns
        Steps of a turn, and turns; the median turn counts.
    n_warmup
        Steps before the first turn, not timed.
    """

    contexts: tuple[int, ...]
    batches: tuple[int, ...] = (1,)
    n_steps: int = 16
    n_turns: int = 5
    n_warmup: int = 3

    def __post_init__(self) -> None:
        for name in ("contexts", "batches"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise SpecError(f"{name} to measure must be 1 or more each, not {list(values)!r}")
        for name in ("n_steps", "n_turns"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name} must be 1 or more, not {getattr(self, name)!r}")


def measure_decode(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    device: str = "cpu",
    number_format: NumberFormat | None = None,
    is_random: bool = False,
    progress: Callable[[str, float], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> DecodeRecord:
    """Measure decoding at every context and batch of a plan.

    Parameters
    ----------
    number_format
        Of weights, activations and KV; bfloat16 on a GPU and float32 on a CPU when left out.
    is_random
        Whether the weights are random ones, for the record.

    Raises
    ------
    SpecError
        If the device is not there, or a context is longer than the model's.
    CapacityError
        If not even the first batch fits; a later one that does not is recorded as missing.
    """
    check_device(device)
    chosen: NumberFormat = number_format or ("bfloat16" if device == "cuda" else "float32")
    with _memory_told("weights"):
        bench = DecodeBench(checkpoint, device=device, number_format=chosen, clock=clock)
    described = describe_device(device)
    missing: list[str] = []
    if device == "cpu":
        missing.append("joules per token: NVML measures NVIDIA's devices, and this is a CPU")
        missing.append("CUDA graphs: this is a CPU")
    kinds = (False, True) if device == "cuda" else (False,)
    todo = [(c, b, g) for c in plan.contexts for b in plan.batches for g in kinds]
    steps: list[MeasuredStep] = []
    for number, (context, batch, graphs) in enumerate(todo):
        try:
            with _memory_told(f"{batch} sequences of {context} tokens"):
                steps.append(_measure(bench, described, plan, context, batch, graphs, missing))
        except CapacityError as error:
            if not steps:
                raise
            missing.append(str(error))
        except RuntimeError as error:
            if not graphs:
                raise
            missing.append(f"CUDA graphs at context {context}, batch {batch}: {_first_line(error)}")
        if progress is not None:
            progress("measuring", (number + 1) / len(todo))
    return DecodeRecord(
        record_version=1,
        device=described,
        model=model_of(checkpoint.spec),
        weights="random" if is_random else "file",
        number_format=bench.number_format,
        framework=FRAMEWORK,
        steps=tuple(steps),
        missing=tuple(dict.fromkeys(missing)),
    )


def _measure(
    bench: DecodeBench,
    device: Device,
    plan: Plan,
    context: int,
    batch: int,
    graphs: bool,
    missing: list[str],
) -> MeasuredStep:
    step = bench.stepper(context, batch, graphs=graphs)
    for _ in range(plan.n_warmup):
        step()
    turns = [bench.time_steps(step, plan.n_steps) for _ in range(plan.n_turns)]
    median = statistics.median(turns)
    joules = None
    if bench.device == "cuda":
        try:
            joules = bench.joules_per_step(step, median) / batch
        except NvmlError as error:
            missing.append(f"joules per token: {error}")
    moved = sum(item.bytes for item in bench.step_items(context, batch))
    share = None
    if device.part is not None:
        share = moved / median / (find_gpu(device.part).bandwidth_gb_s * 1e9)
    return MeasuredStep(
        context=context,
        batch=batch,
        graphs=graphs,
        n_steps=plan.n_steps,
        turns_s=tuple(turns),
        step_s=median,
        bytes_per_step=moved,
        bandwidth_share=share,
        joules_per_token=joules or None,
    )


@contextmanager
def _memory_told(what: str) -> Iterator[None]:
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise CapacityError(
            f"{what[0].upper()}{what[1:]} must fit the device's memory, but they do not; measure a "
            f"smaller model, batch or context"
        ) from None
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _first_line(error: RuntimeError) -> str:
    return (str(error).splitlines() or ["no reason given"])[0]
