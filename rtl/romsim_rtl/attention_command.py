"""What unit H's controller tells its tiles, and the delay lines on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from romsim_rtl.attention_sizes import MAX_BITS, AttentionSizes, log2
from romsim_rtl.memory import address_bits

__all__ = [
    "OPERATIONS",
    "command_signature",
    "delay",
    "delay_command",
    "drive_tile",
    "held",
    "maximum_signature",
    "merge_signature",
    "valid_chain",
]

OPERATIONS = ("qk", "mx", "ex", "pv", "mg")
"""Phases of an attention block: scores, maximum, exponentials, values, sum over tiles."""


def command_signature(sizes: AttentionSizes, *, n_banks: int = 1) -> wiring.Signature:
    """Describe the command bus, controller to tiles.

    Parameters
    ----------
    n_banks
        Addresses in the bank, where tiles differ: the controller gives one for each colour.

    Members
    -------
    qk, mx, ex, pv, mg
        One of them says what the fields are for; none, that there is nothing to do.
    first_tok, last_tok, first_word, last_word
        Bounds of the sweep over a head: of tokens (qk, ex, pv) and of words of a key (qk).
    last_valid
        In the last slot of a block, the last tile that has a token; with several tiles.
    first_half, last_half
        A read begins and ends a word (qk, pv); if words are read by halves.
    full
        All lanes have a query head (qk); if a pass may have fewer.
    sink, sink_end
        In all tiles, or in those below the number of sinks modulo the tiles, the slot is a sink
        (qk); if there are any.
    token
        In-flight index, selects the query buffer (qk); with several tokens in flight.
    bank
        Address in the K bank (qk) or the V bank (pv).
    window, coded
        Address in a window of words, and how many tiles, the first ones, have codes instead (qk,
        pv); with codec ``kivi``, where ``bank`` is the address of codes.
    bank_group, q_group
        Lane groups of the KV word's first block and of lane 0's query word; with several banks.
    entry, lane
        Pass over a KV head, and lane in it (mx).
    word
        ``entry · wt +`` word of a head (qk, pv).
    slot
        Address of a score and its numerator (qk, ex, pv).
    block
        Of the numerators (ex, pv); where attention mass is counted.
    o_word, o_select, o_entry
        For each lane group of a beat: address, lane and block of its sums, and entry (mg).
    """
    groups = sizes.n_groups
    flags = ["first_tok", "last_tok", "first_word", "last_word"]
    if sizes.last_lanes < sizes.heads_parallel:
        flags.append("full")
    if sizes.words.has_halves:
        flags += ["first_half", "last_half"]
    if sizes.sinks:
        flags += ["sink", "sink_end"]
    members: dict[str, Any] = {name: Out(1) for name in (*OPERATIONS, *flags)}
    bank = Out(address_bits(sizes.bank_words))
    members |= {
        "bank": bank.array(n_banks) if n_banks > 1 else bank,
        "entry": Out(address_bits(sizes.n_entries)),
        "lane": Out(address_bits(sizes.heads_parallel)),
        "word": Out(address_bits(sizes.n_entries * sizes.row_words)),
        "slot": Out(address_bits(sizes.n_entries * sizes.block_slots)),
        "o_word": Out(address_bits(sizes.n_entries * sizes.row_words)).array(groups),
        "o_select": Out(address_bits(sizes.heads_parallel * sizes.word_blocks)).array(groups),
        "o_entry": Out(address_bits(sizes.n_entries)).array(groups),
    }
    if sizes.kivi is not None:
        heads = sizes.n_layers * sizes.n_kv_heads
        window = heads * sizes.kivi.places["v"] * sizes.row_words
        members["window"] = Out(address_bits(window))
        members["coded"] = Out(log2(sizes.n_tiles) + 1)
    if sizes.is_ranked:
        members["block"] = Out(address_bits(sizes.n_blocks))
    if sizes.n_tiles > 1:
        members["last_valid"] = Out(log2(sizes.n_tiles))
    if sizes.n_inflight > 1:
        members["token"] = Out(address_bits(sizes.n_inflight))
    if sizes.n_banks > 1:
        members["bank_group"] = Out(log2(groups))
        members["q_group"] = Out(log2(groups))
    return wiring.Signature(members)


def maximum_signature(sizes: AttentionSizes) -> wiring.Signature:
    """Describe the bus that brings a head's maximum over all tiles back to the tiles."""
    return wiring.Signature(
        {
            "valid": Out(1),
            "entry": Out(address_bits(sizes.n_entries)),
            "lane": Out(address_bits(sizes.heads_parallel)),
            "value": Out(MAX_BITS),
        }
    )


