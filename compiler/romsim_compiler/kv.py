"""The KV cache as orthogonal choices: codec, retention, layout; presets and rules (docs/kv.md)."""

from __future__ import annotations

import difflib
import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from romsim_models.errors import SpecError

__all__ = [
    "CODEBOOK_ENTRIES",
    "CODECS",
    "DEFAULT_KV",
    "KV_PRESETS",
    "LAYOUTS",
    "RETENTIONS",
    "WIDE_BITS",
    "KvConfig",
    "make_kv",
    "parse_kv",
]

CODECS = ("fp16", "int8", "int4", "int2", "kivi", "tiered", "commvq")
CODEBOOK_ENTRIES = 64
"""Entries of a stage of CommVQ's keys; an index takes 6 bits."""
WIDE_BITS = 4
"""Bits of a narrowed token's codes in the KV heads that lose less."""
RETENTIONS = ("all", "stream", "h2o")
LAYOUTS = ("contiguous", "paged", "ring", "slotmap")

_LAYOUT_OF = {"all": "contiguous", "stream": "ring", "h2o": "slotmap"}
_CODE_BITS = {"fp16": 16, "int8": 8, "int4": 4, "int2": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvConfig:
    """One value of every axis. A parameter that the chosen values do not use is 0.

    Parameters
    ----------
    codec
        ``fp16`` (16-bit words), ``int8`` (MXINT8), ``int4``, ``int2`` (per token, scale and zero
        per ``group`` channels), ``kivi`` (keys per channel in groups of ``group`` tokens, values
        per token), ``tiered`` (MXINT8 for the last ``window`` tokens and the ``heavy`` heaviest
        before them, ``key_bits`` and ``value_bits`` per token for the rest, or `WIDE_BITS` in
        ``wide_heads`` KV heads), ``commvq`` (keys as
        sums of ``stages`` pairs of codebook entries, values as sums of ``value_bits`` rows an
        element, the newest up to ``residual`` tokens as words).
    key_bits, value_bits, group, residual, plain_sinks, stages
        Of the codecs: code widths, elements of a scale, tokens that KIVI keeps as 16-bit words
        after the first ``plain_sinks`` ones, which stay so.
    wide_heads, head_table
        Of tiered: how many KV heads, all layers together, lose less when their tokens are narrowed,
        and which: layer and KV head, in ascending order; none where it is still to be chosen.
    retention
        ``all``; ``stream``: the first ``sinks`` tokens and the last ``window``; ``h2o``: ``heavy``
        heavy hitters and the last ``window``.
    layout, block
        Where a slot lies: ``contiguous``, ``paged`` by ``block`` slots, ``ring``, ``slotmap``.
    """

    codec: str = "int8"
    key_bits: int = 0
    value_bits: int = 0
    group: int = 0
    residual: int = 0
    plain_sinks: int = 0
    stages: int = 0
    wide_heads: int = 0
    head_table: tuple[tuple[int, int], ...] = ()
    retention: str = "all"
    sinks: int = 0
    window: int = 0
    heavy: int = 0
    layout: str = "contiguous"
    block: int = 0

    @property
    def is_default(self) -> bool:
        """Whether this is the plain MXINT8 cache."""
        return self == DEFAULT_KV

    @property
    def budget(self) -> int | None:
        """Tokens that are kept after each step, or ``None`` where all are."""
        return {
            "all": None,
            "stream": self.sinks + self.window,
            "h2o": self.heavy + self.window,
        }[self.retention]

    @property
    def slots(self) -> int | None:
        """Tokens that are there while attention reads, or ``None``: H2O drops one afterwards."""
        return self.budget if self.budget is None or self.retention != "h2o" else self.budget + 1

    @property
    def is_ranked(self) -> bool:
        """Whether tokens are ranked by the attention that they had."""
        return self.retention == "h2o" or self.codec == "tiered"

    @property
    def exact_prefixes(self) -> bool:
        """Whether prompts may find known prefixes: a hit then gives what computing it gives.

        In pages of tokens that are each encoded by themselves and all kept, since attention reads
        what is encoded, in a prompt too (docs/kv-sharing.md, section 2).
        """
        return self.layout == "paged" and self.retention == "all" and self.codec in _CODE_BITS

    @property
    def granule(self) -> int:
        """Tokens that are encoded together."""
        return self.group if self.codec == "kivi" else 1

    def held(self, n_tokens: int) -> int:
        """Return how many of a sequence's ``n_tokens`` the last one's attention reads."""
        return n_tokens if self.slots is None else min(n_tokens, self.slots)

    def code_bits(self) -> tuple[int, int]:
        """Return the bits of a key's and of a value's code: of two widths, the narrow ones."""
        if self.codec in ("kivi", "tiered"):
            return self.key_bits, self.value_bits
        return _CODE_BITS[self.codec], _CODE_BITS[self.codec]

    def narrow_bits(self, layer: int, n_heads: int) -> list[tuple[int, int]]:
        """Return the bits of a narrowed token's key and value in each KV head of a layer."""
        wide = {head for at, head in self.head_table if at == layer}
        return [
            (WIDE_BITS, WIDE_BITS) if head in wide else self.code_bits() for head in range(n_heads)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the three axes and every parameter that their values use."""
        used = {name for axis in _USED for name in _USED[axis][getattr(self, axis)]}
        values = {k: v for k, v in asdict(self).items() if k in _USED or k in used}
        if "head_table" in values:
            if self.wide_heads:
                values["head_table"] = [list(pair) for pair in self.head_table]
            else:
                del values["head_table"], values["wide_heads"]
        return values

    def text(self) -> str:
        """Return the choices as :func:`parse_kv` reads them."""
        values = self.to_json()
        if "head_table" in values:
            values["head_table"] = "+".join(f"{n}.{head}" for n, head in self.head_table)
            if not self.head_table:
                del values["head_table"]
        return ",".join(f"{k}={v}" for k, v in values.items())


DEFAULT_KV = KvConfig()

_KIVI: dict[str, Any] = {"codec": "kivi", "group": 32, "residual": 128}

KV_PRESETS: dict[str, dict[str, Any]] = {
    "int8": {},
    "fp16": {"codec": "fp16"},
    "vllm": {"codec": "fp16", "layout": "paged", "block": 16},
    "int4": {"codec": "int4"},
    "int4-g64": {"codec": "int4", "group": 64},
    "int2": {"codec": "int2"},
    "kivi-4bit": {**_KIVI, "key_bits": 4, "value_bits": 4},
    "kivi-2bit": {**_KIVI, "key_bits": 2, "value_bits": 2},
    "kivi-k4v2": {**_KIVI, "key_bits": 4, "value_bits": 2},
    "kivi-2bit-sinks": {**_KIVI, "key_bits": 2, "value_bits": 2, "plain_sinks": 32},
    "kvc-q": {
        "codec": "tiered",
        "key_bits": 2,
        "value_bits": 2,
        "group": 32,
        "heavy": 128,
        "window": 128,
    },
    "commvq-2bit": {"codec": "commvq", "stages": 10, "value_bits": 2, "residual": 128},
    "commvq-1bit": {"codec": "commvq", "stages": 5, "value_bits": 1, "residual": 128},
    "streaming-llm": {"codec": "fp16", "retention": "stream", "sinks": 4, "window": 508},
    "window": {"codec": "fp16", "retention": "stream", "sinks": 0, "window": 512},
    "h2o": {"codec": "fp16", "retention": "h2o", "heavy": 256, "window": 256},
}
"""Named configurations; a system's own form is 16-bit words where its paper has them."""

_USED = {
    "codec": {
        "fp16": (),
        "int8": (),
        "int4": ("group",),
        "int2": ("group",),
        "kivi": ("key_bits", "value_bits", "group", "residual", "plain_sinks"),
        "tiered": (
            "key_bits",
            "value_bits",
            "group",
            "heavy",
            "window",
            "wide_heads",
            "head_table",
        ),
        "commvq": ("stages", "value_bits", "residual"),
    },
    "retention": {"all": (), "stream": ("sinks", "window"), "h2o": ("heavy", "window")},
    "layout": {"contiguous": (), "paged": ("block",), "ring": (), "slotmap": ()},
}
_MOST = 65536  # slots that attention reads
_COUNTS = ("residual", "plain_sinks", "sinks", "window", "heavy")  # of tokens
_FILLED = {"group": 32, "residual": 128, "block": 16, "sinks": 4, "key_bits": 4, "value_bits": 4}


def parse_kv(text: str) -> KvConfig:
    """Read a preset's name, ``key=value`` pairs, or a name and pairs that change it.

    ``kivi-2bit``, ``h2o,heavy=128,window=128``, ``codec=int4,layout=paged,block=32``.

    Raises
    ------
    SpecError
        If a name, key or value is unknown, or a value contradicts another.
    """
    values: dict[str, Any] = {}
    known = [f.name for f in fields(KvConfig)]
    for number, part in enumerate(text.split(",")):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals:
            if number:
                raise SpecError(f"--kv must have KEY=VALUE after the preset's name, not {part!r}")
            if key not in KV_PRESETS:
                near = difflib.get_close_matches(key, KV_PRESETS, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise SpecError(
                    f"KV preset must be one of {', '.join(KV_PRESETS)}, or KEY=VALUE pairs, not "
                    f"{key!r}{hint}"
                )
            values |= KV_PRESETS[key]
            continue
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise SpecError(f"KV key {key!r} is unknown; {hint}")
        values = _with(values, key, value)
    return make_kv(values)


def _with(values: dict[str, Any], key: str, value: str) -> dict[str, Any]:
    """Return the values with one more, those that the old choice of its axis used dropped."""
    if key == "head_table":
        return {**values, key: _head_table(value)}
    if key not in _USED:
        if not value.isascii() or not value.isdecimal():
            raise SpecError(f"kv.{key} must be a number of at least 0, not {value!r}")
        return {**values, key: int(value)}
    if values.get(key) == value:
        return values
    axis = {name for names in _USED[key].values() for name in names}
    kept = set(_USED[key].get(value, ()))
    for other in _USED:
        if other != key and other in values:
            kept |= set(_USED[other].get(values[other], ()))
    return {**{k: v for k, v in values.items() if k not in axis or k in kept}, key: value}


def _head_table(text: str) -> list[list[int]]:
    """Read layers and KV heads: ``0.2+3.1``."""
    if not re.fullmatch(r"[0-9]+\.[0-9]+(\+[0-9]+\.[0-9]+)*", text):
        raise SpecError(
            f"kv.head_table must be LAYER.HEAD+LAYER.HEAD..., as in 0.2+3.1, not {text!r}"
        )
    return [[int(number) for number in pair.split(".")] for pair in text.split("+")]


def make_kv(values: dict[str, Any]) -> KvConfig:
    """Return a configuration from some of its values; the rest follows from the axes' choices.

    Raises
    ------
    SpecError
        With the rule of docs/kv.md, section 6, that forbids it.
    """
    chosen = dict(values)
    chosen.setdefault("codec", "int8")
    chosen.setdefault("retention", "all")
    chosen.setdefault("layout", _LAYOUT_OF.get(chosen["retention"], "contiguous"))
    used: set[str] = set()
    for axis, names in (("codec", CODECS), ("retention", RETENTIONS), ("layout", LAYOUTS)):
        if chosen[axis] not in names:
            raise SpecError(f"kv.{axis} must be one of {', '.join(names)}, not {chosen[axis]!r}")
        used |= set(_USED[axis][chosen[axis]])
    for key, value in chosen.items():
        if key not in _USED and key not in used and value:
            raise SpecError(
                f"kv.{key} must be left out with codec {chosen['codec']!r}, retention "
                f"{chosen['retention']!r} and layout {chosen['layout']!r}, which do not use it, "
                f"not {value!r}"
            )
    for key in used:
        if key in _FILLED:
            chosen.setdefault(key, _FILLED[key])
    table = tuple((int(layer), int(head)) for layer, head in chosen.pop("head_table", ()))
    if table:
        chosen.setdefault("wide_heads", len(table))
    config = KvConfig(**chosen, head_table=table)
    _check(config)
    return config


def _check(kv: KvConfig) -> None:
    """Refuse what the rules of docs/kv.md, section 6, forbid, whatever the chip."""
    for key in _COUNTS:
        if getattr(kv, key) > _MOST:
            raise SpecError(
                f"kv.{key} must be at most {_MOST}, not {getattr(kv, key)}: no sequence is read "
                f"over more tokens (rule 3)"
            )
    if kv.layout == "paged" and not 1 <= kv.block <= 128:
        raise SpecError(f"kv.block must be 1 to 128, not {kv.block} (rule 1)")
    if kv.codec in ("kivi", "tiered"):
        for key, bits in (("key_bits", kv.key_bits), ("value_bits", kv.value_bits)):
            if bits not in (2, 4):
                raise SpecError(f"kv.{key} must be 2 or 4, not {bits}")
    if kv.codec == "kivi":
        if kv.group < 1 or kv.residual < 1 or kv.residual % kv.group:
            raise SpecError(
                f"kv.residual must be a multiple of kv.group, and both at least 1, not "
                f"{kv.residual} with {kv.group} (rule 1)"
            )
        if kv.retention != "all":
            raise SpecError(
                f"kv.retention must be 'all' with codec 'kivi', not {kv.retention!r}: a dropped "
                f"token would leave a hole in a group of {kv.group} keys; use a codec per token "
                f"such as int4 (rule 2)"
            )
        if kv.layout == "paged" and kv.block % kv.group:
            raise SpecError(
                f"kv.block must be a multiple of the codec's {kv.group} tokens, not {kv.block}; "
                f"raise it to {-(-kv.block // kv.group) * kv.group} (rule 1)"
            )
    elif kv.codec == "commvq":
        _check_commvq(kv)
    elif kv.group and kv.group % 32:
        raise SpecError(f"kv.group must be a multiple of 32, not {kv.group}")
    if kv.codec in ("int4", "int2", "tiered") and kv.group < 32:
        raise SpecError(f"kv.group must be a multiple of 32, not {kv.group}")
    if kv.codec == "tiered" and kv.retention != "all":
        raise SpecError(
            f"kv.retention must be 'all' with codec 'tiered', not {kv.retention!r}: attention mass "
            f"chooses the width of tokens there, not which are kept (rule 2)"
        )
    if kv.wide_heads and kv.code_bits() == (WIDE_BITS, WIDE_BITS):
        raise SpecError(
            f"kv.wide_heads must be 0 with key_bits and value_bits {WIDE_BITS}, not "
            f"{kv.wide_heads}: no head is wider than that"
        )
    if kv.head_table and (
        sorted(set(kv.head_table)) != list(kv.head_table) or len(kv.head_table) != kv.wide_heads
    ):
        raise SpecError(
            f"kv.head_table must be kv.wide_heads = {kv.wide_heads} different heads in ascending "
            f"order, not {[list(pair) for pair in kv.head_table]}"
        )
    if (kv.budget is not None or kv.codec == "tiered") and kv.window < 1:
        raise SpecError(
            f"kv.window must be at least 1, not {kv.window}: the new token attends to itself "
            f"(rule 3)"
        )
    if kv.retention == "stream" and kv.window < kv.sinks:
        raise SpecError(
            f"kv.window must be at least kv.sinks, not {kv.window} with {kv.sinks} (rule 3)"
        )
    if kv.slots is not None and kv.slots > _MOST:
        raise SpecError(f"KV budget must be at most {_MOST} tokens, not {kv.slots} (rule 3)")
    allowed = {"paged", "slotmap", _LAYOUT_OF[kv.retention]}
    if kv.layout not in allowed:
        raise SpecError(
            f"kv.layout must be {', '.join(x for x in LAYOUTS if x in allowed)} with retention "
            f"{kv.retention!r}, not {kv.layout!r} (rule 4)"
        )


def _check_commvq(kv: KvConfig) -> None:
    if not 1 <= kv.stages <= 64:
        raise SpecError(f"kv.stages must be 1 to 64, not {kv.stages}")
    if kv.value_bits not in (1, 2):
        raise SpecError(f"kv.value_bits must be 1 or 2 with codec 'commvq', not {kv.value_bits}")
    if kv.residual < 1:
        raise SpecError(f"kv.residual must be at least 1, not {kv.residual}")
    if kv.retention != "all":
        raise SpecError(
            f"kv.retention must be 'all' with codec 'commvq', not {kv.retention!r}: words of the "
            f"newest {kv.residual} tokens are encoded together (rule 2)"
        )
