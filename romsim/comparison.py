"""Comparing machines value by value: the cycle model against the integer reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from romsim_compiler.description import Description
from romsim_models.errors import RomsimError

if TYPE_CHECKING:
    from romsim.reference import Codebooks, IntegerDecoder, KvPolicy
    from romsim_compiler.kv import KvConfig
    from romsim_compiler.kv_codebooks import KvCodebooks
    from romsim_models.checkpoint import Checkpoint
    from romsim_models.lora import LoraAdapter

__all__ = [
    "Divergence",
    "ValueReport",
    "compare_values",
    "make_reference",
    "reference_codebooks",
    "reference_kv",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first value at which two machines part."""

    operator: str
    position: int
    index: int
    expected: int  # the reference's
    got: int

    def sentence(self) -> str:
        """Return the place and both values in decimal and hexadecimal."""
        mask = 0xFFFFFFFF
        return (
            f"{self.operator}[{self.index}] at position {self.position}: reference "
            f"{self.expected} (0x{self.expected & mask:08x}), cycle model {self.got} "
            f"(0x{self.got & mask:08x})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the place and both values as JSON-ready values."""
        return {**asdict(self), "sentence": self.sentence()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueReport:
    """Outcome of a comparison."""

    n_tokens: int
    n_values: int
    n_mismatches: int
    first: Divergence | None
    tainted: tuple[str, ...]  # operators with a mismatch, in order of execution
    saturations: int
    counts: dict[str, int]  # values compared per kind of operator

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing differed."""
        return self.n_values > 0 and self.n_mismatches == 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return {
            "n_tokens": self.n_tokens,
            "n_values": self.n_values,
            "n_mismatches": self.n_mismatches,
            "first": None if self.first is None else self.first.to_json(),
            "tainted": list(self.tainted),
            "saturations": self.saturations,
            "values_by_operator": dict(sorted(self.counts.items())),
            "passed": self.passed,
        }


_PLACES = ("layout", "block")  # where words lie: nothing that the reference knows of


def reference_kv(kv: KvConfig) -> KvPolicy:
    """Return what the reference has to know of a KV configuration."""
    from romsim.reference import KvPolicy

    values = {k: v for k, v in kv.to_json().items() if k not in _PLACES}
    return KvPolicy(**values | {"head_table": kv.head_table})


def reference_codebooks(books: KvCodebooks | None) -> list[Codebooks] | None:
    """Return CommVQ's codebooks as the reference takes them, one a layer."""
    from romsim.reference import Codebooks

    if books is None:
        return None
    return [
        Codebooks(keys=keys, values=values)
        for keys, values in zip(books.keys, books.values, strict=True)
    ]


def make_reference(
    description: Description,
    checkpoint: Checkpoint,
    *,
    loras: Mapping[str, LoraAdapter] | None = None,
    device: str = "cpu",
) -> IntegerDecoder:
    """Return the integer reference of what a description was compiled from.

    It takes from the description only choices (formats, grids, block sizes), never a weight.
    """
    from romsim.reference import IntegerDecoder, NumericsConfig, WeightChoice
    from romsim_compiler.formats import parse_format

    numerics = description.numerics
    choices = {}
    for tensor, name in description.manifest["model"]["choices"].items():
        fmt = parse_format(name)
        kind = fmt.name if fmt.kind == "ternary" else f"int{fmt.code_bits}"
        choices[tensor] = WeightChoice(kind=kind, group=fmt.group or None)
    return IntegerDecoder(
        checkpoint,
        config=NumericsConfig(
            residual_frac=numerics.residual_frac,
            linear_frac=numerics.linear_frac,
            logit_frac=numerics.logit_frac,
            attn_block=numerics.attn_block,
            act_block=numerics.act_block,
        ),
        choices=choices,
        grids={n: g.grid for n, g in description.groups.items() if n != "embd"},
        loras=loras,
        device=device,
        ternary_loras=description.target.lora.path == "adders",
        kv=reference_kv(description.target.kv),
        codebooks=reference_codebooks(description.kv_codebooks()),
    )


def _kind(name: str) -> str:
    layer, dot, rest = name.partition(".")
    return rest if dot and layer[:1] == "L" and layer[1:].isdigit() else name


class _Recorder:
    """Values of one machine by (operator, position), in the width they came in."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], Any] = {}

    def __call__(self, name: str, position: int, array: Any) -> None:
        import numpy as np

        rows = np.atleast_2d(array.cpu().numpy() if hasattr(array, "cpu") else array)
        for offset, row in enumerate(rows):
            self.values[name, position + offset] = row.reshape(-1).copy()


CHUNK = 64
"""Tokens whose values are held at a time: about 1 MB each for SmolLM2."""


def compare_values(
    description: Description,
    checkpoint: Checkpoint,
    prompt: Sequence[int],
    *,
    n_new: int,
    adapter: str | None = None,
    loras: Mapping[str, LoraAdapter] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ValueReport:
    """Run prompt and greedy decoding on the cycle model and on the reference, and compare all.

    Every operator output, KV word and logit of every position is compared. The cycle model goes
    first, a chunk of tokens at a time, and chooses the tokens; the reference then takes the same
    tokens, all of a chunk at once.

    Parameters
    ----------
    adapter
        Resident adapter to run with.
    loras
        Float adapters by name, as read from their files, for the reference.

    Raises
    ------
    RomsimError
        If the machines do not even name the same values.
    """
    import numpy as np

    from romsim.cycle import CycleModel

    model = CycleModel(description)
    reference = make_reference(description, checkpoint, loras=loras)
    tally = _Tally()
    total = len(prompt) + n_new
    seen, expected = _Recorder(), _Recorder()
    model.record = seen

    def settle(tokens: Sequence[int], done: int, *, all_logits: bool) -> None:
        reference.forward(list(tokens), adapter=adapter, record=expected, all_logits=all_logits)
        tally.compare(expected.values, seen.values)
        expected.values.clear()
        seen.values.clear()
        if progress is not None:
            progress(done, total)

    logits = np.zeros(0, dtype=np.int32)
    for first in range(0, len(prompt), CHUNK):
        part = list(prompt[first : first + CHUNK])
        logits = model.prefill(part, adapter=adapter).logits
        # The chip computes the head for the last token of a prompt alone.
        settle(part, first + len(part), all_logits=False)
    decoded: list[int] = []
    for number in range(n_new):
        token = int(np.argmax(logits))
        logits = model.step(token, adapter=adapter).logits
        decoded.append(token)
        if len(decoded) == CHUNK or number == n_new - 1:
            settle(decoded, len(prompt) + number + 1, all_logits=True)
            decoded.clear()
    return tally.report(total, model.saturations + int(reference.saturations))


class _Tally:
    def __init__(self) -> None:
        self.n_values = 0
        self.n_mismatches = 0
        self.first: Divergence | None = None
        self.tainted: list[str] = []
        self.counts: dict[str, int] = {}

    def compare(self, expected: dict[Any, Any], got: dict[Any, Any]) -> None:
        """Compare two sets of values, which must have the same names and positions."""
        import numpy as np

        for key, wanted in expected.items():
            name, position = key
            if key not in got:
                raise RomsimError(
                    f"Cycle model must give {name} at position {position}, but it does not; the "
                    f"machines do not run the same operators"
                )
            value = got[key]
            if value.shape != wanted.shape:
                raise RomsimError(
                    f"{name} at position {position} must have {wanted.size} values, not "
                    f"{value.size}"
                )
            self.n_values += wanted.size
            kind = _kind(name)
            self.counts[kind] = self.counts.get(kind, 0) + wanted.size
            wrong = np.flatnonzero(value != wanted)  # of any widths: numpy widens, never wraps
            if wrong.size:
                self.n_mismatches += wrong.size
                if name not in self.tainted:
                    self.tainted.append(name)
                if self.first is None:
                    index = int(wrong[0])
                    self.first = Divergence(
                        operator=name,
                        position=position,
                        index=index,
                        expected=int(wanted[index]),
                        got=int(value[index]),
                    )
        extra = [k for k in got if k not in expected]
        if extra:
            name, position = extra[0]
            raise RomsimError(
                f"Reference must give {name} at position {position}, but it does not; the machines "
                f"do not run the same operators"
            )

    def report(self, n_tokens: int, saturations: int) -> ValueReport:
        """Return the outcome."""
        return ValueReport(
            n_tokens=n_tokens,
            n_values=self.n_values,
            n_mismatches=self.n_mismatches,
            first=self.first,
            tainted=tuple(self.tainted),
            saturations=saturations,
            counts=self.counts,
        )
