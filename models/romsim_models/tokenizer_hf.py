"""A Hugging Face directory's tokenizer files -> `Tokenizer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from romsim_models.config_keys import read_json_object, read_text
from romsim_models.errors import FormatError
from romsim_models.spec import ModelSpec
from romsim_models.tokenizer import Tokenizer, backend_from_json

__all__ = ["HfTokenizerFiles"]

_SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token")


class HfTokenizerFiles:
    """What a directory has of a tokenizer.

    Parameters
    ----------
    directory
        May hold ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``.
    spec
        The model's, for its vocabulary and its ``eos_ids``.

    Raises
    ------
    FormatError
        If a file cannot be read.
    """

    def __init__(self, directory: Path, spec: ModelSpec) -> None:
        self._path = directory / "tokenizer.json"
        self._spec = spec
        self.is_present = self._path.is_file()
        self.notes: tuple[str, ...] = ()
        if not self.is_present:
            self.notes = (
                f"{self._path.name}: file is missing; the model has no tokenizer, prompts are "
                "token numbers",
            )
        config_path = directory / "tokenizer_config.json"
        config = read_json_object(config_path) if config_path.is_file() else {}
        self._special_tokens = _special_tokens(config)
        self.chat_template = _chat_template(directory / "chat_template.jinja", config)

    def load(self) -> Tokenizer:
        """Build the tokenizer.

        Raises
        ------
        FormatError
            If ``tokenizer.json`` cannot be used, or has more tokens than the embedding has rows.
        """
        tokenizer = Tokenizer(
            backend=backend_from_json(read_text(self._path), where=str(self._path)),
            special_tokens=self._special_tokens,
            eos_ids=self._spec.eos_ids,
            chat_template=self.chat_template,
        )
        if tokenizer.vocab_size > self._spec.vocab_size:
            raise FormatError(
                f"{self._path}: tokenizer must have at most {self._spec.vocab_size} tokens, as the "
                f"embedding has rows, not {tokenizer.vocab_size!r}; it belongs to another model"
            )
        return tokenizer


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Texts of the special tokens, which the file gives as texts or as objects."""
    found = {}
    for key in _SPECIAL_KEYS:
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[key] = value
    return found


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    """Template in its own file (transformers 4.50 on), else in the configuration."""
    if path.is_file():
        return read_text(path)
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = [each for each in template if isinstance(each, dict)]
        template = next((e.get("template") for e in named if e.get("name") == "default"), None)
    return template if isinstance(template, str) else None
