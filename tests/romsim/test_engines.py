from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from romsim.engines import (
    check_engine,
    make_engine,
    open_adapters,
    open_source,
    require_images,
)
from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from tests.tiny_chips import copied, forge


def refused(sentence: str, call: Any, *arguments: Any, **options: Any) -> None:
    with pytest.raises(SpecError, match=rf"^{re.escape(sentence)}$"):
        call(*arguments, **options)


@pytest.mark.parametrize("adapter", [None, "story"])
def test_engines_give_the_same_logits(
    adapter: str | None, tiny: Description, adapter_folder: Path
) -> None:
    loras = {"story": adapter_folder} if adapter else None
    cycle = make_engine("cycle", tiny, adapter=adapter)
    reference = make_engine("reference", tiny, adapter=adapter, loras=loras)
    prompt = [40, 41, 42, 43, 44]
    np.testing.assert_array_equal(cycle.prefill(prompt), reference.prefill(prompt))
    np.testing.assert_array_equal(cycle.step(7), reference.step(7))
    assert cycle.saturations == reference.saturations == 0
    assert reference.cycles is None
    assert cycle.cycles is not None
    assert cycle.cycles > 0


def test_unknown_engine_is_refused_with_the_nearest(tiny: Description, shape: Description) -> None:
    for chip in (tiny, shape):  # the name comes first
        refused(
            "Engine must be one of cycle, reference, rtl, timing, not 'cycles'; did you mean "
            "'cycle'?",
            make_engine, "cycles", chip,
        )  # fmt: skip
    refused(
        "Engine must be one of cycle, reference, rtl, timing, not 'fpga'",
        check_engine,
        "fpga",
        tiny,
    )


def test_timing_gives_no_values(tiny: Description) -> None:
    refused(
        "Engine must be cycle, reference or rtl to give values, not 'timing', which gives cycles "
        "alone",
        make_engine, "timing", tiny,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["cycle", "reference"])
def test_shape_is_refused(name: str, shape: Description, paper: Description) -> None:
    refused(
        f"Engine {name!r} must have ROM images, but {shape.path} has none: it was compiled from a "
        f"shape without weights; compile a model with weights, or use --engine timing",
        make_engine, name, shape,
    )  # fmt: skip
    refused(
        f"Engine {name!r} must have ROM images, but {paper.path} has none: its target 'tom-7nm' is "
        f"not executable; compile for an executable target such as 'tom-7nm-int8', or use --engine "
        f"timing",
        make_engine, name, paper,
    )  # fmt: skip


def test_target_without_a_twin_is_sent_to_one_that_there_is(paper: Description) -> None:
    mine = SimpleNamespace(
        has_images=False, path="build/x", target=replace(paper.target, name="mine")
    )
    refused(
        "Audit must have ROM images, but build/x has none: its target 'mine' is not executable; "
        "compile for an executable target such as 'roma-7nm-g32', or use --engine timing",
        require_images, cast(Description, mine), "Audit",
    )  # fmt: skip


def test_images_are_all_that_is_asked(tiny: Description) -> None:
    require_images(tiny, "Audit")


@pytest.mark.parametrize("name", ["cycle", "reference"])
def test_adapter_that_is_not_resident_is_refused(name: str, tiny: Description) -> None:
    refused(
        f"Adapter must be one that is resident in {tiny.path} (story), not 'storry'; compile with "
        f"--lora storry=FOLDER",
        make_engine, name, tiny, adapter="storry",
    )  # fmt: skip


def test_cycle_model_wants_no_files(tiny: Description, adapter_folder: Path) -> None:
    why = "must be used with --engine reference, not with cycle, which runs from the description"
    refused(f"--model {why} alone", make_engine, "cycle", tiny, model="tiny-int4")
    refused(
        f"--lora {why} alone",
        make_engine, "cycle", tiny, adapter="story", loras={"story": adapter_folder},
    )  # fmt: skip


def test_adapters_are_opened_by_name(tiny: Description, adapter_folder: Path) -> None:
    assert open_adapters(tiny, None, None) == {}
    opened = open_adapters(tiny, "story", {"story": str(adapter_folder)})
    assert list(opened) == ["story"]
    assert opened["story"].max_rank == 8


def test_source_of_a_built_in_model_need_not_be_given(tiny: Description) -> None:
    assert open_source(tiny, None).source.name == "tiny-int4"
    assert open_source(tiny, "tiny-int4").spec == tiny.spec


def test_other_model_is_refused(tiny: Description) -> None:
    source = tiny.manifest["model"]["source"]["sha256"]
    other = "tiny-int2"
    with pytest.raises(
        SpecError,
        match=rf"^Model tiny-int2 must be the one that {re.escape(str(tiny.path))} was compiled "
        rf"from \(SHA-256 {source}\), not one with SHA-256 [0-9a-f]{{64}}; give the right --model "
        r"or compile again$",
    ):
        open_source(tiny, other)


def test_file_of_the_user_must_be_given(tiny: Description, tmp_path: Path) -> None:
    folder = copied(tiny.path, tmp_path / "c")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["model"]["source"] = {"kind": "gguf", "name": "mine.gguf", "sha256": "0" * 64}
    forge(folder, manifest)
    refused(
        f"The model file of {folder} must be given, since 'mine.gguf' is no built-in model: add "
        f"--model FILE",
        open_source, Description.load(folder), None,
    )  # fmt: skip
