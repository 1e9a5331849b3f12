"""Tiny models as description folders, adapters written by hand, and forged descriptions."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import romsim
from romsim_compiler.description import Description
from romsim_compiler.digest import manifest_digest
from romsim_compiler.target import Target
from romsim_compiler.target_file import load_target
from romsim_models.shapes import TINY
from romsim_models.spec import ModelSpec

_SECTIONS = ("array", "attention", "vector", "network", "schedule", "embedding", "formats")
TARGETS = {"tiny-int4": "small", "tiny-int2": "small", "tiny-ternary": "small-ternary"}
MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def compile_tiny(name: str, folder: Path, **options: Any) -> Description:
    """Compile a built-in random model for its smallest target."""
    options = {"target": TARGETS[name], "context": 96, **options}
    return romsim.compile(name, folder, **options)


def sized_target(base: str, /, **changes: Any) -> Target:
    """A built-in target with other sizes."""
    target = load_target(base)
    for key, value in changes.items():
        for part in (*_SECTIONS, "power"):
            if key in {f.name for f in fields(getattr(target, part))}:
                section: Any = replace(getattr(target, part), **{key: value})
                target = replace(target, **{part: section})
                break
        else:
            target = replace(target, **{key: value})
    return target


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """The format's own bytes: length of the header, header, data."""
    header, at = {}, 0
    for name, values in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(v, dtype="<f4").tobytes() for v in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_adapter(
    folder: Path,
    spec: ModelSpec,
    *,
    rank: int = 8,
    parts: Sequence[str] = tuple(MODULES),
    layers: Sequence[int] | None = None,
    seed: int = 0,
    size: float = 1.0,
    is_ternary: bool = False,
    **config: Any,
) -> Path:
    """A PEFT folder with random factors, large enough to change what is said.

    Ternary ones are -s, 0 or s, with an ``s`` for each factor.
    """
    rng = np.random.default_rng(seed)
    heads, kv = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    shapes = {
        "attn_q": (heads, spec.dim),
        "attn_k": (kv, spec.dim),
        "attn_v": (kv, spec.dim),
        "attn_output": (spec.dim, heads),
        "ffn_gate": (spec.hidden_dim, spec.dim),
        "ffn_up": (spec.hidden_dim, spec.dim),
        "ffn_down": (spec.dim, spec.hidden_dim),
    }
    tensors = {}
    for layer in range(spec.n_layers) if layers is None else layers:
        for part in parts:
            n_rows, n_cols = shapes[part]
            stem = f"base_model.model.model.layers.{layer}.{MODULES[part]}"
            a = rng.standard_normal((rank, n_cols)) / np.sqrt(n_cols)
            b = rng.standard_normal((n_rows, rank)) * size / np.sqrt(rank)
            if is_ternary:
                a, b = (np.clip(np.rint(m / m.std()), -1, 1) * m.std() for m in (a, b))
            tensors[f"{stem}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{stem}.lora_B.weight"] = b.astype(np.float32)
    folder.mkdir(parents=True)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    values = {
        "peft_type": "LORA",
        "base_model_name_or_path": "tiny",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({MODULES[p].split(".")[1] for p in parts}),
        "use_rslora": False,
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(values))
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def copied(source: Path, folder: Path) -> Path:
    """A copy of a description that a test may damage."""
    shutil.copytree(source, folder)
    return folder


def reseal(folder: Path) -> Path:
    """Give a changed description the digests of what it now holds, as a forger would."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    return forge(folder, manifest)


def forge(folder: Path, manifest: dict[str, Any]) -> Path:
    """Write a manifest with other values, as a forger would: with its digest."""
    manifest["sha256"] = manifest_digest(manifest)
    text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
    (folder / "manifest.json").write_text(text)
    return folder


class RomFile:
    """The bits of ``rom.bin``, found by the formulas of docs/machine.md, section 2."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rom.bin"
        manifest = json.loads((folder / "manifest.json").read_text())
        placement = json.loads((folder / "placement.json").read_text())
        self._array: dict[str, int] = manifest["target"]["array"]
        self._groups = {g["name"]: g for g in placement["groups"]}
        scales = self._array["word_codes"] // self._array["scale_group"]
        meta = self._array["scale_bits"] + self._array["min_bits"]
        bits = self._array["word_codes"] * self._array["lane_bits"] + scales * meta
        self._word_bytes = -(-bits // 8)
        self.data = bytearray(self._path.read_bytes())

    def save(self) -> None:
        self._path.write_bytes(self.data)

    def _offset(self, group: str, row: int, word: int, plane: int = 0) -> int:
        """First byte of word ``word`` of a row of a group."""
        entry = self._groups[group]
        m: dict[str, int] = entry["mapping"]
        tiles, cells, ks = self._array["n_tiles"], self._array["n_cells"], m["ks"]
        rows_of_tile = cells // ks
        step, r = divmod(row, tiles * rows_of_tile)
        tile, local = divmod(r, rows_of_tile)
        cell = local * ks + word // m["wpc"]
        address: int = entry["base"] + (step * m["wpc"] + word % m["wpc"]) * m["planes"] + plane
        return int(((address * tiles + tile) * cells + cell) * self._word_bytes)

    def words_of_row(self, group: str) -> int:
        n_cols: int = self._groups[group]["mapping"]["n_cols"]
        return -(-n_cols // self._array["word_codes"])

    def swap_rows(self, group: str, first: int, second: int) -> None:
        planes = self._groups[group]["mapping"]["planes"]
        for word in range(self.words_of_row(group)):
            for plane in range(planes):
                a = self._offset(group, first, word, plane)
                b = self._offset(group, second, word, plane)
                n = self._word_bytes
                one, other = self.data[a : a + n], self.data[b : b + n]
                self.data[a : a + n], self.data[b : b + n] = other, one

    def flip_code_bit(self, group: str, row: int, column: int, bit: int = 0) -> None:
        codes, lane_bits = self._array["word_codes"], self._array["lane_bits"]
        word, lane = divmod(column, codes)
        place = lane * lane_bits + bit
        self.data[self._offset(group, row, word) + place // 8] ^= 1 << (place % 8)

    def raise_scale(self, group: str, row: int, column: int) -> None:
        """Add 1 to a scale word (whole bytes: codes end on a byte)."""
        codes, lane_bits = self._array["word_codes"], self._array["lane_bits"]
        word, lane = divmod(column, codes)
        at = self._offset(group, row, word) + codes * lane_bits // 8
        at += 2 * (lane // self._array["scale_group"])
        (scale,) = struct.unpack_from("<H", self.data, at)
        struct.pack_into("<H", self.data, at, scale + 1)


def tiny_spec(name: str) -> ModelSpec:
    return TINY[name]
