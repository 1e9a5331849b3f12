# amaranth: UnusedElaboratable=no
"""A Verilated vector unit under test: its emission, its stimuli, what it wrote and sent."""

from __future__ import annotations

import re
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from romsim_compiler.numerics import Numerics
from romsim_compiler.tables import tables
from romsim_compiler.target import (
    Array,
    Attention,
    Embedding,
    Formats,
    Latency,
    Network,
    Schedule,
    Target,
)
from romsim_compiler.target import VectorUnit as VectorShape
from romsim_models.spec import ModelSpec
from romsim_rtl.encoding import WORD_BITS, pack
from romsim_rtl.gated_verilog import write_verilog
from romsim_rtl.memory import VerilogPlatform
from romsim_rtl.vector_control import LATENCY
from romsim_rtl.vector_unit import VectorUnit
from romsim_rtl.verilated import verilate

HERE = Path(__file__).resolve().parent
VERILOG = HERE.parents[1] / "rtl" / "romsim_rtl" / "verilog"
TABLES = {name: [int(value) for value in values] for name, values in tables().items()}
INSTR_WORDS = -(-WORD_BITS // 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a unit under test."""

    n_lanes: int = 32
    dim: int = 64
    n_heads: int = 2
    n_kv_heads: int = 1
    head_dim: int = 32
    hidden_dim: int = 96
    vocab_size: int = 100
    n_inflight: int = 2
    word_codes: int = 32
    lane_bits: int = 4
    encoding: str = "unsigned"
    scale_group: int = 32
    min_bits: int = 16
    activation: str = "silu"
    has_sub_norms: bool = False
    broadcast_cycles: int = 1
    collect_cycles: int = 1
    n_gain_words: int = 64
    query_scale: int = 188_067

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(
            name="under test",
            arch="llama",
            dim=self.dim,
            n_layers=2,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            head_dim=self.head_dim,
            hidden_dim=self.hidden_dim,
            vocab_size=self.vocab_size,
            norm_eps=1e-5,
            rope_theta=1e4,
            max_seq_len=2048,
            tie_embeddings=True,
            activation=self.activation,
            has_sub_norms=self.has_sub_norms,
        )

    @property
    def target(self) -> Target:
        return Target(
            name="under-test",
            summary="",
            executable=True,
            technology="asap7",
            clock_mhz=500.0,
            array=Array(
                n_tiles=2,
                n_cells=2,
                rom_rows=1024,
                word_codes=self.word_codes,
                lane_bits=self.lane_bits,
                encoding=self.encoding,
                scale_group=self.scale_group,
                scale_bits=16,
                min_bits=self.min_bits,
            ),
            vector=VectorShape(n_lanes=self.n_lanes, sram_kib=64),
            attention=Attention(sram_kib=64, word_elems=32, heads_parallel=1, attn_block=64),
            formats=Formats(activation="mxint8", kv="mxint8", lora="mxint8"),
            network=Network(
                broadcast_cycles=self.broadcast_cycles, collect_cycles=self.collect_cycles
            ),
            schedule=Schedule(n_inflight=self.n_inflight),
            embedding=Embedding(input="rom", head="rom"),
            latency=replace(Latency(), **LATENCY),
        )

    def beats(self, length: int) -> int:
        return -(-length // self.n_lanes)

    @property
    def x_words(self) -> int:
        """Words between two tokens in the X buffer."""
        return 1 << max(1, (self.beats(self.dim) - 1).bit_length())

    @property
    def y_words(self) -> int:
        """Words between two tokens in the Y buffer."""
        rows = (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
        longest = max(2 * self.hidden_dim, rows, self.dim)
        return 1 << max(1, self.beats(longest).bit_length())

    @property
    def increments(self) -> list[int]:
        return [
            round(2**32 * 10000.0 ** (-2 * j / self.head_dim) / 6.283185307179586) % 2**32
            for j in range(self.head_dim // 2)
        ]

    def unit(self, gain_words: Sequence[int] = ()) -> VectorUnit:
        return VectorUnit(
            target=self.target,
            spec=self.spec,
            numerics=Numerics(),
            tables=TABLES,
            phase_increments=self.increments,
            query_scale=self.query_scale,
            n_gain_words=self.n_gain_words,
            gain_words=gain_words,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One broadcast."""

    cycle: int
    kind: int
    token: int
    layer: int
    pos: int
    block: int
    mask: int
    groups: tuple[tuple[tuple[int, ...], int, int], ...]


Answer = tuple[int, int, int, dict[int, int]]
"""Row and value of the best logit, clips, and all logits by their row."""


@dataclass
class Run:
    """What an operation did."""

    duration: int
    beats: list[Beat]
    writes: dict[str, dict[tuple[int, int], int]]  # buffer -> (address, lane) -> value
    cycles: dict[str, list[int]]  # buffer -> cycles with a write
    results: dict[int, list[int]]  # cycle -> lanes of the result register, where it is valid
    angles: dict[tuple[int, int, int], tuple[int, int]]  # (group, address, pair) -> sine, cosine
    reads: dict[str, int]  # memory -> its reads, those of idle cycles before it included
    changes: dict[str, int]  # data register -> cycles in which it changed, likewise
    logits: dict[int, int]  # row -> value


class Bench:
    """Build once; queue operations; run; read what each did."""

    ARGS: tuple[str, ...] = ()
    """More arguments for Verilator."""

    OPT = "-O1"
    """Optimisation of g++ where writes are traced."""

    PREPARE = "static void prepare(Top&, VerilatedContext&) {}\n"
    """C++ that is executed before the reset."""

    def __init__(self, shape: Shape, folder: Path, *, is_traced: bool = True) -> None:
        self.shape = shape
        self.folder = folder
        self.arguments = [f"+romdir={folder}"]
        folder.mkdir(parents=True, exist_ok=True)
        self.files = self.emit(folder)
        self.watched = _watched(self.files)
        (folder / "shape.h").write_text(
            _shape_header(shape, shape.unit(), is_traced, self.watched) + self.PREPARE
        )
        extra = []
        if is_traced:
            trace = folder / "traced.vlt"
            trace.write_text(
                "`verilator_config\n"
                'public_flat_rd -module "romsim_sram" -var "w_*"\n'
                'public_flat_rd -module "romsim_sram" -var "r_en"\n'
                'public_flat_rd -module "romsim_rom" -var "r_en"\n'
                'public_flat_rd -module "romsim_vector_group" -var "v*"\n'
                + "".join(
                    f'public_flat_rd -module "romsim_vector_group" -var "{name}"\n'
                    for name in self.watched
                )
            )
            extra.append(trace)
        self.build = verilate(
            [*extra, *self.files],
            "romsim_vector",
            cpp=[HERE / "vector_main.cpp"],
            headers=[folder / "shape.h"],
            opt=self.OPT if is_traced else "-O3",
            args=self.ARGS,
        )
        self.data = bytearray()
        self.n_runs = 0

    def emit(self, folder: Path) -> list[Path]:
        """Write the unit's Verilog."""
        return emit(self.shape, folder)

    def _put(self, *values: int) -> None:
        self.data += struct.pack(f"<{len(values)}I", *(value & 0xFFFFFFFF for value in values))

    def load(self, which: str, values: Sequence[int]) -> None:
        """Contents of unit H: "o" (int64 a lane), "d" or "l"."""
        self._put(1, "odl".index(which), len(values))
        for value in values:
            self._put(value, *([value >> 32] if which == "o" else []))

    def set_d_valid(self, valid: bool) -> None:
        self._put(2, int(valid))

    def rows(
        self, token: int, values: Sequence[int], *, first_row: int = 0, is_head: bool = False
    ) -> None:
        """Rows from unit L, a beat of n_lanes at a time; lanes past the end carry noise."""
        for beat in self._beats(token, values, first_row, is_head):
            self._put(3, *beat)

    def _beats(
        self, token: int, values: Sequence[int], first_row: int, is_head: bool
    ) -> list[list[int]]:
        n_lanes = self.shape.n_lanes
        beats = []
        for at in range(0, len(values), n_lanes):
            part = list(values[at : at + n_lanes])
            mask = (1 << len(part)) - 1
            part += [0x7FFFFFFF] * (n_lanes - len(part))
            masks = [mask >> 32 * group & 0xFFFFFFFF for group in range(n_lanes // 32)]
            beats.append([token, int(is_head), first_row + at, *masks, *part])
        return beats

    def start(
        self,
        fields: dict[str, int],
        *,
        pos: int = 0,
        words: Sequence[tuple[int, ...]] = (),
        rows: tuple[int, Sequence[int]] = (0, ()),
    ) -> int:
        """Queue an instruction.

        ``words`` are (cycle, word, plane, data) of the embedding; ``rows`` are a token and its
        rows from unit L, which come while the instruction runs.
        """
        word = pack(fields)
        self._put(4, *(word >> 32 * k for k in range(INSTR_WORDS)), pos, len(words))
        em_words = -(-self.shape.target.array.word_bits // 32)
        for cycle, number, plane, data in words:
            self._put(cycle, number, plane, *(data >> 32 * k for k in range(em_words)))
        beats = self._beats(*rows, 0, False)
        self._put(len(beats))
        for beat in beats:
            self._put(*beat)
        self.n_runs += 1
        return self.n_runs - 1

    def idle(self, n: int) -> None:
        self._put(5, n)

    def ask(self) -> None:
        self._put(6)

    def clock(self, n: int, fields: dict[str, int] | None) -> None:
        """Time n cycles: idle, or with one instruction over and over; see ``stderr``."""
        word = pack(fields or {})
        self._put(7, n, int(fields is not None), *(word >> 32 * k for k in range(INSTR_WORDS)))

    def run(self, gains: Sequence[int] = ()) -> tuple[list[Run], list[Answer]]:
        """Run what is queued; ``gains`` fill the gain ROM."""
        return self.parse(self.simulate(gains))

    def parse(self, text: str) -> tuple[list[Run], list[Answer]]:
        """Read a log: what each instruction did, and the answers."""
        return _parse(text, self.watched)

    def simulate(self, gains: Sequence[int] = ()) -> str:
        """Run what is queued and return its log."""
        n_lanes = self.shape.n_lanes
        lines = []
        padded = [*gains, *[0] * (self.shape.n_gain_words * n_lanes - len(gains))]
        for at in range(0, len(padded), n_lanes):
            lanes = padded[at : at + n_lanes]
            lines.append("".join(f"{value & 0xFFFFFFFF:08x}" for value in reversed(lanes)))
        (self.folder / "gains.hex").write_text("\n".join(lines) + "\n")
        stimuli = self.folder / "stimuli.bin"
        stimuli.write_bytes(bytes(self.data) + struct.pack("<I", 0))
        log = self.folder / "log.txt"
        done = subprocess.run(
            [
                str(self.build.executable),
                str(stimuli),
                str(log),
                *self.arguments,
            ],
            check=True,
            timeout=300,
            capture_output=True,
            text=True,
        )
        self.stderr = done.stderr
        self.data, self.n_runs = bytearray(), 0
        return log.read_text()


def emit(shape: Shape, folder: Path, gain_words: Sequence[int] = ()) -> list[Path]:
    """Write the unit's Verilog."""
    platform = VerilogPlatform()
    unit = shape.unit(gain_words)
    top = folder / "romsim_vector.v"
    top.write_text(write_verilog(unit, "romsim_vector", platform, unread=unit.unread_bits()))
    files = [top]
    for name, part in platform.shared.items():
        path = folder / f"{name}.v"
        path.write_text(write_verilog(part, name, platform))
        files.append(path)
    return [*files, VERILOG / "romsim_sram.v", VERILOG / "romsim_rom.v"]


def _shape_header(shape: Shape, unit: VectorUnit, is_traced: bool, registers: Iterable[str]) -> str:
    n_lanes, n_groups = shape.n_lanes, shape.n_lanes // 32
    em_words = -(-shape.target.array.word_bits // 32)
    lines = [
        f"#define N_LANES {n_lanes}",
        f"#define N_GROUPS {n_groups}",
        f"#define EM_WORDS {em_words}",
        f"#define INSTR_WORDS {INSTR_WORDS}",
        "using Top = Vromsim_vector;",
    ]

    def switch(head: str, port: str, n: int, body: str) -> None:
        cases = " ".join(
            f"case {k}: {body.replace('@', f'top.{port}___05F{k}')};" for k in range(n)
        )
        lines.append(f"{head} {{ switch (k) {{ {cases} }} std::abort(); }}")

    switch("static void set_o(Top& top, int k, int64_t v)", "o_data", n_lanes, "@ = v; return")
    switch("static void set_d(Top& top, int k, int32_t v)", "d_data", n_lanes, "@ = v; return")
    switch("static void set_ly(Top& top, int k, int32_t v)", "ly_data", n_lanes, "@ = v; return")
    switch("static int32_t lg(Top& top, int k)", "lg_data", n_lanes, "return @")
    switch("static const uint32_t* codes(Top& top, int k)", "bc_codes", n_groups, "return @.data()")
    switch("static int shift(Top& top, int k)", "bc_shift", n_groups, "return @")
    switch(
        "static int sum(Top& top, int k)",
        "bc_sum",
        n_groups,
        "return static_cast<int16_t>(@ << 3) >> 3",
    )
    wide = "std::memcpy(&top.ly_mask, m, 4 * N_GROUPS);"
    lines.append(f"static void set_ly_mask(Top& top, const uint32_t* m) {{ {wide} }}")
    lines.append(
        "static void set_em(Top& top, const uint32_t* d) "
        "{ std::memcpy(&top.em_data, d, 4 * EM_WORDS); }"
    )
    lines += _trace_code(unit, n_groups, registers) if is_traced else _UNTRACED
    return "\n".join(lines) + "\n"


READS = ("x", "y", "sc", "gains", "o", "d", "l")
"""Memories whose reads are counted, those of all lane groups together."""


def _watched(files: Sequence[Path]) -> dict[str, str]:
    """Data registers of lane 0 of the first group, with the operator that they are for.

    A register of which only a part is needed has another name in the Verilog, and is left out.
    """
    names = {
        "norm": "norm_u0 norm_square0 norm_part0 squares norm_x0 norm_xr0 norm_n0 norm_nw0",
        "rope": "rope_sine0 rope_cosine0 rope_kept0 rope_rotated0 rope_scaled0 rope_passed0",
        "attn_out": "attn_reduced0 attn_product0",
        "glu": "glu_up0_0 glu_up1_0 glu_up2_0 glu_gate0 glu_size0 glu_held0 glu_weight0 "
        "glu_active0 glu_product0",
        "embed": "embed_code0 embed_product0 embed_total0",
    }
    text = "\n".join(path.read_text() for path in files)
    return {
        name: op
        for op, listed in names.items()
        for name in listed.split()
        if re.search(rf"\] {name};", text)
    }


_HEADS = (
    "template <class F> static void trace_memories(Top& top, F log)",
    "template <class F> static void trace_results(Top& top, F log)",
    "static void count_reads(Top& top, int* reads)",
    "static void look_at_registers(Top& top, uint64_t* registers)",
)
_UNTRACED = [f"#define N_READS {len(READS)}", "#define N_REGISTERS 1"] + [
    f"{head} {{ (void)top; (void){head.split()[-1].rstrip(')').lstrip('*')}; }}" for head in _HEADS
]


def _trace_code(unit: VectorUnit, n_groups: int, names: Iterable[str]) -> list[str]:
    root = "top.rootp->romsim_vector__DOT__"
    ys = [f"y{bank}" for bank in range(unit.group_config.y_banks)]
    writes, results = [], []
    counts = [f"reads[{READS.index(name)}] += top.{name}_en;" for name in "odl"]
    counts.append(f"reads[{READS.index('gains')}] += {root}gains__02emacro__DOT__r_en;")
    for group in range(n_groups):
        scope = f"{root}group{group}__DOT__"
        for name in ("x", *ys, "sc"):
            macro = f"{scope}{name}__02emacro__DOT__"
            at = f"{macro}w_"
            words = 22 if name == "sc" else 32
            args = f"{at}en, {at}addr, {at}mask, {at}data.data(), {words}"
            writes.append(f'  log("{name}", {group}, {args});')
            counts.append(f"reads[{READS.index(name.rstrip('0123456789'))}] += {macro}r_en;")
        lanes = ", ".join(f"static_cast<uint32_t>({scope}v{lane})" for lane in range(32))
        results.append(
            f"  if ({scope}v_valid) "
            f"{{ const uint32_t lanes[] = {{ {lanes} }}; log({group}, lanes); }}"
        )
    registers = [
        f"  registers[{index}] = {root}group0__DOT__{name};" for index, name in enumerate(names)
    ]
    bodies = ["\n".join(lines) for lines in (writes, results, counts, registers)]
    code = [f"{head} {{\n{body}\n}}" for head, body in zip(_HEADS, bodies, strict=True)]
    sizes = [f"#define N_READS {len(READS)}", f"#define N_REGISTERS {len(registers)}"]
    return [*sizes, *code]


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def _parse(text: str, watched: Iterable[str]) -> tuple[list[Run], list[Answer]]:
    runs: list[Run] = []
    answers: list[Answer] = []

    def fresh() -> Run:
        return Run(0, [], defaultdict(dict), defaultdict(list), defaultdict(list), {}, {}, {}, {})

    current = fresh()
    for line in text.splitlines():
        kind, *parts = line.split()
        if kind == "S":
            current = fresh()  # rows from unit L came before
        elif kind == "B":
            cycle, bus, token, layer, pos, block = map(int, parts[:6])
            groups = []
            for at in range(7, len(parts), 3):
                codes = tuple(_signed(int(parts[at], 16) >> 8 * k & 255, 8) for k in range(32))
                groups.append((codes, int(parts[at + 1]), int(parts[at + 2])))
            current.beats.append(
                Beat(
                    cycle=cycle,
                    kind=bus,
                    token=token,
                    layer=layer,
                    pos=pos,
                    block=block,
                    mask=int(parts[6], 16),
                    groups=tuple(groups),
                )
            )
        elif kind == "L":
            mask, row = int(parts[1], 16), int(parts[0])
            values = {row + k: int(part) for k, part in enumerate(parts[2:]) if mask >> k & 1}
            current.logits |= values
        elif kind == "V":
            data = int(parts[2], 16)
            current.results[int(parts[0])] += [
                _signed(data >> 32 * k & 0xFFFFFFFF, 32) for k in range(32)
            ]
        elif kind == "C":
            current.reads = dict(zip(READS, map(int, parts), strict=True))
        elif kind == "T":
            current.changes = dict(zip(watched, map(int, parts), strict=True))
        elif kind == "sc":
            group, address, mask = int(parts[1]), int(parts[2]), int(parts[3], 16)
            data = int(parts[4], 16)
            for k in range(16):
                if mask >> k & 1:
                    pair = tuple(_signed(data >> 44 * k + at & 0x3FFFFF, 22) for at in (0, 22))
                    current.angles[group, address, k] = (pair[0], pair[1])
        elif kind == "F":
            current.duration = int(parts[0])
            runs.append(current)
            current = fresh()
        elif kind == "A":
            answers.append((int(parts[0]), int(parts[1]), int(parts[2]), current.logits))
        else:
            cycle, group, address, mask = (
                int(parts[0]),
                int(parts[1]),
                int(parts[2]),
                int(parts[3], 16),
            )
            data = int(parts[4], 16)
            for k in range(32):
                if mask >> k & 1:
                    lane = 32 * group + k
                    current.writes[kind][address, lane] = _signed(data >> 32 * k & 0xFFFFFFFF, 32)
            if cycle not in current.cycles[kind]:
                current.cycles[kind].append(cycle)
    return runs, answers
