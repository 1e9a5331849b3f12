"""Target files: TOML that a user writes, validated, with the line of whatever is wrong."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from romsim_compiler.target import Target
from romsim_compiler.technology_file import list_technologies
from romsim_models.errors import SpecError

__all__ = ["list_targets", "load_target", "parse_target", "write_target"]


_Count = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Array(_Section):
    n_tiles: int = Field(ge=1, le=4096)
    n_cells: int = Field(ge=1, le=1024)
    rom_rows: int = Field(ge=1, le=1 << 24)
    word_codes: int = Field(ge=32, le=1024, multiple_of=32)
    lane_bits: int = Field(ge=1, le=8)
    encoding: Literal["unsigned", "ternary"]
    scale_group: int = Field(ge=32, le=1024, multiple_of=32)
    scale_bits: Literal[0, 16]
    min_bits: Literal[0, 16]
    zero_bits: int = Field(default=0, ge=0, le=8)


class _Vector(_Section):
    n_lanes: int = Field(ge=32, le=8192, multiple_of=32)
    sram_kib: int = Field(ge=1)


class _Attention(_Section):
    sram_kib: int = Field(ge=1)
    word_elems: int = Field(ge=32, le=1024, multiple_of=32)
    heads_parallel: int = Field(ge=1, le=64)
    attn_block: int = Field(ge=1, le=65536)


class _Formats(_Section):
    activation: Literal["mxint8", "fp8_e4m3"]
    kv: Literal["mxint8", "fp8_e4m3"]
    lora: Literal["mxint8", "fp8_e4m3", "ternary"]


class _Network(_Section):
    broadcast_cycles: int = Field(ge=0, le=1000)
    collect_cycles: int = Field(ge=0, le=1000)


class _Power(_Section):
    wake_cycles: int = Field(default=0, ge=0, le=1 << 20)


class _Lora(_Section):
    path: Literal["int8", "adders"] = "int8"


class _Schedule(_Section):
    n_inflight: int = Field(ge=1, le=64)
    n_slots: int = Field(default=1, ge=1, le=256)
    n_batch: int = Field(default=1, ge=1, le=256)


class _Embedding(_Section):
    input: Literal["rom", "off-chip"]
    head: Literal["rom", "off-chip"]


class _Kv(_Section):
    codec: Literal["fp16", "int8", "int4", "int2", "kivi", "tiered", "commvq"] = "int8"
    key_bits: int | None = Field(default=None, ge=0)
    value_bits: int | None = Field(default=None, ge=0)
    group: int | None = Field(default=None, ge=0)
    residual: int | None = Field(default=None, ge=0)
    plain_sinks: int | None = Field(default=None, ge=0)
    stages: int | None = Field(default=None, ge=0)
    wide_heads: int | None = Field(default=None, ge=0)
    head_table: list[Annotated[list[_Count], Field(min_length=2, max_length=2)]] | None = None
    retention: Literal["all", "stream", "h2o"] = "all"
    sinks: int | None = Field(default=None, ge=0)
    window: int | None = Field(default=None, ge=0)
    heavy: int | None = Field(default=None, ge=0)
    layout: Literal["contiguous", "paged", "ring", "slotmap"] | None = None
    block: int | None = Field(default=None, ge=0)


class _TargetFile(_Section):
    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    summary: str
    executable: bool
    technology: str
    clock_mhz: float = Field(gt=0, le=10000)
    array: _Array
    vector: _Vector
    attention: _Attention
    formats: _Formats
    network: _Network
    schedule: _Schedule
    embedding: _Embedding
    power: _Power = _Power()
    lora: _Lora = _Lora()
    kv: _Kv = _Kv()


def list_targets() -> tuple[str, ...]:
    """Return the names of the targets that come with the package."""
    folder = resources.files("romsim_compiler") / "targets"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


def load_target(name_or_path: str | Path) -> Target:
    """Return the built-in target of that name, or the one in a TOML file.

    Raises
    ------
    SpecError
        If there is none, or the file is wrong: the message has file, line and key.
    """
    text = str(name_or_path)
    if text in list_targets():
        source = resources.files("romsim_compiler") / "targets" / f"{text}.toml"
        return parse_target(source.read_text(encoding="utf-8"), f"{text}.toml")
    path = Path(text)
    if path.suffix != ".toml" or "\0" in text:
        near = difflib.get_close_matches(text, list_targets(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SpecError(
            f"Target must be one of {', '.join(list_targets())} or a .toml file, not {text!r}{hint}"
        )
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"Target file {text} must be readable, not {error.strerror!r}; check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise SpecError(
            f"Target file {text} must be TOML in UTF-8, not bytes with an error at byte "
            f"{error.start}; check the path"
        ) from None
    return parse_target(content, path.name)


def parse_target(text: str, file: str) -> Target:
    """Return the target that the TOML ``text`` describes.

    Parameters
    ----------
    file
        Name of the file, for messages.

    Raises
    ------
    SpecError
        If the text is no TOML, a key is unknown or missing, or a value is out of range.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file} must be TOML: {error}") from None
    try:
        checked = _TargetFile.model_validate(values)
    except ValidationError as error:
        raise SpecError(_explain(error, text, file)) from None
    try:
        target = Target.from_json(checked.model_dump(exclude_none=True))
    except SpecError as error:  # of [kv], whose choices must go together
        raise SpecError(f"{file}: {error}") from None
    _check(target, file)
    return target


