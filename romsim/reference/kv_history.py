"""Keys and values of one layer as attention sees them, and KIVI's two forms (docs/kv.md, 2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from romsim.reference.kv_codes import affine, fp16
from romsim.reference.kv_policy import KvPolicy
from romsim.reference.kv_vectors import Codebooks, encode_keys, encode_values
from romsim.reference.primitives import INT32_MAX, INT32_MIN, power_of_two, quantise
from romsim_models.errors import SpecError

__all__ = ["KvHistory", "NotePart"]

NotePart = Callable[[str, int, Tensor], None]
"""Called with a compared value's name (``k.words``), the first position and values [T, …]."""

Rotate = Callable[[Tensor, Tensor], Tensor]

_BITS = {"int4": 4, "int2": 2}
_WIDE_BITS = 4  # of narrow codes in the heads of the table


class KvHistory:
    """Cache of one layer that is not the plain one.

    Parameters
    ----------
    policy
        Codec and retention.
    n_heads, head_dim, block
        Shape of one token's words: key/value heads, elements of a head, elements per MXINT8 shift.
    frac
        Fraction bits of keys and values.
    books, rotate
        Of commvq: the layer's codebooks, and what turns keys [T, n_heads, head_dim] as they stand
        at positions [T].
    layer
        Its number.

    Attributes
    ----------
    fresh
        Keys and values as they are seen first: float64 [n_heads, capacity, head_dim], integers.
    late
        The same after KIVI's windows; of other codecs nothing.
    first
        Position of the first token in ``fresh``: a window forgets what it has passed, its sinks
        apart.
    sinks
        Keys and values of a window's sinks, float64 [n_heads, up to sinks, head_dim].
    slot_keys, slot_values, mass, slot_positions, free
        Slots of ranked tokens: float64 [n_heads, slots, head_dim], int64 [n_heads, slots] and
        [n_heads]; -1 is the position of a narrow token.
    """

    def __init__(
        self,
        policy: KvPolicy,
        *,
        n_heads: int,
        head_dim: int,
        block: int,
        frac: int,
        device: torch.device,
        books: Codebooks | None = None,
        rotate: Rotate | None = None,
        layer: int = 0,
    ) -> None:
        if policy.codec == "commvq" and books is None:
            raise SpecError("codebooks must be given with the KV codec 'commvq', not left out")
        self._books, self._rotate = books, rotate
        wide = [(layer, head) in policy.head_table for head in range(n_heads)]
        self._is_wide = torch.tensor(wide, device=device)
        self.policy, self.block, self.frac = policy, block, frac
        self.n_heads, self.head_dim = n_heads, head_dim
        nothing = torch.zeros((n_heads, 0, head_dim), dtype=torch.float64, device=device)
        self.fresh = [nothing, nothing]
        self.late = [nothing, nothing]
        self._plain_keys = nothing
        self.first = 0
        self.length = 0
        self.sinks = [nothing, nothing]
        n_slots = policy.heavy + policy.window + 1 if policy.retention == "h2o" else 0
        shape = (n_heads, n_slots, head_dim)
        self.slot_keys = torch.zeros(shape, dtype=torch.float64, device=device)
        self.slot_values = torch.zeros(shape, dtype=torch.float64, device=device)
        self.mass = torch.zeros(shape[:2], dtype=torch.int64, device=device)
        self.slot_positions = torch.zeros(shape[:2], dtype=torch.int64, device=device)
        self.free = torch.zeros(n_heads, dtype=torch.int64, device=device)

    def rewind(self, length: int) -> None:
        """Forget tokens of an interrupted call.

        Raises
        ------
        SpecError
            If what they replaced is gone.
        """
        if length == self.length:
            return
        if self.policy.retention != "all" or self.policy.is_ranked:
            raise SpecError(
                f"Decoder with KV codec {self.policy.codec!r} and retention "
                f"{self.policy.retention!r} must be reset after an interrupted call, since words "
                f"that were dropped or narrowed are gone; call reset()"
            )
        self.length = length

    def append(self, keys: Tensor, values: Tensor, note: NotePart) -> None:
        """Add tokens, float64 [T, n_heads, head_dim], int32 values; keys rotated (commvq: not)."""
        start = self.length
        seen = [self._encode(name, side, note) for name, side in (("k", keys), ("v", values))]
        if self.policy.codec == "commvq":
            self._plain_keys = _extended(self._plain_keys, seen[0], start)
            seen[0] = self._turned(seen[0], start)
        if self.policy.retention == "stream":
            self._forget(start)
        for side, fresh in enumerate(seen):
            self.fresh[side] = _extended(self.fresh[side], fresh, start - self.first)
        self.length = start + keys.shape[0]
        if self.policy.retention == "stream":
            upto = self.policy.sinks - self.sinks[0].shape[1]
            for side, fresh in enumerate(seen):
                self.sinks[side] = torch.cat((self.sinks[side], fresh[:, : max(upto, 0)]), dim=1)
        if self.policy.codec == "kivi":
            self._encode_windows(start, note)
        if self.policy.codec == "commvq":
            self._encode_vectors(start, note)
        if self.policy.codec == "tiered":  # every token in its own slot, rewritten when narrowed
            self.slot_keys, self.slot_values = self.fresh
            more = self.fresh[0].shape[1] - self.mass.shape[1]
            self.mass = torch.nn.functional.pad(self.mass, (0, more))
            self.slot_positions = torch.nn.functional.pad(self.slot_positions, (0, more), value=-1)

    def _forget(self, start: int) -> None:
        """Keep the tokens that a window of the next token may hold."""
        gone = start - self.policy.window - self.first
        if gone > 0:
            held = start - self.first
            self.fresh = [side[:, gone:held].contiguous() for side in self.fresh]
            self.first += gone

    def _encode(self, name: str, values: Tensor, note: NotePart) -> Tensor:
        """Return tokens as they are seen first, float64 [n_heads, T, head_dim]."""
        codec, start = self.policy.codec, self.length
        if codec in ("int8", "tiered"):
            coded = quantise(values, block=self.block, frac=self.frac)
            note(f"{name}.codes", start, coded.codes)
            note(f"{name}.shifts", start, coded.shifts)
            seen = coded.codes.to(torch.float64) * power_of_two(coded.element_shifts())
        elif codec in ("fp16", "kivi", "commvq"):
            words, seen = fp16(values)
            note(f"{name}.words", start, words)
        else:
            groups = values.reshape(*values.shape[:2], -1, self.policy.group)
            made = affine(groups, _BITS[codec])
            note(f"{name}.codes", start, made.codes)
            note(f"{name}.scales", start, made.scale)
            note(f"{name}.zeros", start, made.zero)
            seen = made.seen.reshape(values.shape)
        return seen.transpose(0, 1)

    def narrow(self, slots: Tensor, position: int, note: NotePart) -> None:
        """Encode the token in a slot of each head anew, narrower: slots int64 [n_heads]."""
        heads = torch.arange(self.n_heads)
        policy = self.policy
        sides = (
            ("k", self.slot_keys, policy.key_bits),
            ("v", self.slot_values, policy.value_bits),
        )
        for name, held, bits in sides:
            token = held[heads, slots].reshape(self.n_heads, -1, policy.group)
            made, other = affine(token, bits), affine(token, _WIDE_BITS)
            wide = self._is_wide[:, None]
            for part, words, wider in (
                ("codes", made.codes, other.codes),
                ("scales", made.scale, other.scale),
                ("zeros", made.zero, other.zero),
            ):
                mask = wide[..., None] if words.dim() == 3 else wide
                note(f"{name}.narrow.{part}", position, torch.where(mask, wider, words)[None])
            seen = torch.where(wide[..., None], other.seen, made.seen)
            held[heads, slots] = seen.reshape(self.n_heads, -1)

    def _encode_windows(self, start: int, note: NotePart) -> None:
        """Make the late form of what leaves a window after the attention of tokens from ``start``.

        A window's words are known before its last token attends; who sees which form is up to the
        attention.
        """
        policy, end = self.policy, self.length
        sinks, window, group = policy.plain_sinks, policy.residual, policy.group
        self._lengthen_late()
        for number in range(max(0, start - sinks) // window, max(0, end - sinks) // window):
            first = sinks + number * window
            words = self.fresh[0][:, first : first + window]
            channels = words.reshape(self.n_heads, -1, group, self.head_dim).transpose(2, 3)
            made = affine(channels, policy.key_bits)
            position = first + window - 1
            note("k.group.codes", position, made.codes.transpose(2, 3)[None])
            note("k.group.scales", position, made.scale[None])
            note("k.group.zeros", position, made.zero[None])
            late = made.seen.transpose(2, 3).reshape(words.shape)
            self.late[0][:, first : first + window] = late
        first, last = max(sinks, start - window), end - window
        if last > first:
            words = self.fresh[1][:, first:last]
            made = affine(words.reshape(self.n_heads, last - first, -1, group), policy.value_bits)
            for name, part in (("codes", made.codes), ("scales", made.scale), ("zeros", made.zero)):
                note(f"v.late.{name}", first + window, part.transpose(0, 1))
            self.late[1][:, first:last] = made.seen.reshape(words.shape)

    def _turned(self, keys: Tensor, first: int) -> Tensor:
        """Return keys [n_heads, T, head_dim] as they are read from position ``first`` on."""
        assert self._rotate is not None
        clipped = keys.clamp(INT32_MIN, INT32_MAX).transpose(0, 1)
        positions = torch.arange(first, first + len(clipped), device=keys.device)
        return self._rotate(clipped, positions).reshape(clipped.shape).transpose(0, 1)

    def _encode_vectors(self, start: int, note: NotePart) -> None:
        """Make the late form of windows of commvq that are whole after tokens from ``start``."""
        assert self._books is not None
        self._lengthen_late()
        window = self.policy.residual
        for number in range(start // window, self.length // window):
            first = number * window
            part = slice(first, first + window)
            keys = encode_keys(self._plain_keys[:, part], self._books.keys)
            values = encode_values(self.fresh[1][:, part], self._books.values)
            for name, made in (("k", keys), ("v", values)):
                note(f"{name}.vector.codes", first + window - 1, made.codes[None])
                note(f"{name}.vector.norms", first + window - 1, made.norms[None])
            self.late[0][:, part] = self._turned(keys.decoded, first)
            self.late[1][:, part] = values.decoded

    def _lengthen_late(self) -> None:
        for side in (0, 1):
            missing = self.length - self.late[side].shape[1]
            if missing > 0:
                pad = self.late[side].new_zeros((self.n_heads, missing, self.head_dim))
                self.late[side] = torch.cat((self.late[side], pad), dim=1)

    def late_before(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return before which token keys, and values, are in their late form.

        Parameters
        ----------
        positions
            int64 [T], of the queries.

        Returns
        -------
        tuple of Tensor
            int64 [T] each; tokens below ``plain_sinks`` never are.
        """
        policy = self.policy
        past = (positions - policy.plain_sinks).clamp(min=0)
        keys = policy.plain_sinks + past // policy.residual * policy.residual
        return keys, keys if policy.codec == "commvq" else positions - policy.residual


def _extended(held: Tensor, added: Tensor, length: int) -> Tensor:
    """Return an array that holds ``added`` behind its first ``length`` tokens."""
    end = length + added.shape[1]
    if end > held.shape[1]:
        grown = held.new_zeros((held.shape[0], max(end, 2 * held.shape[1]), held.shape[2]))
        grown[:, :length] = held[:, :length]
        held = grown
    held[:, length:end] = added
    return held
