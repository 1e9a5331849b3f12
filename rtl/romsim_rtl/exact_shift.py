"""RNE and SHR of docs/numerics.md without a bit to spare, in either direction, and saturating."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, signed

from romsim_rtl.primitives import left_shift, wire

__all__ = ["round_parts", "round_shift_exact", "shift_either", "shift_to_saturate"]


def round_shift_exact(m: Module, name: str, value: Any, shift: Any, vanishes: Any) -> Any:
    """RNE(value, shift), 0 if ``vanishes``, as wide as the value, which may use all its bits.

    Parameters
    ----------
    name
        Prefix of the wires.
    value
        Signed.
    shift
        Unsigned, less than the width of ``value``.
    vanishes
        The shift is larger than that, and the result 0.
    """
    floor, is_up = round_parts(m, name, value, shift, vanishes)
    return wire(m, (floor + is_up)[: len(value)].as_signed(), f"{name}_rounded")


def round_parts(m: Module, name: str, value: Any, shift: Any, vanishes: Any) -> tuple[Any, Any]:
    """Return the two parts of `round_shift_exact`: FLOOR(value / 2^shift), and 1 if it goes up.

    A sum that takes both has one carry chain in place of two.
    """
    width = len(value)
    # the bits below that of one half; the shift has this one before its result
    below_half = wire(m, ~(Const(-1, signed(width)) << shift)[1:width], f"{name}_below_half")
    shifted = wire(
        m, (Cat(Const(0, 1), value).as_signed() >> shift)[: width + 1], f"{name}_shifted"
    )
    rest = wire(m, (value[: width - 1] & below_half).any(), f"{name}_rest")
    is_up = wire(m, shifted[0] & (rest | shifted[1]) & ~vanishes, f"{name}_up")
    return wire(m, Mux(vanishes, 0, shifted[1:]), f"{name}_floor"), is_up


def shift_either(m: Module, name: str, value: Any, amount: Any) -> Any:
    """SHR(value, amount) in 64 bits.

    Parameters
    ----------
    name
        Prefix of the wires.
    value
        Signed, less than 31 bits.
    amount
        Signed; to the left, the result fits by the compiler's bound.
    """
    is_left = amount[-1]
    size = wire(m, Mux(is_left, -amount, amount)[: len(amount)], f"{name}_size")
    wide = Cat(value, value[-1].replicate(32 - len(value))).as_signed()
    right = round_shift_exact(m, name, wide, size[:5], size >= 32)
    return Mux(is_left, left_shift(value, size[:6], 64), right)[:64].as_signed()


def shift_to_saturate(m: Module, name: str, value: Any, amount: Any) -> Any:
    """SHR(value, amount) in 64 bits, or anything beyond 32 bits where that is beyond 32 bits.

    Parameters
    ----------
    name
        Prefix of the wires.
    value
        Signed, 64 bits.
    amount
        Signed.
    """
    is_left = amount[-1]
    size = wire(m, Mux(is_left, -amount, amount)[: len(amount)], f"{name}_size")
    right = round_shift_exact(m, name, value, size[:6], size >= 63)
    fits = (value[31:] == 0) | value[31:].all()
    limit = Cat(value[-1].replicate(31) ^ Const((1 << 31) - 1, 31), value[-1])
    clipped = wire(m, Mux(fits, value[:32], limit).as_signed(), f"{name}_clipped")
    # 32 places bring any value but 0 beyond 32 bits
    left = left_shift(clipped, Mux(size >= 32, 32, size[:6])[:6], 64)
    return Mux(is_left, left, right)[:64].as_signed()