def _explain(error: ValidationError, text: str, file: str) -> str:
    # A misspelt key is also a missing one: say what was written, not what was meant.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    keys = [str(k) for k in first["loc"]]
    where = f"{file}:{_line_of(text, keys)}"
    dotted = ".".join(keys)
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _known_keys(keys[:-1])
        near = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{where}: key {dotted!r} is unknown; {hint}{more}"
    if first["type"] == "missing":
        return f"{where}: key {dotted!r} is missing; add it to the file{more}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{where}: {dotted} must be valid, not {first['input']!r}: {message}{more}"


def _known_keys(section: list[str]) -> list[str]:
    model: Any = _TargetFile
    for key in section:
        model = model.model_fields[key].annotation
    return list(model.model_fields)


def _line_of(text: str, keys: list[str]) -> int:
    """Return the line of a key, else of the nearest section that holds it, else 1."""
    section, found = "", 1
    wanted = keys[0] if len(keys) > 1 else ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"\s*\[([^\]]+)\]", line):
            section = match[1].strip()
            if section == keys[0]:
                found = number
        elif section == wanted and re.match(rf"\s*{re.escape(keys[-1])}\s*=", line):
            return number
    return found


def _check(target: Target, file: str) -> None:
    """Refuse values that contradict one another."""
    array, attention = target.array, target.attention
    if array.n_cells & (array.n_cells - 1):
        raise SpecError(
            f"{file}: array.n_cells must be a power of two, not {array.n_cells}, since cells that "
            f"share a row are summed in a binary tree"
        )
    if array.word_codes % array.scale_group:
        raise SpecError(
            f"{file}: array.word_codes must be a multiple of array.scale_group, not "
            f"{array.word_codes} with {array.scale_group}"
        )
    if array.encoding == "ternary" and array.lane_bits != 2:
        raise SpecError(
            f"{file}: array.lane_bits must be 2 with array.encoding 'ternary', not "
            f"{array.lane_bits}"
        )
    if target.executable and array.lane_bits not in (2, 4, 8):
        raise SpecError(
            f"{file}: array.lane_bits must be 2, 4 or 8 in an executable target, not "
            f"{array.lane_bits}"
        )
    if attention.attn_block & (attention.attn_block - 1):
        raise SpecError(
            f"{file}: attention.attn_block must be a power of two, not {attention.attn_block}"
        )
    try:
        target.check_lora_path()
    except SpecError as error:
        raise SpecError(f"{file}: {error}") from None
    formats = (target.formats.activation, target.formats.kv, target.formats.lora)
    if target.executable and formats != ("mxint8", "mxint8", target.lora_format):
        raise SpecError(
            f"{file}: executable must be false with formats {', '.join(formats)}: only mxint8 has "
            f"exact arithmetic on this chip; set formats to 'mxint8' or executable = false"
        )
    known = list_technologies()
    if target.technology not in known:
        near = difflib.get_close_matches(target.technology, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SpecError(
            f"{file}: technology must be one of {', '.join(known)}, not {target.technology!r}{hint}"
        )
    if target.executable and target.embedding.head != "rom":
        raise SpecError(
            f"{file}: embedding.head must be 'rom' in an executable target, not "
            f'{target.embedding.head!r}: logits are the chip\'s output; set head = "rom" or '
            f"executable = false"
        )
    if target.executable and target.array.zero_bits:
        raise SpecError(
            f"{file}: array.zero_bits must be 0 in an executable target, not "
            f"{target.array.zero_bits}; use min_bits = 16"
        )


def write_target(target: Target) -> str:
    """Return the target as TOML text that :func:`parse_target` reads back."""
    values = target.to_json()
    values.pop("latency")
    lines: list[str] = []
    sections: list[str] = []
    for key, value in values.items():
        if isinstance(value, dict):
            sections += ["", f"[{key}]", *(f"{k} = {_toml(v)}" for k, v in value.items())]
        else:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, *sections, ""])


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's too; TOML wants the delete character escaped besides.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
