from __future__ import annotations

import hashlib
import lzma
import math
import random
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from romsim_compiler.formats import parse_format
from romsim_compiler.lora_image import build_lora
from romsim_compiler.quantize import quantize_tensor
from romsim_compiler.target_file import load_target
from romsim_models import registry
from romsim_models.encoded import EncodedTensor
from romsim_models.errors import FormatError
from romsim_models.lora import read_adapter
from romsim_models.registry import fetch, find, named_models, open_model

STORIES = ("stories-ternary", "stories-int4", "stories-int2")
TRAINING = Path(__file__).parents[2] / "models" / "training"


def projections(name: str) -> dict[str, EncodedTensor]:
    model = open_model(name)
    found = {}
    for tensor in model.names():
        if tensor.startswith("blk.") and "norm" not in tensor:
            matrix = model.read(tensor)
            assert isinstance(matrix, EncodedTensor)
            found[tensor] = matrix
    assert len(found) == 14
    return found


@pytest.mark.parametrize("name", STORIES)
def test_file_is_what_the_list_says(name: str) -> None:
    named = named_models()[name]
    assert named.file is not None
    path = find(name)
    assert fetch(name) == path
    raw = path.read_bytes()
    assert (len(raw), hashlib.sha256(raw).hexdigest()) == (
        *(named.file.size_bytes, named.file.sha256),
    )
    model = open_model(name)
    assert named.spec == replace(model.spec, norm_eps=1e-5)
    assert model.spec.norm_eps == float(np.float32(1e-5))
    assert model.notes == ()


def test_files_are_small() -> None:
    assert sum(find(name).stat().st_size for name in STORIES) <= 3_000_000


@pytest.mark.parametrize("name", STORIES)
def test_tokenizer_gives_a_story_back(name: str) -> None:
    tokenizer = open_model(name).tokenizer()
    assert tokenizer is not None
    text = (TRAINING / "held_out.txt").read_text("utf-8")
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens, skip_special=False) == text
    assert len(tokens) < len(text.encode()) / 3
    assert tokenizer.eos_ids == (0,)
    assert tokenizer.encode("<|endoftext|>") == [0]


def test_ternary_matrices_have_one_scale_and_real_statistics() -> None:
    for name, matrix in projections("stories-ternary").items():
        assert matrix.format == "tq2_0"
        assert len(np.unique(matrix.scale_bits)) == 1, name
        zeros = float((matrix.codes == 1).mean())
        assert 0.25 < zeros < 0.5, name  # 0.31 of a normal distribution


def test_four_bit_twin_uses_all_codes() -> None:
    for name, matrix in projections("stories-int4").items():
        assert set(np.unique(matrix.codes)) == set(range(16)), name


def test_two_bit_codes_come_back_when_the_chip_rounds() -> None:
    fmt = parse_format("int2g32")
    for name, matrix in projections("stories-int2").items():
        assert int(matrix.codes.max()) == 3
        burnt = quantize_tensor(name, matrix.dequantize(), fmt)
        np.testing.assert_array_equal(burnt.codes, matrix.codes, name)
        np.testing.assert_array_equal(burnt.scale_bits, matrix.scale_bits, name)
        np.testing.assert_array_equal(burnt.minimum_bits, matrix.minimum_bits, name)


def test_a_changed_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = named_models()["stories-int2"]
    assert named.file is not None
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    path = tmp_path / "data" / "stories-int2.gguf"
    with pytest.raises(FormatError) as caught:
        find("stories-int2")
    assert str(caught.value) == (
        f"model file {path} must be present, not missing; install romsim again"
    )
    path.parent.mkdir()
    path.write_bytes(b"other")
    found = hashlib.sha256(b"other").hexdigest()
    for call in (find, fetch):
        with pytest.raises(FormatError) as caught:
            call("stories-int2")
        assert str(caught.value) == (
            f"SHA-256 of model file {path} must be {named.file.sha256}, not {found!r}; install "
            "romsim again"
        )


@pytest.fixture(scope="module")
def scripts() -> Any:
    pytest.importorskip("torch")
    names = ("generate_stories", "train_ternary", "train_adapter")
    return tuple(import_module(f"models.training.{name}") for name in names)


def test_prompts_are_those_of_the_seed(scripts: Any) -> None:
    request, opening = scripts[0].story_prompt(random.Random("1/0"))
    assert request.startswith("<|im_start|>user\nWrite a short story for a small child about a")
    assert opening.startswith("Once upon a time, there was a")
    again = scripts[0].story_prompt(random.Random("1/0"))
    assert again == (request, opening)
    with lzma.open(TRAINING / "stories.txt.xz", "rt", encoding="utf-8") as file:
        text = file.read()
    assert text.count(scripts[0].SEPARATOR) == 640
    assert opening in text


