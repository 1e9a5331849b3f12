"""`Checkpoint`: a specification and the tensors that belong to it, read one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from romsim_models.errors import FormatError, SpecError
from romsim_models.tensors import expected_shapes

if TYPE_CHECKING:
    from romsim_models.encoded import Tensor
    from romsim_models.spec import ModelSpec
    from romsim_models.tokenizer import Tokenizer

__all__ = ["Checkpoint", "ModelSource", "TensorStore", "check_complete", "digest_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a checkpoint came from.

    Parameters
    ----------
    kind
        ``"gguf"``, ``"huggingface"``, ``"synthetic"`` or ``"shape"`` (no weights).
    name
        Name of the file or directory, or of the built-in model; never a path.
    sha256
        Hexadecimal digest of what was read; of the recipe where there is no file.
    """

    kind: str
    name: str
    sha256: str


class TensorStore(Protocol):
    """What a reader provides: tensors by canonical name."""

    def formats(self) -> Mapping[str, str]:
        """Canonical name to format in the file, for every tensor, in model order."""

    def read(self, name: str) -> Tensor:
        """Read one whole tensor."""

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        """Rows ``first`` to ``last`` (not included) of a matrix."""

    def digest(self) -> str:
        """SHA-256 of all that was read, hexadecimal."""


class Checkpoint:
    """A model: its specification, and its tensors when they are asked for.

    Peak memory is one tensor (one block of rows with `read_rows`), not the model.

    Parameters
    ----------
    spec
        The model's hyperparameters.
    kind, name
        As in `ModelSource`.
    store
        Gives the tensors, or ``None`` for a shape without weights.
    notes
        Defaults taken and keys not used while the model was opened, one sentence each. Whoever
        opened the model shows them to the user.
    load_tokenizer
        Builds the tokenizer, or ``None`` if the model has none.
    chat_template
        Jinja template that turns messages into a prompt, or ``None``.
    """

    def __init__(
        self,
        *,
        spec: ModelSpec,
        kind: str,
        name: str,
        store: TensorStore | None,
        notes: tuple[str, ...] = (),
        load_tokenizer: Callable[[], Tokenizer] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.spec = spec
        self.notes = notes
        self.chat_template = chat_template
        self._kind = kind
        self._name = name
        self._store = store
        self._shapes = expected_shapes(spec)
        self._load_tokenizer = load_tokenizer

    def __repr__(self) -> str:
        return f"Checkpoint({self._kind}, {self._name!r}, {self.spec.name!r})"

    @property
    def has_weights(self) -> bool:
        """Whether there are tensors to read; false for a shape."""
        return self._store is not None

    @cached_property
    def source(self) -> ModelSource:
        """Where the model came from; reads the whole file once for its digest."""
        if self._store is None:
            digest = hashlib.sha256(self.spec.to_json().encode()).hexdigest()
        else:
            digest = self._store.digest()
        return ModelSource(kind=self._kind, name=self._name, sha256=digest)

    def names(self) -> tuple[str, ...]:
        """Canonical names of all tensors, in model order."""
        return tuple(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it.

        Raises
        ------
        SpecError
            If the model has no such tensor.
        """
        self._require_name(name)
        return self._shapes[name]

    def formats(self) -> dict[str, str]:
        """Canonical name to format in the file ("q4_1", "f32"), without reading any data.

        Raises
        ------
        SpecError
            If the model is a shape without weights.
        """
        formats = self._weights().formats()
        return {name: formats[name] for name in self._shapes}

    def read(self, name: str) -> Tensor:
        """Read one tensor as its file has it.

        Raises
        ------
        SpecError
            If the model has no such tensor, or no weights.
        FormatError
            If the data are unreadable, or a value is not finite.
        """
        self._require_name(name)
        return self._weights().read(name)

    def read_rows(self, name: str, first: int, last: int) -> Tensor:
        """Rows ``first`` to ``last`` (not included) of a matrix, as `read` gives the whole.

        Raises
        ------
        SpecError
            If the model has no such matrix or rows, or no weights.
        FormatError
            If the data are unreadable, or a value is not finite.
        """
        self._require_name(name)
        shape = self.shape(name)
        if len(shape) != 2 or not 0 <= first < last <= shape[0]:
            raise SpecError(
                f"rows to read of tensor {name!r} of shape {list(shape)} must be a range inside "
                f"a matrix, not {(first, last)!r}"
            )
        return self._weights().read_rows(name, first, last)

    def tokenizer(self) -> Tokenizer | None:
        """Build the model's tokenizer; ``None`` if it has none.

        Raises
        ------
        FormatError
            If the tokenizer's data are incomplete or of a kind that is not supported.
        """
        return None if self._load_tokenizer is None else self._load_tokenizer()

    def _require_name(self, name: str) -> None:
        if name not in self._shapes:
            raise SpecError(
                f"tensor name must be one of model {self.spec.name!r} (see names()), not {name!r}"
            )

    def _weights(self) -> TensorStore:
        if self._store is None:
            raise SpecError(
                f"model {self._name!r} must have weights for this, not a shape alone; "
                "only timing, capacity and area can be had of a shape"
            )
        return self._store


def check_complete(
    spec: ModelSpec,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    where: str,
    source_name: Callable[[str], str] = str,
) -> None:
    """Check that tensors are exactly those of a specification.

    Parameters
    ----------
    spec
        What the tensors should fit.
    shapes
        Canonical name to shape, as found.
    where
        File or directory, for the messages.
    source_name
        Canonical name to the name that the file uses.

    Raises
    ------
    FormatError
        If a tensor is missing, has no use (a bias, for example), or has another shape.
    """
    expected = expected_shapes(spec)
    missing = [name for name in expected if name not in shapes]
    if missing:
        name = missing[0]
        raise FormatError(
            f"{where}: tensor {source_name(name)!r} of shape {list(expected[name])} must be "
            f"present, not missing{_and_more(map(source_name, missing[1:]))}; "
            "the file is incomplete: get or convert it again"
        )
    extra = [name for name in shapes if name not in expected]
    if extra:
        name = source_name(extra[0])
        reason = (
            "a bias; only models without biases can be compiled"
            if name.endswith(".bias")
            else "one without a use; check that the architecture is the right one"
        )
        raise FormatError(
            f"{where}: tensor {name!r}{_and_more(map(source_name, extra[1:]))} must be one of a "
            f"{spec.arch!r} decoder's, not {reason}"
        )
    for name, shape in expected.items():
        if tuple(shapes[name]) != shape:
            raise FormatError(
                f"{where}: shape of tensor {source_name(name)!r} must be {list(shape)}, "
                f"not {list(shapes[name])!r}; the configuration and the weights do not belong "
                "together"
            )


def digest_files(paths: Iterable[Path]) -> str:
    """SHA-256 over several files: of the lines ``<name> <sha256>``, in order of the names.

    One file alone gives its plain digest.
    """
    digests = {}
    for path in paths:
        with path.open("rb") as file:
            digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _and_more(names: Iterable[str]) -> str:
    others = list(names)
    if not others:
        return ""
    shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    return f" (and {len(others)} more: {shown})"
