"""The arithmetic of docs/numerics.md, section 1, as Amaranth expressions.

All are combinational and take and give two's complement values. Results keep to 64 bits wherever
their operands allow it, since wider words cost a simulator much more.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned

__all__ = [
    "add_tree",
    "bit_length",
    "lane_signals",
    "left_shift",
    "magnitude",
    "popcount",
    "round_shift",
    "round_shift_by",
    "saturate32",
    "shift_to_grid",
    "wire",
]


def round_shift(value: Value, shift: int) -> Value:
    """RNE(value, shift) for a constant shift, as a signed value.

    Parameters
    ----------
    value
        Signed; with the rounding half added it must fit its width.
    shift
        At least 1 and less than the width of ``value``.
    """
    width = len(value)
    half_less_one = (1 << (shift - 1)) - 1
    total = (value + half_less_one + value[shift])[:width].as_signed()
    return total[shift:].as_signed()


def round_shift_by(value: Value, shift: Value) -> Value:
    """RNE(value, shift) for a shift that is a signal, as a signed value as wide as ``value``.

    Parameters
    ----------
    value
        Signed; with the rounding half added it must fit its width.
    shift
        Unsigned, at most 6 bits and less than the width of ``value``.
    """
    width = len(value)
    # the bits below that of one half; the shift has this one before its result
    below_half = ~(Const(-1, signed(width)) << shift)[1:width]
    shifted = Cat(Const(0, 1), value).as_signed() >> shift
    is_up = shifted[0] & ((value[: width - 1] & below_half).any() | shifted[1])
    return (shifted[1:] + is_up)[:width].as_signed()


def shift_to_grid(value: Value, exponent: Value, frac: int, width: int) -> Value:
    """``value · 2^(exponent - frac)``, rounded to nearest even where bits fall away.

    Parameters
    ----------
    value
        Signed; ``value · 2^max(exponent, frac)`` with the rounding half must fit ``width``.
    exponent
        Unsigned, at most 6 bits.
    frac
        At least 1 and less than ``width``.
    """
    is_left = exponent >= frac
    amount = Mux(is_left, exponent - frac, exponent)[: len(exponent)]
    shifted = left_shift(value, amount, width)
    return Mux(is_left, shifted, round_shift(shifted, frac))


def left_shift(value: Value, shift: Value, width: int) -> Value:
    """``value · 2^shift`` modulo 2^width, signed."""
    extended: Value = Cat(value, value[-1].replicate(width - len(value)))
    return (extended << shift)[:width].as_signed()


def saturate32(value: Value) -> tuple[Value, Value]:
    """SAT32(value), and whether it was clipped.

    Parameters
    ----------
    value
        Signed, more than 32 bits.
    """
    top = value[31:]
    is_clipped = ~((top == 0) | top.all())
    limit = Mux(value[-1], Const(-(1 << 31), 32), Const((1 << 31) - 1, 32))
    return Mux(is_clipped, limit, value[:32]).as_signed(), is_clipped


def magnitude(value: Value) -> Value:
    """|value|, unsigned and as wide as ``value``: the most negative one fits."""
    width = len(value)
    sign = value[-1].replicate(width)
    return ((value ^ sign)[:width] + value[-1])[:width]


def bit_length(m: Module, value: Value, name: str) -> Signal:
    """bitlen(value) of an unsigned value of a power of two of bits."""
    width = len(value)
    bits: list[Value] = []
    rest = value
    while width > 1:
        width //= 2
        is_upper = wire(m, rest[width:].any(), f"{name}_has{width}")
        rest = wire(m, Mux(is_upper, rest[width:], rest[:width]), f"{name}_of{width}")
        bits.insert(0, is_upper)
    return wire(m, Cat(*bits) + rest[0], name)


def wire(m: Module, value: Value, name: str) -> Signal:
    """Give a value that is read several times a name: Amaranth writes an expression out anew.

    Outside of any ``m.If``, or the name holds the value under that condition only.
    """
    signal = Signal(value.shape(), name=name)
    m.d.comb += signal.eq(value)
    return signal


def add_tree(terms: list[Value]) -> Value:
    """Sum of the terms, pairs first."""
    while len(terms) > 1:
        pairs = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]


def popcount(bits: Value) -> Value:
    """Count ones."""
    return add_tree([bits[index] for index in range(len(bits))])


def lane_signals(name: str, n_lanes: int, width: int, *, is_signed: bool = True) -> list[Signal]:
    """Make a stage's registers, one for each lane; without reset, which is for control only."""
    shape = signed(width) if is_signed else unsigned(width)
    return [Signal(shape, name=f"{name}{lane}", reset_less=True) for lane in range(n_lanes)]
