"""A Hugging Face directory (config.json, safetensors, tokenizer.json) -> `Checkpoint`.

Query and key rows are brought into the canonical interleaved order while they are read (see
`hf_names`); nothing else about the weights is changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from romsim_models.checkpoint import Checkpoint, check_complete, digest_files
from romsim_models.config_keys import read_json_object
from romsim_models.encoded import EncodedTensor, FloatTensor, Tensor
from romsim_models.errors import FormatError
from romsim_models.hf_config import spec_from_huggingface
from romsim_models.hf_names import (
    canonical_name,
    huggingface_name,
    interleave_rotary_rows,
    interleave_rotary_tensor,
    is_rotary,
)
from romsim_models.hf_quantization import bitnet_quantization
from romsim_models.safetensors_file import SafetensorsFile
from romsim_models.safetensors_ternary import TernaryMatrices
from romsim_models.spec import ModelSpec, rope_frequencies
from romsim_models.tensors import EMBEDDING, LM_HEAD
from romsim_models.tokenizer_hf import HfTokenizerFiles

__all__ = ["open_huggingface"]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ROTARY_BUFFER = re.compile(r"(.+\.)?rotary_emb\.inv_freq")
_SCALE = ".weight_scale"
_ROWS_COMPARED = 4096  # of embedding and LM head, at a time


def open_huggingface(directory: Path) -> Checkpoint:
    """Open a Hugging Face directory; only configuration and headers are read.

    Parameters
    ----------
    directory
        Holds ``config.json`` and ``model.safetensors`` (or an index and its shards), and perhaps
        ``tokenizer.json``.

    Returns
    -------
    Checkpoint
        Of kind ``"huggingface"``.

    Raises
    ------
    FormatError
        If a file is missing, truncated or corrupt, the configuration asks for something that is
        not supported, or the tensors are not exactly those of the configuration.
    """
    if (directory / "adapter_config.json").is_file():
        raise FormatError(
            f"{directory}: model directory must hold a whole model, not a LoRA adapter; "
            "give the base model here and the directory as an adapter"
        )
    spec, notes = spec_from_huggingface(directory)
    located, more_notes = _locate(directory)
    notes += more_notes
    notes += _drop_rotary_buffers(located, spec)
    scales = _take_scales(located)
    tensors: dict[str, tuple[SafetensorsFile, str]] = {}
    for name, file in located.items():
        if huggingface_name(name) != name:  # it would stand for the tensor of another name
            raise FormatError(
                f"{file.path}: tensor {name!r} must have transformers' name "
                f"{huggingface_name(name)!r}, not that of a GGUF file; save the model with "
                "save_pretrained"
            )
        tensors[canonical_name(name) or name] = (file, name)
    ternary = _ternary(directory, tensors, scales)
    store = _HfStore(directory, spec, tensors, ternary)
    if spec.tie_embeddings and LM_HEAD in tensors and EMBEDDING in tensors:
        store.require_tied_head_equal()
        del tensors[LM_HEAD]
        notes += (
            f"{directory.resolve().name}: tensor 'lm_head.weight' equals the embedding that it is "
            "tied to; it is kept once",
        )
    shapes = {name: file.entries[theirs].shape for name, (file, theirs) in tensors.items()}
    if ternary is not None:
        shapes |= {name: ternary.shape(name) for name in ternary.names()}
    check_complete(spec, shapes, where=str(directory), source_name=huggingface_name)
    store.formats()  # refuses a type that cannot be read, before any data is
    tokenizer = HfTokenizerFiles(directory, spec)
    return Checkpoint(
        spec=spec,
        kind="huggingface",
        name=directory.resolve().name,
        store=store,
        notes=notes + tokenizer.notes,
        load_tokenizer=tokenizer.load if tokenizer.is_present else None,
        chat_template=tokenizer.chat_template,
    )


class _HfStore:
    """Reads tensors by canonical name from the files of one directory."""

    def __init__(
        self,
        directory: Path,
        spec: ModelSpec,
        tensors: dict[str, tuple[SafetensorsFile, str]],
        ternary: TernaryMatrices | None,
    ) -> None:
        self._directory = directory
        self._spec = spec
        self._tensors = tensors
        self._ternary = ternary

    def formats(self) -> Mapping[str, str]:
        return {
            name: self._ternary.format(name)
            if self._ternary is not None and name in self._ternary
            else file.format(theirs)
            for name, (file, theirs) in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        file, theirs = self._tensors[name]
        if self._ternary is not None and name in self._ternary:
            return self._read_ternary(self._ternary, name)
        return self.read_rows(name, 0, file.entries[theirs].shape[0])

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        file, theirs = self._tensors[name]
        if self._ternary is not None and name in self._ternary:
            return self._read_ternary(self._ternary, name).rows(first, last)
        values = self._values(name, first, last)
        try:
            return FloatTensor(
                name=name, shape=values.shape, format=file.format(theirs), values=values
            )
        except FormatError as error:
            raise FormatError(f"{file.path}: {error}") from None

    def _read_ternary(self, ternary: TernaryMatrices, name: str) -> EncodedTensor:
        """Whole matrix in canonical order."""
        tensor = ternary.read(name)
        if not is_rotary(name):
            return tensor
        turned = interleave_rotary_tensor(tensor, self._spec.head_dim)
        assert isinstance(turned, EncodedTensor)  # as it went in
        return turned

    def digest(self) -> str:
        names = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
        others = [self._directory / name for name in (*names, _INDEX, "chat_template.jinja")]
        shards = {file.path for file, _ in self._tensors.values()}
        return digest_files([*shards, *(path for path in others if path.is_file())])

    def require_tied_head_equal(self) -> None:
        """Refuse an LM head that differs from the embedding which the configuration ties it to."""
        shapes = [
            file.entries[theirs].shape
            for file, theirs in (self._tensors[EMBEDDING], self._tensors[LM_HEAD])
        ]
        is_equal = shapes[0] == shapes[1] and len(shapes[0]) == 2
        for first in range(0, shapes[0][0], _ROWS_COMPARED) if is_equal else ():
            last = min(first + _ROWS_COMPARED, shapes[0][0])
            rows, head_rows = (self._values(name, first, last) for name in (EMBEDDING, LM_HEAD))
            is_equal = is_equal and np.array_equal(rows, head_rows, equal_nan=True)
        if not is_equal:
            raise FormatError(
                f"{self._directory}: tensor 'lm_head.weight' must equal "
                "'model.embed_tokens.weight' where tie_word_embeddings is true, not differ from "
                "it; set tie_word_embeddings to false to use it, or remove it"
            )

    def _values(self, name: str, first: int, last: int) -> NDArray[np.float32]:
        """Rows in canonical order."""
        file, theirs = self._tensors[name]
        if not is_rotary(name):
            return file.read(theirs, first, last)
        head_dim = self._spec.head_dim
        from_head, to_head = first // head_dim, -(-last // head_dim)
        rows = file.read(theirs, from_head * head_dim, to_head * head_dim)
        start = first - from_head * head_dim
        return interleave_rotary_rows(rows, head_dim)[start : start + last - first]


def _take_scales(located: dict[str, SafetensorsFile]) -> dict[str, tuple[SafetensorsFile, str]]:
    """Take out the scales of ternary matrices, by the matrices' canonical names."""
    scales = {}
    for name in [name for name in located if name.endswith(_SCALE)]:
        matrix = canonical_name(name.removesuffix(_SCALE) + ".weight")
        if matrix is not None:
            scales[matrix] = (located.pop(name), name)
    return scales


