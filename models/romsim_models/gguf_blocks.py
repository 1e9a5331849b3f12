"""How GGUF stores one tensor's elements: a table from type number to block layout.

A family of formats is one module with a ``BLOCKS`` tuple (`gguf_float`, `gguf_legacy`,
`gguf_ternary`); to add a format, write such a module and name it in `_FAMILIES`.
"""

from __future__ import annotations

from romsim_models import gguf_float, gguf_legacy, gguf_ternary
from romsim_models.errors import FormatError
from romsim_models.gguf_block import GgufBlock

__all__ = ["GGML_TYPE_NAMES", "block_of_type", "supported_types"]

_FAMILIES = (gguf_float.BLOCKS, gguf_legacy.BLOCKS, gguf_ternary.BLOCKS)
_BLOCKS: dict[int, GgufBlock] = {block.type_id: block for family in _FAMILIES for block in family}

# Every number that ggml.h (enum ggml_type) or bitnet.cpp gave a meaning, so that a refusal can name
# the type. Source: ggml-org/llama.cpp ggml/include/ggml.h; 36 to 38: microsoft/BitNet's fork.
GGML_TYPE_NAMES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_2", 5: "Q4_3", 6: "Q5_0", 7: "Q5_1",
    8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0",
    35: "TQ2_0", 36: "I2_S, bitnet.cpp", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def supported_types() -> str:
    """Names of the types that can be read, for messages."""
    return ", ".join(block.name.upper() for block in _BLOCKS.values())


def block_of_type(type_id: int, *, tensor: str, path: str) -> GgufBlock:
    """Layout of a tensor's type.

    Raises
    ------
    FormatError
        If the type cannot be read; names the file, the tensor, the type's number and its name.
    """
    block = _BLOCKS.get(type_id)
    if block is None:
        name = GGML_TYPE_NAMES.get(type_id, "unknown to ggml")
        raise FormatError(
            f"{path}: type of tensor {tensor!r} must be one of {supported_types()}, "
            f"not {type_id!r} ({name}); convert the file to one of these types"
        )
    return block
