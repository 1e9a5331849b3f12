"""Decode on a GPU as a roofline: bytes of a token, item by item, over the bandwidth reached.

A limit and an estimate at once: the peak bandwidth gives the limit, the achieved share the
estimate. The share is always stated with its source, since it is what such figures turn on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from romsim.gpu_tables import Fraction, Gpu, find_gpu, gpus, launch_time, usual_fraction
from romsim_compiler.groups import layer_shapes
from romsim_compiler.memory_map import kv_bytes_per_token
from romsim_compiler.technology import Range
from romsim_models.errors import SpecError
from romsim_models.spec import ModelSpec

__all__ = [
    "ByteItem",
    "GpuDecode",
    "all_gpus",
    "best_batch",
    "decode_on_gpu",
    "step_bytes",
    "weight_count",
]

_LOWEST, _HIGHEST = 0.30, 0.95  # shares outside are not believed without a word
_USABLE_MEMORY = 0.9  # of the device's memory, for weights and KV


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteItem:
    """Bytes that one step moves for one purpose."""

    name: str
    bytes: float
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDecode:
    """Decode of a model on a GPU at one context and batch."""

    gpu: Gpu
    n_devices: int
    model: str
    context: int
    batch: int
    fits: bool
    items: tuple[ByteItem, ...]  # of one step, which gives every sequence a token
    fraction: Fraction
    bound: str  # "bandwidth", "compute" or "launches"
    tokens_per_s: Range  # of one sequence
    aggregate_tokens_per_s: Range
    limit_tokens_per_s: float  # of one sequence, at the whole bandwidth and no launches
    joules_per_token: Range  # at the part's rated power: an upper limit
    warnings: tuple[str, ...]

    @property
    def device(self) -> str:
        """Name of the GPU, with their number where there are several."""
        return self.gpu.name if self.n_devices == 1 else f"{self.n_devices} x {self.gpu.name}"

    @property
    def bytes_per_step(self) -> float:
        """Bytes of all items."""
        return sum(item.bytes for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        return {**asdict(self), "bytes_per_step": self.bytes_per_step}


def weight_count(spec: ModelSpec) -> tuple[int, int]:
    """Return the weights of all layers' matrices and norms, and those of the LM head."""
    layer = sum(rows * cols for rows, cols in layer_shapes(spec).values())
    norms = 2 * spec.dim
    if spec.has_sub_norms:
        norms += spec.n_heads * spec.head_dim + spec.hidden_dim
    return spec.n_layers * (layer + norms) + spec.dim, spec.vocab_size * spec.dim


def decode_on_gpu(
    spec: ModelSpec,
    gpu: Gpu | str,
    *,
    weight_bits: float,
    context: int,
    head_bits: float | None = None,
    kv_bits: float = 16.0,
    batch: int = 1,
    n_devices: int = 1,
    fraction: Fraction | None = None,
) -> GpuDecode:
    """Return the decode rate of a model on a GPU.

    Parameters
    ----------
    weight_bits
        Stored bits of a weight, scales included (4.5 for a group of 32 with one 16-bit scale).
    context
        Tokens in the cache of each sequence.
    head_bits
        Stored bits of a weight of the LM head; ``weight_bits`` when left out.
    kv_bits
        Stored bits of a KV element.
    batch
        Sequences decoded together.
    n_devices
        Devices that share weights and cache, with no cost of communication.
    fraction
        Share of the bandwidth reached; what published decoders reach with as many bytes when left
        out.

    Raises
    ------
    SpecError
        If the GPU is unknown or a number is not positive.
    """
    part = find_gpu(gpu) if isinstance(gpu, str) else gpu
    for name, value in (("weight_bits", weight_bits), ("kv_bits", kv_bits), ("context", context)):
        if value <= 0:
            raise SpecError(f"{name} must be above 0, not {value!r}")
    for name, number in (("batch", batch), ("n_devices", n_devices)):
        if number < 1:
            raise SpecError(f"{name} must be at least 1, not {number!r}")
    items = step_bytes(
        spec,
        weight_bits,
        head_bits if head_bits is not None else weight_bits,
        context,
        kv_bits,
        batch,
    )
    moved = sum(item.bytes for item in items)
    share = fraction if fraction is not None else usual_fraction(part, moved / 1e9)
    bandwidth = part.bandwidth_gb_s * 1e9 * n_devices
    compute = _step_flops(spec, context, batch) / (part.fp16_tflops * 1e12 * n_devices)
    launch = launch_time()
    at_low, at_mid, at_high = (
        max(moved / (bandwidth * part_used), compute, 1e-6 * us * spec.n_layers)
        for part_used, us in (
            (share.high, launch.low),
            (share.mid, launch.mid),
            (share.low, launch.high),
        )
    )
    seconds = Range(at_low, at_mid, at_high)
    rate = Range(1 / seconds.high, 1 / seconds.mid, 1 / seconds.low)
    power = part.power_w * n_devices
    held = items[0].bytes + items[1].bytes + _embedding_bytes(spec, head_bits or weight_bits)
    held += batch * context * kv_bytes_per_token(spec, kv_bits)
    fits = held <= _USABLE_MEMORY * part.memory_gb * 1e9 * n_devices
    return GpuDecode(
        gpu=part,
        n_devices=n_devices,
        model=spec.name,
        context=context,
        batch=batch,
        fits=fits,
        items=items,
        fraction=share,
        bound=_bound(moved / (bandwidth * share.mid), compute, seconds.mid),
        tokens_per_s=rate,
        aggregate_tokens_per_s=rate * batch,
        limit_tokens_per_s=1 / max(moved / bandwidth, compute),
        joules_per_token=seconds * (power / batch),
        warnings=_warnings(part, share, fits, held, n_devices),
    )


