"""Numbers as people read them: sensible digits, thousands separated, prefixes of the SI."""

from __future__ import annotations

__all__ = ["plain", "quantity", "span"]

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_SMALL = ((1e-9, "n"), (1e-12, "p"))
_SCALED = ("J", "s", "W", "bit", "B", "1/s")
_WHOLE = {"tokens", "cycles", "words", "weights", "tokens/s"}


def plain(value: float, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits, thousands separated, none lost above."""
    if value == 0:
        return "0"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    text = f"{value:.{digits}g}"
    return f"{float(text):.{max(0, _decimals(text))}f}"


def _decimals(text: str) -> int:
    mantissa, _, exponent = text.partition("e")
    return len(mantissa.partition(".")[2]) - (int(exponent) if exponent else 0)


def quantity(value: float, unit: str, *, digits: int = 3, like: float | None = None) -> str:
    """Return a number with its unit, scaled by a prefix where the unit takes one.

    Parameters
    ----------
    like
        A value whose prefix is taken, so that the ends of a range share one.
    """
    number, name = _scaled(value, unit, digits, like)
    return number if name in ("", "1") else f"{number} {name}"


def span(low: float, high: float, unit: str, *, like: float) -> str:
    """Return a range as ``low – high unit``."""
    (first, name), (last, _) = (_scaled(v, unit, 3, like) for v in (low, high))
    return f"{first} – {last}" + ("" if name in ("", "1") else f" {name}")


def _scaled(value: float, unit: str, digits: int, like: float | None) -> tuple[str, str]:
    if unit in _SCALED or (unit == "weights" and abs(value) >= 1e6):
        scale, prefix = _prefix(value if like is None else like)
        name = f"{prefix}/s" if unit == "1/s" else f"{prefix} weights" if unit == "weights" else ""
        return plain(value / scale, digits), (name or f"{prefix}{unit}").strip()
    if unit in _WHOLE and abs(value) >= 1:
        return f"{value:,.0f}", unit
    return plain(value, 4 if unit == "bit/weight" else digits), unit


def _prefix(value: float) -> tuple[float, str]:
    size = abs(value)
    if size == 0:
        return 1.0, ""
    for scale, prefix in (*_PREFIXES, *_SMALL):
        if size >= scale:
            return scale, prefix
    return _SMALL[-1]
