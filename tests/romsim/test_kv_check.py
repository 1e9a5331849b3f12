from __future__ import annotations

import json

import pytest

from romsim.kv_check import VERDICTS, check, kv_models, to_json
from romsim.kv_formulas import FORMULAS, Figure, decode_limit, kivi_ratio, kv_bytes
from romsim_compiler.memory_map import kv_bytes_per_token
from romsim_models.shapes import SHAPES


def test_all_errata_are_there_in_order() -> None:
    errata = check()
    assert [e.id for e in errata] == [f"E{n:02d}" for n in range(1, 64)]
    assert all(e.verdict in VERDICTS and e.claim and e.correct for e in errata)
    assert {e.id for e in errata} >= set(FORMULAS)


@pytest.mark.parametrize("erratum", check(), ids=lambda e: e.id)
def test_stated_figures_are_what_their_formulas_give(erratum: object) -> None:
    figures = erratum.figures  # type: ignore[attr-defined]
    assert [f for f in figures if not f.agrees] == []


def test_most_errata_that_are_arithmetic_are_recomputed() -> None:
    assert len(FORMULAS) >= 39
    assert sum(len(figures) for figures in FORMULAS.values()) >= 80


def test_a_wrong_figure_would_be_noticed() -> None:
    assert not Figure("70 %", "1 / 0.3", 1 / 0.3, 4.0, "x").agrees
    assert not Figure("70B", "2 * 80 * 64 * 128 * 2", 2621440.0, 327680, "B", 0.0).agrees


@pytest.mark.parametrize("model", kv_models(), ids=lambda m: m.name)
def test_bytes_per_token_are_the_exact_integers(model: object) -> None:
    assert model.recomputed == model.bytes_per_token  # type: ignore[attr-defined]


def test_bytes_per_token_of_the_built_in_shapes() -> None:
    expected = {
        "smollm2": 23040,
        "llama-3.2-1b": 32768,
        "llama-3.2-3b": 114688,
        "llama-3-8b": 131072,
        "llama-3-70b": 327680,
        "bitnet-2b-4t": 76800,
        "opt-13b-mha": 819200,
    }
    assert {name: kv_bytes_per_token(SHAPES[name], 16) for name in expected} == expected


def test_heads_of_a_model_with_shared_heads_cannot_be_mistaken() -> None:
    """The specification knows its KV heads; the size of a model without sharing needs another."""
    spec = SHAPES["llama-3-70b"]
    shared = kv_bytes(layers=80, kv_heads=spec.n_kv_heads, head_dim=128)
    assert kv_bytes_per_token(spec, 16) == shared
    assert kv_bytes(layers=80, kv_heads=spec.n_heads, head_dim=128) == 8 * shared


def test_kivi_with_its_window_is_the_closed_form() -> None:
    # 1,154,048 bits a head at 1,000 tokens of 128: the vector of the reference implementation.
    ratio = kivi_ratio(1000, bits=2, group=32, residual=128)
    assert 2 * 1000 * 128 * 16 / ratio == pytest.approx(1_154_048)


def test_no_request_fits_where_the_weights_do_not() -> None:
    assert decode_limit(weights=90e9, kv_per_request=1e9, memory=80e9, bandwidth=3e12) == (0, 0.0)


def test_corrections_name_the_figure_that_matters() -> None:
    by_id = {e.id: e for e in check()}
    assert "327,680" in by_id["E29"].correct
    assert by_id["E29"].verdict == "wrong"
    assert by_id["E33"].verdict == "impossible"
    assert by_id["E24"].figures[0].value == pytest.approx(3.333, abs=1e-3)


def test_errata_survive_json() -> None:
    values = json.loads(json.dumps(to_json(), allow_nan=False))
    assert len(values["errata"]) == 63
    assert all(e["agrees"] for e in values["errata"])
    assert len(values["models"]) == len(kv_models())
