"""Products of 32 codes at once, in LLVM's portable vector form.

Numba widens ``int32 * int32`` to 64 bits, which no common vector unit multiplies; written as
vectors of 32 elements, the compiler finds the multiply-and-add-pairs instructions of the machine
that it runs on (8 times faster, measured). The results are exact integers either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["accumulate32", "dot32"]

_N = 32


def _load(context: Any, builder: Any, kind: Any, array: Any, index: Any, bits: int) -> Any:
    """Load elements ``index`` to ``index + 31`` of a flat array."""
    data = context.make_array(kind)(context, builder, array).data
    pointer = builder.gep(data, [index])
    vector = ir.VectorType(ir.IntType(bits), _N)
    value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    value.align = bits // 8
    return value


@intrinsic  # type: ignore[misc, unused-ignore]  # numba is untyped
def dot32(
    typing: Any, left: Any, at_left: Any, right: Any, at_right: Any
) -> tuple[Any, Callable[..., Any]]:
    """Return the sum of 32 products: flat int8 ``left``, flat int16 ``right``, from two indices."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.VectorType(ir.IntType(32), _N)
        a = _load(context, builder, signature.args[0], args[0], args[1], 8)
        b = _load(context, builder, signature.args[2], args[2], args[3], 16)
        product = builder.mul(builder.sext(a, wide), builder.sext(b, wide))
        reduce = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.IntType(32), [wide]),
            "llvm.vector.reduce.add.v32i32",
        )
        return builder.sext(builder.call(reduce, [product]), ir.IntType(64))

    return types.int64(left, types.intp, right, types.intp), generate


@intrinsic  # type: ignore[misc, unused-ignore]  # numba is untyped
def accumulate32(
    typing: Any, sums: Any, at_sums: Any, codes: Any, at_codes: Any, factor: Any, shift: Any
) -> tuple[Any, Callable[..., Any]]:
    """Add ``factor * code << shift`` to 32 int64 sums: flat arrays, ``|factor| < 2^24``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        narrow, wide = ir.VectorType(ir.IntType(32), _N), ir.VectorType(ir.IntType(64), _N)

        def spread(value: Any, vector: Any) -> Any:
            one = builder.insert_element(
                ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
            )
            mask = ir.Constant(ir.VectorType(ir.IntType(32), _N), [0] * _N)
            return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)

        old = _load(context, builder, signature.args[0], args[0], args[1], 64)
        codes8 = _load(context, builder, signature.args[2], args[2], args[3], 8)
        factor32 = builder.trunc(args[4], ir.IntType(32))
        product = builder.mul(builder.sext(codes8, narrow), spread(factor32, narrow))
        term = builder.shl(builder.sext(product, wide), spread(args[5], wide))
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), wide.as_pointer())
        builder.store(builder.add(old, term), pointer).align = 8
        return context.get_dummy_value()

    return (
        types.void(sums, types.intp, codes, types.intp, types.int64, types.int64),
        generate,
    )
