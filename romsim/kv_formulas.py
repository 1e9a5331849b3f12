"""The arithmetic of KV caches that articles get wrong, by erratum: what follows from a formula."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FORMULAS", "Figure", "decode_limit", "kivi_ratio", "kv_bytes", "transfer_threshold"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One recomputed figure beside the one that the erratum states."""

    name: str
    formula: str
    value: float
    stated: float
    unit: str
    rel: float = 0.005  # how far the stated figure is rounded

    @property
    def agrees(self) -> bool:
        """Whether the stated figure is the recomputed one, rounded."""
        return abs(self.value - self.stated) <= self.rel * abs(self.stated)


def kv_bytes(
    *, layers: int, kv_heads: int, head_dim: int, bits: float = 16, tokens: int = 1
) -> float:
    """Return bytes of KV cache: ``2 * layers * kv_heads * head_dim * bits / 8 * tokens``.

    The number is that of *KV* heads; a model that shares them has fewer than query heads.
    """
    return 2 * layers * kv_heads * head_dim * bits / 8 * tokens


def transfer_threshold(
    prefix: int, *, dim: int, gqa: int, a: float = 4, b: float = 22, element_bytes: float = 2
) -> float:
    """Return the bytes/FLOP above which fetching a prefix's KV beats computing it.

    Source
    ------
    Mooncake (FAST 2025), equations 1 and 2, with its constants a and b.
    """
    return 2 * dim * element_bytes / (gqa * (a * prefix * dim + b * dim**2))


def kivi_ratio(tokens: int, *, bits: float, group: int, residual: int) -> float:
    """Return how much smaller KIVI is than FP16, its whole-precision window included."""
    packed = bits + 32 / group
    keys = tokens // residual * residual
    values = max(0, tokens - residual)
    stored = (keys + values) * packed + (2 * tokens - keys - values) * 16
    return 2 * tokens * 16 / stored


