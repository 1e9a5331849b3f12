"""Text to tokens and back, prompts from a chat template, and text that arrives token by token."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers.decoders import DecodeStream

from romsim_models.errors import FormatError, SpecError

__all__ = ["TokenStream", "Tokenizer", "backend_from_json"]

_JSON_FORMAT = "romsim-tokenizer-1"


class Tokenizer:
    """A model's tokenizer.

    Parameters
    ----------
    backend
        Tokenizer of the ``tokenizers`` library.
    special_tokens
        Texts for the chat template: ``bos_token``, ``eos_token`` and the like.
    eos_ids
        Tokens that end a generation.
    chat_template
        Jinja template that turns messages into a prompt, or ``None``.
    """

    def __init__(
        self,
        *,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        eos_ids: tuple[int, ...] = (),
        chat_template: str | None = None,
    ) -> None:
        self.eos_ids = eos_ids
        self.chat_template = chat_template
        self._backend = backend
        self._special_tokens = dict(special_tokens)

    @property
    def vocab_size(self) -> int:
        """Tokens that have a text; a model's embedding may have more rows."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Turn a text into tokens.

        Parameters
        ----------
        text
            Any text; special tokens written in it become those tokens.
        add_special
            Whether to put in front what the model's authors put in front (a BOS token, for some).

        Raises
        ------
        SpecError
            If the text is no Unicode: a command line hands on bytes that are no UTF-8 as halves of
            surrogate pairs.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SpecError(
                f"text must be Unicode, not hold {text[error.start : error.end]!r} at character "
                f"{error.start}; check the terminal's encoding, it should be UTF-8"
            ) from None
        return list(self._backend.encode(text, add_special_tokens=add_special).ids)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Turn tokens into text.

        Bytes that are no UTF-8 show as U+FFFD; tokens above the vocabulary have no text.
        """
        return str(self._backend.decode(list(tokens), skip_special_tokens=skip_special))

    def stream(self, *, skip_special: bool = True) -> TokenStream:
        """Start to decode token by token."""
        return TokenStream(backend=self._backend, skip_special=skip_special)

    def token_text(self, token: int) -> str | None:
        """Return the vocabulary's entry of a token, or ``None`` if it has none."""
        text: str | None = self._backend.id_to_token(token)
        return text

    def token_id(self, text: str) -> int | None:
        """Return the token of a vocabulary entry, or ``None`` if there is none."""
        token: int | None = self._backend.token_to_id(text)
        return token

    def chat(
        self, messages: str | Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """Write a conversation as the prompt that the model was trained on.

        Parameters
        ----------
        messages
            One user message as a text, or messages with the keys ``role`` and ``content``.
        add_generation_prompt
            Whether the prompt ends where the assistant's answer begins.

        Returns
        -------
        str
            The prompt. Encode it with ``add_special=False``, as `encode_chat` does: the template
            writes the special tokens itself.

        Raises
        ------
        SpecError
            If the model has no template, a message lacks a key, or the template refuses it.
        """
        if self.chat_template is None:
            raise SpecError(
                "chat template of the model must be present, not missing; give the prompt as "
                "plain text"
            )
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        for turn in turns:
            if not {"role", "content"} <= set(turn):
                raise SpecError(
                    f"each chat message must have the keys role and content, not {sorted(turn)!r}"
                )
        # Line control as transformers' apply_chat_template sets it: templates are written for it.
        # The sandbox keeps a template, which came with somebody's file, from running anything.
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_template_error
        try:
            return environment.from_string(self.chat_template).render(
                messages=[dict(turn) for turn in turns],
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise SpecError(
                f"chat messages must be what the model's template accepts, not refused by it: "
                f"{error}"
            ) from error

    def encode_chat(
        self, messages: str | Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Tokens of `chat`'s prompt.

        Raises
        ------
        SpecError
            As `chat`.
        """
        prompt = self.chat(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(prompt, add_special=False)

    def to_json(self) -> str:
        """Everything as one JSON text, the same bytes for the same tokenizer."""
        return json.dumps(
            {
                "format": _JSON_FORMAT,
                "backend": json.loads(self._backend.to_str()),
                "special_tokens": self._special_tokens,
                "eos_ids": list(self.eos_ids),
                "chat_template": self.chat_template,
            },
            ensure_ascii=False,
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Read back what `to_json` gave.

        Raises
        ------
        FormatError
            If the text is something else.
        """
        try:
            values: Any = json.loads(text)
            found = values.get("format") if isinstance(values, dict) else type(values).__name__
        except json.JSONDecodeError as error:
            found = f"JSON with an error in line {error.lineno}, column {error.colno}"
        if found != _JSON_FORMAT:
            raise FormatError(f"format of a tokenizer must be {_JSON_FORMAT!r}, not {found!r}")
        return cls(
            backend=backend_from_json(json.dumps(values["backend"]), where="tokenizer"),
            special_tokens=values["special_tokens"],
            eos_ids=tuple(values["eos_ids"]),
            chat_template=values["chat_template"],
        )


class TokenStream:
    """Decodes one sequence token by token; a character is given out when all its bytes are there.

    Parameters
    ----------
    backend
        Tokenizer of the ``tokenizers`` library.
    skip_special
        Whether special tokens give no text.
    """

    def __init__(self, *, backend: tokenizers.Tokenizer, skip_special: bool) -> None:
        self._backend = backend
        self._skip_special = skip_special
        self._decoder = DecodeStream(skip_special_tokens=skip_special)
        self._tokens: list[int] = []
        self._n_given = 0

    def push(self, token: int) -> str:
        """Take the next token; return the text that is now complete, which may be empty."""
        self._tokens.append(token)
        text = self._decoder.step(self._backend, token) or ""
        self._n_given += len(text)
        return text

    def finish(self) -> str:
        """Return what is left: an unfinished character, as U+FFFD."""
        whole = self._backend.decode(self._tokens, skip_special_tokens=self._skip_special)
        rest = str(whole[self._n_given :])
        self._n_given += len(rest)
        return rest


def backend_from_json(text: str, *, where: str) -> tokenizers.Tokenizer:
    """Build a backend from the JSON of the ``tokenizers`` library.

    Raises
    ------
    FormatError
        If the library refuses the text.
    """
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise FormatError(
            f"{where}: tokenizer must be in the format of the tokenizers library, "
            f"not refused by it: {error}"
        ) from error


def _raise_template_error(message: str) -> None:
    """Give templates the function that they call to refuse a conversation."""
    raise jinja2.TemplateError(message)
