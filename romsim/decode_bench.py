"""The float decoder ready to be timed: one step at a fixed context, its energy, its bytes.

A step reads the token that the last step chose, attends to exactly ``context`` tokens, and chooses
the next. Its kernels are PyTorch's own, one for each operation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from romsim.decode_device import check_device
from romsim.decode_record import NumberFormat
from romsim.gpu_roofline import ByteItem, step_bytes
from romsim.nvml import Nvml
from romsim_models.checkpoint import Checkpoint
from romsim_models.encoded import FloatTensor, Tensor
from romsim_models.errors import SpecError
from romsim_models.reference import FloatDecoder, KvCache
from romsim_models.spec import ModelSpec
from romsim_models.tensors import expected_shapes

__all__ = ["FORMATS", "DecodeBench", "repeated_checkpoint"]

FORMATS: dict[NumberFormat, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_BLOCK = 1 << 20  # weights of one seeded block, repeated


class _RepeatedStore:
    """Weights that are one seeded block, repeated: as many bytes as a model's, made in no time."""

    def __init__(self, spec: ModelSpec) -> None:
        self._shapes = expected_shapes(spec)
        rng = np.random.default_rng(1)
        self._block = rng.standard_normal(_BLOCK, dtype=np.float32)

    def formats(self) -> dict[str, str]:
        return dict.fromkeys(self._shapes, "f32")

    def read(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return FloatTensor(
                name=name, shape=shape, format="f32", values=np.ones(shape, dtype=np.float32)
            )
        values = np.resize(self._block, shape)
        values *= np.float32(shape[1] ** -0.5)  # what is read keeps its norm
        return FloatTensor(name=name, shape=shape, format="f32", values=values)

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        values = self.read(name).dequantize()[first:last]
        return FloatTensor(name=name, shape=values.shape, format="f32", values=values)

    def digest(self) -> str:
        return "0" * 64


def repeated_checkpoint(spec: ModelSpec) -> Checkpoint:
    """Return a model of a shape for timing: its weights are random, a block of them repeated."""
    return Checkpoint(spec=spec, kind="synthetic", name=spec.name, store=_RepeatedStore(spec))


class _UncheckedDecoder(FloatDecoder):
    """The decoder without its look at every token, for which a GPU would have to wait."""

    def check_input(self, inputs: torch.Tensor, cache: KvCache) -> None:
        """Accept what the bench itself has made."""


def _replay(graph: torch.cuda.CUDAGraph, step: Callable[[], None]) -> None:
    """Run a captured step; ``step`` keeps the cache and the tokens that the graph writes to."""
    graph.replay()


class DecodeBench:
    """A decoder on a device, ready to be timed.

    Parameters
    ----------
    checkpoint
        Model with weights.
    device
        ``"cpu"`` or ``"cuda"``.
    number_format
        One of :data:`FORMATS`, for weights, activations and KV.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        device: str,
        number_format: NumberFormat,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        check_device(device)
        if number_format not in FORMATS:
            raise SpecError(
                f"Number format must be one of {', '.join(FORMATS)}, not {number_format!r}"
            )
        self.spec = checkpoint.spec
        self.device = device
        self.number_format: NumberFormat = number_format
        self._decoder = _UncheckedDecoder(checkpoint, device=device, dtype=FORMATS[number_format])
        self._clock = clock

    @property
    def bits(self) -> int:
        """Bits of a weight and of a KV element."""
        return FORMATS[self.number_format].itemsize * 8

    def step_items(self, context: int, batch: int) -> tuple[ByteItem, ...]:
        """Return the bytes that a step moves, by the roofline's count."""
        return step_bytes(self.spec, self.bits, self.bits, context, self.bits, batch)

    def stepper(self, context: int, batch: int, *, graphs: bool) -> Callable[[], None]:
        """Return a function that runs one step, its inputs and outputs on the device.

        Parameters
        ----------
        graphs
            Whether the step is captured as one CUDA graph, which leaves out its launches.

        Raises
        ------
        SpecError
            If graphs are wanted on a CPU, or the context is longer than the model's.
        """
        if graphs and self.device != "cuda":
            raise SpecError("CUDA graphs must be used with --device cuda, not with cpu")
        if context > self.spec.max_seq_len:
            raise SpecError(
                f"Context to measure must be at most the model's {self.spec.max_seq_len} tokens, "
                f"not {context}"
            )
        decoder = self._decoder
        cache = decoder.new_cache(batch=batch, max_tokens=context)
        tokens = torch.zeros(batch, dtype=torch.long, device=self.device)

        def step() -> None:
            cache.n_tokens = context - 1
            tokens.copy_(decoder.step(tokens, cache).argmax(-1))

        return self._captured(step) if graphs else step

    def _captured(self, step: Callable[[], None]) -> Callable[[], None]:
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up before anything is captured
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return partial(_replay, graph, step)

    def time_steps(self, step: Callable[[], None], n_steps: int) -> float:
        """Return the seconds of one of ``n_steps`` steps."""
        self._wait()
        start = self._clock()
        for _ in range(n_steps):
            step()
        self._wait()
        return (self._clock() - start) / n_steps

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def joules_per_step(self, step: Callable[[], None], step_s: float) -> float:
        """Return the energy of a step, from the device's own counter over about two seconds.

        Raises
        ------
        NvmlError
            If there is no such counter.
        """
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        n_steps = max(1, round(2.0 / step_s))
        with Nvml() as nvml:
            self._wait()
            before = nvml.joules(uuid)
            for _ in range(n_steps):
                step()
            self._wait()
            return (nvml.joules(uuid) - before) / n_steps