def decode_limit(
    *, weights: float, kv_per_request: float, memory: float, bandwidth: float
) -> tuple[int, float]:
    """Return the largest batch in 90 % of the memory, and its tokens/s at the whole bandwidth.

    Weights are read once a step and the cache once a request; nothing else is counted, so this is
    a limit and no estimate.
    """
    batch = int((0.9 * memory - weights) // kv_per_request)
    if batch < 1:
        return 0, 0.0
    return batch, batch * bandwidth / (weights + batch * kv_per_request)


_OPT_13B = kv_bytes(layers=40, kv_heads=40, head_dim=128)
_LLAMA_8B = kv_bytes(layers=32, kv_heads=8, head_dim=128)
_LLAMA_70B = kv_bytes(layers=80, kv_heads=8, head_dim=128)
_MHA_70B = kv_bytes(layers=80, kv_heads=64, head_dim=128)
_LLAMA_3B = kv_bytes(layers=28, kv_heads=8, head_dim=128)
_GIB = 2.0**30
_MAMBA = 64 * 5120 * (16 + 4) * 2.0  # layers * inner * (state + convolution) * 2 B
_MAMBA2 = 64 * (5120 * 128 + (5120 + 2 * 128) * 4) * 2.0
_MHA_2560 = 2 * 32 * 2560 * 2.0  # KV of a transformer of that size, B per token


def _paged(lengths: tuple[int, ...], block: int) -> float:
    return sum(lengths) / sum(-(-n // block) * block for n in lengths)


def _amplified(budget: float) -> float:
    """Return pages of 16 read for each token wanted, when tokens are scattered."""
    return (1 - (1 - budget) ** 16) / budget


def _percent(value: float) -> float:
    return 100 * value


def _figures() -> dict[str, tuple[Figure, ...]]:
    a800, h800 = 8 * 312e12, 8 * 989e12
    ratio = transfer_threshold(8192, dim=8192, gqa=8)
    commvq_k, commvq_v = 12 * 21 / 128 + 16 / 1024, 2 + 16 / 1024
    kitty = (2 + 2 * 0.125 + 32 / 128 + 8 / 128 + 2 + 32 / 128) / 2
    hbm, bandwidth, weights = 640e9, 26.8e12, 141e9
    at_32k, full_32k = decode_limit(
        weights=weights, kv_per_request=83.2e9, memory=hbm, bandwidth=bandwidth
    )
    full_128k = bandwidth / (weights + 333e9)
    return {
        "E01": (
            Figure(
                "Llama-3-8B with 32 KV heads over 8",
                "2 * 32 * 4096 * 2 / (2 * 32 * 8 * 128 * 2)",
                2 * 32 * 4096 * 2 / _LLAMA_8B,
                4,
                "x",
            ),
        ),
        "E02": (Figure("OPT-13B", "2 * 40 * 40 * 128 * 2 / 1024", _OPT_13B / 1024, 800, "KiB"),),
        "E03": (
            Figure("1,500 tokens", "1500 * 819200", 1500 * _OPT_13B / 1e9, 1.2288, "GB"),
            Figure("1,500 tokens", "1500 * 819200 / 2^30", 1500 * _OPT_13B / _GIB, 1.144, "GiB"),
        ),
        "E04": (
            Figure("least", "(40 - 26 - 4) / 1.2288", 10e9 / (1500 * _OPT_13B), 8.1, "requests"),
            Figure("most", "(40 - 26 - 2) / 1.2288", 12e9 / (1500 * _OPT_13B), 9.8, "requests"),
        ),
        "E05": (
            Figure("64 KV heads", "1500 * 2621440", 1500 * _MHA_70B / 1e9, 3.93, "GB"),
            Figure("8 KV heads", "1500 * 327680", 1500 * _LLAMA_70B / 1e9, 0.492, "GB"),
        ),
        "E06": (
            Figure("FP16 weights", "70e9 * 2", 140.0, 140, "GB"),
            Figure(
                "INT4, least",
                "(40 - 35 - 4) / 0.4915",
                1e9 / (1500 * _LLAMA_70B),
                2,
                "requests",
                0.05,
            ),
            Figure(
                "INT4, most",
                "(40 - 35 - 2) / 0.4915",
                3e9 / (1500 * _LLAMA_70B),
                6,
                "requests",
                0.05,
            ),
        ),
        "E07": (
            Figure("contiguous", "1050 / (3 * 2048)", _percent(1050 / 6144), 17.09, "%", 0.001),
            Figure(
                "paged by 16",
                "1050 / (67 * 16)",
                _percent(_paged((50, 300, 700), 16)),
                97.95,
                "%",
                1e-4,
            ),
        ),
        "E13": (
            Figure(
                "Llama-3-70B, p = 8192", "2ds/[gqa(apd + bd^2)]", ratio * 1e6, 2.3475, "B/MFLOP"
            ),
            Figure(
                "b by counting", "2 * (2 + 2/8) + 2 * 3 * 28672/8192", 4.5 + 6 * 3.5, 25.5, "d^2"
            ),
        ),
        "E14": (
            Figure("8 x A800", "2.3475e-6 * 8 * 312e12", ratio * a800 / 1e9, 5.86, "GB/s"),
            Figure("8 x H800", "2.3475e-6 * 8 * 989e12", ratio * h800 / 1e9, 18.57, "GB/s"),
            Figure(
                "8 x H800, p = 512",
                "2ds/[gqa(apd + bd^2)] * 8 * 989e12",
                transfer_threshold(512, dim=8192, gqa=8) * h800 / 1e9,
                21.7,
                "GB/s",
            ),
            Figure(
                "8 x H800, p = 128 K",
                "2ds/[gqa(apd + bd^2)] * 8 * 989e12",
                transfer_threshold(131072, dim=8192, gqa=8) * h800 / 1e9,
                5.6,
                "GB/s",
            ),
        ),
        "E15": (Figure("nominal", "8 * 400 / 8", 400.0, 400, "GB/s"),),
        "E16": (
            Figure(
                "first token", "1 - 6708.39 / 21707.62", _percent(1 - 6708.39 / 21707.62), 69.1, "%"
            ),
        ),
        "E20": (
            Figure("stored bits", "2 + 32/32", 3.0, 3.0, "bit"),
            Figure("without window", "16 / 3", 16 / 3, 5.33, "x"),
            *(
                Figure(
                    f"{n} tokens",
                    "KIVI, G 32, R 128, key window half full",
                    kivi_ratio(n, bits=2, group=32, residual=128),
                    stated,
                    "x",
                )
                for n, stated in ((576, 3.1), (4096 + 64, 4.85), (32768 + 64, 5.27))
            ),
        ),
        "E22": (
            Figure("keys", "12 * 21/128 + 16/1024", commvq_k, 1.984, "bit"),
            Figure("values", "2 + 16/1024", commvq_v, 2.016, "bit"),
            Figure("ratio", "32 / (1.984 + 2.016)", 32 / (commvq_k + commvq_v), 8.0, "x"),
        ),
        "E23": (
            Figure("FP16", "131072 * 131072", 131072 * _LLAMA_8B / 1e9, 17.2, "GB"),
            Figure("4 bits", "/ 4", 131072 * _LLAMA_8B / 4e9, 4.3, "GB"),
            Figure("2 bits", "/ 8", 131072 * _LLAMA_8B / 8e9, 2.15, "GB"),
            Figure("1 bit", "/ 16", 131072 * _LLAMA_8B / 16e9, 1.07, "GB"),
        ),
        "E24": (
            Figure("70 %", "1 / (1 - 0.70)", 1 / 0.3, 3.33, "x"),
            Figure("4 times", "1 - 1/4", 75.0, 75, "%"),
        ),
        "E25": (Figure("97 %", "1 / (1 - 0.97)", 1 / 0.03, 33, "x", 0.02),),
        "E26": (
            Figure("3B codes", "3.21e9 * 4 / 8", 3.21 * 0.5, 1.605, "GB"),
            Figure("8B codes", "8.03e9 * 2 / 8", 8.03 * 0.25, 2.008, "GB"),
            Figure("ROM reads", "20000 * 1.605 GB", 20000 * 1.605e-3, 32.1, "TB/s"),
            Figure("FP16 tokens", "288 MiB / 114688 B", 288 * 2**20 // _LLAMA_3B, 2633, "tokens"),
            Figure(
                "8-bit tokens", "288 MiB / 57344 B", 288 * 2**20 // (_LLAMA_3B / 2), 5266, "tokens"
            ),
            Figure(
                "4-bit tokens", "288 MiB / 28672 B", 288 * 2**20 // (_LLAMA_3B / 4), 10532, "tokens"
            ),
        ),
        "E27": (
            Figure("15.0 over 5.2", "15.0 / 5.2, TOM's SRAM is 2.88", 15.0 / 5.2, 2.88, "MB/mm2"),
        ),
        "E29": (
            Figure("Llama-3-70B", "2 * 80 * 8 * 128 * 2", _LLAMA_70B, 327680, "B", 0.0),
            Figure("too much by", "2621440 / 327680", _MHA_70B / _LLAMA_70B, 8, "x", 0.0),
        ),
        "E30": (
            Figure("128,000 tokens", "128000 * 327680", 128000 * _LLAMA_70B / 1e9, 41.9, "GB"),
            Figure("131,072 tokens", "131072 * 327680", 131072 * _LLAMA_70B / 1e9, 42.95, "GB"),
            Figure(
                "requests on 8 x 80 GB",
                "floor((0.9 * 640 - 141) / 42.95)",
                (0.9 * hbm - weights) // (131072 * _LLAMA_70B),
                10,
                "requests",
            ),
        ),
        "E31": tuple(
            Figure(f"{n} tokens", f"{n} * 327680", n * _LLAMA_70B / 1e9, stated, "GB")
            for n, stated in ((4096, 1.34), (32768, 10.74), (131072, 42.95))
        ),
        "E32": (Figure("ratio", "1200 / 240", 5.0, 5, "x"),),
        "E33": (
            Figure("32 K, whole bandwidth", f"{at_32k} requests", full_32k, 241, "tokens/s"),
            Figure("32 K, 31 %", "0.31 x", 0.31 * full_32k, 75, "tokens/s", 0.01),
            Figure("128 K, whole bandwidth", "1 request", full_128k, 57, "tokens/s", 0.01),
            Figure("128 K, 15 %", "0.15 x", 0.15 * full_128k, 8.5, "tokens/s", 0.01),
        ),
        "E34": (Figure("block of a head", "16 * 128 * 2 / 1024", 4.0, 4, "KiB"),),
        "E36": (
            Figure("INT8", "16 / (8 + 32/64)", 16 / 8.5, 1.88, "x"),
            Figure("INT4", "16 / (4 + 32/64)", 16 / 4.5, 3.56, "x"),
        ),
        "E38": (Figure("budget 20 %", "1 - 0.20", 80.0, 80, "%"),),
        "E40": (
            Figure("Mamba-2.8B", "64 * 5120 * 20 * 2 / 327680", _MAMBA / _MHA_2560, 40, "tokens"),
            Figure("Mamba-2-2.7B", "86.6 MB / 327680", _MAMBA2 / _MHA_2560, 264, "tokens"),
            Figure("16 times", "16 * 40", 16 * _MAMBA / _MHA_2560, 640, "tokens"),
            Figure("16 times", "16 * 264.4", 16 * _MAMBA2 / _MHA_2560, 4230, "tokens"),
        ),
        "E43": (
            Figure("memory", "192 / 80", 192 / 80, 2.4, "x"),
            Figure("bandwidth", "8 / 3.35", 8 / 3.35, 2.39, "x"),
        ),
        "E45": (
            Figure("4,096 tokens", "4096 * 819200", 4096 * _OPT_13B / 1e9, 3.355, "GB"),
            Figure("4,096 tokens", "4096 * 819200 / 2^30", 4096 * _OPT_13B / _GIB, 3.125, "GiB"),
        ),
        "E46": (Figure("8B, a million", "1e6 * 131072", _LLAMA_8B / 1e3, 131, "GB"),),
        "E49": (
            Figure("demand", "128 * 4096 * 131072", 128 * 4096 * _LLAMA_8B / _GIB, 64, "GiB"),
            Figure("20 GiB", "20 / 64", _percent(20 / 64), 31, "%", 0.01),
            Figure("60 GiB", "60 / 64", _percent(60 / 64), 94, "%", 0.01),
        ),
        "E50": tuple(
            Figure(f"budget {f:.0%}", "(1 - (1 - f)^16) / f", _amplified(f), stated, "x", 0.01)
            for f, stated in ((0.25, 3.96), (0.1, 8.2), (0.05, 11.2))
        ),
        "E51": (Figure("of nominal", "10 / 450", _percent(10 / 450), 2.2, "%", 0.02),),
        "E52": (Figure("ratio", "16 / mean(2.5625, 2.25)", 16 / kitty, 6.65, "x"),),
        "E53": (
            Figure("ratio", "1859 / 136", 1859 / 136, 13.7, "x"),
            Figure("4 KV heads", "16384 * 57344", 16384 * 57344 / 1e9, 0.94, "GB"),
        ),
        "E54": (Figure("both", "41.5 * 4.4", 41.5 * 4.4, 183, "x"),),
        "E55": (Figure("saved", "1 - 2/8", 75.0, 75, "%"),),
        "E56": (
            Figure("of BF16", "mean(160, 4.5) / 4096", _percent((160 + 4.5) / 2 / 4096), 2.01, "%"),
        ),
        "E59": (Figure("rate", "18 MiB / 10 ms", 18 * 2**20 / 0.01 / 1e9, 1.89, "GB/s"),),
    }


FORMULAS = _figures()
"""Recomputed figures by erratum; errata without an entry are facts, not arithmetic."""
