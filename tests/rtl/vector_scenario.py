"""Random programs for the vector unit, run against the golden model: values and cycles."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from romsim_compiler.durations import fixed_cycles
from romsim_compiler.mapping import map_group
from romsim_compiler.program import Instruction
from romsim_rtl.encoding import OPS
from tests.rtl.vector_bench import TABLES, Answer, Beat, Bench, Run
from tests.rtl.vector_golden import HIGH, LOW, Golden, mx_blocks
from tests.rtl.vector_ties import factor_near_tie, gates_near_ties, near_half

Check = Callable[[Run], None]


@dataclass
class Token:
    """Buffers of one in-flight token, as the golden model has them."""

    x: list[int]
    y: list[int]
    angles: list[tuple[int, int]] = field(default_factory=list)


class Scenario:
    """Queue instructions with random data, and what each must have done."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.shape = bench, bench.shape
        self.random = random.Random(seed)
        self.golden = Golden(TABLES)
        shape = self.shape
        longest = max(
            2 * shape.hidden_dim, (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim, shape.dim
        )
        self.tokens = [Token(x=[0] * shape.dim, y=[0] * longest) for _ in range(shape.n_inflight)]
        self.gains: list[int] = []
        self.checks: list[tuple[str, Check]] = []
        self.early: dict[int, list[int]] = {}  # token -> rows that came during another's work
        self.n_values = 0
        self.planes = 1  # of the last embedding

    # --- random data ------------------------------------------------------------------------

    def numbers(self, n: int) -> list[int]:
        """Values of one of several characters: small, mixed, extreme, all zero."""
        character = self.random.randrange(6)
        if character == 0:
            return [0] * n
        if character == 1:
            return [self.random.choice([LOW, HIGH, LOW + 1, -1, 0, 1]) for _ in range(n)]
        if character == 2:
            bits = self.random.randrange(1, 12)
            return [self.random.randrange(-(1 << bits), 1 << bits) for _ in range(n)]
        if character == 3:
            bits = self.random.randrange(8, 31)
            edge = (255 << bits >> 8) - self.random.randrange(2)
            return [self.random.choice([edge, -edge, edge + 1, 0]) for _ in range(n)]
        return [
            self.random.randrange(-(1 << bits), 1 << bits)
            for bits in (self.random.randrange(1, 31 if character == 4 else 22) for _ in range(n))
        ]

    # --- unit L and unit H ------------------------------------------------------------------

    def small(self, n: int, bits: int | None) -> list[int]:
        """Values whose results fit 8 bits, so that codes show their last bit; or any values."""
        if bits is None:
            return self.numbers(n)
        return [self.random.randrange(-(1 << bits), 1 << bits) for _ in range(n)]

    def rows(self, token: int, n: int, bits: int | None = None) -> list[int]:
        values = self.early.pop(token, None)
        if values is None:
            values = self.small(n, bits)
            self.bench.rows(token, values)
        assert len(values) == n
        self.tokens[token].y[:n] = values
        return values

    def lora(self, n: int, bits: int | None = None) -> list[int] | None:
        """Maybe an adapter's outputs; without one the port carries noise."""
        has = self.random.random() < 0.6
        values = self.small(n, bits)
        whole = self.shape.beats(n) * self.shape.n_lanes
        noise = [self.random.choice([LOW, HIGH]) for _ in range(whole - n)]
        self.bench.load("d", values + noise)
        self.bench.set_d_valid(has)
        return values if has else None

    def sums(self, token: int, n: int, bits: int | None, wanted: Sequence[int]) -> list[int]:
        """Rows and maybe an adapter's outputs that make the sums, these if any are wanted."""
        if not wanted or token in self.early:
            y = self.rows(token, n, bits)
            return self.golden.add(y, self.lora(n, bits))
        d = self.lora(n, 9)
        self.early[token] = [one - more for one, more in zip(wanted, d or [0] * n, strict=True)]
        self.bench.rows(token, self.early[token])
        return self.golden.add(self.rows(token, n), d)

    # --- instructions -----------------------------------------------------------------------

    def cycles(self, op: str, **names: str) -> int:
        shape = self.shape
        array = shape.target.array
        instruction = Instruction(op=op, unit="V", wait=(), layer=0, token=0, slot=0, **names)
        planes = self.planes if op == "embed" else 1
        return fixed_cycles(
            instruction,
            spec=shape.spec,
            target=shape.target,
            mapping_of=lambda _: map_group(
                shape.vocab_size, shape.dim, planes, array, shape.n_lanes
            ),
        )

    def queue(
        self,
        op: str,
        token: int,
        wanted: int,
        check: Check,
        *,
        pos: int = 0,
        words: Sequence[tuple[int, ...]] = (),
        rows: tuple[int, Sequence[int]] = (0, ()),
        fields: dict[str, int] | None = None,
        values: Sequence[int] | None = None,
        reads: dict[str, int] | None = None,
    ) -> None:
        """Queue an instruction; ``values`` pass the result register, ``reads`` in beats."""
        # noise in the fields that the operator does not use
        word = {"op": OPS[op], "token": token, "layer": self.random.randrange(256), "slot": 5}
        layer = word["layer"]
        self.bench.start(word | (fields or {}), pos=pos, words=words, rows=rows)

        number, planes = len(self.checks), self.planes

        def whole(run: Run) -> None:
            assert run.duration == wanted, (op, run.duration, wanted)
            self._take_rows(run, *rows)
            self._expect_reads(run, reads or {})
            assert not run.logits
            if number:  # before the first, registers hold anything
                self._expect_changes(op, run, planes)
            if values is not None:
                self._expect_results(run, values)
            for beat in run.beats:
                assert (beat.token, beat.layer, beat.pos) == (token, layer, pos)
            if run.beats:
                assert run.beats[-1].cycle == wanted - 1
            for name, cycles in run.cycles.items():
                if name == "x":
                    assert cycles[-1] == wanted - 1, (op, cycles, wanted)
                assert all(cycle < wanted for cycle in cycles)
            check(run)

        self.checks.append((op, whole))

    def _take_rows(self, run: Run, token: int, values: Sequence[int]) -> None:
        """Check rows that came meanwhile, and leave what the instruction wrote itself."""
        if not values:
            return
        n_lanes = self.shape.n_lanes
        name, base = self.y_place(token)
        for index, value in enumerate(values):
            at = (base + index // n_lanes, index % n_lanes)
            assert run.writes[name].pop(at) == value
        assert run.cycles[name][: self.shape.beats(len(values))] == [
            *range(1, self.shape.beats(len(values)) + 1)
        ]
        if not run.writes[name]:
            run.cycles.pop(name)

    def _expect_reads(self, run: Run, reads: dict[str, int]) -> None:
        """Memories are read in the beats of the operator, and never else."""
        copies = dict.fromkeys(("x", "y", "sc"), self.shape.n_lanes // 32)
        wanted = {name: n * copies.get(name, 1) for name, n in reads.items()}
        assert {name: n for name, n in run.reads.items() if n} == wanted

    def _expect_changes(self, op: str, run: Run, planes: int) -> None:
        """Data registers are loaded in the beats of their operator, and never else."""
        for name, mine in self.bench.watched.items():
            most = len(run.results) if mine == op else 0
            if mine == op == "embed" and "code" in name:
                most *= planes
            if mine == op == "glu" and "up" in name:
                most += 1  # a word is read in advance
            assert run.changes[name] <= most, (op, name)

    def _expect_results(self, run: Run, values: Sequence[int]) -> None:
        """All bits of the results, of which a code shows the upper ones only."""
        n_lanes = self.shape.n_lanes
        padded = [*values, *[0] * (-len(values) % n_lanes)]
        beats = [padded[at : at + n_lanes] for at in range(0, len(padded), n_lanes)]
        assert list(run.results.values()) == beats

    def y_place(self, token: int) -> tuple[str, int]:
        """Y buffer and first address of a token."""
        if self.shape.has_sub_norms and self.shape.n_inflight > 1:
            return f"y{token}", 0
        return "y0", token * self.shape.y_words

    def expect_x(self, token: int) -> Check:
        values = list(self.tokens[token].x)
        base = token * self.shape.x_words
        return lambda run: self._expect_buffer(run, "x", base, values)

    def expect_y(self, token: int, n: int) -> Check:
        values = list(self.tokens[token].y[:n])
        name, base = self.y_place(token)
        return lambda run: self._expect_buffer(run, name, base, values)

    def _expect_buffer(self, run: Run, name: str, base: int, values: Sequence[int]) -> None:
        assert not run.beats
        assert {n for n, written in run.writes.items() if written} == {name}
        n_lanes = self.shape.n_lanes
        wanted = {
            (base + index // n_lanes, index % n_lanes): value for index, value in enumerate(values)
        }
        wrong = {at: (run.writes[name].get(at), one) for at, one in wanted.items()}
        wrong = {at: pair for at, pair in wrong.items() if pair[0] != pair[1]}
        assert wrong == {}
        assert set(run.writes[name]) == set(wanted)
        self.n_values += len(values)

    def expect_blocks(self, values: Sequence[int], kind: int, *, step: int = 1) -> Check:
        wanted = mx_blocks(values)
        n_groups = self.shape.n_lanes // 32

        def check(run: Run) -> None:
            assert not any(run.writes.values())
            got: list[tuple[tuple[int, ...], int, int]] = []
            beats: list[Beat] = run.beats
            assert [beat.kind for beat in beats] == [kind] * -(-len(wanted) // n_groups)
            for index, beat in enumerate(beats):
                assert beat.block == index * n_groups
                assert beat.cycle == beats[0].cycle + step * index
                n_blocks = min(n_groups, len(wanted) - beat.block)
                assert beat.mask == (1 << n_blocks) - 1
                got += beat.groups[:n_blocks]
            assert got == wanted
            self.n_values += len(values)

        return check

    def embed(self, token: int, *, planes: int, whole_matrix: bool = False) -> None:
        shape, rnd = self.shape, self.random
        array = shape.target.array
        self.planes = planes
        n_codes = array.word_codes
        bits = array.lane_bits
        is_ternary = array.encoding == "ternary"
        place = 1 if is_ternary else bits
        n_words = -(-shape.dim // n_codes)
        digits = [[0] * (n_words * n_codes) for _ in range(planes)]
        for plane in digits:
            for index in range(shape.dim):
                plane[index] = rnd.randrange(3) if is_ternary else rnd.randrange(1 << bits)
        value_of = {0: 0, 1: 1, 2: -1} if is_ternary else {d: d for d in range(1 << bits)}
        codes = [
            sum(value_of[plane[index]] << place * p for p, plane in enumerate(digits))
            for index in range(shape.dim)
        ]
        offset = 0 if whole_matrix else rnd.choice([0, 8, 128, rnd.randrange(256)])
        has_minimum = not whole_matrix and array.min_bits > 0 and rnd.random() < 0.5
        n_fields = n_words * array.n_scales
        top = rnd.choice([12, 20, 31])

        def half() -> int:
            return rnd.randrange(2) << 15 | rnd.randrange(top) << 10 | rnd.randrange(1024)

        scales = [half() for _ in range(n_fields)]
        minima = [half() for _ in range(n_fields)]
        multiplier = rnd.randrange(1 << 23, 1 << 24)
        shift = rnd.choice([-128, -40, -3, 0, 5, 16, 30, 31, 70, rnd.randrange(-30, 64)])
        fields = {"planes": planes, "offset": offset}
        if whole_matrix:
            fields |= {"multiplier": multiplier, "out_shift": shift}
            self.tokens[token].x = self.golden.embed_whole(codes, multiplier, shift)
        else:
            fields |= {"has_scales": 1, "has_minimum": int(has_minimum), "multiplier": 12345}
            halves = [
                (scale, minimum if has_minimum else None)
                for scale, minimum in zip(scales, minima, strict=True)
            ]
            self.tokens[token].x = self.golden.embed(codes, offset, halves, array.scale_group)
        words = []
        wanted = self.cycles("embed", operand="head")
        for w in range(n_words):
            for p in range(planes):
                data = sum(
                    digit << bits * k
                    for k, digit in enumerate(digits[p][w * n_codes : (w + 1) * n_codes])
                )
                at = n_codes * bits
                for source in (scales, minima) if array.min_bits else (scales,):
                    for one in source[w * array.n_scales : (w + 1) * array.n_scales]:
                        data |= (one if p == 0 else 0) << at
                        at += 16
                first = wanted - n_words * planes - 4
                words.append((first + w * planes + p, w, p, data))
        self.queue("embed", token, wanted, self.expect_x(token), words=words, fields=fields)

    def sincos(self, token: int, pos: int) -> None:
        angles = [self.golden.sincos(one, pos) for one in self.shape.increments]
        self.tokens[token].angles = angles
        n_groups = self.shape.n_lanes // 32
        base = token * (len(angles) // 16)
        wanted = {
            (group, base + index // 16, index % 16): pair
            for index, pair in enumerate(angles)
            for group in range(n_groups)
        }

        def check(run: Run) -> None:
            assert run.angles == wanted

        self.queue("sincos", token, self.cycles("sincos"), check, pos=pos)

    def norm(self, token: int, *, from_y: int = 0, name: str = "output_norm") -> None:
        rnd, n_lanes = self.random, self.shape.n_lanes
        whole = self.tokens[token].y[:from_y] if from_y else self.tokens[token].x
        # a vector may be shorter than what its buffer holds
        length = len(whole) if rnd.random() < 0.6 else rnd.randrange(1, len(whole) + 1)
        source = whole[:length]
        base = len(self.gains) // n_lanes
        gains = [rnd.randrange(-(1 << 23) + 1, 1 << 23) for _ in range(length)]
        g = rnd.randrange(0, 30)
        largest = max(abs(one) for one in gains) / 2**g
        out_frac = min(24, 30 - math.ceil(math.log2(math.sqrt(length) * largest)))
        out_frac -= rnd.choice([0, 0, 3, 10, 20, 23])  # results of 31 bits or less
        gain_shift = 22 + g - out_frac
        root = round(math.sqrt(length) * 2**16)
        frac = 16 if from_y else 14
        eps = round(rnd.choice([1e-5, 1e-6, 1e-12]) * length * 2 ** (20 + 2 * frac))
        if rnd.random() < 0.5:  # of a small vector, a small one is seen in full
            most = 36 if max(map(abs, whole)) < 16 else 62
            eps = rnd.getrandbits(rnd.randrange(1, most))
        if rnd.random() < 0.4:
            eps = self._epsilon_at_an_edge(source, whole, root) or eps
        if rnd.random() < 0.4:  # products with gains near ties of their rounding
            gain_shift = rnd.randrange(2, 23)
            for index, n in enumerate(
                self.golden.normalised(source, eps=eps, root=root, buffer=whole)
            ):
                found = factor_near_tie(rnd, n, gain_shift)
                gains[index] = rnd.randrange(1 << gain_shift) if found is None else found
        self.gains += gains + [rnd.randrange(1 << 20)] * (-length % n_lanes)
        values = self.golden.norm(
            source, gains, eps=eps, root=root, gain_shift=gain_shift, buffer=whole
        )
        beats = self.shape.beats
        self.queue(
            "norm",
            token,
            self.cycles("norm", operand=name) - 2 * (beats(len(whole)) - beats(length)),
            self.expect_blocks(values, 1),
            fields={
                "n_cols": length,
                "gain_base": base,
                "gain_shift": gain_shift,
                "eps_term": eps,
                "multiplier": root,
                "from_y": int(from_y > 0),
            },
            values=values,
            reads={
                "y" if from_y else "x": 2 * beats(length),
                "gains": beats(length),
            },
        )

    def _epsilon_at_an_edge(self, x: list[int], buffer: list[int], root: int) -> int | None:
        """Find an epsilon at which the sum's last bits are seen, which the root cuts off."""
        rnd = self.random
        t, squares = self.golden.squares(x, buffer)
        n_cut = max(0, squares.bit_length() - 32)
        for _ in range(12):
            edge = (squares >> n_cut) + rnd.randrange(1, 1 << 12) << n_cut
            pair = [edge - squares << 2 * (t + 10), edge - 1 - squares << 2 * (t + 10)]
            if max(pair) >> 62:
                continue
            at, below = (
                self.golden.normalised(x, eps=eps, root=root, buffer=buffer) for eps in pair
            )
            if at != below:
                return rnd.choice(pair)
        return None

    def rope(self, token: int, pos: int) -> None:
        shape = self.shape
        n = (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim
        bits = self.random.choice([None, 5, 13])
        summed = self.sums(token, n, bits, self._rotated_near_ties(token, pos))
        values = self.golden.rope(
            summed,
            self.tokens[token].angles,
            n_heads=shape.n_heads,
            n_kv_heads=shape.n_kv_heads,
            query_scale=shape.query_scale,
        )
        self.queue(
            "rope",
            token,
            self.cycles("rope"),
            self.expect_blocks(values, 2),
            pos=pos,
            values=values,
            reads=dict.fromkeys(("y", "d", "sc"), shape.beats(n)),
        )

    def _rotated_near_ties(self, token: int, pos: int) -> list[int]:
        """Sometimes q, k and v whose rotations, or scaled queries, lie at ties of the rounding."""
        shape, rnd = self.shape, self.random
        if rnd.random() < 0.5:
            return []
        result: list[int] = []
        for _ in range(shape.n_heads + shape.n_kv_heads):
            for sine, cosine in self.tokens[token].angles:
                pair = [rnd.randrange(-(1 << 12), 1 << 12) for _ in range(2)]
                which = rnd.randrange(2)  # of the pair's two rotations
                factor, other = (cosine, -sine) if which == 0 else (sine, cosine)
                if pos == 0:
                    found = factor_near_tie(rnd, shape.query_scale, 20)
                else:
                    found = factor_near_tie(rnd, factor, 20, pair[1] * other)
                if found is not None:
                    pair[0] = found
                result += pair
        for _ in range(shape.n_kv_heads * shape.head_dim // 32):  # a code that would be 128
            bits = rnd.randrange(8, 14)
            edge = (255 << bits >> 8) - rnd.randrange(2)
            block = [rnd.randrange(-edge, edge + 1) for _ in range(32)]
            block[rnd.randrange(32)] = rnd.choice([edge, -edge])
            result += block
        return result

    def attn_out(self, token: int) -> None:
        shape, rnd = self.shape, self.random
        n = shape.n_heads * shape.head_dim
        totals = [
            rnd.randrange(1, 1 << rnd.choice([1, 8, 16, 22, 31])) for _ in range(shape.n_heads)
        ]
        sums, largest_shift = [], rnd.choice([1, 8, 26])
        for index in range(n):
            bound = 127 * totals[index // shape.head_dim] << rnd.randrange(largest_shift)
            sums.append(rnd.choice([0, bound, -bound, rnd.randrange(-bound, bound + 1)]))
            y, length = self.golden.recip(totals[index // shape.head_dim])
            kind = rnd.randrange(4)
            reduced = factor_near_tie(rnd, y, 30) if kind == 0 else rnd.randrange(1 << 25)
            if kind < 2 and reduced is not None:  # the second rounding near a tie, or the first
                sums[-1] = (reduced << length) + (near_half(rnd, length) if kind else 0)
        self.bench.load("l", totals)
        self.bench.load("o", sums + [rnd.getrandbits(62)] * (-n % shape.n_lanes))
        values = self.golden.attn_out(sums, totals)
        self._give("attn_out", token, values, 1, {"l": shape.n_heads, "o": shape.beats(n)})

    def meanwhile(self, token: int, op: str) -> tuple[int, Sequence[int]]:
        """Maybe the next token's q, k and v, in as far as they come while this one works."""
        shape = self.shape
        n = (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim
        other = (token + 1) % shape.n_inflight
        if other == token or other in self.early or shape.beats(n) > self.cycles(op) - 2:
            return (0, ())
        values = self.numbers(n)
        self.early[other] = self.tokens[other].y[:n] = values
        return (other, values)

    def _gated_near_ties(self) -> list[int]:
        """Sometimes gate and up whose roundings lie near ties."""
        shape, rnd = self.shape, self.random
        if rnd.random() < 0.5:
            return []
        gates = [rnd.choice(gates_near_ties(shape.activation)) for _ in range(shape.hidden_dim)]
        ups = []
        for gate in gates:
            found = factor_near_tie(rnd, self.golden.active(gate, shape.activation), 16)
            ups.append(rnd.randrange(-(1 << 16), 1 << 16) if found is None else found)
        return gates + ups

    def glu(self, token: int) -> None:
        shape = self.shape
        n = 2 * shape.hidden_dim
        bits = self.random.choice([None, 10, 14, 19])
        summed = self.sums(token, n, bits, self._gated_near_ties())
        gate, up = summed[: shape.hidden_dim], summed[shape.hidden_dim :]
        values = self.golden.glu(gate, up, shape.activation)
        reads = dict.fromkeys(("y", "d"), 2 * shape.beats(shape.hidden_dim) + 1)
        self._give("glu", token, values, 2, reads)

    def _give(
        self, op: str, token: int, values: list[int], step: int, reads: dict[str, int]
    ) -> None:
        if self.shape.has_sub_norms and self.random.random() < 0.8:
            self.tokens[token].y[: len(values)] = values
            check = self.expect_y(token, len(values))
            rows = self.meanwhile(token, op) if op == "glu" else (0, ())
            fields = {"to_y": 1}
            self.queue(
                op,
                token,
                self.cycles(op),
                check,
                rows=rows,
                fields=fields,
                values=values,
                reads=reads,
            )
            name = {"attn_out": "attn_sub_norm", "glu": "ffn_sub_norm"}[op]
            self.norm(token, from_y=len(values), name=f"blk.0.{name}")
        else:
            rows = self.meanwhile(token, op) if op == "glu" else (0, ())
            check = self.expect_blocks(values, 1, step=step)
            self.queue(op, token, self.cycles(op), check, rows=rows, values=values, reads=reads)

    def resid(self, token: int) -> None:
        n, x = self.shape.dim, self.tokens[token].x
        # a residual of a few bits: a norm's product then keeps its last bits, too
        bits = self.random.choice([None, 1, 5]) if max(map(abs, x)) < 64 else None
        wanted: list[int] = []
        if bits is None and self.random.random() < 0.5:  # what is left is small
            rest = self.random.choice([1, 2, 4, 14])
            room = 1 << 30  # so that neither rows nor an adapter's outputs overflow
            wanted = [
                self.random.randrange(-rest, rest + 1) - max(-room, min(room, one)) for one in x
            ]
        o = self.sums(token, n, bits, wanted)
        self.tokens[token].x = self.golden.resid(x, o)
        reads = dict.fromkeys(("x", "y", "d"), self.shape.beats(n))
        self.queue(
            "resid",
            token,
            self.cycles("resid"),
            self.expect_x(token),
            values=self.tokens[token].x,
            reads=reads,
        )

    def logits(self) -> tuple[int, int, dict[int, int]]:
        n = self.shape.vocab_size
        values = self.numbers(n)
        self.bench.rows(0, values, is_head=True)
        self.bench.idle(3)
        return values.index(max(values)), max(values), dict(enumerate(values))

    def layer(self, token: int, pos: int) -> None:
        """What a decoder layer does, in its order."""
        self.norm(token)
        self.rope(token, pos)
        self.attn_out(token)
        self.resid(token)
        self.norm(token)
        self.glu(token)
        self.resid(token)

    def finish(self) -> None:
        """Queue the last rows, those of the logits."""
        self.best = self.logits()
        self.bench.ask()

    def check(self, runs: Sequence[Run], answers: Sequence[Answer]) -> None:
        """Check every instruction, the argmax and the number of clips."""
        assert len(runs) == len(self.checks)
        for number, run in enumerate(runs):
            self.check_run(number, run)
        self.check_answers(answers)

    def check_run(self, number: int, run: Run) -> None:
        """Check one instruction."""
        _, check = self.checks[number]
        check(run)

    def check_answers(self, answers: Sequence[Answer]) -> None:
        """Check the argmax and the number of clips."""
        row, value, values = self.best
        assert answers == [(row, value, self.golden.n_clips, values)]
