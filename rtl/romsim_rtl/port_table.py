"""The ports of the chip as data: name, direction, width and meaning."""

from __future__ import annotations

from typing import Any

from amaranth.lib import wiring

from romsim_rtl.top import Top

__all__ = ["port_table"]

_MEANING = {
    "clk": "clock, rising edge",
    "rst": "synchronous reset of control; memories keep what they hold",
    "cmd_valid": "there is a command",
    "cmd_ready": "a command is taken in this cycle, if there is one",
    "cmd_program": "0 decode, 1 one prompt token, 2 n_inflight prompt tokens, 3 the same with head",
    "cmd_tokens": "token of each in-flight index, 20 bits each, index 0 lowest",
    "cmd_reset": "begin a sequence at position 0",
    "cmd_adapted": "an adapter is used",
    "cmd_adapter": "first entry of the adapter in the adapter table",
    "cfg_kind": "0 nothing, 1 a chunk of the adapter table, 2 of an A bank, 3 of a B bank",
    "cfg_tile": "tile of the bank",
    "cfg_addr": "word",
    "cfg_chunk": "chunk of 64 bits in the word",
    "cfg_data": "the chunk",
    "page_en": "an entry of the block table is written; between programs",
    "page_index": "logical page, behind its sequence where there are several",
    "page_number": "physical page",
    "cmd_sequence": "sequence of the command",
    "fork_en": "a sequence takes the position of another; between programs",
    "fork_source": "the other",
    "fork_target": "the sequence",
    "copy_en": "a page is copied; between programs",
    "copy_source": "physical page",
    "copy_target": "physical page",
    "copy_tokens": "slots of the page that hold a token",
    "done_valid": "the program is over",
    "done_ready": "the host takes the result",
    "done_token": "lowest token among those with the largest logit",
    "logit_valid": "there is a beat of logits",
    "logit_row": "token of lane 0",
    "logit_mask": "lanes that count",
    "logit_data": "logits, 32 bits a lane, two's complement, frac F_L",
    "event_start": "issue in this cycle, bits 0 V, 1 L, 2 H",
    "event_busy": "units that are busy, bits 0 V, 1 L, 2 H",
    "count_clipped": "values clipped to 32 bits since reset",
    "count_cycles": "cycles in programs since reset",
    "count_wait": "cycles of waiting for the host since reset",
    "count_v": "cycles since reset in which the vector unit was busy",
    "count_l": "cycles since reset in which the L-units were busy",
    "count_h": "cycles since reset in which the H-units were busy",
    "count_issued": "instructions issued since reset",
}

_OF_ADDERS = {
    "cmd_adapter": "first group of the adapter in the adapter table",
    "cfg_kind": "0 nothing, 1 a chunk of the adapter table, 2 of a word of trits",
    "cfg_tile": "tile of the word",
    "cfg_addr": "run of a group, 8 to each; or a word, its cell above it",
    "cfg_chunk": "chunk of the entry; or of 64 bits in the word",
}
"""Where adapters run in the adder arrays."""


def port_table(top: Top) -> list[dict[str, Any]]:
    """Return the ports, one dict each: ``name``, ``direction``, ``bits``, ``meaning``."""
    meaning = _MEANING if top.l_config.adders is None else _MEANING | _OF_ADDERS
    rows: list[dict[str, Any]] = [
        {"name": name, "direction": "in", "bits": 1, "meaning": meaning[name]}
        for name in ("clk", "rst")
    ]
    for path, member, value in top.signature.flatten(top):
        (name,) = path
        rows.append(
            {
                "name": name,
                "direction": "in" if member.flow == wiring.In else "out",
                "bits": len(value),
                "meaning": meaning[name],
            }
        )
    return rows