def _ternary(
    directory: Path,
    tensors: dict[str, tuple[SafetensorsFile, str]],
    scales: dict[str, tuple[SafetensorsFile, str]],
) -> TernaryMatrices | None:
    path = directory / "config.json"
    quantization = bitnet_quantization(read_json_object(path).get("quantization_config"), str(path))
    if quantization is not None:
        return TernaryMatrices(quantization, tensors=tensors, scales=scales)
    if scales:
        _, name = next(iter(scales.values()))
        raise FormatError(
            f"{path}: key 'quantization_config' must say whether tensor {name!r} divides or "
            "multiplies, not be missing; take it from the model's original config.json"
        )
    return None


def _locate(directory: Path) -> tuple[dict[str, SafetensorsFile], tuple[str, ...]]:
    """Find out which file holds each tensor, by transformers' names, and what to note."""
    single, index = directory / _SINGLE, directory / _INDEX
    present = sorted(path.name for path in directory.glob("*.safetensors"))
    if single.is_file() and index.is_file():
        raise FormatError(
            f"{directory}: weights must be in {_SINGLE} or in the shards of {_INDEX}, not in both; "
            "remove the one that does not belong to the model"
        )
    if single.is_file():
        file = SafetensorsFile(single)
        return dict.fromkeys(file.entries, file), _stray(directory, present, {_SINGLE})
    if not index.is_file():
        raise FormatError(
            f"{directory}: directory must hold {_SINGLE} or {_INDEX}, not only "
            f"{', '.join(sorted(path.name for path in directory.iterdir())) or 'nothing'}; "
            "save the model with save_pretrained(..., safe_serialization=True)"
        )
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(
            f"{index}: key 'weight_map' must be an object that names a file for each tensor, "
            f"not {weight_map!r}"
        )
    files: dict[str, SafetensorsFile] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name or name == ".." or "\\" in name:
            raise FormatError(
                f"{index}: file of tensor {tensor!r} must be a name inside the directory, "
                f"not {name!r}; the index does not belong to a model that can be trusted"
            )
        if name not in files:
            files[name] = SafetensorsFile(directory / name)
        if tensor not in files[name].entries:
            raise FormatError(
                f"{index}: tensor {tensor!r} must be in the file that the index names, "
                f"not missing from {name!r}; index and shards do not belong together"
            )
    for name, file in files.items():
        for tensor in file.entries:
            if weight_map.get(tensor) != name:
                raise FormatError(
                    f"{index}: each tensor of {name!r} must be in the index with that file, "
                    f"not {tensor!r} with {weight_map.get(tensor)!r}; index and shards do not "
                    "belong together"
                )
    located = {tensor: files[name] for tensor, name in weight_map.items()}
    return located, _stray(directory, present, set(files))


def _stray(directory: Path, present: list[str], used: set[str]) -> tuple[str, ...]:
    return tuple(f"{name}: file is not used" for name in present if name not in used)


def _drop_rotary_buffers(located: dict[str, SafetensorsFile], spec: ModelSpec) -> tuple[str, ...]:
    """Take out the frequencies that old checkpoints carry, if they are what they should be."""
    buffers = [name for name in located if _ROTARY_BUFFER.fullmatch(name)]
    expected = rope_frequencies(spec)
    for name in buffers:
        file = located.pop(name)
        values = file.read(name)
        # 0.5 %: the buffers may have been saved in bfloat16.
        if values.shape != expected.shape or not np.allclose(values, expected, rtol=5e-3, atol=0):
            raise FormatError(
                f"{file.path}: tensor {name!r} must be the rotary frequencies of config.json, "
                "not others; configuration and weights do not belong together"
            )
    if not buffers:
        return ()
    directory_name = next(iter(located.values())).path.parent.resolve().name
    return (
        f"{directory_name}: {len(buffers)} tensors of rotary frequencies are not used; they equal "
        "those of config.json",
    )
