"""Rewriting of emitted Verilog: stages cost nothing while idle, and lint has nothing to say.

Works on the text that yosys writes after ``opt_dff``: one declaration, assignment or register a
statement. The function of a module stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["gate_stages"]

_NAME = r"(?:\\\S+ |[A-Za-z_][A-Za-z0-9_$]*)"
_ASSIGN = re.compile(rf"^  assign ({_NAME}) = (.*);$")
_WIRE = re.compile(rf"^  wire (?:signed )?(?:\[(\d+):0\] )?({_NAME})\s*;$")
_SPAN = re.compile(rf"^  wire (?:signed )?\[(\d+):(\d+)\] ({_NAME})\s*;$")
_DECLARED = re.compile(
    rf"^  (?:input|output|wire|reg)(?: wire| reg)?(?: signed)? ?(?:\[(\d+):0\] )?({_NAME})\s*;$"
)
_CLOCKED = re.compile(rf"^    if \((!?)({_NAME})\) ({_NAME}(?:\[[\d:]+\])?) <= (.*);$")
_HALVES = re.compile(rf"^  assign \{{ (?P<high>{_NAME}), (?P<low>{_NAME}) \}} = (?P<value>.*);$")
_TARGET = re.compile(
    rf"^  assign (?:{_NAME}(?:\[[\d:]+\])?|\{{[^}}]*\}}) = "
    rf"|^ +(?:else )?(?:if \((?P<guard>[^)]*)\) )?{_NAME}(?:\[[\d:]+\])? <= "
)
_PORT = re.compile(rf"^    \.{_NAME}\(")
_CONNECTION = re.compile(rf"^    \.{_NAME}\(({_NAME})\),?$")
_SHIFT = re.compile(rf"^  assign (?P<to>{_NAME}) = (?P<value>.* >>>? .*);$")
_LOGIC_NOT = re.compile(rf"(\W)!\s?({_NAME}(?:\[[\d:]+\])?|\{{[^}}]*\}})")
_PART = re.compile(rf"(?P<name>{_NAME})(?:\[(?P<high>\d+)(?::(?P<low>\d+))?\])?")
_TOKEN = re.compile(rf"\d+'[a-z]\w+|\$(?:signed|unsigned)\b|{_NAME}")
_EXTENSION = re.compile(
    rf"\{{ (?P<bit>(?P<name>{_NAME})\[(?P<msb>\d+)\]), (?:(?P=bit), )*"
    rf"(?P<last>(?P=name)(?:\[(?P=msb):\d+\])?) ?\}}"
)


def _names(expression: str) -> list[str]:
    return [t.strip() for t in _TOKEN.findall(expression) if not t[0].isdigit() and t[0] != "$"]


def gate_stages(text: str, *, unread: Mapping[str, str] = MappingProxyType({})) -> str:
    """Move logic that only one enable's registers read into that enable's clocked block.

    Parameters
    ----------
    text
        Verilog as yosys writes it after ``opt_dff``: one assignment or register a statement.
    unread
        Ports of which some bits are not read, and why.
    """
    pieces = re.split(r"(?m)^(?=module )", text)
    return pieces[0] + "".join(_gate_module(piece, unread) for piece in pieces[1:])


def _gate_module(text: str, unread: Mapping[str, str]) -> str:
    head, end, body = text.partition(");\n")  # a long list of ports is broken anywhere
    lines = [head.replace("\n", "") + end[:-1], *body.split("\n")]
    widths = {
        match[2].strip(): int(match[1] or 0) + 1
        for line in lines
        if (match := _DECLARED.match(line))
    }
    lines = [_LOGIC_NOT.sub(r"\1~(|\2)", line) for line in lines]
    lines = [_EXTENSION.sub(lambda m: _cast(m, widths), line) for line in lines]
    lines = [_SHIFT.sub(lambda m: _narrow(m, widths), line) for line in lines]
    lines = _trim(_join(lines, widths), widths)
    lines = _drain(lines, widths, unread)
    wires = {match[2].strip() for line in lines if (match := _WIRE.match(line))}
    assigns: dict[str, tuple[int, str]] = {}
    registers: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    readers: dict[str, set[Any]] = {}

    def read(expression: str, reader: Any) -> None:
        for name in _names(expression):
            readers.setdefault(name, set()).add(reader)

    for number, line in enumerate(lines):
        if (match := _ASSIGN.match(line)) and match[1].strip() in wires:
            assigns[match[1].strip()] = (number, match[2])
            read(match[2], match[1].strip())
        elif (match := _CLOCKED.match(line)) and lines[number - 1] == "  always @(posedge clk)":
            enable = (match[1], match[2].strip())
            if number + 1 < len(lines) and lines[number + 1].startswith("    else"):
                read(line, None)  # a reset stands here: leave the register as it is
                continue
            registers.setdefault(enable, []).append((number, match[3].strip(), match[4]))
            read(match[4], enable)
            read(match[2], None)
        elif _WIRE.match(line) is None:
            read(line, None)
    home = _homes(assigns, readers)
    return _rewrite(lines, widths, assigns, registers, home)


def _cast(match: re.Match[str], widths: dict[str, int]) -> str:
    """Write a sign extension as a cast: Verilator does not see through 32 copies of a bit."""
    name = match["name"].strip()
    if match["last"].strip() == name and widths.get(name) != int(match["msb"]) + 1:
        return match[0]
    inner = match["last"].strip()
    low = int(re.split(r"[:\]]", inner)[-2]) if inner != name else 0
    copies = match[0].count(match["bit"] + ",")
    width = copies + int(match["msb"]) + 1 - low
    return f"{width}'($signed({match['last'].strip()} ))"


def _narrow(match: re.Match[str], widths: dict[str, int]) -> str:
    """Drop the upper bits of a shift's result in the open."""
    width = widths[match["to"].strip()]
    return f"  assign {match['to']} = {width}'({match['value']});"


