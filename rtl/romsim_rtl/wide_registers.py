"""Wide registers that read themselves, so written that a simulator copies them only when they move.

An accumulator of more than 64 bits is assigned from itself. Verilator gives such a register a
shadow, and copies register to shadow and shadow to register in every cycle, enabled or not. As the
only element of an array it is assigned through a flag instead, and costs nothing while it rests.
"""

from __future__ import annotations

import re

__all__ = ["spare_copies"]

_LEAST_BITS = 65  # up to 64 bits a copy is one instruction

_NAME = r"(?:\\\S+ |[A-Za-z_][A-Za-z0-9_$]*)"
_REGISTER = re.compile(rf"^  reg \[(\d+):0\] ({_NAME})\s*;$")
_PORT = re.compile(rf"^  (?:input|output) (?:\[\d+:0\] )?({_NAME})\s*;$")
_STAGE = re.compile(r"^    if \(.*\) begin : gated\$\d+$")
_LOCAL = re.compile(rf"^      {_NAME} = (.*);$")
_NEXT = re.compile(rf"^      ({_NAME})(?:\[[\d:]+\])? ?<= (.*);$")
_TOKEN = re.compile(rf"\d+'[a-z]\w+|\.{_NAME}|{_NAME}")


def spare_copies(text: str) -> str:
    """Make arrays of one element of the wide registers that a stage assigns from themselves.

    Parameters
    ----------
    text
        Verilog as :func:`romsim_rtl.stage_gating.gate_stages` gives it.
    """
    pieces = re.split(r"(?m)^(?=module )", text)
    return pieces[0] + "".join(_spare_in_module(piece) for piece in pieces[1:])


def _spare_in_module(text: str) -> str:
    lines = text.split("\n")
    ports = {match[1].strip() for line in lines if (match := _PORT.match(line))}
    wide = {
        match[2].strip()
        for line in lines
        if (match := _REGISTER.match(line)) and int(match[1]) + 1 >= _LEAST_BITS
    } - ports
    found = wide & _self_readers(lines)
    if not found:
        return text

    def index(match: re.Match[str]) -> str:
        # a name that an instance's port has too is left alone behind its dot
        return f"{match[0]}[0]" if match[0].strip() in found else match[0]

    result = []
    for line in lines:
        if (match := _REGISTER.match(line)) and match[2].strip() in found:
            line = f"  reg [{match[1]}:0] {match[2]} [0:0];"
        elif not line.startswith("  wire"):
            line = _TOKEN.sub(index, line)
        result.append(line)
    return "\n".join(result)


def _self_readers(lines: list[str]) -> set[str]:
    """Names that a stage assigns and reads."""
    result: set[str] = set()
    assigned: set[str] = set()
    read: set[str] = set()
    inside = False
    for line in lines:
        if _STAGE.match(line):
            inside, assigned, read = True, set(), set()
        elif inside and line == "    end":
            result |= assigned & read
            inside = False
        elif inside and (match := _NEXT.match(line)):
            assigned.add(match[1].strip())
            read |= {token.strip() for token in _TOKEN.findall(match[2])}
        elif inside and (match := _LOCAL.match(line)):
            read |= {token.strip() for token in _TOKEN.findall(match[1])}
    return result