def merge_signature(sizes: AttentionSizes) -> wiring.Signature:
    """Describe the steps of the merge tree.

    Members
    -------
    valid
        There is a step.
    load
        The first of a beat: begin with the sum over the tiles.
    join, level
        Join with the stack's entry of this level (one-hot).
    store, target
        The last of a beat: put the result at this level (one-hot).
    final
        The last of a beat of the last block: the result is the output.
    beat
        Which beat of all query heads.
    """
    return wiring.Signature(
        {
            "valid": Out(1),
            "load": Out(1),
            "join": Out(1),
            "level": Out(sizes.n_levels),
            "store": Out(1),
            "final": Out(1),
            "target": Out(sizes.n_levels),
            "beat": Out(address_bits(sizes.beats)),
        }
    )


def valid_chain(m: Module, start: Any, n_stages: int, name: str) -> list[Any]:
    """Return ``start`` and its delays by 1 to ``n_stages`` cycles, the enables of a pipeline."""
    chain: list[Any] = [start]
    for index in range(n_stages):
        stage = Signal(name=f"{name}{index + 1}")
        m.d.sync += stage.eq(chain[-1])
        chain.append(stage)
    return chain


def held(m: Module, port: Any) -> Any:
    """Return a register behind an output: as data, it has no reset, which ports would have."""
    register = Signal(port.shape(), name=f"{port.name}_held", reset_less=True)
    # a module of its own: here may be inside an If, and the connection must not be
    connection = Module()
    connection.d.comb += port.eq(register)
    m.submodules += connection
    return register


def delay(
    m: Module, valid: Any, values: Mapping[str, Value], cycles: int, name: str
) -> tuple[Any, dict[str, Any]]:
    """Delay values by registers that move only where something valid passes.

    Returns
    -------
    tuple
        The delayed valid bit, and the delayed values by name.
    """
    current: dict[str, Any] = dict(values)
    for index in range(cycles):
        after = {
            key: Signal(value.shape(), name=f"{name}{index + 1}_{key}", reset_less=True)
            for key, value in current.items()
        }
        with m.If(valid):
            m.d.sync += [after[key].eq(value) for key, value in current.items()]
        (valid,) = valid_chain(m, valid, 1, f"{name}{index + 1}_v")[1:]
        current = after
    return valid, current


def drive_tile(m: Module, command: Any, target: Any, colour: int) -> None:
    """Connect a tile of a colour to the command bus."""
    ours = {
        path: value
        for path, _, value in command.signature.flatten(command)
        if path[0] != "bank" or path[1:] in ((), (colour,))
    }
    for path, _, value in target.signature.flatten(target):
        m.d.comb += value.eq(ours[path] if path in ours else ours[*path, colour])


def delay_command(m: Module, command: Any, cycles: int) -> Any:
    """Delay a command; the operation bits are 0 where nothing passes.

    Returns
    -------
    interface
        An object with the members of `command_signature`.
    """
    signature = command.signature
    for index in range(cycles):
        after = signature.create(path=(f"command{index + 1}",))
        busy = Signal(name=f"command{index}_busy")
        m.d.comb += busy.eq(Cat(getattr(command, name) for name in OPERATIONS).any())
        for (path, _, before), (_, _, target) in zip(
            signature.flatten(command), signature.flatten(after), strict=True
        ):
            if path[0] in OPERATIONS:
                m.d.sync += target.eq(before)
            else:
                with m.If(busy):
                    m.d.sync += held(m, target).eq(before)
        command = after
    return command