def _join(lines: list[str], widths: dict[str, int]) -> list[str]:
    """Write a result of which only the upper or the lower half is read as that half alone."""
    counts: dict[str, int] = {}
    spans = dict(widths)
    for line in lines:
        for name in _names(line):
            counts[name] = counts.get(name, 0) + 1
        if match := _SPAN.match(line):
            spans[match[3].strip()] = int(match[1]) - int(match[2]) + 1
    result = []
    for line in lines:
        if match := _HALVES.match(line):
            high, low = match["high"].strip(), match["low"].strip()
            # a declaration and this assignment
            if counts[low] == 2:
                value = f"({match['value']}) >> {spans[low]}"
                line = f"  assign {match['high']} = {spans[high]}'({value});"
            elif counts[high] == 2:
                line = f"  assign {match['low']} = {spans[low]}'({match['value']});"
        result.append(line)
    return result


def _bits_read(lines: list[str], widths: dict[str, int]) -> dict[str, set[int]]:
    """Bits of each signal that stand on a right side, in a condition or at an instance."""
    bits: dict[str, set[int]] = {}
    for line in lines:
        if _DECLARED.match(line) or line.startswith("module "):
            continue
        target = _TARGET.match(line)
        begin = target or _PORT.match(line)
        for match in _PART.finditer(line, begin.end() if begin else 0):
            name = match["name"].strip()
            if name not in widths:
                continue
            high, low = widths[name] - 1, 0
            if match["high"]:
                high = int(match["high"])
                low = int(match["low"]) if match["low"] else high
            bits.setdefault(name, set()).update(range(low, high + 1))
        if target and target["guard"]:
            for name in _names(target["guard"]):
                bits.setdefault(name, set()).update(range(widths.get(name, 0)))
    return bits


def _trim(lines: list[str], widths: dict[str, int]) -> list[str]:
    """Shorten wires of which only some neighbouring bits are read, as the sum of a rounding."""
    wires = {match[2].strip() for line in lines if (match := _WIRE.match(line))}
    assigned = {match[1].strip() for line in lines if (match := _ASSIGN.match(line))}
    trimmed: dict[str, tuple[int, int]] = {}
    for name, bits in _bits_read(lines, widths).items():
        high, low = max(bits), min(bits)
        is_gapless = len(bits) == high - low + 1
        if name in wires & assigned and is_gapless and len(bits) < widths[name]:
            trimmed[name] = (high, low)

    def move(match: re.Match[str]) -> str:
        name = match["name"].strip()
        if name not in trimmed or not match["high"]:
            return match[0]
        high, low = trimmed[name]
        if high == low:
            return match["name"]
        top = int(match["high"]) - low
        part = f"{top}:{int(match['low']) - low}" if match["low"] else f"{top}"
        return f"{match['name']}[{part}]"

    result = []
    for line in lines:
        if (match := _WIRE.match(line)) and match[2].strip() in trimmed:
            high, low = trimmed[match[2].strip()]
            span = f"[{high - low}:0] " if high > low else ""
            line = f"  wire {span}{match[2]};"
        elif (match := _ASSIGN.match(line)) and match[1].strip() in trimmed:
            high, low = trimmed[match[1].strip()]
            value = _PART.sub(move, match[2])
            value = f"({value}) >> {low}" if low else value
            line = f"  assign {match[1]} = {high - low + 1}'({value});"
        elif not _DECLARED.match(line):
            line = _PART.sub(move, line)
        result.append(line)
    for name, (high, low) in trimmed.items():
        widths[name] = high - low + 1
    return result


