"""Products of 32 exact integers in float64 at once, in LLVM's portable vector form.

Every sum stays below 2^53 (the callers keep the bound), so that the order of addition, which is
left to the compiler, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["accumulate32_float", "dot32_float"]

_N = 32
_DOUBLE = ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, _N)

_Intrinsic = tuple[Any, Callable[..., Any]]


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


def _load(builder: Any, pointer: Any) -> Any:
    value = builder.load(pointer)
    value.align = 8
    return value


@intrinsic  # type: ignore[misc, unused-ignore]  # numba is untyped
def dot32_float(typing: Any, left: Any, at_left: Any, right: Any, at_right: Any) -> _Intrinsic:
    """Return the sum of 32 products of two flat float64 arrays, from two indices."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        a = _load(builder, _pointer(context, builder, kinds[0], args[0], args[1]))
        b = _load(builder, _pointer(context, builder, kinds[2], args[2], args[3]))
        kind = ir.FunctionType(_DOUBLE, [_DOUBLE, _VECTOR])
        name = f"llvm.vector.reduce.fadd.v{_N}f64"
        total = cgutils.get_or_insert_function(builder.module, kind, name)
        zero = ir.Constant(_DOUBLE, 0.0)
        return builder.call(total, [zero, builder.fmul(a, b)], fastmath=("reassoc",))

    return types.float64(left, types.intp, right, types.intp), generate


@intrinsic  # type: ignore[misc, unused-ignore]  # numba is untyped
def accumulate32_float(
    typing: Any, sums: Any, at_sums: Any, values: Any, at_values: Any, factor: Any
) -> _Intrinsic:
    """Add ``factor`` times 32 values to 32 sums, all float64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        place = _pointer(context, builder, kinds[0], args[0], args[1])
        values32 = _load(builder, _pointer(context, builder, kinds[2], args[2], args[3]))
        unset = ir.Constant(_VECTOR, ir.Undefined)
        index = ir.IntType(32)
        one = builder.insert_element(unset, args[4], ir.Constant(index, 0))
        spread = builder.shuffle_vector(one, unset, ir.Constant(ir.VectorType(index, _N), [0] * _N))
        term = builder.fmul(values32, spread)
        builder.store(builder.fadd(_load(builder, place), term), place).align = 8
        return context.get_dummy_value()

    arguments = (sums, types.intp, values, types.intp, types.float64)
    return types.void(*arguments), generate
