import re
from dataclasses import replace

import pytest

from romsim_compiler.memory_map import (
    kv_bytes_per_token,
    lora_bits,
    map_memory,
    max_context,
)
from romsim_compiler.target_file import load_target
from romsim_models.errors import CapacityError
from romsim_models.shapes import SHAPES

# Bytes per token in FP16 = 2 * layers * kv_heads * head_dim * 2: the project's test vectors.
KV = [
    ("OPT-13B, Llama-2-13B", 40, 40, 128, 819_200),
    ("Llama-2-7B", 32, 32, 128, 524_288),
    ("Llama-3-8B, 3.1-8B", 32, 8, 128, 131_072),
    ("Llama-2-70B, Qwen2.5-72B", 80, 8, 128, 327_680),
    ("70B with 64 KV heads (which no published model has)", 80, 64, 128, 2_621_440),
    ("SmolLM2-135M", 30, 3, 64, 23_040),
    ("Llama-3.2-3B", 28, 8, 128, 114_688),
    ("Llama-3.2-1B", 16, 8, 64, 32_768),
    ("BitNet-2B-4T", 30, 5, 128, 76_800),
    ("Mixtral-8x7B", 32, 8, 128, 131_072),
    ("Qwen2.5-32B", 64, 8, 128, 262_144),
    ("Qwen3-8B", 36, 8, 128, 147_456),
    ("Qwen2.5-7B", 28, 4, 128, 57_344),
]


@pytest.mark.parametrize(("name", "layers", "kv_heads", "head_dim", "expected"), KV)
def test_kv_bytes_per_token(
    name: str, layers: int, kv_heads: int, head_dim: int, expected: int
) -> None:
    spec = replace(
        SHAPES["llama-3.2-3b"],
        n_layers=layers,
        n_kv_heads=kv_heads,
        n_heads=kv_heads * (1 if kv_heads in (32, 40, 64) else 3),
        head_dim=head_dim,
    )
    assert kv_bytes_per_token(spec, 16) == expected


def test_mxint8_kv_counts_its_exponents() -> None:
    assert kv_bytes_per_token(SHAPES["smollm2"], 8.25) == 2 * 30 * 3 * 64 * 8.25 / 8


def test_roma_holds_736_tokens_of_the_3b_model_in_64_mib_beside_a_rank_16_adapter() -> None:
    """The published row (64 MB, rank 16: 736 tokens, in steps of 32), LoRA 23.19 MiB in 8 bits."""
    spec = SHAPES["llama-3.2-3b"]
    parameters = 24_313_856
    free = 64 * 2**20 - parameters
    assert parameters / 2**20 == pytest.approx(23.19, abs=0.005)
    assert free / kv_bytes_per_token(spec, 8) // 32 * 32 == 736
    # With the exponents of MXINT8 counted on both sides, a little less.
    assert lora_bits(spec, 16) / 8 > parameters


def test_context_beyond_the_sram_is_refused_with_bytes_and_limit() -> None:
    spec, target = SHAPES["smollm2"], load_target("small")
    limit = max_context(spec, target)
    per_token = kv_bytes_per_token(spec, 8.25)
    sentence = (
        f"Context of {limit + 1} tokens must fit the SRAM of target 'small': KV needs "
        f"{(limit + 1) * per_token:.0f} bytes and adapters 0, not the {2 * 256 * 1024} available; "
        f"at most {limit} tokens fit; lower --context or the rank, or raise attention.sram_kib"
    )
    with pytest.raises(CapacityError, match=f"^{re.escape(sentence)}$"):
        map_memory(spec, target, context=limit + 1)


def test_adapter_lowers_the_context_limit_by_its_bytes() -> None:
    spec, target = SHAPES["llama-3.2-3b"], load_target("roma-7nm-int8")
    adapter = lora_bits(spec, 16) // 8
    lost = max_context(spec, target) - max_context(spec, target, adapter)
    assert lost == pytest.approx(adapter / kv_bytes_per_token(spec, 8.25), abs=512)


def test_vector_sram_too_small_is_refused() -> None:
    spec, target = SHAPES["llama-3-8b"], load_target("roma-7nm-int8")
    tight = replace(target, vector=replace(target.vector, sram_kib=1))
    with pytest.raises(
        CapacityError,
        match=r"^Activations must fit the vector SRAM of target 'roma-7nm-int8': they need \d+ "
        r"bytes, not the 1024 available; raise vector.sram_kib to \d+$",
    ):
        map_memory(spec, tight, context=16)
