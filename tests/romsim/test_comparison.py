from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from romsim import comparison
from romsim.comparison import Divergence, ValueReport, compare_values, make_reference
from romsim.cycle import CycleModel
from romsim_compiler.description import Description
from romsim_models.errors import RomsimError
from romsim_models.registry import open_model


def report(**changes: Any) -> ValueReport:
    values: dict[str, Any] = {
        "n_tokens": 1, "n_values": 5, "n_mismatches": 0, "first": None, "tainted": (),
        "saturations": 0, "counts": {"q": 5},
    }  # fmt: skip
    return ValueReport(**{**values, **changes})


def compare(chip: Description, n_new: int = 3, prompt: Sequence[int] = (40, 41)) -> ValueReport:
    return compare_values(chip, open_model("tiny-int4"), list(prompt), n_new=n_new)


def change_values(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let every output of the cycle model pass through ``change(name, position, values)``."""

    class Changed(CycleModel):
        @property
        def record(self) -> Any:
            return super().record

        @record.setter
        def record(self, callback: Any) -> None:
            def passed(name: str, position: int, values: Any) -> None:
                for out in change(name, position, np.array(values)):
                    callback(*out)

            CycleModel.record.fset(self, passed)  # type: ignore[attr-defined]

    monkeypatch.setattr("romsim.cycle.CycleModel", Changed)


def test_nothing_compared_is_a_failure() -> None:
    assert report().passed
    assert not report(n_values=0, counts={}).passed
    assert not report(n_mismatches=1).passed


def test_empty_machines_do_not_pass(monkeypatch: pytest.MonkeyPatch, tiny: Description) -> None:
    class Silent:
        saturations = 0

        def forward(self, tokens: object, **options: object) -> None:
            """Give nothing."""

    monkeypatch.setattr(comparison, "make_reference", lambda *a, **k: Silent())
    change_values(monkeypatch, lambda *out: [])
    done = compare(tiny)
    assert (done.n_values, done.n_mismatches, done.passed) == (0, 0, False)


def test_sentence_of_a_divergence() -> None:
    first = Divergence(operator="L3.q.codes", position=7, index=12, expected=-1, got=260)
    assert first.sentence() == (
        "L3.q.codes[12] at position 7: reference -1 (0xffffffff), cycle model 260 (0x00000104)"
    )
    assert first.to_json() == {
        "operator": "L3.q.codes", "position": 7, "index": 12, "expected": -1, "got": 260,
        "sentence": first.sentence(),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "position", "index"),
    [
        ("embed", 0, 3),
        ("L1.attn", 2, 31),
        ("L0.k.codes", 1, 0),
        ("L1.v.shifts", 4, 1),
        ("logits", 1, 287),
        ("logits", 3, 0),  # of a decoded token that is not the last
        ("output_norm.shifts", 4, 1),
    ],
)
def test_one_wrong_value_anywhere_is_found(
    name: str, position: int, index: int, monkeypatch: pytest.MonkeyPatch, tiny: Description
) -> None:
    def change(found: str, at: int, values: Any) -> list[Any]:
        if (found, at) == (name, position):
            values.reshape(-1)[index] ^= 1
        return [(found, at, values)]

    change_values(monkeypatch, change)
    done = compare(tiny)
    assert done.first is not None
    assert (done.first.operator, done.first.position, done.first.index) == (name, position, index)
    assert done.first.expected == done.first.got ^ 1
    assert (done.n_mismatches, done.tainted, done.passed) == (1, (name,), False)


def test_first_is_the_first_executed_and_the_rest_is_tainted(
    monkeypatch: pytest.MonkeyPatch, tiny: Description
) -> None:
    def change(name: str, position: int, values: Any) -> list[Any]:
        return [(name, position, values + (name in ("L0.o", "L1.down", "L0.q")))]

    change_values(monkeypatch, change)
    done = compare(tiny)
    assert done.tainted == ("L0.q", "L0.o", "L1.down")
    assert done.first is not None
    assert (done.first.operator, done.first.position) == ("L0.q", 0)


def test_value_that_one_machine_does_not_give_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tiny: Description
) -> None:
    change_values(monkeypatch, lambda *out: [] if out[0] == "L1.up" and out[1] == 1 else [out])
    sentence = (
        "Cycle model must give L1.up at position 1, but it does not; the machines do not run the "
        "same operators"
    )
    with pytest.raises(RomsimError, match=rf"^{re.escape(sentence)}$"):
        compare(tiny)


def test_logits_of_a_decoded_token_may_not_be_left_out(
    monkeypatch: pytest.MonkeyPatch, tiny: Description
) -> None:
    change_values(monkeypatch, lambda *out: [] if out[0] == "logits" and out[1] == 3 else [out])
    with pytest.raises(RomsimError, match=r"^Cycle model must give logits at position 3, but"):
        compare(tiny)


def test_value_that_only_the_cycle_model_gives_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tiny: Description
) -> None:
    change_values(
        monkeypatch,
        lambda *out: [out, ("L0.new", out[1], out[2])] if out[0] == "L0.q" else [out],
    )
    sentence = (
        "Reference must give L0.new at position 0, but it does not; the machines do not run the "
        "same operators"
    )
    with pytest.raises(RomsimError, match=rf"^{re.escape(sentence)}$"):
        compare(tiny)


def test_values_of_another_length_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tiny: Description
) -> None:
    change_values(
        monkeypatch,
        lambda name, at, values: [(name, at, values[..., :-1] if name == "L0.o" else values)],
    )
    sentence = "L0.o at position 0 must have 64 values, not 63"
    with pytest.raises(RomsimError, match=rf"^{re.escape(sentence)}$"):
        compare(tiny)


def test_long_runs_are_compared_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, tiny: Description
) -> None:
    whole = compare(tiny, n_new=9, prompt=range(40, 51))
    monkeypatch.setattr(comparison, "CHUNK", 4)
    done: list[tuple[int, int]] = []
    pieces = compare_values(
        tiny,
        open_model("tiny-int4"),
        list(range(40, 51)),
        n_new=9,
        progress=lambda n, total: done.append((n, total)),
    )
    assert [n for n, _ in done] == [4, 8, 11, 15, 19, 20]
    assert {total for _, total in done} == {20}
    assert pieces.passed
    assert whole.passed
    assert pieces.counts["q"] == whole.counts["q"] == 20 * 2 * 128
    # Each piece of the prompt ends with a head, of which the whole prompt has one.
    assert pieces.counts["logits"] - whole.counts["logits"] == 2 * tiny.spec.vocab_size


def test_prompt_alone_can_be_compared(tiny: Description) -> None:
    done = compare(tiny, n_new=0)
    assert done.passed
    assert (done.n_tokens, done.counts["logits"]) == (2, tiny.spec.vocab_size)


def test_report_as_json() -> None:
    first = Divergence(operator="L0.q", position=0, index=1, expected=2, got=3)
    values = report(n_mismatches=1, first=first, tainted=("L0.q",)).to_json()
    assert values["first"] == first.to_json()
    assert values["values_by_operator"] == {"q": 5}
    assert (values["passed"], values["tainted"]) == (False, ["L0.q"])


def test_reference_is_given_choices_and_never_a_weight(tiny: Description) -> None:
    decoder = make_reference(tiny, open_model("tiny-int4"))
    assert decoder.config.attn_block == tiny.numerics.attn_block == 16
    with pytest.raises(RomsimError, match=r"^adapter must be one of the decoder's \(none, as none"):
        decoder.forward([1], adapter="story")