def best_batch(
    spec: ModelSpec,
    gpu: Gpu | str,
    *,
    weight_bits: float,
    context: int,
    head_bits: float | None = None,
    kv_bits: float = 16.0,
    n_devices: int = 1,
) -> int:
    """Return the sequences whose caches fit beside the weights; 0 if the weights do not fit."""
    part = find_gpu(gpu) if isinstance(gpu, str) else gpu
    layers, head = weight_count(spec)
    top = head * (head_bits if head_bits is not None else weight_bits)
    stored = (layers * weight_bits + top * (1 if spec.tie_embeddings else 2)) / 8
    free = _USABLE_MEMORY * part.memory_gb * 1e9 * n_devices - stored
    return max(0, int(free // (context * kv_bytes_per_token(spec, kv_bits))))


def _bound(moving: float, computing: float, seconds: float) -> str:
    if seconds > max(moving, computing):
        return "launches"
    return "compute" if computing > moving else "bandwidth"


def _embedding_bytes(spec: ModelSpec, head_bits: float) -> float:
    return 0.0 if spec.tie_embeddings else spec.vocab_size * spec.dim * head_bits / 8


def step_bytes(
    spec: ModelSpec,
    weight_bits: float,
    head_bits: float,
    context: int,
    kv_bits: float,
    batch: int,
) -> tuple[ByteItem, ...]:
    """Return the bytes of one step: stored bits of a weight, of the head's, of a KV element."""
    layers, head = weight_count(spec)
    token = kv_bytes_per_token(spec, kv_bits)
    heads, kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    # Each operator reads its input and writes its output in 16 bits; fused ones are kept together.
    per_layer = 8 * spec.dim + 3 * (heads + kv) + 4 * spec.hidden_dim
    activations = batch * (2.0 * (spec.n_layers * per_layer + 4 * spec.dim) + 4.0 * spec.vocab_size)
    return (
        ByteItem(
            name="weights of the layers",
            bytes=layers * weight_bits / 8,
            formula=f"{layers} weights x {weight_bits:g} b / 8",
        ),
        ByteItem(
            name="LM head",
            bytes=head * head_bits / 8,
            formula=f"{spec.vocab_size} x {spec.dim} x {head_bits:g} b / 8",
        ),
        ByteItem(
            name="embedding rows",
            bytes=batch * spec.dim * head_bits / 8,
            formula=f"{batch} x {spec.dim} x {head_bits:g} b / 8",
        ),
        ByteItem(
            name="KV read",
            bytes=batch * context * token,
            formula=f"{batch} x {context} tokens x {token:g} B",
        ),
        ByteItem(name="KV written", bytes=batch * token, formula=f"{batch} x {token:g} B"),
        ByteItem(
            name="activations",
            bytes=activations,
            formula=f"{batch} x (2 B x {spec.n_layers} layers x {per_layer} + 4 B x logits)",
        ),
    )


def _step_flops(spec: ModelSpec, context: int, batch: int) -> float:
    layers, head = weight_count(spec)
    attention = 4.0 * spec.n_layers * spec.n_heads * spec.head_dim * context
    return batch * (2.0 * (layers + head) + attention)


def _warnings(
    gpu: Gpu, share: Fraction, fits: bool, held: float, n_devices: int
) -> tuple[str, ...]:
    found = []
    for name, value in (("low", share.low), ("mid", share.mid), ("high", share.high)):
        if not _LOWEST <= value <= _HIGHEST:
            found.append(
                f"Achieved share of bandwidth ({name}) is {value:.0%}, outside {_LOWEST:.0%} to "
                f"{_HIGHEST:.0%}: check its source ({share.source})"
            )
    if not fits:
        found.append(
            f"{held / 1e9:.1f} GB of weights and KV do not fit {_USABLE_MEMORY:.0%} of "
            f"{n_devices} x {gpu.memory_gb:g} GB of {gpu.name}"
        )
    return tuple(found)


def all_gpus(
    spec: ModelSpec, *, weight_bits: float, context: int, kv_bits: float = 16.0
) -> tuple[GpuDecode, ...]:
    """Return decode at batch 1 on every GPU that is known."""
    return tuple(
        decode_on_gpu(spec, gpu, weight_bits=weight_bits, context=context, kv_bits=kv_bits)
        for gpu in gpus()
    )
