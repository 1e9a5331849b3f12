"""What a chip's Verilog is built for: a model, or several of one shape that its ROMs may hold.

Sizes of memories and counters are those of the largest model. A model on a die with room for larger
ones has the values and cycles that it has on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.adapter_images import lora_sizes
from romsim_rtl.attention_sizes import AttentionSizes
from romsim_rtl.lora_sizes import LoraSizes
from romsim_rtl.lside import LSideConfig
from romsim_rtl.rom_files import program_sizes

__all__ = ["Die"]

_OWN = ("name", "n_layers", "vocab_size", "tie_embeddings", "max_seq_len", "eos_ids")
"""What models of one die may have of their own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Die:
    """Sizes of a chip, for one model or several.

    Parameters
    ----------
    models
        Compiled for one target and one shape, but for layers, vocabulary, formats and adapters.
    l_side
        Unit L.
    attention
        Unit H.
    lora
        Its adapters, or ``None`` if no model has any.
    program_words
        Room for each program.
    n_gain_words
        Words of the gain ROM.
    """

    models: tuple[Description, ...]
    l_side: LSideConfig
    attention: AttentionSizes
    lora: LoraSizes | None
    program_words: tuple[int, ...]
    n_gain_words: int

    @classmethod
    def of(cls, *models: Description, is_packed: bool = True) -> Die:
        """Size a chip for models; ``is_packed`` as in `romsim_rtl.cell.CellConfig`.

        Raises
        ------
        SpecError
            If the RTL has no hardware for one, or they are not of one shape.
        """
        first = _shape(models[0])
        for model in models[1:]:
            for name, value in _shape(model).items():
                if value != first[name]:
                    raise SpecError(
                        f"{name} of models on one die must be the same, not {first[name]!r} for "
                        f"{models[0].name!r} and {value!r} for {model.name!r}; build a die for each"
                    )
        lanes = models[0].target.vector.n_lanes
        largest = max(models, key=lambda model: model.spec.n_layers)
        programs = [program_sizes(model) for model in models]
        gains = [[gain.values.size for gain in model.gains.values()] for model in models]
        return cls(
            models=models,
            l_side=LSideConfig.of(*models, is_packed=is_packed),
            attention=AttentionSizes.of(
                largest.target,
                largest.spec,
                context=largest.context,
                linear_frac=largest.numerics.linear_frac,
            ),
            lora=_largest([lora_sizes(model) for model in models]),
            program_words=tuple(max(sizes) for sizes in zip(*programs, strict=True)),
            n_gain_words=max(sum(-(-size // lanes) for size in sizes) for sizes in gains),
        )

    @property
    def starts(self) -> tuple[int, ...]:
        """First address of each program."""
        return tuple(sum(self.program_words[:number]) for number in range(len(self.program_words)))


def _shape(model: Description) -> dict[str, Any]:
    """Return what the Verilog takes from a model but sizes of memories."""
    spec = {name: value for name, value in asdict(model.spec).items() if name not in _OWN}
    return {
        "target": model.target.to_json(),
        **spec,
        "context": model.context,
        "numerics": model.numerics.to_json(),
        "phase increments": [int(value) for value in model.phase_increments],
        "query scale": model.query_scale,
        "tables": {name: [int(v) for v in values] for name, values in model.tables.items()},
    }


def _largest(sizes: Sequence[LoraSizes | None]) -> LoraSizes | None:
    given = [size for size in sizes if size is not None]
    if not given:
        return None
    names = ("max_rank", "n_entries", "a_words", "b_words", "n_cols", "n_rows")
    return replace(given[0], **{name: max(getattr(size, name) for size in given) for name in names})
