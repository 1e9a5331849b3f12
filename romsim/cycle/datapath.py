"""What each instruction does to a token's buffers (docs/numerics.md, section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from romsim.cycle.kernels_attention import attention, attention_output, quantise_heads
from romsim.cycle.kernels_matvec import add_saturated
from romsim.cycle.kernels_vector import (
    gated_activation,
    quantise_vector,
    rms_norm,
    rotate,
    scale_query,
    sine_cosine,
)
from romsim.cycle.kv_unit import KvUnit
from romsim.cycle.state import SlotState, TokenBuffers
from romsim.cycle.weights import BLOCK, Matrix, MatrixInput, load_matrix
from romsim_models.errors import DescriptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from romsim.cycle.adapters import AdapterGroup
    from romsim.cycle.chip import CompiledChip
    from romsim.cycle.kv_rows import PagePool
    from romsim.cycle.kv_store import Note
    from romsim.cycle.workers import Workers
    from romsim_compiler.program import Instruction

__all__ = ["Datapath", "Flight", "Recorder"]

Recorder = Callable[[str, int, "NDArray[Any]"], None]
"""Called with an operator's name (``L0.attn_norm.codes``), the position and the values."""

_NORM_RECORD = {
    "attn_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "attn_sub_norm": "attn",
    "ffn_sub_norm": "act",
}


@dataclass(slots=True, kw_only=True)
class Flight:
    """A token on its way through the chip."""

    token: int
    position: int
    buffers: TokenBuffers
    slot: SlotState
    adapter: Mapping[str, AdapterGroup]