def test_committed_text_is_split_as_the_held_out_file_says(scripts: Any) -> None:
    train, held_out = scripts[1].read_stories([TRAINING / "stories.txt.xz"], 1)
    assert (len(train), len(held_out)) == (513, 32)
    text = (TRAINING / "held_out.txt").read_text("utf-8")
    assert text == "".join(f"{story}<|endoftext|>" for story in held_out)
    assert not set(train) & set(held_out)
    assert all(story[-1] in ".!?" for story in train)


def test_quantisers_of_the_training(scripts: Any) -> None:
    import torch

    training = scripts[1]
    weight = torch.tensor([[0.5, -0.5, 0.1, 0.9], [0.0, -1.2, 0.3, 0.5]])
    scale = float(np.float16(weight.abs().mean()))
    expected = [[1, -1, 0, 1], [0, -1, 1, 1]]
    np.testing.assert_array_equal(training.ternary(weight), np.array(expected) * np.float32(scale))
    values = weight.clone().requires_grad_()
    out = training.straight_through(values, training.ternary)
    np.testing.assert_array_equal(out.detach(), training.ternary(weight))
    (out * torch.arange(8.0).reshape(2, 4)).sum().backward()
    np.testing.assert_array_equal(values.grad, np.arange(8.0).reshape(2, 4))
    rounded = training.int8_per_token(torch.tensor([[1.0, -2.54, 0.013]]))
    np.testing.assert_allclose(rounded, [[1.0, -2.54, 0.02]], rtol=1e-6)


def test_two_bit_groups_of_the_training_are_kept_by_the_chip(scripts: Any) -> None:
    import torch

    weight = np.random.RandomState(0).standard_normal((4, 64)).astype(np.float32)
    trained = scripts[1].groups_of_32(3)(torch.tensor(weight)).numpy()
    burnt = quantize_tensor("w", trained, parse_format("int2g32"))
    np.testing.assert_allclose(burnt.dequantize(), trained, rtol=0, atol=1e-6)
    assert len(np.unique(trained[0, :32])) == 4
    assert np.abs(trained - weight).max() < 0.5 * np.ptp(weight) / 3 + 1e-3


def test_training_learns(scripts: Any) -> None:
    import torch

    training = scripts[1]
    torch.manual_seed(0)
    model = training.Decoder(training.ternary)
    batch = torch.arange(33).repeat(2, 1)
    first = training.loss_of(model, batch)
    assert abs(first.item() - math.log(training.VOCAB)) < 0.5
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(4):
        optimiser.zero_grad()
        loss = training.loss_of(model, batch)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.8 * first.item()


@pytest.mark.parametrize("kind", ["ternary", "float"])
def test_a_trained_adapter_is_one_that_the_adder_arrays_take(
    kind: str, scripts: Any, tmp_path: Path
) -> None:
    import torch

    training = scripts[2]
    torch.manual_seed(0)
    model, tokenizer = training.open_base()
    tokens = torch.tensor(tokenizer.encode("To be, or not to be: that is the question.")[:17])
    batch = tokens.repeat(2, 1)
    before = training.base.loss_of(model, batch)
    left = training.adapt(model, 3, training.base.ternary if kind == "ternary" else None)
    assert len(left) == 2 * 7 * training.base.N_LAYERS
    assert torch.equal(training.base.loss_of(model, batch), before)  # B begins as zeros
    optimiser = torch.optim.AdamW(left, lr=1e-2)
    for _ in range(4):
        optimiser.zero_grad()
        loss = training.base.loss_of(model, batch)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.9 * before.item()
    training.save_adapter(model, tmp_path / "a", 3)
    spec = open_model("stories-ternary").spec
    adapter = read_adapter(tmp_path / "a", spec)
    for layer, block in enumerate(model.blk):
        for part in ("attn_q", "ffn_down"):
            a, b = (factor.numpy() for factor in getattr(block, part).factors())
            target = adapter.targets[f"blk.{layer}.{part}.weight"]
            assert (target.scaling, target.rank) == (1.0, 3)
            np.testing.assert_array_equal(target.a, a)
            np.testing.assert_array_equal(target.b, b)
    chip = load_target("small-ternary").with_lora_path("adders")
    image = build_lora("a", adapter, spec=spec, target=chip, is_forced=True)
    assert (len(image.summary()["forced"]), image.error == 0) == ((0, True), (14, False))[
        kind == "float"
    ]