def _drain(lines: list[str], widths: dict[str, int], unread: Mapping[str, str]) -> list[str]:
    """Drop signals that nothing drives or reads; say openly which other bits are not read."""
    read = _bits_read(lines, widths)
    written: dict[str, int] = {}
    for line in lines:
        if not _DECLARED.match(line) and not line.startswith("module "):
            for name in _names(line):
                written[name] = written.get(name, 0) + 1
    for line in lines:
        # an instance's output that stands nowhere else
        if (match := _CONNECTION.match(line)) and written[match[1].strip()] == 1:
            read.pop(match[1].strip(), None)
    result: list[str] = []
    rest: list[tuple[str, list[str]]] = []
    ports: set[str] = set()
    for line in lines:
        match = _DECLARED.match(line)
        if match is None:
            result.append(line)
            continue
        name = match[2].strip()
        if line.startswith(("  input", "  output")):
            ports.add(name)
            result.append(line)
            if name not in unread or line.startswith("  output"):
                continue
        elif name in ports:  # a port's second declaration
            result.append(line)
            continue
        elif name not in written:
            continue
        else:
            result.append(line)
        unused = sorted(set(range(widths[name])) - read.get(name, set()))
        if unused:
            rest.append((name, _parts(match[2], unused, widths[name])))
    if rest:
        end = result.index("endmodule")
        drain = ["  // Bits that nothing reads, by intention: what rounding drops, and of ports:"]
        drain += [f"  // {name}: {unread[name]}" for name, _ in rest if name in unread]
        parts = ", ".join(part for _, some in rest for part in some)
        drain.append(f"  wire unused_bits = &{{1'b0, {parts}}};")
        result[end:end] = drain
    return result


def _parts(name: str, bits: list[int], width: int) -> list[str]:
    if len(bits) == width:
        return [name]
    parts, start = [], bits[0]
    for before, bit in zip(bits, [*bits[1:], -1], strict=True):
        if bit != before + 1:
            parts.append(f"{name}[{before}:{start}]" if before > start else f"{name}[{start}]")
            start = bit
    return parts


def _homes(
    assigns: dict[str, tuple[int, str]], readers: dict[str, set[Any]]
) -> dict[str, tuple[str, str]]:
    """Find the enable under which alone a wire is read, for every wire that has one."""
    home: dict[str, tuple[str, str] | None] = {}

    def find(name: str) -> tuple[str, str] | None:
        stack = [name]
        while stack:
            top = stack[-1]
            pending = [r for r in readers.get(top, ()) if isinstance(r, str) and r not in home]
            if pending:
                stack += pending
                continue
            stack.pop()
            if top not in home:
                places = {home[r] if isinstance(r, str) else r for r in readers.get(top, {None})}
                home[top] = places.pop() if len(places) == 1 else None
        return home[name]

    return {name: place for name in assigns if (place := find(name)) is not None}


def _rewrite(
    lines: list[str],
    widths: dict[str, int],
    assigns: dict[str, tuple[int, str]],
    registers: dict[tuple[str, str], list[tuple[int, str, str]]],
    home: dict[str, tuple[str, str]],
) -> str:
    gone: set[int] = set()
    blocks: list[str] = []
    members: dict[tuple[str, str], list[str]] = {}
    for name, place in home.items():
        members.setdefault(place, []).append(name)
    for index, (enable, items) in enumerate(registers.items()):
        mine = _ordered(members.get(enable, []), assigns)
        blocks += [
            "  always @(posedge clk)",
            f"    if ({enable[0]}{enable[1]} ) begin : gated${index}",
        ]
        for name in mine:
            width = f"[{widths[name] - 1}:0] " if widths[name] > 1 else ""
            blocks.append(f"      automatic reg {width}{name} ;")
        blocks += [f"      {name} = {assigns[name][1]};" for name in mine]
        blocks += [f"      {target} <= {value};" for _, target, value in items]
        blocks.append("    end")
        gone |= {n for number, _, _ in items for n in (number, number - 1)}
        gone |= {assigns[name][0] for name in mine}
    kept = [
        line
        for number, line in enumerate(lines)
        if number not in gone and not ((match := _WIRE.match(line)) and match[2].strip() in home)
    ]
    end = kept.index("endmodule")
    return "\n".join([*kept[:end], *blocks, *kept[end:]])


def _ordered(names: Iterable[str], assigns: dict[str, tuple[int, str]]) -> list[str]:
    """Sort assignments so that each stands after those that it reads."""
    wanted, placed, result = set(names), set(), []
    for first in names:
        stack = [first]
        while stack:
            top = stack[-1]
            pending = [n for n in _names(assigns[top][1]) if n in wanted and n not in placed]
            if pending:
                stack += pending
                continue
            stack.pop()
            if top not in placed:
                placed.add(top)
                result.append(top)
    return result