class Datapath:
    """Executes instructions on buffers.

    Parameters
    ----------
    description
        The compiled chip, with images.
    workers
        Threads to share large matrices and attention.
    page_order
        Order in which free pages of the KV cache are handed out; see `romsim.cycle.kv_rows`.

    Attributes
    ----------
    record
        Called with every operator's output, or ``None``.
    logits
        int32 [vocab_size], of the last executed ``matvec head``.
    kv_unit
        What attends where the KV cache is not the plain one, or ``None``.
    """

    def __init__(
        self,
        description: CompiledChip,
        workers: Workers,
        page_order: Sequence[int] | None = None,
    ) -> None:
        self._workers = workers
        spec = description.spec
        self._spec = spec
        self._numerics = description.numerics
        self._gains = description.gains
        self._increments = description.phase_increments.astype(np.int64)
        self._query_scale = description.query_scale
        self._tables = _check_tables(description.tables)
        embedding = {i.operand for i in description.decode.instructions if i.op == "embed"}
        self._matrices: dict[str, Matrix] = {
            name: load_matrix(
                group, description.target, description.rom_words, is_embedding=name in embedding
            )
            for name, group in description.groups.items()
        }
        self._first_row = _first_rows(self._matrices, spec.q_dim, spec.kv_dim, spec.hidden_dim)
        kv = description.target.kv
        self.kv_unit: KvUnit | None = None
        if not kv.is_default:
            self.kv_unit = KvUnit(description, self._tables, workers, page_order)
        n_blocks = -(-kv.held(description.context) // self._numerics.attn_block)
        self.n_merge_levels = n_blocks.bit_length() + 1
        self._scores = np.zeros((spec.n_heads, self._numerics.attn_block), np.int64)
        self._context = description.context
        self.logits = np.zeros(spec.vocab_size, np.int32)
        self.record: Recorder | None = None
        self._execute: dict[str, Callable[[Instruction, Flight], int]] = {
            "embed": self._embed,
            "sincos": self._sincos,
            "norm": self._norm,
            "matvec": self._matvec,
            "lora": self._lora,
            "rope": self._rope,
            "attn": self._attn,
            "attn_out": self._attn_out,
            "resid": self._resid,
            "glu": self._glu,
        }

    @property
    def n_weight_bytes(self) -> int:
        """Memory that the matrices take, in bytes."""
        return sum(matrix.n_bytes for matrix in self._matrices.values())

    def new_slot(self) -> SlotState:
        """Return an empty sequence slot."""
        if self.kv_unit is not None:
            return SlotState(stores=self.kv_unit.new_stores())
        return SlotState.create(self._spec, self._context)

    @property
    def pages(self) -> PagePool | None:
        """Pages of the KV cache, all slots together; ``None`` without a block table."""
        return self.kv_unit.pool if self.kv_unit is not None else None

    def execute(self, instruction: Instruction, flight: Flight) -> int:
        """Execute one instruction for one token; return the number of saturations."""
        return self._execute[instruction.op](instruction, flight)

    def norm_length(self, name: str) -> int:
        """Return the number of elements that a norm reads and writes."""
        return len(self._gains[name].values)

    def matvec_output(
        self, instruction: Instruction, flight: Flight
    ) -> tuple[NDArray[np.int32], int]:
        """Return where a ``matvec`` writes, int32 [n_rows], and its first element's place in Y."""
        if instruction.layer < 0:
            return self.logits, 0
        first = self._first_row[instruction.operand]
        n_rows = self._matrices[instruction.operand].group.mapping.n_rows
        return flight.buffers.y[first : first + n_rows], first

    def _note(self, name: str, flight: Flight, values: NDArray[Any]) -> None:
        if self.record is not None:
            self.record(name, flight.position, values.copy())

    def _to_matrices(self, name: str, flight: Flight, values: NDArray[np.int32]) -> None:
        """Quantise into the x buffers."""
        vector = flight.buffers.matrix_input(len(values))
        quantise_vector(values, BLOCK, vector.codes, vector.shifts, vector.sums)
        if self.record is not None:
            codes = vector.codes[: len(values)].astype(np.int8)
            self.record(f"{name}.codes", flight.position, codes)
            self.record(f"{name}.shifts", flight.position, vector.shifts.astype(np.int8))

    def _embed(self, instruction: Instruction, flight: Flight) -> int:
        out = flight.buffers.x
        clipped = self._matrices[instruction.operand].embed(
            flight.token, self._numerics.residual_frac, out
        )
        self._note("embed", flight, out)
        return clipped

    def _sincos(self, instruction: Instruction, flight: Flight) -> int:
        buffers = flight.buffers
        sine_cosine(
            self._increments,
            flight.position,
            self._tables["SIN"],
            buffers.sines,
            buffers.cosines,
        )
        return 0

    def _norm(self, instruction: Instruction, flight: Flight) -> int:
        buffers = flight.buffers
        gain = self._gains[instruction.operand]
        source = (buffers.y if instruction.source == "Y" else buffers.x)[: len(gain.values)]
        out = buffers.vector[: len(gain.values)]
        clipped = rms_norm(
            source,
            gain.values,
            gain.shift,
            gain.eps_term,
            gain.root,
            gain.out_frac,
            self._tables["RSQ"],
            out,
        )
        name = "output_norm"
        if instruction.layer >= 0:
            kind = instruction.operand.rpartition(".")[2]
            name = f"L{instruction.layer}.{_NORM_RECORD[kind]}"
        self._to_matrices(name, flight, out)
        return int(clipped)

    def _matvec(self, instruction: Instruction, flight: Flight) -> int:
        matrix = self._matrices[instruction.operand]
        vector = flight.buffers.matrix_input(matrix.group.mapping.n_cols)
        out, _ = self.matvec_output(instruction, flight)
        clipped = matrix.multiply(vector, out, self._workers)
        flight.buffers.has_delta = False
        if instruction.layer < 0:
            self._note("logits", flight, out)
        return clipped

    def _lora(self, instruction: Instruction, flight: Flight) -> int:
        group = flight.adapter.get(instruction.operand)
        if group is None or not any(group.ranks):
            return 0
        buffers = flight.buffers
        buffers.delta[:] = 0
        buffers.has_delta = True
        buffers.coded_z.clear()
        clipped = 0
        for projection in group.projections:
            clipped += projection.apply(
                self._adapter_input(instruction.operand, buffers),
                in_frac=self._site(instruction.operand).group.in_frac,
                linear_frac=self._numerics.linear_frac,
                out_frac=self._site(instruction.operand).group.out_frac,
                delta=buffers.delta,
                coded=buffers.coded_z,
            )
        return clipped

    def _site(self, name: str) -> Matrix:
        """Return the group of that name, or the first of those that it was split into."""
        if name in self._matrices:
            return self._matrices[name]
        layer, _, kind = name.partition(".")
        return self._matrices[f"{layer}.{'gate' if kind == 'gu' else 'q'}"]

    def _adapter_input(self, name: str, buffers: TokenBuffers) -> MatrixInput:
        return buffers.matrix_input(self._site(name).group.mapping.n_cols)

    def _linear(self, n_rows: int, buffers: TokenBuffers) -> tuple[NDArray[np.int32], int]:
        """Return ``SAT32(Y + D)`` and the saturations."""
        out = buffers.linear[:n_rows]
        if buffers.has_delta:
            clipped = add_saturated(buffers.y[:n_rows], buffers.delta[:n_rows], out)
            return out, int(clipped)
        out[:] = buffers.y[:n_rows]
        return out, 0

    def _rope(self, instruction: Instruction, flight: Flight) -> int:
        spec, buffers, name = self._spec, flight.buffers, f"L{instruction.layer}"
        linear, clipped = self._linear(spec.q_dim + 2 * spec.kv_dim, buffers)
        q, k = linear[: spec.q_dim], linear[spec.q_dim : spec.q_dim + spec.kv_dim]
        v = linear[spec.q_dim + spec.kv_dim :]
        for operator, values in (("q", q), ("k", k), ("v", v)):
            self._note(f"{name}.{operator}", flight, values)
        unit = self.kv_unit
        plain_q = q.copy() if unit is not None and unit.has_sink_query else None
        kept_k = k.copy() if unit is not None and unit.takes_plain_keys else k
        clipped += int(rotate(linear[: spec.q_dim + spec.kv_dim], buffers.sines, buffers.cosines))
        clipped += int(scale_query(q, self._query_scale))
        quantise_heads(q, spec.head_dim, buffers.q_codes, buffers.q_shifts)
        self._note_heads(f"{name}.q", flight, buffers.q_codes, buffers.q_shifts)
        if unit is not None:
            note = self._layer_note(instruction, flight)
            if plain_q is not None:
                clipped += unit.code_sink_query(plain_q, flight.position, note)
            flight.slot.stores[instruction.layer].write(flight.position, kept_k, v, note)
            return clipped
        cache = flight.slot.layers[instruction.layer]
        for operator, values, codes, shifts in zip(
            ("k", "v"), (k, v), cache.codes, cache.shifts, strict=True
        ):
            quantise_heads(values, spec.head_dim, buffers.kv_codes, buffers.kv_shifts)
            codes[:, flight.position] = buffers.kv_codes
            shifts[:, flight.position] = buffers.kv_shifts
            self._note_heads(f"{name}.{operator}", flight, buffers.kv_codes, buffers.kv_shifts)
        return clipped

    def _layer_note(self, instruction: Instruction, flight: Flight) -> Note:
        name = f"L{instruction.layer}."
        return lambda what, values: self._note(name + what, flight, values.reshape(-1))

    def _note_heads(
        self, name: str, flight: Flight, codes: NDArray[np.int16], shifts: NDArray[np.int64]
    ) -> None:
        if self.record is not None:
            heads = codes[:, : self._spec.head_dim].astype(np.int8).reshape(-1)
            self.record(f"{name}.codes", flight.position, heads)
            self.record(f"{name}.shifts", flight.position, shifts.astype(np.int8).reshape(-1))

    def _attn(self, instruction: Instruction, flight: Flight) -> int:
        buffers, spec = flight.buffers, self._spec
        if self.kv_unit is not None:
            store = flight.slot.stores[instruction.layer]
            note = self._layer_note(instruction, flight)
            return self.kv_unit.attend(store, flight.position, buffers, note)
        cache = flight.slot.layers[instruction.layer]
        arguments = (
            buffers.q_codes.reshape(-1),
            buffers.q_shifts.reshape(-1),
            cache.codes[0].reshape(-1),
            cache.shifts[0].reshape(-1),
            cache.codes[1].reshape(-1),
            cache.shifts[1].reshape(-1),
            self._context,
            flight.position + 1,
            self._numerics.attn_block,
            spec.n_groups,
            2 * self._numerics.linear_frac - 16,
            self._tables["EXP"],
            self._scores,
            buffers.maxima.reshape(-1),
            buffers.weights.reshape(-1),
            buffers.sums.reshape(-1),
        )
        return self._workers.run(attention, arguments, n_pieces=spec.n_heads)

    def _attn_out(self, instruction: Instruction, flight: Flight) -> int:
        buffers, spec = flight.buffers, self._spec
        to_y = instruction.target == "Y"
        out = (buffers.y if to_y else buffers.vector)[: spec.q_dim]
        clipped = attention_output(
            buffers.weights[:, 0].copy(),
            buffers.sums[:, 0].copy(),
            spec.head_dim,
            self._tables["RCP"],
            out,
        )
        self._note(f"L{instruction.layer}.attn", flight, out)
        if not to_y:
            self._to_matrices(f"L{instruction.layer}.attn", flight, out)
        return int(clipped)

    def _resid(self, instruction: Instruction, flight: Flight) -> int:
        buffers = flight.buffers
        linear, clipped = self._linear(self._spec.dim, buffers)
        self._note(instruction.operand, flight, linear)
        clipped += int(add_saturated(buffers.x, linear, buffers.x))
        after = "x_attn" if instruction.operand.endswith(".o") else "x_ffn"
        self._note(f"L{instruction.layer}.{after}", flight, buffers.x)
        return clipped

    def _glu(self, instruction: Instruction, flight: Flight) -> int:
        buffers, hidden, name = flight.buffers, self._spec.hidden_dim, f"L{instruction.layer}"
        linear, clipped = self._linear(2 * hidden, buffers)
        gate, up = linear[:hidden], linear[hidden:]
        self._note(f"{name}.gate", flight, gate)
        self._note(f"{name}.up", flight, up)
        to_y = instruction.target == "Y"
        out = (buffers.y if to_y else buffers.vector)[:hidden]
        clipped += int(
            gated_activation(
                gate,
                up,
                self._spec.activation == "silu",
                self._numerics.linear_frac,
                self._tables["SIG"],
                out,
            )
        )
        if not to_y:
            self._to_matrices(f"{name}.act", flight, out)
        return clipped


def _check_tables(tables: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
    result = {}
    for name, n_entries in (("SIN", 257), ("EXP", 257), ("SIG", 1025), ("RSQ", 96), ("RCP", 128)):
        if name not in tables or len(tables[name]) != n_entries:
            found = f"{len(tables[name])} entries" if name in tables else "missing"
            raise DescriptionError(
                f"Table {name} of the description must have {n_entries} entries, not {found}; "
                f"compile again"
            )
        result[name] = np.ascontiguousarray(tables[name], dtype=np.int64)
    return result


def _first_rows(
    matrices: Mapping[str, Matrix], q_dim: int, kv_dim: int, hidden_dim: int
) -> dict[str, int]:
    """Return where each group's output starts in the Y buffer."""
    place = {"k": q_dim, "v": q_dim + kv_dim, "up": hidden_dim}
    return {name: place.get(matrix.group.members[0][1], 0) for name, matrix in matrices.items()}
